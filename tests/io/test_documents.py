"""JSON documents: what a shape refuses, in words; how they are read, shown and written, by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec import UNSET, Struct, UnsetType

from lolat.errors import ModelFileError
from lolat.io import documents
from lolat.io.documents import (
    DEEPEST,
    SHOWN,
    AtLeastOne,
    Count,
    NotJsonError,
    NotNegative,
    Number,
    Positive,
    Range,
    check,
    fault_of,
    key_text,
    read_json,
    show,
    to_json,
)


class Part(Struct):
    """In a document."""

    n: Count
    size: Positive | UnsetType = UNSET


class Shape(Struct):
    """Of a document."""

    name: str
    parts: list[Part]
    named: dict[str, Part] | UnsetType = UNSET
    ends: Range | UnsetType = UNSET
    yes: bool | UnsetType = UNSET
    much: Number | UnsetType | None = UNSET
    many: AtLeastOne | UnsetType = UNSET
    share: NotNegative | UnsetType = UNSET
    kind: Literal["a", "b"] | UnsetType = UNSET


def whole(**changed: Any) -> dict[str, Any]:
    return {"name": "x", "parts": [{"n": 1}, {"n": 0, "size": 0.5, "later": 1}], **changed}


@pytest.mark.parametrize(
    ("document", "fault"),
    [
        (whole(), None),
        (whole(much=None, many=1, share=0, ends=[1, -2.5], yes=False, kind="b", named={}), None),
        (whole(many=2**63 - 1, much=-1e30), None),
        ([], "`it` is a list of 0; expected an object"),
        ({"name": "x"}, "the field `parts` is missing; expected a list"),
        ({"parts": "wrong"}, "the field `name` is missing; expected text"),
        (whole(name=3), "`name` is 3; expected text"),
        (whole(parts={}), "`parts` is an object; expected a list"),
        (whole(parts=[{"n": 1}, 3]), "`parts[1]` is 3; expected an object"),
        (whole(parts=[{"size": 1.0}]), "the field `parts[0].n` is missing; expected a whole number"),
        (whole(parts=[{"n": -1}]), "`parts[0].n` is -1; expected a whole number of 0 or more"),
        (whole(parts=[{"n": 1, "size": 0}]),
         "`parts[0].size` is 0; expected a finite number above 0 (from 1e-30)"),
        (whole(named={"a": {"n": 1}, "b c": {"n": 1.5}}), "`named.b c.n` is 1.5; expected a whole number"),
        (whole(named={"a": {"n": 1}, "\n": {}}),
         "the field `named.'\\n'.n` is missing; expected a whole number"),
        (whole(ends=[1]), "`ends` is a list of 1; expected a list of length 2"),
        (whole(ends=[1, "2"]), "`ends[1]` is '2'; expected a finite number"),
        (whole(yes=1), "`yes` is 1; expected true or false"),
        (whole(much="1"), "`much` is '1'; expected a finite number or null"),
        (whole(many=0), "`many` is 0; expected a whole number of 1 or more"),
        (whole(share=-0.5), "`share` is -0.5; expected a finite number of 0 or more"),
        (whole(kind="c"), "`kind` is 'c'; expected one that this LoLat knows"),
    ],
)  # fmt: skip
def test_what_a_shape_refuses(document: Any, fault: str | None) -> None:
    assert fault_of(document, Shape) == fault
    if fault is None:
        check(document, Shape, "FILE")
    else:
        with pytest.raises(ModelFileError) as caught:
            check(document, Shape, "FILE")
        assert str(caught.value) == f"FILE: {fault}"
        inside = fault.replace("`", "`out[2].", 1).replace(".it`", "`")
        assert fault_of(document, Shape, "out[2]") == inside


# Least and most of a size that anything has; least and most of any number.
LEAST, MOST, TINY, HUGE = 1e-30, 1e30, 5e-324, 1.7976931348623157e308


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("Number", (-MOST, 0, 1.5, MOST), (1.1 * MOST, -HUGE, math.inf, math.nan, "1", True)),
        ("NotNegative", (0, 0.0, TINY, MOST), (-TINY, -1, HUGE, math.inf, math.nan)),
        ("Positive", (LEAST, 1, MOST), (0, 0.0, TINY, 0.9 * LEAST, -1.0, HUGE, math.inf, math.nan)),
        ("Count", (0, 2**63 - 1), (-1, 2**63, 0.5, True)),
        ("AtLeastOne", (1, 2**63 - 1), (0, 2**63, 1.5)),
        ("Range", ([-1, MOST], [1, 0]), ([], [1], [1, 2, 3], [1, math.inf])),
    ],
)
def test_kinds_of_numbers(name: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    shape = getattr(documents, name)
    assert [fault_of(value, shape) for value in good] == [None] * len(good)
    assert None not in [fault_of(value, shape) for value in bad]


def test_shapes_that_are_no_struct() -> None:
    assert fault_of({"a": 1}, dict[str, int]) is None
    assert fault_of({"a": "x"}, dict[str, int]) == "`a` is 'x'; expected a whole number"
    assert fault_of("x", int) == "`it` is 'x'; expected a whole number"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"a": 1}, "an object"), ([1, 2], "a list of 2"), (None, "null"), (True, "true"), (False, "false"),
        (1.5, "1.5"), ("a\nb", "'a\\nb'"), ("ä", "'\\xe4'"), ("a  b", "'a b'"),
        (2**255, str(2**255)[: SHOWN - 3] + "..."), (2**256, "an integer of about 78 digits"),
        (-(10**400), "an integer of about 401 digits"), (10**59, str(10**59)),
        ("x" * (SHOWN - 2), repr("x" * (SHOWN - 2))), ("x" * (SHOWN - 1), "'" + "x" * (SHOWN - 4) + "..."),
    ],
)  # fmt: skip
def test_values_in_a_message(value: Any, shown: str) -> None:
    assert show(value) == shown
    assert len(shown) <= SHOWN


@pytest.mark.parametrize(
    ("key", "text"),
    [("a b", "a b"), ("", "''"), ("ä", "'\\xe4'"), ("\x1b", "'\\x1b'"), (3, "3"),
     ("x" * SHOWN, "x" * SHOWN), ("x" * (SHOWN + 1), "'" + "x" * (SHOWN - 4) + "...")],
)  # fmt: skip
def test_keys_in_a_message(key: Any, text: str) -> None:
    assert key_text(key) == text


def read(path: Path, content: bytes, **more: Any) -> Any:
    path.write_bytes(content)
    return read_json(path, "expected something", **more)


@pytest.mark.parametrize(
    ("content", "kind", "words"),
    [
        (b" \n", NotJsonError, ": is empty; expected something"),
        (b'{"a": "\xc3', ModelFileError, ": looks truncated: the JSON breaks off after 8 bytes; expected"),
        (b'{"a": 1', ModelFileError, ": looks truncated: the JSON breaks off after 7 bytes; expected so"),
        (b'{"a": 1,\n', ModelFileError, ": looks truncated: the JSON breaks off after 9 bytes; exp"),
        (b'{"a": {}', ModelFileError, ": looks truncated"),
        (b'{"a": "\xff"}', NotJsonError, ": not UTF-8 text (at byte 7); expected something"),
        (b'{"a": 1,\n "b" 2}', NotJsonError, ": not JSON (Expecting ':' delimiter at line 2, column 6)"),
        (b'{"a": 1} {}', NotJsonError, ": not JSON (Extra data at line 1, column 10); expected something"),
        (b'{"a": 1} x', NotJsonError, ": not JSON (Extra data at"),
        (b"a,b\n1,2\n", NotJsonError, ": not JSON ("),
        (b"[1, 2", NotJsonError, ": not JSON ("),
        (b'{"a": NaN}', ModelFileError, ": holds NaN, which is not a finite number; expected something"),
        (b'{"a": -Infinity}', ModelFileError, ": holds -Infinity, which"),
        (b'{"a": 1e999}', ModelFileError, ": holds 1e999, which is not a finite number"),
        (b'{"a": ' + b"9" * 400 + b".5}", ModelFileError, ": holds a number above 1.8e308, which"),
        (b'{"a": ' + b"9" * 5000 + b"}", ModelFileError, ": holds an integer of thousands of digits; exp"),
        (b'{"a": {"b": 1, "c": 2, "b": 1}}', ModelFileError, ": has the key b twice in an object; exp"),
        (b'{"a\\u001b": 1, "a\\u001b": 1}', ModelFileError, ": has the key 'a\\x1b' twice in an object"),
        (b"[" + b"[]," * 150 + b"[" * DEEPEST + b"]" * (DEEPEST + 1), ModelFileError, ": lists or obj"),
        (b"[" * (DEEPEST + 1), ModelFileError, ": lists or objects nested too deeply (more than 100 in"),
        (b'[{"a":' * 50 + b'"[[[" ,[', ModelFileError, ": lists or objects nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_no_document(tmp_path: Path, content: bytes, kind: type, words: str) -> None:
    with pytest.raises(ModelFileError) as caught:
        read(tmp_path / "a.json", content)
    assert type(caught.value) is kind
    assert str(caught.value).removeprefix(str(tmp_path / "a.json")).startswith(words)


@pytest.mark.parametrize(
    "content",
    [
        b'\xef\xbb\xbf{"a": [1, 2.5, null, true]}',
        b'{"a": "\\ud800", "b": -0.0, "c": 1e-400}',
        b"[" * DEEPEST + b"]" * DEEPEST,
        b"[[], " * (DEEPEST - 1) + b"[]" + b"]" * (DEEPEST - 1),
        b'["' + b'[{\\"' * 150 + b'\\\\", "]"]',
        b"[" + b"[]," * 150 + b"[]]",
        b'[{"a":' * 50 + b"1" + b"}]" * 50,
    ],
    ids=lambda content: "",
)
def test_what_is_one(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    assert read(path, content, largest_bytes=len(content)) == json.loads(
        content.decode("utf-8-sig")
    )


def test_sizes_and_hints(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(
        ModelFileError, match=r": 2 MiB is too large; expected something of at most 1 MiB$"
    ):
        read(path, b" " * 2**21, largest_bytes=2**21 - 1)
    for hint, words in (("", ""), ("do this", " (do this)")):
        with pytest.raises(ModelFileError) as caught:
            read_json(tmp_path / "none", "expected something", hint=hint)
        assert str(caught.value) == f"{tmp_path / 'none'}: no such file; expected something{words}"


def test_the_text_of_a_document() -> None:
    """Sorted; an entry of plain values, or of lists of them, on one line; short objects too."""
    k = "k" * 40
    document = {
        "points": [{"s": [1, 2], "n": "p" * 99}, {"n": {"deep": 1}}, 3, [1], []],
        "fits": {k: "v" * (98 - 8 - 40)},
        "not": {k: "v" * (99 - 8 - 40)},
        "b": [True, None, 1.5, "ä"], "a": {"y": 1, "x": "\n"}, "none": {}, "lists": [[1], [2, [3]]],
        "object": {"of": [1]},
    }  # fmt: skip
    text = f"""{{
 "a": {{"x": "\\n", "y": 1}},
 "b": [true, null, 1.5, "\\u00e4"],
 "fits": {{"{k}": "{"v" * 50}"}},
 "lists": [
  [1],
  [
   2,
   [3]
  ]
 ],
 "none": {{}},
 "not": {{
  "{k}": "{"v" * 51}"
 }},
 "object": {{
  "of": [1]
 }},
 "points": [
  {{"n": "{"p" * 99}", "s": [1, 2]}},
  {{
   "n": {{"deep": 1}}
  }},
  3,
  [1],
  []
 ]
}}
"""
    assert to_json(document) == text
    assert json.loads(text) == document


@pytest.mark.parametrize(
    "bad", [{1: 2}, {"a": {1: [[]]}}, {"a": float("nan")}, {"a": {1}}, {"a": [[], {None: []}]}]
)
def test_what_json_does_not_hold(bad: Any) -> None:
    with pytest.raises(
        ModelFileError, match=r"^document: cannot be written as JSON \(.+\); expected text keys"
    ):
        to_json(bad)
    with pytest.raises(ModelFileError, match=r"^FILE: cannot"):
        to_json(bad, "FILE")
