"""The ONNX Runtime backend: what it builds is what was asked for, and it runs; a GPU with a stand-in."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lolat.errors import MeasuringError
from lolat.graph import GraphBuilder
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from lolat.readers.onnx import read_file
from microbench.backends import create, onnxruntime
from microbench.backends.onnxruntime import layers as onnxruntime_tape
from microbench.backends.onnxruntime.layers import OnnxTape, block_model
from microbench.backends.tape import first
from microbench.blocks import Predefined, as_known
from tests.microbench.fakes import covering

onnx: Any = pytest.importorskip("onnx")
runtime: Any = pytest.importorskip("onnxruntime")


@pytest.fixture
def weightless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels without memory, so that building takes no time."""

    def weight(self: OnnxTape, *shape: int) -> str:
        if len(shape) < 2:
            return self.array(np.ones(shape, np.float32))
        name = self._name("weight")
        self.weights[name] = np.broadcast_to(np.float32(0), shape)
        return name

    monkeypatch.setattr(OnnxTape, "weight", weight)


@pytest.mark.parametrize("block", covering(), ids=lambda b: b.name)
def test_what_is_built_has_the_shapes_and_the_counts_of_the_graph(
    block: Predefined, weightless: None, tmp_path: Path
) -> None:
    graph = as_known("onnxruntime", block.make())
    (wanted,), given = graph.shapes(graph.outputs), graph.shapes(graph.inputs)
    for batch_size in (1, 2):
        model, weights, inputs = block_model(onnx, graph, batch_size)
        (output,) = model.graph.output
        found = tuple(d.dim_value for d in output.type.tensor_type.shape.dim)
        assert found[0] == batch_size
        assert found[1:] in (wanted[1:], first(wanted)[1:] if len(wanted) > 2 else ())
        sizes = [s for _, _, s in inputs]
        assert sizes in ([first(s) if len(s) > 3 else s for s in given], given)
    vectors = sum(
        {"batch_norm": 4, "layer_norm": 2}.get(o.kind, 0) * graph.tensors[o.outputs[0]].shape[-1]
        for o in graph.operations
    )
    others = sum(
        int(np.prod(t.dims)) for t in model.graph.initializer
        if t.name not in weights and t.dims and t.data_type == onnx.TensorProto.FLOAT
    )  # fmt: skip
    elements = sum(w.size for w in weights.values()) + others
    assert elements == count(graph).total().weights + vectors
    path = tmp_path / "block.onnx"
    onnx.save(block_model(onnx, graph, 1)[0], str(path))
    read = read_file(str(path))
    assert count(read).warnings == ()
    ours, theirs = (Counter(count(g).total(3)._asdict()) for g in (graph, read))
    for operation in graph.operations:
        elements = 3 * graph.tensors[operation.outputs[0]].elements()
        if operation.kind == "rescale":  # one operation; there a product and a sum
            ours.update(ops=1, pair_ops=1, traffic=2 * elements, pair_elements=2 * elements)
        elif operation.kind == "scale":
            # ONNX' product takes the keys turned, by a transposition that ONNX Runtime fuses into it.
            (product,) = (o for o in graph.operations if operation.inputs[0] in o.outputs)
            keys = 3 * graph.tensors[product.inputs[1]].elements()
            ours.update(ops=1, move_ops=1, traffic=2 * keys, moved_elements=2 * keys)
    if any(o.kind in ("scale", "rescale") for o in graph.operations):
        for column in ("serial", "threaded", "streamed"):
            theirs.pop(column), ours.pop(column)
    assert theirs == ours


def ran(model: Any, weights: dict[str, np.ndarray], *inputs: np.ndarray) -> np.ndarray:
    """What onnx' own evaluator, written in Python, makes of `inputs`."""
    from onnx.reference import ReferenceEvaluator

    whole = onnx.ModelProto()
    whole.CopyFrom(model)
    for tensor in whole.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(onnx.numpy_helper.from_array(weights[tensor.name], tensor.name))
    names = [i.name for i in whole.graph.input]
    return ReferenceEvaluator(whole).run(None, dict(zip(names, inputs, strict=True)))[0]


@pytest.mark.parametrize(
    ("size", "kernel", "stride"), [(9, 3, 2), (9, 3, 1), (8, 2, 1), (8, 4, 4), (8, 4, 1)]
)
def test_a_convolution_is_that_of_keras(size: int, kernel: int, stride: int) -> None:
    keras: Any = pytest.importorskip("keras")
    n = Layers.on("one", size, size, 3)
    graph = n.done(n.conv(n.input, 4, kernel, stride))
    model, weights, _ = block_model(onnx, graph, 2)
    x = np.random.default_rng(3).standard_normal((2, size, size, 3)).astype(np.float32)
    out = ran(model, weights, x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    (values,) = weights.values()
    expected = keras.ops.conv(x, values.transpose(2, 3, 1, 0), stride, "same")
    np.testing.assert_allclose(out, np.asarray(expected), atol=1e-5)


def test_what_runs_is_what_onnx_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block with all sorts of operations, run by ONNX Runtime and by onnx' own evaluator."""
    n = Layers.on("sorts", 8, 8, 3)
    x = n.squeeze_excite(
        n.depthwise_norm_act(n.conv_norm_act(n.input, 8, 3, act="relu6"), 5, 2, act="hard_silu"),
        2,
        "silu",
        "sigmoid",
        flat=True,
    )
    x = n.concat(x, n.pool(n.pool(n.input, 3, 2), 3, 1, "average_pool"))
    x = n.dense(n.same("layer_norm", x), 6, "gelu")
    graph = n.done(
        n.dense(n.global_pool(n.conv(x, 5, 3, groups=1, bias=True), flat=True), 4, "softmax")
    )
    backend: Any = create("onnxruntime", "cpu")
    built = block_model(onnx, graph, 2)
    monkeypatch.setattr(onnxruntime, "block_model", lambda *_: built)
    sessions: list[Any] = []
    real = runtime.InferenceSession
    monkeypatch.setattr(
        runtime, "InferenceSession", lambda *a, **k: sessions.append(real(*a, **k)) or sessions[0]
    )
    call = backend.prepare_graph(graph, 2)
    assert call() is None
    given = {
        x.name: values for x, values in zip(sessions[0].get_inputs(), call.inputs, strict=True)
    }
    expected = ran(built[0], built[1], *given.values())
    assert expected.shape == (2, 4)
    np.testing.assert_allclose(sessions[0].run(None, given)[0], expected, atol=1e-5)
    np.testing.assert_allclose(expected.sum(axis=1), 1.0, atol=1e-5)


def test_a_model_that_onnx_refuses_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*unused: Any, **named: Any) -> Any:
        raise ValueError("first\nlast line")

    monkeypatch.setattr(onnx.shape_inference, "infer_shapes", refuse)
    n = Layers.on("tiny", 8, 8, 3)
    with pytest.raises(MeasuringError, match="built 'tiny' wrongly: last line; report that"):
        block_model(onnx, n.done(n.conv(n.input, 4)), 1)


# ---- a user's network ----------------------------------------------------------------------------


def saved(path: Path, batch: int | str, size: int | str = 8) -> Path:
    """A convolution on (batch, 3, size, size)."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node("Conv", ["image", "kernel"], ["out"], kernel_shape=[3, 3])
    kernel = onnx.numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "kernel")
    inputs = [helper.make_tensor_value_info("image", kind, [batch, 3, size, size])]
    outputs = [helper.make_empty_tensor_value_info("out")]
    graph = helper.make_graph([node], "net", inputs, outputs, [kernel])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), str(path))
    return path


def test_a_file_is_run_at_a_size(tmp_path: Path) -> None:
    backend = create("onnxruntime", "cpu")
    path = saved(tmp_path / "net.onnx", "batch", "side")
    call = backend.prepare_network(str(path), (12,), 5)
    call()
    assert [(x.shape, x.dtype) for x in call.inputs] == [((5, 3, 12, 12), np.float32)]
    fixed = str(saved(tmp_path / "fixed.onnx", 2))
    assert backend.prepare_network(fixed, (), 2).inputs[0].shape == (2, 3, 8, 8)
    with pytest.raises(MeasuringError, match=r"batch size 2 and cannot run at 1; export it"):
        backend.prepare_network(fixed, (), 1)


# ---- environment, and a GPU ----------------------------------------------------------------------


def test_the_environment_says_what_makes_times_comparable() -> None:
    expected = {
        "execution_provider": "CPUExecutionProvider",
        "intra_op_threads": 0,
        "inter_op_threads": 0,
        "shared_threads": hasattr(runtime, "set_global_thread_pool_sizes"),
        "libraries": {"build": runtime.get_build_info()},
        "optimisation": "ORT_ENABLE_ALL",
    }
    assert create("onnxruntime", "cpu").environment().items() >= expected.items()


def test_an_older_version_does_not_say_how_it_was_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(runtime, "get_build_info")
    assert create("onnxruntime", "cpu").environment()["libraries"] == {}


def test_sessions_share_memory_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where threads cannot be shared, those of an idle session do not wait for work in a loop."""
    backend: Any = create("onnxruntime", "cpu")
    spinning = "session.intra_op.allow_spinning"
    for shares, expected in ((True, None), (False, "0")):
        backend.shares_threads = shares
        options = backend.session_options()
        assert options.use_per_session_threads is not shares
        assert options.get_session_config_entry("session.use_env_allocators") == "1"
        if expected is not None:
            assert options.get_session_config_entry(spinning) == expected
    names = [*(n for n in dir(runtime) if n.startswith("Ort")), "create_and_register_allocator"]
    older = SimpleNamespace(**{n: getattr(runtime, n) for n in names})
    assert onnxruntime.share_pools(older) is False

    def refuse(*unused: int) -> None:
        raise RuntimeError("no threads left")

    older.set_global_thread_pool_sizes = refuse
    assert onnxruntime.share_pools(older) is False
    assert onnxruntime.share_pools(runtime) is True, "called again: they are there already"


def test_a_pool_that_is_there_already_is_no_pool_of_one_thread() -> None:
    onnxruntime.share_pools(runtime)
    backend: Any = create("onnxruntime+threads=1", "cpu")
    options = backend.session_options()
    assert options.use_per_session_threads is True
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (1, 1)
    assert backend.environment()["shared_threads"] is False


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A backend for a GPU: the provider is the host's, places are recorded, the driver is made up."""
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(runtime, "get_available_providers", lambda: providers)
    asked: list[Any] = []

    def ask(command: Any, **options: Any) -> Any:
        asked.append(command)
        return SimpleNamespace(stdout="NVIDIA H200, 141, x, 2000\nNVIDIA T4, 1000\n")

    monkeypatch.setattr(onnxruntime.subprocess, "run", ask)  # type: ignore[attr-defined]
    backend: Any = create("onnxruntime", "gpu")
    backend.asked = asked
    return backend


def test_the_driver_names_the_gpu_and_its_memory(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu.environment()["device_name"] == "NVIDIA H200, 141, x"
    assert gpu.environment()["execution_provider"] == "CUDAExecutionProvider"
    assert gpu.available_bytes() == 2000 * 2**20
    assert gpu.asked[0][0] == "nvidia-smi"
    for problem in (OSError(), subprocess.CalledProcessError(9, "nvidia-smi")):

        def fail(*unused: Any, problem: Exception = problem, **named: Any) -> Any:
            raise problem

        monkeypatch.setattr(onnxruntime.subprocess, "run", fail)  # type: ignore[attr-defined]
        assert gpu.available_bytes() is None
        assert "device_name" not in create("onnxruntime", "gpu").environment()


def test_inputs_and_results_lie_on_the_device(gpu: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Value:
        @staticmethod
        def ortvalue_from_numpy(array: np.ndarray, *place: Any) -> Any:
            calls.append(("value", array.shape, *place))
            return array

    class Binding:
        def bind_ortvalue_input(self, name: str, value: Any) -> None:
            calls.append(("input", name))

        def bind_output(self, name: str, place: str) -> None:
            calls.append(("output", name, place))

        def synchronize_outputs(self) -> None:
            calls.append("wait")

    class Session:
        def __init__(self, model: Any, options: Any, providers: list[str]) -> None:
            calls.append(("session", providers))

        def io_binding(self) -> Binding:
            return Binding()

        def get_outputs(self) -> list[Any]:
            return [SimpleNamespace(name="y")]

        def run_with_iobinding(self, binding: Binding) -> None:
            calls.append("run")

    monkeypatch.setattr(runtime, "OrtValue", Value)
    monkeypatch.setattr(runtime, "InferenceSession", Session)
    b = GraphBuilder("one")
    call = gpu.prepare_graph(b.build([b.add("relu", [b.input((1, 8))], (1, 8))]), 3)
    call()
    assert calls == [
        ("session", ["CUDAExecutionProvider"]), ("value", (3, 8), "cuda", 0), ("input", "x0"),
        ("output", "y", "cuda"), "run", "wait",
    ]  # fmt: skip


def test_the_opset_is_one_that_older_releases_read() -> None:
    versions = {row[2]: row[1] for row in onnx.helper.VERSION_TABLE}
    assert versions[onnxruntime_tape.OPSET] == onnxruntime_tape.IR_VERSION
