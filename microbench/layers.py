"""Writes the predefined blocks: layers on a GraphBuilder, channels last, with their output shapes."""

from __future__ import annotations

from lolat.graph import Graph, GraphBuilder


class Layers:
    """A network under construction; every method takes and returns tensor indices."""

    def __init__(self, name: str, height: int, channels: int) -> None:
        self.builder = GraphBuilder(name)
        self.input = self.builder.input((1, height, height, channels))

    def shape(self, x: int) -> tuple[int, ...]:
        """Shape of `x` at batch size 1."""
        return self.builder.tensors[x].shape

    def conv(
        self,
        x: int,
        filters: int,
        kernel: int | tuple[int, int] = 1,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
    ) -> int:
        """A convolution, padded so that only the stride shrinks it."""
        _, height, width, inside = self.shape(x)
        shape = (1, -(-height // stride), -(-width // stride), filters)
        return self.builder.add(
            "grouped_conv" if groups > 1 else "conv", [x], shape,
            kernel=kernel if isinstance(kernel, tuple) else (kernel, kernel), strides=(stride, stride),
            dilation=(1, 1), padding="same", bias=bias,
            in_channels=inside, out_channels=filters, groups=groups,
        )  # fmt: skip

    def depthwise(self, x: int, kernel: int = 3, stride: int = 1, bias: bool = False) -> int:
        """A depthwise convolution: one filter per channel."""
        _, height, width, inside = self.shape(x)
        return self.builder.add(
            "depthwise_conv", [x], (1, -(-height // stride), -(-width // stride), inside),
            kernel=(kernel, kernel), strides=(stride, stride), dilation=(1, 1), padding="same",
            bias=bias, in_channels=inside, out_channels=inside, groups=inside,
        )  # fmt: skip

    def same(self, kind: str, x: int, *more: int) -> int:
        """An operation whose output has the shape of its first input (normalisation, activation, add)."""
        return self.builder.add(kind, [x, *more], self.shape(x))

    def cba(
        self,
        x: int,
        filters: int,
        kernel: int | tuple[int, int] = 1,
        stride: int = 1,
        groups: int = 1,
        act: str | None = "relu",
    ) -> int:
        """Convolution, batch normalisation, activation."""
        return self.ba(self.conv(x, filters, kernel, stride, groups), act)

    def dba(self, x: int, kernel: int = 3, stride: int = 1, act: str | None = "relu") -> int:
        """Depthwise convolution, batch normalisation, activation."""
        return self.ba(self.depthwise(x, kernel, stride), act)

    def ba(self, x: int, act: str | None = "relu") -> int:
        """Batch normalisation, activation."""
        x = self.same("batch_norm", x)
        return self.same(act, x) if act else x

    def pool(self, x: int, kernel: int, stride: int, kind: str = "max_pool") -> int:
        """A padded pooling."""
        _, height, width, inside = self.shape(x)
        shape = (1, -(-height // stride), -(-width // stride), inside)
        return self.builder.add(
            kind, [x], shape,
            kernel=(kernel, kernel), strides=(stride, stride), padding="same",
        )  # fmt: skip

    def global_pool(self, x: int) -> int:
        """Global average pooling."""
        return self.builder.add("global_average_pool", [x], (1, self.shape(x)[-1]))

    def dense(self, x: int, units: int, act: str | None = None) -> int:
        """A dense layer on the last dimension."""
        shape = self.shape(x)
        x = self.builder.add(
            "dense", [x], (*shape[:-1], units),
            in_features=shape[-1], out_features=units, bias=True,
        )  # fmt: skip
        return self.same(act, x) if act else x

    def flatten(self, x: int) -> int:
        """All but the batch in one dimension."""
        size = 1
        for n in self.shape(x):
            size *= n
        return self.builder.add("flatten", [x], (1, size))

    def concat(self, *xs: int) -> int:
        """Concatenation of channels."""
        channels = sum(self.shape(x)[-1] for x in xs)
        return self.builder.add("concatenate", list(xs), (*self.shape(xs[0])[:-1], channels))

    def up(self, x: int, filters: int) -> int:
        """A transposed 2x2 convolution with stride 2: twice the height and width."""
        _, height, width, inside = self.shape(x)
        return self.builder.add(
            "transposed_conv", [x], (1, 2 * height, 2 * width, filters),
            kernel=(2, 2), strides=(2, 2), dilation=(1, 1), padding="same", bias=True,
            in_channels=inside, out_channels=filters, groups=1,
        )  # fmt: skip

    def squeeze_excite(self, x: int, reduced: int, act: str = "silu", gate: str = "sigmoid") -> int:
        """Global pooling, two 1x1 convolutions, and the result multiplied onto the channels."""
        channels = self.shape(x)[-1]
        s = self.builder.add("reshape", [self.global_pool(x)], (1, 1, 1, channels))
        s = self.same(act, self.conv(s, reduced, bias=True))
        s = self.same(gate, self.conv(s, channels, bias=True))
        return self.same("multiply", x, s)

    def done(self, *outputs: int) -> Graph:
        """The finished graph."""
        return self.builder.build(outputs)
