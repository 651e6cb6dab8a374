"""What is rented for the device of a training model."""

from __future__ import annotations

from typing import Protocol

from lolat.training.cost.billing import Machines
from lolat.training.cost.catalogue import CPU, Offer, offers_of
from lolat.training.cost.prices import is_of
from lolat.training.parallel.links import Link
from lolat.training.parallel.machines import MACHINE, assumed_link
from lolat.units import plain


class OfDevice(Protocol):
    """What is asked of a training model."""

    @property
    def name(self) -> str:
        """Of the device."""

    @property
    def document(self) -> dict[str, object]:
        """Its file."""


def device_of(model: OfDevice) -> str:
    """What a training model calls its device, or else itself."""
    device = _environment(model).get("device")
    if device == "unknown":  # made from tables: what they are follows in brackets
        return str(model.name).partition(" (")[0]
    # A GPU that was measured is "gpu" there; what it is called, the model's name tells.
    return str(model.name if device in (None, "", "gpu") else device)


def offers_for(
    model: OfDevice, offers: tuple[Offer, ...], accelerator: str, where: str
) -> tuple[Offer, ...]:
    """The offers of an accelerator; of processors alone, those with the model's threads where there are.

    `where`: the price list's name. InputError where it has none of that accelerator.
    """
    found = offers_of(offers, accelerator, where)
    if found[0].count:
        return found
    threads = _environment(model).get("threads")
    least = threads if isinstance(threads, int) else 0
    # A smaller machine would be slower than the one that the model is of.
    return tuple(o for o in found if (o.vcpus or 0) >= least) or found


def is_price_of(accelerator: str, device: str) -> bool:
    """Whether what is paid for is the device; one name may say more than the other: V100, V100-32GB."""
    return is_of(accelerator, device) or is_of(device, accelerator)


def shown_device(model: OfDevice) -> str:
    """The model's device in front of people, who know a processor by its name."""
    device = device_of(model)
    return plain(str(model.name) if device == CPU else device)


def link_of(machines: Machines, device: str) -> Link:
    """The link that is assumed of what is rented: in one instance that of its device, else between them."""
    offer = machines.offer
    same = not offer.accelerator or is_price_of(offer.accelerator, device)
    linked = f"{device} {offer.accelerator}" if same else offer.accelerator
    return assumed_link(linked, machines.devices, offer.devices if offer.instance_type else MACHINE)


def _environment(model: OfDevice) -> dict[str, object]:
    environment = model.document.get("environment")
    return environment if isinstance(environment, dict) else {}
