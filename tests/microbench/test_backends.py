"""What a backend with options is called, and which one is picked when none is given."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import pytest

from lolat.errors import DeviceError, InputError, LolatError, MissingPackageError
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from lolat.io.process import ProcessDied, RequestFailed
from microbench import backends, families
from microbench.backends import choice
from microbench.backends.known import as_known, without_batch_norms


@pytest.mark.parametrize(
    ("name", "options", "written"),
    [
        ("tensorflow", [], "tensorflow"),
        ("tensorflow", ["jit"], "tensorflow+jit"),
        ("torch", ["half", "compile"], "torch+compile+half"),
        ("onnxruntime", [], "onnxruntime"),
    ],
)
def test_a_backend_with_options_is_one_word(name: str, options: list[str], written: str) -> None:
    assert backends.joined(name, options) == written
    again, found = backends.split(written)
    assert (again, sorted(found)) == (name, sorted(options))
    backends.check(written)
    environment = {"framework": name, **dict.fromkeys(options, True), "channels_last": False}
    assert backends.of_model(environment) == written


def test_a_model_that_does_not_say_its_backend() -> None:
    assert backends.of_model({}) == "tensorflow"
    assert backends.of_model({"framework": "tensorflow", "jit": "yes"}) == "tensorflow"
    with pytest.raises(
        InputError, match="no backend 'jax'; this version has onnxruntime, tensorflow"
    ):
        backends.of_model({"framework": "jax"})


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("jax", "no backend 'jax'; this version has onnxruntime, tensorflow, torch"),
        ("tensorflow+half", "the tensorflow backend has no --half; it has --jit"),
        ("torch+jit", "the torch backend has no --jit; it has --compile, --channels-last, --half"),
        ("onnxruntime+jit", "the onnxruntime backend has no --jit; it has no options"),
    ],
)
def test_what_there_is_not(written: str, said: str) -> None:
    for refuse in (backends.check, lambda b: backends.create(b, "cpu")):
        with pytest.raises(InputError) as caught:
            refuse(written)
        assert str(caught.value) == said


def test_as_many_groups_as_channels_are_depthwise_but_to_tensorflow() -> None:
    graph = families.chain(families.convnext, 14, 8)
    grouped = count(graph).total()
    assert grouped.groups == 8
    assert as_known("tensorflow+jit", graph) is graph
    for backend in ("torch+half", "onnxruntime"):  # there is no batch norm
        known = as_known(backend, graph)
        assert (
            count(known).total()
            == count(families.chain(families.convnext, 14, 8, grouped=False)).total()
        )
        assert count(known).total().groups == 0
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
    assert [o.kind for o in dense.operations] == [
        "batch_norm", "relu", "conv", "relu", "conv", "concatenate",
    ]  # fmt: skip


def test_a_batch_norm_is_not_folded_where_others_read_the_convolution() -> None:
    n = Layers.on("read twice", 8, 8, 3)
    x = n.conv(n.input, 4)
    graph = n.done(n.same("add", x, n.same("batch_norm", x)))
    assert without_batch_norms(graph).operations == graph.operations
    n = Layers.on("returned", 8, 8, 3)
    x = n.conv(n.input, 4)
    graph = n.done(x, n.same("batch_norm", x))
    assert without_batch_norms(graph).operations == graph.operations


# ---- the choice ----------------------------------------------------------------------------------


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Packages that are there; a test takes some away."""
    there = {"keras", "tensorflow", "torch", "onnx", "onnxruntime"}
    find = importlib.util.find_spec

    def found(name: str, *rest: Any) -> Any:
        known = {"keras", "tensorflow", "torch", "onnx", "onnxruntime"}
        return find(name, *rest) if name not in known else object() if name in there else None

    monkeypatch.setattr(importlib.util, "find_spec", found)
    return there


@pytest.mark.parametrize(
    ("gone", "options", "picked", "said"),
    [
        ("", [], "tensorflow", ""),
        ("torch", ["jit"], "tensorflow+jit", ""),
        ("keras", [], "torch", "measuring with torch, as tensorflow is not installed"),
        (
            "keras torch",
            [],
            "onnxruntime",
            "measuring with onnxruntime, as tensorflow is not installed",
        ),
        ("", ["half"], "torch+half", "measuring with torch, which has that"),
    ],
)
def test_on_a_cpu_the_first_that_is_installed(
    installed: set[str], gone: str, options: list[str], picked: str, said: str
) -> None:
    installed -= set(gone.split())
    assert choice.pick("cpu", options) == (picked, said)


def test_nothing_is_installed(installed: set[str]) -> None:
    installed.clear()
    with pytest.raises(MissingPackageError) as caught:
        choice.pick("cpu", [])
    assert str(caught.value) == (
        "nothing is installed to measure with (tensorflow needs keras and tensorflow; torch needs torch; "
        "onnxruntime needs onnx and onnxruntime); install one, for example with: "
        "pip install 'lolat[tensorflow]'"
    )
    with pytest.raises(MissingPackageError, match=r"torch needs torch\).*'lolat\[torch\]'"):
        choice.pick("cpu", ["half"])
    with pytest.raises(
        InputError, match="no backend has --jit and --half together; tensorflow has"
    ):
        choice.pick("cpu", ["jit", "half"])


class Started:
    """In place of a worker process: what starting it raises, or what it says."""

    def __init__(self, found: Mapping[str, Exception | dict[str, Any]]) -> None:
        self.found, self.started, self.closed = found, [], 0  # type: ignore[var-annotated]

    def __call__(self, backend: str, device: str) -> Any:
        self.started.append((backend, device))
        self.now = self.found[backend]
        if isinstance(self.now, LolatError):
            raise self.now
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *unused: object) -> None:
        self.closed += 1

    def request(self, document: dict[str, Any], limit_s: float) -> dict[str, Any]:
        assert document == {"do": "environment"}
        assert limit_s > 0
        if isinstance(self.now, Exception):
            raise self.now
        return {"environment": self.now}


NO_TORCH = DeviceError(
    "no gpu here: PyTorch 2.13 looked for a CUDA device; use `learn_model.py cpu`"
)
CARD = {"framework_version": "2.13.0", "device_name": "NVIDIA T4"}


def test_on_a_gpu_the_first_that_finds_one(installed: set[str]) -> None:
    start = Started({"torch": CARD})
    assert choice.pick("gpu", [], start) == (
        "torch", "measuring with torch 2.13.0 on NVIDIA T4; --backend chooses another",
    )  # fmt: skip
    assert start.started == [("torch", "gpu")]
    assert start.closed == 1
    start = Started({"torch": NO_TORCH, "tensorflow": {}})
    assert choice.pick("gpu", [], start) == (
        "tensorflow",
        "measuring with tensorflow (torch: PyTorch 2.13 looked for a CUDA device); "
        "--backend chooses another",
    )
    start = Started({"torch+half": CARD})
    assert choice.pick("gpu", ["half"], start)[0] == "torch+half"


def test_no_gpu_says_what_was_looked_for(installed: set[str]) -> None:
    installed.discard("onnxruntime")
    for problem, reason in (
        (ProcessDied("the measuring process was killed"), "the measuring process was killed"),
        (RequestFailed("RuntimeError: driver too old"), "RuntimeError: driver too old"),
    ):
        start = Started({"torch": NO_TORCH, "tensorflow": problem})
        with pytest.raises(DeviceError) as caught:
            choice.pick("gpu", [], start)
        assert str(caught.value) == (
            f"no gpu here: torch: PyTorch 2.13 looked for a CUDA device; tensorflow: {reason}; "
            "onnxruntime: onnxruntime not installed; use `learn_model.py cpu`, or install one of these "
            "for your GPU, and its driver"
        )
        assert start.closed == 1


def test_a_module_that_hides_where_it_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: str) -> Any:
        raise ValueError(f"{name}.__spec__ is None")

    monkeypatch.setattr(importlib.util, "find_spec", broken)
    assert choice.lacking("torch") == ["torch"]
