"""Multiply-accumulates and activations per kind of operation, against fvcore's counter."""

from __future__ import annotations

import importlib.util
import logging
from collections import Counter
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from lolat.graph import Graph
from lolat.graph.counts import COLUMNS, count
from lolat.graph.kinds import CONVOLUTIONS
from lolat.readers import read
from lolat.readers.torch.named import without_weights
from tests.readers import torch_networks as nets
from tests.readers.torch_networks import graph_of

KINDS = {"dense": "linear", "matmul": "matmul", "attention": "matmul", "lstm": "lstm"}
PRODUCTS = {"bmm": "matmul", "baddbmm": "matmul", "einsum": "matmul", "addmm": "linear"}
"""fvcore's names of one kind of product -> the name that they are counted under here."""


def macs(graph: Graph) -> Counter[str]:
    """Ours, under fvcore's names."""
    found: Counter[str] = Counter()
    for o, flops in zip(graph.operations, counted(graph, "flops"), strict=True):
        name = "conv" if o.kind in CONVOLUTIONS else KINDS.get(o.kind)
        if name:
            found[name] += flops
    return found


def counted(graph: Graph, name: str) -> list[int]:
    """One count of every operation."""
    return [int(n) for n in count(graph).at(1)[:, COLUMNS.index(name)]]


def analysis(model: Any, inputs: Any, of: str = "FlopCountAnalysis") -> Any:
    """An analysis of fvcore, such as its MACs."""
    pytest.importorskip("fvcore")
    from fvcore import nn

    logging.getLogger("fvcore").setLevel(logging.ERROR)
    found = getattr(nn, of)(model.eval(), inputs).unsupported_ops_warnings(False)
    return found.uncalled_modules_warnings(False).tracer_warnings("none")


def theirs(analyzed: Any) -> Counter[str]:
    """An analysis by operator, matrix products of one kind together."""
    counter: Counter[str] = Counter()
    for name, n in analyzed.by_operator().items():
        counter[PRODUCTS.get(name, name)] += int(n)
    return counter


LARGE = (nets.resnet, nets.mobilenet, nets.shufflenet, nets.convnext, nets.vit, nets.swin)


@pytest.mark.parametrize(
    ("make", "size"), [(nets.densenet, 16), (nets.unet, 16), *((make, 32) for make in LARGE)]
)
def test_convolutions_linear_layers_and_products(make: Callable[[], Any], size: int) -> None:
    model = make()
    ours = graph_of(model, (3, size, size))
    image = torch.zeros(1, 3, size, size)
    flops = theirs(analysis(model, image))
    activations = theirs(analysis(model, image, "ActivationCountAnalysis"))
    if make is nets.vit:  # fvcore does not know the fused operation, so it leaves its products out
        flops["matmul"] = 2 * 2 * 3 * 16 * 16 * 8  # blocks, products, heads, tokens, size
    for name in ("conv", "linear", "matmul"):
        assert macs(ours)[name] == flops[name], name
    assert sum(counted(ours, "acts")) == activations["conv"]


SEED, DRAWN, LARGEST = 15, 3, 12e6
"""The draw of the networks below, their number, and the parameters of the largest."""
NOT_IN_FVCORE = {
    "aten::_convolution_mode": 'a convolution with padding="same" (ConvMixer)',
    "aten::lstm": "an LSTM (Sequencer)",
    "aten::scaled_dot_product_attention": "attention as one operation (most transformers)",
}
"""Products that fvcore does not count; a network that has them is compared with PyTorch alone."""


@pytest.fixture(scope="module")
def drawn() -> list[tuple[str, Any]]:
    """(name, network without weights) of timm's, each from another file of architectures, at random.

    The order is that of a hash of each name and the seed, so that a version of timm with more networks
    changes the draw by those alone.
    """
    if importlib.util.find_spec("timm") is None:
        pytest.skip("could not import 'timm'")
    read("timm:resnet18", 64)  # imports timm
    import timm

    names = sorted(timm.list_models(), key=lambda n: sha256(f"{SEED} {n}".encode()).digest())
    found: dict[str, tuple[str, Any]] = {}
    for name in names:
        family = timm.model_entrypoint(name).__module__
        if family in found:
            continue
        model = without_weights(lambda name=name: timm.create_model(name)).requires_grad_(False)
        if sum(p.numel() for p in model.parameters()) <= LARGEST:
            for parameter in model.parameters():  # what lay in memory may be slow to multiply
                parameter.zero_()
            found[family] = name, model
        if len(found) == DRAWN:
            break
    return list(found.values())


@pytest.mark.slow
@pytest.mark.parametrize("at", range(DRAWN))
def test_timm_at_random(drawn: list[tuple[str, Any]], at: int) -> None:
    """A network read by its name has what PyTorch counts of it run, within 3 %, and so what fvcore counts.

    Neither of the two figures has norms and pools, which fvcore counts too.
    """
    name, model = drawn[at]
    ours = count(read(f"timm:{name}")).total(1).flops
    image = torch.zeros(1, *model.default_cfg["input_size"])
    analyzed = analysis(model, image)
    found = theirs(analyzed)
    if NOT_IN_FVCORE.keys().isdisjoint(analyzed.unsupported_ops()):
        expected = sum(found[kind] for kind in ("conv", "linear", "matmul"))
        assert ours == pytest.approx(expected, rel=0.03), f"{name}, fvcore"
    with FlopCounterMode(display=False) as counter:
        model.to("meta")(image.to("meta"))
    assert 2 * ours == pytest.approx(counter.get_total_flops(), rel=0.03), f"{name}, PyTorch"
