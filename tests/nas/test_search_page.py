"""docs/how-to/search.md: every example runs (Ray's: in test_ray.py)."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import lolat

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/how-to/search.md").read_text(encoding="utf-8")
EXAMPLES = {
    (section.splitlines()[0].lower().replace(" ", "_"), number): code
    for section in re.split(r"^##+ ", TEXT, flags=re.M)
    for number, code in enumerate(re.findall(r"^```python\n(.*?)^```$", section, re.M | re.S), 1)
}
RAY, FRAGMENT = ("ray_tune", 1), ("spaces", 2)


def run(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """An example as a script of its own, in a folder of its own; its names afterwards."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HOME", str(folder))  # Ray's results
    known: dict[str, Any] = {"__name__": "example"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tools themselves
        exec(compile(code, "docs/how-to/search.md", "exec"), known)
    return known


@pytest.mark.parametrize("name", sorted(EXAMPLES.keys() - {RAY, FRAGMENT}), ids=str)
def test_an_example_runs(
    name: tuple[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for package in ("optuna", "torch"):
        if f"import {package}" in EXAMPLES[name]:
            pytest.importorskip(package)
    run(EXAMPLES[name], tmp_path, monkeypatch)
    told = [float(n) for n in re.findall(r"\d+\.\d+(?:e-?\d+)?", capsys.readouterr().out)]
    assert bool(told) == ("print(" in EXAMPLES[name]), "a latency"
    assert all(0 <= number < 1e4 for number in told)


def test_the_look_up_table_adds_up_to_whole_networks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = run(EXAMPLES["a_look-up_table", 1], tmp_path, monkeypatch)["space"]
    table = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    model = lolat.load("epyc-2t")
    for row in space.sample(5, seed=1):
        chosen = space.values(row).items()
        ms = table["constant_ms"] + sum(table["layers"][name][choice] for name, choice in chosen)
        assert ms == pytest.approx(model.predict(space.network(row)).latency_ms, rel=1e-9)
