"""What a backend with options is called, what it trains, and which one is picked when none is given."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from lolat.errors import DeviceError, InputError, LolatError, MissingPackageError
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from lolat.io.process import ProcessDied, RequestFailed
from microbench import backends, families, worker
from microbench.blocks import as_known, without_batch_norms


@pytest.mark.parametrize(
    ("name", "options", "written"),
    [
        ("tensorflow", [], "tensorflow"),
        ("tensorflow", ["jit"], "tensorflow+jit"),
        ("torch", ["half", "compile"], "torch+compile+half"),
        ("onnxruntime", [], "onnxruntime"),
        ("onnxruntime", ["threads=1"], "onnxruntime+threads=1"),
        ("tensorflow", ["threads=12", "jit"], "tensorflow+jit+threads=12"),
        ("torch", ["half", "threads=2", "compile"], "torch+compile+half+threads=2"),
    ],
)
def test_a_backend_with_options_is_one_word(name: str, options: list[str], written: str) -> None:
    assert backends.joined(name, options) == written
    again, found = backends.split(written)
    assert (again, sorted(found)) == (name, sorted(options))
    backends.check(written)
    flags = [o for o in options if "=" not in o]
    plain = backends.joined(name, flags)
    assert backends.without_threads(written) == plain
    threads = next((int(o.partition("=")[2]) for o in options if "=" in o), None)
    assert backends.threads_of(written) == threads
    said = {"framework": name, **dict.fromkeys(flags, True), "channels_last": False, "threads": 3}
    assert backends.of_model(said) == plain, "as many threads as there were, unasked"
    if threads:
        assert backends.of_model({**said, "threads_asked": threads}) == written


def test_a_model_that_does_not_say_its_backend_or_is_damaged() -> None:
    for threads in (None, True, "1", 0, -1, 1.0):
        assert backends.of_model({"framework": "torch", "threads_asked": threads}) == "torch"
    assert backends.of_model({}) == "tensorflow"
    assert backends.of_model({"framework": "tensorflow", "jit": "yes"}) == "tensorflow"
    with pytest.raises(InputError, match=r"'jax'; .* onnxruntime, tensorflow, torch"):
        backends.of_model({"framework": "jax"})


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("jax", ["'jax'", "onnxruntime, tensorflow, torch"]),
        ("tensorflow+half", ["tensorflow", "half", "jit"]),
        ("torch+jit", ["torch", "jit", "compile, channels_last, half"]),
        ("onnxruntime+jit", ["onnxruntime", "jit", "no options"]),
        *((f"torch+threads={n}", [f"threads {n}".rstrip(), "1 or more"])
          for n in ("0", "-1", "x", "", "1.5", "²", "9" * 5000)),
    ],
)  # fmt: skip
def test_what_there_is_not(written: str, words: list[str]) -> None:
    for refuse in (backends.check, lambda b: backends.create(b, "cpu")):
        with pytest.raises(InputError) as caught:
            refuse(written)
        assert all(word in str(caught.value) for word in words)


def test_more_threads_than_processors_and_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "cpu_count", lambda: 3)
    for fine in (None, 1, 3):
        backends.check_threads(fine, "cpu")
    for refuse in (
        lambda: backends.check_threads(4, "cpu"),
        lambda: backends.create("torch+threads=4", "cpu"),
    ):
        with pytest.raises(InputError, match=r"threads 4: .* 3 processors; .* from 1 to 3"):
            refuse()
    for refuse in (
        lambda: backends.check_threads(1, "gpu"),
        lambda: backends.create("onnxruntime+threads=1", "gpu"),
    ):
        with pytest.raises(InputError, match=r"threads 1 is for the cpu; a gpu .*: leave it out"):
            refuse()
    monkeypatch.setattr(backends, "cpu_count", lambda: 1)
    with pytest.raises(InputError, match="one processor; expected a number from 1 to 1"):
        backends.check_threads(2, "cpu")


# ---- what a backend takes a Graph for ------------------------------------------------------------


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
    """By hand: of a bottleneck's three batch norms none is left, and each becomes a bias."""
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
    assert without_batch_norms(graph).operations == graph.operations


# ---- training ------------------------------------------------------------------------------------


def test_backends_that_train() -> None:
    for backend in ("tensorflow", "tensorflow+jit", "torch+compile+half"):
        backends.check_trains(backend)
    other: Any = SimpleNamespace(name="onnxruntime")
    for refuse in (
        lambda: backends.check_trains("onnxruntime"),
        lambda: backends.training_of(other),
    ):
        with pytest.raises(InputError, match=r"onnxruntime backend trains no.*tensorflow or torch"):
            refuse()


@pytest.mark.parametrize("name", sorted(backends.TRAINING))
def test_what_is_promised_is_there(name: str) -> None:
    assert name in backends.BACKENDS
    pytest.importorskip(name)
    module, _, attribute = backends.TRAINING[name].partition(":")
    cls = getattr(importlib.import_module(module), attribute)
    for part in ("passes", "update", "epoch", "start"):
        wanted = inspect.signature(getattr(backends.Training, part)).parameters
        assert list(inspect.signature(getattr(cls, part)).parameters) == list(wanted)


# ---- the choice ----------------------------------------------------------------------------------

KNOWN = {"keras", "tensorflow", "torch", "onnx", "onnxruntime"}


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
        ("", [], "tensorflow", ""),
        ("torch", ["jit"], "tensorflow+jit", ""),
        ("", ["threads=1"], "tensorflow+threads=1", ""),
        ("keras", [], "torch", "with torch, as tensorflow is not installed"),
        ("", ["half", "threads=1"], "torch+half+threads=1", "with torch, which has that"),
    ],
)
def test_on_a_cpu_the_first_that_is_installed(
    installed: set[str], gone: str, options: list[str], picked: str, remark: str
) -> None:
    installed -= set(gone.split())
    assert worker.pick("cpu", options) == (picked, remark and f"measuring {remark}")


def test_nothing_is_installed(installed: set[str]) -> None:
    installed.clear()
    needs = r"\(tensorflow needs keras and tensorflow; torch needs torch\)"
    with pytest.raises(MissingPackageError, match=rf"{needs}.*pip install .*\[tensorflow\]'"):
        worker.pick("cpu", [])
    with pytest.raises(MissingPackageError, match=r"torch needs torch\).*\[torch\]'"):
        worker.pick("cpu", ["half"])
    with pytest.raises(InputError, match=r"no backend has jit and half .* tensorflow has"):
        worker.pick("cpu", ["jit", "half"])


class Started:
    """In place of a worker process: what starting it raises, or what it says."""

    def __init__(self, answers: Mapping[str, Exception | dict[str, Any]]) -> None:
        self.answers, self.closed = answers, 0
        self.started: list[tuple[str, str]] = []

    def __call__(self, backend: str, device: str) -> Any:
        self.started.append((backend, device))
        self.answer = self.answers[backend]
        if isinstance(self.answer, LolatError):
            raise self.answer
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *unused: object) -> None:
        self.closed += 1

    def request(self, document: dict[str, Any], limit_s: float) -> dict[str, Any]:
        assert document == {"do": "environment"}
        assert limit_s > 0
        if isinstance(self.answer, Exception):
            raise self.answer
        return {"environment": self.answer}


NO_TORCH = DeviceError(
    "no gpu here: PyTorch 2.13 looked; use `lolat learn cpu`", why="PyTorch 2.13 looked"
)
ANOTHER = "`lolat learn gpu --backend NAME` takes another framework"
CARD = {"framework_version": "2.13.0", "device_name": "NVIDIA T4"}


def test_on_a_gpu_the_first_that_finds_one(installed: set[str]) -> None:
    start: Any = Started({"torch": CARD, "torch+half": CARD})
    backend, remark = worker.pick("gpu", [], start)
    assert backend == "torch"
    assert remark == f"measuring with torch 2.13.0 on NVIDIA T4; {ANOTHER}"
    assert (start.started, start.closed) == ([("torch", "gpu")], 1)
    assert worker.pick("gpu", ["half"], start)[0] == "torch+half"
    start = Started({"torch": NO_TORCH, "tensorflow": {}})
    backend, remark = worker.pick("gpu", [], start)
    assert backend == "tensorflow"
    assert remark.startswith("measuring with tensorflow (torch: PyTorch 2.13 looked); ")


@pytest.mark.parametrize(
    "problem",
    [
        ProcessDied("it was killed"),
        RequestFailed({"error": "driver too old", "kind": "RuntimeError"}),
    ],
)
def test_no_gpu_says_what_was_looked_for(installed: set[str], problem: Exception) -> None:
    installed.discard("onnxruntime")
    start: Any = Started({"torch": NO_TORCH, "tensorflow": problem})
    with pytest.raises(DeviceError) as caught:
        worker.pick("gpu", [], start)
    assert str(caught.value).startswith(
        f"no gpu here: torch: PyTorch 2.13 looked; tensorflow: {problem}; "
        "onnxruntime: onnxruntime not installed; use `lolat learn cpu`, or install"
    )
    assert start.closed == 1


def test_a_module_that_hides_where_it_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ValueError(f"{name}.__spec__ is None")

    monkeypatch.setattr(importlib.util, "find_spec", broken)
    assert worker.lacking("torch") == ["torch"]
