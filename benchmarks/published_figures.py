"""Networks on GPUs as others published them, in precisions that no table here has.

published_figures.csv beside this file: milliseconds of a step, from the throughput in the READMEs of
NVIDIA/DeepLearningExamples (PyTorch, containers of 2021 and 2022; training with the data loader) and of
lambdal/deeplearning-benchmark. half.csv in DATA: NVIDIA's FasterTransformer (TorchScript) and AITemplate
(eager), with attention as single operations. The usual launch overheads were chosen with both in sight
(`lolat.device.predictors.host`), no other constant.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import lolat
from benchmarks.runner import Errors, Tables, benchmark, percent
from lolat.api.model import Model
from lolat.device.predictors.host import usual_ms
from lolat.graph import Graph
from lolat.io.tables import read_table

FIGURES = Path(__file__).with_name("published_figures.csv")
MODELS = {
    "A100 80GB SXM": "a100-sxm-80gb", "A100 40GB PCIe": "a100-pcie-40gb",
    "A100 80GB PCIe": "a100-pcie-80gb", "V100 16GB SXM2": "v100-sxm2-16gb",
    "V100 32GB SXM2": "v100-sxm2-32gb", "T4 16GB": "t4", "H100 80GB SXM": "h100-sxm",
    "RTX 3090 24GB": "rtx-3090", "RTX 4090 24GB": "rtx-4090",
}  # fmt: skip
"""GPU of a row -> its device: the measured form of the card, or that changed by the data sheets."""
HEADER = (
    "GPU, precision, pass", "times", "median", "bias", "beyond 1.5 times", "of these not inside",
    "inside the 90 % interval", "its width",
)  # fmt: skip

Groups = dict[str, list[tuple[float, ...]]]


def asked(model: Model, graph: Any, row: dict[str, str]) -> tuple[float, float, float]:
    """(ms, low, high) of a row's step."""
    batch = int(row["batch_size"])
    if row["pass"] == "inference":
        found = model.predict(graph, batch)
        return found.latency_ms, *(found.interval_ms or (0.0, np.inf))
    cost = model.cost(graph, batch, samples=10_000 * batch, optimizer="momentum")
    option = cost.options[0]
    assert option.total_s
    assert option.interval_s
    low, high = (option.iteration_ms * end / option.total_s for end in option.interval_s)
    return option.iteration_ms, low, high


@benchmark("figures", "gpus", "kernels")
def figures() -> Tables:
    """Published times of image networks in fp32, TF32 and mixed precision on six GPUs."""
    with open(FIGURES, encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    keys = {(r["network"], int(r["input_size"])) for r in table}
    graphs = {key: lolat.read(*key) for key in sorted(keys)}
    groups: Groups = defaultdict(list)
    for row in table:
        gpu, is_last = row["gpu"].split("GB")[0].rpartition(" ")[0], row["channels"] == "last"
        model = lolat.load(MODELS[row["gpu"]]).run_as(row["precision"], channels_last=is_last)
        answer = asked(model, graphs[row["network"], int(row["input_size"])], row)
        for key in (f"{gpu}, {row['precision']}, {row['pass']}", f"all, {row['pass']}"):
            groups[key].append((*answer, float(row["step_ms"])))
    return {"figures": (HEADER, lines_of(groups))}


@benchmark("half", "gpus", "kernels", data="half.csv and networks/")
def half(data: Path) -> Tables:
    """Published times of BERT, ViT, Swin and ResNet-50 in half precision and TF32, launched eagerly."""
    groups: Groups = defaultdict(list)
    rows = read_table(data / "half.csv", ("device", "network", "latency_ms"), rows="network")
    timed = [(row, _timed(row, data)) for row in rows]
    found = [_asked_eagerly(*both) for both in timed]
    ratios = [
        row.number("latency_ms") / one.latency_ms for row, one in zip(rows, found, strict=True)
    ]
    is_script = [row["launch"] == "torchscript" for row in rows]
    for at, (row, graph) in enumerate(timed):
        card, measured = row["device"], row.number("latency_ms")
        how = "TorchScript" if is_script[at] else "eager"
        keys = card, how, "all", *(["all but MI250"] if card != "mi250" else [])
        answers = dict.fromkeys(keys, found[at])
        if is_script[at]:
            others = [
                ratio for ratio, one, other, script in zip(ratios, found, rows, is_script, strict=True)
                if script and one.host_bound and other["device"] != card
            ]  # fmt: skip
            answers[OTHER_HOST] = _asked_eagerly(row, graph, float(np.median(others)))
        for key, one in answers.items():
            interval = one.interval_ms or (0.0, np.inf)
            groups[key].append((one.latency_ms, *interval, measured))
    return {"half": (HEADER, lines_of(groups))}


OTHER_HOST = "TorchScript, as fast a host as other cards'"
"""Row of TorchScript's times, asked with the launch overhead (`--host-us`) of those of other cards."""


def _timed(row: dict[str, str], data: Path) -> Graph:
    """The network of a row of half.csv, attention as single operations."""
    name, length = row["network"], row.get("sequence_length")
    if name == "bert_base":
        network = f"transformers:{data / 'networks' / 'bert_base.json'}?eager"
        return lolat.read(network, {"sequence_length": int(length or 0)})
    is_fused = any(word in name for word in ("vit_", "swin_"))
    return lolat.read(f"{name}?eager" if is_fused else name, input_size=int(row["input_size"]))


def _asked_eagerly(
    row: dict[str, str], graph: Graph, host: float | None = None
) -> lolat.Prediction:
    """The answer to a row of half.csv; `host`: launch overhead over the usual one of an eager host."""
    model = lolat.load(row["device"])
    host_us = host and 1e3 * usual_ms(model.file.gpu) * host
    return model.run_as(row["precision"], "eager", host_us).predict(graph, int(row["batch_size"]))


def lines_of(groups: Groups) -> list[list[str]]:
    """The rows of a table from (predicted, low, high, measured) ms."""
    lines = []
    for key, rows in sorted(groups.items()):
        ms, low, high, measured = np.array(rows).T
        off, inside = ms / measured - 1.0, (low <= measured) & (measured <= high)
        errors = Errors(off, [*inside])
        beyond = (off > 0.5) | (off < 1 / 1.5 - 1)
        width = f"{np.median(high / low):.1f} times"
        held = percent(float(np.mean(inside)), 0)
        lines.append([key, str(len(rows)), errors.median, errors.bias, str(int(beyond.sum())),
                      str(int((beyond & ~inside).sum())), held, width])  # fmt: skip
    return lines
