"""The environment of a device's measurements, and its hardware: name, data sheet, memory."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from msgspec import Struct

from lolat.hardware.gpus import CPU, SHEET_FIELDS, Gpu, find_gpu, usable_bytes
from lolat.hardware.links import MACHINE, Link, assumed_link, own_rate
from lolat.units import GIB

ANY_GPU = "gpu"


class FittedOn(Struct, frozen=True):
    """The numbers of timed operations and networks in the tables of a device, and their batch sizes.

    `network_rows`: timed rows of the networks; 0: as many as these. `inference`: False if only training
    steps were timed.
    """

    operations: int = 0
    networks: int = 0
    network_rows: int = 0
    batch_sizes: tuple[int, int] | None = None
    inference: bool = True


class Environment(Struct, frozen=True, rename={"fitted_on": "held"}):
    """The section `environment` of a device's file: the machine, the framework, the origin of its times.

    `device`: CPU or ANY_GPU for one that LoLat measured, else any word; `card`: the GPU of a device with a
    user's name; `source`: names of tables, or facts on the single layers of 2018; `sheet`: given fields of
    `Gpu`; `rows`: keys of fitted rows; `own_networks`: the user's timed networks that scaled all times;
    `mode`: the execution mode in words. Further fields are in the file alone;
    `lolat.microbench.environment` compares them.
    """

    device: str = ""
    card: str | None = None
    framework: str | None = None
    framework_version: str | None = None
    threads: int | None = None
    half: bool = False
    compile: bool = False
    channels_last: bool = False
    jit: bool = False
    flags: dict[str, Any] | None = None
    date: str | None = None
    seconds: float | None = None
    source: str | dict[str, Any] = ""
    sheet: dict[str, Any] | None = None
    fitted_on: FittedOn = FittedOn()
    rows: tuple[str, ...] = ()
    own_networks: int = 0
    mode: str | None = None
    available_bytes: int | None = None
    memory_bytes: int | None = None
    operating_system: str = ""
    processor: dict[str, Any] | None = None

    @property
    def is_learned(self) -> bool:
        """True if LoLat measured the device."""
        return self.device in (CPU, ANY_GPU)

    @property
    def of_layers(self) -> bool:
        """True for the times of the single layers of 2018."""
        return isinstance(self.source, Mapping)

    @property
    def sources(self) -> list[str]:
        """The names of the tables."""
        return [] if isinstance(self.source, dict) else [*filter(None, self.source.split(", "))]


GENERATIONS = (
    ("AuthenticAMD", 23, 0x00, 0x2F, "Zen"), ("AuthenticAMD", 23, 0x30, 0xAF, "Zen 2"),
    ("AuthenticAMD", 25, 0x00, 0x0F, "Zen 3"), ("AuthenticAMD", 25, 0x20, 0x5F, "Zen 3"),
    ("AuthenticAMD", 25, 0x10, 0x1F, "Zen 4"), ("AuthenticAMD", 25, 0x60, 0x7F, "Zen 4"),
    ("AuthenticAMD", 25, 0xA0, 0xAF, "Zen 4"), ("AuthenticAMD", 26, 0x00, 0x77, "Zen 5"),
    ("GenuineIntel", 6, 0x3F, 0x3F, "Haswell"), ("GenuineIntel", 6, 0x4F, 0x4F, "Broadwell"),
    ("GenuineIntel", 6, 0x55, 0x55, "Skylake or Cascade Lake"),
    ("GenuineIntel", 6, 0x6A, 0x6A, "Ice Lake"), ("GenuineIntel", 6, 0x6C, 0x6C, "Ice Lake"),
    ("GenuineIntel", 6, 0x8F, 0x8F, "Sapphire Rapids"),
    ("GenuineIntel", 6, 0xCF, 0xCF, "Emerald Rapids"),
    ("GenuineIntel", 6, 0xAD, 0xAE, "Granite Rapids"),
    ("0x41", 8, 0xD0C, 0xD0C, "Neoverse N1"), ("0x41", 8, 0xD40, 0xD40, "Neoverse V1"),
    ("0x41", 8, 0xD49, 0xD49, "Neoverse N2"), ("0x41", 8, 0xD4F, 0xD4F, "Neoverse V2"),
)  # fmt: skip
"""Vendor and family of processors, the first and last number of their models, their generation.

The numbers are the makers': of AMD and Intel as the CPUID instruction gives them, of Arm those of MIDR_EL1.
"""


def with_generation(name: str, processor: Mapping[str, Any]) -> str:
    """The name of a CPU with its generation in place of its numbers, if that is known.

    In a cloud a processor's name is often the maker's alone.
    """
    kind, number = (processor.get("vendor"), processor.get("family")), processor.get("model", -1)
    for *of, first, last, generation in GENERATIONS:
        if (*of,) == kind and first <= number <= last and generation not in name:
            numbers = r"( \(family \d+ model \d+\))?(?=(, \d+ threads?)?$)"
            return re.sub(numbers, f" {generation}", name, count=1)
    return name


class Hardware:
    """A device's hardware: `product` is its name, without the brackets that say how it was measured;
    `is_cpu`: true for a CPU that LoLat measured; `kind`: CPU, the card of a device with a user's
    name, or the name, as in lists of prices and links; `llm`: its section on language models. An own data
    sheet, the environment's or that section's, has the link and the size of machines.
    """

    llm: Mapping[str, Any] | None = None

    def __init__(self, product: str, environment: Environment | None = None) -> None:
        self.product = product
        self.environment = environment or Environment()
        self.is_cpu = self.environment.device == CPU
        self.kind = CPU if self.is_cpu else self.environment.card or product

    @cached_property
    def gpu(self) -> Gpu | None:
        """The data sheet of a GPU, by its name; given fields come first."""
        if self.is_cpu:
            return None
        known, given = find_gpu(self.kind), self.environment.sheet
        if not given:
            return known
        own = {name: value for name, value in given.items() if name in SHEET_FIELDS}
        return replace(known or Gpu(self.kind), **own)

    @property
    def link_gb_s(self) -> float | None:
        """Peak of the link in an own data sheet, in GB/s one way; None: that of the card."""
        return own_rate(self.kind, self._sheet.get("link_gb_s"))

    @property
    def machine(self) -> int:
        """Devices in one machine, by an own data sheet, else MACHINE."""
        return int(self._sheet.get("gpus_per_node", MACHINE))

    @property
    def _sheet(self) -> Mapping[str, Any]:
        """The own data sheet, that of the language models first; empty without one."""
        return {**(self.environment.sheet or {}), **(self.llm or {}).get("sheet", {})}

    def link_of(
        self, devices: int, accelerator: str = "", machine: int | None = None, instance: str = ""
    ) -> Link:
        """The link of so many devices; of rented ones by their name and their instance."""
        name = f"{self.kind} {accelerator}"
        return assumed_link(name, devices, machine or self.machine, instance, self.link_gb_s)

    @cached_property
    def link(self) -> Link:
        """The link inside a machine."""
        return self.link_of(1)

    @property
    def available_bytes(self) -> int | None:
        """Memory that a network may take; None if unknown. Of a CPU: free when it was learned."""
        if self.is_cpu:
            return self.environment.available_bytes
        if known := self.environment.memory_bytes:
            return usable_bytes(known / GIB)
        return None if self.gpu is None else self.gpu.usable_bytes
