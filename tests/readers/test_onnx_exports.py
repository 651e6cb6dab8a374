"""Networks exported by PyTorch: the same counts as in Keras and in PyTorch, and as onnx-tool's."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import math
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")
pytest.importorskip("torch")

import torch

import lolat
from lolat.graph import Graph
from lolat.graph.blocks import cut
from lolat.graph.counts import Count, count
from lolat.readers.keras import read_model
from tests.readers import torch_networks as nets
from tests.readers.keras_networks import functional, layers, ops
from tests.readers.onnx_networks import kinds
from tests.readers.test_torch_networks import NETWORKS, in_keras, in_torch, nameless
from tests.readers.torch_networks import graph_of

SIZES = {name: size for name, (_, _, size) in NETWORKS.items()}
MAKERS = {name: make for name, (make, _, _) in NETWORKS.items()}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without what the exporters tell on all channels."""
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
    assert counts.warnings == ()
    return [counts.total(1), counts.total(3)]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_same_network_in_keras_and_pytorch_counts_the_same(name: str) -> None:
    """That the two count the same, tests/readers/test_torch_networks.py says."""
    ours = exported(name)
    assert sums(ours) == sums(in_torch(name))
    # Cut alike, where no names guide it.
    theirs = nameless(in_keras(name))
    assert [b.summary for b in cut(nameless(ours))] == [b.summary for b in cut(theirs)]


@pytest.mark.parametrize("name", ["convnext", "vit", "swin"])
def test_through_torch_export_it_counts_the_same(name: str) -> None:
    assert sums(exported(name, captured)) == sums(in_torch(name))


def test_a_concatenation_of_one_tensor_is_left_out_by_torch_export() -> None:
    """By the exporter, twice; nothing else differs."""
    ours = sums(exported("densenet", captured))
    expected = sums(in_torch("densenet"))
    assert [n.ops + 2 for n in ours] == [n.ops for n in expected]
    assert [n[:3] for n in ours] == [n[:3] for n in expected]


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
    assert sums(ours) == sums(in_torch(name))


@pytest.mark.parametrize("export", EXPORTS)
def test_a_bidirectional_lstm(tmp_path: Path, export: Callable[..., str]) -> None:
    ours = lolat.read(export(tmp_path, nets.lstm(), torch.zeros((1, 9), dtype=torch.int64)))
    in_torch = graph_of(nets.lstm, (9,))
    for a, b in zip(sums(ours), sums(in_torch), strict=True):
        assert (a.flops, a.weights) == (b.flops, b.weights)
    assert kinds(ours).count("lstm") == 4


TOKENS, FEATURES, HEADS = 6, 16, 4


def packed(m: Any, x: Any) -> Any:
    """As timm's and Swin's: one transposition for queries, keys and values, one of the result."""
    split = m.qkv(x).reshape(-1, TOKENS, 3, HEADS, FEATURES // HEADS)
    q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return m.out(y.transpose(1, 2).reshape(-1, TOKENS, FEATURES))


def separate(m: Any, x: Any) -> Any:
    """As a transformer's: one for each of them."""
    heads = (y.view(-1, TOKENS, HEADS, FEATURES // HEADS) for y in m.qkv(x).chunk(3, -1))
    q, k, v = (y.transpose(1, 2) for y in heads)
    y = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    return m.out(y.transpose(1, 2).reshape(-1, TOKENS, FEATURES))


def packed_in_keras(x: Any) -> Any:
    split = ops.reshape(layers.Dense(3 * FEATURES)(x), (-1, TOKENS, 3, HEADS, FEATURES // HEADS))
    return mixed_in_keras(ops.unstack(ops.transpose(split, (2, 0, 3, 1, 4)), 3, 0))


def separate_in_keras(x: Any) -> Any:
    parts = ops.split(layers.Dense(3 * FEATURES)(x), 3, -1)
    heads = (ops.reshape(y, (-1, TOKENS, HEADS, FEATURES // HEADS)) for y in parts)
    return mixed_in_keras([ops.transpose(y, (0, 2, 1, 3)) for y in heads])


def mixed_in_keras(heads: Any) -> Any:
    q, k, v = heads
    scores = ops.einsum("bhqd,bhkd->bhqk", q, k) * (FEATURES // HEADS) ** -0.5
    y = ops.transpose(ops.einsum("bhqk,bhkd->bhqd", ops.softmax(scores), v), (0, 2, 1, 3))
    return layers.Dense(FEATURES)(ops.reshape(y, (-1, TOKENS, FEATURES)))


@pytest.mark.parametrize(
    ("forward", "in_keras", "moves"),
    [(packed, packed_in_keras, 2), (separate, separate_in_keras, 4)],
)
@pytest.mark.parametrize("export", EXPORTS)
def test_transposes_around_the_fused_attention_count_as_they_are_written(
    tmp_path: Path, forward: Any, in_keras: Any, moves: int, export: Callable[..., str]
) -> None:
    """They move memory in PyTorch and in Keras; the exporter's own, of the keys, is none of them."""
    qkv, out = torch.nn.Linear(FEATURES, 3 * FEATURES), torch.nn.Linear(FEATURES, FEATURES)
    module = nets.Does(forward, qkv=qkv, out=out)
    path = export(tmp_path, module, torch.zeros(1, TOKENS, FEATURES), keep=export is traced)
    ours = lolat.read(path)
    assert sums(ours) == sums(graph_of(module, (TOKENS, FEATURES)))
    assert sums(ours) == sums(read_model(functional(in_keras, (TOKENS, FEATURES))))
    assert kinds(ours).count("transpose") == moves


@pytest.mark.parametrize(
    ("others", "weights", "more"),
    [
        (lambda x: [x[:, :3]] * 2, True, ["slice"]),  # whose projections PyTorch packs
        (lambda x: (x[:, 1:], x[:, 2:-1][:, [0, 1, 2, 2, 2]]), True, None),
        (lambda x: (x[:, 1:], x[:, 2:-1][:, [0, 1, 2, 2, 2]]), False, None),
    ],
)
def test_the_attention_layer_has_no_transposes(
    tmp_path: Path, others: Any, weights: bool, more: list[str] | None
) -> None:
    """Nor has Keras'; over keys and values of one tensor, and of two."""

    def forward(m: Any, x: Any) -> Any:
        return m.attend(x, *others(x), need_weights=weights)[0]

    module = nets.Does(forward, attend=torch.nn.MultiheadAttention(16, 4, batch_first=True))
    ours = lolat.read(traced(tmp_path, module, torch.zeros(1, 6, 16)))
    assert sums(ours) == sums(graph_of(module, (6, 16)))
    assert "transpose" not in kinds(ours)
    if more:
        layer = [*["dense"] * 4, "matmul", "scale", "softmax", "matmul"]
        assert sorted(kinds(ours)) == sorted(more + layer)


def test_a_gru_counts_as_in_keras(tmp_path: Path) -> None:
    """Keras' GRU has two vectors of biases, as ONNX and PyTorch have."""
    module = nets.Does(lambda m, x: m.gru(x)[0], gru=torch.nn.GRU(5, 4, batch_first=True))
    ours = lolat.read(traced(tmp_path, module, torch.zeros(1, 7, 5)))
    in_keras = read_model(functional(lambda x: layers.GRU(4, return_sequences=True)(x), (7, 5)))
    assert sums(ours) == sums(in_keras)


@pytest.mark.parametrize("name", ["mobilenet_v3", "unet", "vit"])
def test_operations_count_what_onnx_tool_counts(tmp_path: Path, name: str) -> None:
    """Each convolution and product: the same MACs, but for a bias, whose addition is one for onnx-tool."""
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
    if name == "unet":  # it has no norms
        parameters = sum(p.numel() for p in nets.UNet().parameters())
        assert sums(ours)[0].weights == parameters
    if name == "vit":  # a packed projection is three dense layers here
        assert sum(found) == sum(theirs)
    else:
        assert found == theirs


@pytest.mark.parametrize("export", EXPORTS)
def test_blocks_have_the_names_of_modules(export: Callable[..., str]) -> None:
    graph = exported("resnet", export, keep=export is traced)
    convolutions = [o.full_name for o in graph.operations if o.kind == "conv"]
    assert convolutions[:2] == ["conv1", "layer1/layer1.0/conv1"]
    assert [b.label for b in cut(graph)] == ["stem", "layer1.0", "layer1.1", "layer2.0", "head"]
