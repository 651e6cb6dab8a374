"""PyTorch's memory; and the path of a GPU with a stand-in for CUDA: tensors lie on the host."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from lolat.errors import DeviceError, MeasuringError
from microbench.backends import create
from microbench.backends import torch as torch_cuda
from microbench.backends.torch import keep_freed_memory
from tests.microbench.fakes import small

torch: Any = pytest.importorskip("torch")


REAL_CUDA = torch.cuda


class FakeCuda:
    """In place of torch.cuda: 4 GiB, of which PyTorch holds one and uses a quarter."""

    OutOfMemoryError = torch.cuda.OutOfMemoryError
    is_available = staticmethod(lambda: True)
    mem_get_info = staticmethod(lambda place: (3 << 30, 4 << 30))
    memory_reserved = staticmethod(lambda place: 1 << 30)
    memory_allocated = staticmethod(lambda place: 1 << 28)
    get_device_name = staticmethod(lambda place: "NVIDIA T4")

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(REAL_CUDA, name)  # what PyTorch itself looks for

    def synchronize(self, place: str) -> None:
        self.calls.append(f"synchronize {place}")

    def empty_cache(self) -> None:
        self.calls.append("empty_cache")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    found = FakeCuda()
    monkeypatch.setattr(torch, "cuda", found)
    monkeypatch.setattr(torch_cuda, "PLACE", "cpu")
    return found


@pytest.mark.parametrize(
    ("built", "hip", "why"),
    [(None, None, "without it"), ("12.8", None, "CUDA 12.8"), (None, "6.2", "CUDA 6.2")],
)
def test_a_gpu_where_there_is_none(
    cuda: Any, monkeypatch: pytest.MonkeyPatch, built: str | None, hip: str | None, why: str
) -> None:
    cuda.is_available = lambda: False
    monkeypatch.setattr(torch, "version", SimpleNamespace(cuda=built, hip=hip))
    with pytest.raises(DeviceError, match=f"no gpu here: .*{why}.*; use .*install a PyTorch with"):
        create("torch", "gpu")


def test_a_call_is_over_when_the_device_is_done(cuda: FakeCuda) -> None:
    call = create("torch", "gpu").prepare_graph(small(), 2)
    assert cuda.calls == [], "nothing was run yet"
    call()
    call()
    assert cuda.calls == ["synchronize cpu"] * 2


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


MEMORY = "the device's memory does not suffice: CUDA out of memory. Tried to allocate 9 GiB"


def test_out_of_memory_in_the_middle_is_one_job_less(cuda: Any) -> None:
    """The cache is emptied when what the failed call held is gone, and the next call works."""
    backend: Any = create("torch", "gpu")
    held: list[Any] = []
    freed: list[bool] = []
    cuda.empty_cache = lambda: freed.append(held[0]() is None)

    def run() -> None:
        if not held:
            large = torch.ones(8)
            held.append(weakref.ref(large))
            raise cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB\nsecond line")

    call = backend.within_memory(run)
    with pytest.raises(MeasuringError) as caught:
        call()
    assert str(caught.value) == MEMORY
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    assert freed == [True]
    call()

    def other() -> None:
        raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        backend.within_memory(other)()
    assert freed == [True], "another error is not taken for it"


def test_out_of_memory_while_building(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*unused: Any) -> None:
        raise cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")

    monkeypatch.setattr("microbench.backends.torch.materialize", full)
    with pytest.raises(MeasuringError, match=MEMORY):
        create("torch", "gpu").prepare_graph(small(), 1)
    assert cuda.calls == ["empty_cache"]


def test_free_memory_is_what_the_device_and_pytorch_have_left(cuda: FakeCuda) -> None:
    assert create("torch", "gpu").available_bytes() == (3 << 30) + (1 << 30) - (1 << 28)


# ---- memory of the host ---------------------------------------------------------------------------

PROGRAM = """
import resource, sys
import numpy as np
from microbench.backends.torch import keep_freed_memory

kept = keep_freed_memory() if sys.argv[1] == "keep" else None
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def call():  # 64 MiB, more than the C library ever keeps by itself
    np.empty(2**23).fill(1.0)
call()
before = faults()
for _ in range(4):
    call()
print(kept, (faults() - before) / 4)
"""


def faults_per_call(how: str) -> tuple[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True
    )
    kept, faults = done.stdout.split()
    return kept, float(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a switch of Linux' C library")
def test_memory_that_was_freed_is_not_fetched_again() -> None:
    _, without = faults_per_call("leave")
    kept, with_switch = faults_per_call("keep")
    if kept == "False":
        pytest.skip("a C library without the switch")
    # Pages are of 4 KiB, or of 2 MiB where the system hands out huge ones.
    assert without >= 64 / 2
    assert with_switch < without / 10


@pytest.mark.parametrize("system", ["darwin", "win32", "linux"])
def test_elsewhere_nothing_is_switched(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    """On Linux with a C library that has no switch either."""
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert keep_freed_memory() is False
