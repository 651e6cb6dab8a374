"""What `import lolat` offers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import lolat


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


def test_submodules_are_reached_by_the_package() -> None:
    """`import lolat` and then `lolat.errors` must not be shadowed by the lazy names."""
    code = "import lolat, lolat.errors; print(lolat.load.__module__, lolat.errors.InputError)"
    root = Path(__file__).resolve().parent.parent
    done = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=root)
    assert done.split()[0] == "lolat.api"
