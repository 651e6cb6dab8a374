"""examples/time_operations.py on the CPU: its table is one that `lolat fit` takes."""

from __future__ import annotations

import csv
import random
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from lolat.devices.operations import read_operations

SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "time_operations.py"


def test_the_table_is_one_of_operations(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    out = tmp_path / "operations.csv"
    given = [str(out), "--rows", "3", "--device", "cpu", "--seed", "3"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *given], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert f"next: lolat fit {out} --output mygpu.json" in done.stdout
    rows = read_operations(out)
    assert 1 <= len(rows) <= 3
    assert all(row.latency_ms > 0 for row in rows)


def test_every_kind_is_drawn_with_its_columns(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    script = runpy.run_path(str(SCRIPT))
    random.seed(1)
    out = tmp_path / "operations.csv"
    with open(out, "w", newline="") as file:
        writer = csv.DictWriter(file, script["COLUMNS"], restval="", lineterminator="\n")
        writer.writeheader()
        for number in range(36):
            writer.writerow({**script["drawn"](number), "latency_ms": "1"})
    names = {row.name for row in read_operations(out)}
    assert names == {"linear", "bmm", "conv", "softmax", "ln", "gelu", "add", "mul"}
