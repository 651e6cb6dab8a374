"""Whether a prediction stays within limits: a time, or a ratio to what it was before; for pull requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from lolat.errors import InputError
from lolat.io.documents import fault_of, read_json
from lolat.model.prediction import Prediction
from lolat.units import milliseconds, percent, plain

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
    state: dict[str, float] | None


def is_prediction(path: str) -> bool:
    """Whether a file holds a prediction rather than a network."""
    if not (path.lower().endswith(".json") and Path(path).is_file()):
        return False
    document = read_json(path, _EXPECTED)
    return isinstance(document, dict) and str(document.get("schema")).startswith("lolat-prediction")


def read_before(path: str) -> Before:
    """The prediction in the file that `predict --json` wrote. InputError: something else is in it."""
    document = read_json(path, _EXPECTED)
    fault = fault_of(document, Before)
    if fault is not None:
        raise InputError(f"--against {plain(path)}: {fault}; {_EXPECTED}")
    return msgspec.convert(document, Before)


def before_of(prediction: Prediction) -> Before:
    """A prediction as what another is compared with."""
    p = prediction
    state = None if p.state is None else p.state.to_dict()
    return Before(
        "lolat-prediction",
        p.model,
        p.learned,
        p.network,
        p.predictor,
        p.batch_size,
        p.latency_ms,
        state,
    )


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
            raise InputError("--sure without a limit; expected --max-ms T too")
        if (self.max_ratio is None) != (self.before is None):
            raise InputError(
                "--max-ratio and --against belong together; expected both: --max-ratio 1.05 --against "
                "BASE.json, what `lolat predict --json` wrote of the base branch, or a network"
            )


@dataclass(frozen=True)
class Finding:
    """Whether a prediction keeps one limit; `limit`: its option; `words`: in a line."""

    prediction: Prediction
    limit: str
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


def _within(title: str, prediction: Prediction, max_ms: float, sure: float | None) -> Finding:
    takes, words, limit = prediction.latency_ms, "", f"--max-ms {max_ms:g}"
    if sure is not None:
        if prediction.interval_ms is None:
            raise InputError(
                "--sure needs an interval, and the model has too few points for one; leave --sure out, or "
                "learn the model again"
            )
        takes = prediction.interval_ms[1]
        limit += f" --sure {100 * sure:g}"
        words = f" ({100 * sure:g} % sure of at most {milliseconds(takes)})"
    over = takes / max_ms - 1.0
    told = f"{title} takes {milliseconds(prediction.latency_ms)}{words}"
    if over <= 0.0:
        return Finding(prediction, limit, True, f"{told}, within the {max_ms:g} ms of --max-ms")
    return Finding(
        prediction, limit, False,
        f"{told}, {percent(over)} more than the {max_ms:g} ms of --max-ms; `lolat report` says where the "
        "time goes",
    )  # fmt: skip


def _ratio(title: str, prediction: Prediction, max_ratio: float, before: Before) -> Finding:
    own = before_of(prediction)
    for name in ("model", "learned", "predictor", "batch_size", "state"):
        given, expected = getattr(before, name), getattr(own, name)
        if given != expected:
            raise InputError(
                f"--against: its {name.replace('_', ' ')} is {plain(str(given))}; expected "
                f"{plain(str(expected))}: predict the base with the same MODEL and options"
            )
    ratio = prediction.latency_ms / before.latency_ms
    told = (
        f"{title} takes {milliseconds(prediction.latency_ms)}, {ratio:.3g} times the "
        f"{milliseconds(before.latency_ms)} of the base"
    )
    limit = f"--max-ratio {max_ratio:g}"
    return Finding(
        prediction, limit, ratio <= max_ratio,
        f"{told}, {'within' if ratio <= max_ratio else 'more than'} the {max_ratio:g} of --max-ratio",
    )  # fmt: skip
