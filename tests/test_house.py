"""The rules of the house: who may import whom, when frameworks are loaded, sizes of files, docstrings."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lolat
from lolat import errors

ROOT = Path(__file__).resolve().parent.parent
FRAMEWORKS = {"tensorflow", "keras", "torch", "torchvision", "onnx", "onnxruntime", "jax"}

# What each module may import of lolat at all, besides its own group. `base`: errors and units.
GROUPS = {
    "base": {"lolat.errors", "lolat.units", "lolat.kernel_terms", "lolat.modes"},
    "graph": {"lolat.graph"},
    "counts": {
        "lolat.counts",
        "lolat.families",
        "lolat.kinds",
        "lolat.paths",
        "lolat.work",
        "lolat.fusion",
    },
    "blocks": {
        "lolat.subgraph",
        "lolat.naming",
        "lolat.summaries",
        "lolat.segments",
        "lolat.blocks",
    },
    "variations": {"lolat.variations"},
    "readers": {"lolat.readers"},
    "fitting": {"lolat.fitting", "lolat.nnls"},
    "predictors": {"lolat.predictors"},
    "file": {
        "lolat.checks",
        "lolat.nesting",
        "lolat.schema",
        "lolat.json_file",
        "lolat.model_file",
        "lolat.places",
    },
    "points": {"lolat.points", "lolat.intervals", "lolat.domain"},
    "model": {"lolat.model", "lolat.prediction", "lolat.remarks", "lolat.state"},
    "answers": {"lolat.receipts", "lolat.explain", "lolat.largest", "lolat.budget"},
    "learning": {"lolat.learning"},
    "comparison": {"lolat.comparison"},
    "report": {"lolat.report"},
    "mlp": {"lolat.mlp"},
    "nas": {"lolat.nas"},
    "training": {"lolat.training"},
    "devices": {"lolat.devices"},
    "web": {"lolat.web"},
    "microbench": {"microbench"},
    "cli": {"lolat.cli", "learn_model"},
    "public": {"lolat"},  # lolat/__init__.py, which imports on demand
}
MAY = {
    "base": set(),
    "graph": {"base"},
    "counts": {"base", "graph"},
    "blocks": {"base", "graph", "counts"},
    "variations": {"base", "graph", "counts", "blocks"},
    "readers": {"base", "graph", "counts", "blocks"},
    "fitting": {"base"},
    "predictors": {"base", "counts", "fitting"},
    "file": {"base"},
    "points": {"base", "counts"},
    "model": {"base", "graph", "counts", "blocks", "predictors", "file", "points"},
    "answers": {"base", "graph", "counts", "blocks", "variations", "model"},
    "learning": {"base", "counts", "fitting", "predictors", "file", "points"},
    "comparison": {
        "base",
        "graph",
        "counts",
        "blocks",
        "readers",
        "fitting",
        "predictors",
        "points",
    },
    "report": {
        "base",
        "graph",
        "counts",
        "predictors",
        "points",
        "model",
        "answers",
        "learning",
        "comparison",
    },
    "mlp": {"base", "graph", "counts", "fitting", "predictors", "file", "points", "model"},
    "nas": {
        "base",
        "graph",
        "counts",
        "blocks",
        "readers",
        "fitting",
        "predictors",
        "file",
        "points",
        "model",
    },
    "training": {
        "base",
        "graph",
        "counts",
        "blocks",
        "readers",
        "fitting",
        "predictors",
        "file",
        "points",
        "model",
    },
    "devices": {
        "base",
        "graph",
        "counts",
        "readers",
        "file",
        "predictors",
        "points",
        "model",
        "learning",
        "training",
    },
    "microbench": {
        "base",
        "graph",
        "counts",
        "blocks",
        "readers",
        "points",
        "fitting",
        "file",
        "mlp",
        "training",
    },
    "web": {
        "base",
        "graph",
        "counts",
        "readers",
        "file",
        "points",
        "training",
        "report",
    },
    "cli": set(GROUPS) - {"microbench", "cli", "public"},  # microbench in functions: see below
    "public": {"graph", "model", "readers"},
}
# Where a framework may be named; everywhere else even an import inside a function is wrong.
HOMES = {
    "lolat/readers/keras": {"keras", "tensorflow"},
    "lolat/readers/torch": {"torch", "torchvision"},
    "lolat/readers/onnx": {"onnx"},
    "microbench/backends/tensorflow": {"keras", "tensorflow"},
    "microbench/backends/torch": {"torch", "torchvision"},
    "microbench/backends/onnxruntime": {"onnx", "onnxruntime"},
    "lolat/mlp/keras_training": {"keras", "tensorflow"},
    "lolat/nas/adapters": {"keras", "tensorflow", "torch"},
}
LONGEST = 500


def sources() -> list[Path]:
    """Every module of the packages, as a path from the root."""
    found = [p for package in ("lolat", "microbench") for p in (ROOT / package).rglob("*.py")]
    return sorted(p.relative_to(ROOT) for p in [*found, ROOT / "learn_model.py"])


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def group_of(module: str) -> str:
    """The group of a module: that of its longest prefix in GROUPS."""
    fits = [
        (len(member), group)
        for group, members in GROUPS.items()
        for member in members
        if module == member or (module.startswith(member + ".") and member != "lolat")
    ]
    assert fits, f"{module} belongs to no group of tests/test_house.py: say what it may import"
    return max(fits)[1]


def imports(tree: ast.AST, package: str, top_only: bool = False) -> Iterator[str]:
    """Names of imported modules; with `top_only` not those inside functions or TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *base.split(".")]).strip(
                    "."
                )
            # `from lolat import errors` imports lolat.errors.
            known = {module_name(p) for p in sources()}
            for alias in node.names:
                yield f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
            for argument in node.args[:1]:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value
            yield from imports(node, package, top_only)
        elif top_only and (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
            or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test))
        ):
            continue
        else:
            yield from imports(node, package, top_only)


def faults(path: Path, code: str) -> list[str]:
    """What the imports of a module break."""
    tree = ast.parse(code)
    name = module_name(path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    group = group_of(name)
    found = []
    for imported in imports(tree, package):
        top = imported.partition(".")[0]
        if top in FRAMEWORKS:
            homes = [h for h in HOMES if path.as_posix().startswith(h) and top in HOMES[h]]
            if not homes:
                found.append(f"{path} imports {imported}")
        elif top in ("lolat", "microbench"):
            other = group_of(imported)
            in_function = group == "cli" and other == "microbench"
            # The version alone: `from lolat import __version__`.
            version = imported == "lolat" and "__version__" in code
            if other != group and other not in MAY[group] and not in_function and not version:
                found.append(f"{path} ({group}) imports {imported} ({other})")
    for imported in imports(tree, package, top_only=True):
        if group == "cli" and imported.startswith("microbench"):
            found.append(f"{path} imports {imported} before it is asked to measure")
        if imported.partition(".")[0] in FRAMEWORKS | {"scipy", "sklearn", "rich", "matplotlib"}:
            found.append(f"{path} imports {imported} at its top")
    return found


@pytest.mark.parametrize("path", sources(), ids=str)
def test_imports_follow_the_design(path: Path) -> None:
    assert faults(path, (ROOT / path).read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("lolat/graph.py", "from lolat.counts import count"),
        ("lolat/counts.py", "from lolat import blocks"),
        ("lolat/blocks.py", "import lolat.readers.keras"),
        ("lolat/fitting.py", "from lolat.predictors.extended import Extended"),
        ("lolat/predictors/extended.py", "from lolat.model import Model"),
        ("lolat/model.py", "def f():\n    from lolat.readers import read"),
        ("lolat/model.py", "def f():\n    from lolat.report import text"),
        ("lolat/report/text.py", "import microbench.learn"),
        ("lolat/report/text.py", "def f():\n    import rich, tensorflow"),
        ("lolat/report/text.py", "from lolat.cli.main import main"),
        ("lolat/cli/evaluate.py", "from microbench import environment"),
        ("lolat/cli/predict.py", "def f():\n    import keras"),
        ("lolat/readers/keras.py", "import keras"),
        ("lolat/readers/keras.py", "def f():\n    import torch"),
        ("lolat/readers/keras.py", "def f():\n    import importlib\n    importlib.import_module('torch')"),
        ("lolat/readers/__init__.py", "def f():\n    from keras import Model"),
        ("lolat/fitting.py", "from scipy.optimize import nnls"),
        ("lolat/units.py", "from . import graph"),
        ("lolat/predictors/formula.py", "from ..report import words"),
        ("lolat/schema.py", "class A:\n    import lolat.model"),
        ("microbench/timer.py", "from lolat.cli import progress"),
        ("microbench/timer.py", "from lolat.report import text"),
    ],
)  # fmt: skip
def test_a_forbidden_import_is_seen(path: str, line: str) -> None:
    code = (ROOT / path).read_text(encoding="utf-8")
    assert faults(Path(path), code) == []
    assert len(faults(Path(path), f"{code}\n{line}\n")) >= 1


def test_every_group_may_import_only_what_comes_before_it() -> None:
    seen: set[str] = set()
    for group in GROUPS:  # in the order of the design
        if group != "public":
            assert MAY[group] <= seen, group
        seen.add(group)


@pytest.mark.parametrize("path", sources(), ids=str)
def test_files_are_small(path: Path) -> None:
    lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
    assert lines <= LONGEST


def public(node: ast.AST) -> bool:
    return isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_")


@pytest.mark.parametrize("path", sources(), ids=str)
def test_what_is_public_says_what_it_is(path: Path) -> None:
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    found = [n for n in tree.body if public(n)]
    for holder in [n for n in tree.body if isinstance(n, ast.ClassDef) and public(n)]:
        found += [n for n in holder.body if public(n)]
    lacking = [n.name for n in found if not ast.get_docstring(n)]  # type: ignore[attr-defined]
    assert lacking == []
    if tree.body:
        assert ast.get_docstring(tree)


def test_every_error_has_its_exit_code() -> None:
    codes = {
        name: cls.exit_code
        for name, cls in inspect.getmembers(errors, inspect.isclass)
        if issubclass(cls, errors.LolatError)
    }
    assert codes == {
        "LolatError": 1,
        "MeasuringError": 1,
        "InputError": 2,
        "ModelFileError": 2,
        "NetworkError": 2,
        "MissingPackageError": 2,
        "DeviceError": 2,
        "AnswerIsNo": 3,
    }


def loaded_after(code: str) -> set[str]:
    """The top-level packages (and `lolat` modules) in sys.modules of a new process."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sorted(sys.modules))"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    return set(done.stdout.split())


def test_importing_lolat_loads_nothing_heavy() -> None:
    assert not loaded_after("import lolat") & {"numpy", "scipy", "rich", "click", *FRAMEWORKS}


def test_an_answer_from_counts_loads_only_numpy(tmp_path: Path) -> None:
    import json

    from tests import synthetic

    path = tmp_path / "desk.json"
    path.write_text(json.dumps(synthetic.document()))
    code = f"import lolat\nlolat.load({str(path)!r}).predict_counts(1, 2, 3, 4, 5, 6)"
    heavy = {"scipy", "rich", "click", "matplotlib", "lolat.readers", "microbench", *FRAMEWORKS}
    found = loaded_after(code)
    assert "numpy" in found
    assert not found & heavy
    # What only networks need; it costs a tenth of the time of starting.
    assert not found & {"lolat.blocks", "lolat.naming", "lolat.prediction", "lolat.intervals"}
    of_a_network = (
        f"import lolat\nfrom tests.synthetic import network\nprint("
        f"lolat.load({str(path)!r}).predict(network()).to_dict()['latency_ms'])"
    )
    assert not loaded_after(of_a_network) & (heavy - {"click"})


def test_a_reader_is_imported_without_its_framework() -> None:
    assert not loaded_after("import lolat.readers") & {*FRAMEWORKS, "scipy"}
    assert not loaded_after("import lolat.cli.main, lolat.cli.predict") & {
        *FRAMEWORKS, "scipy", "rich", "matplotlib", "microbench",
    }  # fmt: skip


def test_the_version_is_said_once() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == lolat.__version__
