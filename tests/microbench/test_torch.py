"""The PyTorch backend: its options, environment and memory, a stand-in for CUDA, users' networks."""

from __future__ import annotations

import copy
import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lolat.errors import DeviceError
from microbench.backends import create
from microbench.backends import torch as torch_cuda
from tests.microbench.fakes import small
from tests.processes import python

torch: Any = pytest.importorskip("torch")
torch_networks: Any = importlib.import_module("examples.torch_networks")

# ---- options and environment ---------------------------------------------------------------------


def test_every_batch_size_is_compiled_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda m, **options: compiled.append(options) or m)
    with torch._dynamo.config.patch(recompile_limit=8):
        create("torch+compile", "cpu").prepare_graph(small(), 2)
        assert compiled == [{"dynamic": False}]
        limit = torch._dynamo.config.recompile_limit
        assert limit >= 1000, "else the ninth batch size is not compiled"


@pytest.mark.slow
@pytest.mark.parametrize("options", ["compile", "half", "channels_last", "channels_last+half"])
def test_options_really_run(options: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes out is what the plain module makes of the same input, with the same weights."""
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


def test_the_gpu_is_hidden_where_the_cpu_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    create("torch", "cpu")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "-1"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    create("torch", "cpu")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "1"


MANY_SHAPES = """
import sys
from microbench.backends import KERNELS_KEPT, create
create("torch", "cpu")
import torch
x = torch.ones(1, 64, 40, 40)
kernel = torch.ones(16, 64, 3, 3)
with torch.no_grad():
    for again in range(2):
        print("again", again, flush=True)
        for n in range(400):  # a convolution and what puts its tensors into order
            torch.nn.functional.conv2d(x[:, :, : 20 + n // 20, : 20 + n % 20].contiguous(), kernel)
"""


@pytest.mark.slow
def test_code_that_a_shape_needs_is_made_once() -> None:
    """oneDNN says what it makes: nothing the second time, however many shapes ran in between."""
    if not torch_has_onednn():
        pytest.skip("this PyTorch has no oneDNN")
    found = python(MANY_SHAPES, env={**os.environ, "ONEDNN_VERBOSE": "profile_create"})
    first, second = found.stdout.split("again 1")
    assert first.count("create:cache_miss") > 1024, found.stderr
    assert "create:cache_miss" not in second
    assert second.count("create:cache_hit") > 1024


def torch_has_onednn() -> bool:
    """Whether PyTorch convolves by oneDNN here."""
    import torch

    return bool(torch.backends.mkldnn.is_available())


# ---- a GPU, and its memory, with a stand-in for CUDA: tensors lie on the host

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


def test_free_memory_is_what_the_device_and_pytorch_have_left(cuda: FakeCuda) -> None:
    backend = create("torch", "gpu")
    assert backend.available_bytes() == (3 << 30) + (1 << 30) - (1 << 28)


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


# ---- users' networks

PUBLISHED = {  # parameters, GMACs at 224 x 224: torchvision's documentation; ViT-Ti: timm's
    "resnet50": (25_557_032, 4.09),
    "resnext50": (25_028_904, 4.23),
    "mobilenet_v2": (3_504_872, 0.30),
    "efficientnet_b0": (5_288_548, 0.39),
    "shufflenet_v2": (2_278_604, 0.14),
    "densenet121": (7_978_856, 2.83),
    "vgg16": (138_357_544, 15.47),
    "convnext_tiny": (28_589_128, 4.46),
    "vit_tiny": (5_717_416, 1.25),
    "unet": (7_763_074, 9.24),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_example_is_the_published_network(name: str) -> None:
    """By PyTorch's own counter, which has two for a multiplication and an addition."""
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        model = getattr(torch_networks, name)().eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, 224, 224))
    found = sum(p.numel() for p in model.parameters())
    assert (found, round(counter.get_total_flops() / 2e9, 2)) == PUBLISHED[name]


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
    assert all(np.shares_memory(a, b.numpy()) for a, b in zip(call.inputs, inputs, strict=True))
    return module, inputs


def test_a_module_is_run_as_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, (x,) = run(monkeypatch, "", "own_torch_networks:tiny", (9,), 4)
    assert tuple(x.shape) == (4, 3, 9, 9)
    assert not any(m.training for m in module.modules())
    module, (x,) = run(monkeypatch, "+half+channels_last", "own_torch_networks:tiny", (3, 9, 7), 2)
    assert tuple(x.shape) == (2, 3, 9, 7)
    assert x.dtype == next(module.parameters()).dtype == torch.float16
    assert x.is_contiguous(memory_format=torch.channels_last)


def test_indices_stay_indices(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, (x,) = run(monkeypatch, "+half", "own_torch_networks:tokens", (6,), 3)
    assert (tuple(x.shape), x.dtype) == ((3, 6), torch.int64)
    _, (image, text) = run(monkeypatch, "", "own_torch_networks:two", (), 3)
    assert (tuple(image.shape), tuple(text.shape)) == ((3, 3, 8, 8), (3, 5))
