"""The widest network, the largest input or the largest batch that stays within a time limit.

`last_within` searches by predicting networks: the answer stays within the limit, the next larger value
exceeds it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from lolat.device.attribution import AtSize
from lolat.device.device import Device
from lolat.device.fastest import faster_precision, in_each_precision, remedy_words
from lolat.device.largest_batch import last_within
from lolat.device.limits import end_ms
from lolat.device.predicting import predict
from lolat.device.prediction import Prediction
from lolat.device.question import Question, as_whole
from lolat.errors import AnswerIsNo, InputError, MissingPackageError, arg
from lolat.graph import Graph
from lolat.graph.analysis import Analysis, analyze
from lolat.graph.images import image_side, total_stride
from lolat.graph.width import HEADS, NOTE, widened, widths
from lolat.io.results import Result, Several, nested
from lolat.parameters import BEST, PARAMETERS
from lolat.units import byte_size, milliseconds, shapes_text

LARGEST_TRIED_BATCH = 65536
MOST_WIDTH = 8
MOST_SIDE = 2048
WIDTH_STEPS = 100  # steps from 0 to the network's own width; channels are rounded more coarsely


def varied_words(vary: str, value: float) -> str:
    """A width, resolution or batch size in words: "width x0.75", "192 px", "batch 8"."""
    words = {"width": f"width x{value:g}", "resolution": f"{value:g} px"}
    return words.get(vary, f"batch {value:.0f}")


@dataclass(frozen=True)
class Candidate:
    """A width, resolution or batch size, and the prediction for it."""

    KEYS = ("value", *nested("prediction", "latency_ms", "interval_ms"))

    value: float
    prediction: Prediction


@dataclass(frozen=True, repr=False)
class BudgetAnswer(Result):
    """The largest width, resolution or batch size within a time limit: `best.value`, `answer` in JSON.

    `next`: the next larger value, which exceeds the limit; None if `best` is the largest value tried.
    `channels`: pairs of channel counts, (now, at the best width). If no value stays within the limit,
    `answer` is null in JSON and `next` is the smallest value.
    """

    KEYS = (
        "best.prediction.network", "vary", "budget_ms", "sure",
        *nested("best.prediction", "predictor", "batch_size"), "answer", "latency_ms",
        *nested("best.prediction", "interval_ms", "coverage"), "channels", "next", "now",
        *nested("best.prediction", "in_domain", "device", "profile", "precision"), "warnings",
    )  # fmt: skip

    vary: str
    budget_ms: float
    sure: bool
    best: Candidate
    next: Candidate | None
    now: Candidate
    channels: tuple[tuple[int, int], ...] | None = None

    @property
    def answer(self) -> float | None:
        """The largest value within the time limit; null in JSON if there is none."""
        return self.best.value

    @property
    def latency_ms(self) -> float | None:
        """The latency at `answer`, in ms."""
        return self.best.prediction.latency_ms

    @property
    def largest(self) -> str:
        """The answer in words: "192 px", or "2048 px or more (largest tried)" if `next` is None."""
        return varied_words(self.vary, self.best.value) + (
            "" if self.next else " or more (largest tried)"
        )

    @property
    def verdict(self) -> str:
        """The answer as a sentence: it "stays within" the limit if `sure`, or "is predicted within"."""
        stays = "stays" if self.sure else "is predicted"
        return f"{self.largest} {stays} within {self.budget_ms:g} ms"

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings of the prediction, and notes if the width was varied."""
        if self.vary != "width":
            return self.best.prediction.warnings
        kinds = {o.kind for o in self.best.prediction.query.graph.operations}
        return (*self.best.prediction.warnings, NOTE, *([HEADS] if "attention" in kinds else []))

    def words(self) -> str:
        """The largest value within the time, and its latency."""
        return f"{self.verdict}: {self.best.prediction.words()}"


@dataclass(frozen=True, repr=False)
class BudgetAnswers(Several):
    """The answers at several batch sizes, as a sequence."""

    answers: tuple[BudgetAnswer, ...]


Values = tuple[float, float, int, Callable[[int], tuple[Graph, int]]]
"""(the network's own value, the unit of values, the number of values, a function of i that returns the
network at i units and its batch size)."""


def budget(
    device: Device,
    network: Graph | Analysis,
    vary: str,
    question: Question,
    at_size: AtSize | None = None,
    precision: str | None = None,
) -> BudgetAnswer:
    """Find the largest value of `vary` within the device's memory and the question's `max_ms`.

    `vary`: "width", "resolution" or "batch". `at_size` reads the network at another resolution.
    `precision`: "best" returns the largest answer among the device's precisions, the fastest if several are
    equal. See `Model.budget`.
    """
    if precision == BEST:
        return _in_best_precision(device, network, vary, question, at_size)
    question.check_limit()
    vary = PARAMETERS["vary"].choice(vary)
    max_ms, sure = question.max_ms or 0.0, bool(question.sure)
    network = analyze(network).graph
    own, unit, most, network_of = _values(network, vary, as_whole(question.batch_size), at_size)

    @functools.cache
    def step(i: int) -> Candidate | None:
        """The i-th value and its prediction; None if the network cannot take this value."""
        value = round(i * unit, 2) if vary == "width" else int(i * unit)
        try:
            changed, batch_size = network_of(i)
            asked = replace(question, batch_size=batch_size)
            return Candidate(value, predict(device, changed, asked))
        except MissingPackageError:
            raise
        except InputError:
            return None

    def fits(i: int, sure: bool) -> bool | None:
        tried = step(i)
        if tried is None:
            return None
        return end_ms(tried.prediction, sure) <= max_ms and tried.prediction.fits is not False

    now = Candidate(own, predict(device, network, question))
    start = min(max(round(own / unit), 1), most)
    last = last_within(fits, most, start, sure)
    best = step(last) if last else None
    larger = step(last + 1) if last < most else None
    is_own = vary == "resolution" and start in (last, last + 1)
    if best is larger is None or (is_own and step(start + 1) is step(start - 1) is None):
        raise InputError(f"{network.name!r} cannot be read at another {vary}; vary something else")
    if best is not None:
        channels = widths(network).pairs(best.value) if vary == "width" else None
        return BudgetAnswer(vary, max_ms, sure, best, larger, now, channels)
    assert larger is not None  # since `best` is None
    raise _over_budget(BudgetAnswer(vary, max_ms, sure, now, larger, now), larger)


def _in_best_precision(
    device: Device, network: Graph | Analysis, vary: str, question: Question, at_size: AtSize | None
) -> BudgetAnswer:
    """The largest answer of `budget` among a device's precisions, the fastest if several are equal.

    If no precision has an answer, raise the AnswerIsNo of the fastest precision.
    """

    def ask(one: Device) -> BudgetAnswer | AnswerIsNo:
        try:
            return budget(one, network, vary, question, at_size)
        except AnswerIsNo as no:
            return no

    found = in_each_precision(device, network, ask)
    kept = [answer for answer in found if isinstance(answer, BudgetAnswer)]
    if not kept:
        noes = [no for no in found if isinstance(no, AnswerIsNo)]
        raise min(noes, key=lambda no: no.data.get("enough_ms", math.inf))
    return max(
        reversed(kept), key=lambda answer: (answer.best.value, -answer.best.prediction.latency_ms)
    )


def _values(network: Graph, vary: str, batch_size: int, at_size: AtSize | None) -> Values:
    """The widths, resolutions or batch sizes to try; InputError if the network cannot be varied."""
    if vary == "batch":
        return batch_size, 1, LARGEST_TRIED_BATCH, lambda n: (network, n)
    if vary == "width":
        widened(network, 1.0)  # InputError if no channel count may change
        most, unit = MOST_WIDTH * WIDTH_STEPS, 1 / WIDTH_STEPS
        return 1.0, unit, most, lambda i: (widened(network, i / WIDTH_STEPS), batch_size)
    side = image_side(network)
    if side is None and at_size is not None:
        raise InputError(
            f"the resolution of {network.name!r} cannot be varied: expected an input of square images, not "
            f"{shapes_text(network.input_sizes)}; vary the width or the batch size, or give a square size"
        )
    if side is None or at_size is None:
        raise InputError(
            f"the resolution of {network.name!r} cannot be varied: it was read before, at one size; "
            "expected what it was read from, a network of square images, or vary the width or the batch "
            "size"
        )
    step = total_stride(network)

    def resized(i: int) -> tuple[Graph, int]:
        return network if i * step == side else at_size(i * step), batch_size

    return side, step, MOST_SIDE // step, resized


def _over_budget(answer: BudgetAnswer, smallest: Candidate) -> AnswerIsNo:
    """The error for a smallest value that already exceeds the time limit or the memory."""
    nothing = dict.fromkeys(("answer", "latency_ms", "interval_ms", "in_domain"))
    document = {**answer.to_dict(), **nothing, "warnings": [*answer.now.prediction.warnings]}
    value = varied_words(answer.vary, smallest.value)
    if smallest.prediction.fits is False:
        short, has = smallest.prediction.memory_bytes, smallest.prediction.available_bytes or 0
        return AnswerIsNo(
            f"even {value} of {answer.best.prediction.network!r} does not fit: it needs "
            f"{byte_size(short)} of memory; the device has {byte_size(has)} for it; give a smaller batch, "
            "or another device",
            document,
            code="no-room",
        )
    takes = end_ms(smallest.prediction, answer.sure)
    own = varied_words(answer.vary, answer.now.value)
    now = f"; now, at {own}, it takes {milliseconds(end_ms(answer.now.prediction, answer.sure))}"
    host = (
        f"; the host takes that long to start the operations, whatever the {answer.vary}; "
        f"{arg('launch')} graph may help"
    )
    better = faster_precision(smallest.prediction)
    remedy = ""
    if better is not None:
        took = milliseconds(end_ms(better, answer.sure))
        remedy = f"; {remedy_words(better, f'it takes {took}')}"
    last_digit = 10.0 ** (math.floor(math.log10(takes)) - 2)
    enough = f"{math.ceil(takes / last_digit) * last_digit:.3g}"
    return AnswerIsNo(
        f"even {value} of {answer.best.prediction.network!r} takes "
        f"{'up to ' * answer.sure}{milliseconds(takes)}, not {answer.budget_ms:g} ms"
        f"{now * (smallest.value != answer.now.value)}; give {arg('max_ms')} {enough} or more{remedy}"
        + host
        * bool(smallest.prediction.host_bound),
        document,
        code="over-budget",
        budget_ms=answer.budget_ms,
        enough_ms=float(enough),
    )
