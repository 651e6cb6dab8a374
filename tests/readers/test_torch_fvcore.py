"""Multiply-accumulates and activations per kind of operation, against fvcore's counter."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch

from lolat.counts import count_operation
from lolat.graph import Graph, is_convolution
from tests.readers import torch_networks as nets
from tests.readers.torch_networks import graph_of

KINDS = {"dense": "linear", "matmul": "matmul", "lstm": "lstm"}


def macs(graph: Graph) -> Counter[str]:
    """Ours, under fvcore's names."""
    found: Counter[str] = Counter()
    for o in graph.operations:
        name = "conv" if is_convolution(o.kind) else KINDS.get(o.kind)
        if name:
            found[name] += count_operation(graph, o).flops
    return found


def theirs(model: Any, inputs: Any) -> tuple[Counter[str], Counter[str]]:
    """(MACs, activations) that fvcore counts, matrix products of all kinds together."""
    pytest.importorskip("fvcore")
    from fvcore.nn import ActivationCountAnalysis, FlopCountAnalysis

    logging.getLogger("fvcore").setLevel(logging.ERROR)
    model = model.eval()
    products = {"bmm": "matmul", "einsum": "matmul", "addmm": "linear"}
    counters = []
    for analysis in (FlopCountAnalysis, ActivationCountAnalysis):
        found = analysis(model, inputs).unsupported_ops_warnings(False)
        found = found.uncalled_modules_warnings(False).tracer_warnings("none")
        counter: Counter[str] = Counter()
        for name, n in found.by_operator().items():
            counter[products.get(name, name)] += int(n)
        counters.append(counter)
    return counters[0], counters[1]


@pytest.mark.parametrize(
    ("make", "size"),
    [
        (lambda: nets.ResNet((1, 1)), 32),
        (nets.mobilenet, 32),
        (nets.densenet, 16),
        (nets.shufflenet, 32),
        (nets.convnext, 32),
        (nets.swin, 32),
    ],
)
def test_convolutions_linear_layers_and_products(make: Callable[[], Any], size: int) -> None:
    model = make()
    ours = graph_of(model, (3, size, size))
    flops, activations = theirs(model, torch.zeros(1, 3, size, size))
    for name in ("conv", "linear", "matmul"):
        assert macs(ours)[name] == flops[name], name
    acts = sum(count_operation(ours, o).acts for o in ours.operations)
    assert acts == activations["conv"]


def test_a_transposed_convolution_is_counted_by_its_inputs() -> None:
    """Every input element is multiplied into kernel x output channels; fvcore agrees."""
    model = nets.UNet()
    ours = graph_of(model, (3, 16, 16))
    flops, _ = theirs(model, torch.zeros(1, 3, 16, 16))
    up = sum(count_operation(ours, o).flops for o in ours.operations if o.kind == "transposed_conv")
    assert up == 8 * 8 * 16 * 8 * 4 + 4 * 4 * 32 * 16 * 4  # positions x channels in, out x kernel
    assert macs(ours)["conv"] == flops["conv"]


def test_attention_is_whole_here() -> None:
    """fvcore does not know the fused operation, so it leaves its two products out."""
    model = nets.vit()
    ours = graph_of(model, (3, 32, 32))
    flops, _ = theirs(model, torch.zeros(1, 3, 32, 32))
    assert macs(ours)["conv"] == flops["conv"]
    assert macs(ours)["linear"] == flops["linear"]
    assert macs(ours)["matmul"] == 2 * 2 * 3 * 16 * 16 * 8  # blocks, products, heads, tokens, size
