"""examples/time_operations.py on the CPU: its table is one that `lolat fit` takes."""

from __future__ import annotations

import csv
import random
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from lolat.devices.tables import read_operations

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


def test_those_of_a_table(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    todo, out = tmp_path / "todo.csv", tmp_path / "operations.csv"
    todo.write_text(
        "op,batch,m,n,k,in_channels,out_channels,kernel,input_size,stride,padding,rows,width\n"
        "linear,2,16,64.0,32,,,,,,,,\nconv,1,,,,16,8,3,14,2,1,,\npow,,,,,,,,,,,8,64\n"
        "mulu,,,,,,,,,,,8,64\nsigmoid,,,,,,,,,,,8,64\n"
    )
    subprocess.run(
        [sys.executable, str(SCRIPT), str(out), "--table", str(todo), "--device", "cpu"], check=True
    )
    rows = read_operations(out)
    assert [r.name for r in rows] == ["linear", "conv", "pow", "mulu", "sigmoid"]
    assert rows[0].graph.operations[0].attributes["in_features"] == 64


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
