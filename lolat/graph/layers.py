"""Layers for a GraphBuilder, channels last; search spaces and measured blocks are built from them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from lolat.graph import Graph, GraphBuilder


@dataclass(frozen=True)
class Layers:
    """A network under construction; its methods take and return tensor indices.

    `path`: the module of the layers that are added next, from which blocks get their names.
    """

    builder: GraphBuilder
    path: str = ""

    @classmethod
    def on(cls, name: str, *shape: int) -> Layers:
        """A new network with one input; `shape`: the input's, without the batch."""
        layers = cls(GraphBuilder(name))
        layers.builder.input((1, *shape))
        return layers

    @property
    def input(self) -> int:
        """The network's first input."""
        return self.builder.inputs[0]

    def done(self, *outputs: int) -> Graph:
        """The finished graph."""
        return self.builder.build(outputs)

    def shape(self, x: int) -> tuple[int, ...]:
        """Shape of `x` at batch size 1."""
        return self.builder.tensors[x].shape

    def add(self, kind: str, xs: list[int], shape: tuple[int, ...], **attributes: Any) -> int:
        """An operation with one output of `shape`."""
        return self.builder.add(kind, xs, shape, path=self.path, **attributes)

    def same(self, kind: str, x: int, *more: int) -> int:
        """An operation whose output has the shape of its first input (activation, addition)."""
        return self.add(kind, [x, *more], self.shape(x))

    def view(self, x: int, *shape: int) -> int:
        """A view of shape (1, *shape)."""
        return self.add("reshape", [x], (1, *shape))

    def conv(
        self, x: int, filters: int, kernel: int | tuple[int, int] = 1, stride: int = 1, groups: int = 1,
        bias: bool = False, kind: str = "conv",
    ) -> int:  # fmt: skip
        """A padded convolution; `stride` divides height and width (multiplies them: `transposed_conv`)."""
        _, height, width, in_channels = self.shape(x)
        kernels = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        up = kind == "transposed_conv"
        sides = (n * stride if up else -(-n // stride) for n in (height, width))
        return self.add(
            "grouped_conv" if kind == "conv" and groups > 1 else kind, [x], (1, *sides, filters),
            kernel=kernels, strides=(stride, stride), dilation=(1, 1), padding="same", bias=bias,
            in_channels=in_channels, out_channels=filters, groups=groups,
        )  # fmt: skip

    def depthwise(self, x: int, kernel: int = 3, stride: int = 1, bias: bool = False) -> int:
        """A depthwise convolution: one filter per channel."""
        channels = self.shape(x)[-1]
        return self.conv(x, channels, kernel, stride, channels, bias, "depthwise_conv")

    def up(self, x: int, filters: int) -> int:
        """A 2x2 transposed convolution with stride 2, which doubles the height and width."""
        return self.conv(x, filters, 2, 2, bias=True, kind="transposed_conv")

    def norm_act(self, x: int, act: str | None = "relu", norm: str = "batch_norm") -> int:
        """A normalization, and an activation unless `act` is None."""
        x = self.same(norm, x)
        return self.same(act, x) if act else x

    def conv_norm_act(self, x: int, *sizes: Any, act: str | None = "relu", **more: Any) -> int:
        """Convolution (see `conv`), batch normalization, activation."""
        return self.norm_act(self.conv(x, *sizes, **more), act)

    def depthwise_norm_act(
        self, x: int, kernel: int = 3, stride: int = 1, act: str = "relu"
    ) -> int:
        """Depthwise convolution, batch normalization, activation."""
        return self.norm_act(self.depthwise(x, kernel, stride), act)

    def pool(self, x: int, kernel: int, stride: int, kind: str = "max_pool") -> int:
        """A padded pooling."""
        _, height, width, channels = self.shape(x)
        return self.add(
            kind, [x], (1, -(-height // stride), -(-width // stride), channels),
            kernel=(kernel, kernel), strides=(stride, stride), padding="same",
        )  # fmt: skip

    def global_pool(self, x: int, flat: bool = False) -> int:
        """Global average pooling to shape (1, 1, channels), or to (channels,) if `flat`."""
        channels = self.shape(x)[-1]
        return self.add("global_average_pool", [x], (1, channels) if flat else (1, 1, 1, channels))

    def flatten(self, x: int) -> int:
        """A flattening of all dimensions except the batch."""
        return self.add("flatten", [x], (1, prod(self.shape(x))))

    def dense(self, x: int, units: int, act: str | None = None) -> int:
        """A dense layer on the last dimension."""
        *lead, in_features = self.shape(x)
        x = self.add(
            "dense", [x], (*lead, units), in_features=in_features, out_features=units, bias=True
        )
        return self.same(act, x) if act else x

    def concat(self, *xs: int) -> int:
        """Concatenation of channels."""
        channels = sum(self.shape(x)[-1] for x in xs)
        return self.add("concatenate", list(xs), (*self.shape(xs[0])[:-1], channels))

    def shuffle(self, x: int, groups: int) -> int:
        """A channel shuffle: a view as groups, a transpose, and a view in the original shape."""
        _, *positions, channels = self.shape(x)
        x = self.view(x, *positions, groups, channels // groups)
        x = self.add("transpose", [x], (1, *positions, channels // groups, groups))
        return self.view(x, *positions, channels)

    def squeeze_excite(self, x: int, reduced: int, act: str, gate: str) -> int:
        """A squeeze-excite: global pooling, two 1x1 convolutions, scaling of the channels (MobileNetV3).

        The pooling is flat, and a view restores the image shape, as in Keras' networks.
        """
        channels = self.shape(x)[-1]
        s = self.view(self.global_pool(x, flat=True), 1, 1, channels)
        s = self.same(act, self.conv(s, reduced, bias=True))
        return self.same("multiply", x, self.same(gate, self.conv(s, channels, bias=True)))
