"""Writes layers on a GraphBuilder, channels last, with their output shapes, for the known spaces."""

from __future__ import annotations

from dataclasses import dataclass

from lolat.graph import GraphBuilder


@dataclass(frozen=True)
class Layers:
    """A network under construction; every method takes and returns tensor indices.

    `path`: the module that the layers are written into, by which blocks get their names.
    """

    builder: GraphBuilder
    path: str = ""

    def shape(self, x: int) -> tuple[int, ...]:
        """Shape of `x` at batch size 1."""
        return self.builder.tensors[x].shape

    def conv(
        self,
        x: int,
        filters: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        bias: bool = False,
    ) -> int:
        """A convolution, padded so that only the stride shrinks it."""
        kind = "grouped_conv" if groups > 1 else "conv"
        return self._conv(kind, x, filters, kernel, stride, groups, bias)

    def depthwise(self, x: int, kernel: int, stride: int = 1) -> int:
        """A depthwise convolution: one filter per channel."""
        channels = self.shape(x)[-1]
        return self._conv("depthwise_conv", x, channels, kernel, stride, channels, False)

    def _conv(
        self, kind: str, x: int, filters: int, kernel: int, stride: int, groups: int, bias: bool
    ) -> int:
        _, height, width, inside = self.shape(x)
        return self.builder.add(
            kind, [x], (1, -(-height // stride), -(-width // stride), filters), path=self.path,
            kernel=(kernel, kernel), strides=(stride, stride), dilation=(1, 1), padding="same",
            bias=bias, in_channels=inside, out_channels=filters, groups=groups,
        )  # fmt: skip

    def same(self, kind: str, x: int, *more: int) -> int:
        """An operation whose output has the shape of its first input (activation, addition)."""
        return self.builder.add(kind, [x, *more], self.shape(x), path=self.path)

    def norm(self, x: int) -> int:
        """Batch normalisation."""
        channels = self.shape(x)[-1]
        return self.builder.add("batch_norm", [x], self.shape(x), path=self.path, channels=channels)

    def norm_act(self, x: int, act: str | None) -> int:
        """Batch normalisation and an activation, where there is one."""
        x = self.norm(x)
        return self.same(act, x) if act else x

    def pool(self, kind: str, x: int, kernel: int, stride: int = 1) -> int:
        """A padded pooling."""
        _, height, width, channels = self.shape(x)
        return self.builder.add(
            kind, [x], (1, -(-height // stride), -(-width // stride), channels), path=self.path,
            kernel=(kernel, kernel), strides=(stride, stride), padding="same",
        )  # fmt: skip

    def global_pool(self, x: int) -> int:
        """Global average pooling, to one position."""
        shape = (1, 1, 1, self.shape(x)[-1])
        return self.builder.add("global_average_pool", [x], shape, path=self.path)

    def shuffle(self, x: int, groups: int) -> int:
        """A channel shuffle: seen in groups, transposed, seen as before."""
        *positions, channels = self.shape(x)
        add = self.builder.add
        x = add("reshape", [x], (*positions, groups, channels // groups), path=self.path)
        x = add("transpose", [x], (*positions, channels // groups, groups), path=self.path)
        return add("reshape", [x], (*positions, channels), path=self.path)

    def squeeze_excite(self, x: int, reduced: int) -> int:
        """Global pooling, two 1x1 convolutions, the result multiplied onto the channels (MobileNetV3)."""
        s = self.conv(self.global_pool(x), reduced, bias=True)
        s = self.conv(self.same("relu", s), self.shape(x)[-1], bias=True)
        return self.same("multiply", x, self.same("hard_sigmoid", s))

    def classifier(self, x: int, classes: int) -> int:
        """A dense layer on what a global pooling left."""
        channels = self.shape(x)[-1]
        x = self.builder.add("flatten", [x], (1, channels), path=self.path)
        return self.builder.add(
            "dense", [x], (1, classes), path=self.path,
            in_features=channels, out_features=classes, bias=True,
        )  # fmt: skip
