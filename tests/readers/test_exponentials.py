"""An exponential is one kind of operation, from every framework to the counts and the GPU formula."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("torch")

import torch

import lolat
from lolat.graph import Graph, work
from lolat.graph.counts import count
from lolat.graph.modes import Mode
from tests.readers.keras_networks import functional, layers, ops
from tests.readers.onnx_networks import model, node, saved
from tests.readers.torch_networks import Does

ELEMENTS = 4 * 6 * 6


def graphs(folder: Path) -> dict[str, Graph]:
    """A convolution to 4 channels of 6 x 6, and the exponential of each."""
    in_keras = functional(lambda x: ops.exp(layers.Conv2D(4, 3)(x)), (8, 8, 3))
    activated = functional(layers.Conv2D(4, 3, activation="exponential"), (8, 8, 3))
    in_torch = Does(lambda m, x: m.conv(x).exp(), conv=torch.nn.Conv2d(3, 4, 3))
    nodes = [node("Conv", "x w", "a"), node("Exp", "a", "y")]
    in_onnx = saved(folder, model(nodes, x=(1, 3, 8, 8), w=(4, 3, 3, 3)))
    return {
        "keras.ops": lolat.read(in_keras),
        "Keras' activation": lolat.read(activated),
        "PyTorch": lolat.read(in_torch, (3, 8, 8)),
        "ONNX": lolat.read(in_onnx),
    }


def test_every_reader_writes_what_the_formulas_know(tmp_path: Path) -> None:
    for name, graph in graphs(tmp_path).items():
        total = count(graph).total(2)
        assert total.exps == 2 * ELEMENTS, name
        assert (total.curve_elements, total.clip_elements) == (4 * ELEMENTS, 0), name
        classes = [work.CLASSES[k] for k in work.work_of(graph).kind]
        assert classes == [work.CONVOLUTION, work.ELEMENTS], name
        # Autocast has a convolution write halves and an exponential read float32: 4 bytes, not 2.
        steps = work.work_of(graph, 1, Mode("amp"))
        assert [work.CLASSES[k] for k in steps.kind[1:]] == [work.CONVOLUTION, *[work.ELEMENTS] * 2]
        assert list(steps.bytes[2:]) == [(2 + 4) * ELEMENTS, 8 * ELEMENTS], name
