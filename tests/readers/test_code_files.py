"""Networks of several files of a user, read by one process."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lolat
from lolat.readers.user_objects import attribute_of
from tests.readers.torch_networks import total


def _project(folder: Path, width: int, form: str = "package", late: bool = False) -> str:
    """Write a network whose width is in a helper; return its name."""
    inner = folder / "proj" if form == "package" else folder
    inner.mkdir(parents=True)
    if form == "package":
        (inner / "__init__.py").write_text("")
    (inner / "widths.py").write_text(f"W = {width:4d}\n")
    start = {"package": "from .widths import W", "flat": "from widths import W"}[form]
    early, inside = ("", f"    {start}\n") if late else (f"{start}\n", "")
    make = f"def net():\n{inside}    return nn.Conv2d(3, W, 3, bias=False)\n"
    (inner / "net.py").write_text(f"import torch.nn as nn\n{early}{make}")
    return f"{inner / 'net.py'}:net"


def _width(spec: str) -> float:
    """The width that the multiply-accumulates of `_project`'s network tell: 3 x 3 x 3 at 8 x 8 places."""
    return total(lolat.read(spec, 10)).flops / (27 * 64)


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave no module and no path of the files that are run."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = dict(sys.modules)
    yield
    for name in {"proj", "proj.net", "proj.widths", "net", "widths", "notes"} - set(known):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("form", ["package", "flat"])
def test_two_versions_of_a_project_are_two(
    alone: None, tmp_path: Path, form: str, late: bool
) -> None:
    old = _project(tmp_path / "old", 64, form, late)
    new = _project(tmp_path / "old" / "new", 512, form, late)  # in the folder of the other
    assert [_width(spec) for spec in (old, new, old, new)] == [64, 512, 64, 512]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("form", ["package", "flat"])
def test_a_helper_that_was_edited_is_read_anew(
    alone: None, tmp_path: Path, form: str, late: bool
) -> None:
    """Also within a second, at the same size, for which Python keeps its bytecode."""
    spec = _project(tmp_path / "one", 64, form, late)
    helper = Path(spec.rpartition(":")[0]).with_name("widths.py")
    for width in (64, 128, 32):
        helper.write_text(f"W = {width:4d}\n")
        assert _width(spec) == width


def test_a_module_by_its_name_that_was_edited_is_read_anew(
    alone: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that the caller imported stays, as Python has it."""
    monkeypatch.chdir(tmp_path)
    file = Path(_project(tmp_path, 64).rpartition(":")[0])
    for width in (64, 128, 32):
        file.write_text(
            f"import torch.nn as nn\ndef net(): return nn.Conv2d(3, {width:4d}, 3, bias=False)\n"
        )
        assert _width("proj.net:net") == width
    for name in ("proj.net", "proj"):
        sys.modules.pop(name)
    importlib.import_module("proj.net")
    file.write_text(file.read_text().replace("  32", " 256"))
    assert _width("proj.net:net") == 32


def test_a_helper_of_two_files_is_one_module(alone: None, tmp_path: Path) -> None:
    """Its classes are then the same for a space and for an objective."""
    spec = _project(tmp_path / "one", 64, "flat")
    (tmp_path / "one" / "notes.py").write_text("import widths")
    _width(spec)
    helper = sys.modules["widths"]
    assert attribute_of(f"{tmp_path}/one/notes.py:widths", "space", "") is helper


def test_modules_of_the_caller_stay_its_own(alone: None, tmp_path: Path) -> None:
    old, new = (_project(tmp_path / name, w, "flat") for name, w in (("old", 64), ("new", 512)))
    sys.path.insert(0, str(tmp_path / "old"))
    importlib.invalidate_caches()
    mine, net = importlib.import_module("widths"), importlib.import_module("net")
    for spec, width in ((new, 512), (old, 64), (new, 512)):
        assert _width(spec) == width
        assert (sys.modules["widths"], sys.modules["net"]) == (mine, net)
    assert mine.W == 64
