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
