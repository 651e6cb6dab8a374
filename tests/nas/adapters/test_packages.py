"""What is said where a package is missing, and that nothing is imported before it is used."""

from __future__ import annotations

import math
import sys

import pytest

from lolat.errors import InputError, MissingPackageError
from lolat.nas.adapters import budget, needed

MODULES = ("lookup_table", "mixture", "nni", "optuna", "ray_tune")


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = (
        "Optuna is needed for this and cannot be imported .*; install it with: "
        r"pip install .*\[optuna\]'"
    )
    with pytest.raises(MissingPackageError, match=said):
        needed("optuna", "Optuna", "optuna")


@pytest.mark.parametrize("wrong", [0, -1.0, math.nan])
def test_no_budget(wrong: float) -> None:
    with pytest.raises(InputError, match=r"max_ms is .*; expected .* milliseconds above 0"):
        budget(wrong)
