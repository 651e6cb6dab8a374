"""The data that the page's templates read: cards of devices, comparisons, the chart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lolat.device.budget import BudgetAnswer
from lolat.device.prediction import Prediction
from lolat.llm.answer import ServingAnswer, ServingConfig
from lolat.report.ranked import Sentence
from lolat.training.compare import Costs
from lolat.training.cost import Cost
from lolat.web.devices import ListedDevice


@dataclass(frozen=True, kw_only=True)
class Card:
    """The answer of one device.

    `name`: the device's name; `known`: the profile that answers; `title`: the headline in large letters,
    with `then` below it; `bests`: several headlines in place of one, as (title, load or aim); `facts`:
    (name, text) of the row in the last headline. `sentences` and `lines` come before the `table` (HTML) and
    the `legend` of its marks; `after` and `remarks`, folded if there are many, follow the table.
    """

    device: ListedDevice
    name: str
    command: str
    known: str | None
    title: str = ""
    then: str = ""
    bests: Sequence[tuple[str, str]] = ()
    facts: Sequence[tuple[str, str]] = ()
    sentences: Sequence[Sentence] = ()
    lines: Sequence[str] = ()
    table: str = ""
    legend: Sequence[str] = ()
    after: Sequence[str] = ()
    remarks: Sequence[str] = ()
    parts: Sequence[tuple[int, str, float]] = ()
    """(color, name, share) for each part of a token's time."""


@dataclass(frozen=True, kw_only=True)
class LatencyCard(Card):
    """The predictions for each batch size; `shown`: the one in the title; `report`: its page's address."""

    predictions: Sequence[Prediction]
    shown: Prediction
    report: str = ""


@dataclass(frozen=True, kw_only=True)
class BudgetCard(Card):
    """The largest width, input or batch within a time; `answer`: None if nothing fits."""

    answer: BudgetAnswer | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingCard(Card):
    """The cost of training."""

    cost: Cost | Costs


@dataclass(frozen=True, kw_only=True)
class ServingCard(Card):
    """A served language model: the `row` in the title, its `load` as text, `loads` with the chart's rows.

    `answer`: None if no row keeps the limits.
    """

    row: ServingConfig
    load: str
    answer: ServingAnswer | None
    loads: Sequence[ServingConfig]

    @property
    def is_compared(self) -> bool:
        """True if the answer has a row to compare with rows of other devices."""
        return self.answer is not None and bool(self.answer.compared)


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """A comparison of several devices on the tabs What fits, training or serving.

    `about`: the question; `bests`: (title, name) of the best device under each load. `sentences` come
    before the `table` (HTML); the `legend` of its marks, `lines` and `notes` follow it. `cards`: the
    devices' cards, the best first.
    """

    about: str = ""
    bests: Sequence[tuple[str, str]]
    sentences: Sequence[Sentence]
    table: str
    legend: Sequence[str] = ()
    lines: Sequence[str]
    command: str = ""
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()
    cards: Sequence[Card] = ()


@dataclass(frozen=True)
class LatencyGroup:
    """The devices at one batch size.

    `lines`: (number, card, prediction), the fastest first; predictions that do not fit into memory last.
    """

    batch_size: int
    lines: Sequence[tuple[int, LatencyCard, Prediction]]


@dataclass(frozen=True)
class LatencyComparison:
    """A comparison of devices at each batch size.

    `longest`: the largest upper end of all intervals in ms; `best`: the card of the fastest device at the
    shown batch size, None if it is not certain; `sentences`: a remark on assumed hosts, then the
    fastest and the cheapest device; `others`: the same for other execution modes, folded; `marks`:
    explanations of the marks after the devices; `has_prices`: True if any device has a price.
    """

    groups: Sequence[LatencyGroup]
    longest: float
    best: LatencyCard | None
    sentences: Sequence[str]
    others: Sequence[str]
    marks: Sequence[str]
    has_prices: bool
    command: str


@dataclass(frozen=True)
class BlockLine:
    """A block; `cells`: (ms, share) on each device; `most`: the largest part of its time, of one device."""

    name: str
    summary: str
    cells: Sequence[tuple[float, float]]
    most: str


@dataclass(frozen=True)
class BlockTable:
    """A row for each block; `longest`: the largest share of any; `sentences`: each device's bottlenecks."""

    rows: Sequence[BlockLine]
    longest: float
    sentences: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """All loads by tokens/s per request and tokens/s per GPU, in a unit square; a place is [x, y].

    `crowded`: the reason why nothing is drawn, or "". `dots`: (place, color, text); `colors`: the name of
    each color: a device, or for a single device a number of GPUs; `front`: places of the Pareto front;
    `rings`: places of the chosen rows; `words`: (x, y, name) of the chosen rows' labels, without overlaps;
    `limit`: (x, text) for the fewest tokens/s per request, None without a limit or outside; `ticks`:
    (label, position) on both axes; `table`: the configurations on the front, as HTML.
    """

    crowded: str = ""
    dots: Sequence[tuple[list[float], int, str]] = ()
    colors: Sequence[str] = ()
    front: Sequence[list[float]] = ()
    rings: Sequence[list[float]] = ()
    words: Sequence[tuple[float, float, str]] = ()
    limit: tuple[float, str] | None = None
    ticks: Sequence[Sequence[tuple[str, float]]] = ()
    table: str = ""


@dataclass(frozen=True)
class PageAnswer:
    """The answer of a page to a question.

    `failed`: (device without an answer, reason); `briefs`: (title, name) of the best devices; `differ`: a
    remark on different precisions or launches; `is_file`: True if a file was uploaded.
    """

    subject: Any
    cards: Sequence[Card]
    failed: Sequence[tuple[ListedDevice, str]]
    is_file: bool
    differ: str
    compared: LatencyComparison | None
    beside: SideBySide | None
    briefs: Sequence[tuple[str, str]]
    chart: Chart | None
    blocks: BlockTable | None
