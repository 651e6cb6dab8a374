"""The models of GPUs and CPUs that others measured: fitted to published tables, without their points.

DATA holds the folders timm (pytorch-image-models' results) and neusight (NeuSight's measurements). The H100
was also timed by `benchmarks/gpu_times.py` (benchmarks/h100). A model
is what `lolat fit` makes of its tables; the file keeps the formulas, their errors and intervals, but no
times: those are where they were published.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.runner import Tables, benchmark, percent
from lolat.device.file import read, write
from lolat.device.predictors.host import usual_ms

MOST_RESIDUALS = 200
TIMM = {
    "rtx-3090-amp": (
        "RTX 3090", "infer-amp-nchw-pt240-cu124-rtx3090", "train-amp-nchw-pt112-cu113-rtx3090",
    ),
    "rtx-3090-amp-nhwc": (
        "RTX 3090", "infer-amp-nhwc-pt240-cu124-rtx3090", "train-amp-nhwc-pt112-cu113-rtx3090",
    ),
    "rtx-4090-amp": ("RTX 4090", "infer-amp-nchw-pt291-cu128-4090"),
    "rtx-4090-amp-compiled": ("RTX 4090", "infer-amp-nchw-pt291-cu128-4090-dynamo"),
    "rtx-5090-amp": ("RTX 5090", "infer-amp-nchw-pt291-cu130-5090"),
    "rtx-5090-amp-compiled": ("RTX 5090", "infer-amp-nchw-pt291-cu130-5090-dynamo"),
    "rtx-pro-6000-amp-compiled": ("RTX PRO 6000 Max-Q", "infer-amp-nchw-pt291-cu130-pro6000maxq-dynamo"),
    "rtx-pro-6000-bf16-compiled": (
        "RTX PRO 6000 Max-Q", "infer-bf16-nchw-pt291-cu130-pro6000maxq-dynamo",
    ),
    "i7-12700h-compiled": ("Intel Core i7-12700H", "infer-fp32-nchw-pt240-cpu-i7_12700h-dynamo"),
    "i9-10940x-compiled": ("Intel Core i9-10940X", "infer-fp32-nchw-pt221-cpu-i9_10940x-dynamo"),
}  # fmt: skip
"""Model -> the device's name, its tables."""
NEUSIGHT = {
    "v100-fp32": "v100-pcie-32gb",
    "p100-fp32": "p100-pcie-16gb",
    "p4-fp32": "p4",
    "t4-fp32": "t4",
    "a100-fp32": "a100-pcie-40gb",
    "h100-fp32": "h100-sxm-80gb",
}
TF32_GFLOPS = {"a100-pcie-40gb": 156_000, "h100-sxm-80gb": 494_700}
"""Without sparsity: NVIDIA's data sheets of the A100 (2021) and H100 (2023; 989 TFLOPS with it)."""


OF_H100 = {
    "h100-fp32": ("float32", "no"), "h100-fp16": ("float16", "no"), "h100-fp16-nhwc": ("float16", "yes"),
}  # fmt: skip
"""Model -> precision and layout of its rows in benchmarks/h100/networks.csv."""
NETWORKS = Path(__file__).parent / "h100" / "networks.csv"
ALONE = 64  # batch size from which the device, not the host, takes the time


def of_h100(name: str, folder: Path) -> Path:
    """The forward passes of timm's networks for a model of the H100, written into `folder`.

    The time of a small batch is that of its kernels, replayed from a CUDA graph: hosts differ.
    """
    made = folder / "h100-networks.csv"
    with NETWORKS.open() as file, made.open("w", newline="") as output:
        rows = csv.DictReader(file)
        writer = csv.DictWriter(output, rows.fieldnames or (), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            is_large = int(row["batch_size"]) >= ALONE
            of_model = (row["precision"], row["channels_last"]) == OF_H100[name]
            is_known = row["network"].startswith("timm:") and row["pass"] == "inference"
            if of_model and is_known and (row["kernels_ms"] or is_large):
                times = [float(row[k]) for k in ("latency_ms", "kernels_ms") if row[k]]
                writer.writerow(row | {"latency_ms": min(times), "kernels_ms": ""})
    return made


def with_tf32(sheet: Path, folder: Path) -> Path:
    """A data sheet with the column tf32_gflops, written into `folder`."""
    head, *rows = sheet.read_text().splitlines()
    tf32 = (str(TF32_GFLOPS.get(row.partition(",")[0], "")) for row in rows)
    lines = [f"{head},tf32_gflops", *(f"{row},{n}" for row, n in zip(rows, tf32, strict=True))]
    made = folder / sheet.name
    made.write_text("\n".join(lines) + "\n")
    return made


def tables(name: str, data: Path, scratch: Path) -> list[str]:
    """The arguments of `lolat fit` for a model."""
    if name in TIMM:
        device, *files = TIMM[name]
        return [str(data / "timm" / f"{f}.csv.gz") for f in files] + ["--name", device]
    device = NEUSIGHT.get(name, "h100-sxm-80gb")
    folder = data / "neusight"
    given = [str(of_h100(name, scratch))] if name in OF_H100 else []
    if name in NEUSIGHT:
        given += [str(folder / f"kernels-{device}.csv.gz"), str(folder / "networks.csv")]
    facts = with_tf32(folder / "devices.csv", scratch)
    return [*given, "--facts", str(facts), "--name", device]


def thinned(residuals: list[float]) -> list[float]:
    """At most MOST_RESIDUALS of them, as they are distributed."""
    if len(residuals) <= MOST_RESIDUALS:
        return residuals
    at = np.linspace(0.0, 1.0, MOST_RESIDUALS)
    return [round(float(q), 5) for q in np.quantile(residuals, at)]


@benchmark("models", "gpus", "kernels", data="the folders timm and neusight")
def models(data: Path, names: str = "", output: str = "models") -> Tables:
    """Writes the shipped profiles of GPUs and CPUs of others (names=A,B output=FOLDER)."""
    rows = []
    for name in names.split(",") if names else [*{**TIMM, **NEUSIGHT, **OF_H100}]:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / f"{name}.json"
            command = [
                sys.executable,
                "-m",
                "lolat.cli.main",
                "fit",
                *tables(name, data, Path(folder)),
            ]
            subprocess.run([*command, "--output", str(made)], check=True)
            file = read(made)
            document = {**file.document}
        document["points"] = []
        if name in OF_H100:
            document["environment"]["framework_version"] = "2.11"
        elif name in NEUSIGHT:
            document["environment"]["framework_version"] = "2.1"  # of PyTorch, as NeuSight says
        if name in NEUSIGHT or name in OF_H100:
            # Nobody asks on the hosts of NeuSight.
            kernels = document["predictors"]["kernels"]
            kernels["host"] = {**kernels["host"], "start_ms": usual_ms(file.gpu)}
        for entry in document["predictors"].values():
            for key in ("residuals", "training_residuals"):
                if key in entry:
                    entry[key] = thinned(entry[key])
            entry.pop("interval", None)  # of the points that are not there
        write(Path(output) / f"{name}.json", document)
        left_out = document["predictors"][document["default"]]["error"]["left_out"]
        rows.append([name, document["default"], percent(left_out["median"])])
    return {"models": (["model", "predictor", "error"], rows)}
