"""JSON documents: what a shape refuses, in words; how they are read, shown and written, by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET, Struct, UnsetType

from lolat.errors import ModelFileError
from lolat.io import documents
from lolat.io.documents import Count, Positive, converted, read_json, to_json


class Part(Struct):
    """A part of a document."""

    n: Count
    size: Positive | UnsetType = UNSET


class Shape(Struct):
    """The shape of a document."""

    name: str
    parts: list[Part]


@pytest.mark.parametrize(
    ("document", "said", "at"),
    [
        ([], "Expected `object`, got `array`", ""),
        ({"name": "x"}, "Object missing required field `parts`", ""),
        ({"name": "x", "parts": [{"n": 1}, 3]}, "Expected `object`, got `int`", ".parts[1]"),
        ({"name": "x", "parts": [{"n": 1, "size": 0}]}, "Expected `float` >= 1e-30", ".parts[0].size"),
    ],
)  # fmt: skip
def test_what_a_shape_refuses(document: Any, said: str, at: str) -> None:
    for place in ("$", "$.out[2]"):
        with pytest.raises(ModelFileError) as caught:
            converted(document, Shape, "FILE", place)
        message = str(caught.value)
        assert message.startswith(f"FILE: {said}")
        assert message.endswith(f" - at `{place}{at}`")


def test_what_a_shape_takes() -> None:
    document = {"name": "x", "parts": [{"n": 1}, {"n": 0, "size": 0.5, "later": 1}]}
    assert converted(document, Shape, "FILE").parts == [Part(1), Part(0, 0.5)]


# The bounds of real sizes, and of floating-point numbers.
LEAST, MOST, TINY, HUGE = 1e-30, 1e30, 5e-324, 1.7976931348623157e308


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("Number", (-MOST, 0, 1.5, MOST), (1.1 * MOST, -HUGE, math.inf, math.nan, "1", True)),
        ("NotNegative", (0, 0.0, TINY, MOST), (-TINY, -1, HUGE, math.inf, math.nan)),
        ("Positive", (LEAST, 1, MOST), (0, 0.0, TINY, 0.9 * LEAST, -1.0, HUGE, math.inf, math.nan)),
        ("Count", (0, 2**63 - 1), (-1, 2**63, 0.5, True)),
        ("AtLeastOne", (1, 2**63 - 1), (0, 2**63, 1.5)),
        ("Range", ([1, 2.5],), ([1], [1, 2, 3], [1, "2"], [0, 1e31])),
    ],
)
def test_kinds_of_numbers(name: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    shape = getattr(documents, name)
    for value in good:
        converted(value, shape, "FILE")
    for value in bad:
        with pytest.raises(ModelFileError):
            converted(value, shape, "FILE")


def read(path: Path, content: bytes) -> Any:
    path.write_bytes(content)
    return read_json(path, "expected something")


@pytest.mark.parametrize(
    "content",
    [
        b"", b" \n", b"a,b\n1,2\n",
        b"[1, 2",
        b"\xff\xfe", b"[" * 100_000,
        b'{"a": "\xc3', b'{"a": 1', b'{"a": {}',
        b'{"a": "\xff"}', b'{"a": 1,\n "b" 2}',
        b'{"a": 1} x', b'{"a": NaN}', b'{"a": 1e999}',
        b'{"a": ' + b"9" * 5000 + b"}", b'{"a": ' * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_document(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.json"
    with pytest.raises(ModelFileError) as caught:
        read(path, content)
    message = str(caught.value)
    assert message.startswith(f"{path}: not JSON (")
    assert message.endswith("); expected something")
    assert message.isprintable()


def test_what_is_one(tmp_path: Path) -> None:
    content = b'\xef\xbb\xbf{"a": [1, 2.5, null, true], "b": -0.0, "c": 1e-400, "d": "\\u00e4"}'
    assert read(tmp_path / "a.json", content) == json.loads(content.decode("utf-8-sig"))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for other in (tmp_path / "none", tmp_path):
        with pytest.raises(ModelFileError) as caught:
            read_json(other, "expected something", hint="do this")
        assert str(caught.value).startswith(f"{other}: ")
        assert str(caught.value).endswith("(do this)") == (other.name == "none")


def test_the_text_of_a_document() -> None:
    """Sorted; a line for what fits into 100 characters, and for each entry of a longer list."""
    document = {
        "points": [{"s": [1, 2], "n": "p" * 99}, {"n": {"deep": 1}}, 3, []],
        "fits": {"k": "v" * 84},
        "not": {"k": "v" * 99},
        "b": [True, None, 1.5, "ä"],
    }
    text = f"""{{
 "b": [true, null, 1.5, "\\u00e4"],
 "fits": {{"k": "{"v" * 84}"}},
 "not": {{
  "k": "{"v" * 99}"
 }},
 "points": [
  {{"n": "{"p" * 99}", "s": [1, 2]}},
  {{"n": {{"deep": 1}}}},
  3,
  []
 ]
}}
"""
    assert to_json(document) == text
    assert json.loads(text) == document


@pytest.mark.parametrize("bad", [{"a": float("nan")}, {"a": {1}}, {"a": [[], {None: [], "b": 1}]}])
def test_what_json_does_not_hold(bad: Any) -> None:
    words = r"^FILE: cannot be written as JSON \(.+\); expected text keys"
    with pytest.raises(ModelFileError, match=words):
        to_json(bad, "FILE")
