"""A device's hardware: its name, data sheet, memory and links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from lolat.hardware.card_names import find_gpu
from lolat.hardware.environment_section import Environment
from lolat.hardware.gpus import CPU, SHEET_FIELDS, Gpu, usable_bytes
from lolat.hardware.links import MACHINE, Link, assumed_link, own_rate
from lolat.units import GIB


class Hardware:
    """A device's hardware.

    `product`: its name, without the brackets that say how it was measured; `is_cpu`: True for a CPU that
    LoLat measured; `kind`: its key in lists of prices and links, which is CPU, the known card of a device
    with a user's own name, or else `product`; `llm`: its section on language models. The link and the
    number of GPUs in a machine come from a data sheet in the file (`environment` or `llm`), if any.
    """

    llm: Mapping[str, Any] | None = None

    def __init__(self, product: str, environment: Environment | None = None) -> None:
        self.product = product
        self.environment = environment or Environment()
        self.is_cpu = self.environment.device == CPU
        self.kind = CPU if self.is_cpu else self.environment.card or product

    @cached_property
    def gpu(self) -> Gpu | None:
        """The data sheet of a GPU, found by name; fields that the user gave replace its fields."""
        if self.is_cpu:
            return None
        known, given = find_gpu(self.kind), self.environment.sheet
        if not given:
            return known
        own = {name: value for name, value in given.items() if name in SHEET_FIELDS}
        return replace(known or Gpu(self.kind), **own)

    @property
    def link_gb_s(self) -> float | None:
        """Peak GB/s of the link, one way, by the device file's data sheet; None for the card's usual link.

        The sheet in the section on language models may describe another form of the card.
        """
        if own := (self.environment.sheet or {}).get("link_gb_s"):
            return own_rate(self.kind, own)
        return own_rate(self.kind, self._sheet.get("link_gb_s"), ("", "SXM", "PCIe"))

    @property
    def machine(self) -> int:
        """Number of devices in one machine, by the data sheet in the device's file, else MACHINE."""
        return int(self._sheet.get("gpus_per_node", MACHINE))

    @property
    def _sheet(self) -> Mapping[str, Any]:
        """The fields of the data sheet in the device's file, those in the section on language models first.

        Empty without a data sheet.
        """
        return {**(self.environment.sheet or {}), **(self.llm or {}).get("sheet", {})}

    def link_of(
        self, devices: int, accelerator: str = "", machine: int | None = None, instance: str = ""
    ) -> Link:
        """The link between `devices` devices; `accelerator`, `instance`: names of rented ones in a list."""
        name = f"{self.kind} {accelerator}"
        return assumed_link(name, devices, machine or self.machine, instance, self.link_gb_s)

    @cached_property
    def link(self) -> Link:
        """The link inside a machine."""
        return self.link_of(1)

    @property
    def available_bytes(self) -> int | None:
        """Bytes of memory that a network can use, on a CPU as free when it was learned; None if unknown."""
        if self.is_cpu:
            return self.environment.available_bytes
        if known := self.environment.memory_bytes:
            return usable_bytes(known / GIB)
        return None if self.gpu is None else self.gpu.usable_bytes
