"""The page's form: its fields, what their texts say, the question, the link that asks it again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

from lolat.errors import InputError, LolatError
from lolat.fitting.intervals import check_coverage
from lolat.model.budget import MOST_BATCH, VARY
from lolat.readers.apart import ENDINGS
from lolat.training.exchange import check_strategy
from lolat.training.iteration import OPTIMIZERS, optimizer_named
from lolat.training.link import Link
from lolat.units import as_number, plain, shortened
from lolat.web.devices import YOURS, DeviceModel
from lolat.web.networks import UPLOAD, NetworkKey

# ---- What a text in a field says; InputError where it says nothing of the kind.

MOST_DEVICES = 4096
MOST_COMPARED = 16
MOST_BATCHES = 8
PACKAGES = ("", "keras", "timm", "torchvision")


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
        if parts and all(re.fullmatch(r"[0-9]{1,9}", p) for p in parts):
            found = tuple(dict.fromkeys(map(int, parts)))
            if len(found) <= longest and 1 <= min(found) <= max(found) <= most:
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
    check_strategy(text)
    return text


def _link(text: str) -> float | None:
    gbps = amount(text)
    return None if gbps is None else Link(gbps).gbps


def _coverage(text: str) -> float:
    value = amount(text)
    if value is None:
        raise InputError("nothing is given; expected a number, such as 0.9")
    check_coverage(value)
    return value


def spec_of(name: str) -> str:
    """NETWORK of a name: of keras.applications where it does not say of what. Whether there is one of that
    name is for the package to say."""
    package, _, own = name.rpartition(":")
    made = package == "generate" and re.fullmatch(r"\w+(\?[\w=&,.-]{0,500})?", own, re.ASCII)
    named = package in PACKAGES and re.fullmatch(r"[A-Za-z][\w.-]{0,99}", own, re.ASCII)
    if not (made or named):
        given = f"{shortened(name)!r} is no name of a network" if name else "no name is given"
        raise InputError(
            f"{given}; expected one of keras.applications, such as ResNet50, timm:NAME, torchvision:NAME "
            'or generate:vgg?layers=2,2; a file is given under "From a file"'
        )
    return f"{package or 'keras'}:{own}"


def upload_spec(digest: str) -> str:
    """A file that was given to the page, by its SHA-256."""
    digest = digest.removeprefix(UPLOAD)
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise InputError(
            f"no file has been given yet; choose one of {', '.join(ENDINGS)} and send it"
        )
    return UPLOAD + digest


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
    parse: Callable[[str], Any] | None = None

    def says(self, text: str) -> Any:
        """What a text in it says; InputError where that is nothing of the kind, or none of `choices`."""
        if self.parse is not None:
            return self.parse(text)
        known = dict(self.choices)
        if text not in known:
            raise InputError(f"{shortened(text)!r} is not known; choose one of {', '.join(known)}")
        return text


VIEWS = {"latency": "Latency", "budget": "What fits", "training": "Training and cost"}
"""The tabs of the page."""
VARY_WORDS = {
    "width": "width: channels of every layer",
    "resolution": "input size",
    "batch": "batch size",
}
SOURCES = (("keras", "By name"), ("upload", "From a file"))
STRATEGY_WORDS = {
    "ring": "ring all-reduce",
    "tree": "tree all-reduce",
    "one-to-all": "one device gathers and sends",
    "mirrored": "MirroredStrategy",
}

_ALL = (
    Field("view", "Question", "latency", choices=tuple(VIEWS.items())),
    Field("source", "Where the network is from", "keras", choices=SOURCES),
    Field("name", "Name", "ResNet50",
          "type to search; of keras.applications, or with timm:, torchvision: or generate: before it",
          parse=spec_of),
    Field("size", "Input size", "", "such as 160 or 160,160,3; empty: the network's own",
          parse=as_size),
    Field("upload", "File", parse=upload_spec),
    Field("file_size", "Input size, where the file leaves it open", "", "such as 224 or 3,224,224",
          parse=as_size),
    Field("batch", "Batch sizes", "1", "samples at once; several with commas: 1,8,32", numeric=True,
          parse=wholes("batch sizes", MOST_BATCHES, MOST_BATCH, "1,8,32")),
    Field("max_ms", "At most, ms", "15", numeric=True, parse=_budget),
    Field("vary", "What may change", "width", choices=tuple((v, VARY_WORDS[v]) for v in VARY)),
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
    Field("coverage", "How sure the interval is to be", "0.9", "above 0 and below 1", numeric=True,
          parse=_coverage),
)  # fmt: skip
FIELDS = {f.name: f for f in _ALL}
"""By name; there are also `price.KEY`, US$ an hour of one device of a model, and `memory.KEY`, its GiB."""
OF_SOURCE = {"keras": ("name", "size"), "upload": ("upload", "file_size")}
OF_VIEW = {
    "latency": ("batch",),
    "budget": ("vary", "max_ms", "sure", "at_batch"),
    "training": tuple(FIELDS)[tuple(FIELDS).index("samples") :],
}
"""The fields that only matter for one source of the network, and in one tab."""


# ---- The question.

EXAMPLES = ("epyc-2t", "rtx-4090-amp")
"""Shipped models that are ticked at first where none was given or learned here: a CPU and a GPU."""
MOST_TICKED = 6


@dataclass(frozen=True)
class ChosenModel:
    """A device model that is ticked: US$ an hour of one device, bytes of its memory; None: not given."""

    key: str
    price: float | None
    memory_bytes: float | None


class Question(SimpleNamespace):
    """What is asked in a tab; what each field of OF_VIEW says is there under the field's name.

    Of a budget `sure` is None where the predicted time counts; of training `devices` is how many the answer
    is for, `compare` the rows of the table, and `link_gbps` None where the link is to be assumed.
    """

    network: NetworkKey
    models: tuple[ChosenModel, ...]


class Form:
    """The fields as they were typed; `errors`: field -> what was given, what is expected."""

    def __init__(
        self,
        query: Iterable[tuple[str, str]],
        devices: Sequence[DeviceModel] = (),
        first: Mapping[str, str] | None = None,
    ) -> None:
        """`query`: (name, text); `devices`: what can be ticked; `first`: what fields hold at first, where
        that depends on the devices: prices, the optimizer."""
        self.typed: dict[str, str] = {}
        query = list(query)
        for name, text in query:
            self.typed.setdefault(name, text)
        self.devices = {d.key: d for d in devices}
        self.first = {n: f.default for n, f in FIELDS.items()}
        self.first |= first or {}
        self.errors: dict[str, str] = {}
        self.view = self.text("view") if self.text("view") in VIEWS else "latency"
        sent = {"model", "asked"} & self.typed.keys()
        ticked = [t for n, t in query if n == "model"] if sent else self._at_first()
        self.ticked = tuple(dict.fromkeys(ticked))

    def _at_first(self) -> list[str]:
        """The model that somebody gave or learned here, or else the examples, or the first there is."""
        able = [d for d in self.devices.values() if d.answers(self.view)]
        examples = [d.key for d in able if d.key in EXAMPLES]
        return (
            [d.key for d in able[:1]]
            if able and (able[0].group == YOURS or not examples)
            else examples
        )

    def text(self, name: str) -> str:
        """What a field holds, or what it holds at first."""
        return self.typed[name].strip() if name in self.typed else self.first.get(name, "")

    def question(self) -> Question | None:
        """The question, or None where a field is wrong: then `errors` says which."""
        view = self._parsed("view")
        network, models = self._network(), self._models()
        values = {name: self._parsed(name) for name in OF_VIEW.get(view, ())}
        samples, batch = values.get("samples"), values.get("batch_size")
        if samples and batch and batch > samples:
            self.errors["batch_size"] = (
                f"a batch of {batch} is larger than the data set of {samples} samples; give a smaller "
                "batch, or more samples"
            )
        if network is None or self.errors:
            return None
        return Question(network=network, models=models, **values)

    def label(self, name: str) -> str:
        """What a field is called in front of people, with what it is of."""
        kind, _, of = name.partition(".")
        fields = {n: f.label for n, f in FIELDS.items()}
        others = {"price": f"US$ an hour of {of}", "memory": f"Memory of {of}", "model": "Device"}
        return fields.get(name) or others.get(kind, name)

    def field_of(self, argument: str) -> str:
        """The field of a Python argument; its own name where the page has none."""
        batch = {"latency": "batch", "budget": "at_batch"}.get(self.view, "batch_size")
        size = OF_SOURCE.get(self.text("source"), OF_SOURCE["keras"])[1]
        return {"batch_size": batch, "input_size": size, "replicas": "devices"}.get(
            argument, argument
        )

    def words(self, error: LolatError) -> str:
        """An error with the labels of fields in Python's arguments' place."""

        def labeled(argument: str) -> str:
            field = FIELDS.get(self.field_of(argument))
            return argument if field is None else f'"{field.label}"'

        return plain(error.worded(labeled))

    def field_at_fault(self, error: LolatError) -> str:
        """The field that an error is about: the one that it says, the first argument's, the network's."""
        network = "upload" if self.text("source") == "upload" else "name"
        named = filter(FIELDS.__contains__, map(self.field_of, error.arguments))
        return str(error.data.get("field") or next(named, network))

    def link(self) -> str:
        """The query string that gives this view again: what matters of the fields, in a fixed order."""
        names = ["view", "source", *OF_SOURCE.get(self.text("source"), ())]
        pairs = [(n, self.text(n)) for n in names]
        if not self.ticked:
            pairs.append(("asked", "1"))  # else the first one would be ticked, as at first
        for key in self.ticked:
            pairs.append(("model", key))
            if self.view == "training":
                pairs += [(n, self.text(n)) for n in (f"price.{key}", f"memory.{key}")]
        pairs += [(n, self.text(n)) for n in OF_VIEW[self.view]]
        # An empty field is left out where it is empty at first.
        return urlencode([(n, t) for n, t in pairs if t or n == "model" or self.first.get(n)
                          or n.startswith("price.")], safe=",:")  # fmt: skip

    def _parsed(self, name: str, parse: Callable[[str], Any] | None = None) -> Any:
        """What a field's text says; None and an error at the field where it says nothing of the kind."""
        try:
            return (parse or FIELDS[name].says)(self.text(name))
        except InputError as error:
            self.errors[name] = self.words(error)
            return None

    def _network(self) -> NetworkKey | None:
        source = self._parsed("source")
        if source is None:
            return None
        spec_field, size_field = OF_SOURCE[source]
        size, spec = self._parsed(size_field), self._parsed(spec_field)
        return None if size is None or spec is None else NetworkKey(spec, size)

    def _models(self) -> tuple[ChosenModel, ...]:
        models = []
        for key in self.ticked:
            if key not in self.devices:
                self.errors["model"] = f"no model {shortened(key)!r} here; tick one of the list"
                continue
            price = memory = None
            if self.view == "training":  # the other tabs do not show these fields
                price = self._parsed(f"price.{key}", lambda t: amount(t, "a price"))
                memory = self._parsed(f"memory.{key}", _memory_bytes)
            models.append(ChosenModel(key, price, memory))
        if not 0 < len(self.ticked) <= MOST_TICKED:
            given = f"{len(self.ticked)} devices are" if self.ticked else "no device is"
            self.errors["model"] = f"{given} ticked; tick 1 to {MOST_TICKED}"
        return tuple(models)


def _memory_bytes(text: str) -> float | None:
    gib = amount(text, "an amount of memory")
    if gib == 0:
        raise InputError("'0' GiB hold nothing; give more, or leave it empty")
    return None if gib is None else gib * 2**30


def options(values: Mapping[str, str]) -> list[str]:
    """Fields as options of a command, without those that are as at first."""
    chosen = {name: text for name, text in values.items() if text != FIELDS[name].default}
    return [word for n, text in chosen.items() for word in ("--" + n.replace("_", "-"), text)]
