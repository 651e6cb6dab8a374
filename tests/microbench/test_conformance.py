"""Every backend builds every kind of operation: its shapes, the framework's own counts, NumPy's values."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import erf, softmax

from lolat.errors import DeviceError, NetworkError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from lolat.microbench import backends, environment, learn
from lolat.microbench.backends import create
from lolat.microbench.blocks import BLOCKS, NETWORKS, Predefined, as_known
from lolat.microbench.environment import FIELDS
from lolat.microbench.learn_training import TRAINING_BLOCKS
from lolat.microbench.runner import Settings
from lolat.microbench.worker import WorkerProcess
from lolat.readers.size import as_size
from tests.microbench.fakes import covering, small, tiny

NEEDED = {"tensorflow": "keras", "torch": "torch", "onnxruntime": "onnxruntime"}
every_backend = pytest.mark.parametrize("name", NEEDED)
Array = np.ndarray


def backend(name: str, options: str = "") -> Any:
    pytest.importorskip(NEEDED[name])
    return create(name + options, "cpu")


# ---- The results of a block, and its weights in Keras' order and layout


def turned(x: Array) -> Array:
    """An image with its channels first."""
    return np.ascontiguousarray(np.moveaxis(x, -1, 1)) if x.ndim == 4 else x


def results(name: str, graph: Graph, inputs: Sequence[Array]) -> tuple[list[Array], list[Array]]:
    """(the outputs as the Graph has them, the weights); `inputs` as the Graph has them."""
    made = backend(name)
    if name == "tensorflow":
        from lolat.microbench.backends.tensorflow.layers import build_graph

        model = build_graph(made.keras, graph)
        outputs = model([*inputs], training=False)
        outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        return [np.asarray(x) for x in outputs], [np.asarray(w) for w in model.trainable_variables]
    torch = made.torch
    torch.manual_seed(1)
    if name == "torch":
        module, wanted = made.block(graph, len(inputs[0]))
        shapes = [tuple(x.shape) for x in wanted]
    else:
        model, given = made.exported(graph, len(inputs[0]))
        shapes = [x.shape for x in given.values()]
        torch.manual_seed(1)  # the same weights again
        module, _ = backend("torch").block(graph, 1)
    fitting = [x if x.shape == s else turned(x) for x, s in zip(inputs, shapes, strict=True)]
    weights = [p.detach().numpy() for p in module.parameters()]
    if name == "torch":
        with torch.no_grad():
            found = [x.numpy() for x in module(*map(torch.from_numpy, fitting))]
    else:
        options = made.runtime.SessionOptions()
        options.log_severity_level = 3
        options.use_per_session_threads = False
        session = made.runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        found = session.run(None, dict(zip(given, fitting, strict=True)))
    sizes = [(len(inputs[0]), *s[1:]) for s in graph.shapes(graph.outputs)]
    outputs = [
        x if x.shape == s else np.moveaxis(x, 1, -1) for x, s in zip(found, sizes, strict=True)
    ]
    kernel = {4: (2, 3, 1, 0), 2: (1, 0), 1: (0,)}
    return outputs, [w.transpose(kernel[w.ndim]) for w in weights]


# ---- Values, by NumPy: one operation of each kind

BATCH = 2


def window(
    kind: str, shape: tuple[int, ...], kernel: tuple[int, int], stride: int, **more: Any
) -> Graph:
    """An operation with a window on an image; padding "same"."""
    n = Layers.on("one", *shape)
    if "pool" in kind:
        return n.done(n.pool(n.input, kernel[0], stride, kind))
    filters = more.get("filters", shape[-1])
    return n.done(n.conv(n.input, filters, kernel, stride, more.get("groups", 1), True, kind))


def one(
    kind: str, shape: tuple[int, ...], out: tuple[int, ...], operands: int = 1, **a: Any
) -> Graph:
    """Any operation; shapes without the batch."""
    b = GraphBuilder("one")
    inputs = [b.input((1, *shape)) for _ in range(operands)]
    return b.build([b.add(kind, inputs, (1, *out), **a)])


def patches(name: str, x: Array, a: Any, empty: float = 0.0) -> Array:
    """(batch, rows, columns, kernel elements, channels) of padding "same"; `empty`: outside.

    An odd element of padding is behind in TensorFlow; PyTorch has one more in front then, of which one
    behind is never read.
    """
    (kh, kw), (stride, _), size = a["kernel"], a["strides"], x.shape[1:3]
    rows, columns = (-(-n // stride) for n in size)
    total = [
        max(0, (m - 1) * stride + k - n)
        for m, k, n in zip((rows, columns), (kh, kw), size, strict=True)
    ]
    front = [n // 2 if name == "tensorflow" else -(-n // 2) for n in total]
    pairs = [(0, 0), *((f, k) for f, k in zip(front, (kh, kw), strict=True)), (0, 0)]
    padded = np.pad(x, pairs, constant_values=empty)
    return np.stack([
        padded[:, u : u + stride * rows : stride, v : v + stride * columns : stride]
        for u in range(kh) for v in range(kw)
    ], axis=3)  # fmt: skip


def convolved(name: str, a: Any, x: Array, kernel: Array, bias: Array) -> Array:
    """A convolution in groups; a depthwise kernel of Keras is (height, width, channels, 1)."""
    groups, p = a["groups"], patches(name, x, a)
    if kernel.shape[2:] == (x.shape[-1], 1):
        kernel = kernel.swapaxes(2, 3)
    flat = kernel.reshape(-1, *kernel.shape[2:])
    inside, made = (n // groups for n in (x.shape[-1], a["out_channels"]))
    parts = [
        np.einsum("nijkc,kco->nijo", p[..., g * inside : (g + 1) * inside],
                  flat[..., g * made : (g + 1) * made])
        for g in range(groups)
    ]  # fmt: skip
    return np.concatenate(parts, -1) + bias


def enlarged(name: str, a: Any, x: Array, kernel: Array, bias: Array) -> Array:
    """Every position becomes 2x2. Keras' kernel is (height, width, out, in), as PyTorch's turned."""
    n, h, w, _ = x.shape
    made = np.einsum("nijc,uvoc->niujvo", x, kernel)
    return made.reshape(n, 2 * h, 2 * w, -1) + bias


def averaged(name: str, a: Any, x: Array) -> Array:
    """The mean of the elements that there are."""
    return np.nanmean(patches(name, x, a, np.nan), axis=3)


def normalized(x: Array, epsilon: float, scale: Array, shift: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(x.var(-1, keepdims=True) + epsilon) * scale + shift


def clipped(x: Array) -> Array:
    return np.clip(x + 3, 0, 6) / 6


def scores(name: str, a: Any, q: Array, k: Array) -> Array:
    """Queries times transposed keys; in TensorFlow the keys' elements are taken as they lie."""
    if name == "tensorflow":
        return q @ k.reshape(*k.shape[:-2], k.shape[-1], k.shape[-2])
    return q @ k.swapaxes(-1, -2)


IMAGE = (5, 7, 4)
Oracle = Callable[..., Array]  # of the backend's name, the attributes, the inputs, the weights
VALUES: dict[str, tuple[Graph, Oracle]] = {
    "conv": (window("conv", IMAGE, (3, 3), 1, filters=6), convolved),
    "conv, stride 2 of an even image": (window("conv", (6, 8, 4), (3, 3), 2, filters=6), convolved),
    "conv, stride 2 of an odd image": (window("conv", IMAGE, (5, 5), 2, filters=6), convolved),
    "conv, stem": (window("conv", (8, 10, 3), (7, 7), 2, filters=6), convolved),
    "conv, patches": (window("conv", (8, 12, 3), (4, 4), 4, filters=6), convolved),
    "conv, 1x1 stride 2": (window("conv", (6, 7, 4), (1, 1), 2, filters=6), convolved),
    "conv, 1xk": (window("conv", IMAGE, (1, 5), 1, filters=6), convolved),
    "grouped_conv": (window("conv", IMAGE, (3, 3), 1, filters=6, groups=2), convolved),
    "depthwise_conv": (window("depthwise_conv", IMAGE, (5, 5), 2, groups=4), convolved),
    "transposed_conv": (window("transposed_conv", IMAGE, (2, 2), 2, filters=3), enlarged),
    "max_pool": (window("max_pool", IMAGE, (3, 3), 2),
                 lambda n, a, x: patches(n, x, a, -np.inf).max(axis=3)),
    "max_pool, 2x2": (window("max_pool", (6, 8, 4), (2, 2), 2),
                      lambda n, a, x: patches(n, x, a, -np.inf).max(axis=3)),
    "average_pool": (window("average_pool", IMAGE, (3, 3), 1), averaged),
    "global_average_pool": (one("global_average_pool", IMAGE, (4,)), lambda n, a, x: x.mean((1, 2))),
    "global_average_pool of tokens": (one("global_average_pool", (6, 4), (4,)),
                                      lambda n, a, x: x.mean(1)),
    "batch_norm": (one("batch_norm", IMAGE, IMAGE),
                   lambda n, a, x, *w: x / np.sqrt(1 + (1e-3 if n == "tensorflow" else 1e-5))),
    "batch_norm of features": (one("batch_norm", (4,), (4,)),
                               lambda n, a, x, *w: x / np.sqrt(1 + (1e-3 if n == "tensorflow" else 1e-5))),
    "layer_norm": (one("layer_norm", IMAGE, IMAGE),
                   lambda n, a, x, *w: normalized(x, 1e-6 if n == "tensorflow" else 1e-5, *w)),
    "dense": (one("dense", (6, 4), (6, 3), in_features=4, out_features=3, bias=True),
              lambda n, a, x, kernel, bias: x @ kernel + bias),
    "dense of an image": (one("dense", IMAGE, (5, 7, 3), in_features=4, out_features=3, bias=True),
                          lambda n, a, x, kernel, bias: x @ kernel + bias),
    "relu": (one("relu", IMAGE, IMAGE), lambda n, a, x: np.maximum(x, 0)),
    "relu6": (one("relu6", IMAGE, IMAGE), lambda n, a, x: np.clip(x, 0, 6)),
    "silu": (one("silu", IMAGE, IMAGE), lambda n, a, x: x / (1 + np.exp(-x))),
    "sigmoid": (one("sigmoid", IMAGE, IMAGE), lambda n, a, x: 1 / (1 + np.exp(-x))),
    "hard_sigmoid": (one("hard_sigmoid", IMAGE, IMAGE), lambda n, a, x: clipped(x)),
    "hard_silu": (one("hard_silu", IMAGE, IMAGE), lambda n, a, x: x * clipped(x)),
    "gelu": (one("gelu", IMAGE, IMAGE), lambda n, a, x: x * (1 + erf(x / np.sqrt(2))) / 2),
    "softmax": (one("softmax", (3, 6, 4), (3, 6, 4)), lambda n, a, x: softmax(x, axis=-1)),
    "dropout": (one("dropout", (4,), (4,)), lambda n, a, x: x),
    "flatten": (one("flatten", (4,), (4,)), lambda n, a, x: x),
    "reshape": (one("reshape", (6, 4), (6, 2, 2)), lambda n, a, x: x.reshape(-1, 6, 2, 2)),
    "reshape to an image": (one("reshape", (4,), (1, 1, 4)), lambda n, a, x: x.reshape(-1, 1, 1, 4)),
    "transpose": (one("transpose", (6, 2, 3), (2, 6, 3), permutation=(0, 2, 1, 3)),
                  lambda n, a, x: x.swapaxes(1, 2)),
    "concatenate": (one("concatenate", IMAGE, (5, 7, 12), 3),
                    lambda n, a, *xs: np.concatenate(xs, -1)),
    "add": (one("add", IMAGE, IMAGE, 2), lambda n, a, x, y: x + y),
    "multiply": (one("multiply", IMAGE, IMAGE, 2), lambda n, a, x, y: x * y),
    "scale": (one("scale", (3, 6, 4), (3, 6, 4)), lambda n, a, x: x / 8),
    "rescale": (one("rescale", IMAGE, IMAGE), lambda n, a, x: x / 127.5 - 1),
    "matmul, scores": (one("matmul", (3, 6, 4), (3, 6, 6), 2, contracted=4), scores),
    "matmul, values": (one("matmul", (3, 6, 6), (3, 6, 6), 2, contracted=6),
                       lambda n, a, x, y: x @ y),
}  # fmt: skip


def test_every_kind_of_the_blocks_has_a_row() -> None:
    blocks = (*BLOCKS, *NETWORKS, *TRAINING_BLOCKS)
    kinds = {o.kind for b in blocks for o in b.make().operations}
    assert kinds == {re.split(",| of | to ", row)[0] for row in VALUES}


@pytest.mark.parametrize("row", VALUES)
@every_backend
def test_an_operation_computes_what_numpy_does(name: str, row: str) -> None:
    graph, oracle = VALUES[row]
    generator = np.random.default_rng(1)
    inputs = [
        2 * generator.standard_normal((BATCH, *graph.tensors[i].shape[1:]), np.float32)
        for i in graph.inputs
    ]
    (found,), weights = results(name, graph, inputs)
    expected = oracle(name, graph.operations[0].attributes, *inputs, *weights)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert np.ptp(found) > 0


@every_backend
def test_operands_of_a_shortcut_and_of_a_gate_are_not_overwritten(name: str) -> None:
    """add(y, relu(y)) and multiply(y, gate of y): an activation in place would change y."""
    n = Layers.on("twice", 3, 5, 4)
    y = n.same("scale", n.input)
    graph = n.done(n.same("add", y, n.same("relu", y)), n.same("multiply", y, n.same("sigmoid", y)))
    x = np.random.default_rng(1).standard_normal((2, 3, 5, 4), np.float32)
    before = x.copy()
    (added, gated), _ = results(name, graph, [x])
    np.testing.assert_allclose(added, x / 8 + np.maximum(x / 8, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gated, x / 8 / (1 + np.exp(-x / 8)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(x, before)


@every_backend
def test_a_block_between_two_orders_of_the_axes(name: str) -> None:
    """A layer norm and a dense layer on the channels of an image, and a shortcut, as in ConvNeXt."""
    n = Layers.on("mixed", 5, 7, 4)
    y = n.dense(n.same("layer_norm", n.depthwise(n.input, 3, bias=True)), 4)
    graph = n.done(n.same("add", n.input, y))
    x = np.random.default_rng(1).standard_normal((2, *IMAGE), np.float32)
    (found,), (kernel, bias, scale, shift, dense, dense_bias) = results(name, graph, [x])
    depthwise = convolved(name, graph.operations[0].attributes, x, kernel, bias)
    norm = normalized(depthwise, 1e-6 if name == "tensorflow" else 1e-5, scale, shift)
    np.testing.assert_allclose(found, x + norm @ dense + dense_bias, rtol=1e-4, atol=1e-5)


# ---- Shapes and counts of the predefined blocks, by the framework's own counters


def normalization_vectors(graph: Graph, each: dict[str, int]) -> int:
    """Numbers of normalizations, which are no weights to us; `each`: kind -> vectors of it."""
    written = ((o.kind, graph.tensors[o.outputs[0]].shape[-1]) for o in graph.operations)
    return sum(each.get(kind, 0) * channels for kind, channels in written)


@pytest.mark.parametrize("block", covering(), ids=lambda b: b.name)
def test_a_keras_block_is_read_as_the_graph_that_it_was_built_from(block: Predefined) -> None:
    from lolat.readers import keras as reader

    keras = reader.import_keras()
    from lolat.microbench.backends.tensorflow.layers import build_graph

    graph = block.make()
    model = build_graph(keras, graph)
    for ours, theirs in ((graph.inputs, model.inputs), (graph.outputs, model.outputs)):
        assert [(None, *s[1:]) for s in graph.shapes(ours)] == [tuple(t.shape) for t in theirs]
    read = reader.read_model(model)
    for batch_size in (1, 3):
        assert count(read).total(batch_size) == count(graph).total(batch_size)
    vectors = {"batch_norm": 4, "layer_norm": 2}
    expected = count(graph).total().weights + normalization_vectors(graph, vectors)
    assert model.count_params() == expected


@pytest.mark.parametrize("block", covering(), ids=lambda b: b.name)
def test_a_torch_block_has_the_shapes_and_pytorchs_count_of_the_graph(block: Predefined) -> None:
    torch: Any = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    from lolat.microbench.backends.torch.layers import block_module

    graph = block.make()
    with torch.device("meta"):
        module, shapes = block_module(torch, graph)
    (wanted,) = graph.shapes(graph.outputs)
    for batch_size in (1, 2):
        inputs = [torch.empty((batch_size, *s[1:]), device="meta") for s in shapes]
        with FlopCounterMode(display=False) as counter:
            (out,) = module(*inputs)
        assert out.shape[0] == batch_size
        assert tuple(out.shape[1:]) in (wanted[1:], (wanted[-1], *wanted[1:-1]))
        # PyTorch's own counter has two for a multiplication and an addition.
        assert counter.get_total_flops() == 2 * count(graph).total(batch_size).flops
    vectors = normalization_vectors(graph, {"batch_norm": 2, "layer_norm": 2})
    parameters = sum(p.numel() for p in module.parameters())
    assert parameters == count(graph).total().weights + vectors


@pytest.mark.parametrize("block", covering(), ids=lambda b: b.name)
def test_an_exported_block_has_the_shapes_and_the_counts_of_the_graph(block: Predefined) -> None:
    onnx: Any = pytest.importorskip("onnx")
    from lolat.readers.onnx import read_model

    graph = as_known("onnxruntime", block.make())
    model, inputs = backend("onnxruntime").exported(graph, 2)
    read = read_model(onnx.load_from_string(model))
    (wanted,), (found,) = graph.shapes(graph.outputs), read.shapes(read.outputs)
    assert found[1:] in (wanted[1:], (wanted[-1], *wanted[1:-1]))
    assert {x.shape[0] for x in inputs.values()} == {2}
    for batch_size in (1, 3):
        ours, theirs = (count(g).total(batch_size) for g in (graph, read))
        assert (ours.acts, ours.inp, ours.flops) == (theirs.acts, theirs.inp, theirs.flops)
        assert ours.weights == theirs.weights


@pytest.mark.parametrize("predefined", covering(windows=False), ids=lambda b: b.name)
@every_backend
def test_a_block_runs_and_its_inputs_can_be_touched(name: str, predefined: Predefined) -> None:
    graph, batch_size = as_known(name, predefined.make()), predefined.batch_sizes[-1]
    call = backend(name).prepare_graph(graph, batch_size)
    sizes = [batch_size * int(np.prod(s[1:])) for s in graph.shapes(graph.inputs)]
    assert [x.size for x in call.inputs] == sizes
    assert all(x.shape[0] == batch_size and np.ptp(x) > 0 for x in call.inputs)
    call.touch()
    assert call() is None


# ---- Refusals


OTHERS = {
    "tensorflow": "examples.torch_networks:shufflenet_v2",
    "torch": "own_keras:network",
    "onnxruntime": "keras:ResNet50",
}


@pytest.mark.parametrize(("name", "spec"), OTHERS.items())
def test_another_framework(
    name: str, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needed in ("keras", "torch"):
        pytest.importorskip(needed)
    (tmp_path / "own_keras.py").write_text(
        "import keras\ndef network():\n"
        "    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    size = (64,) if spec.startswith("examples") else ()
    with pytest.raises(NetworkError, match=name):
        backend(name).prepare_network(spec, as_size(size), 1)


@every_backend
def test_a_gpu_where_there_is_none(name: str) -> None:
    backend(name)
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is one")
    with pytest.raises(DeviceError):
        create(name, "gpu")


# ---- Environment and threads


@every_backend
def test_flags_are_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = backend(name)
    for flag in backends.FLAGS:
        monkeypatch.delenv(flag, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    where = made.environment()
    assert where["flags"] == {"OMP_NUM_THREADS": "1"}
    version = importlib.import_module(name).__version__
    assert (where["framework"], where["framework_version"]) == (name, version)
    assert made.available_bytes() is None, "the host's memory is the system's to say"


@every_backend
def test_a_worker_uses_so_many_threads(name: str) -> None:
    """Set before anything runs, so in a process of its own."""
    pytest.importorskip(NEEDED[name])
    with WorkerProcess(f"{name}+threads=1", "cpu") as worker:
        where = worker.request({"do": "environment"}, 60)["environment"]
    assert [where[n] for n in ("threads", "threads_asked", "inter_op_threads")] == [1, 1, 1]


# ---- A whole run


@pytest.mark.parametrize("name", ["tensorflow", "torch+channels_last", "onnxruntime"])
def test_a_tiny_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And its environment, of which each field is compared: else two could differ without a word."""
    framework = backends.split(name)[0]
    pytest.importorskip(NEEDED[framework])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    blocks = (
        Predefined("a", small, (1, 2)),
        Predefined("b", tiny(5), (1,)),
        Predefined("net", tiny(8), (1,), True),
    )
    points, where, noise, _, journal = learn.measure_blocks(
        learn.Run(name, "cpu", tmp_path / "j", 1e9, settings=Settings(rounds=2)), blocks
    )
    journal.remove()
    assert [(p.name, p.batch_size) for p in points] == [("a", 1), ("a", 2), ("b", 1), ("net", 1)]
    assert [len(p.reference_ms) for p in points] == [2, 2, 2, 0], "a network before each of a block"
    assert all(p.latency_ms > 0 for p in points)
    assert backends.backend_of(where) == name
    assert 0 < noise["quiet"] <= noise["busy"]
    cores = environment.core_count() if name.startswith("onnxruntime") else None
    assert where["threads"] == (cores or len(os.sched_getaffinity(0)))
    general = {*environment.describe("cpu"), "others_at_start"}
    assert where.keys() - general - {*FIELDS, "device_name"} == set()
