"""Base classes of answers, their JSON form, and remarks on answers."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, ClassVar, Self

from msgspec import UNSET

from lolat.errors import LolatError
from lolat.parameters import in_python

VERSION = 1
"""The version of JSON answers. It rises if programs that read the old form would misread the new form."""


class Result:
    """Base class of all answers: frozen dataclasses that a notebook shows as tables."""

    # A subclass has `repr=False` and `words`; its JSON: see `keys`.

    __slots__ = ()
    _view: ClassVar[Any] = None
    """Makes tables and pictures for a notebook; set by `lolat.api`, because io must not import it."""

    def words(self) -> str:
        """The answer in one line or two, as its `repr` shows it."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """The answer as plain data, ready for JSON: dicts with text keys, lists, text and numbers."""
        return dict_of(self)

    def rows(self) -> list[dict[str, Any]]:
        """The answer as rows for `pandas.DataFrame(answer.rows())`; one row if it is not a table."""
        return [self.to_dict()]

    def frame(self) -> Any:
        """The main columns of the answer as a pandas DataFrame, named as in the report; `rows()` has all.

        It has a row for each block, device, batch size or load. Column `device` is the name that was asked
        for, `profile` the name of the profile that answered; `load` takes both. MissingPackageError without
        pandas.
        """
        return self._shown().frame(self)

    def report(self) -> str:
        """The text that the command prints; for a prediction the text of `lolat report`."""
        return str(self._shown().report(self))

    def plot(self, ax: Any = None) -> Any:
        """Draw the answer on matplotlib axes `ax` (None: new axes), and return the axes.

        Blocks become bars of their causes, batch sizes and loads curves with intervals, costs dollars over
        hours. InputError for an answer without a picture, MissingPackageError without matplotlib.
        """
        return self._shown().plot(self, ax)

    def _repr_html_(self) -> str:
        """The terminal's tables as HTML, for a notebook."""
        html: str = self._shown().html(self)
        return html

    def _shown(self) -> Any:
        return type(self)._view()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {in_python(self.words())}>"


class Several(Result):
    """A sequence of answers to one question, such as one for each batch size; a slice is a sequence too."""

    KEYS: ClassVar[tuple[str, ...]] = ("answers",)
    answers: tuple[Any, ...]

    def __getitem__(self, index: int | slice) -> Any:
        return self._of(self.answers[index]) if isinstance(index, slice) else self.answers[index]

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError; if each answer has the attribute, the message says how to get it."""
        answers = () if name.startswith("_") or name == "answers" else self.answers
        if any(hasattr(type(one), name) or name in vars(one) for one in answers):
            own = f"several answers; expected [one.{name} for one in found]"
            raise AttributeError(f"{type(self).__name__} has no {name!r}: it has {own}")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def filter(self, keep: Callable[[Any], Any]) -> Self:
        """A result with the answers for which `keep` is true: `found.filter(lambda one: one.fits)`."""
        return self._of(filter(keep, self.answers))

    def _of(self, answers: Iterable[Any]) -> Self:
        return replace(self, answers=tuple(answers))  # type: ignore[type-var]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    def words(self) -> str:
        """The words of all answers, one answer per line."""
        return "\n".join(answer.words() for answer in self.answers)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of all answers."""
        return [row for answer in self.answers for row in answer.rows()]


def keys(kind: type) -> dict[str, str]:
    """JSON key -> path of the attribute, for the answers of a dataclass.

    The keys are the fields with `repr`, or the entries of KEYS: an attribute ("blocks"), a nested attribute
    ("prediction.network", whose key is "network"), or an attribute under another key ("link=link_name").
    """
    paths = getattr(kind, "KEYS", None) or [field.name for field in fields(kind) if field.repr]
    parts = [path.rpartition("=") for path in paths]
    return {key or path.rpartition(".")[2]: path for key, _, path in parts}


def nested(prefix: str, *names: str) -> tuple[str, ...]:
    """Entries of KEYS for nested attributes: nested("link", "gbps") is ("link.gbps",).

    A name may have another key in front: "rate=gbps" becomes "rate=link.gbps".
    """
    parts = [name.rpartition("=") for name in names]
    return tuple(f"{key}{sign}{prefix}.{path}" for key, sign, path in parts)


def answers_of(found: Any) -> Sequence[Any]:
    """The answers of a `Several`, or a single answer as a tuple."""
    return getattr(found, "answers", (found,))


def dict_of(value: Any) -> dict[str, Any]:
    """A dataclass as a dict with the keys of `keys`, without UNSET attributes."""
    values = {key: operator.attrgetter(path)(value) for key, path in keys(type(value)).items()}
    return {key: plain_data(one) for key, one in values.items() if one is not UNSET}


def plain_data(value: Any) -> Any:
    """`value` with dataclasses and mappings converted to dicts, and sequences to lists."""
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if is_dataclass(value):
        return dict_of(value)
    if isinstance(value, Mapping):
        return {str(key): plain_data(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain_data(item) for item in value]
    return value


def json_text(kind: str, answer: Mapping[str, Any]) -> str:
    """An answer as strict JSON on one line, with its schema, `lolat-KIND`, and version in front.

    LolatError for a value that JSON cannot represent, such as NaN.
    """
    document = {"schema": f"lolat-{kind}", "version": VERSION, **answer}
    try:
        return json.dumps(document, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise LolatError(
            f"the answer cannot be written as JSON ({error}); expected finite numbers: ask without "
            "JSON, and report it as a defect"
        ) from error


# ---- Remarks


class Figure:
    """A number in a remark, or the range of this number over several answers; `form` formats a number."""

    def __init__(self, form: Callable[[Any], str], *values: float) -> None:
        self.form, self.ends = form, (min(values), max(values))

    def __str__(self) -> str:
        return " to ".join(dict.fromkeys(map(self.form, self.ends)))


class Remark(str):
    """A remark on an answer as text: a topic and, after a colon, figures of this answer.

    On several answers, remarks with the same topic are shown as one remark.
    """

    topic: str
    template: str
    values: dict[str, Figure | str]

    def __new__(cls, topic: str, template: str, **values: Figure | str) -> Self:
        """Make the text "topic: template"; `values`, if any, replace each `{name}` in the template."""
        remark = super().__new__(
            cls, f"{topic}: {template.format(**values) if values else template}"
        )
        remark.topic, remark.template, remark.values = topic, template, values
        return remark

    def __getnewargs_ex__(self) -> tuple[tuple[str, str], dict[str, Figure | str]]:
        """The arguments of `__new__`, for `pickle` and `copy`."""
        return (self.topic, self.template), self.values

    @property
    def key(self) -> tuple[str, ...]:
        """The words without numbers; equal for remarks that differ only in their numbers."""
        return self.topic, self.template, *(t for t in self.values.values() if isinstance(t, str))


def topic(remark: str) -> str:
    """The topic of a remark; a plain text is its own topic."""
    return remark.topic if isinstance(remark, Remark) else remark


def wording(remark: str) -> Hashable:
    """The words of a remark without numbers; a plain text is its own."""
    return remark.key if isinstance(remark, Remark) else remark


def in_one(remarks: Iterable[str]) -> list[str]:
    """Merge remarks that differ only in their numbers into one with ranges: "0.91 to 0.94 times"."""
    each: dict[Any, list[Any]] = {}
    for remark in remarks:
        each.setdefault(wording(remark), []).append(remark)
    return [_ranged(alike) if len({*alike}) > 1 else alike[0] for alike in each.values()]


def _ranged(alike: Sequence[Remark]) -> Remark:
    """One remark for several that differ only in numbers, with the range of each number."""
    values = dict(alike[0].values)
    for name, value in values.items():
        if isinstance(value, Figure):
            each: Iterable[Any] = (remark.values[name] for remark in alike)
            values[name] = Figure(value.form, *(end for figure in each for end in figure.ends))
    return Remark(alike[0].topic, alike[0].template, **values)
