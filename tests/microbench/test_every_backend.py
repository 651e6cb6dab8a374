"""What every backend does: builds, runs, takes a Graph at its word, uses so many threads, or refuses."""

from __future__ import annotations

import importlib
import math
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lolat.errors import DeviceError, MeasuringError, MissingPackageError, NetworkError
from lolat.graph import Graph, GraphBuilder
from lolat.graph.layers import Layers
from microbench import backends, learn
from microbench.backends import create
from microbench.blocks import Predefined, as_known
from microbench.environment import FIELDS
from microbench.runner import Runner, Settings
from microbench.worker import WorkerProcess
from tests.microbench.fakes import covering, exported, session_of, small, tiny

NEEDED = {"tensorflow": "keras", "torch": "torch", "onnxruntime": "onnxruntime"}
every_backend = pytest.mark.parametrize("name", NEEDED)


def backend(name: str, options: str = "") -> Any:
    pytest.importorskip(NEEDED[name])
    return create(name + options, "cpu")


@every_backend
def test_the_inputs_are_those_of_the_batch_and_can_be_touched(name: str) -> None:
    n = Layers.on("two", 8, 8, 3)
    graph = n.done(n.same("add", n.conv(n.input, 4), n.builder.input((1, 8, 8, 4))))
    call = backend(name).prepare_graph(graph, 2)
    first = name != "tensorflow"  # channels first
    wanted = [(2, 3, 8, 8), (2, 4, 8, 8)] if first else [(2, 8, 8, 3), (2, 8, 8, 4)]
    assert [i.shape for i in call.inputs] == wanted
    assert all(i.dtype == np.float32 and np.ptp(i) > 0 for i in call.inputs)
    call.touch()
    assert call() is None


@pytest.mark.parametrize("predefined", covering(windows=False), ids=lambda b: b.name)
@every_backend
def test_every_kind_of_operation_runs(
    name: str, predefined: Predefined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That the others are built right, tests of each backend say."""
    graph, batch_size = as_known(name, predefined.make()), predefined.batch_sizes[-1]
    made = backend(name)
    call = made.prepare_graph(graph, batch_size)
    results: list[Any] = []
    if name == "tensorflow":
        from microbench.backends import tensorflow

        monkeypatch.setattr(tensorflow, "np", SimpleNamespace(asarray=results.append))
        call()
    elif name == "torch":

        def keep(module: Any, given: Any, result: Any) -> None:  # the whole comes last
            results[:] = result if isinstance(result, (tuple, list)) else [result]

        with made.torch.nn.modules.module.register_module_forward_hook(keep):
            call()
    else:
        binding = made.runtime.IOBinding
        monkeypatch.setattr(
            binding, "synchronize_outputs", lambda b: results.extend(b.get_outputs())
        )
        call()
    found = [np.asarray(r if name == "tensorflow" else r.numpy()) for r in results]
    sizes = [batch_size * math.prod(s[1:]) for s in graph.shapes(graph.outputs)]
    assert [r.size for r in found] == sizes
    assert all(np.isfinite(r).all() for r in found)


# ---- values, as the attributes say ---------------------------------------------------------------


def computed(name: str, graph: Graph, *inputs: np.ndarray) -> list[np.ndarray]:
    """What a backend makes of inputs that lie as the Graph has them, channels first or without channels."""
    made = backend(name)
    if name == "tensorflow":
        from microbench.backends.tensorflow.layers import build_graph as build

        results = build(made.keras, graph)(list(inputs), training=False)
        return [
            np.asarray(r) for r in (results if isinstance(results, (list, tuple)) else [results])
        ]
    if name == "torch":
        module, _ = made.block(graph, len(inputs[0]))
        with made.torch.no_grad():
            return [r.numpy() for r in module(*map(made.torch.from_numpy, inputs))]
    model, given = exported(made, graph, len(inputs[0]))
    return session_of(model).run(None, dict(zip(given, inputs, strict=True)))


def one(
    kind: str, shape: tuple[int, ...], *outs: tuple[int, ...], operands: int = 1, **said: Any
) -> Graph:
    b = GraphBuilder("one")
    inputs = [b.input(shape) for _ in range(operands)]
    return b.build(b.add_several(kind, inputs, outs, name=said.pop("name", ""), **said))


SQUARE = (1, 3, 4, 4)
ATTRIBUTES: dict[str, tuple[Graph, Callable[..., Any]]] = {
    "concatenate": (
        one("concatenate", (1, 4, 4), (1, 8, 4), operands=2, axis=1),
        lambda x, y: np.concatenate([x, y], 1),
    ),
    "transpose": (
        one("transpose", (1, 4, 4, 4), (1, 4, 4, 4), permutation=(0, 3, 1, 2)),
        lambda x: x.transpose(0, 3, 1, 2),
    ),
    "slice": (
        one("slice", (1, 3, 8, 9), (1, 3, 3, 4), starts=(0, 0, 1, 2), steps=(1, 1, 2, 1)),
        lambda x: x[:, :, 1:6:2, 2:6],
    ),
    "slice, an axis less": (
        one("slice", (1, 5, 5, 6), (1, 5, 6), starts=(0, 0, 3, 0), steps=(1, 1, 1, 1)),
        lambda x: x[:, :, 3],
    ),
    "slice, an axis more": (
        one("slice", (1, 10, 6), (1, 1, 7, 6), starts=(0, 3, 0)), lambda x: x[:, None, 3:]
    ),
    "split": (one("split", (1, 6, 6), (1, 2, 6), (1, 4, 6), axis=1), lambda x: [x[:, :2], x[:, 2:]]),
    "split into places": (
        one("split", (1, 2, 2), (1, 2), (1, 2), axis=2), lambda x: [x[..., 0], x[..., 1]]
    ),
    "pad": (
        one("pad", SQUARE, (1, 3, 7, 5), padding=((0, 0), (1, 2), (0, 1))),
        lambda x: np.pad(x, ((0, 0), (0, 0), (1, 2), (0, 1))),
    ),
    "softmax": (
        one("softmax", (1, 3, 5), (1, 3, 5), axis=1), lambda x: np.exp(x) / np.exp(x).sum(1, keepdims=True)
    ),
    "repeat": (one("repeat", (1, 2, 3), (1, 4, 9)), lambda x: np.tile(x, (1, 2, 3))),
    "merge": (one("average", (1, 5), (1, 5), operands=3), lambda x, y, z: (x + y + z) / 3),
}  # fmt: skip


@pytest.mark.parametrize("what", ATTRIBUTES)
@every_backend
def test_what_attributes_say_is_built(name: str, what: str) -> None:
    """Against numpy, where other answers fit the shapes too."""
    graph, oracle = ATTRIBUTES[what]
    generator = np.random.default_rng(1)
    inputs = [
        generator.standard_normal((2, *graph.tensors[i].shape[1:]), np.float32)
        for i in graph.inputs
    ]
    expected = oracle(*inputs)
    results = computed(name, graph, *inputs)
    for found, wanted in zip(
        results, expected if isinstance(expected, list) else [expected], strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["torch", "onnxruntime"])
def test_a_view_of_another_order_is_one(name: str) -> None:
    graph = one("reshape", (1, 4, 4, 5), (1, 4, 4, 5), permutation=(0, 2, 1, 3))
    x = np.random.default_rng(1).standard_normal((2, 4, 4, 5), np.float32)
    given = x.transpose(0, 3, 1, 2)  # channels first, as images come
    (found,) = computed(name, graph, np.ascontiguousarray(given))
    np.testing.assert_array_equal(found, x.transpose(0, 2, 1, 3))


@pytest.mark.parametrize("name", ["torch", "onnxruntime"])
def test_an_axis_is_that_of_the_graph_where_images_are_turned(name: str) -> None:
    """Channels last in the Graph, channels first in the framework; rows and channels are as many."""
    b = GraphBuilder("turned")
    x, y = (b.add("batch_norm", [b.input((1, 4, 5, 4))], (1, 4, 5, 4)) for _ in range(2))
    graph = b.build([b.add("concatenate", [x, y], (1, 4, 10, 4), axis=2)])
    inputs = [np.random.default_rng(s).standard_normal((2, 4, 4, 5), np.float32) for s in (1, 2)]
    (found,) = computed(name, graph, *inputs)
    np.testing.assert_allclose(found, np.concatenate(inputs, 3), rtol=1e-4, atol=1e-4)


# ---- refusals ------------------------------------------------------------------------------------


@every_backend
@pytest.mark.parametrize(
    ("graph", "said"),
    [
        (one("fft", (1, 8), (1, 8), name="spectrum"), "operation 'fft' .'spectrum'"),
        (one("concatenate", (1, 8), (1, 9), name="both"), r"'both'.: no axis puts .* to \(1, 9\)"),
        (one("relu", (1, 8), (1, 9)), r"8\)?\]? .*\(1, 9\)"),
        (
            one("dense", (1, 8), (1, 4), in_features=5, out_features=4, bias=True),
            r"no product of 5 features goes from \(1, 8\) to \(1, 4\)",
        ),
    ],
    ids=["kind", "axis", "shape", "product"],
)  # fmt: skip
def test_what_cannot_be_built_is_named_with_the_reason(name: str, graph: Graph, said: str) -> None:
    with pytest.raises(MeasuringError, match=f"the {name} backend .*{said}"):
        backend(name).prepare_graph(graph, 1)


OTHERS = {
    "tensorflow": ("examples.torch_networks:shufflenet_v2", "net.onnx"),
    "torch": ("keras:ResNet50", "net.keras", "net.onnx", "own_keras:network"),
    "onnxruntime": ("keras:ResNet50", "module:net"),
}


@pytest.mark.parametrize(
    ("name", "spec"), [(n, spec) for n, specs in OTHERS.items() for spec in specs]
)
def test_another_frameworks_network_is_refused(
    name: str, spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for needed in ("keras", "torch"):
        pytest.importorskip(needed)
    (tmp_path / "own_keras.py").write_text(
        "import keras\ndef network():\n"
        "    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])\n"
    )
    (tmp_path / "net.onnx").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    given = str(tmp_path / spec) if spec.startswith("net.") else spec
    size = (64,) if spec.startswith("examples") else ()
    with pytest.raises(NetworkError, match=f"the {name} backend runs (those|.onnx files)"):
        backend(name).prepare_network(given, size, 1)


@pytest.mark.parametrize("name", ["torch", "onnxruntime"])
def test_without_its_package_the_install_line_is_said(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    pytest.importorskip(name)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match=rf"pip install .*\[{name}\]'"):
        create(name, "cpu")


@every_backend
def test_a_gpu_where_there_is_none(name: str) -> None:
    backend(name)
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is one")
    said = "no gpu here: .* looked for .*; use `lolat learn cpu`, or install"
    with pytest.raises(DeviceError, match=said):
        create(name, "gpu")


# ---- environment and threads ---------------------------------------------------------------------


@every_backend
def test_what_changes_times_is_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = backend(name)
    flags = importlib.import_module(f"microbench.backends.{name}").FLAGS
    for flag in flags:
        monkeypatch.delenv(flag, raising=False)
    assert made.environment()["flags"] == {}
    for flag in flags:
        monkeypatch.setenv(flag, "1")
        assert made.environment()["flags"] == {flag: "1"}
        monkeypatch.delenv(flag)
    module = importlib.import_module(name)
    environment = made.environment()
    assert (environment["framework"], environment["framework_version"]) == (
        name,
        module.__version__,
    )
    assert made.available_bytes() is None, "the host's memory is the system's to say"


def tasks(worker: WorkerProcess) -> int:
    """The threads that the operating system sees; 0 where it does not say."""
    folder = f"/proc/{worker.pid}/task"
    return len(os.listdir(folder)) if Path(folder).is_dir() else 0


def computing(worker: WorkerProcess) -> int:
    """`tasks` when a convolution was computed."""
    n = Layers.on("conv", 32, 32, 16)
    job = {"graph": n.done(n.conv_norm_act(n.input, 64, 3)).to_dict(), "batch_size": 4}
    worker.request({"do": "prepare", "key": "c", "job": job}, 120)
    return tasks(worker)


@pytest.mark.parametrize("name", ["torch", "onnxruntime"])
def test_the_real_framework_uses_so_many_threads_in_its_worker(name: str) -> None:
    """What it says itself and, where the system shows it, how many threads computing starts.

    TensorFlow has threads that wait for other things: tests/microbench/test_tensorflow.py.
    """
    pytest.importorskip(NEEDED[name])
    with WorkerProcess(f"{name}+threads=1", "cpu") as worker:
        found = worker.request({"do": "environment"}, 60)["environment"]
        names = ("threads", "threads_asked", "inter_op_threads")
        assert [found[n] for n in names] == [1, 1, 1]
        before, after = tasks(worker), computing(worker)
    assert after == before, "one thread computes: the one that there is"
    if len(os.sched_getaffinity(0)) > 1:
        with WorkerProcess(f"{name}+threads=2", "cpu") as worker:
            assert computing(worker) > after or not after


# ---- a whole run ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["tensorflow", "torch+channels_last", "onnxruntime"])
def test_a_tiny_run_in_a_real_worker(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what it says of itself without threads."""
    pytest.importorskip(NEEDED[framework := backends.split(name)[0]])
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "1")  # unasked it hangs on the processor
    made: list[Any] = []
    monkeypatch.setattr(learn, "Runner", lambda *given: made.append(Runner(*given)) or made[-1])  # type: ignore[func-returns-value]
    blocks = (
        Predefined("a", small, (1, 2)),
        Predefined("b", tiny(5), (1,)),
        Predefined("net", tiny(8), (1,), True),
    )
    points, where, noise, _, journal = learn.measure_blocks(
        name, "cpu", tmp_path / "j", 1e9, settings=Settings(rounds=2), blocks=blocks
    )
    journal.remove()
    assert [(p.name, p.batch_size) for p in points] == [("a", 1), ("a", 2), ("b", 1), ("net", 1)]
    assert [len(p.reference_ms) for p in points] == [2, 2, 2, 0], "a network before each of a block"
    assert all(p.latency_ms > 0 for p in points)
    assert backends.of_model(where) == name
    assert 0 < noise["quiet"] <= noise["busy"]
    found = made[0].environment
    assert "threads_asked" not in found
    assert found["threads"] == len(os.sched_getaffinity(0))
    if framework == "tensorflow" and platform.machine() == "x86_64":
        assert found["libraries"]["onednn"] is True, "0: tests/microbench/test_tensorflow.py"
    # All is compared, or with the device: else two environments could differ without a word.
    assert found.keys() - {*FIELDS, "device_name"} == set()
