"""`lolat fit` as a user would: from a profile, from tables of blocks, of operations, of networks."""

from __future__ import annotations

import csv
import json
import math
import random
from pathlib import Path
from statistics import median

import pytest

from lolat.api.fitting import fit
from lolat.api.model import Model
from lolat.device.file import read
from lolat.errors import ModelFileError
from lolat.graph import GraphBuilder
from lolat.graph.counts import FEATURES
from tests import synthetic
from tests.cli.commands import Command
from tests.fitting import made_up

THREE = ["acts", "inp", "flops", "latency_ms"]


def test_a_model_fitted_again_has_the_same_numbers(lolat: Command, tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new" / "again.json"
    document = synthetic.document(warnings=["the machine was busy"])
    old.write_text(json.dumps(document))
    found = lolat.done("fit", old, "--output", new)
    again = read(new).document
    for name in ("predictors", "default", "domain", "points", "environment", "noise", "device"):
        assert again[name] == json.loads(json.dumps(document[name])), name
    assert again["name"] == "again"
    assert again["warnings"] == ["the machine was busy"]  # what was said of the points stays true
    assert found.err == f"lolat: warning: when {old} was made: the machine was busy\n"
    assert found.out.startswith(
        "again: a desk, 2 threads, by 105 measurements, batch 1 to 4, TensorFlow 2.21.0 "
    )
    assert f"written: {new}" in found.out


@pytest.mark.parametrize("name", ["points.csv", "POINTS.CSV"])
def test_a_table_with_all_counts(lolat: Command, tmp_path: Path, name: str) -> None:
    points = synthetic.measured()
    table, output = tmp_path / name, tmp_path / "model.json"
    table.write_text(synthetic.table(points, [*FEATURES, "latency_ms", "batch_size", "name"]))
    lolat.done("fit", table, "--output", output)
    model = Model.load(output)
    assert model.default == "extended"
    assert model.predict_counts(1e6, 1e6, 1e8, 1e6, 1e5, 20) == pytest.approx(
        synthetic.CALL_MS + 2 + 1 + 2 + 0.8 + 0.05 + 0.2, rel=0.05
    )
    assert model.file.document["environment"]["source"] == name


# ---- Operations: `fit`, then `predict` and `evaluate --table`.


ENCODER = "tests.fitting.made_up:encoder"


def fitted(lolat: Command, folder: Path) -> Path:
    operations, facts = made_up.write_tables(folder)
    out = folder / "desk.json"
    found = lolat.done("fit", operations, "--facts", facts, "--name", "desk", "--output", out)
    assert found.out.startswith(
        "desk: desk, by 140 operations, batch 1 to 253 · fp32, PyTorch, eager\n"
    )
    told = lolat.text("show", out, "--formula")
    assert "kernels (default): each operation by the terms of its class (" in told
    assert found.err == ""
    return out


def test_from_a_table_to_a_network(lolat: Command, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    model = fitted(lolat, tmp_path)
    assert read(model).document["default"] == "kernels"
    ask = (ENCODER, "--sequence-length", 256, "--batch-size", 4)
    answer = lolat.json("predict", model, *ask)
    # Four dense layers and what is between them, by hand.
    m, ms = 4 * 256, made_up.product_ms
    wanted = 2 * (ms(1, m, 2048, 512) + ms(1, m, 512, 2048))
    wanted += 2 * made_up.moves_ms("add", 2 * m * 2048) + 2 * made_up.moves_ms("ln", 2 * m * 512)
    wanted += made_up.moves_ms("add", 2 * m * 512)  # rows of the table of embeddings
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
    assert "1 network: median error" in found.out
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


# ---- Tables that cannot be right


@pytest.mark.parametrize(
    ("units", "gflops", "bandwidth", "half"),
    [(40, 9.4, 500, ""), (40, 9400, 0.5, ""), (40, 9_400_000, 500, ""), (78, 44, 4000, 148),
     (78, 44_000, 4.0, 148), (78, 44_000, 4000, 148_000)],
)  # fmt: skip
def test_a_data_sheet_of_other_units_is_refused(
    lolat: Command, tmp_path: Path, units: float, gflops: float, bandwidth: float, half: float | str
) -> None:
    """TFLOPS, TB/s, MFLOPS; the H20 has 44 TFLOPS, 4 TB/s and 148 TFLOPS in bfloat16."""
    operations, facts = made_up.write_tables(tmp_path)
    head = made_up.FACTS.splitlines()[0]
    facts.write_text(f"{head},bf16_tflops\ndesk,{units},{gflops},{bandwidth},{half}\n")
    said = lolat.refused(
        "fit", operations, "--facts", facts, "--name", "desk", "--output", tmp_path / "m.json"
    )
    assert "GFLOPS" in said or "GB/s" in said
    assert not (tmp_path / "m.json").exists()


@pytest.mark.parametrize(
    ("column", "wrong", "right"),
    [("half_tflops", 65_000, 65), ("fp8_tflops", 1_979_000, 1979), ("tf32_gflops", 1.56e8, 1.56e5),
     ("memory_gib", 16_384, 16), ("l2_mb", 51_200, 50), ("power_w", 700_000, 700)],
)  # fmt: skip
def test_a_cell_of_other_units_is_refused(
    lolat: Command, tmp_path: Path, column: str, wrong: float, right: float
) -> None:
    """GFLOPS, MFLOPS, MiB, KB and milliwatts, of a T4, an H100 or an A100."""
    operations, facts = made_up.write_tables(tmp_path)
    head, row = made_up.FACTS.splitlines()
    ask = ("fit", operations, "--facts", facts, "--name", "desk", "--output", tmp_path / "m.json")
    facts.write_text(f"{head},{column}\n{row},{wrong}\n")
    assert column in lolat.refused(*ask)
    facts.write_text(f"{head},{column}\n{row},{right}\n")
    lolat.done(*ask)


def test_a_data_sheet_alone_has_no_times_that_a_new_fit_replaces(
    lolat: Command, tmp_path: Path
) -> None:
    _, facts = made_up.write_tables(tmp_path)
    ask = ("fit", "--facts", facts, "--name", "desk", "--output", tmp_path / "m.json")
    first, again = lolat.done(*ask), lolat.done(*ask)
    assert "replaced" not in first.err + again.err


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
    facts.write_text(f"{head},memory_gib,half_tflops,bf16_tflops\n{row},24,90,45\n")
    out = tmp_path / "m.json"
    lolat.done("fit", operations, "--facts", facts, "--name", "desk", "--output", out)
    model = Model.load(out)
    held = model.file.document["environment"]["fitted_on"]
    assert held["operations"] == len(operations.read_text().splitlines()) - 1
    found = model.run_as("amp").predict(synthetic.network(), 8)
    assert found.available_bytes == int(24 * 2**30 * 0.94) - 2**29
    assert (found.precision, found.in_domain) == ("amp", False)
    b = GraphBuilder("product", "torch")
    x = b.input((8192, 8192))
    x = b.add("dense", [x], (8192, 8192), in_features=8192, out_features=8192, bias=False)
    half, bfloat16 = (model.run_as(p).predict(b.build([x])) for p in ("fp16", "bf16"))
    assert bfloat16.latency_ms / half.latency_ms == pytest.approx(90 / 45, rel=0.05)


@pytest.mark.parametrize("with_operations", [True, False])
def test_the_link_and_the_machine_of_a_data_sheet_are_kept(
    lolat: Command, tmp_path: Path, with_operations: bool
) -> None:
    """Of networks alone too: 0.8 of its GB/s join 4 GPUs, the network between machines 5."""
    operations, facts = made_up.write_tables(tmp_path)
    head, row = made_up.FACTS.splitlines()
    facts.write_text(f"{head},link_gb_s,gpus_per_node,memory_gb\n{row},450,4,24\n")
    out, tables = tmp_path / "m.json", [operations] if with_operations else []
    found = lolat.done("fit", *tables, "--facts", facts, "--name", "desk", "--output", out)
    assert "columns that are not read: memory_gb (did you mean memory_gib?)" in found.err
    inside, beyond = Model.load(out).cost(synthetic.network(), 8, replicas=[4, 5]).options
    assert (inside.link, inside.link_gbps) == ("the link of its data sheet", 0.8 * 8 * 450)
    assert beyond.link == "the network between machines"


def test_a_card_without_bfloat16_is_one_of_several_in_a_table_of_data_sheets(
    lolat: Command, tmp_path: Path
) -> None:
    """A Turing card of 65 TFLOPS in float16 serves no language models; its networks are answered."""
    facts, out = tmp_path / "facts.csv", tmp_path / "m.json"
    head = "device,multiprocessors,bandwidth_gb_s,fp32_matrix_gflops,memory_gib,bf16_tflops,half_tflops"
    facts.write_text(f"{head}\nold,40,320,8100,16,,65\nnew,80,1000,20000,40,200,200\n")
    for name, served in (("old", False), ("new", True)):
        said = lolat.done("fit", "--facts", facts, "--name", name, "--output", out).err
        assert ("no bf16_tflops: the file answers for networks, and not for" in said) is not served
        assert (Model.load(out).file.llm is not None) is served
        out.unlink()


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
    assert read(out).document["predictors"]["kernels"].get("tile", 64) == tile
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
        assert ("left out: measure it again" in found.err) == (text == wrong)
        errors.append(
            read(tmp_path / "m.json").document["predictors"]["kernels"]["error"]["left_out"][
                "median"
            ]
        )
    assert f"products.csv, line {number + 1}: linear takes " in found.err
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
    found = Model.load(tmp_path / "m.json").predict(builder.build([x]), 4)
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
    ms = Model.load(output).predict_counts(**{f: points[1].counts[f] for f in FEATURES})
    assert found["blocks"][0]["predicted_ms"] == pytest.approx(ms)
    assert found["summary"]["blocks"] == len(points[1::2])
    assert found["summary"]["median"] < 0.05
    assert len(lolat.done("evaluate", output, "--table", rest).out.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("network,time\na,1\n", "no column of times (it has network, time)"),
        ("batch,m,n,k,latency_ms\n1,1,1,1,1\n", "lacks the column op"),
        ("op,batch,m,n,latency_ms\nlinear,1,1,1,1\n", "k is no column of the table"),
        ("name,latency_ms\na,1\n", "of networks with a first line of network,batch_size"),
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
    found = Model.load(path).predict(builder.build([x]), 8192)
    at_peak = 2 * 8192**3 / 91.6e9
    assert at_peak < found.latency_ms < 3 * at_peak
    assert found.in_domain is not True
    assert found.available_bytes is not None
    assert 40e9 < found.available_bytes < 48e9
    for name in ("no such gpu", "H100 (SXM5)", "2x A100"):
        assert lolat("fit", "--name", name, "--output", tmp_path / "none.json").code == 2
    assert not (tmp_path / "none.json").exists()


@pytest.mark.parametrize(
    ("name", "sheet"),
    [("H100", "H100 PCIe"), ("H100 SXM5", "H100 SXM"), ("V100", "V100 PCIe 16 GB")],
)
def test_the_data_sheet_that_is_taken_is_told(name: str, sheet: str) -> None:
    said: list[str] = []
    assert fit(name=name, warn=said.append).device == f"{name} (data sheet of {sheet})"
    others = {"H100": "h100-sxm", "V100": "v100-sxm-16gb, v100-sxm-32gb, v100-pcie-32gb"}.get(name)
    wanted = f"{name} is taken to be the {sheet}; of another card give the full name: {others}"
    assert said == ([wanted] if others else [])
    assert fit(name="h100-sxm").device == "h100-sxm (data sheet of H100 SXM)"


def test_a_file_of_another_kind_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    """The table does not even exist that would be fitted to."""
    other = tmp_path / "net.json"
    other.write_text(json.dumps(synthetic.network().to_dict()))
    before = other.read_text()
    with pytest.raises(ModelFileError, match="is not a LoLat profile"):
        fit(tmp_path / "absent.csv", other, name="gpu")
    assert other.read_text() == before
