"""The kinds of operations: what each does with its data, and the counts that its work is of."""

from __future__ import annotations

from typing import NamedTuple


class Kind(NamedTuple):
    """`elements`, `ops`: the counts (`lolat.graph.counts.Count`) of its elements and of its operations."""

    group: str
    elements: str = "moved_elements"
    ops: str = "move_ops"


OTHER = Kind("other")
"""A kind that the table does not have: it is counted as memory traffic."""

_TABLE = {
    Kind("convolution", "", ""): "conv grouped_conv depthwise_conv transposed_conv",
    Kind("product", "dense_elements", "dense_ops"): "dense matmul attention",
    Kind("recurrent", "dense_elements", "dense_ops"): "lstm gru simple_rnn",
    Kind("embedding"): "embedding",
    Kind("clip", "clip_elements", "curve_ops"): """
        relu relu6 leaky_relu prelu hard_sigmoid hard_silu softsign glu squareplus hard_tanh threshold
        reciprocal clip round sign cast bitwise one_hot hard_shrink soft_shrink tanh_shrink sparse_plus
        sparse_sigmoid sparsemax""",
    # an exponential, a logarithm or an error function of every element
    Kind("exponential", "curve_elements", "curve_ops"): """
        silu sigmoid tanh elu selu celu gelu erf mish softplus softmax log_softmax log_sigmoid exp log""",
    Kind("power", "curve_elements", "curve_ops"): "trigonometric power sqrt rsqrt",
    Kind("pair", "pair_elements", "pair_ops"): """
        add subtract multiply divide scale rescale maximum minimum average square absolute negative where
        compare""",
    Kind("normalization", "norm_elements", "norm_ops"): "batch_norm",
    Kind("normalization", "layer_norm_elements", "norm_ops"): """
        layer_norm group_norm instance_norm rms_norm unit_norm""",
    Kind("pool", "pool_elements", "pool_ops"): """
        max_pool average_pool global_average_pool global_max_pool adaptive_pool""",
    # whole tensors, in another order or size
    Kind("move"): "pad transpose reduce repeat",
    Kind("rearrange"): "resize cumulative roll sort scatter unfold",  # each by code of its own
    Kind("move", "joined_elements"): "concatenate stack",
    # only the part of the input that is written is read
    Kind("selection"): "slice crop split gather",
    Kind("fill"): "fill",  # a constant; of its input it needs the shape alone
    # another view of the same data: nothing moves
    Kind("free", "", ""): "reshape flatten squeeze expand_dims identity dropout",
}

KIND_OF = {name: kind for kind, names in _TABLE.items() for name in names.split()}


def _of(*groups: str) -> frozenset[str]:
    return frozenset(name for name, kind in KIND_OF.items() if kind.group in groups)


CONVOLUTIONS = _of("convolution")
HEAVY = _of("convolution", "product", "recurrent", "embedding")
"""Kinds that a block is about; the rest goes along with them."""
EXPONENTIALS = _of("exponential")
ELEMENTWISE = _of("clip", "exponential", "power", "pair")
NORMALIZATIONS = _of("normalization")
POOLINGS = _of("pool")
FREE = _of("free")
GATES = {"lstm": 4, "gru": 3, "simple_rnn": 1}
"""Recurrent layers: the matrices that a step multiplies its input with, and its state."""
KERNELS = CONVOLUTIONS | {"dense", *GATES}
"""Kinds that multiply with weights of their own."""
_COMPUTING = EXPONENTIALS | {"hard_sigmoid", "hard_silu", "trigonometric", "power"}
MOVING = (ELEMENTWISE - _COMPUTING) | {"batch_norm", "unit_norm"} | _of("pool", "selection", "move")
"""Kinds that only read and write memory, once: where one was measured, all were."""
