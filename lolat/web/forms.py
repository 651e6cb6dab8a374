"""The fields of the page: read from its query string, with what is wrong by field, and written as one."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

from lolat.errors import InputError, NetworkError
from lolat.fitting.intervals import check_coverage
from lolat.graph import Graph
from lolat.readers import generated
from lolat.readers.generated import BLOCK_KEYS, DEFAULTS, FAMILIES, configured, keys, wrong
from lolat.training.cost import BILLINGS
from lolat.training.exchange import Link
from lolat.training.memory import OPTIMIZERS, optimizer_named
from lolat.training.replicas import check_strategy
from lolat.units import shortened
from lolat.web.networks import UPLOAD, NetworkKey

# ---- What a text in a field says; InputError where it says nothing of the kind.

MOST_DEVICES = 4096
MOST_COMPARED = 16


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
    try:
        value = float(text.removeprefix("$").replace(" ", ""))
    except ValueError:
        value = math.nan
    if 0.0 <= value < 1e12:
        return value
    raise InputError(
        f"{shortened(text)!r} is not {what}; expected a number of at least 0, such as 1.5"
    )


def device_counts(text: str) -> tuple[int, ...]:
    """Numbers of devices, with commas or spaces between them."""
    parts = [p for p in re.split(r"[,\s]+", text) if p]
    counts = tuple(dict.fromkeys(int(p) for p in parts if re.fullmatch(r"[0-9]{1,9}", p)))
    whole = all(re.fullmatch(r"[0-9]{1,9}", p) for p in parts)
    if (
        whole
        and 0 < len(counts) <= MOST_COMPARED
        and 1 <= min(counts) <= max(counts) <= MOST_DEVICES
    ):
        return counts
    raise InputError(
        f"{shortened(text)!r} is no list of numbers of devices; expected at most {MOST_COMPARED} whole "
        f"numbers from 1 to {MOST_DEVICES:,}, such as 1,2,4,8"
    )


def as_size(text: str) -> tuple[int, ...]:
    """An input size: nothing, 224, or several numbers."""
    parts = [p for p in re.split(r"[,x\s]+", text) if p]
    if len(parts) <= 6 and all(re.fullmatch(r"0*[1-9][0-9]{0,6}", p) for p in parts):
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
    Field("source", "Where the network is from", "keras", choices=SOURCES, parse=one_of(dict(SOURCES))),
    Field("name", "Name in keras.applications", "ResNet50", "such as ResNet50, VGG16, MobileNetV2"),
    Field("size", "Input size", "", "such as 160 or 160,160,3; empty: the network's own"),
    Field("family", "Family", "vgg", choices=tuple((f, FAMILY_WORDS.get(f, f)) for f in FAMILIES),
          parse=one_of(FAMILIES)),
    Field("upload", "File"),
    Field("file_size", "Input size, where the file leaves it open", "", "such as 224 or 3,224,224"),
    Field("samples", "Samples in the data set", "50000", numeric=True, parse=whole("50000")),
    Field("epochs", "Epochs", "20", numeric=True, parse=whole("20")),
    Field("batch_size", "Batch on each device", "64", numeric=True, parse=whole("64")),
    Field("optimizer", "Optimizer", "sgd", choices=tuple((o, o) for o in OPTIMIZERS),
          parse=lambda text: optimizer_named(text).name),
    Field("devices", "Devices", "1", numeric=True, parse=whole("1", MOST_DEVICES)),
    Field("compare", "Compare with", "1,2,4,8", "numbers of devices, with commas", parse=device_counts),
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
RUN = tuple(FIELDS)[tuple(FIELDS).index("samples") :]
"""The fields of how is trained: those of a Question beside its network and models."""

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


# ---- The question that the fields ask.


@dataclass(frozen=True)
class ChosenModel:
    """A device model that is ticked: US$ an hour of one device, bytes of its memory; None: not given."""

    key: str
    price: float | None
    memory_bytes: float | None


@dataclass(frozen=True)
class Question:
    """A whole question. `devices`: how many the answer is for; `compare`: the rows of the table; `link`:
    None where it is to be assumed.
    """

    network: NetworkKey
    models: tuple[ChosenModel, ...]
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


class FieldError(InputError):
    """What was given cannot be; `field` is where."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(message)
        self.field = field


class Form:
    """The fields as they were typed; `errors`: field -> what was given, what is expected."""

    def __init__(
        self, query: Iterable[tuple[str, str]], models: Mapping[str, str], optimizer: str = ""
    ) -> None:
        """`query`: (name, text); `models`: what can be ticked, key -> price at first; `optimizer`: the one
        at first, where it is not the field's default."""
        self.typed: dict[str, str] = {}
        query = list(query)
        for name, text in query:
            self.typed.setdefault(name, text)
        self.prices = dict(models)
        self.first = {n: f.default for n, f in FIELDS.items()}
        self.first |= {price_name(key): price for key, price in models.items()}
        self.first |= {f.name: f.default for own in FAMILIES for f in family_fields(own)}
        self.first |= {"optimizer": optimizer} if optimizer else {}
        self.errors: dict[str, str] = {}
        # At first the first model that there is.
        sent = {"model", "asked"} & self.typed.keys()
        ticked = [t for n, t in query if n == "model"] if sent else list(models)[:1]
        self.ticked = tuple(dict.fromkeys(ticked))

    def text(self, name: str) -> str:
        """What a field holds, or what it holds at first."""
        return self.typed[name].strip() if name in self.typed else self.first.get(name, "")

    def question(self) -> Question | None:
        """The question, or None where a field is wrong: then `errors` says which."""
        network = self._network()
        models = self._models()
        values: dict[str, Any] = {name: self._parsed(name, FIELDS[name].parse) for name in RUN}
        samples, batch = values["samples"], values["batch_size"]
        if samples and batch and batch > samples:
            self.errors["batch_size"] = (
                f"a batch of {batch} is larger than the data set of {samples} samples; give a smaller "
                "batch, or more samples"
            )
        if network is None or self.errors:
            return None
        return Question(network, models, link=values.pop("link_gbps"), **values)

    def label(self, name: str) -> str:
        """What a field is called in front of people, with what it is of."""
        kind, _, of = name.partition(".")
        fields = {f.name: f.label for f in _family(kind)} | {n: f.label for n, f in FIELDS.items()}
        others = {"price": f"US$ an hour of {of}", "memory": f"Memory of {of}", "model": "Device"}
        return fields.get(name) or others.get(kind, name)

    def link(self) -> str:
        """The query string that gives this view again: what matters of the fields, in a fixed order."""
        family = self.text("family")
        of_source = {
            "keras": ["name", "size"],
            "upload": ["upload", "file_size"],
            "generate": ["family", *(f.name for f in _family(family))],
        }
        pairs = [(n, self.text(n)) for n in ("source", *of_source.get(self.text("source"), ()))]
        if not self.ticked:
            pairs.append(("asked", "1"))  # else the first one would be ticked, as at first
        for key in self.ticked:
            names = price_name(key), memory_name(key)
            pairs += [("model", key), *((n, self.text(n)) for n in names)]
        pairs += [(n, self.text(n)) for n in RUN]
        # An empty field is left out where it is empty at first.
        return urlencode([(n, t) for n, t in pairs if t or n == "model" or self.first.get(n)
                          or n.startswith("price.")], safe=",:")  # fmt: skip

    def _parsed(self, name: str, parse: Callable[[str], Any]) -> Any:
        """What `parse` makes of a field's text; None and an error at the field where it refuses."""
        try:
            return parse(self.text(name))
        except InputError as error:
            self.errors[error.field if isinstance(error, FieldError) else name] = str(error)
            return None

    def _network(self) -> NetworkKey | None:
        match self._parsed("source", FIELDS["source"].parse):
            case "keras":
                size, spec = self._parsed("size", as_size), self._parsed("name", keras_spec)
            case "upload":
                size, spec = self._parsed("file_size", as_size), self._parsed("upload", upload_spec)
            case "generate":
                size, spec = (), self._parsed("family", self._generated)
            case _:
                return None
        return None if size is None or spec is None else NetworkKey(spec, size)

    def _generated(self, family: str) -> str:
        """The spec of a generated network from what is typed for its keys; FieldError at one of them."""
        FIELDS["family"].parse(family)
        typed = {key: re.sub(r"\s+", "", self.text(f"{family}.{key}")) for key in keys(family)}
        try:
            for key, text in typed.items():
                if not re.fullmatch(r"[\w.,]*", text, re.ASCII):  # `&` and `=` would be other keys
                    raise wrong(family, key, self.text(f"{family}.{key}"))
            options = "&".join(f"{key}={text}" for key, text in typed.items() if text)
            return generated.text(generated.parse(f"{generated.PREFIX}{family}?{options}"))
        except NetworkError as error:
            reason = str(error).partition(": ")[2] or str(error)
            longest_first = "|".join(sorted(typed, key=len, reverse=True))
            named = re.search(rf"\b({longest_first})\b", reason)
            key = named[1] if named else keys(family)[0]
            raise FieldError(f"{family}.{key}", reason) from error

    def _models(self) -> tuple[ChosenModel, ...]:
        models = []
        for key in self.ticked:
            if key not in self.prices:
                self.errors["model"] = (
                    f"no model {shortened(key)!r} here that knows of training; tick one of the list"
                )
                continue
            price = self._parsed(price_name(key), lambda t: amount(t, "a price"))
            memory = self._parsed(memory_name(key), _memory_bytes)
            models.append(ChosenModel(key, price, memory))
        if not self.ticked:
            self.errors["model"] = "no device is ticked; tick at least one"
        return tuple(models)


def _family(family: str) -> tuple[Field, ...]:
    return family_fields(family) if family in FAMILIES else ()


def _memory_bytes(text: str) -> float | None:
    gib = amount(text, "an amount of memory")
    if gib == 0:
        raise InputError("'0' GiB hold nothing; give more, or leave it empty")
    return None if gib is None else gib * 2**30


def keras_spec(name: str) -> str:
    """A network of keras.applications; whether there is one of that name is for Keras to say."""
    name = name.removeprefix("keras:")
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9]{0,63}", name):
        given = f"{shortened(name)!r} is no name of a network" if name else "no name is given"
        raise InputError(
            f"{given}; expected one of keras.applications, such as ResNet50; a file is given under "
            '"From a file"'
        )
    return f"keras:{name}"


def upload_spec(digest: str) -> str:
    """A file that was given to the page, by its SHA-256."""
    digest = digest.removeprefix(UPLOAD)
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise InputError("no file has been given yet; choose a .keras or .onnx file and send it")
    return UPLOAD + digest


def example() -> tuple[NetworkKey, Graph]:
    """What the page shows first, ResNet-50, counted in advance, so that nothing is waited for: its Graph is
    that of `lolat.read("keras:ResNet50")`."""
    text = files("lolat.web").joinpath("example.json").read_text(encoding="utf-8")
    return NetworkKey(keras_spec(FIELDS["name"].default)), Graph.from_dict(json.loads(text))
