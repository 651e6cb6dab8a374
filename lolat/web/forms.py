"""The question that the page's fields ask, with what is wrong by field, and the link that asks it again."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from lolat.errors import InputError, NetworkError
from lolat.readers import generated
from lolat.readers.apart import ENDINGS
from lolat.readers.generated import FAMILIES, keys, wrong
from lolat.training.exchange import Link
from lolat.units import shortened
from lolat.web.devices import DeviceModel
from lolat.web.fields import (
    FIELDS,
    OF_VIEW,
    VIEWS,
    Field,
    amount,
    as_size,
    family_fields,
    memory_name,
    price_name,
)
from lolat.web.networks import UPLOAD, NetworkKey

EXAMPLES = ("epyc-2t", "rtx-4090-amp")
"""Shipped models that are ticked at first where none was given or learned here: a CPU and a GPU."""
MOST_TICKED = 6
PACKAGES = ("", "keras", "timm", "torchvision")


@dataclass(frozen=True)
class LatencyQuestion:
    """How long one forward pass takes on each model, at each batch size."""

    network: NetworkKey
    models: tuple[str, ...]
    batch: tuple[int, ...]


@dataclass(frozen=True)
class BudgetQuestion:
    """The most of what may `vary` that stays within a time; `sure`: see `Question` of
    `lolat.model.budget`, None where the predicted time counts.
    """

    network: NetworkKey
    models: tuple[str, ...]
    max_ms: float
    vary: str
    sure: float | None
    at_batch: int


@dataclass(frozen=True)
class ChosenModel:
    """A device model that is ticked: US$ an hour of one device, bytes of its memory; None: not given."""

    key: str
    price: float | None
    memory_bytes: float | None


@dataclass(frozen=True)
class TrainingQuestion:
    """How long training takes and what it costs. `devices`: how many the answer is for; `compare`: the rows
    of the table; `link`: None where it is to be assumed.
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
        self.first |= {f.name: f.default for own in FAMILIES for f in family_fields(own)}
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
        return [d.key for d in able[:1]] if able and (able[0].own or not examples) else examples

    def text(self, name: str) -> str:
        """What a field holds, or what it holds at first."""
        return self.typed[name].strip() if name in self.typed else self.first.get(name, "")

    def question(self) -> LatencyQuestion | BudgetQuestion | TrainingQuestion | None:
        """The question, or None where a field is wrong: then `errors` says which."""
        view = self._parsed("view", FIELDS["view"].parse)
        network, models = self._network(), self._models()
        names = OF_VIEW.get(view, ())
        values: dict[str, Any] = {name: self._parsed(name, FIELDS[name].parse) for name in names}
        if view == "training":
            samples, batch = values["samples"], values["batch_size"]
            if samples and batch and batch > samples:
                self.errors["batch_size"] = (
                    f"a batch of {batch} is larger than the data set of {samples} samples; give a "
                    "smaller batch, or more samples"
                )
        if network is None or self.errors:
            return None
        if view == "training":
            return TrainingQuestion(network, models, link=values.pop("link_gbps"), **values)
        plain = tuple(m.key for m in models)
        made = LatencyQuestion if view == "latency" else BudgetQuestion
        return made(network, plain, **values)

    def label(self, name: str) -> str:
        """What a field is called in front of people, with what it is of."""
        kind, _, of = name.partition(".")
        fields = {f.name: f.label for f in _family(kind)} | {n: f.label for n, f in FIELDS.items()}
        others = {"price": f"US$ an hour of {of}", "memory": f"Memory of {of}", "model": "Device"}
        return fields.get(name) or others.get(kind, name)

    def link(self, **other: str) -> str:
        """The query string that gives this view again: what matters of the fields, in a fixed order;
        `other`: fields that hold another text there."""
        family = self.text("family")
        of_source = {
            "keras": ["name", "size"],
            "upload": ["upload", "file_size"],
            "generate": ["family", *(f.name for f in _family(family))],
        }
        pairs = [
            (n, self.text(n)) for n in ("view", "source", *of_source.get(self.text("source"), ()))
        ]
        if not self.ticked:
            pairs.append(("asked", "1"))  # else the first one would be ticked, as at first
        for key in self.ticked:
            pairs.append(("model", key))
            if self.view == "training":
                pairs += [(n, self.text(n)) for n in (price_name(key), memory_name(key))]
        pairs += [(n, other.get(n, self.text(n))) for n in OF_VIEW[self.view]]
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
                size, spec = self._parsed("size", as_size), self._parsed("name", spec_of)
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
            if key not in self.devices:
                self.errors["model"] = f"no model {shortened(key)!r} here; tick one of the list"
                continue
            price = memory = None
            if self.view == "training":  # the other tabs do not show these fields
                price = self._parsed(price_name(key), lambda t: amount(t, "a price"))
                memory = self._parsed(memory_name(key), _memory_bytes)
            models.append(ChosenModel(key, price, memory))
        if not 0 < len(self.ticked) <= MOST_TICKED:
            given = f"{len(self.ticked)} devices are" if self.ticked else "no device is"
            self.errors["model"] = f"{given} ticked; tick 1 to {MOST_TICKED}"
        return tuple(models)


def _family(family: str) -> tuple[Field, ...]:
    return family_fields(family) if family in FAMILIES else ()


def _memory_bytes(text: str) -> float | None:
    gib = amount(text, "an amount of memory")
    if gib == 0:
        raise InputError("'0' GiB hold nothing; give more, or leave it empty")
    return None if gib is None else gib * 2**30


def spec_of(name: str) -> str:
    """NETWORK of a name: of keras.applications where it does not say of what. Whether there is one of that
    name is for the package to say."""
    package, _, own = name.rpartition(":")
    if not re.fullmatch(r"[A-Za-z][\w.-]{0,99}", own, re.ASCII) or package not in PACKAGES:
        given = f"{shortened(name)!r} is no name of a network" if name else "no name is given"
        raise InputError(
            f"{given}; expected one of keras.applications, such as ResNet50, or timm:NAME or "
            'torchvision:NAME; a file is given under "From a file"'
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
