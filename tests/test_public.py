"""What `import lolat` offers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lolat
from tests import synthetic

ROOT = Path(__file__).resolve().parent.parent


def test_the_names_of_the_contract_are_there() -> None:
    assert set(lolat.__all__) == {"Graph", "Model", "Prediction", "load", "read"}
    for name in lolat.__all__:
        assert getattr(lolat, name).__name__ == name
        assert name in dir(lolat)


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError, match="module 'lolat' has no attribute 'lod'"):
        _ = lolat.lod
    with pytest.raises(ImportError):
        exec("from lolat import lod")


def test_star_import() -> None:
    names: dict[str, object] = {}
    exec("from lolat import *", names)
    assert set(lolat.__all__) <= names.keys()


def test_the_lines_of_the_readme_work(tmp_path: Path) -> None:
    """As the package's docstring has them, but for the network, which is a graph by hand."""
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(synthetic.document()))
    model = lolat.load(path)
    graph = lolat.read(synthetic.network())
    assert isinstance(graph, lolat.Graph)
    found = model.predict(graph, batch_size=8)
    assert isinstance(found, lolat.Prediction)
    assert found.latency_ms > model.predict(graph).latency_ms > 0


def test_submodules_are_reached_by_the_package() -> None:
    """`import lolat` and then `lolat.model` must not be shadowed by the lazy names."""
    code = "import lolat, lolat.errors; print(lolat.load.__module__, lolat.errors.InputError)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.split()[0] == "lolat.model"
