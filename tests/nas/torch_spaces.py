"""Networks of search spaces written with PyTorch after the authors' code: an oracle for LoLat's own."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

NODES = (("0->1",), ("0->2", "1->2"), ("0->3", "1->3", "2->3"))


def norm(x: int) -> nn.Module:
    return nn.BatchNorm2d(x)


class Zero(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.mul(0.0)


def edge(operation: str, channels: int) -> nn.Module:
    """An edge of a NAS-Bench-201 cell."""
    if operation == "none":
        return Zero()
    if operation == "skip_connect":
        return nn.Identity()
    if operation == "avg_pool_3x3":
        return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
    return relu_conv_norm(channels, channels, int(operation[-1]))


def relu_conv_norm(inside: int, outside: int, kernel: int, stride: int = 1) -> nn.Module:
    conv = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(nn.ReLU(), conv, norm(outside))


class Cell(nn.Module):
    def __init__(self, operations: dict[str, str], channels: int) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({k: edge(o, channels) for k, o in operations.items()})

    def forward(self, x: Any) -> Any:
        nodes = [x]
        for names in NODES:
            arrived = [self.layers[name](nodes[int(name[0])]) for name in names]
            total = arrived[0]
            for more in arrived[1:]:
                total = total + more
            nodes.append(total)
        return nodes[-1]


class Reduction(nn.Module):
    def __init__(self, inside: int) -> None:
        super().__init__()
        self.a = relu_conv_norm(inside, 2 * inside, 3, 2)
        self.b = relu_conv_norm(2 * inside, 2 * inside, 3)
        self.shortcut = nn.Sequential(
            nn.AvgPool2d(2, 2), nn.Conv2d(inside, 2 * inside, 1, bias=False)
        )

    def forward(self, x: Any) -> Any:
        return self.shortcut(x) + self.b(self.a(x))


def nasbench201(operations: dict[str, str], cells: int = 5) -> nn.Module:
    """TinyNetwork: three stages of cells."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False), norm(16)]
    for channels in (16, 32, 64):
        if channels > 16:
            layers.append(Reduction(channels // 2))
        layers += [Cell(operations, channels) for _ in range(cells)]
    layers += [norm(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    return nn.Sequential(*layers).eval()


def cbr(
    inside: int, outside: int, kernel: int, stride: int = 1, groups: int = 1, act: Any = nn.ReLU
) -> nn.Sequential:
    """Convolution, normalisation, activation."""
    conv = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, norm(outside), *([act()] if act else []))


class Shuffle(nn.Module):
    def forward(self, x: Any) -> Any:
        n, c, h, w = x.size()
        return x.view(n, 2, c // 2, h, w).permute(0, 2, 1, 3, 4).contiguous().view(n, c, h, w)


class Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return self.body(x) + x


def fbnet(chosen: dict[str, str]) -> nn.Module:
    """22 layers; the widths and strides are those of the paper's table 1."""
    widths = [16] + [24] * 4 + [32] * 4 + [64] * 4 + [112] * 4 + [184] * 4 + [352]
    strides = {1: 2, 5: 2, 9: 2, 17: 2}
    layers: list[nn.Module] = [cbr(3, 16, 3, 2)]
    inside = 16
    for index, (name, width) in enumerate(zip(chosen.values(), widths, strict=True)):
        stride = strides.get(index, 1)
        same = stride == 1 and inside == width
        if name == "skip":
            layers.append(nn.Identity() if same else cbr(inside, width, 1, stride))
        else:
            kernel, middle = int(name[1]), inside * int(name[4])
            groups = 2 if name.endswith("g2") else 1
            body = [cbr(inside, middle, 1, groups=groups)]
            body += [nn.Sequential(Shuffle())] if groups == 2 else []
            body += [cbr(middle, middle, kernel, stride, middle)]
            body += [cbr(middle, width, 1, groups=groups, act=None)]
            block = nn.Sequential(*body)
            layers.append(Residual(block) if same else block)
        inside = width
    layers += [cbr(352, 1984, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1984, 1000)]
    return nn.Sequential(*layers).eval()


def without_weights(make: Any, *given: Any) -> nn.Module:
    """A network whose weights have a shape but no memory."""
    with torch.device("meta"):
        made: nn.Module = make(*given)
    return made


def hooked(network: nn.Module, size: int) -> dict[str, int]:
    """ACTS, INP, MACs and weights of a network's layers at batch size 1, seen by hooks as it runs."""
    found = dict.fromkeys(("acts", "inp", "flops", "weights"), 0)

    def conv(layer: Any, given: Any, result: Any) -> None:
        found["acts"] += result.numel()
        found["inp"] += given[0].numel()
        found["flops"] += result.numel() * layer.weight[0].numel()

    def dense(layer: Any, given: Any, result: Any) -> None:
        found["flops"] += layer.weight.numel()

    for layer in network.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            layer.register_forward_hook(conv if isinstance(layer, nn.Conv2d) else dense)
            found["weights"] += sum(p.numel() for p in layer.parameters())
    with torch.no_grad():
        network(torch.empty(1, 3, size, size, device="meta"))
    return found
