"""Rows that are left out: three lines at most, and networks that a bare name may be."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from lolat.errors import NetworkError
from lolat.tables import left_out
from lolat.tables.left_out import LeftOut, near_names


def test_at_most_three_lines_that_count_every_row() -> None:
    found = LeftOut()
    found.add("of another device", rows=4)
    for name in ("a", "b", "c"):
        found.network(
            name, f"timm:{name}", NetworkError(f"no network {name}", code="unknown-network")
        )
    assert [*found.told(" rows of t.csv")] == [
        "4 rows of t.csv left out: of another device",
        "3 rows of t.csv left out: a: no network a (and 2 more like it: b, c)",
    ]
    for number in (1, 2):
        found.add(f"cell {number}", "cells", place=f"line {number + 6}")
    assert len([*found.told()]) == 3
    found.add("on several devices")
    assert [*found.told()][1:] == [
        "3 left out: a: no network a (and 2 more like it: b, c)",
        "3 left out for 2 other reasons, such as: line 7: cell 1 (and 1 more like it: line 8)",
    ]
    assert str(found).startswith(
        "4 x of another device; 3 x a: no network a (and 2 more like it: b, c); 2 x"
    )
    assert str(found).endswith("; and 1 other reasons")
    assert found.reasons["cell 2"] == 1
    assert (str(LeftOut()), [*LeftOut().told()]) == ("", [])


def test_networks_that_a_bare_name_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of an installed package too, and of the same name before similar ones."""
    names = {"torchvision": ["resnet50", "resnet500"], "timm": ["resnet50", "vit_tiny"]}
    for package, listed in names.items():
        module = SimpleNamespace(list_models=listed.copy)
        for name in (package, f"{package}.models"):
            monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(left_out, "installed_version", lambda package: "1")
    left_out._known.cache_clear()
    near = {name: near_names(name) for name in ("resnet50", "ResNet50", "vit-tiny", "xyz")}
    left_out._known.cache_clear()
    assert near["resnet50"] == near["ResNet50"]
    assert near["resnet50"] == ["torchvision:resnet50", "timm:resnet50", "keras:ResNet50"]
    assert (near["vit-tiny"], near["xyz"]) == (["timm:vit_tiny"], [])
