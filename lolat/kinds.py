"""Kinds of operations by what they do with their data, and how often some go over it."""

from __future__ import annotations

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
