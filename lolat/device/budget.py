"""Limits of time: the most that stays within one, and whether a prediction does, for pull requests.

The widest network, the largest input, the largest batch are found by `last_within`, each tried by
predicting it: the answer stays within the budget, and its next larger neighbor does not.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated

import msgspec
from msgspec import UNSET

from lolat.device import Device
from lolat.device.attribution import AtSize
from lolat.device.predicting import check_budget, end_ms, last_within
from lolat.device.prediction import Prediction
from lolat.errors import AnswerIsNo, InputError, MissingPackageError, arg
from lolat.graph import Graph
from lolat.graph.analysis import Analysis, analyze
from lolat.graph.edits import image_side, total_stride
from lolat.graph.modes import GRAPH
from lolat.graph.width import NOTE, widened, widths
from lolat.io.documents import converted, read_json
from lolat.io.results import Result, of
from lolat.units import byte_size, milliseconds, percent, plain

VARY = ("width", "resolution", "batch")
MOST_BATCH = 65536
MOST_WIDTH = 8
MOST_SIDE = 2048
WIDTH_STEPS = 100  # of the width is a step: channels are rounded more coarsely than that anyway


def value_words(vary: str, value: float) -> str:
    """A value of the width, resolution or batch in words: "width x0.75", "192 px", "batch 8"."""
    words = {"width": f"width x{value:g}", "resolution": f"{value:g} px"}
    return words.get(vary, f"batch {value:.0f}")


@dataclass(frozen=True)
class Step:
    """One value of the width, resolution or batch, and the prediction of the network at it."""

    KEYS = ("value", *of("prediction", "latency_ms", "interval_ms"))

    value: float
    prediction: Prediction


@dataclass(frozen=True, repr=False)
class BudgetAnswer(Result):
    """`best.value` is the largest width, resolution or batch that stays within the budget.

    `next` is the next larger value, which does not; None at the largest that is tried, and where
    the network cannot be read at it. `channels`: of a width, each count now and then.
    In JSON `answer` is that value; it is null where none stays within the budget (exit code 3), and `next`
    is the smallest then.
    """

    KEYS = (
        "best.prediction.network", "vary", "budget_ms", "sure",
        *of("best.prediction", "predictor", "batch_size"), "answer", "latency_ms",
        *of("best.prediction", "interval_ms", "coverage"), "channels", "next", "now",
        "best.prediction.in_domain", "warnings",
    )  # fmt: skip

    vary: str
    budget_ms: float
    sure: bool
    best: Step
    next: Step | None
    now: Step
    channels: tuple[tuple[int, int], ...] | None = None

    @property
    def answer(self) -> float | None:
        """The largest value within the budget; null in JSON where the answer is no."""
        return self.best.value

    @property
    def latency_ms(self) -> float | None:
        """The latency at it, as `answer`."""
        return self.best.prediction.latency_ms

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of the prediction, and how exact the counts are of a network at another width."""
        return (*self.best.prediction.warnings, *[NOTE] * (self.vary == "width"))

    def words(self) -> str:
        """The value that stays within the time, and its latency."""
        value = value_words(self.vary, self.best.value)
        return f"{value} stays within {self.budget_ms:g} ms: {self.best.prediction.words()}"


Values = tuple[float, float, int, Callable[[int], tuple[Graph, int]]]
"""The network's own value; the values to try: a unit times 1, 2 ... so many; the network of the i-th value,
and its batch size.
"""


def budget(
    model: Device,
    network: Graph | Analysis,
    max_ms: float,
    vary: str,
    batch_size: int = 1,
    predictor: str | None = None,
    coverage: float | None = None,
    sure: bool = False,
    at_size: AtSize | None = None,
) -> BudgetAnswer:
    """The largest `vary` ("width", "resolution" or "batch") within `max_ms`, and within the device's memory
    where that is known; see `Model.budget`.

    `at_size` reads the network again at another resolution.
    """
    check_budget(max_ms)
    network = analyze(network).graph
    own, unit, most, network_of = _values(network, vary, batch_size, at_size)

    @functools.cache
    def step(i: int) -> Step | None:
        """The i-th value and its prediction; None where there is no network of it."""
        value = round(i * unit, 2) if vary == "width" else int(i * unit)
        try:
            return Step(value, model.predict(*network_of(i), predictor, coverage))
        except MissingPackageError:  # no answer about the network
            raise
        except InputError:
            return None

    def fits(i: int, sure: bool) -> bool | None:
        tried = step(i)
        if tried is None:
            return None
        return end_ms(tried.prediction, sure) <= max_ms and tried.prediction.fits is not False

    now = Step(own, model.predict(network, batch_size, predictor, coverage))
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


def _values(network: Graph, vary: str, batch_size: int, at_size: AtSize | None) -> Values:
    """The widths, resolutions or batch sizes to try; InputError where the network has no others."""
    if vary == "batch":
        return batch_size, 1, MOST_BATCH, lambda n: (network, n)
    if vary == "width":
        widened(network, 1.0)  # InputError where no channel count is free
        most, unit = MOST_WIDTH * WIDTH_STEPS, 1 / WIDTH_STEPS
        return 1.0, unit, most, lambda i: (widened(network, i / WIDTH_STEPS), batch_size)
    if vary != "resolution":
        raise InputError(f"{arg('vary')} {vary!r}: expected one of {', '.join(VARY)}")
    side = image_side(network)
    if side is None or at_size is None:
        raise InputError(
            f"the resolution of {network.name!r} cannot be varied: expected a network of square images "
            "that can be read at another size, not one that brings its inputs; vary the width or the "
            "batch size"
        )
    step = total_stride(network)

    def resized(i: int) -> tuple[Graph, int]:
        return network if i * step == side else at_size(i * step), batch_size

    return side, step, MOST_SIDE // step, resized


def _over_budget(answer: BudgetAnswer, smallest: Step) -> AnswerIsNo:
    """The error where not even the smallest value stays within the budget, or fits into the memory."""
    nothing = dict.fromkeys(("answer", "latency_ms", "interval_ms", "in_domain"))
    document = {**answer.to_dict(), **nothing, "warnings": []}
    value = value_words(answer.vary, smallest.value)
    if smallest.prediction.fits is False:
        short, has = smallest.prediction.memory_bytes, smallest.prediction.available_bytes or 0
        return AnswerIsNo(
            f"even {value} of {answer.best.prediction.network!r} does not fit: it takes "
            f"{byte_size(short)} of memory, of which a network may have {byte_size(has)} on the device; "
            "give a smaller batch, or another device",
            document,
            code="no-room",
        )
    takes = end_ms(smallest.prediction, answer.sure)
    enough = f"{1.006 * takes:.3g}"  # three digits that the time stays within
    return AnswerIsNo(
        f"even {value} of {answer.best.prediction.network!r} takes "
        f"{'up to ' * answer.sure}{milliseconds(takes)}, not {answer.budget_ms:g} ms"
        f"{_host_words(smallest.prediction, answer)}; give {arg('max_ms')} {enough} or more",
        document,
        code="over-budget",
        budget_ms=answer.budget_ms,
        enough_ms=float(enough),
    )


def _host_words(smallest: Prediction, answer: BudgetAnswer) -> str:
    """Where starting the operations is what takes long: that, and what helps, as far as it does."""
    if not smallest.host_bound:
        return ""
    graph, model, size = smallest.query.graph, smallest.query.model, smallest.batch_size
    words = ": the host takes so long to start its operations, however small they are"
    with contextlib.suppress(InputError):
        at_once = model.run_as(None, GRAPH).predict(graph, size, coverage=smallest.coverage)
        if at_once.latency_ms < smallest.latency_ms:
            takes = milliseconds(end_ms(at_once, answer.sure))
            words += f"; a CUDA graph ({arg('launch')} {GRAPH}) starts them at once: {takes}"
    larger = model.predict(graph, 2 * size, coverage=smallest.coverage)
    if answer.vary != "batch" and larger.host_bound:
        words += f"; {arg('batch_size')} {2 * size} takes no longer"
    return words


# ---- Whether a prediction keeps limits: a time, or a ratio to an earlier prediction

MAX_RATIO = 1.05
"""So many times as long as the base a network may take, where nobody says how many."""
SAME = ("model", "learned", "predictor", "batch_size", "precision", "launch")
"""What two predictions that are compared have in common."""


class Before(msgspec.Struct, frozen=True):
    """An earlier prediction: the part that is compared."""

    model: str
    learned: str | None
    predictor: str
    batch_size: int
    precision: str
    launch: str | None
    input_shapes: tuple[tuple[int, ...], ...]
    latency_ms: Annotated[float, msgspec.Meta(gt=0.0)]


def read_before(path: str) -> Before | None:
    """The prediction in a file that `predict --json` wrote; None of anything else, such as a network."""
    if not path.lower().endswith(".json") or not os.path.isfile(path):
        return None
    document = read_json(path, "expected what `lolat predict --json` wrote")
    if not isinstance(document, dict) or document.get("schema") != "lolat-prediction":
        return None
    return converted(document, Before, f"{arg('against')} {plain(path)}")


def exceeded(
    predictions: Collection[Prediction],
    max_ms: float | None = None,
    sure: float | None = None,
    before: Prediction | Before | None = None,
    max_ratio: float | None = None,
) -> list[str]:
    """A line for each limit that a prediction does not keep, and each that does not fit where none does,
    for an error.

    `max_ms`: the longest time; with `sure`, the coverage of the predictions' intervals, of the upper end of
    the interval. `max_ratio`: so many times as long as `before` each may take, MAX_RATIO if None.
    InputError: no interval to be sure of; a `before` of another model, predictor or batch size.
    """
    lines, most_ratio = [], MAX_RATIO if max_ratio is None else max_ratio
    is_limit = max_ms is not None or {*map(attrgetter("fits"), predictions)} == {False}
    for prediction in predictions:
        on = "" if prediction.device is UNSET else f" on {plain(prediction.device)}"
        takes = f"{prediction.title}{on} takes {milliseconds(prediction.latency_ms)}"
        if is_limit and prediction.fits is False:
            lines.append(f"{prediction.title}{on} does not fit into its memory")
            continue
        if max_ms is not None and (most_ms := end_ms(prediction, sure is not None)) > max_ms:
            most = f" ({percent(sure)} sure of at most {milliseconds(most_ms)})" if sure else ""
            lines.append(
                f"{takes}{most}, {percent(most_ms / max_ms - 1.0)} more than the {max_ms:g} ms of "
                f"{arg('max_ms')}; `lolat report` says where the time goes"
            )
        if before is not None and (ratio := _ratio(prediction, before)) > most_ratio:
            lines.append(
                f"{takes}, {ratio:.3g} times the {milliseconds(before.latency_ms)} of the base, more "
                f"than the {most_ratio:g} times of {arg('max_ratio')}"
            )
    return lines


def _ratio(now: Prediction, before: Prediction | Before) -> float:
    """The latency over that before; InputError where another question was asked before."""
    same: tuple[str, ...] = ("batch_size",)  # a network is asked the same question
    if isinstance(before, Before):
        same = (*SAME, "input_shapes") if now.query.input_size else SAME
    if different := [name for name in same if getattr(before, name) != getattr(now, name)]:
        raise InputError(
            f"{arg('against')} has another {different[0].replace('_', ' ')}; predict the base with the "
            "same MODEL and options"
        )
    return now.latency_ms / before.latency_ms
