"""Random networks, held against PyTorch's own count of products and against what timm makes of a name.

    python -m benchmarks.fuzz --cases 1000 --seed 1
    python -m benchmarks.fuzz --case quantized:123     # one again

A case fails where an error is not one of LoLat's, where the multiply-accumulates or the outputs are others
than PyTorch's at a batch size of three, where a network that is not trained whole is priced as one, where a
quantized file does not say so, or where a name is answered as another one.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import click
import numpy as np
import torch
from onnxruntime import quantization as ort
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

import lolat
from lolat.errors import InputError, NetworkError
from lolat.graph.counts import count
from lolat.readers.torch.named import import_package, load_torchvision

Draw = random.Random
BATCH = 3
DEVICE = "v100-fp32"


# ---- A network of PyTorch


class Net(nn.Module):
    """Convolutions, a normalization, attention with one of five masks, several outputs.

    `plain`: one output and no attention, for an exporter.
    """

    def __init__(self, draw: Draw, plain: bool) -> None:
        super().__init__()
        width, self.convolutions, self.plain = 3, nn.ModuleList(), plain
        for depth in range(draw.randrange(1, 5)):
            groups = draw.choice([1, 1, width])
            made = groups * draw.choice([1, 2, 8] if groups == 1 else [1, 2])
            kernel, stride = draw.choice([1, 3, 5]), draw.choice([1, 1, 2])
            padding = draw.choice([0 if depth < 2 else kernel // 2, kernel // 2])
            bias = draw.random() < 0.5
            self.convolutions.append(
                nn.Conv2d(width, made, kernel, stride, padding, groups=groups, bias=bias)
            )
            width = made
        self.norm = draw.choice([nn.BatchNorm2d(width), nn.Identity(), nn.GroupNorm(1, width)])
        self.act = draw.choice([nn.ReLU(), nn.SiLU(), nn.GELU(), nn.Hardswish(), nn.Sigmoid()])
        self.heads = draw.choice([1, 2, 4])
        self.qkv = nn.Linear(width, 3 * 4 * self.heads)
        self.mask = draw.choice(["", "bool", "float", "causal", "given"])
        features, outputs = (width, 1) if plain else (4 * self.heads, draw.randrange(1, 4))
        self.out = nn.ModuleList(nn.Linear(features, draw.randrange(2, 9)) for _ in range(outputs))
        self.answer = draw.choice([tuple, list, "dict", "topk"])

    def attend(self, x: Any) -> Any:
        batch, steps, _ = x.shape
        q, k, v = self.qkv(x).view(batch, steps, 3, self.heads, 4).permute(2, 0, 3, 1, 4)
        pairs = torch.ones(steps, steps, dtype=torch.bool)
        given = (x.mean(-1) > 0)[:, None, None, :] | torch.eye(steps, dtype=torch.bool)
        masks = {"bool": pairs.tril(), "float": torch.zeros(steps, steps), "given": given}
        causal = self.mask == "causal"
        y = F.scaled_dot_product_attention(q, k, v, masks.get(self.mask), is_causal=causal)
        return y.transpose(1, 2).reshape(batch, steps, -1)

    def forward(self, x: Any) -> Any:
        for convolution in self.convolutions:
            x = self.act(convolution(x))
        x = self.norm(x)
        if self.plain:
            return self.out[0](x.mean((2, 3)))
        y = self.attend(x.flatten(2).transpose(1, 2))
        made = [head(y.mean(1)) for head in self.out]
        if self.answer == "topk":
            return made + [one.topk(2)[1] for one in made]
        return dict(enumerate(made)) if self.answer == "dict" else self.answer(made)


def module(draw: Draw, frozen: bool = False, plain: bool = False) -> tuple[Any, Any]:
    """(a module, images at batch size BATCH); `frozen`: some weights are not trained."""
    net = Net(draw, plain).eval()
    if frozen:
        parameters = list(net.parameters())
        for parameter in draw.sample(parameters, draw.randrange(1, len(parameters) + 1)):
            parameter.requires_grad = False
    return net, torch.randn(BATCH, 3, draw.randrange(20, 28), draw.randrange(20, 28))


def products(net: Any, x: Any) -> tuple[int, list[tuple[int, ...]]]:
    """(multiply-accumulates as PyTorch counts them, shapes of the outputs) of a run."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        made = pytree.tree_leaves(net(x))
    return counter.get_total_flops() // 2, [tuple(t.shape) for t in made]


def same(graph: Any, expected: tuple[int, list[tuple[int, ...]]]) -> None:
    """AssertionError unless a graph has these products and outputs at batch size BATCH."""
    counted = count(graph)
    assert counted.total(BATCH).flops == expected[0], (counted.total(BATCH).flops, expected[0])
    assert [(BATCH, *s[1:]) for s in graph.shapes(graph.outputs)] == expected[1]


# ---- The kinds of case: each raises AssertionError where something is wrong


def outputs(draw: Draw) -> None:
    """Several outputs, in tuples, lists and dicts, behind attention with every form of mask."""
    net, x = module(draw)
    graph = lolat.read((net, x))
    same(graph, products(net, x))
    again = lolat.read((net, (x[:1],)), tuple(x.shape[1:]))
    assert again.operations == graph.operations
    assert lolat.load(DEVICE).predict(graph, batch_size=BATCH).latency_ms > 0


def frozen(draw: Draw) -> None:
    """Frozen weights change no forward pass, and are not trained; if all are, nothing is."""
    net, x = module(draw, frozen=draw.random() < 0.8)
    graph = lolat.read((net, x))
    same(graph, products(net, x))
    trained = sum(p.numel() for p in net.parameters() if p.requires_grad)
    try:
        cost = lolat.load(DEVICE).cost(graph, batch_size=8, samples=1000)
    except InputError:
        assert not trained
    else:
        assert cost.trained_parameters == trained


def quantized(draw: Draw) -> None:
    """An exported network, quantized by ONNX Runtime in one of its forms, has as many products."""
    net, x = module(draw, plain=True)
    types, channel = draw.choice([ort.QuantType.QInt8, ort.QuantType.QUInt8]), draw.random() < 0.5
    with tempfile.TemporaryDirectory() as folder:
        source, target = str(Path(folder, "float.onnx")), str(Path(folder, "quantized.onnx"))
        torch.onnx.export(
            net, (x[:1],), source, dynamo=False, input_names=["x"], dynamic_axes={"x": {0: "batch"}}
        )
        if draw.random() < 0.4:
            ort.quantize_dynamic(source, target, weight_type=types, per_channel=channel)
        else:
            some = iter([{"x": np.asarray(x[:1])}])
            reader = mock.Mock(ort.CalibrationDataReader, get_next=lambda: next(some, None))
            # Signed weights go with either kind of activation, unsigned ones with unsigned.
            activation = draw.choice([types, ort.QuantType.QUInt8])
            ort.quantize_static(
                source, target, reader, ort.QuantFormat.QDQ, activation_type=activation,
                weight_type=types, per_channel=channel,
            )  # fmt: skip
        graph = lolat.read(target)
    same(graph, products(net, x))
    assert "quantized" in " ".join(count(graph).warnings)


NAMES = [
    "resnet18", "resnet50", "mobilenetv2_100", "mobilenetv3_small_100", "ghostnet_100", "test_vit",
    "efficientnet_b0", "convnext_tiny", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224",
    "regnety_016", "repvgg_a0", "test_resnet", "test_convnext", "test_efficientnet", "convnext_atto",
    "mobilenetv3_large_100", "levit_128s",
]  # fmt: skip


def names(draw: Draw) -> None:
    """A name of timm with a tag of its own, of another network, or none."""
    timm, name = import_package("timm"), draw.choice(NAMES)
    own = timm.list_models(f"{name}.*", include_tags=True) or [name]
    tag = draw.choice(timm.list_models(include_tags=True)).partition(".")[2] or "in1k"
    spoiled = list(draw.choice(own))
    spoiled[draw.randrange(len(spoiled))] = draw.choice("abz019_.-/:")
    spec = draw.choice(
        [name, draw.choice(own), draw.choice(own), f"{name}.{tag}", "".join(spoiled), name.upper(),
         f"hf-hub:timm/{draw.choice(own)}", f"{draw.choice(own)}.{tag}", f"{name}."]
    )  # fmt: skip
    try:
        graph = lolat.read(f"timm:{spec}")
    except NetworkError as error:
        refused = error.code
    else:
        refused = ""
    if refused:
        assert refused == "unknown-network"
        assert spec not in (*own, name)
        return
    former = timm.is_model(spec) and "." not in spec
    assert former or spec in timm.list_models(include_tags=True)
    known = timm.get_pretrained_cfg(spec)
    assert graph.shapes(graph.inputs) == [(1, *known.input_size)]
    # A tag without classes (num_classes 0) gives features.
    assert known.num_classes in (0, graph.shapes(graph.outputs)[0][1])


KINDS: dict[str, Callable[[Draw], None]] = {
    f.__name__: f for f in (outputs, frozen, quantized, names)
}


@click.command()
@click.option("--cases", type=click.IntRange(1), default=400)
@click.option("--seed", default=0)
@click.option("--case", "again", multiple=True, metavar="KIND:SEED", help="These alone.")
def main(cases: int, seed: int, again: tuple[str, ...]) -> None:
    """Run cases; exit code 1 where one fails."""
    os.environ["LOLAT_CACHE"] = "off"
    load_torchvision()
    warnings.simplefilter("ignore")
    kinds = list(KINDS)
    chosen = [c.split(":") for c in again]
    chosen = chosen or [[kinds[i % len(kinds)], str(seed + i)] for i in range(cases)]
    done, bad = Counter[str](), Counter[str]()
    for kind, number in chosen:
        torch.manual_seed(int(number))
        done[kind] += 1
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                KINDS[kind](Draw(f"{kind}:{number}"))
        except Exception as error:
            bad[kind] += 1
            click.echo(f"{kind}:{number} failed: {type(error).__name__}: {str(error)[:300]}")
            if again:
                traceback.print_exc()
    for kind, number in done.items():
        click.echo(f"{kind:10} {number} cases, {bad[kind]} failed")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
