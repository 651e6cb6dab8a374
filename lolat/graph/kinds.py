"""The counts told apart by kinds of operations: what a family counts, and which kind an operation is of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from lolat.graph import Graph, Operation, is_convolution

if TYPE_CHECKING:
    from lolat.graph.counts import Count

# ---- Kinds of operations by what they do with their data, and how often some go over it.

_ELEMENTWISE = """
relu relu6 leaky_relu prelu elu selu celu silu sigmoid hard_sigmoid hard_silu gelu tanh softmax
log_softmax softplus softsign mish exponential glu squareplus hard_tanh log_sigmoid threshold erf sqrt
rsqrt square power absolute negative log exp reciprocal clip round sign cast where compare add subtract
multiply divide maximum minimum average scale rescale trigonometric bitwise one_hot hard_shrink soft_shrink
tanh_shrink sparse_plus sparse_sigmoid sparsemax
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
"""Kinds that read their operands and write their result, element by element."""

NORMALISATIONS = frozenset(
    ["batch_norm", "layer_norm", "group_norm", "instance_norm", "rms_norm", "unit_norm"]
)
POOLINGS = frozenset(
    ["max_pool", "average_pool", "global_average_pool", "global_max_pool", "adaptive_pool"]
)
PASSES = {
    **dict.fromkeys(["silu", "sigmoid", "hard_silu", "hard_sigmoid", "tanh", "elu", "selu"], 1),
    **dict.fromkeys(sorted(POOLINGS), 1),
    "batch_norm": 1,
    **dict.fromkeys(["gelu", "erf", "mish", "softplus", "softmax", "log_softmax"], 3),
    **dict.fromkeys(["layer_norm", "group_norm", "instance_norm", "rms_norm"], 6),
}
"""Kinds that go over their data more than once (or compute an exp or erf): how many passes more."""
EXPONENTIALS = frozenset(
    ["silu", "sigmoid", "tanh", "elu", "selu", "celu", "gelu", "erf", "mish", "softplus", "softmax",
     "log_softmax", "log_sigmoid", "exponential", "log"]
)  # fmt: skip
"""Kinds that compute an exponential, a logarithm or an error function of every element."""
FREE = frozenset(["reshape", "flatten", "squeeze", "expand_dims", "identity", "dropout"])

# ---- families ----------------------------------------

KINDS: dict[str, tuple[str, ...]] = {
    "flops": (
        "pointwise_macs", "spatial_macs", "depthwise_macs", "grouped_macs", "dense_macs", "flat_macs",
        "product_macs",
    ),
    "weights": ("pointwise_weights", "spatial_weights", "grouped_weights", "dense_weights"),
    "elements": (
        "conv_reads", "conv_writes", "depthwise_reads", "depthwise_writes", "dense_elements",
        "pool_elements", "norm_elements", "layer_norm_elements", "curve_elements", "clip_elements",
        "pair_elements", "joined_elements", "moved_elements",
    ),
    "ops": (
        "conv_ops", "depthwise_ops", "dense_ops", "pool_ops", "norm_ops", "curve_ops", "pair_ops",
        "move_ops",
    ),
}  # fmt: skip
"""The same work told apart by kinds of operations: what a family counts -> its kinds, which add up to it.

A device's formula starts from one cost for each family and lets a kind differ from it where the points of
the device say so (`lolat.fitting.least_squares.fit_families`).
"""
GROUPS: dict[str, str] = {
    **{
        name: "memory" if family == "elements" else family
        for family, names in KINDS.items()
        for name in names
    },
    **{name: name for name in ("flops", "weights", "ops", "patches")},
    **dict.fromkeys(("exps", "gelus"), "flops"),
    "narrow": "patches",
    **dict.fromkeys(("repacked",), "weights"),
    **dict.fromkeys(("serial", "groups", "maps", "ragged", "threaded"), "ops"),
    **dict.fromkeys(
        ("acts", "inp", "traffic", "passes", "streamed", "maxima", "means", "border", "unfolded"),
        "memory",
    ),
}
"""What the time of each term goes to, in a word: flops (computing), weights, memory, patches, ops."""

_CURVES = EXPONENTIALS | {"trigonometric", "power", "sqrt", "rsqrt"}
_PAIRS = frozenset(["add", "subtract", "multiply", "divide", "scale", "rescale", "maximum", "minimum",
                    "average", "square", "absolute", "negative", "where", "compare"])  # fmt: skip
_BATCH_NORMS = frozenset({"batch_norm"})
_CLASSES: dict[str, tuple[str, str]] = {  # kind -> (its elements, its operations)
    **dict.fromkeys(ELEMENTWISE, ("clip_elements", "curve_ops")),
    **dict.fromkeys(_CURVES, ("curve_elements", "curve_ops")),
    **dict.fromkeys(_PAIRS, ("pair_elements", "pair_ops")),
    **dict.fromkeys(NORMALISATIONS - _BATCH_NORMS, ("layer_norm_elements", "norm_ops")),
    **dict.fromkeys(_BATCH_NORMS, ("norm_elements", "norm_ops")),
    **dict.fromkeys(POOLINGS, ("pool_elements", "pool_ops")),
    **dict.fromkeys(("concatenate", "stack"), ("joined_elements", "move_ops")),
    **dict.fromkeys(
        ("dense", "matmul", "lstm", "gru", "simple_rnn"), ("dense_elements", "dense_ops")
    ),
}


def by_kind(
    graph: Graph, operation: Operation, plain: Count, outs: Sequence[int]
) -> dict[str, int]:
    """The counts of KINDS, `unfolded`, `maps` and `gelus`, of an operation whose formula says `plain`."""
    kind, a = operation.kind, operation.attributes
    if is_convolution(kind):
        found = _convolution_by_kind(kind, a, plain, outs)
        if kind in ("depthwise_conv", "grouped_conv"):
            found["maps"] = a["groups"] * outs[0] // graph.tensors[operation.outputs[0]].elements()
        return found
    elements, started = _CLASSES.get(kind, ("moved_elements", "move_ops"))
    found = {elements: plain.traffic, started: plain.ops, "dense_weights": plain.weights}
    if plain.flops:
        one = graph.tensors[operation.outputs[0]].elements()
        flat = kind == "dense" and one <= a["out_features"]  # at a single position
        found["product_macs" if kind == "matmul" else "flat_macs" if flat else "dense_macs"] = (
            plain.flops
        )
    if kind in ("gelu", "erf"):
        found["gelus"] = sum(outs)
    return found


def _convolution_by_kind(
    kind: str, a: Mapping[str, Any], plain: Count, outs: Sequence[int]
) -> dict[str, int]:
    """`by_kind` of a convolution: 1x1, larger (and transposed), in groups, or one kernel a channel."""
    pointwise = kind == "conv" and prod(a["kernel"]) == 1
    depthwise = kind == "depthwise_conv"
    grouped = kind == "grouped_conv"
    name = (
        "depthwise" if depthwise else "grouped" if grouped
        else "pointwise" if pointwise else "spatial"
    )  # fmt: skip
    place = "depthwise" if depthwise else "conv"
    found = {
        f"{name}_macs": plain.flops,
        f"{'grouped' if depthwise else name}_weights": plain.weights,
        f"{place}_reads": plain.inp,
        f"{place}_writes": plain.acts,
        f"{place}_ops": plain.ops,
    }
    if kind == "conv" and not pointwise:
        found["unfolded"] = outs[0] // a["out_channels"] * prod(a["kernel"]) * a["in_channels"]
    return found
