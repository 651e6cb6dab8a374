"""A space of mobile networks: resolution, width and depth of a stage, kernel and expansion of a layer.

With one width it is that of Once-for-All (Cai et al., ICLR 2020: OFAMobileNetV3): five stages of two to
four inverted residuals with kernel 3, 5 or 7 and expansion 3, 4 or 6, squeeze-excite in three of them,
hard swish in the last three, images of 128 to 224 pixels. With several, each stage has its own width, and
what a stage's first layer costs depends on the width before it: its table is one of neighbors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from lolat.graph.layers import Layers
from lolat.nas.space import Position, Space
from lolat.nas.tables import Part

STEM, TOP, LAST, CLASSES = 16, 960, 1280, 1000
RESOLUTIONS, DEPTHS, KERNELS, EXPANSIONS = (128, 160, 192, 224), (2, 3, 4), (3, 5, 7), (3, 4, 6)
WIDTHS = (0.75, 1.0, 1.25)
REDUCTION = 4  # of a squeeze-excite


@dataclass(frozen=True)
class Stage:
    """Layers of the same shape: channels at width 1, stride of the first, activation, squeeze-excite."""

    channels: int
    stride: int
    act: str
    gate: bool


STAGES = (
    Stage(24, 2, "relu", False), Stage(40, 2, "relu", True), Stage(80, 2, "hard_silu", False),
    Stage(112, 1, "hard_silu", True), Stage(160, 2, "hard_silu", True),
)  # fmt: skip


def once_for_all() -> Space:
    """Once-for-All's space of MobileNetV3 at width 1: 46 positions."""
    return space(widths=(1.0,), name="ofa")


def space(
    widths: Sequence[float] = WIDTHS,
    resolutions: Sequence[int] = RESOLUTIONS,
    depths: Sequence[int] = DEPTHS,
    kernels: Sequence[int] = KERNELS,
    expansions: Sequence[float] = EXPANSIONS,
    classes: int = CLASSES,
    name: str = "mobile",
) -> Space:
    """The space of these choices; a width multiplies a stage's channels, to multiples of 8.

    Positions: the resolution; for each stage its width (where there are several) and depth, then kernel
    and expansion of each layer that there may be.
    """
    positions = [Position("resolution", tuple(resolutions))]

    def add(name: str, choices: Sequence[float]) -> int:
        positions.append(Position(name, tuple(choices)))
        return len(positions) - 1

    parts = [Part("stem", (0,), _image, _stem)]
    factor = 2  # pixels of the image's edge per position
    before: dict[str, int] = {}  # the position of the width of the stage before, where there is one
    base = STEM
    for number, stage in enumerate(STAGES, 1):
        width = {"width": add(f"stage{number} width", widths)} if len(widths) > 1 else {}
        depth = {"depth": add(f"stage{number} depth", depths)} if len(depths) > 1 else {}
        for index in range(max(depths)):
            label = f"stage{number} layer{index + 1}"
            roles = {"resolution": 0, **(width if index else {**before, **width})}
            roles |= depth if index >= min(depths) else {}
            roles |= {"kernel": add(f"{label} kernel", kernels)}
            roles |= {"expansion": add(f"{label} expansion", expansions)}
            stride = 1 if index else stage.stride
            inside = stage.channels if index else base
            layer = Layer(stage, stride, index, inside, factor, tuple(roles), widths[0])
            name_ = label.replace(" ", "_")
            parts.append(Part(name_, tuple(roles.values()), layer.shape, layer.write))
            factor *= stride
        before = {"before": width["width"]} if width else {}
        base = stage.channels
    roles = {"resolution": 0, **before}
    shape = partial(_before_head, base, factor, widths[0])
    parts.append(Part("head", tuple(roles.values()), shape, partial(_head, classes)))
    return Space.of_parts(name, positions, parts)


@dataclass(frozen=True)
class Layer:
    """The layer number `index` of a stage: how the choices named by `roles` make it.

    `inside`: its input's channels at width 1; `factor`: pixels of the image's edge per position of the
    input's; `width`: what a width is that is not chosen (the first stage reads the stem, at width 1).
    """

    stage: Stage
    stride: int
    index: int
    inside: int
    factor: int
    roles: tuple[str, ...]
    width: float

    def _values(self, chosen: Sequence[float]) -> dict[str, float]:
        return dict(zip(self.roles, chosen, strict=True))

    def shape(self, *chosen: float) -> tuple[int, ...]:
        """Of the input."""
        values = self._values(chosen)
        width = values.get("width" if self.index else "before", self.width)
        of_stem = not self.index and self.inside == STEM
        channels = STEM if of_stem else divisible(self.inside * width)
        side = _side(int(values["resolution"]), self.factor)
        return (1, side, side, channels)

    def write(self, layers: Layers, x: int, *chosen: float) -> int:
        """The layer, or nothing where the stage is not so deep."""
        values = self._values(chosen)
        if self.index >= values.get("depth", self.index + 1):
            return x
        filters = divisible(self.stage.channels * values.get("width", self.width))
        kernel, expansion = int(values["kernel"]), values["expansion"]
        return _inverted(layers, x, filters, kernel, expansion, self.stage, self.stride)


def divisible(channels: float) -> int:
    """The nearest multiple of 8 that is not less than nine tenths of it (MobileNet's rule)."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * channels else nearest


def _side(resolution: int, factor: int) -> int:
    """Positions along an edge after strides of 2 that make `factor`."""
    return -(-resolution // factor)


def _image(resolution: int) -> tuple[int, ...]:
    return (1, resolution, resolution, 3)


def _stem(layers: Layers, x: int, resolution: int) -> int:
    """Convolution of stride 2, and an inverted residual without expansion."""
    x = layers.norm_act(layers.conv(x, STEM, 3, 2), "hard_silu")
    y = layers.norm_act(layers.depthwise(x, 3), "relu")
    return layers.same("add", layers.norm(layers.conv(y, STEM, 1)), x)


def _before_head(
    inside: int, factor: int, usual: float, resolution: int, width: float | None = None
) -> tuple[int, ...]:
    side = _side(resolution, factor)
    return (1, side, side, divisible(inside * (usual if width is None else width)))


def _head(classes: int, layers: Layers, x: int, *chosen: float) -> int:
    """Two 1x1 convolutions with a pooling between them, and the classifier, whatever is chosen."""
    x = layers.global_pool(layers.norm_act(layers.conv(x, TOP), "hard_silu"))
    x = layers.same("hard_silu", layers.conv(x, LAST))
    return layers.classifier(x, classes)


def _inverted(
    layers: Layers, x: int, filters: int, kernel: int, expansion: float, stage: Stage, stride: int
) -> int:
    """Expansion, depthwise convolution, squeeze-excite, projection; added to what came in."""
    inside = layers.shape(x)[-1]
    middle = divisible(round(inside * expansion))
    y = layers.norm_act(layers.conv(x, middle, 1), stage.act)
    y = layers.norm_act(layers.depthwise(y, kernel, stride), stage.act)
    if stage.gate:
        y = layers.squeeze_excite(y, divisible(middle // REDUCTION))
    y = layers.norm(layers.conv(y, filters, 1))
    return layers.same("add", y, x) if stride == 1 and inside == filters else y
