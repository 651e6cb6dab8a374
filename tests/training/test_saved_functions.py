"""Tensors that single functions keep for the backward pass, against those that PyTorch saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import lolat
from tests.training.known import saved_by_pytorch, saved_bytes

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional
BATCH, STEPS, WIDTH = 4, 16, 1000
CHOSEN = (torch.arange(STEPS * 300).reshape(1, STEPS, 300) * 7) % WIDTH


def chosen(y: Any) -> Any:
    return CHOSEN.expand(len(y), STEPS, 300)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda y: y.sum(-1),
    "mean": lambda y: y.mean(-1),
    "var": lambda y: y.var(-1),
    "std": lambda y: y.std(-1),
    "prod": lambda y: y.prod(-1),
    "amax": lambda y: y.amax(-1),
    "max of an axis": lambda y: y.max(-1).values,
    "max of two": lambda y: torch.maximum(y, y.flip(-1)),
    "median": lambda y: y.median(-1).values,
    "logsumexp": lambda y: y.logsumexp(-1) - y[..., 0],
    "norm": lambda y: y.norm(dim=-1),
    "vector norm": lambda y: torch.linalg.vector_norm(y, dim=-1),
    "frobenius norm": lambda y: torch.linalg.norm(y, dim=(-2, -1)),
    "cosine": lambda y: F.cosine_similarity(y, y.flip(1), dim=-1),
    "sort": lambda y: y.sort(-1).values,
    "topk": lambda y: y.topk(400, -1).values,
    "cumsum": lambda y: y.cumsum(-1),
    "cumprod": lambda y: y.cumprod(-1),
    "cummax": lambda y: y.cummax(-1).values,
    "logcumsumexp": lambda y: y.logcumsumexp(-1),
    "addcmul": lambda y: torch.addcmul(y, y.flip(-1), y.flip(1)),
    "gather": lambda y: y.gather(-1, chosen(y)),
    "scatter": lambda y: torch.zeros_like(y).scatter_add(-1, chosen(y), y[..., :300]),
}


class Integers(nn.Module):
    """A frozen kernel of integers with an adapter of rank 8, as in QLoRA."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kernel", torch.zeros(WIDTH, WIDTH, dtype=torch.int8))
        self.down = nn.Linear(WIDTH, 8, bias=False)
        self.up = nn.Linear(8, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        return F.linear(x, self.kernel.to(x.dtype)) + self.up(self.down(x))


REMADE = {
    "weight_norm": lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    "spectral_norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "integers": Integers,
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("kind", REMADE)
def test_a_kernel_that_each_call_computes_is_kept_for_the_gradient_of_its_input(
    kind: str, first: bool
) -> None:
    layers = [REMADE[kind]() for _ in range(2)]
    network = nn.Sequential(*([] if first else [nn.Linear(WIDTH, WIDTH)]), *layers)
    found = saved_bytes(lolat.read((network, (torch.rand(1, WIDTH),))), BATCH)
    assert found == pytest.approx(saved_by_pytorch(network, torch.rand(BATCH, WIDTH)), rel=0.02)


@pytest.mark.parametrize("groups", [1, 64])
def test_so_is_that_of_a_convolution(groups: int) -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(64, 64, 9, padding=4, groups=groups))
    network = nn.Sequential(nn.Conv1d(64, 64, 1), layer)
    found = saved_bytes(lolat.read((network, (torch.rand(1, 64, 32),))), BATCH)
    assert found == pytest.approx(saved_by_pytorch(network, torch.rand(BATCH, 64, 32)), rel=0.02)


class Network(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.first, self.function = nn.Linear(8, WIDTH), function

    def forward(self, x: Any) -> Any:
        return self.function(self.first(x))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_keeps_what_pytorch_saves(name: str) -> None:
    network, x = Network(FUNCTIONS[name]), torch.randn(BATCH, STEPS, 8)
    graph = lolat.read((network, (x,)))
    least = 4 * BATCH * STEPS * WIDTH  # bytes of the linear layer's result
    found, expected = saved_bytes(graph, BATCH), saved_by_pytorch(network, x)
    assert found == pytest.approx(expected, rel=0.05, abs=0.05 * least)
