"""`lolat fit` of whole networks, then `predict`, `evaluate --table` and `models`, as a user would."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from lolat.model.file import read
from tests.cli.commands import Command
from tests.readers.onnx_networks import model, node, saved

MACS_PER_MS, BYTES_PER_MS = 1e8, 1e7


@pytest.fixture
def lolat(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    monkeypatch.setenv("LOLAT_CACHE", str(tmp_path / "cache"))
    return Command(capsys)


def network(folder: Path, channels: int, layers: int) -> str:
    """A file with `layers` of 3x3 convolutions on 32x32, each followed by a relu."""
    nodes, weights, before = [], {}, "x"
    for i in range(layers):
        weights[f"w{i}"] = (channels, 3 if i == 0 else channels, 3, 3)
        nodes.append(node("Conv", f"{before} w{i}", f"c{i}", kernel_shape=[3, 3], pads=[1] * 4))
        before = "y" if i == layers - 1 else f"r{i}"
        nodes.append(node("Relu", f"c{i}", before))
    made = model(nodes, ("N", 3, 32, 32), **weights)
    return saved(folder, made, f"net{channels}x{layers}.onnx")


def by_hand(channels: int, layers: int, batch: int) -> float:
    """ms on a device that computes tiles of 64 channels, or moves, whatever is longer; then relus."""
    pixels = batch * 32 * 32
    ms = 0.0
    for i in range(layers):
        inside = 3 if i == 0 else channels
        macs = pixels * 64 * math.ceil(channels / 64) * inside * 9
        moved = 4 * (pixels * (inside + channels) + channels * inside * 9)
        ms += max(macs / MACS_PER_MS, moved / BYTES_PER_MS) + 8 * pixels * channels / BYTES_PER_MS
    return ms


def table(folder: Path, *more: str) -> Path:
    lines = ["network,batch_size,latency_ms"]
    for channels in (16, 32, 48, 64, 96):
        for layers in (2, 4, 6):
            name = network(folder, channels, layers)
            lines += [f"{name},{b},{by_hand(channels, layers, b):.5f}" for b in (4, 16)]
    path = folder / "networks.csv"
    path.write_text("\n".join([*lines, *more]) + "\n")
    return path


def test_from_networks_to_others(lolat: Command, tmp_path: Path) -> None:
    out = tmp_path / "desk.json"
    found = lolat.done("fit", table(tmp_path), "--name", "desk", "--output", out)
    assert found.out.splitlines()[0] == "desk (from 30 networks, float32) · torch"
    assert "all networks are of one family (net)" in found.err
    document = read(out)
    assert document["default"] == "kernels"
    other = network(tmp_path, 80, 5)
    answer = lolat.json("predict", out, other, "--batch-size", 8)
    assert answer["latency_ms"] == pytest.approx(by_hand(80, 5, 8), rel=0.15)
    assert answer["in_domain"] is True
    judged = tmp_path / "others.csv"
    judged.write_text(f"network,batch_size,latency_ms\n{other},8,{by_hand(80, 5, 8)}\n")
    rows = tmp_path / "rows.csv"
    found = lolat.done("evaluate", out, "--table", judged, "--predictions", rows)
    assert f"{other} · batch 8: " in found.out
    (row,) = csv.DictReader(rows.read_text().splitlines())
    assert float(row["predicted_ms"]) == pytest.approx(answer["latency_ms"])
    assert float(row["low_ms"]) == pytest.approx(answer["interval_ms"][0])
    assert "1 x run in another way (float32; asked for: float32, training)" in lolat.refused(
        "evaluate", out, "--table", judged, "--training"
    )
    assert (
        lolat.answer("training", "predict", out, other, "--batch-size", 8)["iteration_ms"]
        > 2 * answer["latency_ms"]
    )


def test_training_steps_and_inference_together(lolat: Command, tmp_path: Path) -> None:
    """Both passes of a device: steps of training take three times as long here."""
    more = [
        f"{network(tmp_path, channels, 4)},8,{3 * by_hand(channels, 4, 8):.5f},training"
        for channels in (16, 32, 48, 64, 96)
    ]
    path = table(tmp_path)
    lines = [line + ("," if i else ",pass") for i, line in enumerate(path.read_text().splitlines())]
    path.write_text("\n".join(lines + more) + "\n")
    out = tmp_path / "desk.json"
    lolat.done("fit", path, "--output", out)
    entry = read(out)["predictors"]["kernels"]
    assert len(entry["training_residuals"]) == 5
    assert len(entry["residuals"]) == 30
    summary = lolat.answer("evaluate", out, "--table", path, "--training")["summary"]
    assert (summary["networks"], summary["median"] < 0.2) == (5, True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("none.onnx,1,3", "line 32: no network 'none.onnx'"),
        ("NET,0,3", "line 32: batch_size is '0'; expected a whole number from 1"),
        ("NET,4,1000", "in line 3 " ),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_used(lolat: Command, tmp_path: Path, line: str, said: str) -> None:
    path = table(tmp_path, line.replace("NET", str(tmp_path / "net16x2.onnx")))
    out = tmp_path / "desk.json"
    found = lolat("fit", path, "--output", out)
    assert found.code == 2
    assert found.err.splitlines()[-1].count(str(path)) >= 1
    if "in line" not in said:
        assert said in found.err
    else:
        assert "takes 1000 ms, and" in found.err
        assert "expected one time for one device, or --skip" in found.err
    assert not out.exists()
    found = lolat.done("fit", path, "--skip", "--output", out)


def test_too_few_networks_and_none(lolat: Command, tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text(f"network,latency_ms\n{network(tmp_path, 8, 2)},3\n")
    few = "0 operations and 1 networks are too few to fit a device"
    assert few in lolat("fit", path, "--output", tmp_path / "few.json").err
    path.write_text(f"network,device,latency_ms\n{network(tmp_path, 8, 2)},cpu,3\n")
    said = lolat.refused("fit", path, "--name", "gpu", "--output", tmp_path / "none.json")
    assert f"{path}: no row could be used (1 x of another device)" in said


def test_steps_of_training_that_are_known_well_have_terms_of_their_own(
    lolat: Command, tmp_path: Path
) -> None:
    """Inference at one speed, training steps at a third of what they would be at that."""
    rows = ["network,batch_size,pass,latency_ms"]
    for channels in (16, 32, 48, 64, 96):
        for layers in (2, 4, 6):
            name = network(tmp_path, channels, layers)
            for batch in (4, 16):
                ms = by_hand(channels, layers, batch)
                rows += [f"{name},{batch},inference,{ms:.5f}", f"{name},{batch},training,{ms:.5f}"]
    path, out = tmp_path / "both.csv", tmp_path / "desk.json"
    path.write_text("\n".join(rows) + "\n")
    lolat.done("fit", path, "--output", out)
    assert {"kernels", "training-steps"} <= set(read(out)["predictors"])
    for option in ((), ("--training",)):
        summary = lolat.answer("evaluate", out, "--table", path, *option)["summary"]
        assert (summary["networks"], summary["median"] < 0.1) == (30, True)
    name = network(tmp_path, 64, 4)
    answer = lolat.answer("training", "predict", out, name, "--batch-size", 16)
    step = answer["iteration_ms"] - answer["parts_ms"]["update"]
    assert step == pytest.approx(by_hand(64, 4, 16), rel=0.15)
    assert not any("no training step" in w for w in answer["warnings"])


def test_seconds_for_milliseconds(lolat: Command, tmp_path: Path) -> None:
    name = network(tmp_path, 96, 6)
    path = tmp_path / "seconds.csv"
    rows = [
        f"{name},{batch},{by_hand(96, 6, batch) / 1e4:.9f}" for batch in (64, 128, 256, 512, 1024)
    ]
    path.write_text("\n".join(["network,batch_size,latency_ms", *rows]) + "\n")
    said = lolat("fit", path, "--output", tmp_path / "x.json").err
    assert "are these seconds? expected milliseconds" in said
