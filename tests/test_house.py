"""The rules of the house: imports, when frameworks are loaded, sizes of files and functions, docstrings."""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lolat
from lolat.readers.bundled import bundled_graph
from tests import synthetic
from tests.processes import ROOT, python

FRAMEWORKS = {"tensorflow", "keras", "torch", "torchvision", "onnx", "onnxruntime", "jax"}

LONGEST = 520  # "some 500": room for a row in a table
LONGEST_FUNCTION = 60
LEANING = re.compile(
    r"(Of|What|Where|As|Those|Such|Whose|The same|None (where|of|if)|How|Whether|With|By|In|For)\b"
)
"""Beginnings of docstrings that lean on words elsewhere, or take the long way to the noun."""


@functools.cache
def sources() -> dict[Path, tuple[str, ast.Module]]:
    """Every module of the packages, as a path from the root: its text, and that parsed."""
    packages = ("lolat", "microbench", "benchmarks")
    found = [p for package in packages for p in (ROOT / package).rglob("*.py")]
    texts = {p: p.read_text(encoding="utf-8") for p in [*found, ROOT / "learn_model.py"]}
    return {p.relative_to(ROOT): (text, ast.parse(text)) for p, text in texts.items()}


def test_imports_follow_the_design() -> None:
    """The contracts in pyproject.toml: the floors of the house, no circles, frameworks at home."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def imported_at_once(tree: ast.AST) -> Iterator[str]:
    """The imports that a module makes when it is imported: none in functions or TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "" if node.level else node.module or ""
        elif not isinstance(node, ast.FunctionDef) and not (
            isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            yield from imported_at_once(node)


@pytest.mark.parametrize("room", ["io", "graph", "readers", "tables", "nas", "mlp"])
def test_no_circle_of_types_hides_from_the_contract(room: str) -> None:
    """lint-imports leaves out imports for type checking: modules of these rooms make none of each other."""
    for path, (_, tree) in sources().items():
        if path.is_relative_to(Path("lolat", room)):
            guarded = (
                n
                for n in ast.walk(tree)
                if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)
            )
            names = {
                n.module or ""
                for one in guarded
                for n in ast.walk(one)
                if isinstance(n, ast.ImportFrom)
            }
            assert not [name for name in names if name.startswith(f"lolat.{room}.")], path


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    late = {*FRAMEWORKS, "scipy", "sklearn", "rich"}
    readers = Path("lolat/readers")  # these are imported when a network is read
    exempt = {
        readers / "torch/detectors.py",
        readers / "torch/lifetimes.py",
        readers / "torch/positions.py",
        readers / "torch/operations.py",
        readers / "torch/aten.py",
        readers / "torch/parameters.py",
        readers / "torch/tensors.py",
        readers / "torch/transfers.py",
        readers / "torch/trace.py",
        readers / "torch/isolation.py",
        readers / "torch/memory.py",
        readers / "torch/patches.py",
        readers / "onnx/quantized.py",
    }
    for path, (_, tree) in sources().items():
        if path in exempt or path.parts[0] == "benchmarks":
            continue
        here = late | ({"microbench"} if path.parts[:2] == ("lolat", "cli") else set())
        found = {n.removeprefix("lolat.").partition(".")[0] for n in imported_at_once(tree)}
        assert not found & here, path


def test_files_and_functions_are_small() -> None:
    for path, (text, tree) in sources().items():
        assert len(text.splitlines()) <= LONGEST, path
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                length = (node.end_lineno or 0) - node.lineno + 1
                assert length <= LONGEST_FUNCTION, f"{path}: {node.name} has {length} lines"


def docstrings(tree: ast.AST) -> Iterator[str]:
    """All texts that stand alone: of modules, classes, functions, and those behind a value."""
    for node in ast.walk(tree):
        body = getattr(node, "body", ())
        for line in body if isinstance(body, list) else ():
            if isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant):
                yield str(line.value.value).strip()


def test_docstrings_stand_alone() -> None:
    """They begin with the thing or a verb."""
    found = [
        f"{path}: {doc.splitlines()[0]}"
        for path, (_, tree) in sources().items()
        for doc in docstrings(tree)
        if LEANING.match(doc)
    ]
    assert not found, "\n".join(found)


def test_a_text_under_a_condition_is_no_product() -> None:
    """`x if condition else ""` is read once, `x * condition` twice."""
    for path, (_, tree) in sources().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
                text, other = ast.unparse(node.left), node.right
                is_condition = isinstance(other, ast.Compare) or ast.unparse(other).startswith(
                    ("not ", "bool(", "isinstance(", "any(", "all(")
                )
                is_text = text.startswith(("'", '"', "f'", 'f"', "["))
                assert not (is_text and is_condition), f"{path}:{node.lineno}: {text}"


def test_a_class_name_means_one_thing() -> None:
    defined = [
        node.name
        for path, (_, tree) in sources().items()
        for node in tree.body
        if path.parts[0] == "lolat" and isinstance(node, ast.ClassDef) and node.name[0] != "_"
    ]
    assert not {name for name in defined if defined.count(name) > 1}


def loaded_after(code: str) -> set[str]:
    """The top-level packages (and `lolat` modules) in sys.modules of a new process."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sorted(sys.modules))"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    return set(done.stdout.split())


def test_an_answer_from_counts_loads_not_even_numpy(tmp_path: Path) -> None:
    path = tmp_path / "desk.json"
    path.write_text(json.dumps(synthetic.document()))
    of_a_gpu = next((ROOT / "models").glob("a100-fp*.json"))
    code = "import lolat" + "".join(
        f"\nlolat.load({str(p)!r}).predict_counts(1, 2, 3, 4, 5, 6)" for p in (path, of_a_gpu)
    )
    heavy = {"scipy", "rich", "click", "lolat.readers", "lolat.microbench", *FRAMEWORKS}
    # What only networks need; it costs a tenth of the time of starting.
    of_networks = {"lolat.graph.blocks", "lolat.device.prediction"}
    loaded = loaded_after(code)
    assert not loaded & (heavy | of_networks | {"numpy"})
    of_a_network = (
        f"import lolat\nfrom tests.synthetic import network\nprint("
        f"lolat.load({str(path)!r}).predict(network()).to_dict()['latency_ms'])"
    )
    assert not loaded_after(of_a_network) & (heavy - {"click"})


# ---- What `import lolat` offers.


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
    "keras tensorflow torch torchvision timm transformers onnx scipy pandas rich sklearn optuna "
    "ray lolat.microbench"
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
        for make in (lambda: graph, None):
            assert kept.read(spec, 32, make) == graph
        kept.put_array(spec, None, "a", numpy.ones(2))
        assert kept.array(spec, None, "a") is not None
"""
PREDICTED = """
from lolat.cli.main import lolat, run
assert run(lolat, ["predict", "rtx-4090-amp", "keras:ResNet50"], "lolat") == 0
"""
STEPS = {
    "import lolat": "click",
    "import lolat.device.file": "click tempfile",
    "import lolat.readers": "",
    "import lolat.cli.main, lolat.cli.predict": "",
    # The package's lazy names must not shadow its modules.
    "import lolat, lolat.errors; assert lolat.load.__module__ == 'lolat.api.loading'": "",
    "import lolat; lolat.Model, lolat.InputError; from lolat import nas": "",
    "import lolat.nas.ranking": "",
    "import lolat.llm.config": "",
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
    if importlib.util.find_spec("keras") is None or bundled_graph("keras:ResNet50") is not None:
        steps[PREDICTED] = ""
    told = {code: f"{HEAVY} {more}" for code, more in steps.items()}
    done = python(LOADED, json.dumps(told))
    assert done.returncode == 0, done.stderr
    assert ("ResNet50" in done.stdout) == (PREDICTED in steps)
