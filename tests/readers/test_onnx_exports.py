"""Networks exported by PyTorch: the same MACs, ACTS, INP and weights as in PyTorch, and as onnx-tool's."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import math
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")
pytest.importorskip("torch")

import onnx
import torch

import lolat
from lolat.graph import Graph
from lolat.graph.blocks import cut
from lolat.graph.counts import Count, count
from tests.readers import torch_networks as nets
from tests.readers.onnx_networks import kinds, total
from tests.readers.torch_networks import NETWORKS, graph_of, in_torch

SIZES = {name: size for name, (_, size) in NETWORKS.items()}
MAKERS = {name: make for name, (make, _) in NETWORKS.items()}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the exporters."""
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


def random(model: Any) -> Any:
    """The model with parameters that are not zero, which an exporter may leave out."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in [*model.parameters(), *model.buffers()]:
            if parameter.is_floating_point():
                parameter.copy_(torch.rand_like(parameter) + 0.5)
    return model.eval()


def traced(folder: Path, model: Any, x: Any, keep: bool = True, opset: int | None = None) -> str:
    """Exported by tracing (torch.onnx.export's first exporter); `keep`: batch norms stay."""
    path = str(folder / "traced.onnx")
    options: dict[str, Any] = {"opset_version": opset} if opset else {}
    if keep:
        options |= {"training": torch.onnx.TrainingMode.PRESERVE, "do_constant_folding": False}
    with quiet():
        torch.onnx.export(
            random(model), x, path, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "batch"}},
            **options,
        )  # fmt: skip
    return path


def captured(folder: Path, model: Any, x: Any, keep: bool = True) -> str:
    """Exported through torch.export, the exporter of today."""
    pytest.importorskip("onnxscript")
    path = str(folder / "captured.onnx")
    batch: Any = {0: torch.export.Dim("batch")}
    shapes = ((batch,),) if isinstance(model, nets.Does) else (batch,)
    with quiet():
        torch.onnx.export(
            random(model), (torch.cat([x, x]),), path, dynamo=True, dynamic_shapes=shapes, verbose=False,
            external_data=False, optimize=not keep,
        )  # fmt: skip
    return path


def image(name: str) -> Any:
    return torch.zeros(1, 3, SIZES[name], SIZES[name])


@functools.cache
def exported(name: str, export: Callable[..., str] = traced, keep: bool = True) -> Graph:
    """The graph that is read from a file of a network of NETWORKS."""
    with tempfile.TemporaryDirectory() as folder:
        return lolat.read(export(Path(folder), MAKERS[name](), image(name), keep))


def sums(graph: Graph) -> list[Count]:
    counts = count(graph)
    assert [
        w for w in counts.warnings if "is in channels_last" not in w
    ] == []  # of a module's code
    return [counts.total(1), counts.total(3)]


TRANSPOSED = ("convnext", "vit", "swin")
"""Networks of NETWORKS that exporters write with transposes, and attention with more scalings."""


def essentials(graph: Graph) -> list[tuple[int, ...]]:
    """ACTS, INP, FLOPs and weights: what no framework changes."""
    return [(c.acts, c.inp, c.flops, c.weights) for c in sums(graph)]


@pytest.mark.parametrize("name", TRANSPOSED)
def test_through_torch_export_it_counts_the_same(name: str) -> None:
    assert essentials(exported(name, captured)) == essentials(in_torch(name))


@pytest.mark.parametrize("export", [traced, captured])
@pytest.mark.parametrize("name", TRANSPOSED)
def test_what_the_file_has_is_what_counts(
    tmp_path: Path, name: str, export: Callable[..., str]
) -> None:
    """The transposes, products and softmaxes of the file, and no others."""
    path = export(tmp_path, MAKERS[name](), image(name), keep=False)
    written = Counter(node.op_type for node in onnx.load(path).graph.node)
    found = Counter(kinds(lolat.read(path)))
    assert found["transpose"] == written["Transpose"] > 0
    assert found["softmax"] == written["Softmax"]
    assert found["dense"] + found["matmul"] == written["MatMul"] + written["Gemm"]


SLOW = pytest.mark.slow
EXPORTS = [traced, pytest.param(captured, marks=SLOW)]


@pytest.mark.parametrize(
    ("name", "export"),
    [("resnet", traced), ("mobilenet", traced), pytest.param("resnet", captured, marks=SLOW)],
)
def test_folded_batch_norms_are_biases(name: str, export: Callable[..., str]) -> None:
    """The convolutions stay as they are, each with a bias in place of its batch norm."""
    folded = exported(name, export, keep=False)
    whole = in_torch(name)
    norms = [o for o in whole.operations if o.kind == "batch_norm"]
    elements = [whole.tensors[o.outputs[0]].elements() for o in norms]
    channels = [whole.tensors[o.outputs[0]].shape[1] for o in norms]
    ours, theirs = sums(folded)[0], sums(whole)[0]
    assert ours[:3] == theirs[:3]
    assert ours.traffic == theirs.traffic - 2 * sum(elements)
    assert ours.weights == theirs.weights + sum(channels)
    assert ours.ops == theirs.ops - len(norms)


@pytest.mark.parametrize(
    ("name", "opset"),  # the fused attention needs opset 14
    [("mobilenet_v3", 11), ("efficientnet", 13), ("convnext", 11), ("convnext", 17), ("vit", 14)],
)
def test_older_opsets_count_the_same(tmp_path: Path, name: str, opset: int) -> None:
    """Layer norm, gelu, hard swish and their like are taken apart there."""
    ours = lolat.read(traced(tmp_path, MAKERS[name](), image(name), opset=opset))
    assert essentials(ours) == essentials(in_torch(name))
    assert sums(ours) == sums(exported(name))


@pytest.mark.parametrize("export", EXPORTS)
def test_a_bidirectional_lstm(tmp_path: Path, export: Callable[..., str]) -> None:
    ours = lolat.read(export(tmp_path, nets.lstm(), torch.zeros((1, 9), dtype=torch.int64)))
    in_torch = graph_of(nets.lstm, (9,))
    for a, b in zip(sums(ours), sums(in_torch), strict=True):
        assert (a.flops, a.weights) == (b.flops, b.weights)
    assert kinds(ours).count("lstm") == 4


@pytest.mark.parametrize(
    "others",
    [
        lambda x: [x[:, :3]] * 2,  # whose projections PyTorch packs
        lambda x: (x[:, 1:], x[:, 2:-1][:, [0, 1, 2, 2, 2]]),
    ],
)
@pytest.mark.parametrize("weights", [True, False])
def test_the_attention_layer(tmp_path: Path, others: Any, weights: bool) -> None:
    """Over keys and values of one tensor, and of two."""

    def forward(m: Any, x: Any) -> Any:
        return m.attend(x, *others(x), need_weights=weights)[0]

    module = nets.Does(forward, attend=torch.nn.MultiheadAttention(16, 4, batch_first=True))
    ours = lolat.read(traced(tmp_path, module, torch.zeros(1, 6, 16)))
    assert essentials(ours) == essentials(graph_of(module, (6, 16)))
    keys = 3 if isinstance(others(torch.zeros(1, 6, 16)), list) else 5
    projections, scores = (6 + keys + keys + 6) * 16 * 16, 6 * keys * 16
    assert total(ours).flops == projections + 2 * scores
    assert total(ours).weights == 4 * (16 * 16 + 16)


@pytest.mark.parametrize("name", ["mobilenet_v3", "unet", "vit"])
def test_operations_count_what_onnx_tool_counts(tmp_path: Path, name: str) -> None:
    """MACs of the convolutions and products; onnx-tool counts the addition of a bias, too."""
    tool = pytest.importorskip("onnx_tool")
    path = traced(tmp_path, MAKERS[name](), image(name), keep=False)
    ours = lolat.read(path)
    with quiet():
        graph = tool.Model(path, {"verbose": False}).graph
        graph.shape_infer({"x": image(name).numpy()})
        graph.profile()
    theirs = []
    for node in graph.nodemap.values():
        if node.op_type in ("Conv", "Gemm", "MatMul", "ConvTranspose"):
            additions = math.prod(node.outshape) if len(node.input) > 2 else 0
            macs = int(node.macs[0]) - additions
            if node.op_type == "ConvTranspose":
                # It takes the kernel's first axis for the outputs' channels, which are the inputs' here,
                # and counts the zeros that strides put between inputs.
                inside, outside = graph.tensormap[node.input[1]].get_shape()[:2]
                macs = macs * inside // outside // math.prod(node.strides)
            theirs.append(macs)
    heavy = ("conv", "depthwise_conv", "transposed_conv", "dense", "matmul")
    rows = zip(count(ours).at(1), ours.operations, strict=True)
    found = [int(row[2]) for row, operation in rows if operation.kind in heavy]
    assert found == theirs


@pytest.mark.parametrize("export", EXPORTS)
def test_blocks_have_the_names_of_modules(export: Callable[..., str]) -> None:
    graph = exported("resnet", export)
    assert [b.label for b in cut(graph)] == ["stem.0.0", "layer1.0", "layer1.1", "layer2.0", "head"]
