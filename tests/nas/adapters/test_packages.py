"""What is said where a package is missing, and that nothing is imported before it is used."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from lolat.errors import InputError, MissingPackageError
from lolat.nas.adapters.common import needed, row_of
from tests.nas.test_space import small

MODULES = (
    "keras_mixture", "lookup_table", "milliseconds", "mixture", "nni", "nni_meter", "optuna", "ray_tune",
    "torch_mixture",
)  # fmt: skip
VALUES = {"width 1": 16, "kernel 2": 5, "width 2": 12, "kernel 3": 3, "width 3": 32}


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = (
        "Optuna is needed for this and cannot be imported .*; install it with: "
        r"pip install 'lolat\[optuna\]'"
    )
    with pytest.raises(MissingPackageError, match=said):
        needed("optuna", "Optuna", "lolat[optuna]")


def test_an_adapter_imports_nothing_until_it_is_used() -> None:
    names = ", ".join(f"lolat.nas.adapters.{m}" for m in MODULES)
    code = (
        f"import {names}\nimport sys\n"
        "print(*{m.partition('.')[0] for m in sys.modules} & "
        "{'optuna', 'ray', 'nni', 'nn_meter', 'torch', 'keras', 'tensorflow', 'onnx'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_candidate_by_its_values() -> None:
    assert row_of(small(), {**VALUES, "learning rate": 0.1}).tolist() == [1, 2, 1, 0, 1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kernel 2": 4}, "'kernel 2' is 4; expected one of 1, 3, 5"),
        ({"kernel 2": True}, "'kernel 2' is True; expected one of 1, 3, 5"),
        ({"kernel 2": None}, "no value for 'kernel 2' of space 'small'; expected one of 1, 3, 5"),
    ],
)
def test_wrong_values(change: dict[str, Any], said: str) -> None:
    values = {k: v for k, v in {**VALUES, **change}.items() if v is not None}
    with pytest.raises(InputError, match=said):
        row_of(small(), values)
