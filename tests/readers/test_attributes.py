"""What shapes do not tell: replayed with numpy by its attributes, a graph gives what its framework does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("torch")

import torch
from onnx.reference import ReferenceEvaluator

import lolat
from lolat.graph import Graph, Operation
from tests.readers.keras_networks import functional, layers, ops
from tests.readers.onnx_networks import model, node, saved
from tests.readers.torch_networks import Does

SHAPE = (1, 4, 6, 5)
X = np.random.default_rng(0).normal(size=SHAPE).astype("float32")


def sliced(x: Any, out: tuple[int, ...], a: Any) -> Any:
    """The part of x that begins at `starts`; `axis` are the axes that the result lacks."""
    gone = np.atleast_1d(a.get("axis", ())).astype(int)
    sizes = iter(out)
    for axis, (start, step) in enumerate(zip(a["starts"], a["steps"], strict=True)):
        size = 1 if axis in gone else next(sizes)
        x = np.take(x, [start + step * i for i in range(size)], axis)
    return x.reshape(out)


def done(o: Operation, out: tuple[int, ...], xs: list[Any]) -> Any:
    """What an operation gives."""
    a, x = o.attributes, xs[0] if xs else None
    axis = a.get("axis")
    if "permutation" in a:
        return np.transpose(x, a["permutation"])
    if o.kind in ("slice", "crop"):
        return sliced(x, out, a)
    if o.kind == "softmax":
        e = np.exp(x)
        return e / e.sum(axis, keepdims=True)
    if o.kind == "reduce":
        return x.sum(axis).reshape(out)
    put = {"concatenate": np.concatenate, "stack": np.stack}
    if o.kind in put:
        return put[o.kind](xs, axis)
    if o.kind == "cumulative":
        return x.cumsum(axis)
    assert o.kind in ("reshape", "identity"), o.kind
    return x.reshape(out)


def replayed(graph: Graph) -> list[Any]:
    values: dict[int, Any] = {graph.inputs[0]: X}
    for o in graph.operations:
        (out,) = o.outputs
        values[out] = done(o, graph.tensors[out].shape, [values[i] for i in o.inputs])
    return [values[i] for i in graph.outputs]


def check(network: Any, results: list[Any]) -> None:
    graph = lolat.read(network, None if isinstance(network, str) else SHAPE[1:])
    assert Graph.from_dict(graph.to_dict()) == graph
    for ours, theirs in zip(replayed(graph), results, strict=True):
        assert ours.shape == theirs.shape
        assert np.allclose(ours, theirs, atol=1e-5)


IN_TORCH = [
    lambda x: x.permute(0, 3, 1, 2), lambda x: x.permute(0, 2, 3, 1), lambda x: x.transpose(1, -1),
    lambda x: x.movedim(1, 3), lambda x: x.movedim((1, 2), (-1, 1)), lambda x: x.swapaxes(-1, 1),
    lambda x: x.mT, lambda x: x[:, 1:], lambda x: x[:, -2:, ::2], lambda x: x[:, 3], lambda x: x[..., -1],
    lambda x: x.narrow(2, 1, 3), lambda x: x.select(2, -2), lambda x: torch.cat([x, x[:, :1]], 1),
    lambda x: torch.stack([x, x.transpose(1, 2).transpose(1, 2)], -1), lambda x: x.sum((1, -1)),
    lambda x: x.sum(2, keepdim=True), lambda x: x.softmax(1), lambda x: x.softmax(-1),
    lambda x: x.cumsum(2),
    lambda x: torch.cat(x.chunk(2, 2)[::-1], 2), lambda x: torch.cat(x.split([1, 3], 1)[::-1], 1),
    lambda x: torch.stack(x.unbind(3)[::-1], 1), lambda x: x.sum((1, 2, 3)),
]  # fmt: skip
IN_KERAS = [
    lambda x: ops.transpose(x, (0, 3, 1, 2)), lambda x: ops.swapaxes(x, 1, -1),
    lambda x: ops.moveaxis(x, 1, -1), lambda x: ops.moveaxis(x, (1, 2), (-1, 1)), lambda x: x[:, 1:],
    lambda x: x[:, -2:, ::2], lambda x: x[:, 3], lambda x: x[..., -1], lambda x: x[:, 1:3, ..., 2:],
    lambda x: ops.slice(x, (0, 1, 2, 0), (1, 2, 3, 5)), lambda x: ops.concatenate([x, x[:, :1]], 1),
    lambda x: ops.stack([x, x[:, :]], -1), lambda x: ops.sum(x, (1, -1)),
    lambda x: ops.sum(x, 2, keepdims=True),
    lambda x: ops.softmax(x, 1), lambda x: ops.cumsum(x, 2), lambda x: ops.hstack([x, x]),
    lambda x: ops.concatenate(ops.split(x, 2, 2)[::-1], 2),
    lambda x: ops.concatenate(ops.split(x, [1], 1)[::-1], -3),
    lambda x: ops.stack(ops.unstack(x, 5, 3)[::-1], 1),
    lambda x: layers.Permute((3, 1, 2))(x), lambda x: layers.Concatenate(2)([x, x]),
    lambda x: layers.Softmax(1)(x), lambda x: layers.Activation("softmax")(x),
    lambda x: layers.Cropping2D(((1, 0), (2, 1)))(x),
]  # fmt: skip
IN_ONNX: list[tuple[list[Any], dict[str, Any]]] = [
    ([node("Transpose", "x", "y", perm=[0, 3, 1, 2])], {}),
    ([node("Transpose", "x", "y", perm=[0, 2, 1, 3])], {}),
    ([node("Slice", "x b e a s", "y")],
     {"b": np.array([-1, 1]), "e": np.array([-99, 6]), "a": np.array([1, -2]), "s": np.array([-1, 2])}),
    ([node("Gather", "x i", "y", axis=-1)], {"i": np.array(-2)}),
    ([node("Gather", "x i", "y", axis=1)], {"i": np.array([3])}),
    ([node("Split", "x n", "a b", axis=1), node("Concat", "b a", "y", axis=-3)], {"n": np.array([1, 3])}),
    ([node("ReduceSum", "x n", "y", keepdims=0)], {"n": np.array([1, -1])}),
    ([node("Flatten", "x", "a"), node("ReduceSum", "a", "y")], {}),
    ([node("Softmax", "x", "y", axis=1)], {}), ([node("Softmax", "x", "y")], {}),
    ([node("CumSum", "x n", "y")], {"n": np.array(2)}),
]  # fmt: skip


@pytest.mark.parametrize("call", IN_TORCH)
def test_torch(call: Any) -> None:
    check(Does(lambda m, x: call(x)), [call(torch.from_numpy(X)).numpy()])


@pytest.mark.parametrize("call", IN_KERAS)
def test_keras(call: Any) -> None:
    check(functional(call, SHAPE[1:]), [ops.convert_to_numpy(call(ops.convert_to_tensor(X)))])


@pytest.mark.parametrize(("nodes", "constants"), IN_ONNX)
def test_onnx(tmp_path: Path, nodes: Any, constants: Any) -> None:
    made = model(nodes, x=SHAPE, opset=18, **constants)
    made.ir_version = 8
    check(saved(tmp_path, made), ReferenceEvaluator(made).run(None, {"x": X}))


def test_before_opset_13_softmax_is_over_all_axes_that_follow(tmp_path: Path) -> None:
    graph = lolat.read(saved(tmp_path, model([node("Softmax", "x", "y", axis=2)], opset=11)))
    assert graph.operations[0].attributes["axis"] == (2, 3)
