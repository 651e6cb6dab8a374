"""What `import lolat` offers."""

from __future__ import annotations

import importlib.util
import json

import pytest

import lolat
from lolat.readers.cache import shipped_graph
from tests.processes import ROOT, python


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


HEAVY = (
    "keras tensorflow torch torchvision timm transformers onnx scipy pandas rich matplotlib sklearn optuna "
    "ray nni nn_meter microbench"
)
ADAPTERS = sorted(
    f"lolat.nas.adapters.{p.stem}" for p in (ROOT / "lolat/nas/adapters").glob("*.py")
)
CACHED = """
import tempfile, numpy
from pathlib import Path
from lolat.graph import GraphBuilder
from lolat.readers.cache import Cache
b = GraphBuilder("small")
graph = b.build([b.add("relu", [b.input((1, 4))], (1, 4))])
with tempfile.TemporaryDirectory() as folder:
    kept = Cache(Path(folder))
    for spec in ("timm:a", "keras:A", "torchvision:a"):
        kept.put(spec, 32, graph)
        assert kept.graph(spec, 32) == graph
        kept.put_array(spec, None, "a", numpy.ones(2))
        assert kept.array(spec, None, "a") is not None
"""
PREDICTED = """
from lolat.cli.common import run
from lolat.cli.main import lolat
assert run(lolat, ["predict", "rtx-4090-amp", "keras:ResNet50"], "lolat") == 0
"""
STEPS = {
    "import lolat": "click",
    "import lolat.model.file": "click tempfile",
    "import lolat.readers": "",
    "import lolat.cli.main, lolat.cli.predict": "",
    # The package's lazy names must not shadow its modules.
    "import lolat, lolat.errors; assert lolat.load.__module__ == 'lolat.api'; lolat.errors.InputError": "",
    "import lolat; lolat.Model, lolat.InputError; from lolat import nas": "",
    f"import {', '.join(ADAPTERS)}": "",
    "import lolat.comparison.judging, lolat.report.comparison": "",
    "from lolat.readers.generated import parse; parse('generate:resnet')": "",
    CACHED: "",
}
LOADED = """
import json, sys, numpy
for code, more in json.loads(sys.argv[1]).items():
    before = set(sys.modules)
    exec(code, {})
    loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
    assert not loaded & set(more.split()), (code, loaded & set(more.split()))
"""


def test_nothing_heavy_is_imported_until_it_is_asked_for() -> None:
    """Each step after the others in one process, which would have loaded it for them."""
    steps = dict(STEPS)
    if importlib.util.find_spec("keras") is None or shipped_graph("keras:ResNet50") is not None:
        steps[PREDICTED] = ""
    told = {code: f"{HEAVY} {more}" for code, more in steps.items()}
    done = python(LOADED, json.dumps(told))
    assert done.returncode == 0, done.stderr
    assert ("ResNet50" in done.stdout) == (PREDICTED in steps)
