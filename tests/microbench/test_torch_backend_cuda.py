"""The path of a GPU with a stand-in for PyTorch's CUDA: tensors lie on the host, the calls are recorded."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from lolat.errors import DeviceError, MeasuringError
from lolat.graph import Graph
from microbench.backends import create
from microbench.backends import torch as torch_cuda
from microbench.layers import Layers

torch: Any = pytest.importorskip("torch")


class FakeCuda:
    """In place of torch.cuda: 4 GiB, of which PyTorch holds one and uses a quarter."""

    OutOfMemoryError = torch.cuda.OutOfMemoryError

    def __init__(self) -> None:
        self.there = True
        self.calls: list[str] = []

    def is_available(self) -> bool:
        return self.there

    def synchronize(self, place: str) -> None:
        self.calls.append(f"synchronize {place}")

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")

    def mem_get_info(self, place: str) -> tuple[int, int]:
        return 3 << 30, 4 << 30

    def memory_reserved(self, place: str) -> int:
        return 1 << 30

    def memory_allocated(self, place: str) -> int:
        return 1 << 28

    def get_device_name(self, place: str) -> str:
        return "NVIDIA T4"


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    found = FakeCuda()
    monkeypatch.setattr(torch, "cuda", found)
    monkeypatch.setattr(torch_cuda, "PLACE", "cpu")
    return found


def small() -> Graph:
    n = Layers("small", 8, 3)
    return n.done(n.cba(n.input, 4, 3))


@pytest.mark.parametrize(
    ("built", "hip", "why"),
    [
        (None, None, "is built without it"),
        ("12.8", None, "is built with CUDA 12.8, but finds no device"),
        (None, "6.2", "is built with CUDA 6.2, but finds no device"),
    ],
)
def test_a_gpu_where_there_is_none(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch, built: str | None, hip: str | None, why: str
) -> None:
    cuda.there = False
    version = SimpleNamespace(cuda=built, hip=hip)
    monkeypatch.setattr(torch, "version", version)
    with pytest.raises(DeviceError) as caught:
        create("torch", "gpu")
    assert str(caught.value) == (
        f"no gpu here: PyTorch {torch.__version__} looked for a CUDA device and {why}; use "
        "`learn_model.py cpu`, or install a PyTorch with CUDA and a driver"
    )


def test_the_first_device_is_measured() -> None:
    assert torch_cuda.PLACE == "cuda:0"


def test_a_call_is_over_when_the_device_is_done(cuda: FakeCuda) -> None:
    backend: Any = create("torch", "gpu")
    call = backend.prepare_graph(small(), 2)
    assert cuda.calls == [], "nothing was run yet"
    call()
    call()
    assert cuda.calls == ["synchronize cpu"] * 2

    def module(x: Any) -> None:
        cuda.calls.append("run")

    cuda.calls.clear()
    backend._call(module, [torch.ones(1)])()
    assert cuda.calls == ["run", "synchronize cpu"]


def test_free_memory_is_what_the_device_and_pytorch_have_left(cuda: FakeCuda) -> None:
    assert create("torch", "gpu").available_bytes() == (3 << 30) + (1 << 30) - (1 << 28)


def test_the_environment_names_the_device(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda="12.8", hip=None))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 90700)
    found = create("torch+half", "gpu").environment()
    assert found["device_name"] == "NVIDIA T4"
    assert (found["cuda_version"], found["cudnn_version"]) == ("12.8", 90700)
    assert found["cudnn_benchmark"] is False
    assert set(found["tf32"]) == {"convolutions", "products"}
    assert all(isinstance(v, bool) for v in found["tf32"].values())
    assert found["half"] is True


class Failing:
    """A module that runs out of memory when told to, with a large tensor in its hands."""

    def __init__(self, cuda: FakeCuda) -> None:
        self.cuda, self.held, self.fails = cuda, None, True

    def __call__(self, x: Any) -> Any:
        if not self.fails:
            return x
        large = torch.ones(8)
        self.held = weakref.ref(large)
        raise self.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nsecond line")


def test_out_of_memory_in_the_middle_is_one_job_less(cuda: FakeCuda) -> None:
    """The cache is emptied when what the failed call held is gone, and the next call works."""
    backend: Any = create("torch", "gpu")
    module = Failing(cuda)
    freed: list[bool] = []
    cuda.empty_cache = lambda: freed.append(module.held is not None and module.held() is None)  # type: ignore[method-assign, assignment, func-returns-value]
    call = backend._call(module, [torch.ones(1)])
    with pytest.raises(MeasuringError) as caught:
        call()
    assert str(caught.value) == (
        "the device's memory does not suffice: CUDA out of memory. Tried to allocate 9 GiB"
    )
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert freed == [True]
    module.fails = False
    call()


def test_out_of_memory_while_building(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*unused: Any) -> None:
        raise cuda.OutOfMemoryError("CUDA out of memory")

    backend = create("torch", "gpu")
    monkeypatch.setattr("microbench.backends.torch.materialize", full)
    with pytest.raises(MeasuringError, match="the device's memory does not suffice: CUDA out"):
        backend.prepare_graph(small(), 1)
    assert cuda.calls == ["empty_cache"]


def test_another_error_is_not_taken_for_it(cuda: FakeCuda) -> None:
    def module(x: Any) -> None:
        raise RuntimeError("something else")

    backend: Any = create("torch", "gpu")
    with pytest.raises(RuntimeError, match="something else"):
        backend._call(module, [torch.ones(1)])()
    assert cuda.calls == []


def test_a_worker_goes_on_after_it(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that cannot run is not kept; the ones before and after it are."""
    from microbench.worker import Worker

    worker = Worker("torch", "gpu")
    full = [False]
    settled: list[str] = []

    def settle(call: Any, clock: Any) -> float:
        if full[0]:
            raise MeasuringError("the device's memory does not suffice: CUDA out of memory")
        settled.append("settled")
        return 1.0

    monkeypatch.setattr("microbench.worker.settle", settle)
    job = {"graph": small().to_dict(), "batch_size": 1}
    worker.answer({"do": "prepare", "key": "a", "job": job})
    full[0] = True
    with pytest.raises(MeasuringError):
        worker.answer({"do": "prepare", "key": "b", "job": job})
    assert set(worker.calls) == {"a"}
    assert worker.answer({"do": "memory"}) == {"available_bytes": (3 << 30) + (1 << 30) - (1 << 28)}
