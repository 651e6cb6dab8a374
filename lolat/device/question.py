"""The question about a network's latency, with its checks, and one question to several devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from itertools import product
from operator import index
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from lolat.errors import InputError, LolatError, arg, argument_code
from lolat.parameters import (
    BEST,
    LISTS,
    PARAMETERS,
    InputSize,
    check_given,
    declared,
    parameters_of,
    surely,
)
from lolat.units import by_text, value_words

if TYPE_CHECKING:
    from lolat.device.device import Device
    from lolat.hardware.prices import Prices
    from lolat.io.progress import OnProgress

AUTO = "auto"
"""The value of `batch_size` that means the largest batch that fits in memory."""


Runs = TypeVar("Runs", bound="Device")


@dataclass(frozen=True, kw_only=True)
class RunAs:
    """The execution mode of a question: the arguments of `Device.run_as`.

    InputError for an unknown precision or launch, a launch overhead out of range, or a layout that is not a
    bool.
    """

    precision: str | None = None
    launch: str | None = None
    host_us: float | None = None
    channels_last: bool = False

    def __post_init__(self) -> None:
        for name in ("precision", "launch"):
            if (given := getattr(self, name)) not in (None, BEST):
                object.__setattr__(self, name, PARAMETERS[name].choice(given))
        check_given(host_us=self.host_us, channels_last=self.channels_last)

    def device(self, device: Runs) -> Runs:
        """The device in this execution mode; with BEST as the precision, it keeps its own precision."""
        precision = None if self.precision == BEST else self.precision
        return device.run_as(precision, self.launch, self.host_us, self.channels_last)

    def after(self, before: RunAs) -> RunAs:
        """This mode, with the values of an earlier mode where this one has none."""
        own = {name: value for name, value in vars(self).items() if value}
        return replace(before, **own)

    @property
    def options(self) -> str:
        """The command-line options of this mode."""
        given = ((f" --{n.replace('_', '-')}", v) for n, v in vars(self).items() if v)
        return "".join(
            n if v is True else f"{n} {v if isinstance(v, str) else f'{v:g}'}" for n, v in given
        )


@dataclass(frozen=True)
class Question:
    """The parameters of a question about latency, except the execution mode, which `run_as` sets.

    See `lolat.parameters`. `batch_size`: a number or AUTO; a LatencyQuestion takes several. `sure`: True if
    the upper end of the interval must keep `max_ms`, not only the latency; a number gives the coverage in
    percent and is stored as True.
    """

    batch_size: int | str | Sequence[int | str] = 1
    predictor: str | None = None
    coverage: float | None = None
    _: KW_ONLY
    input_size: InputSize = None
    max_ms: float | None = None
    sure: float | None = None
    prices: str | Prices | None = None

    def __post_init__(self) -> None:
        sure, coverage = surely(self.sure, self.coverage)
        object.__setattr__(self, "sure", sure)
        object.__setattr__(self, "coverage", coverage)

    def check(self, device: Device) -> None:
        """Raise InputError for a predictor that the device lacks, or an impossible coverage."""
        formula = device.predictor(self.predictor)
        if self.coverage is not None:
            formula.half_width(1.0, self.coverage)

    def check_limit(self) -> None:
        """Raise InputError unless `max_ms` is above 0."""
        PARAMETERS["max_ms"].check(self.max_ms)

    def check_largest(self) -> None:
        """Raise InputError for a time limit without AUTO among the batch sizes, or an impossible limit."""
        if self.max_ms is None and not self.sure:
            return
        if self.max_ms is None:
            raise InputError(
                f"{arg('sure')} is for {arg('max_ms')}, the longest time; leave it out, or give that too",
                code="sure",
            )
        if AUTO not in several(self.batch_size):
            raise InputError(
                f"{arg('max_ms')} is for {arg('batch_size')} {AUTO!r}, the largest batch within that time; "
                "give that, or leave it out and compare latency_ms with it",
                code="max-ms",
            )
        self.check_limit()


DEFAULT = Question()


@dataclass(frozen=True, kw_only=True)
class LatencyQuestion(Question, RunAs):
    """The parameters of `Model.predict`: batch sizes, limits and the execution mode.

    `precision` may be BEST; `lolat.predict` takes several values of `precision` and of `launch`.
    """

    precision: str | Sequence[str] | None = None  # type: ignore[assignment] # of the others one
    launch: str | Sequence[str] | None = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        several = {}
        for name in LISTS:
            given = getattr(self, name)
            given = tuple(given) if isinstance(given, (list, tuple)) else (given,)
            if len(given) > 1:
                if BEST in given:
                    raise InputError(
                        f"{arg(name)} {value_words([*given])}: best is one of the device's precisions; "
                        "expected best alone, or several without it",
                        code=argument_code(name),
                    )
                several[name] = tuple(map(PARAMETERS[name].choice, given))
            object.__setattr__(self, name, None if several.get(name) else next(iter(given), []))
        RunAs.__post_init__(self)
        for name, words in several.items():
            object.__setattr__(self, name, words)
        if self.sure is not None:
            Question.__post_init__(self)

    @property
    def modes(self) -> list[tuple[str, RunAs]]:
        """(description such as "in fp16 graph" or "graph", question) for each execution mode.

        The description is "" if the question has only one mode.
        """
        lists = {n: v for n in LISTS if isinstance(v := getattr(self, n), tuple)}
        each = [dict(zip(lists, one, strict=True)) for one in product(*lists.values())]
        words = {name: "in {}" if name == "precision" else "{}" for name in lists}
        told = [" ".join(words[n].format(word) for n, word in one.items()) for one in each]
        return [(text, replace(self, **one)) for text, one in zip(told, each, strict=True)]

    def device(self, device: Runs) -> Runs:
        """The device in this execution mode (BEST: in its own precision); InputError for several modes."""
        for name in LISTS:
            if isinstance(given := getattr(self, name), tuple):
                raise InputError(
                    f"{arg(name)} {value_words([*given])}: expected one; "
                    "lolat.predict(network, on=device) compares several",
                    code=argument_code(name),
                )
        return super().device(device)


class LatencyOptions(TypedDict, total=False):
    """The keyword arguments of `predict`, for a type checker; each takes one value."""

    precision: str | None
    launch: str | None
    host_us: float | None
    channels_last: bool
    input_size: InputSize
    sequence_length: int | None
    max_ms: float | None
    sure: float | None
    prices: str | None


@dataclass(frozen=True)
class ExplainQuestion(RunAs):
    """The parameters of `Model.explain`."""

    batch_size: int | Sequence[int] = 1
    predictor: str | None = None
    _: KW_ONLY
    input_size: InputSize = None
    block: str | None = declared(None, "One block, operation by operation.", metavar="NAME")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block is not None:
            parameters_of(ExplainQuestion)["block"].check(self.block)


@dataclass(frozen=True)
class BudgetQuestion(RunAs):
    """The parameters of `Model.budget`."""

    max_ms: float
    vary: str
    batch_size: int | Sequence[int] = 1
    predictor: str | None = None
    coverage: float | None = None
    _: KW_ONLY
    input_size: InputSize = None
    sure: float | None = None


@dataclass(frozen=True, kw_only=True)
class TableQuestion:
    """The parameters of `Model.evaluate_table`."""

    only: str | Collection[str] | None = None
    predictor: str | None = None
    precision: str | None = None
    training: bool = False
    tensor_parallel: int | None = None
    served_model: str | None = None
    on_progress: OnProgress | None = None

    def __post_init__(self) -> None:
        check_given(training=self.training, tensor_parallel=self.tensor_parallel)

    @property
    def devices(self) -> Collection[str]:
        """The entries of the table's column `device` whose rows are compared; empty for all rows."""
        return several(self.only or ())


EVERY_ROW = TableQuestion()


Q = TypeVar("Q", bound=Any)


def sizes_of(question: Any) -> tuple[int | str, ...]:
    """The batch sizes of a question; InputError if the question has none."""
    if not (sizes := several(question.batch_size)):
        raise InputError(
            f"{arg('batch_size')} []: expected a whole number from 1, or several", code="batch-size"
        )
    return sizes


def each_batch(question: Q) -> list[Q]:
    """One copy of a question for each of its batch sizes."""
    return [replace(question, batch_size=size) for size in sizes_of(question)]


def is_one(value: Any) -> bool:
    """True for a single value (or a 0-d array) of an argument that also accepts a sequence."""
    return (
        isinstance(value, str) or not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0
    )


def several(value: Any) -> tuple[Any, ...]:
    """The values of an argument that accepts one value or a sequence, as a tuple."""
    return (value,) if is_one(value) else tuple(value)


def as_whole(number: Any, argument: str = "batch_size") -> int:
    """The value of an argument as an int; InputError unless it is a whole number of at least 1."""
    with suppress(TypeError):
        if not isinstance(number, bool) and (whole := index(number)) >= 1:
            return whole
    raise InputError(
        f"{arg(argument)} {value_words(number)}: expected a whole number from 1",
        code=argument_code(argument),
    )


# ---- One question to several devices

D = TypeVar("D")
A = TypeVar("A")
N = TypeVar("N", bound="Device")


def ask_each(
    devices: Mapping[str, D], ask: Callable[[D], A], skipped: MutableMapping[str, str],
    on_progress: OnProgress | None = None,
) -> dict[str, A]:  # fmt: skip
    """Ask each device; return the answers by device name.

    A device that cannot answer is put into `skipped` with the reason. `on_progress` is called with (number
    of this device, number of all, name). An error about the question itself is raised, and so is the error
    of an only device if `skipped` was empty.
    """
    answers: dict[str, A] = {}
    for number, (name, device) in enumerate(devices.items(), start=1):
        if on_progress is not None:
            on_progress(number, len(devices), name)
        try:
            answers[name] = ask(device)
        except LolatError as error:
            if not error.of_device or (len(devices) == 1 and not skipped):
                raise
            no_auto = f"its memory is not known, so no batch size {AUTO}; expected a number"
            skipped[name] = no_auto if error.code == "no-memory" else str(error)
    return answers


def by_name(models: Iterable[N]) -> dict[str, N]:
    """Devices by their names in a table; devices that share a name are keyed by profile."""
    models = [*models]
    names = Counter(model.row_name for model in models)
    return {m.row_name if names[m.row_name] == 1 else m.profile: m for m in models}


def no_device(skipped: Mapping[str, str]) -> InputError:
    """The error if no device can answer; it states each reason once."""
    reasons = by_text(skipped.items())
    why = "; ".join(f"{', '.join(names)}: {text}" for text, names in reasons.items())
    return InputError(f"no device can answer: {why or 'there is none'}", code="no-device")
