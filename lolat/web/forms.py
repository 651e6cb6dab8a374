"""What a page asks for: read from its query string, with what is wrong by field, and written as one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from urllib.parse import urlencode

from lolat.errors import InputError
from lolat.fitting.intervals import check_coverage
from lolat.graph import Graph
from lolat.readers.generated import BLOCK_KEYS, DEFAULTS, FAMILIES, configured, keys
from lolat.training.cost import BILLINGS
from lolat.training.exchange import Link
from lolat.training.memory import OPTIMIZERS, optimizer_named
from lolat.training.replicas import check_strategy
from lolat.units import shortened
from lolat.web.networks import (
    GeneratedError,
    NetworkAsked,
    generated_network,
    named_network,
    uploaded_network,
)

# ---- What can be typed into the page: each field's name in a link, its words, and what is
# there at first.


@dataclass(frozen=True)
class Field:
    """One field: `name` in the query string, `default` where it is not given, `choices` of a list."""

    name: str
    label: str
    default: str = ""
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    numeric: bool = False


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
    Field("source", "Where the network is from", "keras", choices=SOURCES),
    Field("name", "Name in keras.applications", "ResNet50", "such as ResNet50, VGG16, MobileNetV2"),
    Field("size", "Input size", "", "such as 160 or 160,160,3; empty: the network's own"),
    Field(
        "family",
        "Family",
        "vgg",
        choices=tuple((f, FAMILY_WORDS.get(f, f)) for f in FAMILIES),
    ),
    Field("upload", "File"),
    Field("file_size", "Input size, where the file leaves it open", "", "such as 224 or 3,224,224"),
    Field("samples", "Samples in the data set", "50000", numeric=True),
    Field("epochs", "Epochs", "20", numeric=True),
    Field("batch_size", "Batch on each device", "64", numeric=True),
    Field("optimizer", "Optimizer", "sgd", choices=tuple((o, o) for o in OPTIMIZERS)),
    Field("devices", "Devices", "1", numeric=True),
    Field("compare", "Compare with", "1,2,4,8", "numbers of devices, with commas"),
    Field(
        "strategy",
        "How gradients are exchanged",
        "ring",
        choices=tuple(STRATEGY_WORDS.items()),
    ),
    Field(
        "link_gbps",
        "Link of a device, Gbit/s",
        "",
        "empty: as such devices are linked in one machine, and 10 between machines",
        numeric=True,
    ),
    Field("billing", "Billing", "second", choices=tuple((b, BILLING_WORDS[b]) for b in BILLINGS)),
    Field("coverage", "How sure the interval is to be", "0.9", "above 0 and below 1", numeric=True),
)
FIELDS = {f.name: f for f in _ALL}
"""By name; a model's price and memory, and the keys of generated networks, are named by functions below."""

_NAMES = """
ConvNeXtBase ConvNeXtLarge ConvNeXtSmall ConvNeXtTiny ConvNeXtXLarge DenseNet121 DenseNet169
DenseNet201 EfficientNetB0 EfficientNetB1 EfficientNetB2 EfficientNetB3 EfficientNetB4
EfficientNetB5 EfficientNetB6 EfficientNetB7 EfficientNetV2B0 EfficientNetV2B1 EfficientNetV2B2
EfficientNetV2B3 EfficientNetV2L EfficientNetV2M EfficientNetV2S InceptionResNetV2 InceptionV3
MobileNet MobileNetV2 MobileNetV3Large MobileNetV3Small NASNetLarge NASNetMobile ResNet101
ResNet101V2 ResNet152 ResNet152V2 ResNet50 ResNet50V2 VGG16 VGG19 Xception
"""
APPLICATIONS = tuple(_NAMES.split())
"""What the page offers to choose from, before Keras is there to be asked; any other of its names works."""

_KEY_LABELS = {
    "layers": "Layers by stage",
    "filters": "Filters by stage",
    "hidden": "Dense layers after it",
    "input": "Input size",
    "output": "Classes",
    "small": "Small blocks",
    "input_dropout": "Dropout of the input",
    "dropout": "Dropout",
    "f1": "1x1",
    "f2_in": "1x1 before 3x3",
    "f2_out": "3x3",
    "f3_in": "1x1 before 5x5",
    "f3_out": "5x5",
    "f4_out": "1x1 after the pool",
}
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
    labels = {
        **_KEY_LABELS,
        **({"layers": "Widths", "input": "Features"} if family == "fc" else {}),
    }
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


# ---- asked ----------------------------------------

MOST_DEVICES = 4096
MOST_COMPARED = 16
_WHOLE = re.compile(r"\d{1,3}(?:[, _]\d{3})+|\d+")


@dataclass(frozen=True)
class Chosen:
    """A device model that is ticked: US$ an hour of one device, bytes of its memory; None: not given."""

    key: str
    price: float | None
    memory_bytes: float | None


@dataclass(frozen=True)
class Asked:
    """A whole question. `devices`: how many the answer is for; `compare`: the rows of the table; `link`:
    None where it is to be assumed.
    """

    network: NetworkAsked
    models: tuple[Chosen, ...]
    samples: int
    epochs: int
    batch_size: int
    optimizer: str
    devices: int
    compare: tuple[int, ...]
    strategy: str
    link: Link | None
    billing: str
    coverage: float


class Form:
    """The fields as they were typed; `errors`: field -> what was given, what is expected."""

    def __init__(
        self, given: Iterable[tuple[str, str]], models: Mapping[str, str], optimizer: str = ""
    ) -> None:
        """`given`: (name, text) of a query; `models`: what can be ticked, key -> price at first;
        `optimizer`: the one at first, where it is not the field's default."""
        self.given: dict[str, list[str]] = {}
        for name, text in given:
            self.given.setdefault(name, []).append(text)
        self.known = dict(models)
        self.first = {"optimizer": optimizer} if optimizer else {}
        self.errors: dict[str, str] = {}

    def text(self, name: str, default: str = "") -> str:
        """What a field holds, or what it holds at first."""
        if name in self.given:
            return self.given[name][0].strip()
        if name in self.first:
            return self.first[name]
        return FIELDS[name].default if name in FIELDS else default

    def ticked(self) -> tuple[str, ...]:
        """The keys of the models that are ticked; at first the first one that there is."""
        if "model" in self.given or "asked" in self.given:
            return tuple(dict.fromkeys(self.given.get("model", ())))
        return tuple(self.known)[:1]

    def price(self, key: str) -> str:
        """The price of a device as it was typed, or as it is at first."""
        return self.text(price_name(key), self.known.get(key, ""))

    def asked(self) -> Asked | None:
        """The question, or None where a field is wrong: then `errors` says which."""
        network = self._network()
        models = self._models()
        samples, epochs, batch = (self._whole(n) for n in ("samples", "epochs", "batch_size"))
        if samples and batch and batch > samples:
            self.errors["batch_size"] = (
                f"a batch of {batch} is larger than the data set of {samples} samples; give a smaller "
                "batch, or more samples"
            )
        devices = self._whole("devices", MOST_DEVICES)
        compare = self._compare()
        optimizer, strategy = self.text("optimizer"), self.text("strategy")
        self._check("optimizer", lambda: optimizer_named(optimizer))
        self._check("strategy", lambda: check_strategy(strategy, 1))
        link = self._link()
        billing = self._choice("billing")
        coverage = self._number("coverage")
        if coverage is not None:
            sure = coverage
            self._check("coverage", lambda: check_coverage(sure))
        if network is None or coverage is None or self.errors:
            return None
        if not (samples and epochs and batch and devices):
            return None
        return Asked(
            network, models, samples, epochs, batch, optimizer_named(optimizer).name, devices,
            compare, strategy, link, billing, coverage,
        )  # fmt: skip

    def label(self, name: str) -> str:
        """What a field is called in front of people, with what it is of."""
        if name in FIELDS:
            return FIELDS[name].label
        kind, _, of = name.partition(".")
        own = {f.name: f.label for f in self._family(kind)}
        money = {"price": f"US$ an hour of {of}", "memory": f"Memory of {of}", "model": "Device"}
        return own.get(name) or money.get(kind, name)

    def link(self) -> str:
        """The query string that gives this view again: what matters of the fields, in a fixed order."""
        source = self.text("source")
        of_source = {"keras": ["name", "size"], "upload": ["upload", "file_size"]}
        names = ["source", *of_source.get(source, [])]
        told = [(n, self.text(n)) for n in names]
        if source == "generate":
            family = self.text("family")
            own = [(f.name, self.text(f.name, f.default)) for f in self._family(family)]
            told += [("family", family), *own]
        if not self.ticked():
            told.append(("asked", "1"))  # else the first one would be ticked, as at first
        for key in self.ticked():
            memory = self.text(memory_name(key))
            told += [("model", key), (price_name(key), self.price(key)), (memory_name(key), memory)]
        told += [
            (n, self.text(n))
            for n in ("samples", "epochs", "batch_size", "optimizer", "devices", "compare", "strategy",
                      "link_gbps", "billing", "coverage")
        ]  # fmt: skip
        return urlencode([(n, t) for n, t in told if t or self._at_first(n)], safe=",:")

    def _at_first(self, name: str) -> bool:
        """Whether a field that a link leaves out would not be empty."""
        of = name.partition(".")[0]
        own = {f.name: f.default for f in self._family(of)}
        return of in ("price", "model") or bool(
            own.get(name) or (name in FIELDS and FIELDS[name].default)
        )

    def _family(self, family: str) -> tuple[Field, ...]:
        known = dict(FIELDS["family"].choices)
        return family_fields(family) if family in known else ()

    def _check(self, name: str, check: Callable[[], object]) -> None:
        """Calls a check of the library; what it says becomes the field's."""
        try:
            check()
        except InputError as error:
            self.errors[name] = str(error)

    def _network(self) -> NetworkAsked | None:
        source = self._choice("source")
        if source not in dict(SOURCES):
            return None
        field = {"keras": "name", "generate": "family", "upload": "upload"}[source]
        try:
            if source == "keras":
                field = "size"
                size = as_size(self.text("size"))
                field = "name"
                return named_network(self.text("name"), size)
            if source == "upload":
                return uploaded_network(self.text("upload"), as_size(self.text("file_size")))
            family = self._choice("family")
            if "family" in self.errors:
                return None
            own = family_fields(family)
            given = {f.name.partition(".")[2]: self.text(f.name, f.default) for f in own}
            return generated_network(family, given)
        except InputError as error:
            if isinstance(error, GeneratedError):
                field = f"{self.text('family')}.{error.key}"
            self.errors[field] = str(error)
            return None

    def _models(self) -> tuple[Chosen, ...]:
        found = []
        for key in self.ticked():
            if key not in self.known:
                self.errors["model"] = (
                    f"no model {shortened(key)!r} here that knows of training; tick one of the list"
                )
                continue
            price = self._amount(price_name(key), self.price(key), "a price")
            gib = self._amount(memory_name(key), self.text(memory_name(key)), "an amount of memory")
            if gib == 0:
                self.errors[memory_name(key)] = "'0' GiB hold nothing; give more, or leave it empty"
            found.append(Chosen(key, price, None if gib is None else gib * 2**30))
        if not found and "model" not in self.errors:
            self.errors["model"] = "no device is ticked; tick at least one"
        return tuple(found)

    def _whole(self, name: str, most: int = 10**12) -> int | None:
        written = self.text(name)
        value = int(re.sub(r"[, _]", "", written)) if _WHOLE.fullmatch(written) else 0
        if 1 <= value <= most:
            return value
        given = repr(shortened(written)) if written else "nothing is given"
        limit = f" to {most:,}" if most == MOST_DEVICES else ""
        self.errors[name] = (
            f"{given}; expected a whole number from 1{limit}, such as {FIELDS[name].default}"
        )
        return None

    def _number(self, name: str) -> float | None:
        value = self._amount(name, self.text(name), "a number")
        if value is None and name not in self.errors:
            self.errors[name] = (
                f"nothing is given; expected a number, such as {FIELDS[name].default}"
            )
        return value

    def _amount(self, name: str, written: str, what: str) -> float | None:
        """A number of at least 0; None for an empty field and, with an error, for anything else."""
        if not written:
            return None
        try:
            value = float(written.removeprefix("$").replace(" ", ""))
        except ValueError:
            value = math.nan
        if 0.0 <= value < 1e12:
            return value
        self.errors[name] = (
            f"{shortened(written)!r} is not {what}; expected a number of at least 0, such as 1.5"
        )
        return None

    def _compare(self) -> tuple[int, ...]:
        parts = [p for p in re.split(r"[,\s]+", self.text("compare")) if p]
        found = tuple(dict.fromkeys(int(p) for p in parts if p.isascii() and p.isdigit()))
        wrong = not found or len(parts) != sum(p.isascii() and p.isdigit() for p in parts)
        if wrong or not 1 <= min(found) <= max(found) <= MOST_DEVICES or len(found) > MOST_COMPARED:
            self.errors["compare"] = (
                f"{shortened(self.text('compare'))!r} is no list of numbers of devices; expected at most "
                f"{MOST_COMPARED} whole numbers from 1 to {MOST_DEVICES:,}, such as 1,2,4,8"
            )
            return ()
        return found

    def _link(self) -> Link | None:
        gbps = self._amount("link_gbps", self.text("link_gbps"), "a number")
        if gbps is None:
            return None
        try:
            return Link(gbps)
        except InputError as error:
            self.errors["link_gbps"] = str(error)
            return None

    def _choice(self, name: str) -> str:
        written, known = self.text(name), [value for value, _ in FIELDS[name].choices]
        if written not in known:
            self.errors[name] = (
                f"{shortened(written)!r} is not known; choose one of {', '.join(known)}"
            )
        return written


def as_size(written: str) -> tuple[int, ...]:
    """An input size as it is typed: nothing, 224, or several numbers; InputError for anything else."""
    parts: Sequence[str] = [p for p in re.split(r"[,x\s]+", written) if p]
    whole = all(p.isascii() and p.isdigit() and len(p) < 8 for p in parts)
    found = tuple(int(p) for p in parts) if whole else (0,)
    if not all(found) or len(found) > 6:
        raise InputError(
            f"{shortened(written)!r} is no input size; expected a whole number from 1, such as 224, or "
            "several such as 224,224,3"
        )
    return found


# ---- The network that the page shows first: ResNet-50, counted in advance, so that nothing is
# waited for.


def example() -> tuple[NetworkAsked, Graph]:
    """What the page asks for at first, and its Graph, as `lolat.read("keras:ResNet50")` gives it."""
    text = files("lolat.web").joinpath("example.json").read_text(encoding="utf-8")
    return named_network(FIELDS["name"].default, ()), Graph.from_dict(json.loads(text))
