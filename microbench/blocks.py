"""The predefined blocks, which are measured on every device and which every backend can build.

A row is a block, named `family channels x height x width`, with the batch sizes at which it is measured.
Families, channels (3 to 2048), kernels, strides and resolutions (1 to 224) vary so that the coefficients
can be told apart. The first nine blocks are those of the published tool.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from msgspec import structs

from lolat.graph import Graph
from lolat.graph.edits import folded
from lolat.graph.layers import Layers
from lolat.graph.quantized import SCHEMES, as_quantized

from . import families as f
from .backends import BACKENDS, split


@dataclass(frozen=True)
class Predefined:
    """A block, or a `whole` network, to measure at some batch sizes.

    `scheme`: the quantization scheme (`lolat.graph.quantized`), "" in float.
    """

    name: str
    make: Callable[[], Graph]
    batch_sizes: tuple[int, ...]
    whole: bool = False
    scheme: str = ""


def row(
    name: str, batch_sizes: tuple[int, ...], make: Callable[..., Graph], /, *a: object, **k: object
) -> Predefined:
    """A block whose graph is `make(*a, **k)`."""
    return Predefined(name, partial(make, *a, **k), batch_sizes)


def _chain(name: str, batch_sizes: tuple[int, ...], /, *a: object, **k: object) -> Predefined:
    return row(name, batch_sizes, f.chain, *a, **k)


_SILU = {"act": "silu", "se": True}  # EfficientNet's, with squeeze-excite
_HARD_SILU = {"act": "hard_silu", "se": True}  # MobileNetV3's

BLOCKS: tuple[Predefined, ...] = (
    # the published nine
    _chain("basic 256x14x14", (1,), f.basic, 14, 256),
    _chain("conv 3x3 3x224x224", (1,), f.plain, 224, 3, filters=64, kernel=3),
    _chain("bottleneck 256x56x56", (1, 4), f.bottleneck, 56, 256),
    _chain("bottleneck 1024x14x14", (1, 2), f.bottleneck, 14, 1024),
    _chain("bottleneck 64x56x56", (1,), f.bottleneck, 56, 64),
    _chain("bottleneck 224x28x28", (1,), f.bottleneck, 28, 224),
    _chain("inverted 24x56x56", (1,), f.inverted, 56, 24),
    _chain("inverted 16x112x112", (1,), f.inverted, 112, 16),
    _chain("mbconv 40x28x28", (1,), f.inverted, 28, 40, kernel=5, **_SILU),
    # entrances: three channels in
    _chain("stem 7x7/2 3x224x224", (1, 8), f.stem, 224, 3, filters=64, kernel=7, stride=2, pool=True),
    _chain("stem 3x3/2 3x224x224", (1, 8), f.stem, 224, 3, filters=32, kernel=3, stride=2),
    _chain("patchify 4x4/4 3x224x224", (1,), f.patchify, 224, 3, filters=96),
    # single convolutions
    _chain("conv 1x1 64x56x56", (1,), Layers.conv_norm_act, 56, 64, filters=256, kernel=1),
    _chain("conv 1x1 320x7x7", (1, 16), Layers.conv_norm_act, 7, 320, filters=1280, kernel=1),
    _chain("conv 1x1 1024x14x14", (1,), Layers.conv_norm_act, 14, 1024, filters=256, kernel=1),
    _chain("conv 1x1 2048x7x7", (1,), Layers.conv_norm_act, 7, 2048, filters=512, kernel=1),
    _chain("conv 3x3 32x112x112", (1,), Layers.conv_norm_act, 112, 32, filters=64, kernel=3),
    _chain("conv 3x3 512x7x7", (16,), Layers.conv_norm_act, 7, 512, filters=512, kernel=3),
    _chain("conv 3x3 512x14x14", (1,), Layers.conv_norm_act, 14, 512, filters=512, kernel=3),
    _chain("conv 3x3 128x28x28", (1,), Layers.conv_norm_act, 28, 128, filters=128, kernel=3),
    _chain("conv 5x5 48x35x35", (4,), f.plain, 35, 48, filters=64, kernel=5),
    # VGG
    _chain("vgg 64x224x224", (1,), f.vgg, 224, 64, filters=64, depth=2),
    _chain("vgg 256x56x56", (1,), f.vgg, 56, 256, filters=256, depth=2),
    _chain("vgg 512x14x14", (1, 4), f.vgg, 14, 512, filters=512, depth=3),
    # residual chains
    _chain("4 basic 64x56x56", (1,), f.basic, 56, 64, count=4),
    _chain("3 bottlenecks 64x56x56", (1,), f.bottleneck, 56, 64, out=256, count=3),
    _chain("3 bottlenecks 1024x14x14", (1, 8), f.bottleneck, 14, 1024, count=3),
    _chain("3 bottlenecks 2048x7x7", (1, 2, 4), f.bottleneck, 7, 2048, count=3),
    # groups
    _chain("grouped bottleneck 256x56x56", (1,), f.bottleneck, 56, 256, mid=128, groups=32),
    _chain("grouped bottleneck 1024x14x14", (1,), f.bottleneck, 14, 1024, mid=512, groups=32),
    _chain("grouped 3x3 128x28x28", (1, 4), Layers.conv_norm_act, 28, 128, filters=128, kernel=3,
           groups=32),
    # mobile chains
    _chain("3 mobile v1 32x112x112", (1, 4), f.mobile_v1, 112, 32, out=64, count=3),
    _chain("5 mobile v1 512x14x14", (1, 2, 8), f.mobile_v1, 14, 512, out=512, count=5),
    _chain("3 inverted/2 16x112x112", (1,), f.inverted, 112, 16, out=24, stride=2, count=3),
    _chain("4 inverted 32x28x28", (1, 8), f.inverted, 28, 32, count=4),
    _chain("4 inverted 96x14x14", (1,), f.inverted, 14, 96, count=4),
    _chain("3 inverted 160x7x7", (1, 2, 16), f.inverted, 7, 160, count=3),
    _chain("3 mbconv/2 16x112x112", (1,), f.inverted, 112, 16, out=24, stride=2, **_SILU, count=3),
    _chain("3 mbconv 40x28x28", (1, 8), f.inverted, 28, 40, kernel=5, **_SILU, count=3),
    _chain("4 mbconv 112x14x14", (1,), f.inverted, 14, 112, kernel=5, **_SILU, count=4),
    _chain("3 mbconv 192x7x7", (1, 2), f.inverted, 7, 192, kernel=5, **_SILU, count=3),
    _chain("3 mobile v3 40x28x28", (1, 4), f.inverted, 28, 40, expand=3, kernel=5, **_HARD_SILU, count=3),
    _chain("4 mobile v3 112x14x14", (1, 2), f.inverted, 14, 112, **_HARD_SILU, count=4),
    _chain("3 fused mbconv 48x56x56", (1,), f.fused, 56, 48, count=3),
    # separable chains
    _chain("depthwise 5x5/2 144x56x56", (4,), Layers.depthwise_norm_act, 56, 144, kernel=5, stride=2),
    _chain("depthwise 7x7 192x28x28", (1,), Layers.depthwise_norm_act, 28, 192, kernel=7, stride=1),
    _chain("depthwise 3x3 240x28x28", (1, 8), Layers.depthwise_norm_act, 28, 240, kernel=3, stride=1),
    _chain("3 separable 728x19x19", (1, 4), f.separable, 19, 728, out=728, depth=3),
    _chain("2 separable 128x74x74", (1,), f.separable, 74, 128, out=128, depth=2),
    # branches and concatenation
    _chain("6 dense-net 64x56x56", (1,), f.dense_net, 56, 64, count=6),
    _chain("8 dense-net 256x14x14", (1,), f.dense_net, 14, 256, count=8),
    _chain("6 dense-net 640x7x7", (1,), f.dense_net, 7, 640, count=6),
    _chain("transition 256x56x56", (1,), f.transition, 56, 256),
    _chain("2 inception 192x35x35", (1,), f.inception, 35, 192, width=64, count=2),
    _chain("2 inception 768x17x17", (1, 4), f.inception, 17, 768, width=192, kernel=7, count=2),
    row("2 cells 44x28x28", (1,), f.cell, 28, 44, count=2),
    row("2 cells 176x7x7", (4,), f.cell, 7, 176, count=2),
    row("up transposed 256x14x14", (1,), f.up, 14, 256),
    row("up transposed 64x56x56", (1,), f.up, 56, 64),
    row("up transposed 512x7x7", (1,), f.up, 7, 512),
    # ConvNeXt
    _chain("convnext 96x56x56", (1,), f.convnext, 56, 96),
    _chain("3 convnext 384x14x14", (1, 4), f.convnext, 14, 384, count=3),
    _chain("convnext depthwise 96x56x56", (1,), f.convnext, 56, 96, grouped=False),
    _chain("2 convnext depthwise 384x14x14", (1,), f.convnext, 14, 384, count=2, grouped=False),
    # transformers: attention, perceptrons on many tokens
    row("2 encoders 197x192", (1, 4), f.encoder, 197, 192, 3, 2),
    row("encoder 128x768", (1,), f.encoder, 128, 768, 12),
    row("encoder 64x256", (8,), f.encoder, 64, 256, 8),
    row("token mlp 3136x96", (1,), f.token_mlp, 3136, 96, 384),
    row("token mlp 196x384", (1, 4), f.token_mlp, 196, 384, 1536),
    row("token mlp 784x192 relu", (1,), f.token_mlp, 784, 192, 768, "relu"),
    # single poolings; a normalization with its activation
    _chain("max pool 3x3/2 64x112x112", (1,), Layers.pool, 112, 64, kernel=3, stride=2, kind="max_pool"),
    _chain("average pool 3x3 192x35x35", (4,), Layers.pool, 35, 192, kernel=3, stride=1,
           kind="average_pool"),
    _chain("norm, relu 256x56x56", (1,), Layers.norm_act, 56, 256),
    _chain("layer norm, gelu 384x14x14", (4,), Layers.norm_act, 14, 384, act="gelu", norm="layer_norm"),
    _chain("layer norm, gelu 96x56x56", (1,), Layers.norm_act, 56, 96, act="gelu", norm="layer_norm"),
    _chain("norm, silu 96x56x56", (1,), Layers.norm_act, 56, 96, act="silu"),
    # classifiers and dense layers
    _chain("head 2048x7x7", (1, 32), f.classes, 7, 2048),
    _chain("flat head 512x7x7", (1, 8), f.flat_classes, 7, 512, hidden=4096),
    row("mlp 3 x 1024", (1,), f.mlp, 1024, 1024, 3),
    row("mlp 2 x 4096", (1,), f.mlp, 4096, 4096, 2),
)  # fmt: skip

MOBILE = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3),
    (6, 160, 3, 2, 3), (6, 320, 1, 1, 3),
)  # fmt: skip
MBCONV = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip
BRANCHES = ((3, 64, None), (4, 192, 7), (2, 320, None))

NETWORKS: tuple[Predefined, ...] = tuple(replace(b, whole=True) for b in (
    row("residual 50 3x160x160", (1, 2), f.residual_network, 160, (3, 4, 6, 3)),
    row("residual 34 3x128x128", (1, 4), f.residual_network, 128, (3, 4, 6, 3), False),
    row("grouped residual 50 3x128x128", (1,), f.residual_network, 128, (3, 4, 6, 3), groups=32),
    row("inverted 3x224x224", (1, 2), f.inverted_network, 224, MOBILE, "relu6", False, 32, 1280),
    row("inverted 3x128x128", (8,), f.inverted_network, 128, MOBILE, "relu6", False, 32, 1280),
    row("mbconv 3x160x160", (1, 4), f.inverted_network, 160, MBCONV, "silu", True, 32, 1280),
    row("dense net 121 3x128x128", (1,), f.dense_network, 128, (6, 12, 24, 16)),
    row("vgg 11 3x96x96", (1, 4), f.plain_network, 96, (1, 1, 2, 2, 2)),
    row("separable 3x128x128", (1,), f.separable_network, 128, 728, 8),
    row("branches 3x160x160", (1,), f.inception_network, 160, BRANCHES),
    row("convnext 3x128x128", (1,), f.convnext_network, 128, (3, 3, 9, 3)),
    row("transformer 3x224x224", (1, 4), f.transformer, 224, 16, 384, 6, 8),
    row("u-net 3x96x96", (1,), f.u_net, 96, (32, 64, 128, 256, 512)),
))  # fmt: skip
"""Whole networks of real size, one per family: inside a network every operation is slower than alone."""
OF_GPU = 32
"""Factor on a block's largest batch size on a GPU, where small blocks show only the launch overhead. With a
factor of 8, two thirds of the classes of operations were host-bound in all their blocks on an H100."""


IN_INT8 = (
    "3 bottlenecks 1024x14x14", "grouped bottleneck 1024x14x14", "4 inverted 32x28x28",
    "3 mbconv 40x28x28", "4 mobile v3 112x14x14", "8 dense-net 256x14x14", "2 inception 192x35x35",
    "3 convnext 384x14x14", "2 encoders 197x192", "token mlp 196x384",
    "mlp 3 x 1024", "branches 3x160x160", "residual 34 3x128x128", "inverted 3x224x224", "mbconv 3x160x160",
    "transformer 3x224x224",
)  # fmt: skip
"""Names of blocks and networks in which the shares of INT8's classes of work differ."""
QUANTIZED: tuple[Predefined, ...] = tuple(
    replace(
        b,
        name=f"{b.name} {scheme}",
        make=lambda b=b, scheme=scheme: as_quantized(b.make(), scheme),  # type: ignore[misc]
        batch_sizes=b.batch_sizes[:1],
        scheme=scheme,
    )
    for b in (*BLOCKS, *NETWORKS)
    for scheme in SCHEMES
    if b.name in IN_INT8
)
"""The blocks of IN_INT8 in each scheme, for a backend that runs quantized networks."""


def for_device(device: str, backend: str) -> list[Predefined]:
    """The blocks that a backend measures, with batch sizes for a device ("cpu" or "gpu")."""
    blocks = [*BLOCKS, *NETWORKS]
    if device == "cpu":
        return blocks + [*QUANTIZED] * BACKENDS[split(backend)[0]].quantizes
    return [replace(b, batch_sizes=(b.batch_sizes[0], OF_GPU * b.batch_sizes[-1])) for b in blocks]


# ---- Blocks with the operations that a backend's reader finds in them, so that both count the same


def as_known(backend: str, graph: Graph) -> Graph:
    """`graph` with its operations as a backend's framework runs them.

    A convolution with as many groups as channels is a slow grouped convolution in TensorFlow, and a
    depthwise convolution in the other frameworks. In an `.onnx` file a convolution's bias includes the
    batch norm after it, which the exporter folds, or ONNX Runtime when it opens the file.
    """
    name, _ = split(backend)
    if name not in ("torch", "onnxruntime"):
        return graph
    operations = tuple(
        structs.replace(o, kind="depthwise_conv")
        if o.kind == "grouped_conv" and o.attributes["groups"] == o.attributes["in_channels"]
        else o
        for o in graph.operations
    )
    known = structs.replace(graph, operations=operations)
    if name == "torch":
        return known
    return folded(known, range(len(operations))) or known


def known_graphs(
    backend: str, blocks: Sequence[Predefined] = (*BLOCKS, *NETWORKS, *QUANTIZED)
) -> dict[str, Graph]:
    """Name of a block -> its graph, with its operations as a backend's framework runs them."""
    return {b.name: as_known(backend, b.make()) for b in blocks}
