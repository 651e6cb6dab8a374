"""`lolat fit` of whole networks, on devices whose times are known by hand."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

import lolat as library
from lolat.api.model import Model
from lolat.device.file import read
from lolat.errors import InputError
from lolat.graph import GraphBuilder
from lolat.graph.counts import FEATURES
from lolat.optimizers import OPTIMIZERS
from lolat.training.plan import training_of
from tests import synthetic
from tests.cli.commands import Command
from tests.readers.onnx_networks import model as onnx_model
from tests.readers.onnx_networks import node, saved

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
    training = training_of(library.load(model))
    parts = training.batch(library.read(name), batch_size, OPTIMIZERS["sgd"]).iteration.parts()
    assert parts["forward"] is not None
    assert parts["backward"] is not None
    return parts["forward"], parts["backward"]


@pytest.mark.usefixtures("empty_cache")
def test_from_networks_to_others(lolat: Command, tmp_path: Path) -> None:
    out = tmp_path / "desk.json"
    found = lolat.done("fit", table(tmp_path), "--name", "desk", "--output", out)
    assert (
        found.out.splitlines()[0]
        == "desk: desk, by 30 rows of 15 networks, batch 4 to 16 · fp32, PyTorch, eager"
    )
    document = read(out).document
    assert document["default"] == "kernels"
    other = network(tmp_path, 80, 5)
    answer = lolat.json("predict", out, other, "--batch-size", 8)
    assert answer["latency_ms"] == pytest.approx(by_hand(80, 5, 8), rel=0.15)
    assert answer["in_domain"] is True
    judged = tmp_path / "others.csv"
    judged.write_text(f"network,batch_size,latency_ms\n{other},8,{by_hand(80, 5, 8)}\n")
    rows = tmp_path / "rows.csv"
    found = lolat.done("evaluate", out, "--table", judged, "--predictions", rows)
    line = next(one for one in found.out.splitlines() if other in one).split()
    assert line[:2] == [other, "8"]
    assert line[3:6:2] == ["ms", "ms"], "measured and predicted have their unit"
    (row,) = csv.DictReader(rows.read_text().splitlines())
    assert float(row["predicted_ms"]) == pytest.approx(answer["latency_ms"])
    assert float(row["low_ms"]) == pytest.approx(answer["interval_ms"][0])
    assert sum(passes_ms(out, other, 8)) > 2 * answer["latency_ms"]
    b = GraphBuilder("perceptron")
    x = b.input((1, 512))
    for _ in range(4):
        x = b.add("dense", [x], (1, 512), in_features=512, out_features=512, bias=False)
    unlike = Model.load(out).predict(b.build([x]), 8)
    assert unlike.in_domain is False
    assert any("dense layers 100 % (there none)" in text for text in unlike.warnings)


@pytest.mark.usefixtures("empty_cache")
def test_times_of_an_unnamed_device_may_be_of_this_machine(lolat: Command, tmp_path: Path) -> None:
    """No answer says that they are not, and none is of a GPU's compiler."""
    out = tmp_path / "alone.json"
    assert "alone: device not named, " in lolat.done("fit", table(tmp_path), "--output", out).out
    said = lolat.refused("evaluate", out, network(tmp_path, 16, 2))
    assert "does not say of which device its times are" in said
    assert "this machine is not" not in said
    changes = lolat.json("explain", out, network(tmp_path, 96, 6))["counterfactuals"]
    assert "compile" not in {change["kind"] for change in changes}


def test_networks_of_keras_are_of_no_known_framework(lolat: Command, tmp_path: Path) -> None:
    """As somebody timed them on a phone: nothing says that PyTorch ran them."""
    names = ("ResNet50", "ResNet101", "VGG16", "MobileNet", "DenseNet121", "Xception")
    times = (41, 79, 155, 5.9, 29, 85)  # ms of 1e8 multiply-accumulates each
    rows = [f"keras:{name},1,{ms}" for name, ms in zip(names, times, strict=True)]
    path, out = tmp_path / "phone.csv", tmp_path / "phone.json"
    path.write_text("\n".join(["network,batch_size,latency_ms", *rows]))
    lolat.done("fit", path, "--output", out)
    assert "framework" not in read(out).document["environment"]
    found = lolat.done("predict", out, "keras:ResNet152")
    assert "torch" not in (found.out + found.err).lower()


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("times_off", [10.0, 0.1])
def test_a_wrong_time_among_twelve_is_named(
    lolat: Command, tmp_path: Path, times_off: float
) -> None:
    path = table(tmp_path)
    head, *rows = path.read_text().splitlines()[:25:2]
    name, batch, ms = rows[7].split(",")
    for wrong in (1.0, times_off):
        rows[7] = f"{name},{batch},{float(ms) * wrong}"
        path.write_text("\n".join([head, *rows]))
        said = lolat.done("fit", path, "--output", tmp_path / "m.json").err
        assert (f"line 9: {name} takes" in said) == (wrong != 1.0)
        assert ("than the other rows say" in said) == (wrong != 1.0)


@pytest.mark.usefixtures("empty_cache")
def test_a_file_that_knew_other_networks_is_told_to_forget_them(
    lolat: Command, tmp_path: Path
) -> None:
    times, out = table(tmp_path), tmp_path / "desk.json"
    said = lolat.done("fit", times, "--output", out).err
    assert "replaced" not in said
    assert "has neither precision nor launch: its times are taken to be of float32, eager" in said
    head, *rows = times.read_text().splitlines()
    few = tmp_path / "few.csv"
    few.write_text("\n".join([f"{head},precision", *(f"{row},fp32" for row in rows[:10])]))
    said = lolat.done("fit", few, "--output", out).err
    assert "knew latencies from 30 rows of 15 networks, batch 4 to 16: these are replaced" in said
    assert "neither precision" not in said


@pytest.mark.usefixtures("empty_cache")
def test_copies_of_a_network_count_once(lolat: Command, tmp_path: Path) -> None:
    times, twice = table(tmp_path), tmp_path / "twice.csv"
    head, *rows = times.read_text().splitlines()
    twice.write_text("\n".join([head, *rows, *rows[:7]]))
    found = lolat.done("fit", twice, "--name", "desk", "--output", tmp_path / "desk.json")
    assert (
        found.out.splitlines()[0]
        == "desk: desk, by 30 rows of 15 networks, batch 4 to 16 · fp32, PyTorch, eager"
    )
    assert "7 of 37 rows are copies of others, and count once" in found.err


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("name", ["desk", "desk-cpu", "i7-12700h", "xi7"])
def test_a_cpu_waits_for_no_host(lolat: Command, tmp_path: Path, name: str) -> None:
    """Forty products of 2 x 2: 40 starts of a host take longer than their computing."""
    out = tmp_path / "m.json"
    lolat.done("fit", table(tmp_path), "--name", name, "--output", out)
    b = GraphBuilder("many")
    x = b.input((1, 2))
    for _ in range(40):
        x = b.add("dense", [x], (1, 2), in_features=2, out_features=2, bias=False)
    graph = b.build([x])
    found = Model.load(out).predict(graph, 8)
    assert (found.host_bound, found.host_ms is None) == ((True, False), (None, True))[
        name in ("desk-cpu", "i7-12700h")
    ]
    assert Model.load(out).run_as(launch="eager").predict(graph, 8).latency_ms == found.latency_ms
    if "cpu" in name:
        with pytest.raises(InputError, match="measured in eager mode only"):
            Model.load(out).run_as(launch="graph")


@pytest.mark.usefixtures("empty_cache")
def test_of_many_networks_those_that_are_farthest_off_are_listed(
    lolat: Command, tmp_path: Path
) -> None:
    times, out, judged = table(tmp_path), tmp_path / "m.json", tmp_path / "judged.csv"
    lolat.done("fit", times, "--output", out)
    head, *rows = times.read_text().splitlines()
    column = head.split(",").index("latency_ms")
    slower = []
    for number, row in enumerate(rows):
        cells = row.split(",")
        cells[column] = str(float(cells[column]) * (20 if number == 17 else 2))
        slower.append(",".join(cells))
    judged.write_text("\n".join([head, *slower]))
    first, _, worst, *_, last = lolat.done("evaluate", out, "--table", judged).out.splitlines()
    assert first == "The 10 that are farthest off, of 30 (--predictions FILE has all):"
    assert worst.startswith(slower[17].split(",")[0])
    times_off = float(last.rpartition("predicted ")[2].partition(" times")[0])
    assert times_off == pytest.approx(0.5, rel=0.1), "all were given twice their time"


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
    assert {"kernels", "training-steps"} <= set(read(out).document["predictors"])
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
    made = read(out).document
    assert said in made["warnings"][-1]
    old = json.loads(json.dumps(document))
    assert made["points"][:105] == old["points"]
    assert [p["whole"] for p in made["points"][105:]] == [True] * 6
    first, name = made["points"][105], network(tmp_path, *OWN[0], "Tanh", TANHS)
    assert (first["name"], first["batch_size"], first["samples_ms"]) == (name, 1, None)
    assert first["latency_ms"] == pytest.approx(own_by_hand(name, *OWN[0], 1), abs=1e-5)
    for section in ("spaces", "environment", "noise", "device"):
        assert made[section] == old[section], section
    again = tmp_path / "again.json"  # which is one profile like any other
    lolat.done("fit", out, "--output", again)
    assert {**read(again).document, "name": "mine"} == made


def test_rows_beside_a_profile_count_once(lolat: Command, model: Path, tmp_path: Path) -> None:
    """Twice in a table, in two tables, and in the profile already; a time in other units is the same."""
    own, twice, seconds, once = (
        own_table(tmp_path),
        *(tmp_path / name for name in ("twice.csv", "seconds.csv", "once.json")),
    )
    head, *rows = own.read_text().splitlines()
    twice.write_text("\n".join([head, *rows, *rows]))
    cells = [row.rsplit(",", 1) for row in rows]
    in_seconds = [f"{of},{float(ms) / 1e3:.9f}" for of, ms in cells]
    seconds.write_text("\n".join([head.replace("_ms", "_s"), *in_seconds]))
    lolat.done("fit", model, own, "--output", once)
    fitted, out = read(once).document, tmp_path / "out.json"
    for files, told in (
        ((model, twice), "twice.csv: 6 of 12 rows are copies of others, and count once"),
        ((model, own, seconds), "seconds.csv: 6 of 6 rows are copies"),
        ((once, own), "own.csv: 6 of 6 rows are copies"),
    ):
        assert told in lolat.done("fit", *files, "--output", out).err
        made = read(out).document
        assert made["predictors"] == fitted["predictors"], told
        assert len(made["points"]) == len(fitted["points"]), told


@pytest.mark.parametrize(("factor", "told"), [(1.0, False), (0.9, False), (0.6, True)])
def test_times_of_another_machine_are_told(
    lolat: Command, model: Path, tmp_path: Path, factor: float, told: bool
) -> None:
    """Networks of the measured kinds, all `factor` times as long as the profile predicts."""
    rows = ["network,batch_size,latency_ms"]
    for channels, layers in ((16, 2), (32, 3), (48, 4)):
        name = network(tmp_path, channels, layers)
        for batch in (1, 4):
            ms = Model.load(model).predict(library.read(name), batch)
            assert ms.in_domain
            rows.append(f"{name},{batch},{factor * ms.latency_ms:.6f}")
    own, out = tmp_path / "own.csv", tmp_path / "mine.json"
    own.write_text("\n".join(rows) + "\n")
    said = lolat.done("fit", model, own, "--output", out).err
    assert (
        f"own.csv: {factor:.2f} times as long as {Model.load(model).name} predicts" in said
    ) is told


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


@pytest.mark.usefixtures("empty_cache")
def test_rows_that_were_fitted_to_are_told_whatever_the_table_is_called(
    lolat: Command, tmp_path: Path
) -> None:
    """A part of them in seconds; times that are off by 7 % are of another measurement."""
    fitted, other, file = table(tmp_path), tmp_path / "other.csv", tmp_path / "m.json"
    lolat.done("fit", fitted, "--name", "desk", "--output", file)
    rows = [line.split(",") for line in fitted.read_text().splitlines()[1:9]]
    for factor, said in ((1.0, "was fitted to 8 of the 8 rows"), (1.07, "")):
        lines = [f"{name},{batch},{factor * float(ms) / 1e3:.8f}" for name, batch, ms in rows]
        other.write_text("\n".join(["network,batch,time_s", *lines]) + "\n")
        err = lolat.done("evaluate", file, "--table", other).err
        assert (f"{file} {said}" in err) if said else ("was fitted to" not in err)
