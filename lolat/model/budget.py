"""Limits of time: the most that stays within one, and whether a prediction does, for pull requests.

The widest network, the largest input, the largest batch are solved from the formula, then checked by
predicting: what is answered stays within the budget, and its next larger neighbor does not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
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


def search(
    fits: Callable[[int], bool | None], count: int, start: int, guess: int
) -> tuple[int, int, bool]:
    """The largest of 1 ... count that fits, from a guess; asks few times where the guess is good.

    `fits` is True up to some number and False from the next on; None for what is refused, at the lower
    or the upper end. Returns (largest that fits, the next, True), or (0 or the largest that is
    refused, the smallest that is not, False). Where `fits` is not so ordered, the two answers are
    still neighbours of which one fits and the other does not.
    """
    low, high, fits_any = 0, count + 1, False
    at, stride = start, 1
    while high - low > 1:
        verdict = fits(at)
        if verdict:
            low, fits_any = at, True
        elif verdict is None and at == start:
            return at, at, False
        elif verdict is None and at < start and not fits_any:
            low = at
        else:
            high = at
        half = max((high - low) // 2, 1)
        if low < guess < high:
            at = guess
        elif guess <= low:
            at = low + min(stride, half)
            stride *= 2
        else:
            at = high - min(stride, half)
            stride *= 2
    return low, high, fits_any


def enough(takes: float) -> str:
    """A budget of three digits or more that `takes` stays within."""
    for digits in range(3, 17):
        unit = 10.0 ** (math.floor(math.log10(takes)) + 1 - digits) if takes > 0.0 else 1.0
        text = f"{math.ceil(takes / unit - 1e-9) * unit:.{digits}g}"
        if float(text) >= takes:
            return text
    return repr(takes)


VARY = ("width", "resolution", "batch")
MOST_BATCH = 65536
MOST_WIDTH = 8
MOST_SIDE = 2048
WIDTH_STEPS = 100  # of the width is a step: channels are rounded more coarsely than that anyway


def check_budget(budget_ms: float) -> None:
    """InputError unless a budget is a number of milliseconds above 0."""
    if not isinstance(budget_ms, (int, float)) or not 0.0 < budget_ms < math.inf:
        raise InputError(
            f"{arg('max_ms')} {budget_ms!r}: expected a number of milliseconds above 0, such as 15"
        )


@dataclass(frozen=True)
class Step:
    """One value of what is varied, and what the model says of the network at it."""

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
        found = told(self.vary, self.best.value)
        return f"{found} stays within {self.budget_ms:g} ms: {self.best.prediction.words()}"

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

    @cached_property
    def now(self) -> Prediction:
        """What the model says of the network as it is; InputError where --sure cannot be answered."""
        prediction = self.predict(self.network, self.batch_size)
        if self.sure and prediction.interval_ms is None:
            raise _no_interval(self.model.source)
        return prediction

    def predict(self, network: Graph, batch_size: int) -> Prediction:
        """With the predictor and the coverage that were asked for."""
        return self.model.predict(network, batch_size, self.predictor, self.coverage)

    def takes(self, prediction: Prediction) -> float:
        """What counts against the budget: the latency, or to be sure the end of its interval."""
        sure = self.sure and prediction.interval_ms
        return sure[1] if sure else prediction.latency_ms

    @property
    def aim(self) -> float:
        """The latency to aim at."""
        now = self.now
        return self.budget_ms * now.latency_ms / (self.takes(now) or 1.0)

    @cached_property
    def by_sample(self) -> tuple[float, float]:
        """(fixed, for each sample) milliseconds: the latency is affine in the batch size."""
        double = self.predict(self.network, 2 * self.batch_size)
        each = (double.latency_ms - self.now.latency_ms) / self.batch_size
        return self.now.latency_ms - each * self.batch_size, each

    def answer(self, vary: str) -> BudgetAnswer:
        """The largest `vary` ("width", "resolution" or "batch") within the budget.

        Raises AnswerIsNo where not even the smallest is, and InputError where it cannot be varied.
        """
        ways = {"width": self._width, "resolution": self._resolution, "batch": self._batch}
        if vary not in ways:
            raise InputError(f"{arg('vary')} {vary!r}: expected one of {', '.join(VARY)}")
        return ways[vary]()

    def _batch(self) -> BudgetAnswer:
        fixed, each = self.by_sample
        guess = (self.aim - fixed) / each if each > 0.0 else MOST_BATCH
        varied = _Varied(self, "batch", self.batch_size, lambda n: (self.network, n), 1, MOST_BATCH)
        return varied.answer(guess)

    def _width(self) -> BudgetAnswer:
        def network(i: int) -> tuple[Graph, int]:
            return widened(self.network, i / WIDTH_STEPS), self.batch_size

        network(WIDTH_STEPS)  # says what cannot be varied
        varied = _Varied(self, "width", 1.0, network, 1 / WIDTH_STEPS, MOST_WIDTH * WIDTH_STEPS)
        return varied.answer(WIDTH_STEPS * self._guessed_width())

    def _guessed_width(self) -> float:
        """Where a parabola through the latencies at half, the same and twice the width meets the aim."""
        half, one, two = (
            self.predict(widened(self.network, f), self.batch_size).latency_ms
            for f in (0.5, 1.0, 2.0)
        )
        a = ((two - one) - (one - half) / 0.5) / 1.5
        b = (one - half) / 0.5 - 1.5 * a
        c = one - a - b - self.aim
        if a <= 1e-9 * one:
            return -c / b if b > 0.0 else 1.0
        return (math.sqrt(max(b * b - 4.0 * a * c, 0.0)) - b) / (2.0 * a)

    def _resolution(self) -> BudgetAnswer:
        side, at_size = image_side(self.network), self.at_size
        if side is None or at_size is None:
            why = "it was not read by name" if side else "its input is no square image"
            raise InputError(
                f"the resolution of {self.network.name!r} cannot be varied: {why}; vary the width or the "
                "batch size"
            )
        step = total_stride(self.network) or USUAL_STRIDE
        fixed, each = self.by_sample  # weights and operations stay, the rest grows with the area
        scaled = each * self.batch_size
        area = max(self.aim - fixed, 0.0) / scaled if scaled > 0.0 else math.inf

        def network(i: int) -> tuple[Graph, int]:
            return self.network if i * step == side else at_size(i * step), self.batch_size

        varied = _Varied(self, "resolution", side, network, step, MOST_SIDE // step)
        return varied.answer(min(side * math.sqrt(area), MOST_SIDE) / step)


@dataclass(frozen=True)
class _Varied:
    """The values of what is varied: `unit` times 1, 2 ... `count`, `now` among them; each predicted once.

    `network`: that of the i-th value, and its batch size.
    """

    question: Question
    vary: str
    now: float
    network: Callable[[int], tuple[Graph, int]]
    unit: float
    count: int
    steps: dict[int, Step | str] = field(default_factory=dict)  # or why there is none

    def step(self, i: int) -> Step | str:
        """The i-th value and its prediction; why, where there is no network of it."""
        if i not in self.steps:
            value = round(i * self.unit, 2) if self.vary == "width" else int(i * self.unit)
            try:
                self.steps[i] = Step(value, self.question.predict(*self.network(i)))
            except MissingPackageError:  # no answer about the network
                raise
            except InputError as error:
                # The reason alone: what to give instead, the answer says.
                self.steps[i] = error.data.get("why", str(error))
        return self.steps[i]

    def fits(self, i: int) -> bool | None:
        """Whether the i-th stays within the budget; None where it is refused."""
        step = self.step(i)
        if isinstance(step, str):
            return None
        return self.question.takes(step.prediction) <= self.question.budget_ms

    def answer(self, guess: float) -> BudgetAnswer:
        """The largest value that fits; AnswerIsNo where there is none."""
        q, start = self.question, min(max(round(self.now / self.unit), 1), self.count)
        now = Step(self.now, q.now)
        guessed = int(min(max(guess, 1.0), float(self.count)))
        low, high, any_fits = search(self.fits, self.count, start, guessed)
        best, further = self.steps.get(low), self.step(high) if high <= self.count else None
        if isinstance(best, Step) and any_fits:
            pairs = None
            if self.vary == "width":
                pairs = widths(q.network).pairs(best.value)
            refusal = further if isinstance(further, str) else None
            larger = further if isinstance(further, Step) else None
            return BudgetAnswer(self.vary, q.budget_ms, q.sure, best, larger, now, pairs, refusal)
        if not isinstance(further, Step):
            raise InputError(str(further))
        takes = q.takes(further.prediction)
        smaller = f", and smaller is refused ({best})" if isinstance(best, str) else ""
        raise AnswerIsNo(
            f"even {told(self.vary, further.value)} of {q.network.name!r} takes "
            f"{'up to ' if q.sure else ''}{milliseconds(takes)}, not {q.budget_ms:g} ms{smaller}; "
            f"give {arg('max_ms')} {enough(takes)} or more",
            {
                **BudgetAnswer(self.vary, q.budget_ms, q.sure, now, further, now).to_dict(),
                **dict.fromkeys(("answer", "latency_ms", "interval_ms", "in_domain")),
                "warnings": [best] if isinstance(best, str) else [],
            },
            code="over-budget",
            budget_ms=q.budget_ms,
            enough_ms=float(enough(takes)),
        )


def told(vary: str, value: float) -> str:
    """A value of what is varied, in words: "batch 8", "width x0.75", "192 px"."""
    if vary == "resolution":
        return f"{value:g} px"
    return f"width x{value:g}" if vary == "width" else f"batch {value:.0f}"


# ---- Whether a prediction keeps limits: a time, or a ratio to what it was before

TOGETHER = (
    f"{arg('max_ratio')} and {arg('against')} belong together; expected both: {arg('max_ratio')} 1.05 and "
    f"{arg('against')} BASE.json, what `lolat predict MODEL NETWORK --json` wrote of the base branch, or a "
    "network"
)
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
    asked = (p.model, p.learned, p.network, p.predictor, p.batch_size)
    return Before("lolat-prediction", *asked, p.latency_ms)


@dataclass(frozen=True)
class Limits:
    """The longest time in ms, of which the upper end of the interval counts where that is so sure (a
    share); and the largest ratio to the time before. InputError for limits that do not go together.
    """

    max_ms: float | None = None
    sure: float | None = None
    max_ratio: float | None = None
    before: Before | None = None

    def __post_init__(self) -> None:
        if self.sure is not None and self.max_ms is None:
            raise InputError(f"{arg('sure')} without a limit; expected {arg('max_ms')} too")
        if (self.max_ratio is None) != (self.before is None):
            raise InputError(TOGETHER)


@dataclass(frozen=True)
class Finding:
    """Whether a prediction keeps one limit, and that in a line, for an error: its arguments are marked."""

    holds: bool
    words: str


def check(
    predictions: Sequence[Prediction], limits: Limits, devices: Sequence[str] = ()
) -> list[Finding]:
    """Each limit for each prediction, these with intervals of `limits.sure`; `devices`: what theirs are
    called, where it is to be said.

    InputError: to be sure is asked of a model that has no intervals; what it is compared with is of
    another model, predictor or batch size.
    """
    found = []
    for number, prediction in enumerate(predictions):
        title = prediction.title
        title += f" on {plain(devices[number])}" if devices else ""
        if limits.max_ms is not None:
            found.append(_within(title, prediction, limits.max_ms, limits.sure))
        if limits.max_ratio is not None and limits.before is not None:
            found.append(_ratio(title, prediction, limits.max_ratio, limits.before))
    return found


def _no_interval(model: str) -> InputError:
    sure = arg("sure")
    return InputError(
        f"{sure} needs an interval, and {model} has too few points for one; leave {sure} out, or learn "
        "the model again",
        code="too-few-points",
    )


def _within(title: str, prediction: Prediction, max_ms: float, sure: float | None) -> Finding:
    takes, words = prediction.latency_ms, ""
    if sure is not None:
        if prediction.interval_ms is None:
            raise _no_interval("the model")
        takes = prediction.interval_ms[1]
        words = f" ({100 * sure:g} % sure of at most {milliseconds(takes)})"
    over = takes / max_ms - 1.0
    told = f"{title} takes {milliseconds(prediction.latency_ms)}{words}"
    kept = f"{told}, within the {max_ms:g} ms of {arg('max_ms')}"
    more = f"{told}, {percent(over)} more than the {max_ms:g} ms of {arg('max_ms')}"
    more += "; `lolat report` says where the time goes"
    return Finding(over <= 0.0, kept if over <= 0.0 else more)


def _ratio(title: str, prediction: Prediction, max_ratio: float, before: Before) -> Finding:
    own = before_of(prediction)
    for name in ("model", "learned", "predictor", "batch_size"):
        given, expected = getattr(before, name), getattr(own, name)
        if given != expected:
            raise InputError(
                f"{arg('against')}: its {name.replace('_', ' ')} is {plain(str(given))}; expected "
                f"{plain(str(expected))}: predict the base with the same MODEL and options"
            )
    ratio = prediction.latency_ms / before.latency_ms
    words = (
        f"{title} takes {milliseconds(prediction.latency_ms)}, {ratio:.3g} times the "
        f"{milliseconds(before.latency_ms)} of the base, "
        f"{'within' if ratio <= max_ratio else 'more than'} the {max_ratio:g} of {arg('max_ratio')}"
    )
    return Finding(ratio <= max_ratio, words)
