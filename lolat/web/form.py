"""The page's form: its fields, what their texts say, the question, the link that asks it again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

from lolat.errors import InputError, LolatError
from lolat.model.budget import MOST_BATCH, VARY
from lolat.readers.children import ENDINGS
from lolat.training.iteration import OPTIMIZERS
from lolat.units import as_number, plain, shortened
from lolat.web.devices import YOURS, DeviceModel
from lolat.web.networks import UPLOAD, NetworkKey

# ---- The value of a text in a field; InputError where it has none.

MOST_DEVICES = 4096
MOST_COMPARED = 16
MOST_BATCHES = 8
NETWORK = re.compile(r"((keras|timm|torchvision):)?[A-Za-z][\w.-]{0,99}", re.ASCII)


@dataclass(frozen=True)
class Numbers:
    """Reads the numbers of a field: whole ones, or any, from `least` to `most`.

    `fewest`, `longest`: how many there may be, with commas or spaces between them. Where `longest` is 1 the
    value is the number, or None of an empty field; else it is a tuple, in which a number may be twice only
    where it `repeats`.
    """

    least: float = 1
    most: float = 10**12
    whole: bool = True
    fewest: int = 1
    longest: int = 1
    repeats: bool = False

    def __call__(self, text: str) -> Any:
        """The value of a text."""
        values = [as_number(word) for word in re.findall(r"[^,\s]+", text)]
        is_right = all(
            self.least <= v <= self.most and (v.is_integer() or not self.whole) for v in values
        )
        if not is_right or not self.fewest <= len(values) <= self.longest:
            given = repr(shortened(text)) if text else "nothing is given"
            one = "a whole number" if self.whole else "a number"
            several = f"{one}, or up to {self.longest} of them," if self.longest > 1 else one
            raise InputError(f"{given}; expected {several} from {self.least:,g} to {self.most:,g}")
        numbers = tuple(map(int, values)) if self.whole else tuple(values)
        if self.longest > 1:
            return numbers if self.repeats else tuple(dict.fromkeys(numbers))
        return numbers[0] if numbers else None


SIZES = Numbers(most=10**7, fewest=0, longest=6, repeats=True)
PRICE = Numbers(least=0, whole=False, fewest=0)
MEMORY_GIB = Numbers(least=0.001, whole=False, fewest=0)


def spec_of(name: str) -> str:
    """NETWORK of a name: of keras.applications where it does not say of what. Whether there is one of that
    name is for the package to say."""
    if not NETWORK.fullmatch(name):
        given = f"{shortened(name)!r} is no name of a network" if name else "no name is given"
        raise InputError(
            f"{given}; expected one of keras.applications, such as ResNet50, timm:NAME or "
            'torchvision:NAME; a file is given under "From a file"'
        )
    return name if ":" in name else f"keras:{name}"


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
    parse: Callable[[str], Any] | None = None

    @property
    def numbers(self) -> int:
        """How many numbers it holds at most; 0 of a field of words."""
        return self.parse.longest if isinstance(self.parse, Numbers) else 0

    def value(self, text: str) -> Any:
        """The value of a text in it; InputError where it has none, or is none of `choices`."""
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

_ALL = (
    Field("view", "Question", "latency", choices=tuple(VIEWS.items())),
    Field("source", "Where the network is from", "keras", choices=SOURCES),
    Field("name", "Name", "ResNet50",
          "type to search; of keras.applications, or with timm: or torchvision: before it",
          parse=spec_of),
    Field("size", "Input size", "", "such as 160 or 160,160,3; empty: the network's own",
          parse=SIZES),
    Field("upload", "File", parse=upload_spec),
    Field("file_size", "Input size, where the file leaves it open", "", "such as 224 or 3,224,224",
          parse=SIZES),
    Field("batch", "Batch sizes", "1", "samples at once; several with commas: 1,8,32",
          parse=Numbers(most=MOST_BATCH, longest=MOST_BATCHES)),
    Field("max_ms", "At most, ms", "15", parse=Numbers(least=1e-6, whole=False)),
    Field("vary", "What may change", "width", choices=tuple((v, VARY_WORDS[v]) for v in VARY)),
    Field("sure", "Sure to stay within it, %", "",
          "empty: the predicted time counts; 90: the upper end of the 90 % interval does",
          parse=Numbers(most=99.9, whole=False, fewest=0)),
    Field("at_batch", "Batch size", "1", "samples at once", parse=Numbers(most=MOST_BATCH)),
    Field("samples", "Samples in the data set", "50000", parse=Numbers()),
    Field("epochs", "Epochs", "20", parse=Numbers()),
    Field("batch_size", "Batch on each device", "64", parse=Numbers()),
    Field("optimizer", "Optimizer", "sgd", choices=tuple((o, o) for o in OPTIMIZERS)),
    Field("devices", "Devices", "1", parse=Numbers(most=MOST_DEVICES)),
    Field("compare", "Compare with", "1,2,4,8", "numbers of devices, with commas",
          parse=Numbers(most=MOST_DEVICES, longest=MOST_COMPARED)),
    Field("link_gbps", "Link of a device, Gbit/s", "",
          "empty: as such devices are linked in one machine, and 10 between machines",
          parse=Numbers(least=0.001, whole=False, fewest=0)),
    Field("coverage", "How sure the interval is to be", "0.9", "above 0 and below 1",
          parse=Numbers(least=0.01, most=0.999, whole=False)),
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
    """A device model that is ticked: US$ an hour of one device, GiB of its memory; None: not given."""

    key: str
    price: float | None
    memory_gib: float | None


class Question(SimpleNamespace):
    """The question of a tab: the value of each field of OF_VIEW under the field's name.

    Of a budget `sure`, in percent, is None where the predicted time counts. Of training `devices` is how
    many the answer is for, `compare` the rows of the table, and `link_gbps` None where the link is to be
    assumed.
    """

    network: NetworkKey
    models: tuple[ChosenModel, ...]


class Form:
    """The fields as they were typed; `errors`: field -> the text, and what is expected."""

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
        """The value of a field; None, and an error at the field, where its text has none."""
        try:
            return (parse or FIELDS[name].value)(self.text(name))
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
            price = memory_gib = None
            if self.view == "training":  # the other tabs do not show these fields
                price = self._parsed(f"price.{key}", PRICE)
                memory_gib = self._parsed(f"memory.{key}", MEMORY_GIB)
            models.append(ChosenModel(key, price, memory_gib))
        if not 0 < len(self.ticked) <= MOST_TICKED:
            given = f"{len(self.ticked)} devices are" if self.ticked else "no device is"
            self.errors["model"] = f"{given} ticked; tick 1 to {MOST_TICKED}"
        return tuple(models)


def options(values: Mapping[str, str]) -> list[str]:
    """Fields as options of a command, without those that are as at first."""
    chosen = {name: text for name, text in values.items() if text != FIELDS[name].default}
    return [word for n, text in chosen.items() for word in ("--" + n.replace("_", "-"), text)]
