"""Users' networks with the PyTorch backend, the example networks, and a whole tiny run."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.flop_counter import FlopCounterMode

from lolat.graph.blocks import cut
from lolat.graph.counts import count
from lolat.graph.edits import subgraph
from lolat.readers import open_network
from microbench.backends import create
from microbench.backends.torch.layers import block_module

torch: Any = pytest.importorskip("torch")
torch_networks: Any = importlib.import_module("examples.torch_networks")

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
    with torch.device("meta"):
        model = getattr(torch_networks, name)().eval()
        with FlopCounterMode(display=False) as counter:
            model(torch.empty(1, 3, 224, 224))
    found = sum(p.numel() for p in model.parameters())
    assert (found, round(counter.get_total_flops() / 2e9, 2)) == PUBLISHED[name]


LONG = ("densenet121", "efficientnet_b0", "mobilenet_v2", "resnext50")
"""Seconds each to read and to build; the others and the predefined blocks have all that is in them."""


@pytest.mark.parametrize("name", [n for n in PUBLISHED if n not in LONG])
def test_what_is_read_of_an_example_and_its_blocks_can_be_built(name: str) -> None:
    parameters, gmacs = PUBLISHED[name]
    graph = open_network(f"examples.torch_networks:{name}", (224,)).graph()
    counts = count(graph)
    assert counts.warnings == graph.warnings == ()
    assert round(counts.total().flops / 1e9, 2) == gmacs
    made = 0
    for block in cut(graph):  # what benchmarks/zoo/measure.py builds
        module, shapes = block_module(torch, subgraph(graph, block.operations, block.label))
        made += sum(p.numel() for p in module.parameters())
        with torch.device("meta"):
            module(*(torch.empty((2, *s[1:])) for s in shapes))
    assert made > 0.98 * parameters, "but for tokens, positions and scales"


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
