"""Small PyTorch networks in the styles of torchvision and timm, for the reader's tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from lolat.graph import Graph
from lolat.graph.counts import Count
from lolat.readers.torch import read_model
from tests.readers.counting import kinds as kinds
from tests.readers.counting import total as total


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


# ---- ResNet ------------------------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """torchvision's: the stride is in the 3x3."""

    def __init__(self, inside: int, width: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if stride > 1 or inside != 4 * width:
            self.downsample = nn.Sequential(
                nn.Conv2d(inside, 4 * width, 1, stride, bias=False), nn.BatchNorm2d(4 * width)
            )

    def forward(self, x: Any) -> Any:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    """torchvision's, of bottlenecks."""

    def __init__(self, depths: tuple[int, ...] = (3, 4, 6, 3), classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        inside = 64
        for stage, depth in enumerate(depths):
            blocks = []
            for i in range(depth):
                blocks.append(Bottleneck(inside, 64 << stage, 2 if i == 0 and stage else 1))
                inside = 4 * (64 << stage)
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.stages = len(depths)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inside, classes)

    def forward(self, x: Any) -> Any:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        for stage in range(self.stages):
            x = getattr(self, f"layer{stage + 1}")(x)
        return self.fc(torch.flatten(self.avgpool(x), 1))


def resnet50() -> nn.Module:
    """ResNet-50 as torchvision has it."""
    return ResNet()


# ---- MobileNet, EfficientNet --------------------------------------------------------------------------


class SqueezeExcite(nn.Module):
    """torchvision's: a gate of each channel from the mean of all."""

    def __init__(self, channels: int, reduced: int, act: type[nn.Module], gate: type[nn.Module]):
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, reduced, 1)
        self.fc2 = nn.Conv2d(reduced, channels, 1)
        self.activation = act()
        self.scale_activation = gate()

    def forward(self, x: Any) -> Any:
        scale = self.activation(self.fc1(self.avgpool(x)))
        return self.scale_activation(self.fc2(scale)) * x


class InvertedResidual(nn.Module):
    """Expand, depthwise, squeeze-excite, project; added to the input where the shapes allow."""

    def __init__(
        self, inside: int, outside: int, expand: int = 6, stride: int = 1, kernel: int = 3,
        reduced: int = 0, act: type[nn.Module] = nn.ReLU6, gate: type[nn.Module] = nn.Sigmoid,
    ) -> None:  # fmt: skip
        super().__init__()
        width = inside * expand
        self.use_res_connect = stride == 1 and inside == outside
        layers: list[nn.Module] = [
            nn.Conv2d(inside, width, 1, bias=False), nn.BatchNorm2d(width), act(),
            nn.Conv2d(width, width, kernel, stride, kernel // 2, groups=width, bias=False),
            nn.BatchNorm2d(width), act(),
        ]  # fmt: skip
        if reduced:
            layers.append(
                SqueezeExcite(width, reduced, nn.ReLU if act is nn.Hardswish else act, gate)
            )
        layers += [nn.Conv2d(width, outside, 1, bias=False), nn.BatchNorm2d(outside)]
        self.conv = nn.Sequential(*layers)

    def forward(self, x: Any) -> Any:
        return x + self.conv(x) if self.use_res_connect else self.conv(x)


def mobilenet(
    act: type[nn.Module] = nn.ReLU6, reduced: int = 0, gate: Any = nn.Sigmoid
) -> nn.Module:
    """A small MobileNetV2; with hard swish and squeeze-excite V3, with SiLU and both an EfficientNet."""
    options: dict[str, Any] = {"act": act, "reduced": reduced, "gate": gate}
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), act(),
        InvertedResidual(16, 24, stride=2, **options), InvertedResidual(24, 24, **options),
        InvertedResidual(24, 32, stride=2, kernel=5, **options),
        nn.Conv2d(32, 64, 1, bias=False), nn.BatchNorm2d(64), act(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 10),
    )  # fmt: skip


def mobilenet_v3() -> nn.Module:
    """Hard swish, squeeze-excite with a hard sigmoid."""
    return mobilenet(nn.Hardswish, 16, nn.Hardsigmoid)


def efficientnet() -> nn.Module:
    """SiLU, squeeze-excite."""
    return mobilenet(nn.SiLU, 8)


# ---- DenseNet, ShuffleNet, U-Net ----------------------------------------------------------------------


class DenseLayer(nn.Module):
    """torchvision's: it gets all the outputs so far and concatenates them itself."""

    def __init__(self, inside: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(inside), nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(inside, 4 * growth, 1, bias=False)
        self.norm2, self.relu2 = nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Any]) -> Any:
        x = self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))
        return self.conv2(self.relu2(self.norm2(x)))


class DenseBlock(nn.ModuleDict):
    """Layers that read everything before them."""

    def __init__(self, layers: int, inside: int, growth: int) -> None:
        super().__init__()
        for i in range(layers):
            self.add_module(f"denselayer{i + 1}", DenseLayer(inside + i * growth, growth))

    def forward(self, x: Any) -> Any:
        features = [x]
        for layer in self.values():
            features.append(layer(features))
        return torch.cat(features, 1)


def densenet() -> nn.Module:
    """Two dense blocks and the transition between them."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1, bias=False), DenseBlock(3, 16, 8),
        nn.BatchNorm2d(40), nn.ReLU(inplace=True), nn.Conv2d(40, 20, 1, bias=False), nn.AvgPool2d(2, 2),
        DenseBlock(2, 20, 8), nn.BatchNorm2d(36), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(36, 10),
    )  # fmt: skip


class ShuffleUnit(nn.Module):
    """torchvision's ShuffleNetV2 unit of stride 1: half the channels pass, then both are shuffled."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch2 = nn.Sequential(
            nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True),
            nn.Conv2d(half, half, 3, 1, 1, groups=half, bias=False), nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1, bias=False), nn.BatchNorm2d(half), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        x1, x2 = x.chunk(2, dim=1)
        x = torch.cat((x1, self.branch2(x2)), dim=1)
        n, c, h, w = x.size()
        x = torch.transpose(x.view(n, 2, c // 2, h, w), 1, 2).contiguous()
        return x.view(n, c, h, w)


def shufflenet() -> nn.Module:
    """A stem, two units, a head that takes the mean."""
    return Does(
        lambda m, x: m.fc(m.units(m.stem(x)).mean([2, 3])),
        stem=nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()),
        units=nn.Sequential(ShuffleUnit(16), ShuffleUnit(16)),
        fc=nn.Linear(16, 10),
    )


class UNet(nn.Module):
    """Two levels and a bridge."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = self.double(3, 8), self.double(8, 16)
        self.pool = nn.MaxPool2d(2)
        self.bridge = self.double(16, 32)
        self.up2, self.conv2 = nn.ConvTranspose2d(32, 16, 2, 2), self.double(32, 16)
        self.up1, self.conv1 = nn.ConvTranspose2d(16, 8, 2, 2), self.double(16, 8)
        self.head = nn.Conv2d(8, 2, 1)

    @staticmethod
    def double(inside: int, outside: int) -> nn.Module:
        """Two convolutions."""
        return nn.Sequential(
            nn.Conv2d(inside, outside, 3, padding=1), nn.ReLU(inplace=True),
            nn.Conv2d(outside, outside, 3, padding=1), nn.ReLU(inplace=True),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        a = self.down1(x)
        b = self.down2(self.pool(a))
        c = self.bridge(self.pool(b))
        y = self.conv2(torch.cat([self.up2(c), b], 1))
        y = self.conv1(torch.cat([self.up1(y), a], 1))
        return {"mask": self.head(y)}


# ---- ConvNeXt, ViT, Swin ------------------------------------------------------------------------------


class ConvNeXtBlock(nn.Module):
    """torchvision's: channels last between the depthwise convolution and the addition."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, 7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1, self.act = nn.Linear(dim, 4 * dim), nn.GELU()
        self.pwconv2 = nn.Linear(4 * dim, dim)
        self.gamma = nn.Parameter(torch.ones(dim))

    def forward(self, x: Any) -> Any:
        shortcut = x
        x = self.dwconv(x).permute(0, 2, 3, 1)
        x = self.pwconv2(self.act(self.pwconv1(self.norm(x))))
        return shortcut + (self.gamma * x).permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    """A stem with a layer norm of channels first, two blocks, a head."""

    def forward(m: Any, x: Any) -> Any:
        x = F.layer_norm(m.stem(x).permute(0, 2, 3, 1), (16,)).permute(0, 3, 1, 2)
        return m.fc(m.norm(m.blocks(x).mean([-2, -1])))

    return Does(
        forward, stem=nn.Conv2d(3, 16, 4, 4), blocks=nn.Sequential(ConvNeXtBlock(16), ConvNeXtBlock(16)),
        norm=nn.LayerNorm(16), fc=nn.Linear(16, 10),
    )  # fmt: skip


class ViTBlock(nn.Module):
    """Attention and a perceptron, each behind a normalization."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attention = nn.MultiheadAttention(dim, heads, dropout=0.1, batch_first=True)
        wide, narrow = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.mlp = nn.Sequential(wide, nn.GELU(), nn.Dropout(0.1), narrow, nn.Dropout(0.1))

    def forward(self, x: Any) -> Any:
        y = self.ln_1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.ln_2(x))


def vit() -> nn.Module:
    """Patches, positions, two blocks, the mean of all tokens."""

    def forward(m: Any, x: Any) -> Any:
        x = m.conv_proj(x).flatten(2).transpose(1, 2)
        x = m.encoder(x + m.positions)
        return m.head(m.norm(x).mean(1))

    return Does(
        forward, conv_proj=nn.Conv2d(3, 24, 8, 8), positions=nn.Parameter(torch.zeros(1, 16, 24)),
        encoder=nn.Sequential(ViTBlock(24, 3), ViTBlock(24, 3)), norm=nn.LayerNorm(24),
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
    "resnet": (lambda: ResNet((2, 1)), 64), "mobilenet": (mobilenet, 32),
    "mobilenet_v3": (mobilenet_v3, 32), "efficientnet": (efficientnet, 32), "densenet": (densenet, 16),
    "shufflenet": (shufflenet, 32), "unet": (UNet, 16), "convnext": (convnext, 32), "vit": (vit, 32),
    "swin": (swin, 32),
}  # fmt: skip
"""The module, and the size of its images."""


@functools.cache
def in_torch(name: str) -> Graph:
    """The graph of a module of NETWORKS."""
    make, size = NETWORKS[name]
    return graph_of(make, (3, size, size))
