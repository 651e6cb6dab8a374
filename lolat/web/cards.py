"""The answer of a page as its templates read it: cards of devices, comparisons, the chart."""

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

    `name`: the device's; `known`: the profile that answers; `title`: in large letters, `then` below it;
    `bests`: in its place (title, load or aim); `facts`: (name, words) of the row in the last
    title; `sentences` and `lines` stand before the `table`, which is HTML, and the `legend` of its marks;
    `after` and `remarks`, folded if there are many, stand behind it.
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
    """(color, words, share) of each part of a token's time."""


@dataclass(frozen=True, kw_only=True)
class LatencyCard(Card):
    """The predictions for each batch size; the one that is `shown`, and the address of its `report`."""

    predictions: Sequence[Prediction]
    shown: Prediction
    report: str = ""


@dataclass(frozen=True, kw_only=True)
class BudgetCard(Card):
    """The largest width, input or batch within a time; `answer`: None where nothing fits."""

    answer: BudgetAnswer | None = None


@dataclass(frozen=True, kw_only=True)
class TrainingCard(Card):
    """The cost of a training."""

    cost: Cost | Costs


@dataclass(frozen=True, kw_only=True)
class ServingCard(Card):
    """A served language model: the `row` in the title, its `load` in words, `loads` for the chart.

    `answer`: None where no row keeps the limits.
    """

    row: ServingConfig
    load: str
    answer: ServingAnswer | None
    loads: Sequence[ServingConfig]

    @property
    def is_compared(self) -> bool:
        """True if a row of the answer can stand beside those of other devices."""
        return self.answer is not None and bool(self.answer.compared)


@dataclass(frozen=True, kw_only=True)
class SideBySide:
    """Several answers of What fits, trainings or served models beside each other.

    `about`: the question; `bests`: (title, name) of the best under each load; `sentences` stand before the
    `table`, which is HTML, the `legend` of its marks, `lines` and `notes` behind it; `cards`: the devices'
    cards, the best first.
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

    `lines`: (number, card, prediction), the fastest first, those without room last.
    """

    batch_size: int
    lines: Sequence[tuple[int, LatencyCard, Prediction]]


@dataclass(frozen=True)
class LatencyComparison:
    """Devices beside each other at each batch size.

    `longest`: the longest time of all intervals, in ms; `best`: the card of the fastest at the batch size
    that is shown, None if that is not decided; `sentences`: on assumed hosts, the fastest and the cheapest;
    `others`: those of other execution modes, which are folded; `marks`: meanings of the words
    behind the devices; `has_prices`: True if there is a price.
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
    """A block: (ms, share) on each device; `most`: what most of its time is, of a single device."""

    name: str
    summary: str
    cells: Sequence[tuple[float, float]]
    most: str


@dataclass(frozen=True)
class BlockTable:
    """The blocks; `longest`: the largest share of one; a sentence on the bottlenecks of each device."""

    rows: Sequence[BlockLine]
    longest: float
    sentences: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Chart:
    """All loads by tokens/s of a request and of a GPU, in a square of 1 x 1; a place is [x, y] in it.

    `crowded`: why nothing is drawn, else "". `dots`: place, color, words; `colors`: words of each color,
    which is a device's or, of one device, that of a split on GPUs; `front`: places of those that no other
    one beats in both; `rings`: places of the chosen rows; `words`: (x, y, name) of these, each at a height
    of its own; `limit`: (x, words) of the fewest tokens/s of a request, None without or outside; `ticks`:
    (label, place) on both axes; `table`: the configurations on the front, as HTML.
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
    """The answer of a page.

    `failed`: devices without an answer, and why; `briefs`: (title, name) of the best; `differ`: a
    remark on precisions or launches that differ; `is_file`: True if a file was sent.
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
