"""The example networks are what they say; the table of time_operations.py is one that `lolat fit` takes."""

from __future__ import annotations

import csv
import random
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lolat.devices.tables import read_operations
from lolat.graph.blocks import cut
from lolat.graph.counts import count
from lolat.readers import open_network

EXAMPLES = ("unet", "vit", "transformer", "transfer", "sound", "recurrent", "deep", "wide",
            "perceptron", "line")  # fmt: skip
PER_BLOCK = 4 * 196 * 192 * 192 + 2 * 196 * 196 * 192 + 2 * 196 * 192 * 768
MACS = {
    "line": 4,
    "perceptron": 100 * 256 + 256 * 256 + 256 * 10,
    "wide": 25088 * 4096 + 4096 * 4096,
    "deep": 200 * 32 * 32 * 16 * 16 * 9,
    # windows of 80 at every 4th of 16000 samples, pooled by 4; then 3 over 64 channels
    "sound": 3981 * 64 * 80 + (3981 // 4 - 2) * 128 * 3 * 64 + 128 * 35,
    "vit": 196 * 192 * 16 * 16 * 3 + 12 * PER_BLOCK + 192 * 1000,
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_reads_without_warnings(name: str) -> None:
    pytest.importorskip("keras")
    graph = open_network(f"examples.networks:{name}").graph()
    assert count(graph).warnings == ()
    assert cut(graph)
    assert count(graph).total().flops == MACS.get(name, count(graph).total().flops)


SCRIPT = Path(__file__).resolve().parent.parent / "examples" / "time_operations.py"


@pytest.fixture
def timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """What the script prints, on the CPU."""
    cudnn = pytest.importorskip("torch").backends.cudnn
    monkeypatch.setattr(cudnn, "allow_tf32", cudnn.allow_tf32)  # which the script changes

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *map(str, arguments), "--device", "cpu"])
        runpy.run_path(str(SCRIPT), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_the_table_is_one_of_operations(tmp_path: Path, timed: Callable[..., str]) -> None:
    out = tmp_path / "operations.csv"
    assert f"lolat fit {out} --output" in timed(out, "--rows", "3", "--seed", "3")
    rows = read_operations(out)
    assert 1 <= len(rows) <= 3
    assert all(row.latency_ms > 0 for row in rows)


def test_those_of_a_table(tmp_path: Path, timed: Callable[..., str]) -> None:
    todo, out = tmp_path / "todo.csv", tmp_path / "operations.csv"
    todo.write_text(
        "op,batch,m,n,k,in_channels,out_channels,kernel,input_size,stride,padding,rows,width\n"
        "linear,2,16,64.0,32,,,,,,,,\nconv,1,,,,16,8,3,14,2,1,,\npow,,,,,,,,,,,8,64\n"
        "mulu,,,,,,,,,,,8,64\nsigmoid,,,,,,,,,,,8,64\n"
    )
    timed(out, "--table", todo)
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
        writer.writerows({**script["drawn"](number), "latency_ms": "1"} for number in range(36))
    names = {row.name for row in read_operations(out)}
    assert names == {"linear", "bmm", "conv", "softmax", "ln", "gelu", "add", "mul"}
