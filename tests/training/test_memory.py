"""Bytes of a parameter by recipe, against those counted by hand."""

from __future__ import annotations

from typing import Any

import pytest

import lolat
from lolat.graph import GraphBuilder
from lolat.optimizers import OPTIMIZERS
from lolat.training.memory import memory_at_peak
from lolat.training.recipe import Shards, mixed_remarks, recipe_of, state_parts
from lolat.units import byte_size
from tests.allocations import most_bytes
from tests.training.known import live_bytes


@pytest.mark.parametrize(
    ("precision", "optimizer", "weight", "copy", "states", "mixed"),
    [
        ("fp32", "sgd", 4, 0, 0, None), ("tf32", "adam", 4, 0, 8, None), ("amp", "adamw", 4, 2, 8, None),
        ("bf16", "adamw", 2, 0, 4, 16),  # 16 bytes with master weights, as in the ZeRO paper
        ("fp16", "lion", 2, 0, 2, 12), ("amp", "lion", 4, 2, 4, None), ("bf16", "adamw8bit", 2, 0, 2, 10),
        ("fp32", "adamw8bit", 4, 0, 2, None), ("float64", "momentum", 8, 0, 8, None),
    ],
)  # fmt: skip
def test_a_recipe_has_the_bytes_counted_by_hand(
    precision: str, optimizer: str, weight: int, copy: int, states: int, mixed: int | None
) -> None:
    """A gradient has the bytes of its weight."""
    found = recipe_of(precision, OPTIMIZERS[optimizer])
    every = weight, copy, weight, states
    assert (found.weight, found.copy, found.gradient, found.states) == every
    assert f"{sum(every):g} bytes a parameter" in found.words()
    said = [*mixed_remarks(2**30, 2**32, found)]
    assert len(said) == bool(mixed)
    for words in said:
        more = (mixed or 0) - sum(every)
        assert words.endswith(f"is usual, {mixed} bytes: {byte_size(2**32 + more * 2**30)}")


def test_a_frozen_base_of_an_adapter_is_in_bfloat16_and_shards_divide_each_part() -> None:
    """100 parameters of an adapter train, in float32; 1000 of the base rest in two bytes."""
    recipe = recipe_of("amp", OPTIMIZERS["adamw"], half_frozen=True)
    parts = state_parts(recipe, 100, 1000, Shards(1, 4, 4))
    assert parts == {"weights": 4 * 100 + 2 * 1000, "optimizer states": 8 * 100 / 4}


def test_a_slice_that_a_convolution_reads_is_copied_again_for_its_backward_pass() -> None:
    """As PyTorch's profiler has them: the whole, the copy, and two gradients."""
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.whole, self.reader = torch.nn.Conv2d(3, 512, 1), torch.nn.Conv2d(256, 16, 1)

        def forward(self, x: Any) -> Any:
            return self.reader(self.whole(x).chunk(2, 1)[1])

    x = torch.rand(4, 3, 64, 64)
    with torch.backends.mkldnn.flags(enabled=False):
        most = profiled_peak(Network(), x)
    assert peak(Network(), x) == pytest.approx(most, rel=1e-3)


def profiled_peak(network: Any, x: Any) -> int:
    """Most bytes at once beside parameters and input, as PyTorch's profiler has them."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        network(x).sum().backward()
    return most_bytes(seen)


def peak(network: Any, x: Any) -> float:
    """The same by LoLat."""
    recipe = recipe_of("fp32", OPTIMIZERS["sgd"])
    _, parts = memory_at_peak(lolat.read((network, x[:1])), len(x), recipe)
    return sum(parts.values()) - parts["weights"] - x.nbytes


@pytest.mark.parametrize("how", ["indexed", "selected", "twice", "sliced"])
def test_the_gradient_of_an_indexed_parameter_is_there_once(how: str) -> None:
    """One tensor of the table's size; a second use makes another, which is added."""
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Parameter(torch.rand(5000, 64))
            self.head = torch.nn.Linear(64, 8)

        def forward(self, x: Any) -> Any:
            if how == "selected":
                rows = self.table.index_select(0, x.flatten()).view(*x.shape, 64)
            elif how == "sliced":
                rows = self.table[None, : x.shape[1]] * x[..., None]
            else:
                rows = self.table[x]
            return self.head(rows * self.table[x + 1] if how == "twice" else rows)

    x = torch.zeros(4, 9, dtype=torch.int64)
    assert peak(Network(), x) == pytest.approx(profiled_peak(Network(), x), rel=0.02)


def updated_by_pytorch(network: Any, optimizer: str) -> int:
    """Most bytes at once in a later update of torch.optim on a GPU, on tensors that are not computed."""
    torch = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    usual = {
        "momentum": ("SGD", {"momentum": 0.9}),
        "adamw": ("AdamW", {}),
        "rmsprop": ("RMSprop", {}),
    }
    name, more = usual.get(optimizer, (optimizer.capitalize(), {}))
    with FakeTensorMode():
        weights = [
            torch.nn.Parameter(torch.empty(p.shape, dtype=p.dtype, device="cuda"))
            for p in network.parameters()
        ]
        for p in weights:
            p.grad = torch.empty_like(p)
        kind = getattr(torch.optim, name.replace("Sgd", "SGD"))
        made = kind(
            weights, lr=0.1, foreach=True, **more
        )  # the default of tensors that are computed
        made.step()
        states = [[*state.values()] for state in made.state.values()]
        return live_bytes(made.step, weights, [p.grad for p in weights], states)[0]


@pytest.mark.parametrize(
    "optimizer", ["sgd", "momentum", "rmsprop", "adagrad", "adam", "adamw", "adadelta"]
)
def test_the_update_of_a_gpu_has_the_temporaries_of_pytorch(optimizer: str) -> None:
    """They are most where weights outweigh activations; a CPU updates one tensor after the other."""
    torch = pytest.importorskip("torch")
    nn = torch.nn
    network = nn.Sequential(
        nn.Linear(64, 4096), nn.ReLU(), nn.Linear(4096, 1024), nn.Linear(1024, 8)
    )
    x = torch.rand(2, 64)
    graph = lolat.read((network, (x,)))
    cost = lolat.load("a100-fp32").cost(graph, 2, optimizer=optimizer, precision="fp32")
    own = updated_by_pytorch(network, optimizer)
    assert cost.memory_bytes == pytest.approx(own + x.nbytes, rel=2e-3)
    has = optimizer not in ("sgd", "momentum")
    assert (cost.peak == "the update") == has == ("temporaries of the update" in cost.memory)
    least = (OPTIMIZERS[optimizer].states + 2) * 4 * cost.parameters
    assert (
        lolat.load("epyc-2t-torch").cost(graph, 2, optimizer=optimizer).memory_bytes < 1.01 * least
    )


@pytest.mark.parametrize(
    ("sharding", "each"),  # weights, gradients, states, temporaries, and a copy of the gradients
    [("none", 4 + 4 + 8 + 4 + 4), ("zero1", 4 + 4 + 2 + 1 + 4), ("fsdp", 1 + 1 + 2 + 1)],
)
def test_an_update_in_shards_has_temporaries_of_its_own_part(sharding: str, each: int) -> None:
    """Of four devices, in float32 with adam: nothing is gathered then."""
    b = GraphBuilder("net", "torch")
    at = b.input((1, 256))
    for _ in range(32):
        at = b.add("dense", [at], (1, 256), in_features=256, out_features=256, bias=False)
    asked = {"optimizer": "adam", "replicas": 4, "sharding": sharding, "precision": "fp32"}
    found = lolat.load("a100-fp32").cost(b.build([at]), 1, **asked)
    assert found.peak == "the update"
    assert found.memory_bytes == 32 * 256 * 256 * each + 4 * 256
