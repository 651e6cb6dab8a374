"""Parts of an answer's row: names, split, times, the distance of a time to its limit, rented machines."""

from __future__ import annotations

from typing import NamedTuple

from lolat.device.limits import within_limit

Ends = tuple[float, float] | None
"""The interval of a time, in ms; None if it is not known."""


class ServedNames(NamedTuple):
    """The names in a row: the device in the question, its profile, the profile's framework and GPU."""

    device: str
    profile: str
    framework: str
    gpu: str


class Split(NamedTuple):
    """The numbers of GPUs or groups over which a replica splits a language model."""

    tensor_parallel: int
    expert_parallel: int
    attention_data_parallel: int


class Time(NamedTuple):
    """A time in ms and its interval."""

    ms: float
    ends: Ends


class TokenTimes(NamedTuple):
    """The time per output token (`token`), and the time to the first token (`first`)."""

    token: Time
    first: Time


class LimitedValue(NamedTuple):
    """A value with a limit: a time in ms ("tpot", "ttft") or the requests a second ("rate")."""

    name: str
    value: float
    ends: Ends
    limit: float

    def verdict(self, is_sure: bool) -> str:
        """The verdict on the limit; see `within_limit`."""
        return within_limit(self.value, self.ends, self.limit, is_sure)


class Excess(NamedTuple):
    """The ratio of a value to its limit (`factor`), the name of the value, and the limit in words."""

    factor: float
    name: str
    words: str


class RentedMachines(NamedTuple):
    """Rented machines: US$ an hour and name (None: nothing rented), the replicas that they hold, their
    GPUs.
    """

    dollars: float | None
    machines: str | None
    replicas: int
    gpus: int | None
