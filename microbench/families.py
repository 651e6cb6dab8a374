"""The families of predefined blocks: how each is written, as a Graph of any size."""

from __future__ import annotations

from collections.abc import Callable

from lolat.graph import Graph
from lolat.graph.layers import Layers


def _chain(
    family: str, size: int, channels: int, step: Callable[[Layers, int], int], count: int = 1
) -> Graph:
    """A graph of `count` steps, each behind the one before, on an image of `size` x `size`."""
    n = Layers.on(f"{family} {channels}", size, size, channels)
    x = n.input
    for _ in range(count):
        x = step(n, x)
    return n.done(x)


def classified(n: Layers, x: int) -> Graph:
    """The finished network, with a classifier behind `x`: global average pool, dense layer, softmax."""
    return n.done(n.dense(n.global_pool(x, flat=True), 1000, "softmax"))


# ---- Convolutions


def stem(size: int, filters: int, kernel: int, stride: int, pool: bool = False) -> Graph:
    """The entrance of a network: rescale, convolution on 3 channels, norm, relu, maybe max pool."""
    n = Layers.on(f"stem {filters} {kernel}x{kernel}/{stride}", size, size, 3)
    x = n.conv_norm_act(n.same("rescale", n.input), filters, kernel, stride)
    return n.done(n.pool(x, 3, 2) if pool else x)


def patchify(size: int, filters: int) -> Graph:
    """ConvNeXt's entrance: a 4x4 convolution with stride 4, layer normalization."""
    n = Layers.on("patchify", size, size, 3)
    return n.done(n.same("layer_norm", n.conv(n.input, filters, 4, 4, bias=True)))


def add_plain(n: Layers, x: int, filters: int, kernel: int | tuple[int, int] = 3) -> int:
    """A convolution with bias and relu."""
    return n.same("relu", n.conv(x, filters, kernel, bias=True))


def plain(
    size: int, channels: int, filters: int, kernel: int | tuple[int, int], count: int = 1
) -> Graph:
    """Convolutions with bias and relu, as in VGG."""
    return _chain("conv", size, channels, lambda n, x: add_plain(n, x, filters, kernel), count)


def conv_bn(size: int, channels: int, filters: int, kernel: int) -> Graph:
    """Convolution, batch normalization, relu."""
    return _chain("conv-bn", size, channels, lambda n, x: n.conv_norm_act(x, filters, kernel))


def add_basic(n: Layers, x: int, width: int, stride: int = 1) -> int:
    """ResNet's basic block behind `x`: two 3x3 convolutions and the shortcut."""
    y = n.conv_norm_act(n.conv_norm_act(x, width, 3, stride), width, 3, act=None)
    if stride > 1:
        x = n.conv_norm_act(x, width, 1, stride, act=None)
    return n.same("relu", n.same("add", x, y))


def basic(size: int, channels: int, count: int = 1) -> Graph:
    """ResNet's basic blocks."""
    return _chain("basic", size, channels, lambda n, x: add_basic(n, x, channels), count)


def add_bottleneck(n: Layers, x: int, out: int, mid: int, stride: int, groups: int) -> int:
    """ResNet's bottleneck behind `x`: 1x1, 3x3 (maybe grouped), 1x1, shortcut (1x1 where sizes differ)."""
    inside = n.shape(x)[-1]
    y = n.conv_norm_act(n.conv_norm_act(x, mid, 1), mid, 3, stride, groups)
    y = n.conv_norm_act(y, out, 1, act=None)
    if stride > 1 or inside != out:
        x = n.conv_norm_act(x, out, 1, stride, act=None)
    return n.same("relu", n.same("add", x, y))


def bottleneck(
    size: int, channels: int, out: int | None = None, mid: int | None = None, groups: int = 1,
    count: int = 1,
) -> Graph:  # fmt: skip
    """ResNet's bottlenecks."""
    out = out or channels
    mid = mid or out // 4
    return _chain(
        "bottleneck",
        size,
        channels,
        lambda n, x: add_bottleneck(n, x, out, mid, 1, groups),
        count,
    )


def add_inverted(
    n: Layers, x: int, out: int, expand: int, kernel: int, stride: int, act: str, se: bool
) -> int:
    """An inverted residual behind `x`."""
    inside = n.shape(x)[-1]
    y = n.conv_norm_act(x, inside * expand, 1, act=act) if expand > 1 else x
    y = n.depthwise_norm_act(y, kernel, stride, act=act)
    if se:
        acts = ("relu", "hard_sigmoid") if act == "hard_silu" else (act, "sigmoid")
        y = n.squeeze_excite(y, max(1, inside // 4), *acts, flat=True)
    y = n.conv_norm_act(y, out, 1, act=None)
    return n.same("add", x, y) if stride == 1 and inside == out else y


def inverted(
    size: int, channels: int, out: int | None = None, expand: int = 6, kernel: int = 3, stride: int = 1,
    act: str = "relu6", se: bool = False, count: int = 1,
) -> Graph:  # fmt: skip
    """MobileNetV2's inverted residual; with squeeze-excite and silu it is EfficientNet's MBConv."""
    n = Layers.on(f"inverted {channels}", size, size, channels)
    x = n.input
    for i in range(count):
        x = add_inverted(n, x, out or channels, expand, kernel, stride if i == 0 else 1, act, se)
    return n.done(x)


def fused(size: int, channels: int, count: int = 1) -> Graph:
    """EfficientNetV2's fused MBConv: a 3x3 that expands, a 1x1 that projects, the shortcut."""

    def step(n: Layers, x: int) -> int:
        y = n.conv_norm_act(x, channels * 4, 3, act="silu")
        return n.same("add", x, n.conv_norm_act(y, channels, 1, act=None))

    return _chain("fused", size, channels, step, count)


def mobile_v1(size: int, channels: int, out: int, count: int = 1) -> Graph:
    """MobileNet's pairs: depthwise, norm, relu6, 1x1, norm, relu6."""

    def step(n: Layers, x: int) -> int:
        return n.conv_norm_act(n.depthwise_norm_act(x, act="relu6"), out, 1, act="relu6")

    return _chain("mobile v1", size, channels, step, count)


def vgg(size: int, channels: int, filters: int, count: int) -> Graph:
    """VGG's block: 3x3 convolutions with bias and relu, max pool."""
    n = Layers.on(f"vgg {channels}", size, size, channels)
    x = n.input
    for _ in range(count):
        x = add_plain(n, x, filters)
    return n.done(n.pool(x, 2, 2))


def depthwise(size: int, channels: int, kernel: int, stride: int) -> Graph:
    """A depthwise convolution, normalization, relu."""
    return _chain("depthwise", size, channels, lambda n, x: n.depthwise_norm_act(x, kernel, stride))


def add_separable(n: Layers, x: int, out: int, kernel: int = 3, count: int = 1) -> int:
    """Relu, depthwise, pointwise, normalization, as in Xception and NASNet."""
    for _ in range(count):
        x = n.norm(n.conv(n.depthwise(n.same("relu", x), kernel), out))
    return x


def separable(size: int, channels: int, out: int | None = None, count: int = 1) -> Graph:
    """Separable convolutions; a shortcut if it fits."""
    n = Layers.on(f"separable {channels}", size, size, channels)
    x = add_separable(n, n.input, out or channels, count=count)
    return n.done(n.same("add", n.input, x) if n.shape(x) == n.shape(n.input) else x)


def add_dense(n: Layers, x: int) -> int:
    """DenseNet's layer: norm, relu, 1x1, norm, relu, 3x3, concatenation with the input."""
    return n.concat(x, n.conv(n.conv_norm_act(n.norm_act(x), 4 * 32, 1), 32, 3))


def add_transition(n: Layers, x: int) -> int:
    """DenseNet's transition: norm, relu, 1x1 to half the channels, average pool."""
    return n.pool(n.conv(n.norm_act(x), n.shape(x)[-1] // 2), 2, 2, "average_pool")


def dense_net(size: int, channels: int, count: int = 1) -> Graph:
    """DenseNet's layers."""
    return _chain("dense-net", size, channels, add_dense, count)


def transition(size: int, channels: int) -> Graph:
    """DenseNet's transition."""
    return _chain("transition", size, channels, add_transition)


def add_inception(n: Layers, x: int, width: int, kernel: int | None) -> int:
    """Four branches behind `x` (1x1; 1x1 and 5x5 or 1xk and kx1; two 3x3; pool), concatenated."""
    first = n.conv_norm_act(x, width, 1)
    second = n.conv_norm_act(x, width // 2, 1)
    if kernel:
        second = n.conv_norm_act(
            n.conv_norm_act(second, width // 2, (1, kernel)), width, (kernel, 1)
        )
    else:
        second = n.conv_norm_act(second, width, 5)
    third = n.conv_norm_act(n.conv_norm_act(n.conv_norm_act(x, width // 2, 1), width, 3), width, 3)
    fourth = n.conv_norm_act(n.pool(x, 3, 1, "average_pool"), width // 2, 1)
    return n.concat(first, second, third, fourth)


def inception(
    size: int, channels: int, width: int, kernel: int | None = None, count: int = 1
) -> Graph:
    """Four branches side by side, concatenated."""
    return _chain(
        "inception", size, channels, lambda n, x: add_inception(n, x, width, kernel), count
    )


def _cell(n: Layers, before: int, x: int, channels: int) -> int:
    """Five parts of two cells' outputs: separable convolutions twice, pools, sums."""

    def sep(x: int, kernel: int) -> int:
        return add_separable(n, x, channels, kernel, 2)

    def pool(x: int) -> int:
        return n.pool(x, 3, 1, "average_pool")

    p, h = (n.conv_norm_act(n.same("relu", t), channels, 1, act=None) for t in (before, x))
    sums = [
        n.same("add", sep(h, 5), sep(p, 3)),
        n.same("add", sep(p, 5), sep(p, 3)),
        n.same("add", pool(h), p),
        n.same("add", pool(p), pool(p)),
        n.same("add", sep(h, 3), h),
    ]
    return n.concat(p, *sums)


def cell(size: int, channels: int, count: int = 1) -> Graph:
    """NASNet-like cells, each of the two before it."""
    n = Layers.on(f"cell {channels}", size, size, 6 * channels)
    before, x = n.input, n.input
    for _ in range(count):
        before, x = x, _cell(n, before, x, channels)
    return n.done(x)


def add_convnext(n: Layers, x: int, grouped: bool) -> int:
    """ConvNeXt's block behind `x`: depthwise 7x7, layer norm, dense x4, gelu, dense, shortcut."""
    channels = n.shape(x)[-1]
    if grouped:
        y = n.conv(x, channels, 7, groups=channels, bias=True)
    else:
        y = n.depthwise(x, 7, bias=True)
    y = n.dense(n.dense(n.same("layer_norm", y), 4 * channels, "gelu"), channels)
    return n.same("add", x, y)


def convnext(size: int, channels: int, count: int = 1, grouped: bool = True) -> Graph:
    """ConvNeXt's blocks.

    Keras' own ConvNeXt writes the depthwise convolution as Conv2D(groups=channels), which TensorFlow
    runs many times slower; `grouped` says which of the two.
    """
    return _chain("convnext", size, channels, lambda n, x: add_convnext(n, x, grouped), count)


def grouped(size: int, channels: int, groups: int, kernel: int = 3) -> Graph:
    """A grouped convolution, normalization, relu."""
    return _chain(
        "grouped", size, channels, lambda n, x: n.conv_norm_act(x, channels, kernel, groups=groups)
    )


def up(size: int, channels: int) -> Graph:
    """A U-Net's way up: transposed convolution, concatenation with the skip, convolution."""
    n = Layers.on(f"up {channels}", size, size, channels)
    skip = n.builder.input((1, 2 * size, 2 * size, channels // 2))
    x = n.up(n.input, channels // 2)
    return n.done(n.conv_norm_act(n.concat(x, skip), channels // 2, 3))


# ---- Pooling, normalization, dense layers


def pool(size: int, channels: int, kernel: int, stride: int, kind: str) -> Graph:
    """A pooling alone."""
    n = Layers.on(f"{kind} {channels}", size, size, channels)
    return n.done(n.pool(n.input, kernel, stride, kind))


def norm_act(size: int, channels: int, act: str = "relu", norm: str = "batch_norm") -> Graph:
    """Normalization and activation alone."""
    n = Layers.on(f"{norm} {channels}", size, size, channels)
    return n.done(n.same(act, n.same(norm, n.input)))


def head(size: int, channels: int) -> Graph:
    """A classifier: global average pool, dense layer, softmax."""
    n = Layers.on(f"head {channels}", size, size, channels)
    return classified(n, n.input)


def flat_head(size: int, channels: int, hidden: int) -> Graph:
    """VGG's classifier: flatten, two dense layers."""
    n = Layers.on(f"flat head {channels}", size, size, channels)
    return n.done(n.dense(n.dense(n.flatten(n.input), hidden, "relu"), 1000, "softmax"))


def mlp(features: int, hidden: int, count: int) -> Graph:
    """Dense layers with relu."""
    n = Layers.on(f"mlp {features}", 1, 1, features)
    x = n.flatten(n.input)
    for _ in range(count):
        x = n.dense(x, hidden, "relu")
    return n.done(x)


def regularized(features: int, hidden: int, count: int) -> Graph:
    """Dense layers with relu, each followed by dropout and normalization."""
    n = Layers.on(f"dense, dropout, norm {features}", 1, 1, features)
    x = n.flatten(n.input)
    for _ in range(count):
        x = n.norm(n.same("dropout", n.dense(x, hidden, "relu")))
    return n.done(n.dense(x, 10, "softmax"))


def add_encoder(n: Layers, x: int, heads: int) -> int:
    """A transformer block on a tensor of (1, tokens, features): attention and a perceptron, each behind a
    layer norm, with shortcuts."""
    _, tokens, features = n.shape(x)
    each = features // heads
    split, turned = (tokens, heads, each), (1, heads, tokens, each)
    y = n.same("layer_norm", x)
    query, key, value = (
        n.add("transpose", [n.view(n.dense(y, features), *split)], turned) for _ in range(3)
    )
    scores = n.add("matmul", [query, key], (1, heads, tokens, tokens), contracted=each)
    scores = n.same("softmax", n.same("scale", scores))
    y = n.add("matmul", [scores, value], turned, contracted=tokens)
    y = n.view(n.add("transpose", [y], (1, *split)), tokens, features)
    x = n.same("add", x, n.dense(y, features))
    return n.same("add", x, add_perceptron(n, n.same("layer_norm", x), 4 * features))


def add_perceptron(n: Layers, x: int, hidden: int, act: str = "gelu") -> int:
    """Two dense layers on every token."""
    return n.dense(n.dense(x, hidden, act), n.shape(x)[-1])


def encoder(tokens: int, features: int, heads: int, count: int = 1) -> Graph:
    """Transformer blocks."""
    n = Layers.on(f"encoder {tokens}x{features}", tokens, features)
    x = n.input
    for _ in range(count):
        x = add_encoder(n, x, heads)
    return n.done(x)


def token_mlp(tokens: int, features: int, hidden: int, act: str = "gelu") -> Graph:
    """A perceptron of two dense layers on every token."""
    n = Layers.on(f"token mlp {tokens}x{features}", tokens, features)
    return n.done(add_perceptron(n, n.input, hidden, act))


# ---- Small networks, from image to classes


def residual_network(size: int, width: int) -> Graph:
    """A small residual network: stem, four bottlenecks, head."""
    n = Layers.on("small resnet", size, size, 3)
    x = n.pool(n.conv_norm_act(n.input, width, 7, 2), 3, 2)
    for i in range(4):
        x = add_bottleneck(n, x, width * 4 * 2**i, width * 2**i, 1 if i == 0 else 2, 1)
    return classified(n, x)


def mobile_network(size: int, act: str, se: bool) -> Graph:
    """A small mobile network: stem, seven inverted residuals, head."""
    n = Layers.on("small mobile net", size, size, 3)
    x = n.conv_norm_act(n.input, 16, 3, 2, act=act)
    for out, stride in ((24, 2), (24, 1), (40, 2), (40, 1), (80, 2), (80, 1), (160, 2)):
        x = add_inverted(n, x, out, 4, 3, stride, act, se)
    return classified(n, n.conv_norm_act(x, 960, 1, act=act))


def small_vgg(size: int, filters: int) -> Graph:
    """A small image's network: twice two convolutions with bias, relu and a max pool; a classifier."""
    n = Layers.on(f"small vgg {filters}", size, size, 3)
    x = n.input
    for width in (filters, 2 * filters):
        x = n.pool(add_plain(n, add_plain(n, x, width), width), 2, 2)
    return n.done(n.dense(n.dense(n.flatten(x), 128, "relu"), 10, "softmax"))
