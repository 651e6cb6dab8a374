"""Scripts in benchmarks/: what compare and importing find."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks import compare
from lolat.tables.blocks import Point, known_features, matrix, times
from lolat.tables.networks import read_networks
from lolat.tables.operations import read_operations
from tests import synthetic

ROOT = Path(__file__).resolve().parent.parent


# ---- importing.py: published files become the tables that are read.


def imported(source: str, checkout: Path, folder: Path) -> None:
    command = [sys.executable, ROOT / "benchmarks/importing.py", source, checkout, folder]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def save(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_operations_and_networks_of_neusight(tmp_path: Path) -> None:
    checkout, base = tmp_path / "checkout", "scripts/asplos"
    collected = checkout / base / "data/dataset/train/collect"
    save(
        collected / "bmm/p2.1.0/Tesla V100-PCIE-32GB.csv",
        "OPName,Latency,Device,Kernels,B,M,N,K\nbmm,0.0354,Tesla V100-PCIE-32GB,;a,13,27,15,29\n",
    )
    save(
        collected / "add/p2.1.0/Tesla V100-PCIE-32GB.csv",
        "OPName,Latency,Device,B,H\nadd,0.026,Tesla V100-PCIE-32GB,127,168\n",
    )
    save(checkout / base / "data/dataset/dims/test.csv", "B,H\n1,2\n")
    label = {"num_layer": 24, "e2e_latency": 12.5, "fw_latency": 5.0, "bwall_latency": 7.5}
    save(checkout / base / "label/Tesla_T4/bert_large-train-512-2-dp4.json", json.dumps(label))
    sheet = {"Device": "Tesla T4", "Dev_Mem": 15, "Mem_Bw": 320, "Num_Sm": 40, "Core_Per_SM": 64,
             "Freq": 1590, "SingleFLOPs": 8141, "L2Cache": 4}  # fmt: skip
    save(checkout / base / "data/device_configs/Tesla_T4.json", json.dumps(sheet))
    imported("neusight", checkout, tmp_path)
    timed = read_operations(tmp_path / "neusight/kernels-v100-pcie-32gb.csv.gz")
    assert sorted(t.latency_ms for t in timed) == [0.026, 0.0354]
    with (tmp_path / "neusight/networks.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert (row["device"], row["network"], row["pass"]) == ("t4", "bert_large", "training")
    assert (row["sequence_length"], row["batch_size"], row["parallel"]) == ("512", "2", "dp4")
    assert float(row["forward_ms"]) + float(row["backward_ms"]) == float(row["latency_ms"])
    with (tmp_path / "neusight/devices.csv").open() as file:
        (facts,) = csv.DictReader(file)
    wanted = {"device": "t4", "bandwidth_gb_s": "320", "fp32_matrix_gflops": "8141"}
    assert wanted.items() <= facts.items()


def test_results_of_timm(tmp_path: Path) -> None:
    save(
        tmp_path / "checkout/results/benchmark-infer-amp-nchw-pt1-gpu.csv",
        "model,infer_samples_per_sec,infer_step_time,infer_batch_size,infer_img_size,infer_gmacs,"
        "infer_macts,param_count\nresnet18,1,12.5,64,224,1.82,2.48,11.69\n",
    )
    imported("timm", tmp_path / "checkout", tmp_path)
    (found,) = read_networks(tmp_path / "timm/infer-amp-nchw-pt1-gpu.csv.gz").rows
    assert (found.latency_ms, found.batch_size) == (12.5, 64)


def test_spaces_of_help(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    data = tmp_path / "checkout/data"
    for space, archs in (("nasbench201", {"|a|": 0, "|b|": 1}), ("fbnet", [[0] * 22, [8] * 22])):
        (data / space / "latency").mkdir(parents=True)
        torch.save([1.5, 2.5], data / space / "latency/phone_1.pt")
        torch.save(
            archs, data / space / ("str_arch2idx.pt" if space == "nasbench201" else "arch.pt")
        )
    imported("help", tmp_path / "checkout", tmp_path)
    with gzip.open(tmp_path / "fbnet_latency.csv.gz", "rt") as file:
        rows = list(csv.DictReader(file))
    assert [(r["arch"], float(r["phone_1"])) for r in rows] == [("0" * 22, 1.5), ("8" * 22, 2.5)]


# ---- predictors side by side


def points_of(rows: list[tuple[float, ...]]) -> list[Point]:
    """Points of flops, acts, inp, traffic, weights and ms, each a block of its own."""
    names = ("flops", "acts", "inp", "traffic", "weights")
    return [
        Point(f"b{i}", 1, dict(zip(names, row[:-1], strict=True)), row[-1])
        for i, row in enumerate(rows)
    ]


def test_flops_alone_are_a_line() -> None:
    points = points_of([(n, 1, 1, 1, 1, 2e-8 * n + 0.4) for n in np.geomspace(1e6, 1e10, 30)])
    assert compare.flops(points)(points_of([(1e9, 0, 0, 0, 0, 1)])) == pytest.approx([20.4])


def test_a_roofline_has_the_highest_rates_of_any_point() -> None:
    """The first computes most a ms (1e8), the second moves most: 4 * (100 + 200 + 300 + 400) bytes."""
    roofline = compare.paleo(
        points_of([(1e9, 1, 1, 1, 1, 10), (1e3, 100, 200, 300, 400, 1), (1e9, 10, 10, 10, 10, 40)])
    )
    found = roofline(points_of([(5e8, 1000, 2000, 3000, 4000, 1)]))
    assert found == pytest.approx([5e8 / 1e8 + 4 * 10000 / 4000])


def test_a_forest_is_that_of_scikit_learn() -> None:
    ensemble = pytest.importorskip("sklearn.ensemble")
    x = np.random.default_rng(0).integers(1, 1000, (40, 5)).astype(float)
    points = points_of([(*row, row.sum()) for row in x])
    forest = ensemble.RandomForestRegressor(random_state=0).fit(
        np.log1p(matrix(points, known_features(points))), np.log(times(points))
    )
    wanted = np.exp(forest.predict(np.log1p(matrix(points, known_features(points)))))
    np.testing.assert_allclose(compare.forest(points)(points), wanted)


def test_left_out_means_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A predictor that knows its points by heart is wrong on every block that it has not seen."""
    points = [Point.from_dict(p) for p in synthetic.document()["points"]]

    def by_heart(seen: Sequence[Point]) -> compare.Predict:
        known = {p.name: p.latency_ms for p in seen}
        return lambda others: np.array([known.get(p.name, 0.0) for p in others])

    assert not compare.left_out(points, by_heart).any()
    monkeypatch.setattr(
        compare, "PREDICTORS", {"two-regime": compare.two_regime, "FLOPs": compare.flops}
    )
    columns, rows = compare.table(points)
    assert columns[:2] == ["predictor", "median"]
    assert sorted(row[0] for row in rows) == ["FLOPs", "two-regime"]
