"""Published files become the tables that are read: small ones in their layout, and what stands in them."""

from __future__ import annotations

import csv
import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from lolat.devices.tables import read_networks, read_operations

ROOT = Path(__file__).resolve().parent.parent


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
