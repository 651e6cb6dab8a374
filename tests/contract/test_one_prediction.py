"""One way to predict: a row of `evaluate --table` is what `predict` says, and `explain` adds up to it.

Over every device that comes along, run as its file says.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from msgspec.structs import replace

import lolat
from lolat.api.model import Model
from lolat.graph import Graph
from lolat.graph.analysis import analyze
from lolat.io.paths import SHIPPED, list_models
from lolat.readers import read

FILES = [
    name for name, path, where in list_models()
    if where == SHIPPED and "predictors" in lolat.load(path).file.document
]  # fmt: skip
ROWS = [
    ("timm:resnet18", 1), ("timm:vit_small_patch16_224", 64), ("keras:MobileNetV2", 4),
    ("timm:resnet18", 256),
]  # fmt: skip


def evaluated(model: Model, folder: Path, way: str = "inference") -> list[dict[str, object]]:
    """The rows of a table of ROWS, as the model's device runs networks."""
    mode = model.file.mode
    head = ["network", "batch_size", "latency_ms", "dtype", "launch", "channels_last", "pass"]
    more = [mode.dtype, mode.launch, "yes" if mode.channels_last else "no", way]
    path = folder / "table.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([head, *([*row, 10, *more] for row in ROWS)])
    found = model.evaluate_table(path, training=way == "training")
    assert found.skipped == {}
    rows: list[dict[str, object]] = found.to_dict()["networks"]
    return rows


@pytest.mark.parametrize("name", FILES)
def test_a_row_of_a_table_is_what_predict_says(name: str, tmp_path: Path) -> None:
    model = lolat.load(name)
    for row, asked in zip(evaluated(model, tmp_path), ROWS, strict=True):
        wanted = model.predict(*asked).to_dict()
        assert row["predicted_ms"] == wanted["latency_ms"]
        assert row["interval_ms"] == wanted["interval_ms"]
        assert row["in_domain"] == wanted["in_domain"]


@pytest.mark.parametrize("name", ["epyc-2t", "epyc-zen5-2t", "rtx-3090-amp", "v100-fp32"])
def test_a_training_step_of_a_table_is_an_iteration_of_cost(name: str, tmp_path: Path) -> None:
    """Measured, from latencies, by steps that were timed and that were not: never a forward pass."""
    model = lolat.load(name)
    for row, (network, size) in zip(evaluated(model, tmp_path, "training"), ROWS, strict=True):
        cost = model.cost(network, size, size)  # an epoch of one iteration
        (option,) = cost.options
        assert row["predicted_ms"] == option.iteration_ms
        assert row["in_domain"] == cost.in_domain
        assert option.iteration_ms > 1.5 * model.predict(network, size).latency_ms


def explained(model: Model, graph: Graph) -> None:
    """Blocks add up to the network, and the operations of each of a few blocks to it."""
    whole = model.explain(graph, 8)
    found = model.predict(graph, 8)
    blocks = sum(b.latency_ms for b in whole.blocks)
    assert blocks + found.call_ms == pytest.approx(found.latency_ms, rel=1e-9)
    for block in whole.blocks[::7]:
        label = next(b.label for b in analyze(graph).blocks if b.name == block.named)
        parts = model.explain(graph, 8, block=label)
        assert parts.blocks == (block,)
        assert sum(p.latency_ms for p in parts.operations) == pytest.approx(
            block.latency_ms, rel=1e-9
        )


@pytest.mark.parametrize("name", ["epyc-2t", "v100-fp32", "a100-fp32", "rtx-4090-amp"])
@pytest.mark.parametrize("is_half", [False, True])
def test_the_operations_of_a_block_add_up_to_it(name: str, is_half: bool) -> None:
    """Also of a network that is in half itself, which a device of float32 computes in half."""
    graph = read("timm:resnet18")
    if is_half:
        tensors = (replace(t, dtype="float16") for t in graph.tensors)
        graph = replace(graph, tensors=tuple(tensors))
    explained(lolat.load(name), graph)
