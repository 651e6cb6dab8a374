"""A GPU measured here, simulated: the host starts operations, the device runs them one behind the other."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lolat
from lolat.api.model import Model
from lolat.device.file import DeviceFile
from lolat.fitting.blocks import fitted_file
from lolat.fitting.measured_gpu import with_operations, with_training
from lolat.graph import Graph
from lolat.graph.edits import as_trained
from lolat.graph.modes import Mode
from lolat.graph.work import CLASSES, work_of
from lolat.microbench import learn_training
from lolat.microbench.blocks import for_device, known_graphs
from lolat.optimizers import OPTIMIZERS
from lolat.tables.blocks import Point
from lolat.training.estimate import EstimatedTraining

pytestmark = pytest.mark.slow  # They fit models.

START_MS, CALL_MS, STEP_MS = 0.02, 0.03, 0.003
MACS_PER_MS, BYTES_PER_MS = 4e9, 4e8
LAUNCHES = dict.fromkeys(
    ("dense", "attention", "pointwise", "convolution", "grouped", "depthwise"), 2.5
)
LAUNCHES |= {"batched": 1.8, "norm": 1.7, "batch_norm": 1.9, "group_norm": 1.9}
OTHERS = ("timm:resnet50", "timm:vit_base_patch16_224", "timm:mobilenetv2_100")


def latency_ms(graph: Graph, batch_size: int) -> float:
    """The end of the last operation: each begins when it was started and the one before has ended."""
    work = work_of(graph, batch_size, Mode())
    started, end = CALL_MS, 0.0
    for kind, macs, moved in zip(work.kind, work.macs.tolist(), work.bytes.tolist(), strict=True):
        started += START_MS * (LAUNCHES.get(CLASSES[kind], 1.0) if moved else 0.3)
        end = max(end, started) + max(
            macs / MACS_PER_MS, moved / BYTES_PER_MS, STEP_MS * (moved > 0)
        )
    return end


@pytest.fixture(scope="module")
def graphs() -> dict[str, Graph]:
    return known_graphs("torch")


@pytest.fixture(scope="module")
def document(graphs: Mapping[str, Graph]) -> dict[str, Any]:
    points = []
    for block in for_device("gpu", "torch"):
        graph = graphs[block.name]
        for n in block.batch_sizes:
            ms = latency_ms(graph, n)
            points.append(
                Point.from_graph(block.name, graph, n, ms, samples_ms=(ms,), whole=block.whole)
            )
    where = {"device": "gpu", "framework": "torch"}
    made = fitted_file("desk", "a GPU without a sheet", points, where, {"floor": 0.01})
    return dict(with_operations(made, points, graphs).document)


def off(model: Model, batch_size: int, predictor: str) -> np.ndarray:
    found = []
    for name in OTHERS:
        graph = lolat.read(name)
        answer = model.predict(graph, batch_size, predictor=predictor)
        found.append(abs(answer.latency_ms / latency_ms(graph, batch_size) - 1))
    return np.array(found)


def test_it_is_told_by_its_operations_and_its_host(document: Mapping[str, Any]) -> None:
    model = Model(document)
    assert document["default"] == "kernels"
    assert document["predictors"]["kernels"]["host"]["start_ms"] == pytest.approx(
        START_MS, rel=0.15
    )
    one = model.predict(OTHERS[0])
    assert one.host_bound
    assert one.interval_ms is not None
    for batch_size in (1, 16):
        assert off(model, batch_size, "kernels").max() < 0.2
    # A sum counts fully what the device does while the host starts the rest.
    assert off(model, 1, "extended").max() > 0.2


FORWARD, BACKWARD, PASSES_MS = 3.0, 1.7, 0.6


def step_ms(graph: Graph, batch_size: int, both: bool = True) -> float:
    """A forward pass of training, or `both`; launches take FORWARD and BACKWARD times as long."""
    work = work_of(as_trained(graph), batch_size, Mode(training=True))
    order = np.argsort(work.backward, kind="stable")
    started, end = (PASSES_MS if both else 0.4), 0.0
    columns = (work.kind, work.macs, work.bytes, work.backward)
    for kind, macs, moved, back in zip(*(c[order].tolist() for c in columns), strict=True):
        if back and not both:
            break
        each = START_MS * (LAUNCHES.get(CLASSES[kind], 1.0) if moved else 0.3)
        started += each * (BACKWARD if back else FORWARD)
        slower = {"elements": 1.5, "depthwise": 3.2}.get(CLASSES[kind], 1.0) if back else 1.0
        end = max(end, started) + max(
            slower * macs / MACS_PER_MS, slower * moved / BYTES_PER_MS, STEP_MS * (moved > 0)
        )
    return end


def test_passes_of_training_tell_what_the_host_takes_in_it(document: Mapping[str, Any]) -> None:
    """Whole steps at a batch size that the host bounds, and at one that it does not."""
    graphs = known_graphs("torch", learn_training.TRAINING_BLOCKS)
    points = [
        {"name": b.name, "batch_size": n, "backward": both, "latency_ms": step_ms(graphs[b.name], n, both)}
        for b in learn_training.TRAINING_BLOCKS
        for n in b.batch_sizes
        for both in (False, True)
    ]  # fmt: skip
    made = with_training(DeviceFile({**document, "training": {"points": points}}), graphs)
    host = made.document["predictors"]["kernels"]["host"]
    assert host["training"] == pytest.approx([FORWARD, BACKWARD, PASSES_MS], rel=0.15)
    training = EstimatedTraining(made)
    for name in OTHERS:
        graph = lolat.read(name)
        for batch_size in (2, 64):
            found = training.batch(graph, batch_size, OPTIMIZERS["sgd"])
            ms = found.iteration.forward + found.iteration.backward.sum()
            assert ms == pytest.approx(step_ms(graph, batch_size), rel=0.2)
    assert not any("no training step" in w for w in found.warnings)
    assert with_training(DeviceFile(document), graphs).document == document


def test_the_file_fitted_again_answers_the_same(
    document: Mapping[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "desk.json"
    path.write_text(json.dumps(document))
    again = lolat.fit(path)
    assert again.file.document["predictors"]["kernels"] == document["predictors"]["kernels"]
    assert again.file.document["default"] == "kernels"


@pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="could not import 'timm'")
def test_a_network_of_a_table_has_its_own_size_in_each_row(
    document: Mapping[str, Any], tmp_path: Path
) -> None:
    """In any order of the rows; a later fit tells that the file does not have these networks."""
    (path := tmp_path / "desk.json").write_text(json.dumps(document))
    graphs = {side: lolat.read("timm:resnet18", side) for side in (96, 384)}
    rows = [
        f"timm:resnet18,{side},{n},{latency_ms(graph, n)}"
        for side, graph in graphs.items()
        for n in (1, 4, 16)
    ]
    found, said = [], list[str]()
    for name, lines in (("a.csv", rows), ("b.csv", rows[::-1])):
        (table := tmp_path / name).write_text(
            "\n".join(["network,input_size,batch_size,latency_ms", *lines])
        )
        fitted = lolat.fit([path, table], output=tmp_path / "twice.json", warn=said.append)
        found.append(
            [fitted.predict(g, 16, predictor="kernels").latency_ms for g in graphs.values()]
        )
        assert not [line for line in said if "times as long" in line or "left out" in line]
    assert found[0] == pytest.approx(found[1], rel=1e-3)
    (other := tmp_path / "c.csv").write_text("network,batch_size,latency_ms\ntimm:resnet34,4,3\n")
    lolat.fit([tmp_path / "twice.json", other], warn=said.append)
    assert any("does not have the networks of earlier tables" in line for line in said)
