"""ResNet-50 as torchvision has it (224 pixels, stride in the 3x3), written in each: one set of counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")
pytest.importorskip("torch")

from onnx import TensorProto, helper

import lolat
from lolat.graph import Graph
from lolat.graph.blocks import cut
from lolat.graph.counts import COLUMNS, count
from tests.readers import torch_networks as nets
from tests.readers.keras_networks import functional
from tests.readers.test_torch_networks import nameless, resnet

DEPTHS = (3, 4, 6, 3)


class Onnx:
    """Nodes and weights of an ONNX network; the weights' data are in a file that is not there."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, *shape: int) -> str:
        tensor = TensorProto(name=f"w{len(self.weights)}", data_type=TensorProto.FLOAT, dims=shape)
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="weights.bin")
        self.weights.append(tensor)
        return str(tensor.name)

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        out = f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [out], out, **attributes))
        return out

    def conv(self, x: str, inside: int, out: int, kernel: int = 1, stride: int = 1) -> str:
        """A convolution without bias and its batch norm."""
        pads = [kernel // 2] * 4
        y = self.add(
            "Conv", x, self.weight(out, inside, kernel, kernel), kernel_shape=[kernel] * 2,
            strides=[stride] * 2, pads=pads,
        )  # fmt: skip
        return self.add("BatchNormalization", y, *(self.weight(out) for _ in range(4)))

    def saved(self, path: Path, y: str) -> str:
        shape = ["batch", 3, 224, 224]
        graph = helper.make_graph(
            self.nodes, "resnet50", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(y, TensorProto.FLOAT, ["batch", 1000])], self.weights,
        )  # fmt: skip
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        path.write_bytes(made.SerializeToString())
        return str(path)


def in_onnx(folder: Path) -> Graph:
    net = Onnx()
    x = net.add("Relu", net.conv("x", 3, 64, 7, 2))
    x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    inside = 64
    for stage, depth in enumerate(DEPTHS):
        width = 64 << stage
        for i in range(depth):
            stride = 2 if i == 0 and stage else 1
            y = net.add("Relu", net.conv(x, inside, width))
            y = net.add("Relu", net.conv(y, width, width, 3, stride))
            y = net.conv(y, width, 4 * width)
            if i == 0:
                x = net.conv(x, inside, 4 * width, 1, stride)
            x, inside = net.add("Relu", net.add("Add", y, x)), 4 * width
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    y = net.add("Gemm", x, net.weight(1000, inside), net.weight(1000), transB=1)
    return lolat.read(net.saved(folder / "resnet50.onnx", y))


def test_one_set_of_counts_from_keras_pytorch_and_onnx(tmp_path: Path) -> None:
    graphs = {
        "keras": lolat.read(functional(lambda x: resnet(x, DEPTHS), (224, 224, 3))),
        "torch": lolat.read("tests.readers.torch_networks:resnet50", 224),
        "onnx": in_onnx(tmp_path),
    }
    for batch_size in (1, 2, 8, 32):
        counts = [
            dict(zip(COLUMNS, count(graph).at(batch_size).sum(0).tolist(), strict=True))
            for graph in graphs.values()
        ]
        assert counts[0] == counts[1] == counts[2]
        # As published: 4.09 GMACs and 11.1 M activations (fvcore), 25,557,032 parameters, of which
        # 53,120 are the vectors of normalizations.
        assert round(counts[0]["flops"] / batch_size / 1e9, 2) == 4.09
        assert counts[0]["acts"] == batch_size * 11_113_984
        assert counts[0]["weights"] == 25_557_032 - 53_120
    blocks = [[b.summary for b in cut(nameless(graph))] for graph in graphs.values()]
    assert blocks[0] == blocks[1] == blocks[2]
    assert len(blocks[0]) == 18
    labels = [b.label for b in cut(graphs["torch"])]
    assert labels[:3] + labels[-2:] == ["stem", "layer1.0", "layer1.1", "layer4.2", "head"]
    names = [o.full_name for o in graphs["torch"].operations]
    assert (names[0], names[4]) == ("conv1", "layer1.0/conv1")
    for framework, graph in graphs.items():
        assert graph.framework == framework
        assert graph.warnings == count(graph).warnings == ()
        sizes = graph.tensors[graph.inputs[0]].shape
        assert sizes == ((1, 224, 224, 3) if framework == "keras" else (1, 3, 224, 224))


def test_keras_own_resnet50_is_another_variant() -> None:
    """Its stride is in the first 1x1 of a block: 3.86 GMACs; so it is never compared with the above."""
    of_keras = count(lolat.read("keras:ResNet50")).total()
    of_torch = count(lolat.read(nets.resnet50(), 224)).total()
    assert (round(of_keras.flops / 1e9, 2), round(of_torch.flops / 1e9, 2)) == (3.86, 4.09)
