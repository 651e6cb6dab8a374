"""The JSON of an answer's class, and the schema that is made from it, beside ones written by hand."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import msgspec
from msgspec import UNSET, UnsetType

from benchmarks import schema
from lolat.io.results import Figure, Remark, Result, dict_of, in_one, keys, nested, topic


@dataclass(frozen=True)
class Inner:
    """A part."""

    at: tuple[int, int]
    about: Mapping[str, float]
    more: str | UnsetType = UNSET


@dataclass(frozen=True, repr=False)
class Outer(Result):
    """An answer.

    It has parts.
    """

    KEYS = ("name", *nested("inner", "at", "told=about"), "double", "parts", "none")

    name: str
    inner: Inner
    parts: tuple[Inner, ...]
    none: Inner | None = None
    hidden: object = None

    @cached_property
    def double(self) -> str:
        return 2 * self.name


INNER = Inner((1, 2), {"x": 0.5})
OUTER = Outer("a", INNER, (INNER, Inner((3, 4), {}, "here")))


def test_the_keys_are_fields_and_what_is_named() -> None:
    assert keys(Inner) == {"at": "at", "about": "about", "more": "more"}
    assert list(keys(Outer)) == ["name", "at", "told", "double", "parts", "none"]
    assert OUTER.to_dict() == dict_of(OUTER) == {
        "name": "a",
        "at": [1, 2],
        "told": {"x": 0.5},
        "double": "aa",
        "parts": [
            {"at": [1, 2], "about": {"x": 0.5}},
            {"at": [3, 4], "about": {}, "more": "here"},
        ],
        "none": None,
    }  # fmt: skip


def test_the_schema_has_the_types_of_the_keys() -> None:
    _, parts = msgspec.json.schema_components([schema._answer("lolat-outer", Outer)])
    pair = {"type": "array", "minItems": 2, "maxItems": 2, "items": False,
            "prefixItems": [{"type": "integer"}, {"type": "integer"}]}  # fmt: skip
    numbers = {"type": "object", "additionalProperties": {"type": "number"}}
    assert parts["Inner"]["properties"] == {
        "at": pair,
        "about": numbers,
        "more": {"type": "string"},
    }
    assert parts["Inner"]["required"] == ["at", "about"]
    outer = parts["lolat-outer"]
    assert outer["description"] == "An answer.\n\nIt has parts."
    assert outer["required"] == list(outer["properties"])
    assert outer["properties"] == {
        "schema": {"enum": ["lolat-outer"]},
        "version": {"enum": [1]},
        "name": {"type": "string"},
        "at": pair,
        "told": numbers,
        "double": {"type": "string"},
        "parts": {"type": "array", "items": {"$ref": "#/$defs/Inner"}},
        "none": {"anyOf": [{"$ref": "#/$defs/Inner"}, {"type": "null"}]},
    }


def test_a_remark_is_a_text_that_keeps_its_topic() -> None:
    remark = Remark("host-bound", "the host takes 2 ms")
    again = pickle.loads(pickle.dumps(remark))
    assert remark == again == "host-bound: the host takes 2 ms"
    assert topic(remark) == topic(again) == "host-bound"
    assert topic("a text: of a file") == "a text: of a file"


def test_remarks_that_differ_in_numbers_alone_are_one() -> None:
    def remark(
        card: str, ratio: float, count: int = 3, topic: str = "adapters in float32"
    ) -> Remark:
        numbers = {"ratio": Figure("{:g}".format, ratio), "count": Figure("{:,}".format, count)}
        return Remark(topic, "{card} takes {ratio} times as long, {count}", card=card, **numbers)

    times = [remark("h200", 0.91, 1030), remark("h200", 0.9, 400)]
    assert in_one(times) == [
        "adapters in float32: h200 takes 0.9 to 0.91 times as long, 400 to 1,030"
    ]
    # A number is compared as a number: as texts 1,030 would be less than 400.
    assert in_one([*in_one(times), remark("h200", 0.95, 500)]) == [
        "adapters in float32: h200 takes 0.9 to 0.95 times as long, 400 to 1,030"
    ]
    others = [remark("h200", 1.0), remark("h100", 1.0), "no figures of 2", "no figures of 3"]
    others += [remark("h200", 1.0, topic="another"), Remark("a {brace}", "of 3 {braces}")]
    assert in_one([*others, *others]) == others
    assert in_one(pickle.loads(pickle.dumps(times))) == in_one(times)
