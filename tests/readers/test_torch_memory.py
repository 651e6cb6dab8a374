"""Bytes of a module's weights, of which some are in buffers or of other data types, against PyTorch's."""

from __future__ import annotations

from typing import Any

import pytest

import lolat
from lolat.graph.modes import DEFAULT_MODE, Mode
from lolat.graph.weights import parameters, weights_bytes
from lolat.optimizers import OPTIMIZERS
from lolat.training.memory import memory_at_peak, numbers_of
from lolat.training.recipe import recipe_for

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional


class Int8(nn.Module):
    """A dense layer of one's own whose weight is a buffer of integers."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.zeros(features, features, dtype=torch.int8))
        self.register_buffer("scale", torch.ones(features))

    def forward(self, x: Any) -> Any:
        return F.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)


class Table(nn.Module):
    """A table that is looked up, and a dense layer; `kind`: what holds the table."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        table = torch.zeros(3000, 64)
        if kind == "buffer":
            self.register_buffer("table", table)
        elif kind == "attribute":
            self.table = table
        elif kind == "float8":
            self.register_buffer("table", table.to(torch.float8_e4m3fn))
        elif kind == "integers":
            self.table = nn.Parameter(table.to(torch.int8), requires_grad=False)
        else:
            self.table = nn.Parameter(table.half() if kind == "half" else table)
        self.last = nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        return self.last(self.table[x].to(self.last.weight.dtype))


TOKENS = torch.zeros(1, 8, dtype=torch.int64)
NETWORKS = {
    "int8": lambda: (nn.Sequential(Int8(256), nn.Linear(256, 10)), torch.rand(1, 256)),
    "buffer": lambda: (Table("buffer"), TOKENS),
    "parameter": lambda: (Table("parameter"), TOKENS),
    "half": lambda: (Table("half"), TOKENS),
    "integers": lambda: (Table("integers"), TOKENS),
    "normalized": lambda: (
        nn.Sequential(nn.Conv2d(3, 64, 3), nn.BatchNorm2d(64)), torch.rand(1, 3, 8, 8),
    ),
}  # fmt: skip


def held(module: Any) -> int:
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))


@pytest.mark.parametrize("name", NETWORKS)
def test_weights_take_the_bytes_of_the_module(name: str) -> None:
    module, x = NETWORKS[name]()
    graph = lolat.read((module, (x,)))
    assert weights_bytes(graph) == pytest.approx(held(module), rel=0.02)
    assert weights_bytes(graph, Mode("amp")) == pytest.approx(held(module), rel=0.02)
    assert weights_bytes(graph, Mode("float16")) == pytest.approx(held(module.half()), rel=0.02)


def test_a_tensor_that_is_no_buffer_takes_its_bytes() -> None:
    """`Module.half` leaves it in float32; LoLat's half precision does not."""
    graph = lolat.read((Table("attribute"), (TOKENS,)))
    assert weights_bytes(graph) == weights_bytes(graph, Mode("amp")) == 4 * (64 * 65 + 3000 * 64)


class Shown(nn.Module):
    """A layer that keeps its last result for a plot."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 4096)

    def forward(self, x: Any) -> Any:
        self.last = self.layer(x)
        return self.last


def test_a_result_that_a_module_keeps_is_no_weight() -> None:
    module = Shown()
    assert weights_bytes(lolat.read((module, (torch.rand(1, 64),)))) == held(module)


def test_weights_in_float8_stay_so_in_every_mode() -> None:
    graph, table = lolat.read((Table("float8"), (TOKENS,))), 3000 * 64
    for mode, each in ((DEFAULT_MODE, 4), (Mode("amp"), 4), (Mode("float16"), 2)):
        assert weights_bytes(graph, mode) == each * 64 * 65 + table


def test_a_buffer_is_no_parameter_and_stays_in_training() -> None:
    graph = lolat.read((Table("buffer"), (TOKENS,)))
    assert parameters(graph) == 64 * 65
    recipe = recipe_for(graph, OPTIMIZERS["sgd"], DEFAULT_MODE)
    parts = memory_at_peak(graph, 4, recipe, DEFAULT_MODE)[1]
    assert parts["weights"] == 4 * (64 * 65 + 3000 * 64)


class MelBank(nn.Module):
    """Sounds through a bank of filters and a blur, both in buffers, and a layer that learns."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bank", torch.rand(65, 40))
        self.register_buffer("blur", torch.rand(40, 1, 3))
        self.positions = nn.Parameter(torch.zeros(40, 1))
        self.last = nn.Linear(40, 10)

    def forward(self, x: Any) -> Any:
        x = (x @ self.bank).transpose(1, 2) + self.positions
        return self.last(F.conv1d(x, self.blur, groups=40).mean(-1))


def test_a_buffer_takes_bytes_and_is_no_parameter() -> None:
    module = MelBank()
    graph = lolat.read((module, (torch.rand(1, 100, 65),)))
    assert parameters(graph) == sum(p.numel() for p in module.parameters())
    assert weights_bytes(graph) == held(module)
    frozen = numbers_of(graph).frozen
    assert frozen == module.bank.numel() + module.blur.numel()
