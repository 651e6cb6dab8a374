"""The families of predefined blocks: how each is written, as a Graph of any size."""

from __future__ import annotations

from lolat.graph import Graph
from lolat.graph.layers import Layers


def stem(size: int, filters: int, kernel: int, stride: int, pool: bool = False) -> Graph:
    """The entrance of a network: rescale, convolution on 3 channels, norm, relu, maybe max pool."""
    n = Layers.on(f"stem {filters} {kernel}x{kernel}/{stride}", size, size, 3)
    x = n.same("rescale", n.input)
    x = n.conv_norm_act(x, filters, kernel, stride)
    return n.done(n.pool("max_pool", x, 3, 2) if pool else x)


def patchify(size: int, filters: int) -> Graph:
    """ConvNeXt's entrance: a 4x4 convolution with stride 4, layer normalization."""
    n = Layers.on("patchify", size, size, 3)
    return n.done(n.same("layer_norm", n.conv(n.input, filters, 4, 4, bias=True)))


def plain(
    size: int,
    channels: int,
    filters: int,
    kernel: int | tuple[int, int],
    count: int = 1,
) -> Graph:
    """Convolutions with bias and relu, as in VGG."""
    n = Layers.on(f"conv {channels}", size, size, channels)
    x = n.input
    for _ in range(count):
        x = n.same("relu", n.conv(x, filters, kernel, bias=True))
    return n.done(x)


def conv_bn(size: int, channels: int, filters: int, kernel: int) -> Graph:
    """Convolution, batch normalization, relu."""
    n = Layers.on(f"conv-bn {channels}", size, size, channels)
    return n.done(n.conv_norm_act(n.input, filters, kernel))


def basic(size: int, channels: int, count: int = 1) -> Graph:
    """ResNet's basic block: two 3x3 convolutions and the shortcut."""
    n = Layers.on(f"basic {channels}", size, size, channels)
    x = n.input
    for _ in range(count):
        y = n.conv_norm_act(n.conv_norm_act(x, channels, 3), channels, 3, act=None)
        x = n.same("relu", n.same("add", x, y))
    return n.done(x)


def add_bottleneck(n: Layers, x: int, out: int, mid: int, stride: int, groups: int) -> int:
    """One bottleneck behind `x`."""
    inside = n.shape(x)[-1]
    y = n.conv_norm_act(n.conv_norm_act(x, mid, 1), mid, 3, stride, groups)
    y = n.conv_norm_act(y, out, 1, act=None)
    if stride > 1 or inside != out:
        x = n.conv_norm_act(x, out, 1, stride, act=None)
    return n.same("relu", n.same("add", x, y))


def bottleneck(
    size: int,
    channels: int,
    out: int | None = None,
    mid: int | None = None,
    stride: int = 1,
    groups: int = 1,
    count: int = 1,
) -> Graph:
    """ResNet's bottleneck: 1x1, 3x3 (maybe grouped), 1x1, shortcut (a 1x1 where sizes differ)."""
    n = Layers.on(f"bottleneck {channels}", size, size, channels)
    x = n.input
    out = out or channels
    for i in range(count):
        x = add_bottleneck(n, x, out, mid or out // 4, stride if i == 0 else 1, groups)
    return n.done(x)


def add_inverted(
    n: Layers, x: int, out: int, expand: int, kernel: int, stride: int, act: str, se: bool
) -> int:
    """One inverted residual behind `x`."""
    inside = n.shape(x)[-1]
    y = n.conv_norm_act(x, inside * expand, 1, act=act) if expand > 1 else x
    y = n.norm_act(n.depthwise(y, kernel, stride), act)
    if se:
        gate = "hard_sigmoid" if act == "hard_silu" else "sigmoid"
        y = n.squeeze_excite(
            y, max(1, inside // 4), "relu" if act == "hard_silu" else act, gate, flat=True
        )
    y = n.conv_norm_act(y, out, 1, act=None)
    return n.same("add", x, y) if stride == 1 and inside == out else y


def inverted(
    size: int,
    channels: int,
    out: int | None = None,
    expand: int = 6,
    kernel: int = 3,
    stride: int = 1,
    act: str = "relu6",
    se: bool = False,
    count: int = 1,
) -> Graph:
    """MobileNetV2's inverted residual; with squeeze-excite and silu it is EfficientNet's MBConv."""
    n = Layers.on(f"inverted {channels}", size, size, channels)
    x = n.input
    for i in range(count):
        x = add_inverted(n, x, out or channels, expand, kernel, stride if i == 0 else 1, act, se)
    return n.done(x)


def fused(size: int, channels: int, count: int = 1) -> Graph:
    """EfficientNetV2's fused MBConv: a 3x3 that expands, a 1x1 that projects, the shortcut."""
    n = Layers.on(f"fused {channels}", size, size, channels)
    x = n.input
    for _ in range(count):
        y = n.conv_norm_act(x, channels * 4, 3, act="silu")
        x = n.same("add", x, n.conv_norm_act(y, channels, 1, act=None))
    return n.done(x)


def mobile_v1(size: int, channels: int, out: int, count: int = 1) -> Graph:
    """MobileNet's pairs: depthwise, norm, relu6, 1x1, norm, relu6."""
    n = Layers.on(f"mobile v1 {channels}", size, size, channels)
    x = n.input
    for _ in range(count):
        x = n.norm_act(n.depthwise(x), "relu6")
        x = n.conv_norm_act(x, out, 1, act="relu6")
    return n.done(x)


def vgg(size: int, channels: int, filters: int, count: int) -> Graph:
    """VGG's block: 3x3 convolutions with bias and relu, max pool."""
    n = Layers.on(f"vgg {channels}", size, size, channels)
    x = n.input
    for _ in range(count):
        x = n.same("relu", n.conv(x, filters, 3, bias=True))
    return n.done(n.pool("max_pool", x, 2, 2))


def depthwise(size: int, channels: int, kernel: int, stride: int) -> Graph:
    """A depthwise convolution, normalization, relu."""
    n = Layers.on(f"depthwise {channels}", size, size, channels)
    return n.done(n.norm_act(n.depthwise(n.input, kernel, stride)))


def separable(size: int, channels: int, out: int | None = None, count: int = 1) -> Graph:
    """Relu, depthwise, pointwise, normalization, as in Xception and NASNet; shortcut if it fits."""
    n = Layers.on(f"separable {channels}", size, size, channels)
    x = n.input
    for _ in range(count):
        x = n.depthwise(n.same("relu", x))
        x = n.norm(n.conv(x, out or channels))
    return n.done(n.same("add", n.input, x) if n.shape(x) == n.shape(n.input) else x)


def dense_net(size: int, channels: int, count: int = 1) -> Graph:
    """DenseNet's layers: norm, relu, 1x1, norm, relu, 3x3, concatenation with the input."""
    n = Layers.on(f"dense-net {channels}", size, size, channels)
    x = n.input
    for _ in range(count):
        y = n.conv_norm_act(n.norm_act(x), 4 * 32, 1)
        x = n.concat(x, n.conv(y, 32, 3))
    return n.done(x)


def transition(size: int, channels: int) -> Graph:
    """DenseNet's transition: norm, relu, 1x1 to half the channels, average pool."""
    n = Layers.on(f"transition {channels}", size, size, channels)
    return n.done(n.pool("average_pool", n.conv(n.norm_act(n.input), channels // 2), 2, 2))


def inception(
    size: int, channels: int, width: int, kernel: int | None = None, count: int = 1
) -> Graph:
    """Four branches side by side (1x1; 1x1 and 5x5 or 1xk and kx1; two 3x3; pool), concatenated."""
    n = Layers.on(f"inception {channels}", size, size, channels)
    x = n.input
    for _ in range(count):
        x = add_inception(n, x, width, kernel)
    return n.done(x)


def add_inception(n: Layers, x: int, width: int, kernel: int | None) -> int:
    """Four branches behind `x`, concatenated."""
    first = n.conv_norm_act(x, width, 1)
    second = n.conv_norm_act(x, width // 2, 1)
    if kernel:
        second = n.conv_norm_act(
            n.conv_norm_act(second, width // 2, (1, kernel)), width, (kernel, 1)
        )
    else:
        second = n.conv_norm_act(second, width, 5)
    third = n.conv_norm_act(n.conv_norm_act(n.conv_norm_act(x, width // 2, 1), width, 3), width, 3)
    fourth = n.conv_norm_act(n.pool("average_pool", x, 3, 1), width // 2, 1)
    return n.concat(first, second, third, fourth)


def _cell(n: Layers, before: int, x: int, channels: int) -> int:
    """Five parts of two cells' outputs: separable convolutions twice, pools, sums."""

    def sep(x: int, kernel: int) -> int:
        for _ in range(2):
            x = n.norm(n.conv(n.depthwise(n.same("relu", x), kernel), channels))
        return x

    p = n.conv_norm_act(n.same("relu", before), channels, 1, act=None)
    h = n.conv_norm_act(n.same("relu", x), channels, 1, act=None)
    sums = [
        n.same("add", sep(h, 5), sep(p, 3)),
        n.same("add", sep(p, 5), sep(p, 3)),
        n.same("add", n.pool("average_pool", h, 3, 1), p),
        n.same("add", n.pool("average_pool", p, 3, 1), n.pool("average_pool", p, 3, 1)),
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


def convnext(size: int, channels: int, count: int = 1, grouped: bool = True) -> Graph:
    """ConvNeXt's block: depthwise 7x7, layer norm, dense x4, gelu, dense, shortcut.

    Keras' own ConvNeXt writes the depthwise convolution as Conv2D(groups=channels), which TensorFlow
    runs many times slower; `grouped` says which of the two.
    """
    n = Layers.on(f"convnext {channels}", size, size, channels)
    x = n.input
    for _ in range(count):
        x = add_convnext(n, x, grouped)
    return n.done(x)


def add_convnext(n: Layers, x: int, grouped: bool) -> int:
    """One block of ConvNeXt behind `x`."""
    channels = n.shape(x)[-1]
    if grouped:
        y = n.conv(x, channels, 7, groups=channels, bias=True)
    else:
        y = n.depthwise(x, 7, bias=True)
    y = n.dense(n.dense(n.same("layer_norm", y), 4 * channels, "gelu"), channels)
    return n.same("add", x, y)


def grouped(size: int, channels: int, groups: int, kernel: int = 3) -> Graph:
    """A grouped convolution, normalization, relu."""
    n = Layers.on(f"grouped {channels}", size, size, channels)
    return n.done(n.conv_norm_act(n.input, channels, kernel, groups=groups))


def residual_network(size: int, width: int) -> Graph:
    """A small residual network from image to classes: stem, four bottlenecks, head."""
    n = Layers.on("small resnet", size, size, 3)
    x = n.pool("max_pool", n.conv_norm_act(n.input, width, 7, 2), 3, 2)
    for i in range(4):
        x = add_bottleneck(n, x, width * 4 * 2**i, width * 2**i, 1 if i == 0 else 2, 1)
    return n.done(n.dense(n.global_pool(x, flat=True), 1000, "softmax"))


def mobile_network(size: int, act: str, se: bool) -> Graph:
    """A small mobile network from image to classes: stem, seven inverted residuals, head."""
    n = Layers.on("small mobile net", size, size, 3)
    x = n.conv_norm_act(n.input, 16, 3, 2, act=act)
    for out, stride in ((24, 2), (24, 1), (40, 2), (40, 1), (80, 2), (80, 1), (160, 2)):
        x = add_inverted(n, x, out, 4, 3, stride, act, se)
    return n.done(
        n.dense(n.global_pool(n.conv_norm_act(x, 960, 1, act=act), flat=True), 1000, "softmax")
    )


# ---- Predefined blocks that are no convolutional family: pooling, normalization, classifiers,
# the way up.


def pool(size: int, channels: int, kernel: int, stride: int, kind: str) -> Graph:
    """A pooling alone."""
    n = Layers.on(f"{kind} {channels}", size, size, channels)
    return n.done(n.pool(kind, n.input, kernel, stride))


def norm_act(size: int, channels: int, act: str = "relu", norm: str = "batch_norm") -> Graph:
    """Normalisation and activation alone."""
    n = Layers.on(f"{norm} {channels}", size, size, channels)
    return n.done(n.same(act, n.same(norm, n.input)))


def head(size: int, channels: int) -> Graph:
    """A classifier: global average pool, dense layer, softmax."""
    n = Layers.on(f"head {channels}", size, size, channels)
    return n.done(n.dense(n.global_pool(n.input, flat=True), 1000, "softmax"))


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


def small_vgg(size: int, filters: int) -> Graph:
    """A small image's network: twice two convolutions with bias, relu and a max pool; a classifier."""
    n = Layers.on(f"small vgg {filters}", size, size, 3)
    x = n.input
    for width in (filters, 2 * filters):
        for _ in range(2):
            x = n.same("relu", n.conv(x, width, 3, bias=True))
        x = n.pool("max_pool", x, 2, 2)
    return n.done(n.dense(n.dense(n.flatten(x), 128, "relu"), 10, "softmax"))


def up(size: int, channels: int) -> Graph:
    """A U-Net's way up: transposed convolution, concatenation with the skip, convolution."""
    n = Layers.on(f"up {channels}", size, size, channels)
    shape = (1, 2 * size, 2 * size, channels // 2)
    skip = n.builder.input(shape)
    x = n.up(n.input, channels // 2)
    return n.done(n.conv_norm_act(n.concat(x, skip), channels // 2, 3))


def encoder(tokens: int, features: int, heads: int, count: int = 1) -> Graph:
    """Transformer blocks: attention and a perceptron, each behind a layer norm, with shortcuts."""
    n = Layers.on(f"encoder {tokens}x{features}", tokens, features)
    x = n.input
    for _ in range(count):
        x = add_encoder(n, x, heads)
    return n.done(x)


def add_encoder(n: Layers, x: int, heads: int) -> int:
    """One transformer block on a tensor of (1, tokens, features)."""
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
    return n.same(
        "add", x, n.dense(n.dense(n.same("layer_norm", x), 4 * features, "gelu"), features)
    )


def token_mlp(tokens: int, features: int, hidden: int, act: str = "gelu") -> Graph:
    """A perceptron of two dense layers on every token."""
    n = Layers.on(f"token mlp {tokens}x{features}", tokens, features)
    return n.done(n.dense(n.dense(n.input, hidden, act), features))
