"""Parts of an answer's row: names, split, times, the distance of a time to its limit, rented machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from lolat.device.limits import within_limit

if TYPE_CHECKING:
    from lolat.hardware.rental import Rental

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


def rented_machines(rental: Rental | None, replicas: int, gpus: int, node: int) -> RentedMachines:
    """The cheapest machines that hold each of `replicas` whole, with `gpus` each and `node` in a machine.

    A replica of more GPUs than `node` takes whole machines. A price that the user gives counts for one GPU
    in any machine.
    """
    if rental and not rental.offers[0].instance_type:
        number = replicas * gpus
        return RentedMachines(rental.offers[0].price * number, rental.basis, replicas, number)
    choices, nodes = [], -(-gpus // node)
    for offer in rental.offers if rental else ():
        if rental and (parts := offer.devices // -(-gpus // nodes)):
            number = -(-replicas * nodes // parts)
            other = rental.rented(1, offer).memory_gib  # another memory than this GPU's
            idle = number * offer.devices - replicas * gpus
            facts = [*([f"{other:g} GiB a GPU"] if other else []), *offer.places]
            name = offer.instance_type + (f" ({', '.join(facts)})" if facts else "")
            name += f", {idle} idle" if idle else ""
            name = f"{number} x {name}" if number > 1 else name
            in_machines = number * parts // nodes, number * offer.devices
            rented = RentedMachines(number * offer.price, name, *in_machines)
            choices.append((rented.dollars, number, rented))
    return min(choices)[-1] if choices else RentedMachines(None, None, replicas, None)
