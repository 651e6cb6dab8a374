"""The windows of convolutions and pools, channels first: which padding gives the size that a Graph has."""

from __future__ import annotations

from dataclasses import dataclass

from microbench.backends.channels_first import Call, Shape


@dataclass(frozen=True)
class Window:
    """A convolution's or pool's window on the spatial axes, and the padding that gives the output."""

    kernel: Shape
    strides: Shape
    dilation: Shape
    before: Shape
    after: Shape

    @property
    def symmetric(self) -> bool:
        """Whether as much is padded behind as in front."""
        return self.before == self.after


def window(call: Call) -> Window:
    """The window of a convolution or pool, from its attributes and the sizes before and after.

    Padding is as much on both sides where that gives the size, as PyTorch's networks have it; else
    what Keras' "same" has: the odd element behind. A stride that is not known is what the sizes say.
    """
    a = call.operation.attributes
    kernel = tuple(int(n) for n in a["kernel"])
    inside, outside = call.shape[2:], call.out[2:]
    strides = a.get("strides") or [-(-n // m) for n, m in zip(inside, outside, strict=True)]
    dilation = a.get("dilation") or (1,) * len(kernel)
    pairs = [
        _padding(*sizes) for sizes in zip(inside, outside, kernel, strides, dilation, strict=True)
    ]
    return Window(
        kernel,
        tuple(int(n) for n in strides),
        tuple(int(n) for n in dilation),
        tuple(p[0] for p in pairs),
        tuple(p[1] for p in pairs),
    )


def _padding(size: int, wanted: int, kernel: int, stride: int, dilation: int) -> tuple[int, int]:
    """(before, after) of one axis."""
    reach = (kernel - 1) * dilation + 1
    total = max(0, (wanted - 1) * stride + reach - size)
    half = -(-total // 2)
    if (size + 2 * half - reach) // stride + 1 == wanted:
        return half, half
    return total // 2, total - total // 2


def transposed_padding(call: Call) -> tuple[Shape, Shape, Shape]:
    """(strides, padding on both sides, output padding) of a transposed convolution."""
    a = call.operation.attributes
    inside, outside = call.shape[2:], call.out[2:]
    kernel = [int(n) for n in a["kernel"]]
    strides = a.get("strides") or [max(1, m // n) for n, m in zip(inside, outside, strict=True)]
    dilation = a.get("dilation") or (1,) * len(kernel)
    padding, extra = [], []
    for n, m, k, s, d in zip(inside, outside, kernel, strides, dilation, strict=True):
        more = (n - 1) * s + (k - 1) * d + 1 - m
        padding.append(max(0, -(-more // 2)))
        extra.append(2 * padding[-1] - more)
    return tuple(int(s) for s in strides), tuple(padding), tuple(extra)
