"""The PyTorch backend: its options, environment and memory, a stand-in for CUDA, users' networks."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lolat.microbench.backends import create
from lolat.microbench.backends import torch as torch_cuda
from tests.microbench.fakes import small

torch: Any = pytest.importorskip("torch")

# ---- options and environment ---------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("options", ["compile", "half", "channels_last", "channels_last+half"])
def test_options_really_run(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is that of the plain module with the same input and weights."""
    backend: Any = create(f"torch+{options}", "cpu")
    plain, _ = create("torch", "cpu").block(small(), 1)  # type: ignore[attr-defined]
    graphs: list[Any] = []
    real = torch.compile

    def compile(module: Any, **given: Any) -> Any:
        return real(
            module, backend=lambda graph, inputs: graphs.append(graph) or graph.forward, **given
        )

    monkeypatch.setattr(torch, "compile", compile)
    module = backend.with_options(copy.deepcopy(plain))
    for batch_size in (1, 2):
        x = torch.randn(batch_size, 3, 8, 8)
        with torch.inference_mode():
            (expected,), (out,) = plain(x), module(backend.on_device(x))
        assert out.dtype == (torch.float16 if "half" in options else torch.float32)
        assert out.is_contiguous(memory_format=torch.channels_last) == ("last" in options)
        torch.testing.assert_close(out.float(), expected, rtol=1e-2, atol=1e-2)
    assert len(graphs) == (2 if options == "compile" else 0), "compiled, once for each batch size"


# ---- a GPU, and its memory, with a stand-in for CUDA: tensors lie on the host


def test_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 GiB, of which PyTorch holds one and uses a quarter of that; a call is over when it is done."""
    waits: list[str] = []
    cuda: Any = SimpleNamespace(
        is_available=lambda: True,
        mem_get_info=lambda place: (3 << 30, 4 << 30),
        memory_reserved=lambda place: 1 << 30,
        memory_allocated=lambda place: 1 << 28,
        get_device_name=lambda place: "NVIDIA T4",
        synchronize=waits.append,
    )
    real = torch.cuda
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(torch_cuda, "PLACE", "cpu")
    backend = create("torch+half", "gpu")
    where = backend.environment()
    assert (where["device_name"], where["half"]) == ("NVIDIA T4", True)
    assert backend.available_bytes() == (3 << 30) + (1 << 30) - (1 << 28)
    monkeypatch.setattr(torch, "cuda", real)
    call = backend.prepare_graph(small(), 2)
    assert waits == [], "nothing was run yet"
    call()
    call()
    assert waits == ["cpu"] * 2


# ---- users' networks

NETWORKS = """
import torch
from torch import nn

class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out = nn.Embedding(10, 4), nn.Linear(4, 2)
    def forward(self, image, text):
        return self.out(self.table(text).mean(1)) + image.mean((1, 2, 3))[:, None]

def tiny():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.ReLU())

def tokens():
    return nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 2))

def two():
    return Two(), (torch.zeros(1, 3, 8, 8), torch.zeros(1, 5, dtype=torch.int64))

def steps():
    return nn.LSTM(8, 4)

def brain():
    return tiny().bfloat16(), torch.zeros(1, 3, 9, 9, dtype=torch.bfloat16)

"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_torch_networks.py").write_text(NETWORKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_torch_networks", raising=False)
    return tmp_path


def run(
    monkeypatch: pytest.MonkeyPatch, options: str, spec: str, size: tuple[int, ...], batch_size: int
) -> tuple[Any, list[Any]]:
    """(module, inputs) of a network's call, which is called once too."""
    seen: list[Any] = []
    backend: Any = create(f"torch{options}", "cpu")
    monkeypatch.setattr(
        backend,
        "with_options",
        lambda m, real=backend.with_options: seen.append(real(m)) or seen[0],
    )
    call = backend.prepare_network(spec, size, batch_size)
    seen[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs))
    call()
    module, inputs = seen
    call.touch()
    assert [a.ctypes.data for a in call.inputs] == [b.data_ptr() for b in inputs]
    assert [a.nbytes for a in call.inputs] == [b.nbytes for b in inputs]
    return module, inputs


def test_a_module_is_run_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, (x,) = run(monkeypatch, "", "own_torch_networks:tiny", (9,), 4)
    assert tuple(x.shape) == (4, 3, 9, 9)
    assert not any(m.training for m in module.modules())
    module, (x,) = run(monkeypatch, "+half+channels_last", "own_torch_networks:tiny", (3, 9, 7), 2)
    assert tuple(x.shape) == (2, 3, 9, 7)
    assert x.dtype == next(module.parameters()).dtype == torch.float16
    assert x.is_contiguous(memory_format=torch.channels_last)
    module, (x,) = run(monkeypatch, "", "own_torch_networks:steps", (5, 8), 2)
    assert tuple(x.shape) == (5, 2, 8)  # the batch is its second axis


def test_a_network_in_bfloat16(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, (x,) = run(monkeypatch, "", "own_torch_networks:brain", (), 2)
    assert (tuple(x.shape), x.dtype) == ((2, 3, 9, 9), torch.bfloat16)


def test_indices_stay_indices(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, (x,) = run(monkeypatch, "+half", "own_torch_networks:tokens", (6,), 3)
    assert (tuple(x.shape), x.dtype) == ((3, 6), torch.int64)
    _, (image, text) = run(monkeypatch, "", "own_torch_networks:two", (), 3)
    assert (tuple(image.shape), tuple(text.shape)) == ((3, 3, 8, 8), (3, 5))
