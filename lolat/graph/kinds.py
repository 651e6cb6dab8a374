"""The kinds of operations: one row for all kinds with the same counts, class of work and bytes.

A new kind is a name in this table; `lolat.readers.ops` has its names in the frameworks. A kind that
multiplies also has a formula in `lolat.graph.counts`, and the sizes of its product in `lolat.graph.work`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import NamedTuple, TypeVar

Value = TypeVar("Value")
HALF, FLOAT32 = "half", "float32"
INPUT, OUTPUT, BOTH = "input", "output", "input output"
OTHERS, INTEGERS, POSITIONS = "others", "integers", "positions"


class Kind(NamedTuple):
    """The properties of some kinds of operations.

    `elements`, `ops`: the counts (`lolat.graph.counts.Count`) to which elements and operations of the kind
    are added. `work`: the class of its step, if it has no product (`lolat.graph.work.MOVING`). `backward`:
    bytes of its step in the backward pass / bytes in the forward pass; element-wise kinds have
    `lolat.graph.lowering.Lowering.gradients` instead. `autocast`: the precision that PyTorch's autocast
    (torch.amp) gives it: HALF, FLOAT32, or "" for the widest type of its inputs. `like_memory`: it reads
    and writes each element once; a device measured with one such kind counts as measured with all.
    `vectors`: parameters per channel of a normalization. `requires`: attributes that its formula reads.
    `is_gelu`: its results count as `gelus` besides `exps`. `saves`: the tensors that PyTorch's autograd
    saves for its backward pass: INPUT, OUTPUT, BOTH or none.
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


_product = partial(Kind, elements="dense_elements", ops="dense_ops", autocast=HALF, saves=INPUT)
_clip = partial(Kind, "clip", "clip_elements", "curve_ops", like_memory=True)
_curve = partial(Kind, elements="curve_elements", ops="curve_ops", saves=INPUT)
_exponential = partial(_curve, "exponential")
_binary = partial(Kind, "binary", "pair_elements", "pair_ops", like_memory=True)
_norm = partial(
    Kind, "normalization", "layer_norm_elements", "norm_ops", work="norm", backward=2.5, saves=INPUT
)
_pool = partial(Kind, "pool", "pool_elements", "pool_ops", "pools", like_memory=True)

OTHER = Kind("other", saves=INPUT)
"""The row for a kind that is missing in the table; it counts as memory traffic."""
_TABLE = {
    Kind("convolution", "", "", autocast=HALF, saves=INPUT,
         requires="kernel in_channels out_channels groups bias"):
        "conv grouped_conv depthwise_conv transposed_conv",
    _product("product", requires="in_features out_features bias"): "dense",
    _product("product", requires="contracted"): "matmul",
    _product("product", requires="queries keys head_size value_size", saves=BOTH): "attention",
    _product("recurrent", requires="in_features units timesteps bias"): "lstm gru simple_rnn",
    Kind("embedding", saves=INPUT): "embedding",
    _clip(saves=INPUT): "leaky_relu glu squareplus relu6 hard_tanh threshold clip hard_shrink "
        "soft_shrink sparse_plus sparse_sigmoid",
    _clip(autocast=HALF, saves=INPUT): "prelu",
    _clip(saves=OUTPUT): "relu tanh_shrink sparsemax",
    _clip(saves=BOTH): "softsign",
    _clip(): "round sign cast bitwise one_hot",
    _clip(autocast=FLOAT32, saves=OUTPUT): "reciprocal",
    _curve("clip"): "hard_sigmoid hard_silu",  # computed in several passes
    # an exponential, a logarithm or an error function of every element
    _exponential(): "silu elu selu celu mish",
    _exponential(saves=OUTPUT): "sigmoid tanh",
    _exponential(saves=BOTH): "log_sigmoid",
    _exponential(is_gelu=True): "gelu erf",
    _exponential(autocast=FLOAT32): "softplus log",
    _exponential(autocast=FLOAT32, saves=OUTPUT): "exp",
    _exponential(autocast=FLOAT32, work="norm", saves=OUTPUT): "softmax log_softmax",
    _curve("power"): "trigonometric",
    _curve("power", autocast=FLOAT32): "power",
    _curve("power", like_memory=True, saves=OUTPUT): "sqrt",
    _curve("power", like_memory=True, autocast=FLOAT32, saves=OUTPUT): "rsqrt",
    _binary(): "add subtract scale rescale average negative compare",
    _binary(saves=INTEGERS): "where",
    _binary(saves=INPUT): "multiply divide maximum minimum square absolute",
    Kind("normalization", "norm_elements", "norm_ops", "batch_norm", 5 / 3, "", True, 2, saves=INPUT):
        "batch_norm",
    _norm(autocast=FLOAT32, vectors=2): "layer_norm",
    _norm(autocast=FLOAT32, vectors=1): "rms_norm",
    _norm(autocast=FLOAT32, like_memory=True): "unit_norm",
    _norm(autocast=FLOAT32, work="group_norm", vectors=2): "group_norm",
    _norm(work="group_norm", vectors=2): "instance_norm",  # which calls a batch norm
    _pool(requires="kernel", saves=BOTH): "max_pool",
    _pool(requires="kernel", saves=INPUT): "average_pool",
    _pool(saves=BOTH): "global_max_pool",
    _pool(): "global_average_pool",
    _pool(saves=INPUT): "adaptive_pool",
    # whole tensors, in another order or size
    Kind("move", work="moves", like_memory=True): "pad transpose repeat",
    Kind("move", work="sums", like_memory=True): "reduce",
    Kind("move", "joined_elements", work="joined", like_memory=True): "concatenate stack",
    # kinds that share no code with others
    Kind("rearrange", work="resized", autocast=FLOAT32): "resize",
    Kind("rearrange", work="moves"): "roll sort scatter unfold",
    Kind("rearrange", work="moves", autocast=FLOAT32): "cumulative",
    # they read only the elements that they write
    Kind("selection", work="parts", like_memory=True): "slice crop split",
    Kind("selection", like_memory=True): "gather",
    # a constant: the values of its input are not read
    Kind("fill", work="moves"): "fill",
    # another view of the same data: nothing moves
    Kind("view", "", ""): "reshape flatten squeeze expand_dims identity",
    # counted only with the attribute `always`: it drops elements at inference too; saves its mask
    Kind("view", "pair_elements", "pair_ops", saves=OUTPUT): "dropout",
}  # fmt: skip


def by_name(table: Mapping[Value, str]) -> dict[str, Value]:
    """Name -> value, from a table of value -> names separated by spaces."""
    return {name: value for value, names in table.items() for name in names.split()}


KINDS = by_name(_TABLE)


def kind_of(name: str) -> Kind:
    """The row of a kind of operation; OTHER if the table has none."""
    return KINDS.get(name, OTHER)


def _of(*groups: str) -> frozenset[str]:
    return frozenset(name for name, kind in KINDS.items() if kind.group in groups)


CONVOLUTIONS = _of("convolution")
MULTIPLYING = _of("convolution", "product", "recurrent")
"""Kinds that multiply matrices."""
COMPUTE = MULTIPLYING | {"embedding"}
"""Kinds that begin a block; an operation of another kind joins a neighboring block."""
KERNELS = MULTIPLYING - {"matmul", "attention"}
"""Kinds that multiply with their own weights."""
ELEMENTWISE = _of("clip", "exponential", "power", "binary")
NORMALIZATIONS = _of("normalization")
POOLINGS = _of("pool")
VIEWS = _of("view")
SLICES = frozenset(name for name, kind in KINDS.items() if kind.work == "parts")
SWAP = (0, 1, 3, 2)
"""The attribute `permutation` of a transpose of the matrices of (batch, heads, rows, columns)."""
# Attributes, see ATTRIBUTES.
STORED, AHEAD, IN_PLACE = "stored", "ahead", "in_place"
KEPT_FLOAT32 = "wide"  # computed in float32 under autocast
TRAINED, STOPPED, ASKED, PACKED, BUFFER = "trained", "stopped", "asked", "packed", "buffer"
COMPUTED, REMADE, RECAST = "computed", "remade", "recast"
CHECKPOINT, REENTRANT, SELECTIVE = "checkpoint", "reentrant", "selective"
INDEXED = frozenset(["max_pool", "global_max_pool"])
"""Kinds for which eager PyTorch also writes the position of each maximum."""
WIDENING = frozenset(["softmax", "log_softmax", "reduce"])
"""Kinds whose CUDA kernels read half precision and write float32; autocast need not convert their input."""
INVERTIBLE = frozenset(["leaky_relu", "elu", "selu", "celu"])
"""Kinds whose result PyTorch saves if they run in place. Other in-place kinds save a copy of their input.
"""
READ_IN_PART = _of("selection", "embedding")
"""Kinds that read only as many elements of their input as they write."""
GATES = {"lstm": 4, "gru": 3, "simple_rnn": 1}
"""Recurrent kind -> number of gates; each gate has a matrix for the input and another for the state."""

ATTRIBUTES = {
    # convolutions and pools
    "kernel": "sides of the window",
    "strides": "steps of the window along each axis",
    "dilation": "distance between elements of the window along each axis",
    "padding": "valid, same, or (before, after) of each axis",
    "pad_before": "the padding of a pad that was merged into the convolution",
    "groups": "groups of a convolution",
    "in_channels": "channels of a convolution's input",
    "out_channels": "channels of a convolution's output",
    # layers with weights
    "bias": "True, False, or the share of the outputs that have a bias",
    "in_features": "features that are read at a position",
    "out_features": "features that are written at a position",
    "experts": "number of dense layers side by side, each for some of the positions",
    "rows": "rows of an embedding's table",
    "units": "size of a recurrent layer's output",
    "timesteps": "steps of a recurrent layer",
    "bias_vectors": "vectors of biases for each gate of a recurrent layer",
    "projection": "size of a state that a recurrent layer computes by one more product",
    "tied": "True: another operation has the parameters; kernel: all of them but the biases",
    "parameter": "number of the parameter that it shares with another operation, which has this number too",
    "bits": "bits of a weight that is quantized, with its share of scales",
    "int8": "how the operation is quantized (lolat.graph.quantized)",
    "reshaped": "True for a quantized dense layer on several positions",
    # products of activations
    "contracted": "products that are summed for each result",
    "joins": "True: all samples are one product, as the second operand does not grow with the batch",
    "heads": "heads of the queries",
    "key_heads": "heads of the keys and values",
    "queries": "positions of the queries",
    "keys": "positions of the keys",
    "head_size": "features of a head's query and key",
    "value_size": "features of a head's value",
    "scaled": "False if the scores are not scaled",
    "contiguous": "True for an attention with contiguous queries; in half precision its result is, too",
    "wide": "True for a product in torch.autocast(enabled=False), which amp leaves in float32",
    "recast": "True for a kernel of which autocast keeps no copy: frozen, a buffer, part of a parameter",
    # others
    "autocast": "the precision in which autocast runs it, if not its kind's; INPUT: its first input's",
    "vectors": "parameters per channel of a normalization, if not those of its kind",
    "stored": "True for a normalization that uses its stored statistics in training too",
    "of_batch": "True for a normalization by the statistics of the batch at inference too",
    "permutation": "axis of the input for each axis of the output",
    "rate": "share of the elements that a dropout drops",
    "always": "True for a dropout at inference too",
    "hides": "True for an unknown operation that may contain products",
    "ahead": "how many results PyTorch computes of constants before it, and how many views of constants",
    "filled": "True for a padding whose result eager PyTorch fills before it copies the input into it",
    "copied": "True for an identity that eager PyTorch copies",
    "in_place": "True if eager PyTorch writes the result into the first input",
    "saved": "the tensors that autograd keeps, if not those of the kind: INPUT, OUTPUT, BOTH; OTHERS: the "
    "inputs behind the first; INTEGERS: those of integers and truth values; POSITIONS: of the chosen "
    "elements",
    # training of a part (lolat.graph.backward)
    "trained": "number of the parameters that are trained, if not all",
    "computed": "True if the kernel is computed from trained parameters, among others: it has a gradient",
    "owns": "number of its parameters, if its kernel is computed from fewer than it has elements",
    "buffer": "number of its weights' elements that are a buffer and no parameter",
    "remade": "number of its kernel's elements, if each call computes them anew: they are kept for the "
    "input's gradient",
    "packed": "True for the projections of query, key and value as one parameter, no linear layer's weight",
    "stopped": "True if no gradient goes through the results",
    "asked": "True if the result has a gradient though nothing before it is trained",
    "checkpoint": "number of the part whose activations are recomputed",
    "reentrant": "True if all of that part is recomputed",
    "selective": "True if that part is recomputed without its products",
}
"""Attributes of operations -> their meaning."""
