"""Kinds of operations by what they do with their data, and which counts tell them apart."""

from __future__ import annotations

CONVOLUTIONS = frozenset({"conv", "grouped_conv", "depthwise_conv", "transposed_conv"})
GATES = {"lstm": 4, "gru": 3, "simple_rnn": 1}
"""Recurrent layers: the matrices that a step multiplies its input with, and its state."""
HEAVY = CONVOLUTIONS | {*GATES, "dense", "matmul", "attention", "embedding"}
"""Kinds that a block is about; the rest goes along with them."""

_ELEMENTWISE = """
relu relu6 leaky_relu prelu elu selu celu silu sigmoid hard_sigmoid hard_silu gelu tanh softmax
log_softmax softplus softsign mish glu squareplus hard_tanh log_sigmoid threshold erf sqrt
rsqrt square power absolute negative log exp reciprocal clip round sign cast where compare add subtract
multiply divide maximum minimum average scale rescale trigonometric bitwise one_hot hard_shrink soft_shrink
tanh_shrink sparse_plus sparse_sigmoid sparsemax
"""
ELEMENTWISE = frozenset(_ELEMENTWISE.split())
"""Kinds that read their operands and write their result, element by element."""

NORMALIZATIONS = frozenset(
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
     "log_softmax", "log_sigmoid", "exp", "log"]
)  # fmt: skip
"""Kinds that compute an exponential, a logarithm or an error function of every element."""
FREE = frozenset(["reshape", "flatten", "squeeze", "expand_dims", "identity", "dropout"])
"""Kinds that change how a tensor is seen, and move nothing."""
SELECTIONS = frozenset(["slice", "crop", "split", "gather"])
"""Kinds that read of their input only what they write."""
MOVES = frozenset(
    ["concatenate", "stack", "pad", "resize", "transpose", "reduce", "repeat", "cumulative", "roll",
     "sort", "scatter", "unfold"]
)  # fmt: skip
"""Kinds that read and write whole tensors, in another order or size."""

_CURVES = EXPONENTIALS | {"trigonometric", "power", "sqrt", "rsqrt"}
_PAIRS = ("add", "subtract", "multiply", "divide", "scale", "rescale", "maximum", "minimum", "average",
          "square", "absolute", "negative", "where", "compare")  # fmt: skip
COUNTED_AS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(ELEMENTWISE, ("clip_elements", "curve_ops")),
    **dict.fromkeys(_CURVES, ("curve_elements", "curve_ops")),
    **dict.fromkeys(_PAIRS, ("pair_elements", "pair_ops")),
    **dict.fromkeys(NORMALIZATIONS, ("layer_norm_elements", "norm_ops")),
    "batch_norm": ("norm_elements", "norm_ops"),
    **dict.fromkeys(POOLINGS, ("pool_elements", "pool_ops")),
    **dict.fromkeys(("concatenate", "stack"), ("joined_elements", "move_ops")),
    **dict.fromkeys(("dense", "matmul", *GATES), ("dense_elements", "dense_ops")),
}
"""Kind -> the counts (`lolat.graph.counts.Count`) that its elements and its operations go to, where these
are not `moved_elements` and `move_ops`; convolutions are told apart by their sizes."""
