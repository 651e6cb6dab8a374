"""A training run that a question describes, and its limits of time and money."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lolat.device.question import as_whole
from lolat.errors import InputError, arg
from lolat.hardware.links import OFF_BETWEEN, Link, given_link
from lolat.io.results import Remark
from lolat.parameters import COVERAGE, NETWORK_OPTIMIZER, PARAMETERS, check_given
from lolat.training.parallel import NONE
from lolat.units import plural

SHARING = (1, 2, 4, 8)
"""Numbers of devices to try if neither the question nor a price list has any."""


@dataclass(frozen=True)
class TrainingRun:
    """A training run that a question describes; InputError for impossible numbers.

    `batch_size`: samples of a micro-batch on each device; `accumulate`: micro-batches of an iteration,
    which ends with one update; `samples`: samples of the data set, None: only iterations are predicted;
    `validation`: samples evaluated after each epoch; `coverage`: the coverage of the intervals; `sharding`:
    see `Parallel`; `link_gbps`: Gbit/s of a device's link, None: assumed; `most`: the largest number of
    devices in the question; `data`: words on the data set for errors, "": the number of samples.
    """

    batch_size: int
    samples: int | None = None
    epochs: int = 1
    optimizer: str = NETWORK_OPTIMIZER
    coverage: float = COVERAGE
    validation: int | None = None
    accumulate: int = 1
    sharding: str = NONE
    link_gbps: float | None = None
    most: int = 1
    data: str = ""

    def __post_init__(self) -> None:
        for name in ("batch_size", "epochs", "accumulate", "samples"):
            if (number := getattr(self, name)) is not None:
                object.__setattr__(self, name, as_whole(number, name))
        if self.validation is not None:
            as_whole(self.validation, "validation_samples")
        if self.samples is None and self.validation is not None:
            raise InputError(
                f"{arg('validation_samples')} without {arg('samples')}: expected both, or none",
                code="validation-samples",
            )
        self.check_batch(1)
        check_given(coverage=self.coverage)
        for name in ("sharding", "optimizer"):
            object.__setattr__(self, name, PARAMETERS[name].choice(getattr(self, name)))

    def filled(self, most: int, batches: int) -> int:
        """The largest micro-batch, up to `most`, of which the data set fills `batches`."""
        return most if self.samples is None else max(min(most, self.samples // batches), 1)

    def split(self, most: int) -> tuple[int, int]:
        """(samples, number) of the micro-batches of up to `most` samples that make the same update."""
        least = -(-self.batch_size // most)
        parts = next((n for n in range(least, 2 * least) if self.batch_size % n == 0), least)
        return -(-self.batch_size // parts), parts * self.accumulate

    def accumulated(self) -> TrainingRun:
        """The run with at least two micro-batches an iteration, without the data set, which limits them."""
        accumulate = max(self.accumulate, 2)
        return replace(self, samples=None, validation=None, accumulate=accumulate)

    def most_devices(self, devices: Sequence[int]) -> tuple[int, ...]:
        """The numbers in `devices` whose batches the data set fills; if it fills none, the largest number
        that it fills.
        """
        if self.samples is None:
            return tuple(devices)
        most = max(self.samples // (self.batch_size * self.accumulate), 1)
        return tuple(k for k in devices if k <= most) or (most,)

    def link(self, within: Link, devices: int, machine: int, largest: int) -> Link | None:
        """The link that the user gave, for `devices` devices, `machine` in each machine; None: the default
        link.

        A given link joins machines; inside a machine the link `within` stays. But if every number of
        devices in the question fits into the `largest` machine, the given link joins the devices of a
        machine.
        """
        is_own = devices <= machine and self.most > largest
        if self.link_gbps is None or is_own:
            return None
        return given_link(within, devices, self.link_gbps, machine)

    def is_inside(self, within: Link) -> bool:
        """True if the given link is at least as fast as the known link `within` a machine."""
        return within.is_within and (self.link_gbps or 0.0) >= within.gbps

    def link_remarks(self, within: Link, largest: int) -> Iterator[str]:
        """Yield remarks on a given link that seems to be meant for another place: between machines, or
        inside a machine of `largest` devices; or that several machines cannot use fully.
        """
        if self.link_gbps is None:
            return
        gbps, whole = self.link_gbps, largest * self.link_gbps
        used = given_link(within, self.most, gbps, largest).gbps
        if self.most > largest and self.is_inside(within):
            yield Remark(
                f"--link-gbps {gbps:g} is as fast as the link inside a machine",
                f"expected that of the network between the machines of {self.most} GPUs, such as 100",
            )
        elif self.most > largest and used < whole:
            yield (
                f"--link-gbps {gbps:g}: {largest} x {gbps:g} = {whole:g} Gbit/s between machines, of which "
                f"{used:g} are used: the link inside a machine ({within.name}) is no faster"
            )
        if within.is_within and 1 < self.most <= largest and OFF_BETWEEN * gbps < within.gbps:
            yield Remark(
                f"--link-gbps {gbps:g} joins all devices, as they fit into one machine",
                f"in one of {largest}, {within.name} reaches {within.gbps:.4g} Gbit/s: leave it out then",
            )

    def check_batch(self, devices: int) -> None:
        """Raise InputError unless `devices` is a whole number whose batches the data set fills."""
        as_whole(devices, "replicas")
        batches = self.accumulate * devices
        if self.samples is not None and self.batch_size * batches > self.samples:
            times = f"{self.accumulate} x " if self.accumulate > 1 else ""
            data = self.data or plural(self.samples, "sample")
            fewer = " or fewer of them" if batches > 1 else ""
            most = self.samples // batches
            raise InputError(
                f"{arg('batch_size')}: {devices} x {times}a batch of {self.batch_size:,} is more than "
                f"{data}; expected {f'at most {most:,}' if most else 'more data'}{fewer}",
                code="batch-over-data",
                of_device=True,
            )


@dataclass(frozen=True)
class TrainingLimits:
    """The longest time and the most money that a training may take; None: no limit.

    `sure`: the upper ends of the intervals must be within the limits, not only the predicted values.
    """

    max_hours: float | None = None
    max_dollars: float | None = None
    sure: bool = False

    @property
    def of_money(self) -> TrainingLimits:
        """The limit of money alone, which the fastest option has to keep."""
        return replace(self, max_hours=None)

    @property
    def of_time(self) -> TrainingLimits:
        """The limit of time alone."""
        return replace(self, max_dollars=None)

    def each(self) -> tuple[TrainingLimits, ...]:
        """The limit of time alone and the limit of money alone, if given; without limits, the object
        itself.
        """
        apart = self.of_time, self.of_money
        return tuple(one for one in apart if one.max_hours or one.max_dollars) or (self,)

    def hours_of(self, price_per_hour: float | None) -> float | None:
        """The hours that the limits allow at a price an hour; None without limits, or if money is limited
        without a price.
        """
        if self.max_dollars is not None and price_per_hour is None:
            return None
        paid = self.max_dollars / price_per_hour if self.max_dollars and price_per_hour else None
        return min((h for h in (self.max_hours, paid) if h is not None), default=None)

    def keeps(self, total_s: float, price: float | None) -> bool:
        """True if seconds and US$ are within the limits; an unknown price misses a limit of money."""
        in_time = self.max_hours is None or total_s <= 3600 * self.max_hours
        return in_time and (
            self.max_dollars is None or (price is not None and price <= self.max_dollars)
        )

    def share(self, total_s: float, price: float | None) -> float:
        """The largest share of a limit that seconds and US$ take, above 1 beyond it; an unknown price is
        infinite.
        """
        usd = math.inf if price is None else price
        pairs = (total_s / 3600, self.max_hours), (usd, self.max_dollars)
        return max((amount / limit for amount, limit in pairs if limit), default=0.0)

    def words(self, before: str = "") -> str:
        """The limits in words, after `before` or, if that is "", after "within" or "surely within"; ""
        without limits.
        """
        before = before or (" surely within" if self.sure else " within")
        words = [] if self.max_hours is None else [f"{self.max_hours:g} h"]
        words += [] if self.max_dollars is None else [f"${self.max_dollars:g}"]
        return f"{before} {', '.join(words)}" if words else ""
