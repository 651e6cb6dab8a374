"""The examples of docs/how-to/pull-requests.md: scripts that ask first, and the workflow with a budget."""

from __future__ import annotations

import csv
import json
import os
import random
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import lolat
from lolat.api.model import Model
from lolat.graph.blocks import cut
from lolat.graph.counts import count
from lolat.readers import open_network
from lolat.tables.operations import read_operations
from tests import synthetic
from tests.cli.commands import Command
from tests.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
WORKFLOW = EXAMPLES / "latency_check.yml"
DOC = (ROOT / "docs/how-to/pull-requests.md").read_text(encoding="utf-8")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "desk.json"
    path.write_text(json.dumps(synthetic.document()))
    return path


@pytest.fixture
def trained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[str]]:
    """The output of a training script on one epoch of six samples, in two batches."""

    def run(script: str, *more: object) -> list[str]:
        pytest.importorskip(script.removesuffix(".py").removeprefix("train_"))
        few = ["--epochs", "1", "--samples", "6", "--batch-size", "4"]
        monkeypatch.setattr(sys, "argv", [script, *few, *map(str, more)])
        runpy.run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run


@pytest.mark.parametrize(
    ("script", "framework", "size"),
    [("train_torch.py", "torch", 32), ("train_keras.py", "keras", None)],
)
def test_a_script_asks_before_it_trains(
    model: Path, script: str, framework: str, size: int | None, trained: Callable[..., list[str]]
) -> None:
    lines = trained(script, "--lolat-model", model)
    network = lolat.read(f"examples.{script.removesuffix('.py')}:network", size)
    asked = Model.load(model).predict(network, 4)
    assert asked.interval_ms is not None
    low, high = asked.interval_ms
    assert lines[0] == (
        f"LoLat: a forward pass of 4 takes {asked.latency_ms:.3g} ms ({low:.3g} .. {high:.3g}), "
        "most of it"
    )
    most = sorted((b.latency_ms for b in asked.blocks), reverse=True)[:3]
    assert [float(line.split(": ")[1].split(" ms")[0]) for line in lines[1:4]] == [
        float(f"{ms:.3g}") for ms in most
    ]
    notes = [line for line in lines if line.startswith("  note: ")]
    assert notes == [f"  note: {w}" for w in asked.warnings]
    # The model was learned with TensorFlow.
    assert any("PyTorch runs this network" in n for n in notes) == (framework == "torch")
    (loss,) = [i for i, line in enumerate(lines) if "loss" in line]
    assert loss > 3  # first the answer, then the training
    # Without the option it trains as ever.
    lines = trained(script)
    assert not any("LoLat" in line for line in lines)
    assert sum("loss" in line for line in lines) == 1


def test_both_scripts_train_the_same_network() -> None:
    pytest.importorskip("keras")
    pytest.importorskip("torch")
    from lolat.graph.counts import count

    of_torch = count(lolat.read("examples.train_torch:network", 32))
    of_keras = count(lolat.read("examples.train_keras:network"))
    assert of_torch.at(32).sum(0).tolist() == of_keras.at(32).sum(0).tolist()


def test_the_workflow_holds_a_budget(tmp_path: Path) -> None:
    """Its lines are run as GitHub runs them: by `bash -e`, with what is under `env`."""
    pytest.importorskip("keras")
    pytest.importorskip("onnx")
    from tests.readers.onnx_networks import model, node, saved

    yaml = pytest.importorskip("yaml")
    found = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))
    (shown,) = re.findall(r"^```yaml[^\n]*\n(.*?)^```$", DOC, re.M | re.S)
    assert yaml.safe_load(shown) == found
    assert found[True] == "pull_request"  # `on` is a truth value to YAML 1.1
    (job,) = found["jobs"].values()
    install, predict, report = [s for s in job["steps"] if "run" in s]
    assert report["if"] == "failure()"
    assert "if" not in predict
    (extra,) = re.findall(r"\$LOLAT\[(\w+)\]", install["run"])
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert extra in project["optional-dependencies"]

    command = tmp_path / "bin" / "lolat"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m lolat.cli.main "$@"\n')
    command.chmod(0o755)
    summary = tmp_path / "summary.md"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    env |= {k: str(v) for k, v in job["env"].items()} | {
        "PATH": f"{command.parent}:{os.environ['PATH']}",
        "GITHUB_STEP_SUMMARY": str(summary),
    }

    def step(script: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-e", "-c", script],
            capture_output=True, text=True, timeout=PATIENCE_S, cwd=ROOT, env=env | changes, check=False,
        )  # fmt: skip

    # A file is read faster than Keras is imported; the network that is named there is read by the page's
    # commands below.
    assert env["NETWORK"] == "examples.train_keras:network"
    file = saved(tmp_path, model([node("Conv", "x w", "y")], x=("N", 3, 64, 64), w=(8, 3, 3, 3)))
    held = step(predict["run"], NETWORK=file)
    assert held.returncode == 0, held.stderr
    assert held.stderr == ""
    (latency,) = re.findall(
        r"^network · batch 1 · \S+ · [^:]+: ([\d.]+) ms", held.stdout, re.MULTILINE
    )
    assert float(latency) < float(env["BUDGET_MS"])
    broken = step(predict["run"], BUDGET_MS="0.001", NETWORK=file)
    assert broken.returncode == 3
    (line,) = broken.stderr.splitlines()
    assert line.startswith(
        "lolat: network · batch 1 · 3x64x64 · fp32, TensorFlow on epyc-2t may take "
    )
    assert "of --max-ms" in line
    told = step(report["run"], NETWORK=file)
    assert told.returncode == 0, told.stderr
    written = summary.read_text(encoding="utf-8")
    title = r"network · batch 1 · [\dx]+ · fp32, TensorFlow"
    assert re.fullmatch(rf"~~~\n{title}: [\d.]+ ms.*\n~~~\n", written, re.DOTALL)


def test_the_commands_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("keras")
    shown = [shlex.split(line, comments=True) for line in DOC.splitlines()
             if line.startswith(("lolat predict", "python "))]  # fmt: skip
    checks = [
        words for words in shown if words[0] == "lolat" and "examples.train_keras:network" in words
    ]
    assert len(checks) == 2
    for words in shown:
        if words[0] == "python":  # run above; here: what they are asked exists
            assert Model.load(words[words.index("--lolat-model") + 1])
    for words in checks:
        found = Command(capsys)(*words[1:])
        assert found.code == 0, found.err


def test_the_page_shows_what_the_script_prints(trained: Callable[..., list[str]]) -> None:
    lines = trained("train_torch.py", "--batch-size", 32, "--lolat-model", "epyc-2t-torch")
    printed = "\n".join(lines[: next(n for n, line in enumerate(lines) if "loss" in line)])
    assert printed.startswith("LoLat: ")
    assert f"```\n{printed}\n```" in DOC


# ---- The example networks are what they say; time_network_operations.py writes a table for `lolat fit`.


def encoder(tokens: int, features: int, blocks: int) -> int:
    """Projections, products of the tokens with each other, and a perceptron, in each block."""
    return blocks * (12 * tokens * features**2 + 2 * tokens**2 * features)


def unet() -> int:
    """Pairs of 3x3 convolutions down and up, the middle, 2x2 transposed convolutions, the last."""
    levels = ((256, 3, 32), (128, 32, 64), (64, 64, 128), (32, 128, 256))
    down = sum(9 * side**2 * f * (before + f) for side, before, f in levels)
    up = sum(side**2 * 2 * f * f + 9 * side**2 * 3 * f * f for side, _, f in levels)
    return down + 9 * 16**2 * 256 * 512 + up + 256**2 * 32 * 2


def mobilenet_v2(pixels: int) -> int:
    """The table of the paper: expansion, channels, repeats, stride of each row."""
    rows = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
            (6, 160, 3, 2), (6, 320, 1, 1))  # fmt: skip
    side, channels = pixels // 2, 32
    macs = side**2 * 9 * 3 * 32
    for factor, out, repeats, stride in rows:
        for step in (stride, *[1] * (repeats - 1)):
            wide = factor * channels
            macs += side**2 * channels * wide * (factor > 1)
            side //= step
            macs += side**2 * wide * (9 + out)
            channels = out
    return macs + side**2 * channels * 1280


MACS = {
    "line": 4,
    "perceptron": 100 * 256 + 256 * 256 + 256 * 10,
    "wide": 25088 * 4096 + 4096 * 4096,
    "deep": 200 * 32 * 32 * 16 * 16 * 9,
    # windows of 80 at every 4th of 16000 samples, pooled by 4; then 3 over 64 channels
    "sound": 3981 * 64 * 80 + (3981 // 4 - 2) * 128 * 3 * 64 + 128 * 35,
    "vit": 196 * 192 * 16 * 16 * 3 + encoder(196, 192, 12) + 192 * 1000,
    "transformer": encoder(128, 256, 4) + 256 * 10,
    "unet": unet(),
    "transfer": mobilenet_v2(160) + 1280 * 5,
    # four gates in two directions, then three gates
    "recurrent": 80 * (2 * 4 * 64 * (128 + 64) + 3 * 32 * (128 + 32)) + 32,
}
"""Multiply-accumulates of each network, by hand."""


@pytest.mark.parametrize("name", MACS)
def test_an_example_reads_without_warnings(name: str) -> None:
    pytest.importorskip("keras")
    graph = open_network(f"examples.networks:{name}").graph()
    assert count(graph).warnings == ()
    assert cut(graph)
    assert count(graph).total().flops == MACS[name]


SCRIPT = EXAMPLES / "time_network_operations.py"


@pytest.fixture
def timed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """The output of the script on the CPU."""
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
