"""Data sheets of GPUs (gpus.csv beside this file), and the rates that a card's power limit sustains."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from lolat.graph.modes import BFLOAT16, FLOAT32, PRECISION_OF, TF32
from lolat.io.tables import read_table
from lolat.units import GIB, digits

UNUSABLE_BYTES, UNUSABLE_SHARE = GIB // 2, 0.06
"""(memory of a GPU that CUDA and the libraries keep, share of its memory that an allocator cannot hand
out)."""
CPU = "cpu"
"""The accelerator name of a machine without an accelerator."""
MACS_MS_OF_TFLOPS = 0.5e9  # a MAC is two of a data sheet's operations
OF_PEAK = 0.85  # share of a data sheet's rate that large products reach
OF_TF32 = 0.5
"""Share of a data sheet's TF32 rate that convolutions reach; large float32 products reach OF_PEAK of
theirs."""
GFLOPS_PER_WATT, CACHE_EXPONENT, POWER_EXPONENT = 44.0, 0.35, 0.65
MATRIX_GAIN = 4.5
"""Rate of matrix units in half precision / rate of vector units at equal power: the smallest ratio of the
GPUs. L40S has 4.5, RTX PRO 6000 4.4 (large products); RTX 3090 to 5090, whose half-precision rate is
limited to twice that of float32, reach all of that rate."""
OF_INSTINCT = 0.7
"""Share of its half-precision peak that an AMD Instinct reaches / share that other GPUs reach: an MI250
trains at 0.80 of the speed of an A100 40 GB, with 1.16 of its peak (MosaicML 2023)."""
_INSTINCT = re.compile(r"(?<![a-z0-9])(instinct|mi[- ]?\d{2,3})", re.IGNORECASE)
"""Pattern in the name of an Instinct: "AMD Instinct MI210", "mi325x"."""


@dataclass(frozen=True)
class Gpu:
    """A data sheet in GiB, GB/s, TFLOPS, MiB and watts; None for missing units and unknown values.

    `cores`: units that add one float32 product per clock; `vector_tflops`: float32 rate without matrix
    units; `half_tflops`: rate in float16, and in bfloat16 if `bf16` is True and `bf16_tflops` is None; if
    only `bf16_tflops` is known, float16 has the same rate; `link`: a key of `lolat.hardware.links.PEAKS`;
    `dies`: number of GPUs on one card, where the other fields describe one GPU; `channels_last`: True if
    all convolutions in half precision run channels last, as since Hopper.
    """

    name: str
    memory_gib: float | None = None
    bandwidth_gb_s: float | None = None
    multiprocessors: float | None = None
    cores: float | None = None
    vector_tflops: float | None = None
    fp32_tflops: float | None = None
    tf32_tflops: float | None = None
    half_tflops: float | None = None
    fp8_tflops: float | None = None
    fp4_tflops: float | None = None
    bf16: bool = False
    bf16_tflops: float | None = None
    l2_mib: float | None = None
    power_w: float | None = None
    link: str = ""
    dies: float | None = None
    channels_last: bool = False

    @property
    def chip(self) -> tuple[float | None, ...]:
        """(multiprocessors, cores, L2 MiB), equal for cards with the same chip; () if one is unknown."""
        of_chip = self.multiprocessors, self.cores, self.l2_mib
        return of_chip if all(of_chip) else ()

    @property
    def usable_bytes(self) -> int | None:
        """Bytes of the memory that a network can use; None if the memory is unknown."""
        return None if self.memory_gib is None else usable_bytes(self.memory_gib)

    @property
    def dies_remark(self) -> str:
        """The remark on a card with several GPUs; "" for other cards."""
        if not self.dies:
            return ""
        return f"a card is {self.dies:g} GPUs, and the time is that of one of them"

    @property
    def unused_power(self) -> str:
        """The remark on a power limit that cannot be used, as the sheet lacks other columns; else ""."""
        needed = {"l2_mb": self.l2_mib, "fp32_vector_gflops": self.vector_tflops}
        lacking = " and ".join(name for name, value in needed.items() if not value)
        if not (self.power_w and lacking):
            return ""
        return f"power_w ({self.power_w:g}) changes no time: the data sheet also needs {lacking}"

    def power_remark(self, dtype: str) -> str:
        """The remark on a card that sustains a part of its peak, and `unused_power`; "" without either."""
        if not (words := self._reached(dtype)):
            return self.unused_power
        if dtype == FLOAT32 and (tf32 := self.peak(TF32)):  # PyTorch's default for convolutions
            words += f", and in tf32, in which convolutions run, about {self.rate(TF32):.3g} of {tf32:.3g}"
        peak = (
            f"{digits(self.peak(dtype) or 0.0)} TFLOPS in {PRECISION_OF[dtype]} by its data sheet"
        )
        return "; ".join(filter(None, (peak, words, self.unused_power)))

    @property
    def tf32(self) -> float:
        """Speed of convolutions in TF32 / in float32; 1 without TF32 units."""
        ours, float32 = self.rate(TF32), self.rate(FLOAT32)
        if ours is None or float32 is None:
            return 1.0
        return max(OF_TF32 * ours / (OF_PEAK * float32), 1.0)

    def peak(self, dtype: str) -> float | None:
        """Peak TFLOPS in a data type of a mode; None without units for it."""
        bfloat16 = self.bf16_tflops or (self.half_tflops if self.bf16 else None)
        own = {FLOAT32: self.fp32_tflops, TF32: self.tf32_tflops, BFLOAT16: bfloat16}
        return own.get(dtype, self.half_tflops or self.bf16_tflops)  # equal on NVIDIA's cards

    def rate_words(self, dtype: str) -> str:
        """The peak in a data type, in words, with the part of it that the card reaches."""
        peak = f"{self.peak(dtype) or 0.0:.3g} TFLOPS"
        return "; ".join(filter(None, (peak, self._reached(dtype))))

    def _reached(self, dtype: str) -> str:
        """Words on the part of its peak in a data type that a card reaches, and why; "" for all of it."""
        rate, peak, share = self.rate(dtype) or 0.0, self.peak(dtype) or 0.0, self._share(dtype)
        is_short_of_power = rate < 0.99 * share * peak
        if share == 1.0 or not peak:
            return f"its power limit allows about {rate:.3g}" if is_short_of_power else ""
        within = " within its power limit" if is_short_of_power else ""
        return f"an Instinct reaches about {rate:.3g}{within}"

    def _share(self, dtype: str) -> float:
        """OF_INSTINCT for an Instinct in half precision, else 1."""
        is_half = dtype not in (FLOAT32, TF32)
        return OF_INSTINCT if is_half and _INSTINCT.search(self.name) else 1.0

    def rate(self, dtype: str) -> float | None:
        """TFLOPS that the card sustains in a data type of a mode; None without units for it."""
        peak, is_half = self.peak(dtype), dtype not in (FLOAT32, TF32)
        if not (peak := peak and peak * self._share(dtype)):
            return None
        if not (self.power_w and self.l2_mib and self.vector_tflops):
            return peak
        gain = max(peak / self.vector_tflops, MATRIX_GAIN if is_half else 1.0)
        return peak * sustained(1e3 * peak, self.power_w, self.l2_mib, gain)


def sustained(gflops: float, watts: float, cache_mib: float, gain: float = 1.0) -> float:
    """The share of its rate that a device sustains within its power limit.

    Efficiency grows with each generation. The size of the L2 cache stands for the generation, since no
    other usual column of a data sheet does: efficiency is GFLOPS_PER_WATT * (MiB / 3) ** CACHE_EXPONENT,
    times the `gain` of the units that compute. GPUs that power does not limit reach 38 GFLOPS per watt
    (P100, L2 cache of 4 MiB), 56 (V100, 6), 78 (A100, 40) and 96 (H100, 50). If power is short, clock and
    voltage fall, and the rate falls less than the power.
    """
    efficient = GFLOPS_PER_WATT * (cache_mib / 3.0) ** CACHE_EXPONENT * gain
    return float(min(1.0, (efficient * watts / gflops) ** POWER_EXPONENT))


SHEET_FIELDS = tuple(f.name for f in fields(Gpu) if f.name != "name")
SHEET_NUMBERS = tuple(
    name for name in SHEET_FIELDS if name not in ("bf16", "link", "channels_last")
)


@cache
def sheets() -> tuple[tuple[str, Gpu], ...]:
    """(words, sheet) for each sheet; the words are a regular expression that begins with a plain word."""
    table = read_table(
        Path(__file__).with_name("gpus.csv"), ("name", "words", *SHEET_NUMBERS), rows="GPU"
    )
    return tuple(
        (
            row["words"],
            Gpu(
                row["name"],
                **{n: row.number(n) if row[n] else None for n in SHEET_NUMBERS},
                bf16=row["bf16"] == "yes",
                link=row["link"],
                channels_last=row["channels_last"] == "yes",
            ),
        )
        for row in table
    )


def fastest_gpu() -> Gpu:
    """The GPU with the highest rate in float16."""
    return max((gpu for _, gpu in sheets()), key=lambda gpu: gpu.half_tflops or 0.0)


def usable_bytes(gib: float) -> int:
    """Bytes of a device's memory that a network can use; negative if the memory is too small."""
    return int(gib * GIB * (1.0 - UNUSABLE_SHARE)) - UNUSABLE_BYTES
