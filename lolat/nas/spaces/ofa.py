"""Once-for-All's space of MobileNetV3 (Cai et al., ICLR 2020: OFAMobileNetV3, width 1).

Five stages of two to four inverted residuals with kernel 3, 5 or 7 and expansion 3, 4 or 6, squeeze-excite
in three of them, hard swish in the last three, images of 128 to 224 pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from lolat.graph.layers import Layers
from lolat.nas.space import Position, Space
from lolat.nas.tables import Part

STEM, TOP, LAST, CLASSES = 16, 960, 1280, 1000
RESOLUTIONS, DEPTHS, KERNELS, EXPANSIONS = (128, 160, 192, 224), (2, 3, 4), (3, 5, 7), (3, 4, 6)
REDUCTION = 4  # of a squeeze-excite


@dataclass(frozen=True)
class Stage:
    """Layers of the same shape: channels, stride of the first, activation, squeeze-excite."""

    channels: int
    stride: int
    act: str
    gate: bool


STAGES = (
    Stage(24, 2, "relu", False), Stage(40, 2, "relu", True), Stage(80, 2, "hard_silu", False),
    Stage(112, 1, "hard_silu", True), Stage(160, 2, "hard_silu", True),
)  # fmt: skip


def space() -> Space:
    """46 positions: the resolution; for each stage its depth, then kernel and expansion of each layer."""
    positions = [Position("resolution", RESOLUTIONS)]

    def add(name: str, choices: tuple[int, ...]) -> int:
        positions.append(Position(name, choices))
        return len(positions) - 1

    parts = [Part("stem", (0,), partial(_input, 1, 3), _stem)]
    factor, inside = 2, STEM  # of the input: pixels of the image's edge per position, and channels
    for number, stage in enumerate(STAGES, 1):
        depth = add(f"stage{number} depth", DEPTHS)
        for index in range(max(DEPTHS)):
            name = f"stage{number} layer{index + 1}"
            chosen = (add(f"{name} kernel", KERNELS), add(f"{name} expansion", EXPANSIONS))
            shape, stride = partial(_input, factor, inside), 1 if index else stage.stride
            part = partial(Part, name.replace(" ", "_"), shape=shape)
            if index < min(DEPTHS):
                parts.append(part((0, *chosen), write=partial(_layer, stage, stride)))
            else:
                write = partial(_optional_layer, stage, index)
                parts.append(part((0, depth, *chosen), write=write))
            factor, inside = factor * stride, stage.channels
    parts.append(Part("head", (0,), partial(_input, factor, inside), _head))
    return Space.of_parts("ofa", positions, parts)


def divisible(channels: float) -> int:
    """The nearest multiple of 8 that is not less than nine tenths of it (MobileNet's rule)."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def _input(factor: int, channels: int, resolution: int, *chosen: Any) -> tuple[int, ...]:
    side = -(-resolution // factor)
    return (1, side, side, channels)


def _stem(layers: Layers, x: int, resolution: int) -> int:
    """Convolution of stride 2, and an inverted residual without expansion."""
    x = layers.norm_act(layers.conv(x, STEM, 3, 2), "hard_silu")
    y = layers.norm_act(layers.depthwise(x, 3), "relu")
    return layers.same("add", layers.norm(layers.conv(y, STEM, 1)), x)


def _head(layers: Layers, x: int, resolution: int) -> int:
    """Two 1x1 convolutions with a pooling between them, and the classifier."""
    x = layers.global_pool(layers.norm_act(layers.conv(x, TOP), "hard_silu"))
    x = layers.same("hard_silu", layers.conv(x, LAST))
    return layers.classifier(x, CLASSES)


def _layer(
    stage: Stage, stride: int, layers: Layers, x: int, resolution: int, kernel: int, expansion: int
) -> int:
    """Expansion, depthwise convolution, squeeze-excite, projection; added to the input."""
    inside = layers.shape(x)[-1]
    middle = divisible(inside * expansion)
    y = layers.norm_act(layers.conv(x, middle, 1), stage.act)
    y = layers.norm_act(layers.depthwise(y, kernel, stride), stage.act)
    if stage.gate:
        y = layers.squeeze_excite(y, divisible(middle // REDUCTION))
    y = layers.norm(layers.conv(y, stage.channels, 1))
    return layers.same("add", y, x) if stride == 1 and inside == stage.channels else y


def _optional_layer(
    stage: Stage, index: int, layers: Layers, x: int, resolution: int, depth: int, *chosen: int
) -> int:
    """Layer number `index`, or nothing if the stage is not so deep."""
    return x if index >= depth else _layer(stage, 1, layers, x, resolution, *chosen)
