"""NAS-Bench-201 (Dong and Yang, ICLR 2020): one cell of six edges, fifteen times in a fixed network.

Stem, five cells of 16 channels, a residual block that halves the resolution, five cells of 32, another,
five cells of 64, batch normalisation, pooling, classifier; on 32x32 images. As the authors' TinyNetwork
runs it: "none" multiplies by zero and is executed, "skip_connect" is the tensor itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lolat.nas.encodings import nasbench201 as encoding
from lolat.nas.layers import Layers
from lolat.nas.space import Position, Space
from lolat.nas.tables import CellTable, ChainPart, Part, Table

CHANNELS, CELLS, CLASSES, SIZE = (16, 32, 64), 5, 10, 32
KERNELS = {"nor_conv_1x1": 1, "nor_conv_3x3": 3}


def space(classes: int = CLASSES, size: int = SIZE) -> Space:
    """The 15,625 networks; `classes`: 10, or 100 and 120 with other data; `size`: of the image."""
    positions = [Position(name, encoding.CHOICES) for name in encoding.POSITIONS]
    parts: list[ChainPart] = [Part("stem", (), partial(_image, size), _stem)]
    for stage, channels in enumerate(CHANNELS):
        side = -(-size // 2**stage)
        if stage:
            shape = (1, 2 * side if size % 2**stage == 0 else -(-size // 2 ** (stage - 1)))
            before = (*shape, shape[1], CHANNELS[stage - 1])
            parts.append(Part(f"reduction{stage}", (), partial(_fixed, before), _reduction))
        parts.append(Cells(f"stage{stage + 1}", (1, side, side, channels)))
    last = (1, side, side, CHANNELS[-1])
    parts.append(Part("head", (), partial(_fixed, last), partial(_head, classes)))
    return Space.of_parts(encoding.NAME, positions, parts, encoding)


@dataclass(frozen=True)
class Cells:
    """Five equal cells, whose six edges are the positions."""

    name: str
    of: tuple[int, ...]  # the shape of every tensor in them
    positions: tuple[int, ...] = tuple(range(len(encoding.EDGES)))

    def shape(self, *chosen: str) -> tuple[int, ...]:
        """Of the input, whatever is chosen."""
        return self.of

    def write(self, layers: Layers, x: int, *chosen: str) -> int:
        """Write the cells with these operations."""
        for cell in range(CELLS):
            x = self._cell(Layers(layers.builder, f"{self.name}_cell{cell + 1}"), x, chosen)
        return x

    def _cell(self, layers: Layers, x: int, chosen: Sequence[str]) -> int:
        nodes = {0: x}
        for (begin, to), operation in zip(encoding.EDGES, chosen, strict=True):
            arrived = _operation(layers, nodes[begin], operation)
            nodes[to] = layers.same("add", nodes[to], arrived) if to in nodes else arrived
        return nodes[max(nodes)]

    def table(self, choices: Sequence[Sequence[Any]]) -> Table:
        """The counts of the cells, for every combination of operations."""
        shape = partial(_fixed, self.of)
        edges = [
            Part(self.name, (p,), shape, _operation).table([values])
            for p, values in zip(self.positions, choices, strict=True)
        ]
        addition = Part(self.name, (), shape, _addition).table([])
        return CellTable(encoding.EDGES, tuple(edges), addition, CELLS)


def _operation(layers: Layers, x: int, operation: str) -> int:
    """One edge of a cell."""
    if operation == "skip_connect":
        return x
    if operation == "none":
        return layers.same("multiply", x)
    if operation == "avg_pool_3x3":
        return layers.pool("average_pool", x, 3)
    return _relu_conv_norm(layers, x, layers.shape(x)[-1], KERNELS[operation])


def _relu_conv_norm(layers: Layers, x: int, channels: int, kernel: int, stride: int = 1) -> int:
    return layers.norm(layers.conv(layers.same("relu", x), channels, kernel, stride))


def _addition(layers: Layers, x: int) -> int:
    return layers.same("add", x, x)


def _image(size: int) -> tuple[int, ...]:
    return (1, size, size, 3)


def _fixed(shape: tuple[int, ...], *chosen: Any) -> tuple[int, ...]:
    return shape


def _stem(layers: Layers, x: int) -> int:
    return layers.norm(layers.conv(x, CHANNELS[0], 3))


def _reduction(layers: Layers, x: int) -> int:
    """A residual block of stride 2 that doubles the channels; its shortcut is pooled and projected."""
    channels = 2 * layers.shape(x)[-1]
    y = _relu_conv_norm(layers, x, channels, 3, 2)
    y = _relu_conv_norm(layers, y, channels, 3)
    shortcut = layers.conv(layers.pool("average_pool", x, 2, 2), channels, 1)
    return layers.same("add", shortcut, y)


def _head(classes: int, layers: Layers, x: int) -> int:
    return layers.classifier(layers.global_pool(layers.norm_act(x, "relu")), classes)
