"""The kinds of operations, with a row for kinds that are alike: counts, class of work, bytes.

A new kind is a name in this table and in `_SAVES` below it, and its names in the frameworks in
`lolat.readers.ops`. One that multiplies has a formula in `lolat.graph.counts`, and in `lolat.graph.work`
the sizes of its product.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

HALF, FLOAT32 = "half", "float32"


class Kind(NamedTuple):
    """The properties of a kind of operation.

    `elements`, `ops`: the counts (`lolat.graph.counts.Count`) of their elements and of their number.
    `work`: the class of a step that only moves (`lolat.graph.work.MOVING`). `backward`: bytes that the
    backward pass of such a step reads and writes, relative to the forward pass. `autocast`: HALF or FLOAT32
    if PyTorch's autocast computes in it (torch.amp), else "" for the widest type of the inputs.
    `like_memory`: elements are read and written once: where one such kind was measured, all were.
    `vectors`: parameters of a channel of a normalization. `requires`: attributes that its formula reads.
    `is_gelu`: an exponential that is counted among `gelus` too. `saves`: the tensors that its forward pass
    keeps for the backward pass, see _SAVES.
    """

    group: str
    elements: str = "moved_elements"
    ops: str = "move_ops"
    work: str = "elements"
    backward: float = 1.0
    autocast: str = ""
    like_memory: bool = False
    vectors: int = 0
    requires: str = ""
    is_gelu: bool = False
    saves: str = ""


_product = partial(Kind, elements="dense_elements", ops="dense_ops", autocast=HALF)
_clip = partial(Kind, "clip", "clip_elements", "curve_ops")
_curve = partial(Kind, elements="curve_elements", ops="curve_ops")
_exponential = partial(_curve, "exponential", backward=1.5)
_norm = partial(Kind, "normalization", "layer_norm_elements", "norm_ops", work="norm", backward=2.0)
_pool = partial(Kind, "pool", "pool_elements", "pool_ops", "pools", like_memory=True)

OTHER = Kind("other", saves="input")
"""A kind that the table does not have: it is counted as memory traffic."""
_TABLE = {
    Kind(
        "convolution", "", "", autocast=HALF, requires="kernel in_channels out_channels groups bias"
    ): "conv grouped_conv depthwise_conv transposed_conv",
    _product("product", requires="in_features out_features bias"): "dense",
    _product("product", requires="contracted"): "matmul",
    _product("product", requires="queries keys head_size value_size"): "attention",
    _product("recurrent", requires="in_features units timesteps bias"): "lstm gru simple_rnn",
    Kind("embedding"): "embedding",
    _clip(like_memory=True): """
        relu relu6 leaky_relu prelu softsign glu squareplus hard_tanh threshold clip round sign cast bitwise
        one_hot hard_shrink soft_shrink tanh_shrink sparse_plus sparse_sigmoid sparsemax""",
    _clip(like_memory=True, autocast=FLOAT32): "reciprocal",
    _clip(): "hard_sigmoid hard_silu",
    # an exponential, a logarithm or an error function of every element
    _exponential(): "silu sigmoid tanh elu selu celu mish log_sigmoid",
    _exponential(is_gelu=True): "gelu erf",
    _exponential(autocast=FLOAT32): "softplus exp log",
    _exponential(autocast=FLOAT32, work="norm"): "softmax log_softmax",
    _curve("power"): "trigonometric",
    _curve("power", autocast=FLOAT32): "power",
    _curve("power", like_memory=True): "sqrt",
    _curve("power", like_memory=True, autocast=FLOAT32): "rsqrt",
    Kind("binary", "pair_elements", "pair_ops", like_memory=True): """
        add subtract multiply divide scale rescale maximum minimum average square absolute negative where
        compare""",
    Kind(
        "normalization", "norm_elements", "norm_ops", "batch_norm", 2.0, "", True, 2
    ): "batch_norm",
    _norm(autocast=FLOAT32, vectors=2): "layer_norm",
    _norm(autocast=FLOAT32, vectors=1): "rms_norm",
    _norm(autocast=FLOAT32, like_memory=True): "unit_norm",
    # in float32 by PyTorch's documentation, in half as timm runs them, and those times are what is known
    _norm(work="group_norm", vectors=2): "group_norm instance_norm",
    _pool(requires="kernel"): "max_pool average_pool",
    _pool(): "global_average_pool global_max_pool adaptive_pool",
    # whole tensors, in another order or size
    Kind("move", work="moves", like_memory=True): "pad transpose repeat",
    Kind("move", work="sums", like_memory=True): "reduce",
    Kind("move", "joined_elements", work="joined", like_memory=True): "concatenate stack",
    # each by code of its own
    Kind("rearrange", work="resized"): "resize",
    Kind("rearrange", work="moves"): "roll sort scatter unfold",
    Kind("rearrange", work="moves", autocast=FLOAT32): "cumulative",
    # only the part of the input that is written is read
    Kind("selection", work="parts", like_memory=True): "slice crop split",
    Kind("selection", like_memory=True): "gather",
    # a constant; of its input it needs the shape alone
    Kind("fill", work="moves"): "fill",
    # another view of the same data: nothing moves
    Kind("view", "", ""): "reshape flatten squeeze expand_dims identity",
    # nothing, unless its attribute `always` says that it drops elements at inference too
    Kind("view", "pair_elements", "pair_ops"): "dropout",
}
INPUT, OUTPUT, BOTH, NOTHING = "input", "output", "both", "nothing"
_SAVES = {
    INPUT: """
        conv grouped_conv depthwise_conv transposed_conv dense matmul embedding lstm gru simple_rnn
        batch_norm layer_norm rms_norm unit_norm group_norm instance_norm
        multiply divide square maximum minimum absolute power trigonometric
        leaky_relu prelu glu squareplus hard_tanh threshold clip hard_shrink soft_shrink sparse_plus
        sparse_sigmoid hard_sigmoid hard_silu silu elu selu celu gelu erf mish softplus log""",
    # of a dropout its mask, as large; of relu6 as torchvision's networks have it, in place
    OUTPUT: """
        relu relu6 sigmoid tanh tanh_shrink softmax log_softmax sparsemax exp sqrt rsqrt reciprocal
        dropout""",
    BOTH: "attention softsign log_sigmoid max_pool global_max_pool",
    NOTHING: """
        round sign cast bitwise one_hot add subtract scale rescale average negative where compare
        average_pool global_average_pool adaptive_pool pad transpose repeat reduce concatenate stack
        resize roll sort scatter unfold cumulative slice crop split gather fill
        reshape flatten squeeze expand_dims identity""",
}
"""The tensors that PyTorch's autograd keeps of each kind; tests compare with its saved_tensors_hooks."""
_SAVED = {name: saves for saves, names in _SAVES.items() for name in names.split()}
KINDS: dict[str, Kind] = {
    name: kind._replace(saves=_SAVED[name])
    for kind, names in _TABLE.items()
    for name in names.split()
}


def kind_of(name: str) -> Kind:
    """The row of a kind of operation; OTHER if it has none."""
    return KINDS.get(name, OTHER)


def _of(*groups: str) -> frozenset[str]:
    return frozenset(name for name, kind in KINDS.items() if kind.group in groups)


CONVOLUTIONS = _of("convolution")
MULTIPLYING = _of("convolution", "product", "recurrent")
"""Kinds that multiply matrices, in one way or another."""
COMPUTE = MULTIPLYING | {"embedding"}
"""Kinds that a block is about; the others go along with them."""
KERNELS = MULTIPLYING - {"matmul", "attention"}
"""Kinds that multiply with weights of their own."""
ELEMENTWISE = _of("clip", "exponential", "power", "binary")
NORMALIZATIONS = _of("normalization")
POOLINGS = _of("pool")
VIEWS = _of("view")
SLICES = frozenset(name for name, kind in KINDS.items() if kind.work == "parts")
READ_IN_PART = _of("selection", "embedding")
"""Kinds that read as much of their input as they write."""
GATES = {"lstm": 4, "gru": 3, "simple_rnn": 1}
"""Recurrent layers: the matrices that a step multiplies its input with, and its state."""
