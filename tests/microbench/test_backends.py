"""Names and options of backends, what they train, how they take a block, and which one is picked."""

from __future__ import annotations

import importlib
import importlib.util
from types import SimpleNamespace
from typing import Any

import pytest

from lolat.errors import DeviceError, InputError, MissingPackageError
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from lolat.microbench import backends, choice, families
from lolat.microbench.blocks import as_known
from tests.microbench.fakes import FakeDevice


@pytest.mark.parametrize(
    ("name", "options", "written"),
    [
        ("tensorflow", [], "tensorflow"),
        ("tensorflow", ["jit"], "tensorflow+jit"),
        ("torch", ["half", "compile"], "torch+compile+half"),
        ("onnxruntime", ["threads=1"], "onnxruntime+threads=1"),
        ("tensorflow", ["threads=12", "jit"], "tensorflow+jit+threads=12"),
        ("torch", ["half", "threads=2", "compile"], "torch+compile+half+threads=2"),
    ],
)
def test_a_backend_with_options_is_one_word(
    monkeypatch: pytest.MonkeyPatch, name: str, options: list[str], written: str
) -> None:
    assert backends.join_name(name, options) == written
    again, found = backends.split(written)
    assert (again, sorted(found)) == (name, sorted(options))
    flags = [o for o in options if "=" not in o]
    plain = backends.join_name(name, flags)
    threads = next((int(o.partition("=")[2]) for o in options if "=" in o), None)
    monkeypatch.setattr(backends, "cpu_count", lambda: 12)
    assert backends.threads_of(written, "cpu") == threads
    where = {"framework": name, **dict.fromkeys(flags, True), "channels_last": False, "threads": 3}
    assert backends.backend_of(where) == plain, "as many threads as there were, unasked"
    if threads:
        assert backends.backend_of({**where, "threads_asked": threads}) == written


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("jax", ["'jax'", "onnxruntime, tensorflow, torch"]),
        ("tensorflow+half", ["tensorflow", "half", "jit"]),
        ("torch+jit", ["torch", "jit", "compile, channels_last, half"]),
        ("onnxruntime+jit", ["onnxruntime", "jit", "threads"]),
        *((f"torch+threads={n}", [f"threads {n}", "a number"]) for n in ("0", "-1", "x")),
    ],
)  # fmt: skip
def test_a_backend_that_there_is_not(written: str, words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        backends.create(written, "cpu")
    assert all(word in str(caught.value) for word in words)


def test_more_threads_than_processors_and_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "cpu_count", lambda: 3)
    assert [backends.threads_of(f"torch+threads={n}", "cpu") for n in (1, 3)] == [1, 3]
    for wrong, device in (("torch+threads=4", "cpu"), ("onnxruntime+threads=1", "gpu")):
        with pytest.raises(InputError) as caught:
            backends.create(wrong, device)
        assert caught.value.arguments == ["threads"]


# ---- What a backend takes a block for


def test_as_many_groups_as_channels_are_depthwise_but_to_tensorflow() -> None:
    graph = families.chain(families.convnext, 14, 8)
    assert count(graph).total().groups == 8
    assert as_known("tensorflow+jit", graph) is graph
    for backend in ("torch+half", "onnxruntime"):  # there is no batch norm
        known = count(as_known(backend, graph)).total()
        assert known == count(families.chain(families.convnext, 14, 8, grouped=False)).total()
        assert known.groups == 0
    narrow = families.chain(Layers.conv_norm_act, 14, 8, filters=8, kernel=3, groups=4)
    assert count(as_known("torch", narrow)).total() == count(narrow).total()


def test_batch_norms_behind_convolutions_are_folded_in_onnx_files() -> None:
    """None of a bottleneck's three batch norms is left, each becomes a bias; by hand."""
    graph = families.chain(families.bottleneck, 14, 64)
    known = as_known("onnxruntime", graph)
    left = [o.kind for o in known.operations]
    assert left == ["conv", "relu", "conv", "relu", "conv", "add", "relu"]
    ours, theirs = count(graph).total(), count(known).total()
    assert theirs.weights - ours.weights == 16 + 16 + 64
    assert ours.traffic - theirs.traffic == 2 * 14 * 14 * (16 + 16 + 64)
    assert (ours.acts, ours.inp, ours.flops) == (theirs.acts, theirs.inp, theirs.flops)
    assert known.shapes(known.outputs) == graph.shapes(graph.outputs)
    # In front of its convolution, as in DenseNet, it stays; the one behind the 1x1 goes.
    dense = as_known("onnxruntime", families.chain(families.dense_net, 14, 64))
    kinds = ["batch_norm", "relu", "conv", "relu", "conv", "concatenate"]
    assert [o.kind for o in dense.operations] == kinds


@pytest.mark.parametrize("returned", [False, True])
def test_a_batch_norm_is_not_folded_where_others_read_the_convolution(returned: bool) -> None:
    n = Layers.on("read twice", 8, 8, 3)
    x = n.conv(n.input, 4)
    y = n.same("batch_norm", x)
    graph = n.done(x, y) if returned else n.done(n.same("add", x, y))
    assert as_known("onnxruntime", graph).operations == graph.operations


# ---- Training


def test_backends_that_train() -> None:
    for backend in ("tensorflow", "tensorflow+jit", "torch+compile+half"):
        backends.check_trains(backend)
    other: Any = SimpleNamespace(name="onnxruntime")
    with pytest.raises(InputError, match=r"onnxruntime backend cannot train.*tensorflow or torch"):
        backends.training_of(other)


# ---- The choice

KNOWN = {"keras", "tensorflow", "torch"}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Packages that are there; a test takes some away."""
    there = set(KNOWN)
    find = importlib.util.find_spec

    def spec(name: str, *rest: Any) -> Any:
        return find(name, *rest) if name not in KNOWN else object() if name in there else None

    monkeypatch.setattr(importlib.util, "find_spec", spec)
    return there


@pytest.mark.parametrize(
    ("gone", "options", "picked", "remark"),
    [
        (
            "",
            [],
            "tensorflow",
            "measuring with tensorflow; for networks in torch: `lolat learn cpu --backend torch`",
        ),
        ("torch", [], "tensorflow", ""),
        ("torch", ["jit"], "tensorflow+jit", ""),
        ("keras", [], "torch", "measuring with torch"),
        ("", ["half", "threads=1"], "torch+half+threads=1", "measuring with torch"),
    ],
)
def test_on_a_cpu_the_first_that_is_installed(
    installed: set[str], gone: str, options: list[str], picked: str, remark: str
) -> None:
    installed -= {gone}
    assert choice.pick("cpu", options) == (picked, remark, {})


def test_nothing_is_installed(installed: set[str]) -> None:
    installed.clear()
    with pytest.raises(MissingPackageError, match=r"pip install .*\[torch\]'"):
        choice.pick("cpu", [])
    with pytest.raises(MissingPackageError, match="jit needs tensorflow, which is not installed"):
        choice.pick("cpu", ["jit"])
    with pytest.raises(InputError, match="no backend has jit and half"):
        choice.pick("cpu", ["jit", "half"])


def test_a_gpu_is_looked_for(installed: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is asked in a process of its own, which is closed; if none does, the preferred one says why."""
    gpu = FakeDevice()
    gpu.environment = {"device_name": "NVIDIA T4"}

    def start(backend: str, device: str) -> Any:
        if backend in without:
            raise DeviceError(f"no {device} here: {backend} looked")
        return gpu.start(backend, device)

    without: tuple[str, ...] = ()
    monkeypatch.setattr(choice, "WorkerProcess", start)
    assert choice.pick("gpu", ["half"]) == ("torch+half", "measuring with torch", gpu.environment)
    assert gpu.workers[0].closed
    without = ("torch",)
    assert choice.pick("gpu", []) == ("tensorflow", "", gpu.environment)
    without = ("torch", "tensorflow")
    with pytest.raises(DeviceError, match="no gpu here: torch looked"):
        choice.pick("gpu", [])


def test_a_backend_that_is_named_needs_its_packages(installed: set[str]) -> None:
    choice.check_installed("torch+half+threads=1")
    installed -= {"tensorflow"}
    needs = r"tensorflow backend needs tensorflow; install it with: .*\[tensorflow\]'"
    with pytest.raises(MissingPackageError, match=needs):
        choice.check_installed("tensorflow+jit")
