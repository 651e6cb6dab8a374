"""Small PyTorch networks in the styles of torchvision and timm, for the reader's tests."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from examples import torch_networks as parts
from lolat.graph import Graph
from lolat.graph.counts import Count
from lolat.readers.torch import read_model
from tests.readers.counting import kinds as kinds
from tests.readers.counting import total as total


def conv(inside: int = 3, outside: int = 8) -> nn.Module:
    return nn.Conv2d(inside, outside, 3, padding=1)


def graph_of(
    make: Callable[[], nn.Module] | nn.Module, size: Any = (), example: Any = None
) -> Graph:
    """The graph of a module."""
    model = make if isinstance(make, nn.Module) else make()
    return read_model(model, "", size, example)


def counted(make: Any, size: Any = (), batch_size: int = 1, example: Any = None) -> Count:
    """The counts of a module."""
    return total(graph_of(make, size, example), batch_size)


class Does(nn.Module):
    """A module whose forward is a function, with some layers to use in it."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


def does(forward: Any, size: Any, **parts: Any) -> Graph:
    """The graph of a function of (module, input) with parts of the module."""
    return graph_of(Does(forward, **parts), size)


# ---- Small networks of the parts of examples/torch_networks.py --------------------------------------


def resnet() -> nn.Module:
    """Two stages of bottlenecks, under torchvision's names."""
    stages = {
        "stem": nn.Sequential(parts.conv_norm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)),
        "layer1": nn.Sequential(
            parts.Bottleneck(64, 64, 256, 1, 1), parts.Bottleneck(256, 64, 256, 1, 1)
        ),
        "layer2": nn.Sequential(parts.Bottleneck(256, 128, 512, 2, 1)),
        "head": parts.Head(512),
    }
    return nn.Sequential(OrderedDict(stages))


def mobilenet(act: type[nn.Module] = nn.ReLU6, squeeze: bool = False) -> nn.Module:
    """A small MobileNetV2; with hard swish and squeeze-excite a V3, with SiLU an EfficientNet."""
    return nn.Sequential(
        parts.conv_norm(3, 16, 3, 2, act=act),
        parts.InvertedResidual(16, 24, 6, 3, 2, act, squeeze),
        parts.InvertedResidual(24, 24, 6, 3, 1, act, squeeze),
        parts.InvertedResidual(24, 32, 6, 5, 2, act, squeeze),
        parts.conv_norm(32, 64, act=act), parts.Head(64, 10),
    )  # fmt: skip


def mobilenet_v3() -> nn.Module:
    """Hard swish, squeeze-excite."""
    return mobilenet(nn.Hardswish, True)


def efficientnet() -> nn.Module:
    """SiLU, squeeze-excite."""
    return mobilenet(nn.SiLU, True)


def densenet() -> nn.Module:
    """Two dense blocks and the transition between them."""
    layers = [parts.DenseLayer(16, 8), parts.DenseLayer(24, 8), parts.DenseLayer(32, 8)]
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), *layers, nn.BatchNorm2d(40), nn.ReLU(inplace=True),
        nn.Conv2d(40, 20, 1, bias=False), nn.AvgPool2d(2, 2), parts.DenseLayer(20, 8),
        parts.DenseLayer(28, 8), nn.BatchNorm2d(36), nn.ReLU(), parts.Head(36, 10),
    )  # fmt: skip


def shufflenet() -> nn.Module:
    """A stem, two units, a head that takes the mean."""
    return Does(
        lambda m, x: m.fc(m.units(m.stem(x)).mean([2, 3])),
        stem=parts.conv_norm(3, 16, 3, 2),
        units=nn.Sequential(parts.ShuffleUnit(16, 16, 1), parts.ShuffleUnit(16, 16, 1)),
        fc=nn.Linear(16, 10),
    )


def unet() -> nn.Module:
    """Two levels and a bridge."""
    return parts.UNet((8, 16, 32))


def convnext() -> nn.Module:
    """A stem with a layer norm of channels first, two blocks, a head."""
    return Does(
        lambda m, x: m.fc(m.norm(m.blocks(m.stem(x)).mean([-2, -1]))),
        stem=nn.Sequential(nn.Conv2d(3, 16, 4, 4), parts.ChannelNorm(16)),
        blocks=nn.Sequential(parts.ConvNeXtBlock(16), parts.ConvNeXtBlock(16)),
        norm=nn.LayerNorm(16), fc=nn.Linear(16, 10),
    )  # fmt: skip


def vit() -> nn.Module:
    """Patches, positions, two blocks, the mean of all tokens."""

    def forward(m: Any, x: Any) -> Any:
        x = m.conv_proj(x).flatten(2).transpose(1, 2)
        x = m.encoder(x + m.positions)
        return m.head(m.norm(x).mean(1))

    return Does(
        forward, conv_proj=nn.Conv2d(3, 24, 8, 8), positions=nn.Parameter(torch.zeros(1, 16, 24)),
        encoder=nn.Sequential(parts.Encoder(24, 3), parts.Encoder(24, 3)), norm=nn.LayerNorm(24),
        head=nn.Linear(24, 10),
    )  # fmt: skip


class WindowAttention(nn.Module):
    """Swin's: windows cut out of a rolled image, attention with a table of position biases in each."""

    def __init__(self, dim: int, window: int, heads: int, shift: int) -> None:
        super().__init__()
        self.window, self.heads, self.shift = window, heads, shift
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.table = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        self.register_buffer("index", torch.zeros(window**4, dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        b, height, width, c = x.shape
        w, n = self.window, self.window**2
        if self.shift:
            x = torch.roll(x, (-self.shift, -self.shift), (1, 2))
        x = x.view(b, height // w, w, width // w, w, c)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(-1, n, c)
        qkv = self.qkv(x).reshape(x.size(0), n, 3, self.heads, c // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        attn = (q * (c // self.heads) ** -0.5) @ k.transpose(-2, -1)
        bias = self.table[self.index].view(n, n, -1).permute(2, 0, 1).contiguous()
        attn = (attn + bias.unsqueeze(0)).softmax(-1)
        x = self.proj((attn @ v).transpose(1, 2).reshape(-1, n, c))
        x = x.view(b, height // w, width // w, w, w, c)
        x = x.permute(0, 1, 3, 2, 4, 5).reshape(b, height, width, c)
        return torch.roll(x, (self.shift, self.shift), (1, 2)) if self.shift else x


def swin() -> nn.Module:
    """Patches as an image of channels last, two blocks of window attention."""

    def forward(m: Any, x: Any) -> Any:
        x = m.features(x).permute(0, 2, 3, 1)
        x = x + m.attn1(m.norm1(x))
        x = x + m.attn2(m.norm2(x))
        return m.head(x.permute(0, 3, 1, 2).mean([2, 3]))

    return Does(
        forward, features=nn.Conv2d(3, 12, 4, 4), norm1=nn.LayerNorm(12), norm2=nn.LayerNorm(12),
        attn1=WindowAttention(12, 4, 3, 0), attn2=WindowAttention(12, 4, 3, 2), head=nn.Linear(12, 5),
    )  # fmt: skip


def lstm() -> nn.Module:
    """A classifier of text: embedding, two layers of a bidirectional LSTM, the last states."""

    def forward(m: Any, x: Any) -> Any:
        _, (h, _) = m.lstm(m.embedding(x))
        return m.fc(torch.cat([h[-2], h[-1]], 1))

    return Does(
        forward, embedding=nn.Embedding(50, 8),
        lstm=nn.LSTM(8, 6, 2, batch_first=True, bidirectional=True), fc=nn.Linear(12, 3),
    )  # fmt: skip


NETWORKS: dict[str, tuple[Callable[[], Any], int]] = {
    "resnet": (resnet, 64), "mobilenet": (mobilenet, 32),
    "mobilenet_v3": (mobilenet_v3, 32), "efficientnet": (efficientnet, 32), "densenet": (densenet, 16),
    "shufflenet": (shufflenet, 32), "unet": (unet, 16), "convnext": (convnext, 32), "vit": (vit, 32),
    "swin": (swin, 32),
}  # fmt: skip
"""The module, and the size of its images."""


@functools.cache
def in_torch(name: str) -> Graph:
    """The graph of a module of NETWORKS."""
    make, size = NETWORKS[name]
    return graph_of(make, (3, size, size))
