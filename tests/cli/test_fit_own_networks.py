"""`lolat fit` of a model file and a table of the user's own networks: all points together, one device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lolat as library
from lolat.graph.counts import FEATURES
from lolat.model.file import read
from tests import synthetic
from tests.cli.commands import Command
from tests.readers.onnx_networks import model as onnx_model
from tests.readers.onnx_networks import node, saved
from tests.training import epoch_tables

TANH_MS = 2e-5  # of an element: dear, and no block of the model has one
TANHS = 4  # after a convolution
OWN = ((32, 4), (64, 3))


def network(folder: Path, channels: int, layers: int) -> str:
    """A file with `layers` of 3x3 convolutions on 32x32, each followed by TANHS tanhs."""
    nodes, weights, before = [], {}, "x"
    for i in range(layers):
        weights[f"w{i}"] = (channels, 3 if i == 0 else channels, 3, 3)
        nodes.append(node("Conv", f"{before} w{i}", f"c{i}", kernel_shape=[3, 3], pads=[1] * 4))
        for j in range(TANHS):
            after = "y" if (i, j) == (layers - 1, TANHS - 1) else f"t{i}_{j}"
            nodes.append(node("Tanh", before if j else f"c{i}", after))
            before = after
    made = onnx_model(nodes, ("N", 3, 32, 32), **weights)
    return saved(folder, made, f"tanh{channels}x{layers}.onnx")


def by_hand(name: str, channels: int, layers: int, batch: int) -> float:
    """ms: as the model's own points, and each tanh's elements besides."""
    totals = synthetic.totals(library.read(name), batch)
    ms = synthetic.CALL_MS + sum(synthetic.TRUE[c] * totals[c] for c in FEATURES)
    return ms + TANH_MS * batch * 32 * 32 * channels * layers * TANHS


def table(folder: Path, header: str = "network,batch_size,latency_ms", more: str = "") -> Path:
    lines = [header]
    for channels, layers in OWN:
        name = network(folder, channels, layers)
        lines += [f"{name},{b},{by_hand(name, channels, layers, b):.5f}{more}" for b in (1, 4, 8)]
    path = folder / "own.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_network_far_off_becomes_nearer(lolat: Command, model: Path, tmp_path: Path) -> None:
    """One that is not in the table, but of the same kinds of operations as those that are."""
    name, out = network(tmp_path, 40, 5), tmp_path / "mine.json"
    true = by_hand(name, 40, 5, 4)
    before = lolat.json("predict", model, name, "--batch-size", 4)
    assert before["latency_ms"] < 0.5 * true
    assert before["in_domain"] is False
    command = f"lolat fit {model} timed.csv --output mine.json"
    assert any(w.endswith(command) for w in before["warnings"])
    lolat.done("fit", model, table(tmp_path), "--output", out)
    after = lolat.json("predict", out, name, "--batch-size", 4)
    assert after["latency_ms"] == pytest.approx(true, rel=0.1)
    assert after["in_domain"] is True


def test_old_points_and_new_ones_and_what_else_the_file_knows(
    lolat: Command, model: Path, tmp_path: Path
) -> None:
    document = synthetic.document() | {"epochs": epoch_tables.document()["epochs"]}
    model.write_text(json.dumps(document))
    out = tmp_path / "mine.json"
    found = lolat.done("fit", model, table(tmp_path), "--output", out)
    said = "6 points from own.csv: not measured by LoLat, taken as times of a desk, 2 threads"
    assert said in found.err
    made = read(out)
    assert said in made["warnings"][-1]
    old = json.loads(json.dumps(document))
    assert made["points"][:105] == old["points"]
    assert [p["whole"] for p in made["points"][105:]] == [True] * 6
    first, name = made["points"][105], network(tmp_path, *OWN[0])
    assert (first["name"], first["batch_size"], first["samples_ms"]) == (name, 1, None)
    assert first["latency_ms"] == pytest.approx(by_hand(name, *OWN[0], 1), abs=1e-5)
    for section in ("epochs", "environment", "noise", "device"):
        assert made[section] == old[section], section
    again = tmp_path / "again.json"  # which is one model file like any other
    lolat.done("fit", out, "--output", again)
    assert {**read(again), "name": "mine"} == made


def test_a_network_in_the_fit_is_not_asked_for_again(
    lolat: Command, model: Path, tmp_path: Path
) -> None:
    """One whose tail of tiny operations was outside."""
    tail = [node("Add", f"t{i} t{i}", f"t{i + 1}") for i in range(59)]
    first = node("Conv", "x w", "c", kernel_shape=[3, 3], pads=[1] * 4)
    nodes = [first, node("GlobalAveragePool", "c", "t0"), *tail, node("Add", "t59 t59", "y")]
    name = saved(tmp_path, onnx_model(nodes, ("N", 3, 32, 32), w=(16, 3, 3, 3)), "tail.onnx")
    own, out = tmp_path / "own.csv", tmp_path / "mine.json"
    own.write_text(f"network,batch_size,latency_ms\n{name},1,0.9\n")
    lolat.done("fit", model, own, "--output", out)
    for source, advised in ((model, True), (out, False)):
        said = lolat.json("predict", source, name)["warnings"]
        assert ("fewer elements per operation than any measured block" in said[0]) == advised
        assert any("lolat fit" in w for w in said) == advised


def test_rows_of_another_device_are_left_out_and_said(
    lolat: Command, model: Path, tmp_path: Path
) -> None:
    out, header = tmp_path / "mine.json", "network,batch_size,latency_ms,device"
    own = table(tmp_path, header, ",desk")
    lines = own.read_text().splitlines()
    own.write_text("\n".join([*lines[:-1], lines[-1].replace(",desk", ",laptop")]) + "\n")
    found = lolat.done("fit", model, own, "--output", out)
    assert f"1 rows of {own} left out: of another device" in found.err
    assert len(read(out)["points"]) == 105 + 5
    own.write_text(own.read_text().replace(",desk", ",laptop"))
    said = lolat.refused("fit", model, own, "--output", out)
    assert "no row could be used (6 x of another device)" in said


def test_blocks_that_say_as_much_as_the_models_own(
    lolat: Command, model: Path, tmp_path: Path
) -> None:
    """A table of the six counts would make the formula of all points one of six."""
    blocks, out = tmp_path / "blocks.csv", tmp_path / "mine.json"
    points = synthetic.measured(5, seed=7)
    blocks.write_text(synthetic.table(points, [*FEATURES, "latency_ms", "batch_size", "name"]))
    said = lolat.refused("fit", model, blocks, "--output", out)
    assert f"{blocks} lacks counts that the points of {model} have" in said
    model.write_text(json.dumps(synthetic.document(synthetic.measured(columns=FEATURES))))
    lolat.done("fit", model, blocks, "--output", out)
    assert [p["latency_ms"] for p in read(out)["points"][105:]] == [p.latency_ms for p in points]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["{model}", "{model}"], "2 model files; expected one: times of two are not mixed"),
        (["{model}", "{operations}"], "beside a model file give networks or blocks"),
        (["{model}", "{half}"], "line 2: run in another way (float16; the model: float32); --skip"),
        (["{model}", "{half}", "--skip"], "no row could be used (1 x net.onnx: run in another way"),
        (["{model}", "{none}"], "line 2: no file 'net.onnx'"),
        (["{model}", "{none}", "--facts", "f.csv"], "--facts is for tables of operations and net"),
    ],
)  # fmt: skip
def test_what_cannot_be_fitted_together(
    given: list[str], said: str, lolat: Command, model: Path, tmp_path: Path
) -> None:
    files = {
        "operations": "op,latency_ms,rows,width\nsoftmax,1,2,3\n",
        "half": "network,latency_ms,dtype\nnet.onnx,3,float16\n",
        "none": "network,latency_ms\nnet.onnx,3\n",
    }
    names = {"model": model}
    for name, content in files.items():
        names[name] = tmp_path / f"{name}.csv"
        names[name].write_text(content)
    out = tmp_path / "mine.json"
    assert said in lolat.refused("fit", *(g.format(**names) for g in given), "--output", out)
    assert not out.exists()
