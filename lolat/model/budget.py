"""Limits of time: the most that stays within one, and whether a prediction does, for pull requests.

The widest network, the largest input, the largest batch are found by bisection, each tried by predicting
it: the answer stays within the budget, and its next larger neighbor does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from lolat.errors import AnswerIsNo, InputError, MissingPackageError, ModelFileError, arg
from lolat.graph import Graph
from lolat.graph.edits import USUAL_STRIDE, image_side, total_stride
from lolat.graph.width import NOTE, widened, widths
from lolat.io.documents import converted, read_json
from lolat.io.results import Result, of, plain_data
from lolat.model import Model
from lolat.model.prediction import Prediction
from lolat.units import milliseconds, percent, plain

VARY = ("width", "resolution", "batch")
MOST_BATCH = 65536
MOST_WIDTH = 8
MOST_SIDE = 2048
WIDTH_STEPS = 100  # of the width is a step: channels are rounded more coarsely than that anyway


def largest(fits: Callable[[int], bool | None], count: int, start: int) -> tuple[int, int, bool]:
    """The largest of 1 ... count that fits, by bisection from `start`.

    `fits` is True up to some number and False from the next on; None for what is refused, at the lower
    or the upper end. Returns (largest that fits, the next, True), or (0 or the largest that is
    refused, the smallest that is not, False).
    """
    verdict = fits(start)
    if verdict is None:
        return start, start, False
    low, high = (start, count + 1) if verdict else (0, start)
    fits_any = verdict
    while high - low > 1:
        middle = (low + high) // 2
        answer = fits(middle)
        if answer or (answer is None and not verdict):
            low, fits_any = middle, bool(answer)
        else:
            high = middle
    return low, high, fits_any


def enough(takes: float) -> str:
    """A budget of three digits that `takes` stays within."""
    return f"{1.006 * takes:.3g}"


def check_budget(budget_ms: float) -> None:
    """InputError unless a budget is a number of milliseconds above 0."""
    if not isinstance(budget_ms, (int, float)) or not 0.0 < budget_ms < math.inf:
        raise InputError(
            f"{arg('max_ms')} {budget_ms!r}: expected a number of milliseconds above 0, such as 15"
        )


@dataclass(frozen=True)
class Step:
    """One value of what is varied, and the prediction of the network at it."""

    KEYS = ("value", *of("prediction", "latency_ms", "interval_ms"))

    value: float
    prediction: Prediction


@dataclass(frozen=True, repr=False)
class BudgetAnswer(Result):
    """The largest `best.value` of what is varied that stays within the budget.

    `next` is the next larger value, which does not; None at the largest that is tried, and where
    the network cannot be read at it (`refusal` says why). `channels`: of a width, each count now and then.
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
    refusal: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """How exact the counts are, where they are not those of a network that was read."""
        return (NOTE,) if self.vary == "width" else ()

    def words(self) -> str:
        """What stays within the time, and what it takes."""
        value = told(self.vary, self.best.value)
        return f"{value} stays within {self.budget_ms:g} ms: {self.best.prediction.words()}"

    def rows(self) -> list[dict[str, Any]]:
        """A row each for the network now, the largest within the time, and the next one."""
        steps = {"now": self.now, "within": self.best, "next": self.next}
        return [{"which": n, **plain_data(s)} for n, s in steps.items() if s is not None]

    @property
    def answer(self) -> float | None:
        """The largest value within the budget, always one; null in JSON where the answer is no."""
        return self.best.value

    @property
    def latency_ms(self) -> float | None:
        """The latency at it, as `answer`."""
        return self.best.prediction.latency_ms

    @property
    def warnings(self) -> tuple[str, ...]:
        """Those of the prediction, how exact the counts are, and why there is no larger value."""
        return (*self.best.prediction.warnings, *self.notes, *filter(None, [self.refusal]))


@dataclass(frozen=True)
class Values:
    """The values of what is varied: `unit` times 1, 2 ... `count`; `now` is the network's own.

    `network`: the network of the i-th value, and its batch size.
    """

    now: float
    unit: float
    count: int
    network: Callable[[int], tuple[Graph, int]]


@dataclass(frozen=True)
class Question:
    """A model, a network and a time. `at_size` reads the network again at another resolution."""

    model: Model
    network: Graph
    budget_ms: float
    batch_size: int = 1
    predictor: str | None = None
    coverage: float | None = None
    sure: bool = False
    at_size: Callable[[int], Graph] | None = None

    def __post_init__(self) -> None:
        check_budget(self.budget_ms)

    def predict(self, network: Graph, batch_size: int) -> Prediction:
        """With the question's predictor and coverage; InputError where --sure cannot be answered."""
        prediction = self.model.predict(network, batch_size, self.predictor, self.coverage)
        if self.sure and prediction.interval_ms is None:
            raise _no_interval(self.model.source)
        return prediction

    def takes(self, prediction: Prediction) -> float:
        """What counts against the budget: the latency, or to be sure the end of its interval."""
        sure = self.sure and prediction.interval_ms
        return sure[1] if sure else prediction.latency_ms

    def values(self, vary: str) -> Values:
        """The values of "width", "resolution" or "batch"; InputError where it cannot be varied."""
        if vary == "batch":
            return Values(self.batch_size, 1, MOST_BATCH, lambda n: (self.network, n))
        if vary == "resolution":
            return self._resolutions()
        if vary != "width":
            raise InputError(f"{arg('vary')} {vary!r}: expected one of {', '.join(VARY)}")
        widened(self.network, 1.0)  # says what cannot be varied

        def network(i: int) -> tuple[Graph, int]:
            return widened(self.network, i / WIDTH_STEPS), self.batch_size

        return Values(1.0, 1 / WIDTH_STEPS, MOST_WIDTH * WIDTH_STEPS, network)

    def _resolutions(self) -> Values:
        side, at_size = image_side(self.network), self.at_size
        if side is None or at_size is None:
            why = "it was not read by name" if side else "its input is no square image"
            raise InputError(
                f"the resolution of {self.network.name!r} cannot be varied: {why}; vary the width or the "
                "batch size"
            )
        step = total_stride(self.network) or USUAL_STRIDE

        def network(i: int) -> tuple[Graph, int]:
            return self.network if i * step == side else at_size(i * step), self.batch_size

        return Values(side, step, MOST_SIDE // step, network)

    def answer(self, vary: str) -> BudgetAnswer:
        """The largest `vary` ("width", "resolution" or "batch") within the budget.

        Raises AnswerIsNo where not even the smallest is, and InputError where it cannot be varied.
        """
        now = self.predict(self.network, self.batch_size)
        values, steps = self.values(vary), dict[int, Step | str]()

        def step(i: int) -> Step | str:
            """The i-th value and its prediction; the reason where there is no network of it."""
            if i not in steps:
                value = round(i * values.unit, 2) if vary == "width" else int(i * values.unit)
                try:
                    steps[i] = Step(value, self.predict(*values.network(i)))
                except MissingPackageError:  # no answer about the network
                    raise
                except InputError as error:
                    # The reason alone: what to give instead, the answer says.
                    steps[i] = error.data.get("why", str(error))
            return steps[i]

        def fits(i: int) -> bool | None:
            tried = step(i)
            return (
                None if isinstance(tried, str) else self.takes(tried.prediction) <= self.budget_ms
            )

        start = min(max(round(values.now / values.unit), 1), values.count)
        low, high, fits_any = largest(fits, values.count, start)
        best, further = steps.get(low), step(high) if high <= values.count else None
        own = Step(values.now, now)
        if isinstance(best, Step) and fits_any:
            pairs = widths(self.network).pairs(best.value) if vary == "width" else None
            refusal = further if isinstance(further, str) else None
            following = further if isinstance(further, Step) else None
            return BudgetAnswer(
                vary, self.budget_ms, self.sure, best, following, own, pairs, refusal
            )
        if not isinstance(further, Step):
            raise InputError(str(further))
        raise self._exceeded(vary, own, further, best if isinstance(best, str) else None)

    def _exceeded(self, vary: str, now: Step, smallest: Step, refusal: str | None) -> AnswerIsNo:
        """The error where not even the smallest value stays within the budget."""
        takes = self.takes(smallest.prediction)
        smaller = f", and smaller is refused ({refusal})" if refusal else ""
        answer = BudgetAnswer(vary, self.budget_ms, self.sure, now, smallest, now)
        return AnswerIsNo(
            f"even {told(vary, smallest.value)} of {self.network.name!r} takes "
            f"{'up to ' if self.sure else ''}{milliseconds(takes)}, not {self.budget_ms:g} ms{smaller}; "
            f"give {arg('max_ms')} {enough(takes)} or more",
            {
                **answer.to_dict(),
                **dict.fromkeys(("answer", "latency_ms", "interval_ms", "in_domain")),
                "warnings": [refusal] if refusal else [],
            },
            code="over-budget",
            budget_ms=self.budget_ms,
            enough_ms=float(enough(takes)),
        )


def told(vary: str, value: float) -> str:
    """A value of what is varied, in words: "batch 8", "width x0.75", "192 px"."""
    if vary == "resolution":
        return f"{value:g} px"
    return f"width x{value:g}" if vary == "width" else f"batch {value:.0f}"


# ---- Whether a prediction keeps limits: a time, or a ratio to what it was before

MAX_RATIO = 1.05
"""So many times as long as the base a network may take, where nobody says how many."""
_EXPECTED = "expected what `lolat predict MODEL NETWORK --json` wrote"


class Before(msgspec.Struct, frozen=True):
    """An earlier prediction, as far as it is compared: of which model, how it was asked, its time."""

    schema: Literal["lolat-prediction"]
    model: str
    learned: str | None
    network: str
    predictor: str
    batch_size: int
    latency_ms: Annotated[float, msgspec.Meta(gt=0.0)]


def is_prediction(path: str) -> bool:
    """Whether a file holds a prediction rather than a network."""
    if not (path.lower().endswith(".json") and Path(path).is_file()):
        return False
    document = read_json(path, _EXPECTED)
    return isinstance(document, dict) and str(document.get("schema")).startswith("lolat-prediction")


def read_before(path: str) -> Before:
    """The prediction in the file that `predict --json` wrote. InputError: something else is in it."""
    try:
        return converted(read_json(path, _EXPECTED), Before, f"{arg('against')} {plain(path)}")
    except ModelFileError as error:
        raise InputError(f"{error.message}; {_EXPECTED}") from error


def before_of(prediction: Prediction) -> Before:
    """A prediction as what another is compared with."""
    p = prediction
    return Before(
        "lolat-prediction", p.model, p.learned, p.network, p.predictor, p.batch_size, p.latency_ms
    )


@dataclass(frozen=True)
class Limits:
    """`max_ms`: the longest time; of the upper end of the interval of coverage `sure`, where that is given.
    `before`: an earlier prediction; `max_ratio`: so many times as long as that it may take, MAX_RATIO if
    None. InputError for limits that do not go together.
    """

    max_ms: float | None = None
    sure: float | None = None
    before: Before | None = None
    max_ratio: float | None = None

    def __post_init__(self) -> None:
        if self.sure is not None and self.max_ms is None:
            raise InputError(f"{arg('sure')} without a limit; expected {arg('max_ms')} too")
        if self.max_ratio is not None and self.before is None:
            raise InputError(f"{arg('max_ratio')} without a base; expected {arg('against')} too")


def exceeded(
    predictions: Sequence[Prediction], limits: Limits, devices: Sequence[str] = ()
) -> list[str]:
    """A line for each limit that a prediction does not keep, for an error.

    The predictions have intervals of `limits.sure`; `devices`: their names in the lines. InputError: to be
    sure of a model that has no intervals; a comparison with another model, predictor or batch size.
    """
    lines = []
    for number, prediction in enumerate(predictions):
        title = prediction.title + (f" on {plain(devices[number])}" if devices else "")
        takes = f"{title} takes {milliseconds(prediction.latency_ms)}"
        if limits.max_ms is not None:
            most_ms = prediction.latency_ms
            if limits.sure is not None:
                if prediction.interval_ms is None:
                    raise _no_interval("the model")
                most_ms = prediction.interval_ms[1]
                takes += f" ({100 * limits.sure:g} % sure of at most {milliseconds(most_ms)})"
            if most_ms > limits.max_ms:
                over = percent(most_ms / limits.max_ms - 1.0)
                lines.append(
                    f"{takes}, {over} more than the {limits.max_ms:g} ms of {arg('max_ms')}; `lolat "
                    "report` says where the time goes"
                )
        if limits.before is not None:
            ratio = _ratio(prediction, limits.before)
            max_ratio = MAX_RATIO if limits.max_ratio is None else limits.max_ratio
            if ratio > max_ratio:
                lines.append(
                    f"{title} takes {milliseconds(prediction.latency_ms)}, {ratio:.3g} times the "
                    f"{milliseconds(limits.before.latency_ms)} of the base, more than the "
                    f"{max_ratio:g} times of {arg('max_ratio')}"
                )
    return lines


def _ratio(prediction: Prediction, before: Before) -> float:
    """The latency over that before; InputError where another question was asked before."""
    now = before_of(prediction)
    for name in ("model", "learned", "predictor", "batch_size"):
        former, expected = getattr(before, name), getattr(now, name)
        if former != expected:
            raise InputError(
                f"{arg('against')}: its {name.replace('_', ' ')} is {plain(str(former))}; expected "
                f"{plain(str(expected))}: predict the base with the same MODEL and options"
            )
    return prediction.latency_ms / before.latency_ms


def _no_interval(model: str) -> InputError:
    sure = arg("sure")
    return InputError(
        f"{sure} needs an interval, and {model} has too few points for one; leave {sure} out, or learn "
        "the model again",
        code="too-few-points",
    )
