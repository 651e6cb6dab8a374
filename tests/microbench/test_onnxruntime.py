"""The ONNX Runtime backend: its sessions, users' files, its environment, a GPU with a stand-in."""

from __future__ import annotations

import platform
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lolat.errors import MeasuringError
from lolat.graph.quantized import SCHEMES, STATIC, as_quantized, int8_steps
from lolat.microbench.backends import create
from lolat.microbench.blocks import BLOCKS, as_known
from lolat.readers.onnx import read_file
from lolat.readers.size import Size
from tests.processes import PATIENCE_S

onnx: Any = pytest.importorskip("onnx")
runtime: Any = pytest.importorskip("onnxruntime")
torch: Any = pytest.importorskip("torch")


def run_by(model: Any, path: Path) -> Counter[str]:
    """The operators that ONNX Runtime runs a model as."""
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.use_per_session_threads = False
    options.optimized_model_filepath = str(path)
    runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return Counter(n.op_type for n in onnx.load(path).graph.node)


@pytest.mark.parametrize("name", ["bottleneck 64x56x56", "6 dense-net 64x56x56"])
def test_onnx_runtime_fuses_a_block(name: str, tmp_path: Path) -> None:
    """Convolutions with their activations, additions, and images in its own order."""
    graph = as_known("onnxruntime", next(b for b in BLOCKS if b.name == name).make())
    backend: Any = create("onnxruntime", "cpu")
    model, _ = backend.exported(graph, 1)
    run = run_by(model, tmp_path / "optimized.onnx")
    wanted = Counter(o.kind for o in graph.operations)
    assert run["Conv"] + run["FusedConv"] == wanted["conv"]
    assert run["BatchNormalization"] == wanted["batch_norm"]
    order = {"ReorderInput", "ReorderOutput"}
    own = {"Conv", "FusedConv", "Relu", "Add", "Concat", "BatchNormalization"}
    assert set(run) <= own | order
    assert run["Relu"] < wanted["relu"]


CONVOLUTIONS = {"convolution", "grouped", "depthwise"}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize(
    "name", ["3 bottlenecks 1024x14x14", "3 mbconv 40x28x28", "2 encoders 197x192"]
)
def test_onnx_runtime_runs_a_quantized_block(name: str, scheme: str, tmp_path: Path) -> None:
    """Its tools quantize the block; the operators that it then runs are those that the file is read as.

    On x86; elsewhere it has integer kernels of signed tensors.
    """
    graph = as_known("onnxruntime", next(b for b in BLOCKS if b.name == name).make())
    graph = as_quantized(graph, scheme)
    backend: Any = create("onnxruntime", "cpu")
    model, inputs = backend.exported(graph, 1)
    path = tmp_path / "quantized.onnx"
    path.write_bytes(backend.quantized(model, inputs, scheme))
    run = run_by(str(path), tmp_path / "optimized.onnx")
    read = read_file(str(path))
    for found in (graph, read):
        number = Counter(step.name for step in int8_steps(found))
        of_float = sum(o.kind.endswith("conv") for o in found.operations)
        integer = sum(number[n] for n in CONVOLUTIONS)
        products = run["QGemm"] + run["QLinearMatMul"] + run["MatMulIntegerToFloat"]
        products += run["MatMulInteger"] + run["DynamicQuantizeMatMul"]
        assert number["product"] == products
        if scheme == "dynamic":
            assert integer == run["ConvInteger"] == of_float
            continue
        if platform.machine() not in ("x86_64", "AMD64"):
            continue
        assert integer == run["QLinearConv"]
        assert of_float - integer == run["Conv"] + run["FusedConv"]
        gated = sum(o.kind == "silu" for o in found.operations) if scheme == STATIC else 0
        assert number["pair"] + gated == run["QLinearAdd"] + run["QLinearMul"]
    once, again = (
        [
            (step.scheme, step.name)
            for step in int8_steps(g)
            if step.name not in ("", "nothing", "other")
        ]
        for g in (graph, read)
    )
    assert Counter(once) == Counter(again)
    backend.prepare_graph(graph, 1)()


COUNTING = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from lolat.readers.torch import import_torch
import_torch(), __import__("onnxruntime")
before = len(os.listdir("/proc/self/task"))
from lolat.graph.quantized import SCHEMES, STATIC, as_quantized, int8_steps
from lolat.microbench.backends import create
backend = create("onnxruntime", "cpu")
print(backend.environment()["threads"], len(os.listdir("/proc/self/task")) - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def test_the_threads_are_those_that_onnx_runtime_starts() -> None:
    """A pool within operations and one between them, each with the thread that calls: one a core."""
    command = [sys.executable, "-c", COUNTING]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    threads, started = map(int, done.stdout.split())
    assert started == 2 * (threads - 1)


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
    call = backend.prepare_network(str(path), Size((12,)), 5)
    call()
    assert [(x.shape, x.dtype) for x in call.inputs] == [((5, 3, 12, 12), np.float32)]
    fixed = str(saved(tmp_path / "fixed.onnx", 2))
    assert backend.prepare_network(fixed, Size(), 2).inputs[0].shape == (2, 3, 8, 8)
    with pytest.raises(MeasuringError, match=r"fixed\.onnx' is made only for batch size 2"):
        backend.prepare_network(fixed, Size(), 1)
