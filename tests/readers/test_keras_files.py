"""`.keras` files: read without weights and in safe mode; damaged and foreign ones are one line."""

from __future__ import annotations

import contextlib
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lolat
from lolat.errors import MissingPackageError, NetworkError
from lolat.graph.counts import count
from lolat.readers import open_network
from tests.readers.counting import refused as refused_to_read
from tests.readers.keras_networks import keras, kinds, layers


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small network, compiled and saved."""
    stack = [layers.Conv2D(4, 3), layers.ReLU(), layers.Flatten(), layers.Dense(3)]
    model = keras.Sequential([keras.Input((9, 7, 2)), *stack])
    model.compile("adam", "mse")
    path = tmp_path_factory.mktemp("saved") / "small.keras"
    model.save(path)
    return path


def refused(path: Path | str, *parts: str) -> None:
    """With weights or without."""
    refused_to_read(path, *parts)
    for weights in (False, True):
        with pytest.raises(NetworkError) as caught:
            open_network(str(path), weights=weights)
        assert str(caught.value).isprintable()
        assert all(part in str(caught.value) for part in parts)


def test_a_file_counts_as_the_network_that_was_saved(saved: Path) -> None:
    graph = lolat.read(saved)
    assert graph.name == "small"
    assert kinds(graph) == ["conv", "relu", "dense"]
    assert count(graph).total().flops == 35 * 4 * 18 + 140 * 3
    assert lolat.read(str(saved)) == graph
    upper = saved.with_name("SMALL.KERAS")
    upper.write_bytes(saved.read_bytes())
    assert len(lolat.read(upper).operations) == 4
    # With its weights it runs.
    model = open_network(str(saved), weights=True).model
    x = np.ones((2, 9, 7, 2), "float32")
    assert (model(x).numpy() == keras.saving.load_model(saved)(x).numpy()).all()


@pytest.mark.parametrize("version", ["3.5.0", "3.13.1"])
def test_a_keras_that_runs_code_of_files_reads_none(
    saved: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keras, "__version__", version)
    with pytest.raises(MissingPackageError, match=rf"Keras {version} .* 3\.13\.2 or newer"):
        open_network(str(saved))


def test_a_file_at_another_size(tmp_path: Path) -> None:
    x = keras.Input((None, None, 3))
    keras.Model(x, layers.Conv2D(4, 3)(x)).save(tmp_path / "open.keras")
    assert count(lolat.read(tmp_path / "open.keras", 8)).total().flops == 36 * 4 * 27
    refused_to_read(tmp_path / "open.keras")


def test_code_in_a_file_is_refused(tmp_path: Path) -> None:
    x = keras.Input((3,))
    keras.Model(x, layers.Lambda(lambda t: t * 2)(x)).save(tmp_path / "code.keras")
    refused(tmp_path / "code.keras", "Lambda layer, that is, code", "module:callable")


def test_a_module_that_a_file_names_is_not_imported(
    tmp_path: Path, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lolat_evil.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    config = _config(saved)
    config["config"]["layers"][1] = {
        "module": "lolat_evil", "class_name": "Evil", "config": {}, "registered_name": "lolat_evil>Evil"
    }  # fmt: skip
    refused(_archive(tmp_path / "evil.keras", json.dumps(config)), "Evil")
    assert "lolat_evil" not in sys.modules


def _config(path: Path) -> Any:
    with zipfile.ZipFile(path) as archive:
        return json.loads(archive.read("config.json"))


def _archive(path: Path, config: str | None) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", "{}")
        if config is not None:
            archive.writestr("config.json", config)
    return path


def test_files_that_are_something_else(tmp_path: Path, saved: Path) -> None:
    whole = saved.read_bytes()
    for name, content in (("text", b"something"), ("empty", b""), ("cut", whole[: len(whole) // 2]),
                          ("end", whole[:-30])):  # fmt: skip
        path = tmp_path / f"{name}.keras"
        path.write_bytes(content)
        refused(path, "it is not a .keras file")


@pytest.mark.parametrize(
    "config",
    [None, "[]", "\xff", "[" * 100_000, "{}",
     '{"module": "keras.layers", "class_name": "Nothing", "config": {}}',
     '{"module": "keras", "class_name": "Sequential", "config": {"layers": 3}}',
     '{"module": "keras.optimizers", "class_name": "SGD", "config": {}}'],
)  # fmt: skip
def test_archives_of_something_else(tmp_path: Path, config: str | None) -> None:
    refused(_archive(tmp_path / "odd.keras", config), "odd")


def test_a_flipped_byte_is_an_error_or_a_network(tmp_path: Path, saved: Path) -> None:
    whole, path = bytearray(saved.read_bytes()), tmp_path / saved.name
    found = []
    for place in range(0, len(whole), len(whole) // 40):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        path.write_bytes(damaged)
        with contextlib.suppress(NetworkError):
            found.append(lolat.read(path))
    assert 0 < len(found) < 40, "what lies in its weights does no harm"
    assert all(graph == lolat.read(saved) for graph in found)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    (tmp_path / "folder.keras").mkdir()
    here = (tmp_path / "gone.keras", tmp_path / "folder.keras")
    for path in (*here, "x" * 5000 + ".keras", "a\nb.keras"):
        refused(path, "no file")
