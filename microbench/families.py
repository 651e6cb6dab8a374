"""Blocks of families of networks as Graphs: steps, chains of steps, and whole networks.

A step takes a network under construction and its input tensor, and returns its output tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lolat.graph import Graph
from lolat.graph.layers import Layers

Step = Callable[..., int]


def chain(
    step: Step,
    size: int,
    channels: int,
    count: int = 1,
    stride: int | None = None,
    **options: object,
) -> Graph:
    """A chain of `count` steps on size x size positions with `channels`; `stride`: of the first step."""
    n = Layers.on(f"{step.__name__} {channels}", size, size, channels)
    x = n.input
    for i in range(count):
        x = step(n, x, **options, **({} if stride is None or i else {"stride": stride}))
    return n.done(x)


# ---- Steps


def stem(n: Layers, x: int, filters: int, kernel: int, stride: int, pool: bool = False) -> int:
    """The entrance of a network: rescaling, a convolution on 3 channels, norm, relu, max pool if `pool`."""
    x = n.conv_norm_act(n.same("rescale", x), filters, kernel, stride)
    return n.pool(x, 3, 2) if pool else x


def patchify(n: Layers, x: int, filters: int) -> int:
    """ConvNeXt's entrance: a 4x4 convolution with stride 4, and a layer normalization."""
    return n.same("layer_norm", n.conv(x, filters, 4, 4, bias=True))


def plain(n: Layers, x: int, filters: int, kernel: int = 3) -> int:
    """A convolution with bias and relu, as in VGG."""
    return n.same("relu", n.conv(x, filters, kernel, bias=True))


def vgg(n: Layers, x: int, filters: int, depth: int) -> int:
    """VGG's block: 3x3 convolutions with bias and relu, then a max pool."""
    for _ in range(depth):
        x = plain(n, x, filters)
    return n.pool(x, 2, 2)


def _residual(n: Layers, x: int, y: int, stride: int) -> int:
    """The sum of a branch and its shortcut, then relu; the shortcut is a 1x1 conv if sizes differ."""
    if n.shape(x) != n.shape(y):
        x = n.conv_norm_act(x, n.shape(y)[-1], 1, stride, act=None)
    return n.same("relu", n.same("add", x, y))


def basic(n: Layers, x: int, width: int | None = None, stride: int = 1) -> int:
    """ResNet's basic block: two 3x3 convolutions and a shortcut."""
    width = width or n.shape(x)[-1]
    y = n.conv_norm_act(n.conv_norm_act(x, width, 3, stride), width, 3, act=None)
    return _residual(n, x, y, stride)


def bottleneck(
    n: Layers, x: int, out: int | None = None, mid: int | None = None, stride: int = 1, groups: int = 1
) -> int:  # fmt: skip
    """ResNet's bottleneck: 1x1, 3x3 (in `groups`) and 1x1 convolutions, and a shortcut."""
    out = out or n.shape(x)[-1]
    mid = mid or out // 4
    y = n.conv_norm_act(n.conv_norm_act(x, mid, 1), mid, 3, stride, groups)
    return _residual(n, x, n.conv_norm_act(y, out, 1, act=None), stride)


def inverted(
    n: Layers,
    x: int,
    out: int | None = None,
    expand: int = 6,
    kernel: int = 3,
    stride: int = 1,
    act: str = "relu6",
    se: bool = False,
) -> int:
    """MobileNetV2's inverted residual; with squeeze-excite and silu it is EfficientNet's MBConv."""
    inside = n.shape(x)[-1]
    out = out or inside
    y = n.conv_norm_act(x, inside * expand, 1, act=act) if expand > 1 else x
    y = n.depthwise_norm_act(y, kernel, stride, act=act)
    if se:
        inner, gate = ("relu", "hard_sigmoid") if act == "hard_silu" else (act, "sigmoid")
        y = n.squeeze_excite(y, max(1, inside // 4), inner, gate)
    y = n.conv_norm_act(y, out, 1, act=None)
    return n.same("add", x, y) if stride == 1 and inside == out else y


def fused(n: Layers, x: int) -> int:
    """EfficientNetV2's fused MBConv: a 3x3 that expands, a 1x1 that projects, and a shortcut."""
    channels = n.shape(x)[-1]
    y = n.conv_norm_act(x, channels * 4, 3, act="silu")
    return n.same("add", x, n.conv_norm_act(y, channels, 1, act=None))


def mobile_v1(n: Layers, x: int, out: int) -> int:
    """MobileNet's block: depthwise convolution, norm, relu6, 1x1 convolution, norm, relu6."""
    return n.conv_norm_act(n.depthwise_norm_act(x, act="relu6"), out, 1, act="relu6")


def pair(n: Layers, x: int, out: int, kernel: int = 3) -> int:
    """Relu, depthwise and pointwise convolution, normalization, as in Xception and NASNet."""
    return n.same("batch_norm", n.conv(n.depthwise(n.same("relu", x), kernel), out))


def separable(n: Layers, x: int, out: int, depth: int) -> int:
    """A number of `pair` steps, with a shortcut if the shapes fit."""
    y = x
    for _ in range(depth):
        y = pair(n, y, out)
    return n.same("add", x, y) if n.shape(x) == n.shape(y) else y


def dense_net(n: Layers, x: int) -> int:
    """A DenseNet layer of growth 32: norm, relu, 1x1, norm, relu, 3x3, concatenation with the input."""
    return n.concat(x, n.conv(n.conv_norm_act(n.norm_act(x), 4 * 32, 1), 32, 3))


def transition(n: Layers, x: int) -> int:
    """DenseNet's transition: norm, relu, a 1x1 that halves the channels, average pool."""
    return n.pool(n.conv(n.norm_act(x), n.shape(x)[-1] // 2), 2, 2, "average_pool")


def inception(n: Layers, x: int, width: int, kernel: int | None = None) -> int:
    """Four branches side by side (1x1; 1x1 and 5x5 or 1xk and kx1; two 3x3; pool), concatenated."""
    first = n.conv_norm_act(x, width, 1)
    second = n.conv_norm_act(x, width // 2, 1)
    if kernel:
        second = n.conv_norm_act(second, width // 2, (1, kernel))
    second = n.conv_norm_act(second, width, (kernel, 1) if kernel else 5)
    third = n.conv_norm_act(n.conv_norm_act(n.conv_norm_act(x, width // 2, 1), width, 3), width, 3)
    fourth = n.conv_norm_act(n.pool(x, 3, 1, "average_pool"), width // 2, 1)
    return n.concat(first, second, third, fourth)


def convnext(n: Layers, x: int, grouped: bool = True) -> int:
    """ConvNeXt's block: depthwise 7x7, layer norm, dense x4, gelu, dense, shortcut.

    `grouped`: True for the depthwise convolution as Conv2D(groups=channels), as in Keras' own ConvNeXt;
    TensorFlow runs it many times slower.
    """
    channels = n.shape(x)[-1]
    kind = "conv" if grouped else "depthwise_conv"
    y = n.conv(x, channels, 7, groups=channels, bias=True, kind=kind)
    y = n.dense(n.dense(n.same("layer_norm", y), 4 * channels, "gelu"), channels)
    return n.same("add", x, y)


def classes(n: Layers, x: int) -> int:
    """A classifier: global average pool, dense layer, softmax."""
    return n.dense(n.global_pool(x, flat=True), 1000, "softmax")


def flat_classes(n: Layers, x: int, hidden: int) -> int:
    """VGG's classifier: flatten, two dense layers."""
    return n.dense(n.dense(n.flatten(x), hidden, "relu"), 1000, "softmax")


# ---- Blocks that are no chain of steps


def _cell(n: Layers, before: int, x: int, channels: int) -> int:
    """Five sums of separable convolutions and pools of two cells' outputs, concatenated."""

    def sep(x: int, kernel: int) -> int:
        return pair(n, pair(n, x, channels, kernel), channels, kernel)

    def mean(x: int) -> int:
        return n.pool(x, 3, 1, "average_pool")

    p = n.conv_norm_act(n.same("relu", before), channels, 1, act=None)
    h = n.conv_norm_act(n.same("relu", x), channels, 1, act=None)
    sums = [n.same("add", sep(h, 5), sep(p, 3)), n.same("add", sep(p, 5), sep(p, 3))]
    sums += [
        n.same("add", mean(h), p),
        n.same("add", mean(p), mean(p)),
        n.same("add", sep(h, 3), h),
    ]
    return n.concat(p, *sums)


def cell(size: int, channels: int, count: int = 1) -> Graph:
    """NASNet-like cells, each of which reads the outputs of the two cells before it."""
    n = Layers.on(f"cell {channels}", size, size, 6 * channels)
    before, x = n.input, n.input
    for _ in range(count):
        before, x = x, _cell(n, before, x, channels)
    return n.done(x)


def mlp(features: int, hidden: int, count: int, regularized: bool = False) -> Graph:
    """Dense layers with relu; `regularized`: dropout and normalization after each, and a classifier."""
    n = Layers.on(f"mlp {features}", 1, 1, features)
    x = n.flatten(n.input)
    for _ in range(count):
        x = n.dense(x, hidden, "relu")
        if regularized:
            x = n.same("batch_norm", n.same("dropout", x))
    return n.done(n.dense(x, 10, "softmax") if regularized else x)


def small_vgg(size: int, filters: int) -> Graph:
    """A network for small images: two convolutions with bias, relu and a max pool, twice; a classifier."""
    n = Layers.on(f"small vgg {filters}", size, size, 3)
    x = n.input
    for width in (filters, 2 * filters):
        x = vgg(n, x, width, 2)
    return n.done(n.dense(n.dense(n.flatten(x), 128, "relu"), 10, "softmax"))


def up(size: int, channels: int) -> Graph:
    """A step of a U-Net's upward path: transposed convolution, concatenation with the skip, convolution."""
    n = Layers.on(f"up {channels}", size, size, channels)
    skip = n.builder.input((1, 2 * size, 2 * size, channels // 2))
    x = n.concat(n.up(n.input, channels // 2), skip)
    return n.done(n.conv_norm_act(x, channels // 2, 3))


def encoder(tokens: int, features: int, heads: int, count: int = 1) -> Graph:
    """Transformer blocks: attention and a perceptron, each after a layer norm, with shortcuts."""
    n = Layers.on(f"encoder {tokens}x{features}", tokens, features)
    x = n.input
    for _ in range(count):
        x = encode(n, x, heads)
    return n.done(x)


def encode(n: Layers, x: int, heads: int) -> int:
    """One transformer block on a tensor of shape (1, tokens, features)."""
    _, tokens, features = n.shape(x)
    each = features // heads
    of_heads, to_heads = (1, heads, tokens, each), (0, 2, 1, 3)

    def split(y: int) -> int:
        y = n.view(n.dense(y, features), tokens, heads, each)
        return n.add("transpose", [y], of_heads, permutation=to_heads)

    y = n.same("layer_norm", x)
    query, key, value = split(y), split(y), split(y)
    scores = n.add("matmul", [query, key], (1, heads, tokens, tokens), contracted=each)
    scores = n.same("softmax", n.same("scale", scores))
    y = n.add("matmul", [scores, value], of_heads, contracted=tokens)
    y = n.add("transpose", [y], (1, tokens, heads, each), permutation=to_heads)
    x = n.same("add", x, n.dense(n.view(y, tokens, features), features))
    y = n.dense(n.same("layer_norm", x), 4 * features, "gelu")
    return n.same("add", x, n.dense(y, features))


def token_mlp(tokens: int, features: int, hidden: int, act: str = "gelu") -> Graph:
    """A perceptron of two dense layers, applied to every token."""
    n = Layers.on(f"token mlp {tokens}x{features}", tokens, features)
    return n.done(n.dense(n.dense(n.input, hidden, act), features))


# ---- Whole networks, from the input to the classes
#
# Operations are slower inside a network, which these measure: one network of each family, with depths and
# widths of published networks, small enough for some ten calls a second.


def residual_network(size: int, depths: Sequence[int], deep: bool = True, groups: int = 1) -> Graph:
    """A residual network (He et al. 2015): stem, four stages of bottlenecks or basic blocks, classifier."""
    n = Layers.on("residual network", size, size, 3)
    x = n.pool(n.conv_norm_act(n.input, 64, 7, 2), 3, 2)
    for stage, depth in enumerate(depths):
        width = 64 * 2**stage
        for i in range(depth):
            stride = 2 if stage and i == 0 else 1
            if deep:
                x = bottleneck(n, x, 4 * width, width * (1 if groups == 1 else 2), stride, groups)
            else:
                x = basic(n, x, width, stride)
    return n.done(classes(n, x))


def inverted_network(
    size: int,
    rows: Sequence[tuple[int, int, int, int, int]],
    act: str,
    se: bool,
    stem: int,
    last: int,
) -> Graph:
    """A network of inverted residuals (Sandler et al. 2018).

    `rows`: (expansion, channels, count, stride, kernel) of each stage.
    """
    n = Layers.on("inverted residual network", size, size, 3)
    x = n.conv_norm_act(n.input, stem, 3, 2, act=act)
    for expand, out, count, stride, kernel in rows:
        for i in range(count):
            x = inverted(n, x, out, expand, kernel, stride if i == 0 else 1, act, se)
    return n.done(classes(n, n.conv_norm_act(x, last, 1, act=act)))


def dense_network(size: int, depths: Sequence[int]) -> Graph:
    """A network of dense blocks with growth 32 and transitions between them (Huang et al. 2017)."""
    n = Layers.on("dense network", size, size, 3)
    x = n.pool(n.conv_norm_act(n.input, 64, 7, 2), 3, 2)
    for stage, depth in enumerate(depths):
        if stage:
            x = transition(n, x)
        for _ in range(depth):
            x = dense_net(n, x)
    return n.done(classes(n, n.norm_act(x)))


def plain_network(size: int, depths: Sequence[int]) -> Graph:
    """A network of 3x3 convolutions with bias, max pools and a small head (Simonyan and Zisserman 2014)."""
    n = Layers.on("plain network", size, size, 3)
    x = n.input
    for stage, depth in enumerate(depths):
        x = vgg(n, x, min(512, 64 * 2**stage), depth)
    return n.done(flat_classes(n, x, 1024))


def separable_network(size: int, width: int, middle: int) -> Graph:
    """A network of separable convolutions in threes, with shortcuts (Chollet 2017)."""
    n = Layers.on("separable network", size, size, 3)
    x = n.conv_norm_act(n.conv_norm_act(n.input, 32, 3, 2), 64, 3)
    for out in (128, 256, width):
        y = n.pool(pair(n, pair(n, x, out), out), 3, 2)
        x = n.same("add", n.conv_norm_act(x, out, 1, 2, act=None), y)
    for _ in range(middle):
        x = separable(n, x, width, 3)
    return n.done(classes(n, n.same("relu", pair(n, pair(n, x, 1536), 2048))))


def inception_network(size: int, rows: Sequence[tuple[int, int, int | None]]) -> Graph:
    """A network of parallel, concatenated branches; `rows`: count, width, kernel (Szegedy et al. 2016)."""
    n = Layers.on("network of branches", size, size, 3)
    x = n.conv_norm_act(n.conv_norm_act(n.conv_norm_act(n.input, 32, 3, 2), 32, 3), 64, 3)
    x = n.conv_norm_act(n.pool(x, 3, 2), 192, 3)
    for count, width, kernel in rows:
        x = n.pool(x, 3, 2)
        for _ in range(count):
            x = inception(n, x, width, kernel)
    return n.done(classes(n, x))


def convnext_network(size: int, depths: Sequence[int], width: int = 96) -> Graph:
    """A ConvNeXt: depthwise 7x7, layer norm, and a perceptron on every position (Liu et al. 2022)."""
    n = Layers.on("convnext", size, size, 3)
    x = patchify(n, n.input, width)
    for stage, depth in enumerate(depths):
        if stage:
            x = n.conv(n.same("layer_norm", x), width * 2**stage, 2, 2, bias=True)
        for _ in range(depth):
            x = convnext(n, x, grouped=False)
    return n.done(classes(n, x))


def transformer(size: int, patch: int, features: int, heads: int, depth: int) -> Graph:
    """A vision transformer (Dosovitskiy et al. 2021) without a class token."""
    n = Layers.on("transformer", size, size, 3)
    x = n.conv(n.input, features, patch, patch, bias=True)
    x = n.view(x, (size // patch) ** 2, features)
    for _ in range(depth):
        x = encode(n, x, heads)
    x = n.add("global_average_pool", [n.same("layer_norm", x)], (1, features))
    return n.done(n.dense(x, 1000, "softmax"))


def u_net(size: int, widths: Sequence[int]) -> Graph:
    """A U-Net: down with max pools, up with transposed convolutions and skips (Ronneberger et al. 2015)."""
    n = Layers.on("u-net", size, size, 3)
    x, skips = n.input, []
    for width in widths[:-1]:
        x = n.conv_norm_act(n.conv_norm_act(x, width, 3), width, 3)
        skips.append(x)
        x = n.pool(x, 2, 2)
    x = n.conv_norm_act(n.conv_norm_act(x, widths[-1], 3), widths[-1], 3)
    for width, skip in zip(widths[-2::-1], skips[::-1], strict=True):
        x = n.conv_norm_act(n.conv_norm_act(n.concat(n.up(x, width), skip), width, 3), width, 3)
    return n.done(n.conv(x, 2, 1, bias=True))
