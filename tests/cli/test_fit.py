"""`lolat fit` as a user would: from a model file, from tables of blocks, of operations, of networks."""

from __future__ import annotations

import csv
import json
import math
import random
from pathlib import Path
from statistics import median

import pytest

import lolat as library
from lolat.graph import GraphBuilder
from lolat.graph.counts import FEATURES
from lolat.model import load
from lolat.model.file import read
from lolat.training.cost import training_of
from lolat.training.iteration import optimizer_named
from tests import synthetic
from tests.cli.commands import Command
from tests.devices import made_up
from tests.readers.onnx_networks import model as onnx_model
from tests.readers.onnx_networks import node, saved

THREE = ["acts", "inp", "flops", "latency_ms"]


def test_a_model_fitted_again_has_the_same_numbers(lolat: Command, tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new" / "again.json"
    document = synthetic.document(warnings=["the machine was busy"])
    old.write_text(json.dumps(document))
    found = lolat.done("fit", old, "--output", new)
    again = read(new)
    for name in ("predictors", "default", "domain", "points", "environment", "noise", "device"):
        assert again[name] == json.loads(json.dumps(document[name])), name
    assert again["name"] == "again"
    assert again["warnings"] == ["the machine was busy"]  # what was said of the points stays true
    assert found.err == "lolat: warning: the machine was busy\n"
    assert found.out.splitlines()[0] == "a desk, 2 threads · tensorflow 2.21.0 · 105 points"
    assert f"written: {new}" in found.out


@pytest.mark.parametrize("name", ["points.csv", "POINTS.CSV"])
def test_a_table_with_all_counts(lolat: Command, tmp_path: Path, name: str) -> None:
    points = synthetic.measured()
    table, output = tmp_path / name, tmp_path / "model.json"
    table.write_text(synthetic.table(points, [*FEATURES, "latency_ms", "batch_size", "name"]))
    lolat.done("fit", table, "--output", output)
    model = load(output)
    assert model.default == "extended"
    assert model.predict_counts(1e6, 1e6, 1e8, 1e6, 1e5, 20) == pytest.approx(
        synthetic.CALL_MS + 2 + 1 + 2 + 0.8 + 0.05 + 0.2, rel=0.05
    )
    assert model.document["environment"]["source"] == name


# ---- Operations: `fit`, then `predict` and `evaluate --table`.


ENCODER = "tests.devices.made_up:encoder"


def fitted(lolat: Command, folder: Path) -> Path:
    operations, facts = made_up.write_tables(folder)
    out = folder / "desk.json"
    found = lolat.done("fit", operations, "--facts", facts, "--name", "desk", "--output", out)
    assert found.out.splitlines()[0] == "desk (from 140 operations, float32) · torch"
    told = lolat.text("show", out, "--formula")
    assert "kernels (default): each operation by the terms of its class (" in told
    assert found.err == ""
    return out


def test_from_a_table_to_a_network(lolat: Command, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    model = fitted(lolat, tmp_path)
    assert read(model)["default"] == "kernels"
    ask = (ENCODER, "--sequence-length", 256, "--batch-size", 4)
    answer = lolat.json("predict", model, *ask)
    # Four dense layers and what is between them, by hand.
    m, ms = 4 * 256, made_up.product_ms
    wanted = 2 * (ms(1, m, 2048, 512) + ms(1, m, 512, 2048))
    wanted += 2 * made_up.moves_ms(2 * m * 2048) + 2 * made_up.moves_ms(2 * m * 512)
    wanted += made_up.moves_ms(2 * m * 512)  # rows of the table of embeddings
    assert answer["latency_ms"] == pytest.approx(wanted, rel=0.1)
    assert sum(b["latency_ms"] for b in answer["blocks"]) == pytest.approx(answer["latency_ms"])
    assert answer["predictor"] == "kernels"
    lolat.done("report", model, *ask)
    lolat.done("show", model)
    lolat.refused("fit", model, "--output", tmp_path / "again.json")  # it has no points

    table = tmp_path / "networks.csv"
    table.write_text(
        f"network,sequence_length,batch_size,latency_ms\n{ENCODER},256,4,{wanted}\nnone:x,1,1,1\n"
    )
    out = tmp_path / "out.csv"
    found = lolat.done("evaluate", model, "--table", table, "--predictions", out)
    assert "1 networks: median error" in found.out
    assert "1 left out: none:x: " in found.err
    (row,) = csv.DictReader(out.read_text().splitlines())
    assert float(row["predicted_ms"]) == pytest.approx(answer["latency_ms"])


def test_a_device_of_which_the_data_sheet_is_known(lolat: Command, tmp_path: Path) -> None:
    """9.4 TFLOP/s and 500 GB/s: 85 % of the one, 80 % of the other; a dense layer by hand."""
    pytest.importorskip("torch")
    _, facts = made_up.write_tables(tmp_path)
    out = tmp_path / "sheet.json"
    found = lolat.done("fit", "--facts", facts, "--name", "desk", "--output", out)
    assert "nothing was measured on this device" in found.err
    ask = (ENCODER, "--sequence-length", 4096, "--batch-size", 8)
    answer = lolat.json("predict", out, *ask)
    macs, bytes_ = 8 * 4096 * 2048 * 512, 4.0 * 8 * 4096
    wanted = 4 * macs / (0.85 * 4.7e9) + bytes_ * (4 * 2048 + 4 * 512 + 2 * 512) / (0.8 * 5e8)
    assert answer["latency_ms"] == pytest.approx(wanted, rel=0.1)
    low, high = answer["interval_ms"]
    assert 1.2 < high / answer["latency_ms"] < 2.0
    assert answer["latency_ms"] / low == pytest.approx(high / answer["latency_ms"], rel=1e-3)


def test_operations_that_were_not_in_the_fit(lolat: Command, tmp_path: Path) -> None:
    model = fitted(lolat, tmp_path)
    other, out = tmp_path / "other.csv", tmp_path / "out.csv"
    other.write_text("\n".join([made_up.COLUMNS, *made_up.rows(seed=7)]) + "\n")
    found = lolat.done("evaluate", model, "--table", other, "--predictions", out)
    assert found.out.startswith("linear: 40 timed, median error ")
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [*made_up.COLUMNS.split(","), "predicted_ms", "low_ms", "high_ms"]
    off = [abs(float(r["predicted_ms"]) / float(r["latency_ms"]) - 1) for r in rows]
    assert median(off) < 0.05
    inside = sum(float(r["low_ms"]) <= float(r["latency_ms"]) <= float(r["high_ms"]) for r in rows)
    assert inside >= 110
    answer = lolat.json("evaluate", model, "--table", other)
    assert (answer["summary"]["operations"], len(answer["operations"])) == (140, 140)


# ---- Whole networks, on a device whose times are known by hand.

MACS_PER_MS, BYTES_PER_MS = 1e8, 1e7


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network is kept from another test: these have the same names."""
    monkeypatch.setenv("LOLAT_CACHE", str(tmp_path / "cache"))


def network(
    folder: Path, channels: int, layers: int, activation: str = "Relu", times: int = 1
) -> str:
    """A file with `layers` of 3x3 convolutions on 32x32, each followed by `times` of the activation."""
    nodes, weights, before = [], {}, "x"
    for i in range(layers):
        weights[f"w{i}"] = (channels, 3 if i == 0 else channels, 3, 3)
        nodes.append(node("Conv", f"{before} w{i}", f"c{i}", kernel_shape=[3, 3], pads=[1] * 4))
        for j in range(times):
            after = "y" if (i, j) == (layers - 1, times - 1) else f"r{i}_{j}"
            nodes.append(node(activation, before if j else f"c{i}", after))
            before = after
    made = onnx_model(nodes, ("N", 3, 32, 32), **weights)
    return saved(folder, made, f"net{activation}{channels}x{layers}.onnx")


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


def passes_ms(model: Path, name: str, batch_size: int) -> tuple[float, float]:
    """Forward and backward pass of an iteration, by the model in a file."""
    training = training_of(read(model), str(model))
    parts = training.iteration(library.read(name), batch_size, optimizer_named("sgd")).parts()
    assert parts["forward"] is not None
    assert parts["backward"] is not None
    return parts["forward"], parts["backward"]


@pytest.mark.usefixtures("empty_cache")
def test_from_networks_to_others(lolat: Command, tmp_path: Path) -> None:
    out = tmp_path / "desk.json"
    found = lolat.done("fit", table(tmp_path), "--name", "desk", "--output", out)
    assert found.out.splitlines()[0] == "desk (from 30 networks, float32) · torch"
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
    assert sum(passes_ms(out, other, 8)) > 2 * answer["latency_ms"]
    b = GraphBuilder("perceptron")
    x = b.input((1, 512))
    for _ in range(4):
        x = b.add("dense", [x], (1, 512), in_features=512, out_features=512, bias=False)
    unlike = load(out).predict(b.build([x]), 8)
    assert unlike.in_domain is False
    assert any("dense layers 100 % (of those none)" in text for text in unlike.warnings)


def test_networks_of_keras_are_of_no_known_framework(lolat: Command, tmp_path: Path) -> None:
    """As somebody timed them on a phone: nothing says that PyTorch ran them."""
    names = ("ResNet50", "ResNet101", "VGG16", "MobileNet", "DenseNet121", "Xception")
    times = (41, 79, 155, 5.9, 29, 85)  # ms of 1e8 multiply-accumulates each
    rows = [f"keras:{name},1,{ms}" for name, ms in zip(names, times, strict=True)]
    path, out = tmp_path / "phone.csv", tmp_path / "phone.json"
    path.write_text("\n".join(["network,batch_size,latency_ms", *rows]))
    lolat.done("fit", path, "--output", out)
    assert "framework" not in read(out)["environment"]
    found = lolat.done("predict", out, "keras:ResNet152")
    assert "torch" not in (found.out + found.err).lower()


@pytest.mark.usefixtures("empty_cache")
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
    assert sum(passes_ms(out, name, 16)) == pytest.approx(by_hand(64, 4, 16), rel=0.15)


# ---- Networks of the user beside the points of a model.

TANH_MS = 2e-5  # of an element: dear, and no block of the model has one
TANHS = 4  # after a convolution
OWN = ((32, 4), (64, 3))


def own_by_hand(name: str, channels: int, layers: int, batch: int) -> float:
    """ms: as the model's own points, and each tanh's elements besides."""
    totals = synthetic.totals(library.read(name), batch)
    ms = synthetic.CALL_MS + sum(synthetic.TRUE[c] * totals[c] for c in FEATURES)
    return ms + TANH_MS * batch * 32 * 32 * channels * layers * TANHS


def own_table(folder: Path, header: str = "network,batch_size,latency_ms", more: str = "") -> Path:
    lines = [header]
    for channels, layers in OWN:
        name = network(folder, channels, layers, "Tanh", TANHS)
        lines += [
            f"{name},{b},{own_by_hand(name, channels, layers, b):.5f}{more}" for b in (1, 4, 8)
        ]
    path = folder / "own.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_network_far_off_becomes_nearer(lolat: Command, model: Path, tmp_path: Path) -> None:
    """One that is not in the table, but of the same kinds of operations as those that are."""
    name, out = network(tmp_path, 40, 5, "Tanh", TANHS), tmp_path / "mine.json"
    true = own_by_hand(name, 40, 5, 4)
    before = lolat.json("predict", model, name, "--batch-size", 4)
    assert before["latency_ms"] < 0.5 * true
    assert before["in_domain"] is False
    command = f"lolat fit {model} timed.csv --output mine.json"
    assert any(w.endswith(command) for w in before["warnings"])
    lolat.done("fit", model, own_table(tmp_path), "--output", out)
    after = lolat.json("predict", out, name, "--batch-size", 4)
    assert after["latency_ms"] == pytest.approx(true, rel=0.1)
    assert after["in_domain"] is True


def test_old_points_and_new_ones_and_what_else_the_file_knows(
    lolat: Command, model: Path, tmp_path: Path
) -> None:
    document = synthetic.document() | {"spaces": {"own": {"rows": 3}}}
    model.write_text(json.dumps(document))
    out = tmp_path / "mine.json"
    found = lolat.done("fit", model, own_table(tmp_path), "--output", out)
    said = "6 points from own.csv: not measured by LoLat, taken as times of a desk, 2 threads"
    assert said in found.err
    made = read(out)
    assert said in made["warnings"][-1]
    old = json.loads(json.dumps(document))
    assert made["points"][:105] == old["points"]
    assert [p["whole"] for p in made["points"][105:]] == [True] * 6
    first, name = made["points"][105], network(tmp_path, *OWN[0], "Tanh", TANHS)
    assert (first["name"], first["batch_size"], first["samples_ms"]) == (name, 1, None)
    assert first["latency_ms"] == pytest.approx(own_by_hand(name, *OWN[0], 1), abs=1e-5)
    for section in ("spaces", "environment", "noise", "device"):
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
        assert ("than any measured block" in said[0]) == advised
        assert any("lolat fit" in w for w in said) == advised


# ---- Tables that cannot be right


@pytest.mark.parametrize(("gflops", "bandwidth"), [(9.4, 500), (9400, 0.5), (9_400_000, 500)])
def test_a_data_sheet_of_other_units_is_refused(
    lolat: Command, tmp_path: Path, gflops: float, bandwidth: float
) -> None:
    """TFLOPS, TB/s, MFLOPS."""
    operations, facts = made_up.write_tables(tmp_path)
    facts.write_text(f"{made_up.FACTS.splitlines()[0]}\ndesk,40,{gflops},{bandwidth}\n")
    said = lolat.refused(
        "fit", operations, "--facts", facts, "--name", "desk", "--output", tmp_path / "m.json"
    )
    assert "GFLOPS" in said or "GB/s" in said
    assert not (tmp_path / "m.json").exists()


def test_times_that_no_formula_fits_are_told(lolat: Command, tmp_path: Path) -> None:
    """A third of them in microseconds, a third in seconds."""
    operations, _ = made_up.write_tables(tmp_path)
    head, *lines = operations.read_text().splitlines()
    mixed = []
    for i, line in enumerate(lines):
        cells, _, ms = line.rpartition(",")
        mixed.append(f"{cells},{float(ms) * (1, 1000, 0.001)[i % 3]:.9f}")
    operations.write_text("\n".join([head, *mixed]) + "\n")
    found = lolat.done("fit", operations, "--output", tmp_path / "m.json")
    assert "does not fit these times" in found.err


def test_a_data_sheet_is_kept(lolat: Command, tmp_path: Path) -> None:
    """Its memory says what fits, and its rates another precision."""
    operations, facts = made_up.write_tables(tmp_path)
    head, row = made_up.FACTS.splitlines()
    facts.write_text(f"{head},memory_gb,half_tflops\n{row},24,90\n")
    out = tmp_path / "m.json"
    lolat.done("fit", operations, "--facts", facts, "--name", "desk", "--output", out)
    model = load(out)
    held = model.document["environment"]["held"]
    assert held["operations"] == len(operations.read_text().splitlines()) - 1
    found = model.run_as("amp").predict(synthetic.network(), 8)
    assert found.available_bytes == int(24 * 2**30 * 0.94) - 2**29
    assert (found.precision, found.in_domain) == ("amp", False)


def test_a_time_that_the_others_contradict_is_named(lolat: Command, tmp_path: Path) -> None:
    path = products(tmp_path)
    assert "measure it again" not in lolat.done("fit", path, "--output", tmp_path / "m.json").err
    lines = path.read_text().splitlines()
    *cells, ms = lines[16].split(",")
    lines[16] = ",".join([*cells, str(100 * float(ms))])
    path.write_text("\n".join(lines))
    said = lolat.done("fit", path, "--output", tmp_path / "m.json").err
    assert "products.csv, line 17: linear takes " in said
    assert "left out: measure it again" in said


@pytest.mark.parametrize("tile", [1, 64])
def test_a_device_cuts_products_into_tiles_or_does_not(
    lolat: Command, tmp_path: Path, tile: int
) -> None:
    """Told by the times alone, as no data sheet is given; then a row more costs as on the device."""
    draw, path, out = random.Random(1), tmp_path / "products.csv", tmp_path / "m.json"

    def ms(m: int, n: int, k: int) -> float:
        outputs = math.ceil(m / tile) * math.ceil(n / tile) * tile**2
        return max(2 * outputs * k / 20e9, 4 * (m * n + n * k + m * k) / 6e8) + 0.01

    def row(m: int, n: int, k: int) -> str:
        return f"linear,1,{m},{n},{k},{ms(m, n, k) * math.exp(draw.gauss(0, 0.03)):.6g}"

    sizes = [
        [int(2 ** draw.uniform(*ends)) for ends in ((0, 10), (7, 12), (6, 11))] for _ in range(80)
    ]
    path.write_text("\n".join(["op,batch,m,n,k,latency_ms", *(row(*size) for size in sizes)]))
    lolat.done("fit", path, "--output", out)
    assert read(out)["predictors"]["kernels"].get("tile", 64) == tile
    judged = tmp_path / "judged.csv"
    rows = [row(m, 768, 3072) for m in (1, 4, 16, 60, 100, 196, 300)]
    judged.write_text("\n".join(["op,batch,m,n,k,latency_ms", *rows]))
    assert lolat.json("evaluate", out, "--table", judged)["summary"]["median"] < 0.15


@pytest.mark.parametrize("number", [5, 8, 30, 44])
def test_a_time_in_seconds_spoils_no_fit(lolat: Command, tmp_path: Path, number: int) -> None:
    """The others are as well known as without it."""
    path, errors = products(tmp_path), []
    *cells, ms = path.read_text().splitlines()[number].split(",")
    wrong = path.read_text().replace(
        ",".join([*cells, ms]), ",".join([*cells, f"{float(ms) / 1e3:g}"])
    )
    for text in (path.read_text(), wrong):
        path.write_text(text)
        found = lolat.done("fit", path, "--output", tmp_path / "m.json")
        errors.append(
            read(tmp_path / "m.json")["predictors"]["kernels"]["error"]["left_out"]["median"]
        )
    assert f"line {number + 1}: linear" in found.err
    assert errors[1] < 1.5 * errors[0]


def blocks(folder: Path, seed: int, wrong: int | None = None) -> Path:
    """Sixty blocks of a device of known rates, timed with a spread of 7 %; one a hundred times wrong."""
    draw, path = random.Random(seed), folder / f"{seed}.csv"
    rows = []
    for number in range(60):
        acts, inp, macs = (
            int(math.exp(draw.uniform(*ends))) for ends in ((7, 15), (7, 15), (10, 20))
        )
        ms = (0.05 + macs / 8e7 + (acts + inp) / 5e6) * math.exp(draw.gauss(0.0, 0.07))
        rows.append(f"{acts},{inp},{macs},{100 * ms if number == wrong else ms:.6g}")
    path.write_text("\n".join([",".join(THREE), *rows]))
    return path


def test_a_block_that_the_others_contradict_is_named(lolat: Command, tmp_path: Path) -> None:
    out = tmp_path / "m.json"
    assert "measure it again" not in lolat.done("fit", blocks(tmp_path, 1), "--output", out).err
    said = lolat.done("fit", blocks(tmp_path, 1, wrong=20), "--output", out).err
    assert "1.csv, line 22: acts=" in said
    assert "measure it again" in said


def test_intervals_hold_blocks_that_were_not_in_the_fit(lolat: Command, tmp_path: Path) -> None:
    out, rows = tmp_path / "m.json", tmp_path / "rows.csv"
    lolat.done("fit", blocks(tmp_path, 1), "--output", out)
    lolat.done("evaluate", out, "--table", blocks(tmp_path, 2), "--predictions", rows)
    with rows.open() as file:
        times = [{n: float(v) for n, v in row.items()} for row in csv.DictReader(file)]
    assert sum(t["low_ms"] < t["latency_ms"] < t["high_ms"] for t in times) >= 48
    assert median(t["high_ms"] / t["low_ms"] for t in times) < 1.5  # 1.26 if all were known


def products(folder: Path, launch_ms: float = 0.01) -> Path:
    """Sixty products of matrices on a device of known rates, started `launch_ms` apart."""
    draw, path = random.Random(0), folder / "products.csv"
    rows = []
    for _ in range(60):
        batch, m, n, k = (2 ** draw.randint(*ends) for ends in ((0, 5), (4, 10), (5, 12), (5, 12)))
        moved = 4 * (batch * m * n + n * k + batch * m * k)
        ms = max(2 * batch * m * n * k / 20e9, moved / 600e6) + launch_ms
        rows.append(f"linear,{batch},{m},{n},{k},{ms:.6g}")
    path.write_text("\n".join(["op,batch,m,n,k,latency_ms", *rows]))
    return path


@pytest.mark.parametrize("launch_ms", [0.02, 0.1])
def test_small_networks_of_products_take_what_the_products_took(
    lolat: Command, tmp_path: Path, launch_ms: float
) -> None:
    """Eight in a row that compute next to nothing: eight times a launch is in the interval."""
    lolat.done("fit", products(tmp_path, launch_ms), "--output", tmp_path / "m.json")
    builder = GraphBuilder("eight")
    x = builder.input((1, 64))
    for _ in range(8):
        x = builder.add("dense", [x], (1, 64), in_features=64, out_features=64, bias=True)
    found = load(tmp_path / "m.json").predict(builder.build([x]), 4)
    low, high = found.interval_ms or (0.0, 0.0)
    assert low < 8 * launch_ms < high
    assert high < 5 * low


def test_blocks_that_were_not_in_the_fit(lolat: Command, tmp_path: Path) -> None:
    points = synthetic.measured()
    fit, rest, output = (tmp_path / name for name in ("fit.csv", "rest.csv", "model.json"))
    header = [*FEATURES, "latency_ms", "batch_size", "name"]
    fit.write_text(synthetic.table(points[::2], header))
    rest.write_text(synthetic.table(points[1::2], header))
    lolat.done("fit", fit, "--output", output)
    found = lolat.json("evaluate", output, "--table", rest)
    ms = load(output).predict_counts(**{f: points[1].counts[f] for f in FEATURES})
    assert found["blocks"][0]["predicted_ms"] == pytest.approx(ms)
    assert found["summary"]["blocks"] == len(points[1::2])
    assert found["summary"]["median"] < 0.05
    assert len(lolat.done("evaluate", output, "--table", rest).out.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("network;latency_ms\na;1\n", "semicolons"),
        ("name;acts;inp;flops;latency_ms\na;1;2;3;0,5\n", "decimal commas"),
        ("network,time\na,1\n", "no time"),
        ("batch,m,n,k,latency_ms\n1,1,1,1,1\n", "lacks the columns op"),
        ("op,batch,m,n,latency_ms\nlinear,1,1,1,1\n", "k is no column of the table"),
        ("name,latency_ms\na,1\n", "of networks network,batch_size"),
    ],
)
def test_a_table_of_another_layout_is_told_its_own(
    lolat: Command, tmp_path: Path, text: str, said: str
) -> None:
    path = tmp_path / "times.csv"
    path.write_text(text)
    done = lolat("fit", path, "--output", tmp_path / "m.json")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert said in done.err


def test_a_gpu_from_the_data_sheet_that_comes_along(lolat: Command, tmp_path: Path) -> None:
    """A large product of matrices by hand: 2 x 8192^3 at NVIDIA's 91.6 TFLOPS, and what power leaves."""
    path = tmp_path / "l40s.json"
    assert "nothing was measured" in lolat.done("fit", "--name", "l40s", "--output", path).err
    builder = GraphBuilder("product")
    x = builder.input((1, 8192))
    x = builder.add("dense", [x], (1, 8192), in_features=8192, out_features=8192, bias=True)
    found = load(path).predict(builder.build([x]), 8192)
    at_peak = 2 * 8192**3 / 91.6e9
    assert at_peak < found.latency_ms < 3 * at_peak
    assert found.in_domain is not True
    assert found.available_bytes is not None
    assert 40e9 < found.available_bytes < 48e9
    for more in ((), ("--output", tmp_path / "none.json")):
        assert lolat("fit", "--name", "no such gpu", *more).code == 2
    assert not (tmp_path / "none.json").exists()
