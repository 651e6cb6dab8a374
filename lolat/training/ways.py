"""Ways to let an iteration fit: other arguments of a training, and the devices that then hold one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

MOST_WAYS = 3  # shown to people
PURE_BF16 = {"precision": "bf16"}


@dataclass(frozen=True)
class WayToFit:
    """Arguments, by name, with which an iteration fits.

    `devices`: the smallest number of devices that then fits, of the numbers asked for; if none of them
    does, the number in the argument `replicas`.
    """

    given: Mapping[str, str | int]
    devices: int

    @property
    def options(self) -> str:
        """The arguments as command-line options."""
        return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in self.given.items())

    def words(self, with_devices: bool) -> str:
        """The options; `with_devices`: with the number of devices, unless it is an option."""
        words = self.options
        if self.given == PURE_BF16:
            words += " (weights and states in 2 bytes too, which changes training)"
        return words + (
            f" on {self.devices}" if with_devices and "replicas" not in self.given else ""
        )


def would_words(
    ways: Sequence[WayToFit], with_devices: bool = False, cost_of_first: str = ""
) -> str:
    """A clause on the first few ways to let an iteration fit; "" without ways.

    `with_devices`: True if several numbers of devices were asked for; `cost_of_first`: time and price of
    the first way.
    """
    more = ", among others" if len(ways) > MOST_WAYS else ""
    each = [way.words(with_devices) for way in ways[:MOST_WAYS]]
    each[:1] = [f"{first} ({cost_of_first})" if cost_of_first else first for first in each[:1]]
    return f"; it fits with {', or '.join(each)}{more}" if ways else ""


def on_fewest(ways: Iterable[WayToFit]) -> list[WayToFit]:
    """The ways that differ in more than numbers of devices and micro-batches, each on the fewest devices.

    Of ways on equally many devices the first remains.
    """
    fewest: dict[frozenset[tuple[str, str | int]], WayToFit] = {}
    for way in ways:
        numbers = {"replicas", "accumulate"}  # fewer devices accumulate more for the same update
        kind = frozenset((name, value) for name, value in way.given.items() if name not in numbers)
        if kind not in fewest or way.devices < fewest[kind].devices:
            fewest[kind] = way
    return [*fewest.values()]
