"""Names of GPUs: the card, form and memory that a name means, and its data sheet.

A device's sheet is the first row of gpus.csv whose words are in the device's name, if the name has no word
of another card (OTHER_CARD) and no other memory size or form: a 3080 Ti or a slice of an A100 is another
device. A name that leaves the memory open, such as V100, means the card with the smaller memory, whose row
therefore comes first.
"""

from __future__ import annotations

import re
from functools import cache

from lolat.hardware.gpus import Gpu, sheets
from lolat.units import plain

OTHER_CARD = re.compile(
    r"\b(ti|super|laptop|mobile|max|q|d|v2|x|lite|nvl|server|ada|grid|mig|\d+[abcgq]|ls|dgxs|fhhl|pg\d+|[2-8]x|x[2-8])\b"
)
"""Words in a driver's name that mean another card of the same number, a slice or a share of a card, or
several cards."""
GLUED = {
    r"(?<=\w)(sxm|pcie)": r" \1",
    r"\b(sxm\d??|pcie)(?=\d{2,3}gb?\b)": r"\1 ",
    r"\b(\d\d+) ?g\b": r"\1gb",
}
"""Pattern of a form and a memory written as one word, as in "sxm4-80g" and "sxm80gb" -> replacement that
separates them. A g behind a single digit means a slice, not GB."""
MAKERS = frozenset(["nvidia", "tesla", "geforce", "quadro"])
CARD_WORDS = MAKERS.union(
    ["amd", "instinct", "rtx", "gtx", "ada", "blackwell", "generation", "edition", "workstation"]
)
MEMORY_WORD = re.compile(r"[-_ ]?\d+ ?GB\b", re.IGNORECASE)
FORM_WORD = re.compile(r"[-_ ](SXM\d?|HBM\d?e?|PCIe)\b", re.IGNORECASE)
_FORM = re.compile(r"(?<![a-z])(?:(pcie)|sxm|hbm3)", re.IGNORECASE)
SIZE_OFF = 0.09  # largest relative difference between the memory in a name and the driver's


def device_names() -> tuple[str, ...]:
    """Device names of the cards with a data sheet, such as "a100-sxm-80gb"."""
    return tuple(sorted(device_name(gpu) for _, gpu in sheets()))


def device_name(gpu: Gpu) -> str:
    """The device name of a card with a data sheet, such as "a100-sxm-80gb"."""
    card = gpu.name.partition(" (")[0].casefold()
    return card.replace(" gb", "gb").replace(" ", "-")


@cache
def _first_word(pattern: str) -> str:
    """The plain word that a regular expression begins with."""
    return re.split(r"\W", pattern, maxsplit=1)[0]


def _is_size(size: int, gpu: Gpu) -> bool:
    """True if a memory size in a name, in GB, is the card's."""
    return abs(size - (gpu.memory_gib or 0.0)) <= SIZE_OFF * size


def _parted(name: str) -> tuple[str, list[int]]:
    """(words of a name in lower case with form and memory separated, its memory sizes in GB)."""
    words = " ".join(re.findall(r"[a-z0-9]+", name.casefold()))
    for glued, apart in GLUED.items():
        words = re.sub(glued, apart, words)
    return words, [int(size) for size in re.findall(r"\b(\d+) ?gb\b", words)]


@cache
def _found(name: str) -> tuple[Gpu | None, str]:
    """(sheet of exactly the card in a name or None, words of the name besides card and memory)."""
    words, sizes = _parted(name)
    for its_words, gpu in sheets():
        if _first_word(its_words) not in words:
            continue  # skip most sheets before compiling a pattern
        pattern = re.compile(rf"\b(?:[rg]tx ?)?(?:{its_words})(?![a-z0-9])")
        if not pattern.search(words) or ("sxm" in words and "PCIe" in gpu.name):
            continue
        if re.search("rtx" if gpu.name.startswith("GTX") else "gtx", words):
            continue  # a card of another line: there is no GTX 4090
        rest = re.sub(r"\b\d+ ?gb\b", "", pattern.sub(" ", words, count=1))
        fits = [_is_size(size, gpu) for size in sizes]
        if not OTHER_CARD.search(rest) and (any(fits) or not fits):
            return gpu, rest
    return None, words


def find_gpu(device: str) -> Gpu | None:
    """The data sheet of a device named like "NVIDIA A100-SXM4-80GB" or "rtx-4090"; None if unknown."""
    return _found(device.partition(" (")[0])[0]


def cards_meant(name: str) -> list[Gpu]:
    """The sheets of all cards that a name can mean: each form and memory that the name leaves open."""
    found, form, (_, sizes) = find_gpu(name), form_of(name), _parted(name)
    return [
        gpu
        for _, gpu in sheets()
        if found is not None
        and card_of(gpu.name) == card_of(found.name)
        and (gpu == found or not form or form_of(gpu.name) == form)
        and (gpu == found or all(_is_size(size, gpu) for size in sizes))
    ]


def form_and_memory(name: str, gpu: Gpu | None) -> str:
    """The form and memory of a GPU, such as "PCIe 40 GB", if its name does not say them; else ""."""
    name = without_brackets(name)
    is_open = is_card(name) and len(cards_meant(name)) > 1
    return _rest_of(gpu) if gpu and is_open else ""


def _rest_of(gpu: Gpu) -> str:
    return gpu.name.removeprefix(f"{card_of(gpu.name)} ")


def without_brackets(name: str) -> str:
    """The device name, "a100-pcie-40gb", for a GPU's name as tables write it, "a100 (PCIe 40 GB)".

    Any other name is returned unchanged.
    """
    card, bracket, rest = name.rstrip(")").partition(" (")
    gpu = find_gpu(f"{card} {rest}") if bracket else None
    is_named = gpu is not None and rest == _rest_of(gpu)
    return device_name(gpu) if gpu and is_named else name


def is_card(name: str) -> bool:
    """True if a name means a GPU with a data sheet and has no other words: "RTX 4090", "A100-SXM4-80GB"."""
    gpu, rest = _found(name)
    known = (w in CARD_WORDS or re.fullmatch(r"sxm\d?|hbm\d?e?|pcie", w) for w in rest.split())
    return gpu is not None and all(known)


def names_several(name: str) -> bool:
    """True if a name contains the names of several GPUs with data sheets."""
    gpu, rest = _found(name)
    return gpu is not None and find_gpu(rest) is not None


def card_of(name: str) -> str | None:
    """The card in the name of a device or table, without form and memory: "A100"; None if unknown."""
    gpu = find_gpu(name)
    return None if gpu is None else FORM_WORD.sub("", MEMORY_WORD.sub("", gpu.name))


def form_of(*names: str) -> str:
    """The form of a card, "PCIe" or "SXM", that one of its names says; "" if none does."""
    found = _FORM.search(" ".join(names))
    return "" if found is None else "PCIe" if found[1] else "SXM"


def of_form(name: str, form: str) -> Gpu | None:
    """The sheet of a device's card in another form, such as "PCIe" or "SXM 80gb"; None if there is none."""
    return find_gpu(f"{card_of(name)} {form}")


def has_several_chips(name: str) -> bool:
    """True if the SXM and PCIe forms of a card have different chips, as those of the H100 do."""
    forms = [of_form(name, form) for form in ("SXM", "PCIe")]
    return len({None if gpu is None else gpu.multiprocessors for gpu in forms}) > 1


def is_other_chip(gpu: Gpu | None, form: str) -> bool:
    """True if the card of a GPU has a different chip in another form, as the H100 PCIe and SXM do.

    `form`: "" if unknown.
    """
    other = None if gpu is None or not form else of_form(gpu.name, form)
    return gpu is not None and other is not None and other.multiprocessors != gpu.multiprocessors


MAX_Q = " Max-Q"
"""End of the names of low-power workstation cards, which nobody rents out."""


def device_key(name: str) -> str:
    """A name without case, separators and makers, equal for "NVIDIA RTX 4090" and "rtx-4090"."""
    words = re.findall(r"[a-z0-9]+", name.casefold())
    return "".join(word for word in words if word not in MAKERS) or name


def is_same_gpu(accelerator: str, device: str, gpu: Gpu | None) -> bool:
    """True if an accelerator in a price list is the device's card, in any form and with any memory.

    `gpu`: the device's sheet; if the device or the accelerator has none, the names must be equal. Price
    lists do not mark the low-power Max-Q, so the full card's name counts as its name.
    """
    other = find_gpu(accelerator)
    if gpu is None or other is None:
        return device_key(accelerator) == device_key(device)
    return card_of(other.name) == str(card_of(gpu.name)).removesuffix(MAX_Q)


def is_one_card(name: str, other: str) -> bool:
    """True if two names mean the same card, and neither leaves its form or memory open."""
    cards = find_gpu(name), find_gpu(other)
    keys = [device_key(gpu.name) for _, gpu in sheets()]
    alone = all(sum(k.startswith(device_key(n)) for k in keys) <= 1 for n in (name, other))
    return alone and cards[0] is not None and cards[0] == cards[1]


def full_card(gpu: Gpu) -> Gpu:
    """The full-power card of a Max-Q; any other GPU is returned unchanged."""
    is_full = not gpu.name.endswith(MAX_Q)
    return gpu if is_full else find_gpu(gpu.name.removesuffix(MAX_Q)) or gpu


def short_name(device: str) -> str:
    """A device's name without the mode in which it was measured: "h100" for "h100-fp16-nhwc".

    The name stays whole if its short form also begins another card's name, such as a Max-Q's.
    """
    short = re.sub(r"(-(fp32|fp16|bf16|amp|nhwc|compiled|vllm))+$", "", plain(device))
    names = device_names()
    is_of_two = short in names and any(name.startswith(f"{short}-") for name in names)
    return plain(device) if is_of_two else short
