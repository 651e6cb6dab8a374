"""Reading and checking a model file: what is accepted, and one clear line for everything that is not."""

from __future__ import annotations

import copy
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.errors import ModelFileError
from lolat.io.documents import LARGEST_BYTES, LEAST, MOST
from lolat.model import Model
from lolat.model import file as model_file
from tests.model_documents import as_json, large, small
from tests.training import known_device

Place = tuple[str | int, ...]
_MISSING = object()


def _refusal_by(job: Callable[[], object], source: object) -> str:
    """What a document is refused with: one line that begins with where it is from."""
    with pytest.raises(ModelFileError) as caught:
        job()
    message = str(caught.value)
    assert message.isprintable(), "one line, and nothing that a terminal would act on"
    assert message.startswith(f"{source}: ")
    assert caught.value.exit_code == 2
    return message.removeprefix(f"{source}: ")


def _refusal(path: Path) -> str:
    return _refusal_by(lambda: model_file.read(path), path)


def _refusal_of(tmp_path: Path, content: bytes) -> str:
    path = tmp_path / "model.json"
    path.write_bytes(content)
    return _refusal(path)


def _refusal_of_document(document: Any) -> str:
    return _refusal_by(lambda: model_file.validate(document, "here"), "here")


class TestReading:
    @pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf", b"\n  "])
    def test_what_plain_json_holds_is_what_is_read(self, tmp_path: Path, prefix: bytes) -> None:
        path = tmp_path / "model.json"
        path.write_bytes(prefix + as_json(small()))
        assert model_file.read(path) == model_file.read(str(path)) == small()

    def test_later_minor_additions_are_accepted_and_kept(self, tmp_path: Path) -> None:
        document = small()
        later = {"anything": [1, "two", None, {"three": True}]}
        for holder in (document, *document["predictors"].values(), *document["points"]):
            holder["added_later"] = later
        document["predictors"]["mlp"] = {"coefficients": {}, "layers": [[1.5], [-2]]}
        path = tmp_path / "model.json"
        path.write_bytes(as_json(document))
        assert model_file.read(path) == document

    def test_missing_file_folder_pipe_and_bad_names(self, tmp_path: Path) -> None:
        missing = _refusal(tmp_path / "none.json")
        assert "no such file" in missing
        assert "lolat learn cpu" in missing
        assert _refusal(tmp_path).startswith("is a folder")
        (tmp_path / "file").write_text("x")
        assert "cannot be read" in _refusal(tmp_path / "file" / "model.json")
        assert "cannot be read" in _refusal(tmp_path / ("x" * 300))
        if hasattr(os, "mkfifo"):
            os.mkfifo(tmp_path / "pipe")
            assert "not a regular file" in _refusal(tmp_path / "pipe")
        for name in ("a\nb", "a\0b", "\x1b[31m", ""):
            with pytest.raises(ModelFileError) as caught:
                model_file.read(name)
            assert str(caught.value).isprintable()

    @pytest.mark.parametrize(
        ("size", "error", "said"),
        [
            (LARGEST_BYTES + 1, AssertionError("opened"), "too large"),
            (2, PermissionError(13, "Permission denied"), "no permission to read"),
        ],
    )
    def test_a_huge_file_is_not_opened_and_one_that_cannot_be_is_said(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        size: int,
        error: Exception,
        said: str,
    ) -> None:
        path = tmp_path / "model.json"
        with path.open("wb") as file:
            file.truncate(size)

        def refuse(*args: object, **kwargs: object) -> None:
            raise error

        # Root may read everything, so the refusal is put in place of the system's.
        monkeypatch.setattr("builtins.open", refuse)
        refusal = _refusal(path)
        monkeypatch.undo()
        assert said in refusal

    @pytest.mark.parametrize(
        ("content", "expected"),
        [
            (b"hello", "not JSON"),  # the others: tests/io/test_documents.py
            (b"[1, 2]", "holds a list of 2; expected a LoLat model"),
            (b"null", "holds null"),
            (b'"text"', "holds 'text'"),
            (b"{}", "no field `schema`"),
            (b'{"schema": "onnx", "version": 1}', "`schema` is 'onnx'"),
            (b'{"schema": "\\u0007' + b"x" * 500 + b'"}', "`schema` is '\\x07xxx"),
            (b'{"schema": ["lolat-model"]}', "`schema` is a list of 1"),
        ],
        ids=lambda value: ascii(value)[:30],
    )
    def test_something_else_than_a_model(
        self, tmp_path: Path, content: bytes, expected: str
    ) -> None:
        assert expected in _refusal_of(tmp_path, content)

    def test_checking_costs_no_more_than_a_few_parsings(self, tmp_path: Path) -> None:
        path = tmp_path / "model.json"
        path.write_bytes(as_json(large()))

        def took(job: Any) -> float:
            started = time.perf_counter()
            job()
            return time.perf_counter() - started

        # In turns, so that both see the same machine.
        turns = [
            (took(lambda: json.loads(path.read_bytes())), took(lambda: model_file.read(path)))
            for _ in range(25)
        ]
        parsing, reading = map(min, zip(*turns, strict=True))
        assert reading < 5 * parsing


def _full() -> dict[str, Any]:
    """A valid document with every field that may be left out, too."""
    document = small()
    document["predictors"]["extended"] |= {
        "six_counts": {
            "coefficients": {"acts": 1e-7, "ops": 0},
            "error": {"fitted": {"median": 0.1}},
        },
        "interval": {"exponent": 0.25, "ops": [3, 60.0], "scores": [0.1, 0]},
        "networks": {"ops": 98.5, "spread": 0.05, "count": 12},
    }
    document["noise"] |= {"quiet": 0.9, "busy": 1.25}
    document["domain"] = {
        "kinds": ["conv", "relu"],
        "dtypes": ["float32"],
        "ratios": {"FLOPs per element": [2.5, 25]},
        "sizes": {"weights": [0, 1e6]},
    }
    document["points"][0] |= {"kinds": ["conv"], "reference_ms": [1, 1.5], "spread": 0.01}
    document["points"][0] |= {"whole": True, "border": 7}
    document["points"][1] |= {"kinds": [], "reference_ms": None, "spread": None, "exps": None}
    return document


def _with(place: Place, value: Any) -> dict[str, Any]:
    document = _full()
    holder: Any = document
    for key in place[:-1]:
        holder = holder[key]
    if value is _MISSING:
        del holder[place[-1]]
    else:
        holder[place[-1]] = value
    return document


def _written(place: Place) -> str:
    """As msgspec writes it; of objects with keys of any name it does not say which."""
    text = "$"
    for at, key in enumerate(place):
        free = at and place[at - 1] in ("coefficients", "ratios", "sizes")
        known = "two-regime" in place[:at]
        text += f"[{key}]" if isinstance(key, int) else "[...]" if free and not known else f".{key}"
    return text


_WRONG: dict[str, tuple[Any, ...]] = {
    "text": ([], 1, None, True, math.inf),
    "object": ([], 1, None, "text", math.inf),
    "list": ({}, 1, None, "text"),
    "list or null": ({}, 1, "text"),
    "number or null": ("1", True, [1.0], 10**400, math.nan),
    "range": ([], [1], [1, 2, 3], ["1", 2], [None, 1], [True, 1], [1, math.inf], {}, 5, None, "12"),
    "count": (-1, 1.5, 3.0, True, None, "3", 2**63, 10**400, [1]),
    "yes or no": (0, 1, None, "true", []),
    "from 2": (1, 0, -5, 12.0, True, None, "12", 2**63),
    "count or null": (-1, 1.5, 3.0, True, "3", 2**63),
    "from 1": (0, -1, 1.0, True, None, "1"),
    "number": (None, "1", True, [1.0], 10**400, math.nan, -math.inf),
    "not negative": (-1e-300, None, "1", True, 10**400, math.inf),
    "not negative or null": (-1e-300, "1", True, 10**400, math.inf),
    "positive": (0, 0.0, -1, None, "1", False, 10**400, math.inf),
}
_TWO, _EXTENDED = ("predictors", "two-regime"), ("predictors", "extended")
_NEEDED: dict[str, tuple[Place, ...]] = {
    "text": (("name",), ("device",), ("default",), ("points", 0, "name")),
    "object": (
        ("predictors",), ("environment",), ("noise",), ("domain",), (*_EXTENDED, "coefficients"),
        (*_EXTENDED, "six_counts", "coefficients"),
    ),
    "list": (("points",), (*_EXTENDED, "interval", "scores")),
    "list or null": (("points", 0, "samples_ms"),),
    "range": ((*_EXTENDED, "interval", "ops"),),
    "count": (("points", 0, "acts"), ("points", 0, "inp"), ("points", 1, "flops")),
    "count or null": tuple(("points", i, c) for i, c in ((0, "traffic"), (0, "weights"), (1, "ops"))),
    "from 1": (("points", 0, "batch_size"),),
    "from 2": ((*_EXTENDED, "networks", "count"),),
    "number": ((*_TWO, "offset_ms"),),
    "not negative": (
        (*_TWO, "breakpoint_ms"), *((*_TWO, "coefficients", c) for c in ("acts", "inp", "flops")),
        (*_EXTENDED, "interval", "exponent"), (*_EXTENDED, "networks", "ops"),
        (*_EXTENDED, "networks", "spread"),
    ),
    "positive": ((*_TWO, "slope"), ("points", 1, "latency_ms")),
}  # fmt: skip
_OPTIONAL: dict[str, tuple[Place, ...]] = {
    "text": (("warnings", 0), ("domain", "kinds", 1), ("domain", "dtypes", 0), ("points", 0, "kinds", 0)),
    "object": (
        _EXTENDED, (*_EXTENDED, "six_counts"), (*_EXTENDED, "interval"),
        (*_TWO, "error"), (*_EXTENDED, "six_counts", "error"),
        (*_EXTENDED, "networks"), ("points", 0), ("domain", "ratios"), ("domain", "sizes"),
    ),
    "list": (
        (*_TWO, "residuals"), ("warnings",), ("domain", "kinds"), ("domain", "dtypes"),
        ("points", 0, "kinds"),
    ),
    "list or null": (("points", 0, "reference_ms"),),
    "count or null": (("points", 0, "border"), ("points", 1, "exps")),
    "range": (("domain", "ratios", "FLOPs per element"), ("domain", "sizes", "weights")),
    "yes or no": (("points", 0, "whole"),),
    "number": (
        (*_TWO, "residuals", 1), (*_EXTENDED, "interval", "scores", 1), ("points", 0, "reference_ms", 1),
    ),
    "number or null": (("points", 0, "spread"),),
    "not negative or null": ((*_TWO, "error", "left_out", "median"),),
    "not negative": (
        (*_EXTENDED, "coefficients", "acts"),
        (*_EXTENDED, "six_counts", "coefficients", "ops"),
    ),
    "positive": (("points", 0, "samples_ms", 2), ("noise", "quiet"), ("noise", "busy")),
}  # fmt: skip


def _rows(table: dict[str, tuple[Place, ...]]) -> list[Any]:
    return [pytest.param(p, kind, id=_written(p)) for kind, places in table.items() for p in places]


class TestFields:
    @pytest.mark.parametrize(("place", "kind"), _rows(_NEEDED) + _rows(_OPTIONAL))
    def test_the_place_of_a_wrong_field_is_named(self, place: Place, kind: str) -> None:
        for value in _WRONG[kind]:
            assert f" - at `{_written(place)}" in _refusal_of_document(_with(place, value))

    @pytest.mark.parametrize(("place", "kind"), _rows(_NEEDED))
    def test_a_missing_field_is_named(self, place: Place, kind: str) -> None:
        message = _refusal_of_document(_with(place, _MISSING))
        assert message.startswith(f"Object missing required field `{place[-1]}` - at `$")

    @pytest.mark.parametrize(("place", "kind"), _rows(_OPTIONAL))
    def test_what_may_be_left_out(self, place: Place, kind: str) -> None:
        if place != _EXTENDED:  # which is the default
            counts = (1e6, 1e6, 1e8, 1e6, 1e5, 20)
            whole, less = (Model(d, "here") for d in (small(), _with(place, _MISSING)))
            told, wanted = (m.predict_counts(*counts, predictor="extended") for m in (less, whole))
            if "coefficients" not in place:
                assert told == wanted > 0

    @pytest.mark.parametrize(
        ("nearby", "said"),
        [
            ({"elements": []}, "'elements' - at `key` in `$.predictors.kernels.nearby`"),
            ({"dense": 3}, "Expected `array`, got `int` - at `$.predictors.kernels.nearby[...]`"),
            (
                {"dense": [[1, 2, 3, 4]]},
                "of length 5, got 4 - at `$.predictors.kernels.nearby[...][0]`",
            ),
            (
                {"dense": [[1, 2, 3, 4, 0.1], [1, 0, 3, 4, 5]]},
                ">= 1e-30 - at `$.predictors.kernels.nearb",
            ),
            (
                {"dense": [[1, 2, 3, 4, "x"]]},
                "got `str` - at `$.predictors.kernels.nearby[...][0][4]`",
            ),
        ],
    )
    def test_shapes_that_correct_a_formula(self, nearby: Any, said: str) -> None:
        good = known_device.document(nearby={"dense": [[1, 512, 64, 64, -0.25]]}, sustained=1e9)
        model_file.validate(good, "here")
        assert said in _refusal_of_document(known_device.document(nearby=nearby))

    @pytest.mark.parametrize(
        ("version", "expected"),
        [
            (2, "`version` is 2; expected 1: learn the model again with `lolat learn cpu`, or"),
            (10**40, "`version` is 1000"),
            (0, "`version` is 0; expected 1"),
            (1.0, "`version` is 1.0; expected 1"),
            (True, "`version` is true; expected 1"),
            (None, "`version` is null; expected 1"),
            (_MISSING, "the field `version` is missing; expected 1"),
        ],
    )
    def test_versions(self, version: Any, expected: str) -> None:
        document = _with(("version",), version)
        document["points"] = "elsewhere"  # another version may differ in everything else
        assert expected in _refusal_of_document(document)

    def test_a_default_that_is_not_there_and_predictors_that_are(self) -> None:
        message = _refusal_of_document(_full() | {"default": "paleo"})
        assert "`default` is 'paleo'" in message
        assert "'extended', 'two-regime'" in message
        nothing = _refusal_of_document(_full() | {"predictors": {}})
        assert "in the file: none" in nothing

    def test_a_key_cannot_break_the_message(self) -> None:
        place = ("predictors", "a\nb\x1b[31m" + "x" * 500)
        assert len(_refusal_of_document(_with(place, 1) | {"default": "x\n"})) < 700

    @given(
        samples=st.lists(
            st.floats()
            | st.integers(-3, 3)
            | st.booleans()
            | st.none()
            | st.text(st.characters(codec="ascii"), max_size=2),
            min_size=1,
        )
    )
    @settings(max_examples=100)
    def test_a_list_of_samples_is_good_when_each_of_them_is(self, samples: list[Any]) -> None:
        document = _with(("points", 0, "samples_ms"), samples)
        before = copy.deepcopy(document)
        if all(type(s) in (int, float) and LEAST <= s <= MOST for s in samples):
            model_file.validate(document, "here")
        else:
            assert " - at `$.points[0].samples_ms[" in _refusal_of_document(document)
        assert repr(document) == repr(before), "checking changes nothing"
