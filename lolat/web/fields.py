"""The fields of the page: what each is called, what is there at first, and what its text says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from lolat.errors import InputError
from lolat.fitting.intervals import check_coverage
from lolat.model.budget import MOST_BATCH, VARY
from lolat.readers.generated import BLOCK_KEYS, DEFAULTS, FAMILIES, configured, keys
from lolat.training.cost import BILLINGS
from lolat.training.exchange import Link
from lolat.training.iteration import OPTIMIZERS, optimizer_named
from lolat.training.replicas import check_strategy
from lolat.units import as_number, shortened

# ---- What a text in a field says; InputError where it says nothing of the kind.

MOST_DEVICES = 4096
MOST_COMPARED = 16
MOST_BATCHES = 8


def whole(example: str, most: int | None = None) -> Callable[[str], int]:
    """A whole number from 1 to `most`, as people write it: 50000, 50,000 or 50 000."""

    def parse(text: str) -> int:
        digits = re.fullmatch(r"\d{1,3}(?:[, _]\d{3})+|\d+", text)
        value = int(re.sub(r"[, _]", "", text)) if digits and len(text) < 30 else 0
        if 1 <= value <= (most or 10**12):
            return value
        given = repr(shortened(text)) if text else "nothing is given"
        limit = f" to {most:,}" if most else ""
        raise InputError(f"{given}; expected a whole number from 1{limit}, such as {example}")

    return parse


def amount(text: str, what: str = "a number") -> float | None:
    """A number of at least 0; None for an empty field."""
    if not text:
        return None
    value = as_number(text.removeprefix("$").replace(" ", ""))
    if 0.0 <= value < 1e12:
        return value
    raise InputError(
        f"{shortened(text)!r} is not {what}; expected a number of at least 0, such as 1.5"
    )


def wholes(what: str, longest: int, most: int, example: str) -> Callable[[str], tuple[int, ...]]:
    """At most `longest` whole numbers from 1 to `most`, with commas or spaces between them."""

    def parse(text: str) -> tuple[int, ...]:
        parts = [p for p in re.split(r"[,\s]+", text) if p]
        found = tuple(dict.fromkeys(int(p) for p in parts if re.fullmatch(r"[0-9]{1,9}", p)))
        whole = all(re.fullmatch(r"[0-9]{1,9}", p) for p in parts)
        if whole and 0 < len(found) <= longest and 1 <= min(found) <= max(found) <= most:
            return found
        raise InputError(
            f"{shortened(text)!r} is no list of {what}; expected at most {longest} whole "
            f"numbers from 1 to {most:,}, such as {example}"
        )

    return parse


def as_size(text: str) -> tuple[int, ...]:
    """An input size: nothing, 224, or several numbers."""
    parts = [p for p in re.split(r"[,x\s]+", text) if p]
    if len(parts) <= 6 and all(re.fullmatch(r"0{0,9}[1-9][0-9]{0,6}", p) for p in parts):
        return tuple(map(int, parts))
    raise InputError(
        f"{shortened(text)!r} is no input size; expected a whole number from 1, such as 224, or several "
        "such as 224,224,3"
    )


def one_of(known: Iterable[str]) -> Callable[[str], str]:
    """One of the words of a list."""

    def parse(text: str) -> str:
        if text not in known:
            raise InputError(f"{shortened(text)!r} is not known; choose one of {', '.join(known)}")
        return text

    return parse


def _budget(text: str) -> float:
    value = amount(text, "a time")
    if not value:
        given = repr(shortened(text)) if text else "nothing is given"
        raise InputError(f"{given}; expected a number of milliseconds above 0, such as 15")
    return value


def _sure(text: str) -> float | None:
    """How sure one must be that it stays within a time, 0 to 1; None: the predicted time counts."""
    percent = amount(text.removesuffix("%"), "a percentage")
    if percent is not None and not 0.0 < percent < 100.0:
        raise InputError(f"{shortened(text)!r}: expected a percentage above 0 and below 100")
    return None if percent is None else percent / 100.0


def _strategy(text: str) -> str:
    check_strategy(text, 1)
    return text


def _link(text: str) -> Link | None:
    gbps = amount(text)
    return None if gbps is None else Link(gbps)


def _coverage(text: str) -> float:
    value = amount(text)
    if value is None:
        raise InputError("nothing is given; expected a number, such as 0.9")
    check_coverage(value)
    return value


# ---- What can be typed into the page: each field's name in a link, its words, and what is
# there at first.


@dataclass(frozen=True)
class Field:
    """One field: `name` in the query string, `default` where it is not given, `choices` of a list,
    `parse`: what its text says."""

    name: str
    label: str
    default: str = ""
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    numeric: bool = False
    parse: Callable[[str], Any] = str


VIEWS = {"latency": "Latency", "budget": "What fits", "training": "Training and cost"}
"""The tabs of the page."""
VARY_WORDS = {
    "width": "width: channels of every layer",
    "resolution": "input size",
    "batch": "batch size",
}
SOURCES = (("keras", "By name"), ("generate", "Generated"), ("upload", "From a file"))
STRATEGY_WORDS = {
    "ring": "ring all-reduce",
    "tree": "tree all-reduce",
    "one-to-all": "one device gathers and sends",
    "mirrored": "MirroredStrategy",
}
BILLING_WORDS = {"second": "by the second", "hour": "by the hour, a begun one whole"}
FAMILY_WORDS = {"vgg": "VGG", "resnet": "ResNet", "inception": "Inception", "fc": "Fully connected"}

_ALL = (
    Field("view", "Question", "latency", choices=tuple(VIEWS.items()), parse=one_of(VIEWS)),
    Field("source", "Where the network is from", "keras", choices=SOURCES, parse=one_of(dict(SOURCES))),
    Field("name", "Name", "ResNet50",
          "type to search; of keras.applications, or with timm: or torchvision: before it"),
    Field("size", "Input size", "", "such as 160 or 160,160,3; empty: the network's own"),
    Field("family", "Family", "vgg", choices=tuple((f, FAMILY_WORDS.get(f, f)) for f in FAMILIES),
          parse=one_of(FAMILIES)),
    Field("upload", "File"),
    Field("file_size", "Input size, where the file leaves it open", "", "such as 224 or 3,224,224"),
    Field("batch", "Batch sizes", "1", "samples at once; several with commas: 1,8,32", numeric=True,
          parse=wholes("batch sizes", MOST_BATCHES, MOST_BATCH, "1,8,32")),
    Field("max_ms", "At most, ms", "15", numeric=True, parse=_budget),
    Field("vary", "What may change", "width", choices=tuple((v, VARY_WORDS[v]) for v in VARY),
          parse=one_of(VARY)),
    Field("sure", "Sure to stay within it, %", "", numeric=True, parse=_sure,
          hint="empty: the predicted time counts; 90: the upper end of the 90 % interval does"),
    Field("at_batch", "Batch size", "1", "samples at once", numeric=True, parse=whole("1", MOST_BATCH)),
    Field("samples", "Samples in the data set", "50000", numeric=True, parse=whole("50000")),
    Field("epochs", "Epochs", "20", numeric=True, parse=whole("20")),
    Field("batch_size", "Batch on each device", "64", numeric=True, parse=whole("64")),
    Field("optimizer", "Optimizer", "sgd", choices=tuple((o, o) for o in OPTIMIZERS),
          parse=lambda text: optimizer_named(text).name),
    Field("devices", "Devices", "1", numeric=True, parse=whole("1", MOST_DEVICES)),
    Field("compare", "Compare with", "1,2,4,8", "numbers of devices, with commas", numeric=True,
          parse=wholes("numbers of devices", MOST_COMPARED, MOST_DEVICES, "1,2,4,8")),
    Field("strategy", "How gradients are exchanged", "ring", choices=tuple(STRATEGY_WORDS.items()),
          parse=_strategy),
    Field("link_gbps", "Link of a device, Gbit/s", "",
          "empty: as such devices are linked in one machine, and 10 between machines", numeric=True,
          parse=_link),
    Field("billing", "Billing", "second", choices=tuple((b, BILLING_WORDS[b]) for b in BILLINGS),
          parse=one_of(BILLINGS)),
    Field("coverage", "How sure the interval is to be", "0.9", "above 0 and below 1", numeric=True,
          parse=_coverage),
)  # fmt: skip
FIELDS = {f.name: f for f in _ALL}
"""By name; a model's price and memory, and the keys of generated networks, are named by functions below."""
_names = tuple(FIELDS)
RUN = _names[_names.index("samples") :]
"""The fields of how is trained: those of a TrainingQuestion beside its network and models."""
OF_VIEW = {"latency": ("batch",), "budget": ("vary", "max_ms", "sure", "at_batch"), "training": RUN}
"""The fields that only matter in one tab."""

_KEY_LABELS = {
    "layers": "Layers by stage", "filters": "Filters by stage", "hidden": "Dense layers after it",
    "input": "Input size", "output": "Classes", "small": "Small blocks",
    "input_dropout": "Dropout of the input", "dropout": "Dropout", "f1": "1x1",
    "f2_in": "1x1 before 3x3", "f2_out": "3x3", "f3_in": "1x1 before 5x5", "f3_out": "5x5",
    "f4_out": "1x1 after the pool",
}  # fmt: skip
_EXAMPLES = {"vgg": {"layers": [2, 2, 3], "filters": [64, 128, 256]}}


def price_name(model: str) -> str:
    """The field of what one device of a model costs an hour."""
    return f"price.{model}"


def memory_name(model: str) -> str:
    """The field of a device's memory, GiB."""
    return f"memory.{model}"


def family_fields(family: str) -> tuple[Field, ...]:
    """The fields of a generated network, filled with an example: the family's defaults, for most."""
    plain = configured(family, _EXAMPLES.get(family, {}))
    labels = _KEY_LABELS | ({"layers": "Widths", "input": "Features"} if family == "fc" else {})
    return tuple(
        Field(f"{family}.{key}", labels.get(key, key), _shown(key, getattr(plain, key)))
        for key in keys(family)
    )


def _shown(key: str, value: object) -> str:
    """A default as it would be typed."""
    if key in BLOCK_KEYS:
        return str(DEFAULTS["inception"][key][0])
    if key == "input" and isinstance(value, tuple):
        return str(value[0])
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return str(value).lower()
