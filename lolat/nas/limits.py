"""The devices of a search, each with its latency estimator and time limit."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from lolat.device.device import Device
from lolat.device.limits import end_ms
from lolat.device.question import several
from lolat.device.summary import mode_words
from lolat.errors import AnswerIsNo, InputError, arg, argument_code
from lolat.io.progress import Progress
from lolat.nas.estimators import LatencyEstimator, fastest
from lolat.nas.fewshot import FewShotModel
from lolat.nas.latency import Answer, answers, estimator
from lolat.nas.space import Space
from lolat.parameters import COVERAGE, check_given
from lolat.units import plain

RATIOS = 16  # random candidates whose intervals are computed before a search


@dataclass(frozen=True)
class Limit:
    """A time limit on a device: `max_ms` for the latency or, if `sure`, for the interval's upper end.

    `coverage`: the coverage of intervals. `ratio`: upper end / latency, used if no samples give intervals.
    """

    space: Space
    device: Device
    estimator: LatencyEstimator
    max_ms: float
    sure: bool
    coverage: float | None
    ratio: float = 1.0

    @classmethod
    def with_ratio(
        cls, space: Space, device: Device, latencies: LatencyEstimator, max_ms: float | None, sure: bool,
        coverage: float | None,
    ) -> Limit:  # fmt: skip
        """Make a limit; without samples, `ratio` is the smallest among a few candidates."""
        longest = math.inf if max_ms is None else max_ms
        limit = cls(space, device, latencies, longest, sure, coverage)
        if not sure or isinstance(latencies, FewShotModel):
            return limit
        whole = limit.answers(
            np.vstack([fastest(space.grid, partial(largest_share, [limit])), space.sample(RATIOS)])
        )
        return replace(limit, ratio=min(end_ms(one, sure) / one.latency_ms for one in whole))

    def ends(self, rows: np.ndarray) -> np.ndarray:
        """(n,) ms to compare with the limit: latencies or, if `sure`, upper ends of intervals."""
        if self.sure and isinstance(self.estimator, FewShotModel):
            return self.estimator.interval(rows, self.coverage or COVERAGE)[1]
        return self.estimator.latency(rows) * self.ratio

    @property
    def is_exact(self) -> bool:
        """True if `ends` equals the device's answers for whole networks."""
        return self.estimator.exact and (not self.sure or isinstance(self.estimator, FewShotModel))

    def answers(self, rows: np.ndarray) -> list[Answer]:
        """The device's answers for whole networks."""
        return answers(self.estimator, self.space, self.device, rows, self.coverage)

    def is_late(self, answer: Answer) -> bool:
        """True if the answer for a whole network exceeds the limit."""
        return end_ms(answer, self.sure) > self.max_ms + 1e-9

    def share(self, answer: Answer) -> float:
        """Time of a whole network / limit; 0 without a limit."""
        return end_ms(answer, self.sure) / self.max_ms

    @property
    def question(self) -> str:
        """The limit, the device and its execution mode as text."""
        sure = f" with {100 * (self.coverage or COVERAGE):g} %" if self.sure else ""
        return f"{self.max_ms:g} ms{sure} on {self.asked_of}, {mode_words(self.device.file)}"

    @property
    def asked_of(self) -> str:
        """The device and its batch size as text."""
        return f"{plain(self.device.label)}, batch {self.estimator.batch_size}"


def devices_of(model: Any) -> list[Any]:
    """The devices in a list or in a text of names separated by commas; InputError for none."""
    found = [model] if isinstance(model, os.PathLike | Device) else [*several(model)]
    if isinstance(model, str) and "," in model and not os.path.exists(model):
        found = [*filter(None, map(str.strip, model.split(",")))]
    if not found:
        raise InputError(
            f"{arg('model')} {model!r} is empty; expected a device, or several", code="model"
        )
    return found


def for_each_device(devices: Sequence[Any], **given: Any) -> dict[str, list[Any]]:
    """Argument -> a value for each device; a single value applies to all devices.

    InputError if the numbers of values and devices differ, and for a wrong value.
    """
    found, count = {}, len(devices)
    for name, value in given.items():
        values = [*several(value)]
        if len(values) not in (1, count):
            expected = f"one value, or {count}, one for each device" if count > 1 else "one value"
            shown = ", ".join(f"{one:g}" if isinstance(one, float) else f"{one}" for one in values)
            raise InputError(f"{arg(name)} {shown}: expected {expected}", code=argument_code(name))
        for one in values:
            check_given(**{name: one})
        found[name] = values * count if len(values) == 1 else values
    return found


def limits_of(
    space: Space, models: Sequence[Device], asked: Mapping[str, Sequence[Any]], predictor: str | None,
    sure: bool, coverage: float | None, progress: Progress | None,
) -> list[Limit]:  # fmt: skip
    """The limit for each device; `asked`: `max_ms` and `batch_size` for each device."""
    found = []
    for model, max_ms, size in zip(models, asked["max_ms"], asked["batch_size"], strict=True):
        latencies = estimator(space, model, size, predictor, progress)
        found.append(Limit.with_ratio(space, model, latencies, max_ms, sure, coverage))
    return found


def rows_within(limits: Sequence[Limit], rows: np.ndarray) -> np.ndarray:
    """The `rows` that keep every limit."""
    for limit in limits:
        rows = rows[limit.ends(rows) <= limit.max_ms]
    return rows


def largest_share(limits: Sequence[Limit], rows: np.ndarray) -> np.ndarray:
    """(n,) largest ratio of a row's time to a limit; without limits its ms on the first device."""
    limited = [limit for limit in limits if math.isfinite(limit.max_ms)]
    if not limited:
        return limits[0].ends(rows)
    return np.max([limit.ends(rows) / limit.max_ms for limit in limited], axis=0)


def surely_best(front: Sequence[Sequence[Answer]], longest: Sequence[float | None]) -> int | None:
    """The index of the last network on the front whose intervals' upper ends keep every limit.

    None if there is no such network. `front`: each network's answers on the devices; `longest`: the limit
    in ms on each device, or None.
    """

    def keeps(answers: Sequence[Answer]) -> bool:
        pairs = zip(longest, answers, strict=True)
        return all(ms is None or (a.interval_ms and a.interval_ms[1] <= ms) for ms, a in pairs)

    return max((n for n, answers in enumerate(front) if keeps(answers)), default=None)


def no_candidate(result: Any, takes: str, table: object = None, within: str = "") -> AnswerIsNo:
    """The error if no candidate of a search or a ranking keeps the limits.

    `takes`: a text with the time of the fastest candidate. `table`: the table of the candidates, None if
    they are the whole space. `within`: a text with the limits of several devices.
    """
    searched = result.space if table is None else f"{table}, a table of {result.space},"
    size = "" if result.batch_size == 1 else f" at batch size {result.batch_size}"
    surely = " for sure" if getattr(result, "sure", False) else ""
    within = within or f" within {result.max_ms:g} ms{size}"
    return AnswerIsNo(f"no candidate of {searched} is{within}{surely}; {takes}", result.to_dict())
