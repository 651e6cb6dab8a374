"""Parts of a served row: names, split, times, the distance of a time to its limit, rented machines."""

from __future__ import annotations

from typing import NamedTuple

from lolat.device.limits import within_limit

Ends = tuple[float, float] | None
"""The interval of a time, in ms; None if it is not known."""


class ServedNames(NamedTuple):
    """The device of a row as asked for, its profile, and the framework and GPU of the profile."""

    device: str
    profile: str
    framework: str
    gpu: str


class Split(NamedTuple):
    """The numbers that say how a model is split over the GPUs of a replica."""

    tensor_parallel: int
    expert_parallel: int
    attention_data_parallel: int


class Time(NamedTuple):
    """A time in ms and its interval."""

    ms: float
    ends: Ends


class TokenTimes(NamedTuple):
    """The time per output token, and to the first one."""

    token: Time
    first: Time


class LimitedValue(NamedTuple):
    """A time in ms, or the rate, and its limit; `name`: tpot, ttft or rate."""

    name: str
    value: float
    ends: Ends
    limit: float

    def verdict(self, is_sure: bool) -> str:
        """See `within_limit`."""
        return within_limit(self.value, self.ends, self.limit, is_sure)


class Excess(NamedTuple):
    """The factor of a time to its limit, the name of the time, the limit in words."""

    factor: float
    name: str
    words: str


class RentedMachines(NamedTuple):
    """Rented machines: US$ an hour and name, None without; the replicas that they hold; their GPUs."""

    dollars: float | None
    machines: str | None
    replicas: int
    gpus: int | None
