"""One rule per Keras layer: how a call of it is written as operations."""

from __future__ import annotations

from typing import Any

from lolat.readers.keras import composite as keras_composite
from lolat.readers.keras.composite import (
    Rule,
    activation,
    activation_kind,
    channels,
    einsum_features,
    plain,
    view,
    with_channels,
)


def _is_own(cls: type) -> bool:
    """Whether a class is Keras' own: a user's class of the same name may do anything."""
    return cls.__module__.startswith(("keras.src.layers", "keras.layers"))


_SAFE = {"__init__", "build", "get_config", "from_config"}
"""What a user's class may define and still do what the Keras layer does that it inherits from."""


def rule_of(layer: Any) -> Rule | None:
    """The rule for a layer: of its class, or of the Keras layer that a user's class only sets up."""
    for cls in type(layer).__mro__:
        if _is_own(cls):
            return RULES.get(cls.__name__)
        defined = {n for n, v in vars(cls).items() if callable(v) or hasattr(v, "__get__")}
        if defined - _SAFE - {"__dict__", "__weakref__"}:
            return None
    return None


def _convolution_attributes(layer: Any) -> dict[str, Any]:
    return {
        "kernel": tuple(layer.kernel_size),
        "strides": _tuple(layer.strides, len(layer.kernel_size)),
        "dilation": _tuple(layer.dilation_rate, len(layer.kernel_size)),
        "padding": str(layer.padding),
        "bias": bool(layer.use_bias),
    }


def _tuple(value: Any, count: int) -> tuple[int, ...]:
    return (int(value),) * count if isinstance(value, int) else tuple(int(v) for v in value)


def _conv(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    inside = channels(layer, r.builder.tensors[ins[0]].shape)
    groups = int(getattr(layer, "groups", 1))
    # Keras runs Conv2D(groups=channels) as a grouped convolution, not as DepthwiseConv2D: ConvNeXt
    # is written so, and takes many times longer than a depthwise kernel would.
    out = r.builder.add(
        "grouped_conv" if groups > 1 else "conv", ins[:1], shapes[0], layer.name, path,
        in_channels=inside, out_channels=int(layer.filters), groups=groups,
        **_convolution_attributes(layer),
    )  # fmt: skip
    return [activation(r, layer.activation, out, layer.name, path)]


def _conv_transposed(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    inside = channels(layer, r.builder.tensors[ins[0]].shape)
    out = r.builder.add(
        "transposed_conv", ins[:1], shapes[0], layer.name, path,
        in_channels=inside, out_channels=int(layer.filters), groups=1,
        **_convolution_attributes(layer),
    )  # fmt: skip
    return [activation(r, layer.activation, out, layer.name, path)]


def _depthwise(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    inside = channels(layer, r.builder.tensors[ins[0]].shape)
    out = r.builder.add(
        "depthwise_conv", ins[:1], shapes[0], layer.name, path,
        in_channels=inside, out_channels=inside * int(layer.depth_multiplier), groups=inside,
        **_convolution_attributes(layer),
    )  # fmt: skip
    return [activation(r, layer.activation, out, layer.name, path)]


def _separable(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    inside = channels(layer, r.builder.tensors[ins[0]].shape)
    between = inside * int(layer.depth_multiplier)
    attributes = _convolution_attributes(layer)
    spatial = len(attributes["kernel"])
    depthwise = r.builder.add(
        "depthwise_conv", ins[:1], with_channels(layer, shapes[0], between),
        f"{layer.name}_depthwise", path,
        in_channels=inside, out_channels=between, groups=inside, **{**attributes, "bias": False},
    )  # fmt: skip
    ones = (1,) * spatial
    out = r.builder.add(
        "conv", [depthwise], shapes[0], f"{layer.name}_pointwise", path,
        in_channels=between, out_channels=int(layer.filters), groups=1, kernel=ones, strides=ones,
        dilation=ones, padding="valid", bias=attributes["bias"],
    )  # fmt: skip
    return [activation(r, layer.activation, out, layer.name, path)]


def _dense(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    out = r.builder.add(
        "dense", ins[:1], shapes[0], layer.name, path,
        in_features=r.builder.tensors[ins[0]].shape[-1], out_features=int(layer.units),
        bias=bool(layer.use_bias),
    )  # fmt: skip
    return [activation(r, layer.activation, out, layer.name, path)]


def _einsum_dense(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    summed, kept = einsum_features(layer.equation, tuple(layer.kernel.shape))
    bias = layer.bias is not None
    out = r.builder.add(
        "dense", ins[:1], shapes[0], layer.name, path,
        in_features=summed, out_features=kept, bias=bias,
    )  # fmt: skip
    return [activation(r, layer.activation, out, layer.name, path)]


def _embedding(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    return [r.builder.add(
        "embedding", ins[:1], shapes[0], layer.name, path,
        rows=int(layer.input_dim), out_features=int(layer.output_dim),
    )]  # fmt: skip


def _dot(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    """The product of two activations over one axis each; normalised first where asked."""
    axes = layer.axes if isinstance(layer.axes, (tuple, list)) else (layer.axes, layer.axes)
    contracted = r.builder.tensors[ins[0]].shape[axes[0]]
    if layer.normalize:
        ins = [
            r.builder.add("unit_norm", [i], r.builder.tensors[i].shape, layer.name, path)
            for i in ins
        ]
    return [r.builder.add("matmul", ins, shapes[0], layer.name, path, contracted=contracted)]


def _batch_norm(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    return [r.builder.add("batch_norm", ins[:1], shapes[0], layer.name, path)]


def _normalization(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    """Of a network's input: it says of how many channels, which for an image are few."""
    attributes = {"channels": int(shapes[0][-1])}
    return [r.builder.add("batch_norm", ins[:1], shapes[0], layer.name, path, **attributes)]


def _pool(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    kind = "max_pool" if layer.pool_mode == "max" else "average_pool"
    size = layer.pool_size if isinstance(layer.pool_size, tuple) else (layer.pool_size,)
    return [r.builder.add(
        kind, ins, shapes[0], layer.name, path,
        kernel=tuple(size), strides=_tuple(layer.strides or size, len(size)),
        padding=str(layer.padding),
    )]  # fmt: skip


def _pad(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    given = layer.padding
    padding = (
        tuple(tuple(p) if isinstance(p, (tuple, list)) else (p, p) for p in given)
        if isinstance(given[0], (tuple, list))
        else (tuple(given),)
    )
    return [r.builder.add("pad", ins, shapes[0], layer.name, path, padding=padding)]


def _activation(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    kind = activation_kind(layer.activation)
    return [r.builder.add(kind, ins[:1], shapes[0], layer.name, path)]


def _relu(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    return [r.builder.add(activation_kind(layer), ins, shapes[0], layer.name, path)]


def _augmentation(r: Any, layer: Any, ins: Any, shapes: Any, path: str, node: Any) -> list[int]:
    """Random layers hand on what they get at inference; RandomCrop makes it fit."""
    same = [r.builder.tensors[i].shape for i in ins] == list(shapes)
    return plain("identity" if same else "resize")(r, layer, ins, shapes, path, node)


_AUGMENTATIONS = """
AugMix CutMix Equalization MixUp RandAugment RandomBrightness RandomColorDegeneration
RandomColorJitter RandomContrast RandomCrop RandomElasticTransform RandomErasing RandomFlip
RandomGaussianBlur RandomGrayscale RandomHue RandomInvert RandomPerspective RandomPosterization
RandomRotation RandomSaturation RandomSharpness RandomShear RandomTranslation RandomZoom Solarization
"""

_DIMENSIONS = ("1D", "2D", "3D")


def _each(pattern: str, rule: Rule) -> dict[str, Rule]:
    return {pattern.format(d): rule for d in _DIMENSIONS}


RULES: dict[str, Rule] = {
    **keras_composite.RULES,
    **dict.fromkeys(_AUGMENTATIONS.split(), _augmentation),
    **_each("Conv{}", _conv),
    **_each("Conv{}Transpose", _conv_transposed),
    **_each("DepthwiseConv{}", _depthwise),
    **_each("SeparableConv{}", _separable),
    **_each("MaxPooling{}", _pool),
    **_each("AveragePooling{}", _pool),
    **_each("GlobalAveragePooling{}", plain("global_average_pool")),
    **_each("GlobalMaxPooling{}", plain("global_max_pool")),
    **_each("AdaptiveAveragePooling{}", plain("adaptive_pool")),
    **_each("AdaptiveMaxPooling{}", plain("adaptive_pool")),
    **_each("ZeroPadding{}", _pad),
    **_each("Cropping{}", plain("crop")),
    **_each("UpSampling{}", plain("resize")),
    **_each("SpatialDropout{}", plain("dropout")),
    "Dense": _dense,
    "EinsumDense": _einsum_dense,
    "Embedding": _embedding,
    "BatchNormalization": _batch_norm,
    "LayerNormalization": plain("layer_norm"),
    "GroupNormalization": plain("group_norm"),
    "RMSNormalization": plain("rms_norm"),
    "UnitNormalization": plain("unit_norm"),
    "Normalization": _normalization,
    "Rescaling": plain("rescale"),
    "Resizing": plain("resize"),
    "Activation": _activation,
    "ReLU": _relu,
    "LeakyReLU": plain("leaky_relu"),
    "PReLU": plain("prelu"),
    "ELU": plain("elu"),
    "Softmax": plain("softmax"),
    "Add": plain("add"),
    "Subtract": plain("subtract"),
    "Multiply": plain("multiply"),
    "Average": plain("average"),
    "Maximum": plain("maximum"),
    "Minimum": plain("minimum"),
    "Dot": _dot,
    "Concatenate": plain("concatenate"),
    "Permute": plain("transpose"),
    "RepeatVector": plain("repeat"),
    "Reshape": view,
    "Flatten": view,
    "Dropout": plain("dropout"),
    "AlphaDropout": plain("dropout"),
    "GaussianDropout": plain("dropout"),
    "GaussianNoise": plain("dropout"),
    "ActivityRegularization": plain("identity"),
    "Identity": plain("identity"),
}
