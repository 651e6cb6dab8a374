"""A training step by PyTorch and by us: multiply-accumulates, trained parameters, saved tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

import lolat
from lolat.graph import Graph
from lolat.graph.backward import backward_of
from lolat.graph.edits import as_trained
from lolat.graph.modes import Mode
from lolat.graph.work import work_of
from lolat.training.memory import numbers_of
from tests.training.known import saved_by_pytorch, saved_bytes

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
BYTES = 0.05
"""Of the saved tensors; those that differ are small, such as the statistics of normalizations."""


class Seen(NamedTuple):
    """What a training step does: multiply-accumulates of both passes, parameters with a gradient, bytes."""

    macs: int
    trained: int
    saved: int


def by_pytorch(network: Any, x: Any) -> Seen:
    """A training step of PyTorch."""
    from torch.utils.flop_counter import FlopCounterMode

    network.train()
    saved = saved_by_pytorch(network, x)
    with FlopCounterMode(display=False) as flops:
        result = network(x)
        result = result if isinstance(result, torch.Tensor) else result[0]
        result.sum().backward()
    trained = sum(p.numel() for p in network.parameters() if p.grad is not None)
    return Seen(flops.get_total_flops() // 2, trained, saved)


def by_us(graph: Graph, batch_size: int) -> Seen:
    work, part = work_of(graph, batch_size, Mode(training=True)), backward_of(graph)
    again = work.macs[~work.backward & part.recomputed[work.operation]].sum()
    saved = saved_bytes(graph, batch_size)
    return Seen(int(work.macs.sum() + again), numbers_of(graph).trained, saved)


def read(network: Any, x: Any) -> Graph:
    return as_trained(lolat.read((network, (x,))))


def agree(network: Any, x: Any, graph: Graph | None = None) -> None:
    found = by_us(graph or read(network, x), len(x))
    expected = by_pytorch(network, x)
    assert found.macs == expected.macs
    assert found.trained == expected.trained
    assert found.saved == pytest.approx(expected.saved, rel=BYTES)


# ---- A network of residual blocks, with an attention of single operations.


class Block(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Any) -> Any:
        query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
        x = x + (query @ key.transpose(-1, -2)).softmax(-1) @ value
        return x + self.down(F.gelu(self.up(x)))


class Blocks(nn.Module):
    """`reentrant`: each block is a checkpoint of that kind; None: none is."""

    def __init__(self, reentrant: bool | None = None) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(8, 32), nn.Linear(32, 10)
        self.blocks, self.reentrant = nn.ModuleList([Block() for _ in range(4)]), reentrant

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


class Dropping(Block):
    """Drops weights of its attention as eager transformers do: at a rate of 0 at inference."""

    def __init__(self) -> None:
        super().__init__()
        self.dropout = 0.1

    def forward(self, x: Any) -> Any:
        query, key, value = self.qkv(self.norm(x)).chunk(3, -1)
        weights = (query @ key.transpose(-1, -2)).softmax(-1)
        weights = F.dropout(weights, self.dropout if self.training else 0.0, self.training)
        x = x + weights @ value
        return x + self.down(F.gelu(self.up(x)))


def trained_only(network: Any, *parts: str) -> Any:
    """Freeze all but the parameters whose names have one of these parts."""
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(any(part in name for part in parts))
    return network
