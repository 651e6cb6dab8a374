"""The model of a space: its answers, its intervals, its file."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError, LolatError, ModelFileError
from lolat.nas import fewshot as few
from lolat.nas.fewshot import file as nas_file
from lolat.nas.fewshot.model import NasModel, fit
from lolat.nas.fewshot.samples import Samples, space_terms
from tests.nas.few_devices import everything, layered, some_cells, some_layers

CELLS = space_terms("nasbench201")


def noisy(count: int, noise: float, seed: int = 0) -> Samples:
    archs = some_cells(count, seed)
    exact = np.array([everything(a) for a in archs])
    times = exact * np.exp(noise * np.random.default_rng(seed).standard_t(4.0, count))
    return Samples(tuple(archs), CELLS.parse_many(archs), times, 0.0, ())


@pytest.fixture(scope="module")
def cells() -> NasModel:
    return fit("nasbench201", noisy(12, 0.02))


@pytest.fixture(scope="module")
def layers() -> NasModel:
    archs = some_layers(10)
    times = np.array([layered(a) for a in archs])
    return fit(
        "fbnet", Samples(tuple(archs), space_terms("fbnet").parse_many(archs), times, 0.0, ())
    )


def test_text_and_integers_have_the_same_answer(cells: NasModel) -> None:
    archs = some_cells(50, seed=3)
    assert cells.predict(archs).tolist() == cells.latency_ms(CELLS.parse_many(archs)).tolist()
    assert cells.predict([]).shape == (0,)
    assert cells.interval_ms(np.empty((0, 6), dtype=np.int8))[0].shape == (0,)


def test_many_networks_are_answered_in_parts(
    cells: NasModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = CELLS.parse_many(some_cells(50, seed=3))
    whole = cells.latency_ms(rows), *cells.interval_ms(rows)
    monkeypatch.setattr("lolat.nas.fewshot.model._ROWS", 7)
    parts = cells.latency_ms(rows), *cells.interval_ms(rows)
    assert np.array(parts) == pytest.approx(np.array(whole))


def test_intervals_hold_about_as_many_readings_as_they_say() -> None:
    """Readings of made-up devices with heavy-tailed noise, over many draws of samples."""
    inside = []
    for seed in range(12):
        model, readings = fit("nasbench201", noisy(12, 0.03, seed)), noisy(200, 0.03, seed + 100)
        low, high = model.interval_ms(readings.rows, 0.9)
        assert (low < high).all()
        inside.append(np.mean((low <= readings.times) & (readings.times <= high)))
    assert 0.82 < np.mean(inside) < 0.98


def test_wider_coverage_is_wider(cells: NasModel) -> None:
    rows = CELLS.parse_many(some_cells(20, seed=4))
    half, most = cells.interval_ms(rows, 0.5), cells.interval_ms(rows, 0.95)
    assert (most[0] < half[0]).all()
    assert (half[1] < most[1]).all()


def test_few_samples_and_absurd_ones_are_warned_of() -> None:
    known = noisy(5, 0.01)
    assert "5 samples: with fewer than 10" in fit("nasbench201", known).warnings[0]
    many = noisy(14, 0.005, seed=2)
    assert fit("nasbench201", many).warnings == ()
    many.times[3] = 0.004
    (warning,) = fit("nasbench201", many).warnings
    assert many.archs[3] in warning
    assert "times shorter than the other samples say" in warning


@pytest.mark.parametrize("name", ["cells", "layers"])
def test_a_model_is_read_as_it_was_written(
    name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    model: NasModel = request.getfixturevalue(name)
    path = tmp_path / "new" / "model.json"
    few.write(path, model)
    found = few.read(path)
    rows = model.terms.candidates(np.random.default_rng(0))[::100]
    assert found.latency_ms(rows) == pytest.approx(model.latency_ms(rows), rel=1e-6)
    assert np.array(found.interval_ms(rows)) == pytest.approx(
        np.array(model.interval_ms(rows)), rel=1e-4
    )
    assert (found.space, found.archs, found.warnings) == (model.space, model.archs, model.warnings)
    assert found.to_document() == json.loads(path.read_text())
    assert path.stat().st_size < 400_000


def test_the_same_samples_give_the_same_file(tmp_path: Path) -> None:
    for name in ("a.json", "b.json"):
        few.write(tmp_path / name, fit("nasbench201", noisy(12, 0.02)))
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def changed(model: NasModel, *path: Any, value: Any = None) -> dict[str, Any]:
    """The document of a model with one field set, or taken out."""
    document = json.loads(json.dumps(model.to_document()))
    holder = document
    for key in path[:-1]:
        holder = holder[key]
    if value is None:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("schema",), "lolat-model", "a model of a device, for whole networks"),
        (("schema",), "other", "not a model of a search space"),
        (("schema",), None, "not a model of a search space"),
        (("version",), 2, "format version 2, and this LoLat reads 1"),
        (("space",), "darts", "a model of the space 'darts'; expected one of nasbench201, fbnet"),
        (("space",), "fbnet", "unknown assumption 'all'"),
        (("costs",), None, "the field 'costs' is missing"),
        (("costs",), [], "do not add up to 1"),
        (("costs", 0, "weight"), 0.1, "do not add up to 1"),
        (("costs", 0, "weight"), "1", "`weight` is '1', not a number from 0"),
        (("costs", 0, "noise"), True, "`noise` is True"),
        (("costs", 0, "costs_ms"), [1.0], "`costs_ms` has the shape (1,)"),
        (("costs", 0, "costs_ms"), [1.0, -1.0, 1.0, 1.0, 1.0], "a number below 0"),
        (("costs", 0, "costs_ms"), [1.0, "x", 1.0, 1.0, 1.0], "could not convert"),
        (("spreads_ms", "all"), [[1.0, 1.0]], "`spreads_ms` has the shape (1, 2)"),
        (("spreads_ms", "all"), [[1.0] * 4 + [1e999]], "a number that is not finite"),
        (("samples", 0, "latency_ms"), None, "the field 'latency_ms' is missing"),
        (("step_ms",), -1.0, "`step_ms` is -1.0"),
    ],
)  # fmt: skip
def test_a_damaged_document_is_refused(
    cells: NasModel, path: tuple[Any, ...], value: Any, words: str
) -> None:
    with pytest.raises(ModelFileError, match=r"^m\.json: ") as caught:
        nas_file.from_document(changed(cells, *path, value=value), "m.json")
    assert words in str(caught.value)
    assert (
        "lolat nas fit" in str(caught.value)
        or "expected one of" in str(caught.value)
        or ("fit the samples again" in str(caught.value))
    )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON"),
        (b'{"schema": "lolat-nas-model"', "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[1]", "not a model of a search space"),
    ],
)
def test_a_file_that_is_no_model_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(content)
    with pytest.raises(ModelFileError, match=words):
        few.read(path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="No such file or directory; expected a file that"):
        few.read(tmp_path / "absent.json")
    with pytest.raises(ModelFileError, match="Is a directory"):
        few.read(tmp_path)


def test_what_was_there_stays_when_writing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "m.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(nas_file.os, "fsync", full)
    with pytest.raises(LolatError, match="the disk is full"):
        nas_file.write_text(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["m.json"]
    assert path.read_text() == "old"


def test_a_place_that_cannot_be_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="Is a directory"):
        nas_file.write_text(tmp_path, "new")
    path = tmp_path / "m.json"
    path.write_text("old")
    monkeypatch.setattr(nas_file.os, "access", lambda *_: False)  # root may write anything
    with pytest.raises(InputError, match="Permission denied; give --output elsewhere"):
        nas_file.write_text(path, "new")
    assert path.read_text() == "old"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to("real.json")
    nas_file.write_text(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"


def test_names_that_the_package_does_not_have() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        few.nothing  # noqa: B018
    for name in few.__all__:
        assert getattr(few, name) is not None
