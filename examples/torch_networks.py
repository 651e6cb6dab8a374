"""Ten networks in plain PyTorch: `lolat predict MODEL examples.torch_networks:resnet50 --input-size 224`.

They are the published architectures: parameters and multiply-accumulates are torchvision's and timm's.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn


def conv_norm(
    inside: int, out: int, kernel: int = 1, stride: int = 1, groups: int = 1,
    act: type[nn.Module] | None = nn.ReLU,
) -> nn.Sequential:  # fmt: skip
    """Convolution, batch normalization, activation."""
    parts: list[nn.Module] = [
        nn.Conv2d(inside, out, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(out),
    ]
    if act is not None:
        parts.append(act(inplace=True))
    return nn.Sequential(*parts)


class Head(nn.Sequential):
    """Average over all positions, a linear classifier."""

    def __init__(self, features: int, classes: int = 1000) -> None:
        super().__init__(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes))


# ---- residual networks ---------------------------------------------------------------------------


class Bottleneck(nn.Module):
    """1x1, 3x3 with the stride and the groups, 1x1, and the shortcut."""

    def __init__(self, inside: int, mid: int, out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_norm(inside, mid),
            conv_norm(mid, mid, 3, stride, groups),
            conv_norm(mid, out, act=None),
        )
        fits = stride == 1 and inside == out
        self.shortcut = nn.Identity() if fits else conv_norm(inside, out, 1, stride, act=None)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inside, H, W) -> (N, out, H / stride, W / stride)."""
        return self.act(self.body(x) + self.shortcut(x))


def _residual(depths: Sequence[int], groups: int = 1, width: int = 64) -> nn.Module:
    layers: list[nn.Module] = [conv_norm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inside = 64
    for stage, depth in enumerate(depths):
        for i in range(depth):
            stride = 2 if i == 0 and stage > 0 else 1
            out = 256 << stage
            layers.append(Bottleneck(inside, width << stage, out, stride, groups))
            inside = out
    return nn.Sequential(*layers, Head(inside))


def resnet50() -> nn.Module:
    """ResNet-50, the stride in the 3x3."""
    return _residual((3, 4, 6, 3))


def resnext50() -> nn.Module:
    """ResNeXt-50 32x4d."""
    return _residual((3, 4, 6, 3), groups=32, width=128)


# ---- mobile networks -----------------------------------------------------------------------------


class SqueezeExcite(nn.Module):
    """Each channel times a gate of all channels' averages."""

    def __init__(self, channels: int, reduced: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, reduced, 1), nn.SiLU(inplace=True),
            nn.Conv2d(reduced, channels, 1), nn.Sigmoid(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, H, W) -> the same."""
        return x * self.gate(x)


class InvertedResidual(nn.Module):
    """Expand, depthwise, maybe squeeze-excite, project; the shortcut where sizes stay."""

    def __init__(
        self, inside: int, out: int, expand: int, kernel: int, stride: int,
        act: type[nn.Module], squeeze: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        mid = inside * expand
        parts: list[nn.Module] = [conv_norm(inside, mid, act=act)] if expand > 1 else []
        parts.append(conv_norm(mid, mid, kernel, stride, mid, act))
        if squeeze:
            parts.append(SqueezeExcite(mid, max(1, inside // 4)))
        self.body = nn.Sequential(*parts, conv_norm(mid, out, act=None))
        self.residual = stride == 1 and inside == out

    def forward(self, x: Tensor) -> Tensor:
        """(N, inside, H, W) -> (N, out, H / stride, W / stride)."""
        return x + self.body(x) if self.residual else self.body(x)


def _mobile(
    stages: Sequence[tuple[int, int, int, int, int]], last: int, act: type[nn.Module], squeeze: bool
) -> nn.Module:
    """`stages`: (expand, out, repeats, stride, kernel)."""
    inside = 32
    layers: list[nn.Module] = [conv_norm(3, inside, 3, 2, act=act)]
    for expand, out, repeats, stride, kernel in stages:
        for i in range(repeats):
            step = stride if i == 0 else 1
            layers.append(InvertedResidual(inside, out, expand, kernel, step, act, squeeze))
            inside = out
    return nn.Sequential(*layers, conv_norm(inside, last, act=act), Head(last))


def mobilenet_v2() -> nn.Module:
    """MobileNetV2 of width 1."""
    stages = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3),
              (6, 96, 3, 1, 3), (6, 160, 3, 2, 3), (6, 320, 1, 1, 3))  # fmt: skip
    return _mobile(stages, 1280, nn.ReLU6, False)


def efficientnet_b0() -> nn.Module:
    """EfficientNet-B0."""
    stages = ((1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3),
              (6, 112, 3, 1, 5), (6, 192, 4, 2, 5), (6, 320, 1, 1, 3))  # fmt: skip
    return _mobile(stages, 1280, nn.SiLU, True)


class ShuffleUnit(nn.Module):
    """ShuffleNetV2's: half of the channels pass (or are halved in size too), then all are shuffled."""

    def __init__(self, inside: int, out: int, stride: int) -> None:
        super().__init__()
        half = out // 2
        self.stride = stride
        first = inside if stride > 1 else half
        if stride > 1:
            self.side = nn.Sequential(
                conv_norm(inside, inside, 3, 2, inside, act=None), conv_norm(inside, half)
            )
        self.body = nn.Sequential(
            conv_norm(first, half),
            conv_norm(half, half, 3, stride, half, act=None),
            conv_norm(half, half),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, inside, H, W) -> (N, out, H / stride, W / stride)."""
        if self.stride > 1:
            parts = self.side(x), self.body(x)
        else:
            kept, worked = x.chunk(2, dim=1)
            parts = kept, self.body(worked)
        x = torch.cat(parts, dim=1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).reshape(n, c, h, w)


def shufflenet_v2() -> nn.Module:
    """ShuffleNetV2 of width 1."""
    layers: list[nn.Module] = [conv_norm(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1)]
    inside = 24
    for out, repeats in ((116, 4), (232, 8), (464, 4)):
        for i in range(repeats):
            layers.append(ShuffleUnit(inside, out, 2 if i == 0 else 1))
            inside = out
    return nn.Sequential(*layers, conv_norm(inside, 1024), Head(1024))


# ---- dense and plain networks --------------------------------------------------------------------


class DenseLayer(nn.Module):
    """Norm, relu, 1x1, norm, relu, 3x3; what comes out is put beside what went in."""

    def __init__(self, inside: int, growth: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.BatchNorm2d(inside), nn.ReLU(inplace=True),
            nn.Conv2d(inside, 4 * growth, 1, bias=False),
            nn.BatchNorm2d(4 * growth), nn.ReLU(inplace=True),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """(N, inside, H, W) -> (N, inside + growth, H, W)."""
        return torch.cat((x, self.body(x)), dim=1)


def densenet121() -> nn.Module:
    """DenseNet-121."""
    layers: list[nn.Module] = [conv_norm(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for block, depth in enumerate((6, 12, 24, 16)):
        for _ in range(depth):
            layers.append(DenseLayer(channels, 32))
            channels += 32
        layers += [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]
        if block < 3:
            layers += [nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]
            channels //= 2
    return nn.Sequential(*layers, Head(channels))


def vgg16() -> nn.Module:
    """VGG-16 without batch normalization."""
    layers: list[nn.Module] = []
    inside = 3
    for out, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(inside, out, 3, padding=1), nn.ReLU(inplace=True)]
            inside = out
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True),
        nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Linear(4096, 1000),
    )  # fmt: skip


class Pair(nn.Sequential):
    """Two 3x3 convolutions with batch normalization."""

    def __init__(self, inside: int, out: int) -> None:
        super().__init__(conv_norm(inside, out, 3), conv_norm(out, out, 3))


class UNet(nn.Module):
    """Four levels down and up, with what was there on the way down put beside."""

    def __init__(self, widths: Sequence[int] = (32, 64, 128, 256, 512), classes: int = 2) -> None:
        super().__init__()
        pairs = list(itertools.pairwise(widths))
        self.first = Pair(3, widths[0])
        self.down = nn.ModuleList(nn.Sequential(nn.MaxPool2d(2), Pair(a, b)) for a, b in pairs)
        self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in reversed(pairs))
        self.beside = nn.ModuleList(Pair(2 * a, a) for a, _ in reversed(pairs))
        self.last = nn.Conv2d(widths[0], classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, H, W), of multiples of 16 -> (N, classes, H, W)."""
        x = self.first(x)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(x)
        for up, beside in zip(self.up, self.beside, strict=True):
            x = beside(torch.cat((up(x), skips.pop()), dim=1))
        return self.last(x)


def unet() -> nn.Module:
    """A U-Net of four levels, 32 channels at the top."""
    return UNet()


# ---- channels at the end: ConvNeXt, ViT ----------------------------------------------------------


class ChannelNorm(nn.LayerNorm):
    """Layer normalization of each position of an image."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> the same."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """Depthwise 7x7, then a normalization and two linear layers along the channels; the shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.body = nn.Sequential(
            nn.LayerNorm(channels, eps=1e-6), nn.Linear(channels, 4 * channels), nn.GELU(),
            nn.Linear(4 * channels, channels),
        )  # fmt: skip
        self.scale = nn.Parameter(torch.full((channels, 1, 1), 1e-6))

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels, H, W) -> the same."""
        y = self.body(self.depthwise(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return x + self.scale * y


def convnext_tiny() -> nn.Module:
    """ConvNeXt-T."""
    widths = (96, 192, 384, 768)
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96, eps=1e-6)]
    for i, (width, depth) in enumerate(zip(widths, (3, 3, 9, 3), strict=True)):
        layers += [ConvNeXtBlock(width) for _ in range(depth)]
        if i < 3:
            layers += [ChannelNorm(width, eps=1e-6), nn.Conv2d(width, widths[i + 1], 2, 2)]
    head = (nn.AdaptiveAvgPool2d(1), ChannelNorm(768, eps=1e-6), nn.Flatten(), nn.Linear(768, 1000))
    return nn.Sequential(*layers, *head)


class Encoder(nn.Module):
    """A transformer block: attention and a perceptron, each behind a normalization."""

    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(features, eps=1e-6)
        self.qkv = nn.Linear(features, 3 * features)
        self.project = nn.Linear(features, features)
        self.norm2 = nn.LayerNorm(features, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(features, 4 * features), nn.GELU(), nn.Linear(4 * features, features)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, tokens, features) -> the same."""
        n, t, f = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(n, t, 3, self.heads, f // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value)
        x = x + self.project(mixed.transpose(1, 2).reshape(n, t, f))
        return x + self.mlp(self.norm2(x))


class ViT(nn.Module):
    """Patches of 16 x 16 of a 224 x 224 image and a class token through transformer blocks."""

    def __init__(self, features: int = 192, heads: int = 3, depth: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, features, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, features))
        self.positions = nn.Parameter(torch.zeros(1, 197, features))
        self.blocks = nn.Sequential(*(Encoder(features, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(features, eps=1e-6)
        self.head = nn.Linear(features, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, 224, 224) -> (N, 1000)."""
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(x.shape[0], -1, -1), x), dim=1) + self.positions
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit_tiny() -> nn.Module:
    """ViT-Ti/16."""
    return ViT()
