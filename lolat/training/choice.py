"""A choice of devices for a training, in words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from lolat.device.summary import LAYOUTS
from lolat.errors import arg
from lolat.graph.modes import EAGER
from lolat.hardware.card_names import short_name
from lolat.training.parallel import NONE
from lolat.training.prediction import TrainingPrediction
from lolat.units import dollars, duration

if TYPE_CHECKING:
    from lolat.training.cost import Cost


@dataclass(frozen=True)
class Choice:
    """An option of a comparison: a number of devices of one kind, in one precision, with one batch size.

    `in_all`: samples in an update, on all devices together.
    """

    device: str
    precision: str | None
    batch_size: int
    devices: int
    total_s: float
    dollars: float | None
    in_all: int = 0
    launch: str | None = None
    channels_last: bool | None = None
    host_bound: bool = False
    checkpointing: str | None = None
    sharding: str = NONE

    @classmethod
    def of(cls, cost: Cost, option: TrainingPrediction) -> Choice:
        """Make the choice of an option in the answer of a device."""
        about = (
            "device", "precision", "launch", "channels_last", "host_bound", "checkpointing", "sharding",
        )  # fmt: skip
        return cls(
            batch_size=option.batch_size, devices=option.devices, total_s=option.total_s or 0.0,
            dollars=option.dollars, in_all=option.devices * option.batch_size * cost.accumulate,
            **{name: getattr(cost, name) for name in about},
        )  # fmt: skip

    @property
    def card(self) -> str:
        """The device's name without the execution mode of its profile."""
        return short_name(self.device)

    @property
    def mode_words(self) -> str:
        """The execution mode in words, without default parts: "amp, channels last, full checkpointing"."""
        layout = LAYOUTS[self.channels_last or None]
        return mode_text(self.precision, self.launch, layout, self.checkpointing)

    @property
    def words(self) -> str:
        """The devices, their time and price: "4 x a100, 2 h 10 min, $20"."""
        return choice_words(replace(self, precision=None))


def mode_text(
    precision: str | None, launch: str | None, layout: str, checkpointing: str | None
) -> str:
    """An execution mode in words; an eager launch and no checkpointing are left out."""
    again = "" if checkpointing in (None, NONE) else f"{checkpointing} checkpointing"
    return ", ".join(filter(None, (precision, launch if launch != EAGER else "", layout, again)))


def choice_words(choice: Choice, with_batch: bool = False, form: str = "") -> str:
    """A choice in words: "4 x a100 (PCIe 40 GB) in amp, channels last, 2 h 10 min, $20"; `form`: the form
    and memory of the card.
    """
    words = [f"{choice.devices} x {choice.card}{f' ({form})' if form else ''}"]
    whole = f" ({choice.in_all:,} in all)" if choice.in_all > choice.batch_size else ""
    batch = f"batch {choice.batch_size:,}{whole}"
    words[0] += f" in {choice.mode_words}" if choice.precision else ""
    words += [batch] * with_batch + [duration(choice.total_s)]
    return ", ".join(words + ([] if choice.dollars is None else [dollars(choice.dollars)]))


def offer_words(offer: Choice, with_batch: bool = False, with_precision: bool = False) -> str:
    """The command-line options of a choice's execution mode and sharding, then the choice in words."""
    options = [f"{arg('precision')} {offer.precision}"] if with_precision else []
    if offer.channels_last:
        options.append(arg("channels_last"))
    if offer.launch not in (None, EAGER):
        options.append(f"{arg('launch')} {offer.launch}")
    if offer.sharding != NONE:
        options.append(f"{arg('sharding')} {offer.sharding}")
    words = choice_words(offer, with_batch)
    return f"{' '.join(options)} ({words})" if options else words
