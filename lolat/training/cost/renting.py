"""What is rented for the device of a training model."""

from __future__ import annotations

from typing import Protocol

from lolat.training.cost.catalogue import Offer, offers_of


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


def _environment(model: OfDevice) -> dict[str, object]:
    environment = model.document.get("environment")
    return environment if isinstance(environment, dict) else {}
