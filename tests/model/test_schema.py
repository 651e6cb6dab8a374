"""The check of a model document: each field that is wrong or missing is named, in one line."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.errors import ModelFileError
from lolat.model import schema
from tests.model_documents import as_json, small
from tests.training import known_device

_MISSING = object()


def _full() -> dict[str, Any]:
    """A valid document with every field that may be left out, too."""
    document = small()
    document["predictors"]["extended"]["six_counts"] = {
        "coefficients": {"acts": 1e-7, "ops": 0},
        "error": {"median": 0.1},
    }
    document["predictors"]["extended"]["interval"] = {
        "exponent": 0.25,
        "ops": [3, 60.0],
        "scores": [0.1, 0],
    }
    document["predictors"]["extended"]["alone"] = {"call": 0.1, "ops": 0}
    document["predictors"]["extended"]["networks"] = {"ops": 98.5, "spread": 0.05, "count": 12}
    document["noise"] |= {"quiet": 0.9, "busy": 1.25}
    document["domain"] = {
        "kinds": ["conv", "relu"],
        "dtypes": ["float32"],
        "ratios": {"FLOPs per element": [2.5, 25]},
        "sizes": {"weights": [0, 1e6]},
    }
    document["points"][0] |= {"kinds": ["conv"], "reference_ms": [1, 1.5], "spread": 0.01}
    document["points"][0]["whole"] = True
    document["points"][1] |= {"kinds": [], "reference_ms": None, "spread": None}
    return document


def _set(document: dict[str, Any], place: list[str | int], value: Any) -> None:
    holder: Any = document
    for key in place[:-1]:
        holder = holder[key]
    if value is _MISSING:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value


def _refusal_of(document: Any) -> str:
    """What `validate` says of the document, without the source's name."""
    with pytest.raises(ModelFileError) as caught:
        schema.validate(document, "here")
    message = str(caught.value)
    assert message.isprintable(), "one line, and nothing that a terminal would act on"
    assert message.startswith("here: ")
    return message.removeprefix("here: ")


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (2, "made by a newer LoLat (format version 2; this one reads 1): upgrade"),
        (10**40, "made by a newer LoLat"),
        (0, "`version` is 0; expected 1"),
        (1.0, "`version` is 1.0; expected 1"),
        (True, "`version` is true; expected 1"),
        ("1", "`version` is '1'; expected 1"),
        (None, "`version` is null; expected 1"),
        (_MISSING, "the field `version` is missing; expected 1"),
    ],
)
def test_versions(version: Any, expected: str) -> None:
    document = _full()
    _set(document, ["version"], version)
    # A newer file may differ in everything else.
    document["points"] = "elsewhere"
    assert expected in _refusal_of(document)


_WRONG = {
    "text": ([], 1, None, True),
    "object": ([], 1, None, "text"),
    "list": ({}, 1, None, "text"),
    "list or null": ({}, 1, "text"),
    "number or null": ("1", True, [1.0], 10**400),
    "range": ([], [1], [1, 2, 3], ["1", 2], [None, 1], [True, 1], {}, 5, None, "12"),
    "count": (-1, 1.5, 3.0, True, None, "3", 2**63, 10**400, [1]),
    "yes or no": (0, 1, None, "true", []),
    "from 2": (1, 0, -5, 12.0, True, None, "12", 2**63),
    "count or null": (-1, 1.5, 3.0, True, "3", 2**63),
    "batch": (0, -1, 1.0, True, None, "1"),
    "number": (None, "1", True, [1.0], 10**400),
    "not negative": (-1e-300, None, "1", True, 10**400),
    "positive": (0, 0.0, -1, None, "1", False, 10**400),
}
_FIELDS: dict[tuple[str | int, ...], str] = {
    ("name",): "text",
    ("device",): "text",
    ("default",): "text",
    ("predictors",): "object",
    ("environment",): "object",
    ("noise",): "object",
    ("domain",): "object",
    ("points",): "list",
    ("predictors", "extended"): "object",
    ("predictors", "extended", "coefficients"): "object",
    ("predictors", "extended", "coefficients", "acts"): "not negative",
    ("predictors", "two-regime", "breakpoint_ms"): "not negative",
    ("predictors", "two-regime", "slope"): "positive",
    ("predictors", "two-regime", "offset_ms"): "number",
    ("points", 0): "object",
    ("points", 0, "name"): "text",
    ("points", 0, "batch_size"): "batch",
    ("points", 0, "acts"): "count",
    ("points", 0, "inp"): "count",
    ("points", 1, "flops"): "count",
    ("points", 0, "traffic"): "count or null",
    ("points", 0, "weights"): "count or null",
    ("points", 1, "ops"): "count or null",
    ("points", 1, "latency_ms"): "positive",
    ("points", 0, "samples_ms"): "list or null",
    ("points", 0, "samples_ms", 2): "positive",
    ("predictors", "two-regime", "residuals"): "list",
    ("predictors", "two-regime", "residuals", 1): "number",
    ("predictors", "two-regime", "error"): "not negative",
    ("warnings",): "list",
    ("warnings", 0): "text",
    ("predictors", "two-regime", "coefficients", "acts"): "not negative",
    ("predictors", "two-regime", "coefficients", "inp"): "not negative",
    ("predictors", "two-regime", "coefficients", "flops"): "not negative",
    ("predictors", "extended", "six_counts"): "object",
    ("predictors", "extended", "six_counts", "coefficients"): "object",
    ("predictors", "extended", "six_counts", "coefficients", "ops"): "not negative",
    ("predictors", "extended", "six_counts", "error"): "not negative",
    ("predictors", "extended", "interval"): "object",
    ("predictors", "extended", "interval", "exponent"): "not negative",
    ("predictors", "extended", "interval", "ops"): "range",
    ("predictors", "extended", "interval", "scores"): "list",
    ("predictors", "extended", "interval", "scores", 1): "number",
    ("predictors", "extended", "alone"): "object",
    ("predictors", "extended", "alone", "call"): "not negative",
    ("predictors", "extended", "alone", "ops"): "not negative",
    ("predictors", "extended", "networks"): "object",
    ("predictors", "extended", "networks", "ops"): "not negative",
    ("predictors", "extended", "networks", "spread"): "not negative",
    ("predictors", "extended", "networks", "count"): "from 2",
    ("noise", "quiet"): "positive",
    ("noise", "busy"): "positive",
    ("points", 0, "whole"): "yes or no",
    ("domain", "kinds"): "list",
    ("domain", "kinds", 1): "text",
    ("domain", "dtypes"): "list",
    ("domain", "dtypes", 0): "text",
    ("domain", "ratios"): "object",
    ("domain", "ratios", "FLOPs per element"): "range",
    ("domain", "sizes"): "object",
    ("domain", "sizes", "weights"): "range",
    ("points", 0, "kinds"): "list",
    ("points", 0, "kinds", 0): "text",
    ("points", 0, "reference_ms"): "list or null",
    ("points", 0, "reference_ms", 1): "number",
    ("points", 0, "spread"): "number or null",
}
_OPTIONAL = {
    ("predictors", "extended"),
    ("predictors", "extended", "coefficients", "acts"),
    ("predictors", "two-regime", "residuals"),
    ("predictors", "two-regime", "error"),
    ("warnings",),
    ("predictors", "extended", "interval"),
    ("predictors", "extended", "six_counts"),
    ("predictors", "extended", "six_counts", "coefficients", "ops"),
    ("predictors", "extended", "six_counts", "error"),
    ("predictors", "extended", "alone"),
    ("predictors", "extended", "alone", "call"),
    ("predictors", "extended", "alone", "ops"),
    ("predictors", "extended", "networks"),
    ("noise", "quiet"),
    ("noise", "busy"),
    ("points", 0, "whole"),
    ("domain", "kinds"),
    ("domain", "dtypes"),
    ("domain", "ratios"),
    ("domain", "ratios", "FLOPs per element"),
    ("domain", "sizes"),
    ("domain", "sizes", "weights"),
    ("points", 0, "kinds"),
    ("points", 0, "reference_ms"),
    ("points", 0, "spread"),
}


def _written(place: tuple[str | int, ...]) -> str:
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in place)
    return text.removeprefix(".")


@pytest.mark.parametrize("place", _FIELDS, ids=_written)
def test_a_wrong_or_missing_field_is_named(place: tuple[str | int, ...]) -> None:
    for value in _WRONG[_FIELDS[place]]:
        document = _full()
        _set(document, list(place), value)
        message = _refusal_of(document)
        assert message.startswith(f"`{_written(place)}` is "), (value, message)
        assert "; expected " in message
    if isinstance(place[-1], str) and place not in _OPTIONAL:
        document = _full()
        _set(document, list(place), _MISSING)
        message = _refusal_of(document)
        assert message.startswith(f"the field `{_written(place)}` is missing; expected ")


@pytest.mark.parametrize("text", [b"1e999", b"-1e999", b"9" * 400 + b".5"])
@pytest.mark.parametrize("place", [*_FIELDS, ("noise", "drift"), ("domain", "x")], ids=_written)
def test_a_number_too_large_for_a_float_is_refused(
    place: tuple[str | int, ...], text: bytes
) -> None:
    document = _full()
    document["domain"]["x"] = 0
    _set(document, list(place), "PUT HERE")
    message = _refusal_of(json.loads(as_json(document).replace(b'"PUT HERE"', text)))
    assert f"`{_written(place)}` is " in message


def test_what_may_be_left_out() -> None:
    schema.validate(_full(), "here")
    for place in _OPTIONAL - {("predictors", "extended")}:
        document = _full()
        _set(document, list(place), _MISSING)
        schema.validate(document, "here")


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        (["predictors", "extended", "alone"], [], "is a list of 0; expected an object"),
        (["predictors", "extended", "alone", "call"], -1,
         "is -1; expected a finite number that is not negative"),
        (["predictors", "extended", "networks"], None, "is null; expected an object"),
        (["predictors", "extended", "networks", "spread"], "x",
         "is 'x'; expected a finite number that is not negative"),
        (["predictors", "extended", "networks", "ops"], -0.5,
         "is -0.5; expected a finite number that is not negative"),
        (["predictors", "extended", "networks", "count"], 1, "is 1; expected an integer of 2 or more"),
        (["noise", "quiet"], 0, "is 0; expected a finite number above 0"),
        (["noise", "busy"], True, "is true; expected a finite number above 0"),
        (["points", 0, "whole"], 1, "is 1; expected true or false"),
    ],
)  # fmt: skip
def test_what_is_said_of_networks_and_noise(place: list[str | int], value: Any, said: str) -> None:
    document = _full()
    _set(document, place, value)
    assert _refusal_of(document) == f"`{_written(tuple(place))}` {said}"


@pytest.mark.parametrize(
    ("nearby", "said"),
    [
        ({"elements": []}, "`nearby.elements` is a list of 0; expected one of dense, batched"),
        ({"dense": 3}, "`nearby.dense` is 3; expected one of dense, batched"),
        ({"dense": [[1, 2, 3, 4]]}, "`nearby.dense[0]` is a list of 4; expected number, rows, columns, d"),
        ({"dense": [[1, 2, 3, 4, 0.1], [1, 0, 3, 4, 5]]}, "`nearby.dense[1]` is a list of 5; expected num"),
        ({"dense": [[1, 2, 3, 4, "x"]]}, "`nearby.dense[0]` is a list of 5; expected number"),
    ],
)  # fmt: skip
def test_shapes_that_correct_a_formula(nearby: Any, said: str) -> None:
    good = known_device.document(nearby={"dense": [[1, 512, 64, 64, -0.25]]}, sustained=1e9)
    schema.validate(good, "here")
    with pytest.raises(ModelFileError) as refused:
        schema.validate(known_device.document(nearby=nearby), "here")
    assert said in str(refused.value).replace("predictors.kernels.", "")


def test_a_default_that_is_not_there_and_predictors_that_are() -> None:
    document = _full()
    document["default"] = "paleo"
    message = _refusal_of(document)
    assert "`default` is 'paleo'" in message
    assert "'extended', 'two-regime'" in message
    document["predictors"] = {}
    assert "in the file: none" in _refusal_of(document)


def test_a_key_cannot_break_the_message() -> None:
    document = _full()
    document["predictors"]["a\nb\x1b[31m" + "x" * 500] = 1
    assert len(_refusal_of(document)) < 300


@given(
    samples=st.lists(
        st.one_of(st.floats(), st.integers(-3, 3), st.booleans(), st.none(), st.text(max_size=2)),
        min_size=1,
    )
)
@settings(max_examples=300, deadline=None)
def test_a_list_of_samples_is_good_when_each_of_them_is(samples: list[Any]) -> None:
    document = _full()
    document["points"][0]["samples_ms"] = samples
    good = all(
        type(sample) in (int, float) and math.isfinite(sample) and sample > 0 for sample in samples
    )
    before = copy.deepcopy(document)
    if good:
        schema.validate(document, "here")
    else:
        with pytest.raises(ModelFileError, match=r"^here: `points\[0\]\.samples_ms\[\d+\]` is"):
            schema.validate(document, "here")
    assert repr(document) == repr(before), "checking changes nothing"


def test_a_document_in_memory_may_be_too_deep_too() -> None:
    document, deep = small(), [0.5]
    for _ in range(100):
        deep = [deep]  # type: ignore[list-item]
    document["deep"] = deep
    assert "nested too deeply (more than 100 in each other)" in _refusal_of(document)
