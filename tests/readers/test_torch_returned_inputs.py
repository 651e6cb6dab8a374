"""Inputs that a function returns beside its network: what is wrong with them is told of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import lolat
from lolat.errors import NetworkError
from lolat.graph.counts import count
from lolat.readers import read
from tests.readers.counting import refused, total
from tests.readers.torch_networks import Does


@pytest.mark.parametrize(
    ("layer", "example", "remedy"),
    [
        (torch.nn.Conv2d(3, 8, 3), torch.zeros(3, 64, 64), "the batch: torch.zeros(1, 3, 64, 64)"),
        (torch.nn.Linear(8, 8), torch.zeros(8), "the batch: torch.zeros(1, 8)"),
        (torch.nn.Conv2d(3, 8, 3), torch.zeros(1, 3, 9, 9, dtype=torch.uint8),
         "make its input floating point, as in torch.zeros(1, 3, 9, 9)"),
        (torch.nn.Linear(8, 8), torch.zeros(1, 9), "returned beside it: mend them there"),
    ],
)  # fmt: skip
def test_wrong_inputs_are_mended_where_they_are(layer: Any, example: Any, remedy: str) -> None:
    with pytest.raises(NetworkError) as found:
        read((torch.nn.Sequential(layer), example))
    assert str(found.value).endswith(remedy)
    assert "input_size" not in str(found.value)


@pytest.mark.parametrize("samples", [1, 4])
def test_a_mask_of_steps_beside_steps_first_is_no_batch(samples: int) -> None:
    """The products of PyTorch's own run of one sample, as in its tutorial on language models."""
    layer = nn.TransformerEncoderLayer(16, 2, 32)
    network = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    mask = nn.Transformer.generate_square_subsequent_mask(9)
    plain = sdpa_kernel(SDPBackend.MATH)  # whose products the counter knows
    with FlopCounterMode(display=False) as counter, torch.enable_grad(), plain:  # not its fast path
        network(torch.zeros(9, 1, 16), mask)
    graph = lolat.read((network, (torch.zeros(9, samples, 16), mask)))
    assert 2 * count(graph).total(1).flops == counter.get_total_flops()
    assert any("the batch is the second axis" in w for w in graph.warnings)


NESTED = {
    "nested": lambda m, x: m.one(torch.nested.nested_tensor([x[0], x[0]]).to_padded_tensor(0.0)),
    "jagged": lambda m, x: m.one(torch.nested.as_nested_tensor([*x], layout=torch.jagged)),
}


@pytest.mark.parametrize("name", NESTED)
def test_nested_tensors_are_refused_by_name(name: str) -> None:
    network = Does(NESTED[name], one=nn.Linear(8, 8))
    refused((network, torch.zeros(1, 3, 8)), "torch.nested", "padded to one length")


def test_inputs_on_another_device_than_the_weights_are_refused_with_the_mend() -> None:
    nested = torch.nested.nested_tensor([torch.zeros(3, 8)])
    refused((nn.Linear(8, 8), nested), "torch.nested", "padded to one length")
    network = nn.Linear(8, 8).to("meta")
    refused((network, torch.zeros(1, 8)), "cpu and meta", "make its inputs on the device meta too")
    assert total(lolat.read((network, torch.zeros(1, 8, device="meta")))).flops == 64


def test_buffers_of_the_batch_of_an_example_are_named() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("cache", torch.zeros(8, 5, 4))

        def forward(self, x: Any) -> Any:
            return self.cache.index_copy(1, torch.tensor([2]), x)

    with pytest.raises(NetworkError, match="made for one of 8: make them for 1"):
        lolat.read((Cached(), torch.zeros(8, 1, 4)))


def test_a_graph_of_nodes_needs_a_leading_axis() -> None:
    """Its first axis is the nodes; with an axis of one in front the sizes are those of the example."""

    class Convolution(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(16, 8)

        def forward(self, x: Any, edges: Any) -> Any:
            y = self.layer(x)
            return torch.zeros_like(y).index_add_(0, edges[1], y[edges[0]])

    class Leading(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Convolution()

        def forward(self, x: Any, edges: Any) -> Any:
            return self.inner(x[0], edges[0])[None]

    x, edges = torch.zeros(50, 16), torch.zeros(2, 300, dtype=torch.long)
    told = " ".join(lolat.read((Convolution(), (x, edges))).warnings)
    assert "leading axis of 1" in told
    graph = lolat.read((Leading(), (x[None], edges[None])))
    assert count(graph).total(1).flops == 50 * 16 * 8
