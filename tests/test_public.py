"""What `import lolat` offers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import lolat
from tests import synthetic


def test_the_names_of_the_contract_are_there() -> None:
    names: dict[str, object] = {}
    exec("from lolat import *", names)
    assert {"Graph", "Model", "Prediction", "load", "read"} <= set(lolat.__all__)
    for name in lolat.__all__:
        assert getattr(lolat, name) is names[name]
        assert name in dir(lolat)
    assert sorted(lolat.__all__) == [name for name in dir(lolat) if not name.startswith("_")]
    with pytest.raises(AttributeError, match="'lod'"):
        _ = lolat.lod


def test_the_lines_of_the_readme_work(tmp_path: Path) -> None:
    """As the package's docstring has them, but for the network, which is a graph by hand."""
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps(synthetic.document()))
    model, graph = lolat.load(path), lolat.read(synthetic.network())
    assert isinstance(graph, lolat.Graph)
    found = model.predict(graph, batch_size=8)
    assert isinstance(found, lolat.Prediction)
    assert found.latency_ms > model.predict(graph).latency_ms > 0


def test_submodules_are_reached_by_the_package() -> None:
    """`import lolat` and then `lolat.errors` must not be shadowed by the lazy names."""
    code = "import lolat, lolat.errors; print(lolat.load.__module__, lolat.errors.InputError)"
    root = Path(__file__).resolve().parent.parent
    done = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=root)
    assert done.split()[0] == "lolat.api"
