"""`lolat show` and `lolat models`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import synthetic
from tests.cli.commands import Command


def test_show(lolat: Command, model: Path) -> None:
    found = lolat.done("show", model)
    assert found.err == ""
    assert found.out.startswith("desk: a desk, 2 threads · tensorflow 2.21.0 · noise 3.0 %\n")
    assert "This device does" in found.out


def test_show_draws(lolat: Command, model: Path, tmp_path: Path) -> None:
    plot = tmp_path / "fit.svg"
    found = lolat.done("show", model, "--plot", plot)
    assert found.out.endswith(f"drawn: {plot}\n")
    assert "<svg" in plot.read_text()


@pytest.mark.parametrize("name", ["fit.pdf", "no/fit.svg"])
def test_a_plot_that_cannot_be_drawn_says_only_that(
    lolat: Command, model: Path, tmp_path: Path, name: str
) -> None:
    assert "--plot" in lolat.refused("show", model, "--plot", tmp_path / name)


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    local, shipped = tmp_path / "local", tmp_path / "shipped"
    local.mkdir()
    shipped.mkdir()
    monkeypatch.setattr("lolat.io.paths.local_folder", lambda: local)
    monkeypatch.setattr("lolat.io.paths.shipped_folder", lambda: shipped)
    return local, shipped


def test_no_models_yet(lolat: Command, folders: tuple[Path, Path]) -> None:
    found = lolat.done("models")
    assert found.out == "no models yet: learn one with `lolat learn cpu`\n"


def test_models_are_listed_with_their_device(lolat: Command, folders: tuple[Path, Path]) -> None:
    local, shipped = folders
    (local / "mine.json").write_text(json.dumps(synthetic.document(device="a desk")))
    (shipped / "a-longer-name.json").write_text(json.dumps(synthetic.document(device="a \x1brack")))
    (local / "broken.json").write_text("{")
    layers = synthetic.document(device="a card")
    layers["environment"]["source"] = {"sample": "200 convolutions"}
    (shipped / "layers.json").write_text(json.dumps(layers))
    found = lolat.done("models")
    lines = found.out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["broken", "local"], ["mine", "local"], ["a-longer-name", "shipped"], ["layers", "shipped"],
    ]  # fmt: skip
    assert lines[3].endswith("a card; from 200 convolutions")
    assert lines[1].endswith("a desk")
    assert lines[2].endswith(r"a \x1brack")
    assert "cannot be read" in lines[0]
    assert len({line.index(" local") for line in lines[:2]}) == 1  # in columns


def test_a_model_by_its_name(lolat: Command, folders: tuple[Path, Path]) -> None:
    local, _ = folders
    (local / "mine.json").write_text(json.dumps(synthetic.document()))
    assert lolat("show", "mine").out == lolat("show", "local").out
    assert "did you mean mine?" in lolat.refused("show", "mina")


def test_local_where_nothing_was_learned(lolat: Command, folders: tuple[Path, Path]) -> None:
    assert "no model has been learned on this machine yet" in lolat.refused("show", "local")
