"""The generation of a CPU, by the numbers that its maker gave it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

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
"""(vendor and family of processors, first and last number of their models, their generation). The numbers
are the makers': for AMD and Intel those of the CPUID instruction, for Arm those of MIDR_EL1."""


def with_generation(name: str, processor: Mapping[str, Any]) -> str:
    """The name of a CPU, with its generation in place of its numbers if the generation is known.

    The name that a cloud gives a processor is often only its maker's name.
    """
    kind, number = (processor.get("vendor"), processor.get("family")), processor.get("model", -1)
    for *of, first, last, generation in GENERATIONS:
        if (*of,) == kind and first <= number <= last and generation not in name:
            numbers = r"( \(family \d+ model \d+\))?(?=(, \d+ threads?)?$)"
            return re.sub(numbers, f" {generation}", name, count=1)
    return name
