"""Data sheets of GPUs, gpus.csv beside this file, and names of GPUs.

The first row whose words are in a device's name is its sheet, if the name has no word of another card
(OTHER_CARD) and no other size of memory or form: a 3080 Ti or a slice of an A100 is another device. A name
without a form, such as V100, is a card with the smaller memory, which therefore comes first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from lolat.graph.modes import BFLOAT16, FLOAT32, PRECISION_DTYPES, TF32
from lolat.io.tables import MAKERS, device_key, read_table
from lolat.parameters import PARAMETERS
from lolat.units import GIB

PRECISION_OF = {dtype: name for name, dtype in PRECISION_DTYPES.items()}
UNUSABLE_BYTES, UNUSABLE_SHARE = GIB // 2, 0.06
"""Memory of a GPU that CUDA and the libraries keep, and the share that an allocator cannot hand out."""
OTHER_CARD = re.compile(
    r"\b(ti|super|laptop|mobile|max|q|d|v2|x|lite|nvl|server|ada|grid|mig|\d+[abcgq]|ls|dgxs|fhhl|pg\d+|[2-8]x|x[2-8])\b"
)
"""Words of a driver for another card of the same number, a slice, or a share of one; several cards."""
GLUED = {
    r"(?<=\w)(sxm|pcie)": r" \1",
    r"\b(sxm\d??|pcie)(?=\d{2,3}gb?\b)": r"\1 ",
    r"\b(\d\d+) ?g\b": r"\1gb",
}
"""Form and memory in a name, as in "sxm4-80g" and "sxm80gb" -> apart; the g of a slice is of one digit."""
CARD_WORDS = MAKERS.union(
    ["amd", "instinct", "rtx", "gtx", "ada", "blackwell", "generation", "edition", "workstation"]
)
MEMORY_WORD = re.compile(r"[-_ ]?\d+ ?GB\b", re.IGNORECASE)
FORM_WORD = re.compile(r"[-_ ](SXM\d?|HBM\d?e?|PCIe)\b", re.IGNORECASE)
_FORM = re.compile(r"(?<![a-z])(?:(pcie)|sxm|hbm3)", re.IGNORECASE)
CPU = "cpu"
"""The name of an accelerator that stands for a machine without one."""
SIZE_OFF = 0.09  # largest relative difference between the memory in a name and the driver's
MACS_MS_OF_TFLOPS = 0.5e9  # a MAC is two of a data sheet's operations
OF_PEAK = 0.85  # share of a data sheet's rate that large products reach
OF_TF32 = 0.5
"""Share of a data sheet's rate in TF32 that convolutions reach; large products of float32 reach OF_PEAK."""
GFLOPS_PER_WATT, CACHE_EXPONENT, POWER_EXPONENT = 44.0, 0.35, 0.65
MATRIX_GAIN = 4.5
"""Least multiply-accumulates of units for matrices in half precision for one of the vector units at the
same power: L40S 4.5, RTX PRO 6000 4.4 (large products); RTX 3090 to 5090, whose half rate is held at twice
that of float32, reach it all."""
OF_INSTINCT = 0.7
"""Share of the peak in half precision that AMD's Instinct reaches, over that of other GPUs: a MI250 trains
at 0.80 of the speed of an A100 40 GB with 1.16 of its peak (MosaicML 2023)."""
_INSTINCT = re.compile(r"(?<![a-z0-9])(instinct|mi[- ]?\d{2,3})", re.IGNORECASE)
"""A part of the name of an Instinct, in any case: "AMD Instinct MI210", "mi325x"."""


@dataclass(frozen=True)
class Gpu:
    """A data sheet: GiB, GB/s, TFLOPS, MiB, watts. None: the GPU has no such units, or the sheet is silent.

    `cores`: units that add one float32 product per clock; `vector_tflops`: rate of float32 without units
    for matrices; `half_tflops`: rate of float16, and of bfloat16 if `bf16` without `bf16_tflops`; `link`: a
    key of `lolat.hardware.links.PEAKS`; `dies`: GPUs on one card; all other fields are of one of them;
    `channels_last`: in half precision all convolutions are computed channels last, as since Hopper.
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
        """Multiprocessors, cores and L2 cache, which cards of one chip share; () if the sheet lacks one."""
        of_chip = self.multiprocessors, self.cores, self.l2_mib
        return of_chip if all(of_chip) else ()

    @property
    def usable_bytes(self) -> int | None:
        """The part of its memory, in bytes, that a network may take; None if its memory is unknown."""
        return None if self.memory_gib is None else usable_bytes(self.memory_gib)

    @property
    def dies_remark(self) -> str:
        """The remark on a card of several GPUs; "" for others."""
        if not self.dies:
            return ""
        return f"a card is {self.dies:g} GPUs, and the time is that of one of them"

    @property
    def unused_power(self) -> str:
        """The remark on a power limit without the columns that it needs; "" if it has them."""
        needed = {"l2_mb": self.l2_mib, "fp32_vector_gflops": self.vector_tflops}
        lacking = " and ".join(name for name, value in needed.items() if not value)
        if not (self.power_w and lacking):
            return ""
        return f"power_w ({self.power_w:g}) changes no time: the data sheet also needs {lacking}"

    def power_remark(self, dtype: str) -> str:
        """The remark on the part of its peak that a card sustains, and `unused_power`; "" without any."""
        if not (words := self._reached(dtype)):
            return self.unused_power
        if dtype == FLOAT32 and (tf32 := self.peak(TF32)):  # PyTorch's default for convolutions
            words += f", and in tf32, in which convolutions run, about {self.rate(TF32):.3g} of {tf32:.3g}"
        peak = f"{self.peak(dtype):.3g} TFLOPS in {PRECISION_OF[dtype]} by its data sheet"
        return "; ".join(filter(None, (peak, words, self.unused_power)))

    @property
    def tf32(self) -> float:
        """The speedup of convolutions in TF32 over float32; 1 without TF32 units."""
        ours, float32 = self.rate(TF32), self.rate(FLOAT32)
        if ours is None or float32 is None:
            return 1.0
        return max(OF_TF32 * ours / (OF_PEAK * float32), 1.0)

    def peak(self, dtype: str) -> float | None:
        """TFLOPS in a data type of a mode; None without units for it."""
        bfloat16 = self.bf16_tflops or (self.half_tflops if self.bf16 else None)
        own = {FLOAT32: self.fp32_tflops, TF32: self.tf32_tflops, BFLOAT16: bfloat16}
        return own.get(dtype, self.half_tflops)

    def rate_words(self, dtype: str) -> str:
        """The peak in a data type of a mode, and the part of it that the card reaches."""
        peak = f"{self.peak(dtype) or 0.0:.3g} TFLOPS"
        return "; ".join(filter(None, (peak, self._reached(dtype))))

    def _reached(self, dtype: str) -> str:
        """The part of its peak in a data type that a card reaches, and why; "" if all."""
        rate, peak, share = self.rate(dtype) or 0.0, self.peak(dtype) or 0.0, self._share(dtype)
        short_of_power = rate < 0.99 * share * peak
        if share == 1.0 or not peak:
            return f"its power limit allows about {rate:.3g}" * short_of_power
        return f"an Instinct reaches about {rate:.3g}{' within its power limit' * short_of_power}"

    def _share(self, dtype: str) -> float:
        """OF_INSTINCT for such a card in half precision, else 1."""
        is_half = dtype not in (FLOAT32, TF32)
        return OF_INSTINCT if is_half and _INSTINCT.search(self.name) else 1.0

    def rate(self, dtype: str) -> float | None:
        """TFLOPS in a data type of a mode that the card sustains."""
        peak, is_half = self.peak(dtype), dtype not in (FLOAT32, TF32)
        if not (peak := peak and peak * self._share(dtype)):
            return None
        if not (self.power_w and self.l2_mib and self.vector_tflops):
            return peak
        gain = max(peak / self.vector_tflops, MATRIX_GAIN if is_half else 1.0)
        return peak * sustained(1e3 * peak, self.power_w, self.l2_mib, gain)


def sustained(gflops: float, watts: float, cache_mib: float, gain: float = 1.0) -> float:
    """The share of its rate that a device sustains on its power.

    Efficiency grows with each generation. The size of the L2 cache stands for the generation, as no other
    usual column of a data sheet does: efficiency is GFLOPS_PER_WATT * (MiB / 3) ** CACHE_EXPONENT, times
    the `gain` of the units that compute. GPUs that power does not limit reach 38 GFLOPS a watt (P100,
    4 MiB), 56 (V100, 6), 78 (A100, 40) and 96 (H100, 50). If power is short, clock and voltage fall, and
    the rate falls less than the power.
    """
    efficient = GFLOPS_PER_WATT * (cache_mib / 3.0) ** CACHE_EXPONENT * gain
    return float(min(1.0, (efficient * watts / gflops) ** POWER_EXPONENT))


SHEET_FIELDS = tuple(f.name for f in fields(Gpu) if f.name != "name")
SHEET_NUMBERS = tuple(
    name for name in SHEET_FIELDS if name not in ("bf16", "link", "channels_last")
)


@cache
def _sheets() -> tuple[tuple[str, Gpu], ...]:
    """The words of each sheet, a regular expression that begins with a plain word, and the sheet."""
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
    return max((gpu for _, gpu in _sheets()), key=lambda gpu: gpu.half_tflops or 0.0)


def device_names() -> tuple[str, ...]:
    """The cards with a data sheet as names of devices, such as "a100-sxm-80gb"."""
    return tuple(sorted(device_name(gpu) for _, gpu in _sheets()))


def device_name(gpu: Gpu) -> str:
    """The name of a card with a data sheet as a device, such as "a100-sxm-80gb"."""
    card = gpu.name.partition(" (")[0].casefold()
    return card.replace(" gb", "gb").replace(" ", "-")


@cache
def _first_word(pattern: str) -> str:
    """The plain word that a regular expression begins with."""
    return re.split(r"\W", pattern, maxsplit=1)[0]


@cache
def _found(name: str) -> tuple[Gpu | None, str]:
    """The sheet of exactly the card in a name, and the words of the name beside the card and its memory."""
    words = " ".join(re.findall(r"[a-z0-9]+", name.casefold()))
    for glued, apart in GLUED.items():
        words = re.sub(glued, apart, words)
    sizes = [int(size) for size in re.findall(r"\b(\d+) ?gb\b", words)]
    for its_words, gpu in _sheets():
        if _first_word(its_words) not in words:
            continue  # skip most sheets before compiling a pattern
        pattern = re.compile(rf"\b(?:[rg]tx ?)?(?:{its_words})(?![a-z0-9])")
        if not pattern.search(words) or ("sxm" in words and "PCIe" in gpu.name):
            continue
        if re.search("rtx" if gpu.name.startswith("GTX") else "gtx", words):
            continue  # a card of another line: there is no GTX 4090
        rest = re.sub(r"\b\d+ ?gb\b", "", pattern.sub(" ", words, count=1))
        fits = [abs(size - (gpu.memory_gib or 0.0)) <= SIZE_OFF * size for size in sizes]
        if not OTHER_CARD.search(rest) and (any(fits) or not fits):
            return gpu, rest
    return None, words


def find_gpu(device: str) -> Gpu | None:
    """The data sheet of a device by its name, such as "NVIDIA A100-SXM4-80GB" or "rtx-4090"; or None."""
    return _found(device.partition(" (")[0])[0]


def is_card(name: str) -> bool:
    """True if a name is that of a GPU with a data sheet and nothing more: "RTX 4090", "A100-SXM4-80GB"."""
    gpu, rest = _found(name)
    known = (w in CARD_WORDS or re.fullmatch(r"sxm\d?|hbm\d?e?|pcie", w) for w in rest.split())
    return gpu is not None and all(known)


def names_several(name: str) -> bool:
    """True if a name is that of more than one GPU with a data sheet."""
    gpu, rest = _found(name)
    return gpu is not None and find_gpu(rest) is not None


def usable_bytes(gib: float) -> int:
    """The part of a device's memory, in bytes, that a network may take; below 0 if it is too small."""
    return int(gib * GIB * (1.0 - UNUSABLE_SHARE)) - UNUSABLE_BYTES


def card_of(name: str) -> str | None:
    """The card in the name of a device or a table, without form and memory: "A100"; None if unknown."""
    gpu = find_gpu(name)
    return None if gpu is None else FORM_WORD.sub("", MEMORY_WORD.sub("", gpu.name))


def form_of(*names: str) -> str:
    """The form of a card, "PCIe" or "SXM", by its names; "" if they do not tell."""
    found = _FORM.search(" ".join(names))
    return "" if found is None else "PCIe" if found[1] else "SXM"


def of_form(name: str, form: str) -> Gpu | None:
    """The sheet of a device's card in another form, such as "PCIe" or "SXM 80gb"; None if unknown."""
    return find_gpu(f"{card_of(name)} {form}")


def has_several_chips(name: str) -> bool:
    """True if a card is another chip in each form, as the H100 is."""
    forms = [of_form(name, form) for form in ("SXM", "PCIe")]
    return len({None if gpu is None else gpu.multiprocessors for gpu in forms}) > 1


def is_other_chip(gpu: Gpu | None, form: str) -> bool:
    """True if a card of another form is another chip than the GPU, as an H100 PCIe and an SXM are.

    `form`: "" is unknown.
    """
    other = None if gpu is None or not form else of_form(gpu.name, form)
    return gpu is not None and other is not None and other.multiprocessors != gpu.multiprocessors


MAX_Q = " Max-Q"
"""The end of the names of low-power cards of workstations, which are not for rent."""


def is_same_gpu(accelerator: str, device: str, gpu: Gpu | None) -> bool:
    """True if the accelerator of a price list is the device's card, in any form and of any memory.

    `gpu`: the device's sheet; without one, or without the accelerator's, the names must be equal. Price
    lists do not mark the low-power Max-Q, which matches the full card.
    """
    other = find_gpu(accelerator)
    if gpu is None or other is None:
        return device_key(accelerator) == device_key(device)
    return card_of(other.name) == str(card_of(gpu.name)).removesuffix(MAX_Q)


def is_one_card(name: str, other: str) -> bool:
    """Return True if two names are of one card, and neither may be of another form or memory as well."""
    cards = find_gpu(name), find_gpu(other)
    keys = [device_key(gpu.name) for _, gpu in _sheets()]
    alone = all(sum(k.startswith(device_key(n)) for k in keys) <= 1 for n in (name, other))
    return alone and cards[0] is not None and cards[0] == cards[1]


def dtype_named(precision: str) -> str:
    """The data type of a precision; InputError if there is no such precision."""
    return PRECISION_DTYPES[PARAMETERS["precision"].choice(precision)]


def full_card(gpu: Gpu) -> Gpu:
    """The full card of a Max-Q; any other GPU itself."""
    is_full = not gpu.name.endswith(MAX_Q)
    return gpu if is_full else find_gpu(gpu.name.removesuffix(MAX_Q)) or gpu
