"""From random layers to a table of times, with a fake worker whose times are known."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.graph.counts import FEATURES, count
from lolat.io.progress import Silent
from lolat.mlp.table import (
    ACTIVATIONS,
    OPTIMIZERS,
    PADDINGS,
    LayerTable,
    layer_counts,
    read_table,
)
from microbench import learn_layers
from microbench.learn import REFERENCES
from microbench.learn_layers import draw, job_of, layer_graph, measure_layers
from tests.microbench.fakes import START_S, FakeDevice

JUSTUS = (
    "gpu,run,batch_size,input_size,kernel_size,in_channels,out_channels,stride,padding,use_bias,"
    "activation,optimizer,time_ms_median,time_ms_min,time_ms_max,time_ms_std"
)
JUSTUS_DENSE = (
    "gpu,run,batch_size,in_features,out_features,activation,optimizer,time_ms_median,time_ms_min,"
    "time_ms_max,time_ms_std"
)
KINDS = ("convolution", "dense")
ROUNDS = 5  # of the paper


@pytest.fixture(autouse=True)
def label(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("microbench.environment.device_label", lambda *_: "EPYC, 2 threads")
    monkeypatch.setattr("microbench.environment.load", lambda: 0.0)


def measure(path: Path, rows: list[dict[str, Any]]) -> tuple[str, str, list[str]]:
    name, table, remarks, journal = measure_layers("fake", "cpu", rows, path, False, Silent())
    assert journal.path.exists(), "kept until the model is written"
    journal.close()
    return name, table, remarks


def samples(device: FakeDevice) -> list[str]:
    """The layers that were timed, in order; the networks that ran before them left out."""
    return device.keys("sample")


# ---- A run


def test_each_layer_is_timed_five_times_after_a_network(device: FakeDevice, tmp_path: Path) -> None:
    rows = draw("dense", 30, 1, 1e9)
    name, table, remarks = measure(tmp_path / "j", rows)
    timed, keys = samples(device), {job_of(row).key for row in rows}
    assert [set(timed[i * 30 : (i + 1) * 30]) for i in range(ROUNDS)] == [keys] * ROUNDS
    assert timed[:30] != timed[30:60], "no round in the order of another"
    before = {r["before"].rpartition(" x")[0] for r in device.requests if r["do"] == "sample"}
    assert before == set(REFERENCES)
    assert name == "EPYC 2 threads", "a comma separates names"
    assert [w for w in remarks if "could not" in w] == []
    assert len(table.splitlines()) == 1 + 30


@pytest.mark.parametrize(("kind", "header"), [("convolution", JUSTUS), ("dense", JUSTUS_DENSE)])
def test_the_csv_is_read_back_with_exactly_the_columns_of_the_paper(
    device: FakeDevice, tmp_path: Path, kind: str, header: str
) -> None:
    rows = draw(kind, 25, 2, 1e9)
    _, table, _ = measure(tmp_path / "j", rows)
    assert table.splitlines()[0] == header
    (tmp_path / "t.csv").write_text(table)
    again = read_table(tmp_path / "t.csv", kind)
    assert again["gpu"].tolist() == ["EPYC 2 threads"] * 25
    for column in rows[0]:
        assert again[column].tolist() == [row[column] for row in rows]


def test_the_median_is_without_the_machines_level_and_the_others_are_raw(
    device: FakeDevice, tmp_path: Path
) -> None:
    """Twice as slow for a fifth of the run: one of the five times of every layer."""
    rows = draw("dense", 40, 3, 1e9)
    device.ms = {job_of(row).key: 1.0 + i for i, row in enumerate(rows)}
    device.slowness = lambda at: 2.0 if 4.0 <= at - START_S < 8.0 else 1.0
    _, table, _ = measure(tmp_path / "j", rows)
    (tmp_path / "t.csv").write_text(table)
    found = read_table(tmp_path / "t.csv", "dense")
    own = np.arange(40) + 1.0
    assert found.times_ms == pytest.approx(own, rel=0.02)
    assert found["time_ms_min"] == pytest.approx(own)
    assert np.median(found["time_ms_max"] / own) == pytest.approx(2.0)
    assert np.median(found["time_ms_std"] / own) == pytest.approx(
        statistics.pstdev([1, 1, 1, 1, 2]), rel=1e-4
    )


def test_a_layer_that_kills_the_worker_is_left_out_and_said(
    device: FakeDevice, tmp_path: Path
) -> None:
    rows = draw("convolution", 40, 1, 1e9)
    device.dies["prepare", job_of(rows[7]).key] = 10**6
    _, table, remarks = measure(tmp_path / "j", rows)
    assert len(table.splitlines()) == 1 + 39
    assert "1 point could not be measured (first: " in remarks[-1]


def test_a_run_goes_on_with_its_own_layers(device: FakeDevice, tmp_path: Path) -> None:
    rows = draw("dense", 20, 1, 1e9)
    first = measure(tmp_path / "j", rows)
    assert measure(tmp_path / "j", rows) == first
    assert len(samples(device)) == ROUNDS * 20, "nothing twice"
    measure(tmp_path / "j", draw("dense", 20, 2, 1e9))
    assert len(samples(device)) == 2 * ROUNDS * 20


# ---- A layer as a job


def row_of(**more: Any) -> dict[str, Any]:
    return {
        "batch_size": 8, "input_size": 56, "kernel_size": 3, "in_channels": 64, "out_channels": 128,
        "stride": 2, "padding": "valid", "use_bias": 1, "activation": "relu", "optimizer": "none", **more,
    }  # fmt: skip


def test_forward_a_layer_is_a_block_as_any() -> None:
    job = job_of(row_of())
    assert job.payload == {"graph": layer_graph(row_of()).to_dict(), "batch_size": 8}
    assert not job.whole
    weights, image = 4 * (3 * 3 * 64 * 128 + 128), 4 * 8 * 56 * 56 * 64
    assert job.keep_bytes == weights + image


def test_trained_it_is_both_passes_and_an_update() -> None:
    forward, trained = job_of(row_of()), job_of(row_of(optimizer="adam"))
    assert trained.payload == {"training": {"passes": {
        **forward.payload, "backward": True, "of_inputs": True, "optimizer": "adam",
    }}}  # fmt: skip
    assert trained.key != forward.key
    assert trained.need_bytes > 2 * forward.need_bytes
    assert trained.keep_bytes == 4 * forward.keep_bytes, "gradients, and adam's two numbers"


@settings(max_examples=40)
@given(st.sampled_from(KINDS), st.integers(0, 1_000))
def test_a_layer_as_a_block_counts_as_the_row(kind: str, seed: int) -> None:
    """Against the counts of a table's columns, which know no graph."""
    (row,) = draw(kind, 1, seed, float("inf"))
    table = LayerTable(kind, {name: np.array([value]) for name, value in row.items()})
    total = count(layer_graph(row)).total(row["batch_size"])._asdict()
    assert [total[name] for name in FEATURES] == layer_counts(table)[0].tolist()


# ---- Random layers: the paper's ranges, the cap on work, the same ones for the same seed


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_layers_and_fewer_are_the_first_of_more(kind: str) -> None:
    many = draw(kind, 200, 3, 1e9)
    assert draw(kind, 200, 3, 1e9) == many
    assert draw(kind, 60, 3, 1e9) == many[:60]
    assert draw(kind, 60, 4, 1e9) != many[:60]
    assert len({job_of(row).key for row in many}) == 200


def drawn(kind: str, number: int = 20_000) -> dict[str, np.ndarray]:
    generator = random.Random(1)
    rows = [learn_layers._drawn(kind, generator) for _ in range(number)]
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def test_convolutions_cover_the_ranges_of_the_paper() -> None:
    table = drawn("convolution")
    for column, low, high in (
        ("batch_size", 1, 64), ("input_size", 1, 512), ("kernel_size", 1, 7), ("stride", 1, 4),
        ("use_bias", 0, 1),
    ):  # fmt: skip
        assert (table[column].min(), table[column].max()) == (low, high), column
    for channels in ("in_channels", "out_channels"):
        product = table[channels] * table["input_size"]
        assert table[channels].min() == 1
        assert 9_900 < product.max() <= 10_000
        # uniform up to a limit that depends on the size: half of the limit on average
        assert np.mean(table[channels] / (10_000 // table["input_size"])) == pytest.approx(
            0.5, abs=0.02
        )
    assert (table["kernel_size"] <= table["input_size"]).all()
    # as likely as the others, but for the few inputs that are smaller than 7
    shares = Counter(table["kernel_size"].tolist())
    assert all(abs(shares[k] / 20_000 - 1 / 7) < 0.015 for k in range(1, 8))
    assert Counter(table["padding"].tolist())[PADDINGS[0]] == pytest.approx(10_000, rel=0.05)


def test_dense_layers_cover_the_ranges_of_the_paper() -> None:
    table = drawn("dense")
    for features in ("in_features", "out_features"):
        assert 1 <= table[features].min() < 10
        assert 4_085 < table[features].max() <= 4_095
        assert table[features].mean() == pytest.approx(2_048, rel=0.02)


@pytest.mark.parametrize("kind", KINDS)
def test_half_are_forward_only_and_every_word_is_as_likely(kind: str) -> None:
    table = drawn(kind, 6_000)
    optimizers = Counter(table["optimizer"].tolist())
    assert set(optimizers) == set(OPTIMIZERS)
    assert optimizers.pop("none") == pytest.approx(3_000, rel=0.06)
    assert all(n == pytest.approx(500, rel=0.2) for n in optimizers.values())
    activations = Counter(table["activation"].tolist())
    assert set(activations) == set(ACTIVATIONS)
    assert all(n == pytest.approx(1_500, rel=0.2) for n in activations.values())


@pytest.mark.parametrize("kind", KINDS)
def test_no_layer_has_more_work_than_allowed(kind: str) -> None:
    def work(rows: list[dict[str, Any]]) -> np.ndarray:
        columns = {name: np.array([row[name] for row in rows]) for name in rows[0]}
        acts, inp, macs, traffic, weights, _ = layer_counts(LayerTable(kind, columns)).T
        return macs + 64 * (acts + inp + traffic + weights)

    assert work(draw(kind, 100, 5, 2e8)).max() <= 2e8
    assert work(draw(kind, 100, 5, float("inf"))).max() > 1e9
