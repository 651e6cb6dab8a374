"""One form for the operations of Keras, PyTorch and ONNX, and the kind of each of them.

A reader makes a `Call` of each operation of its framework and gives it to `Writer.write`, which appends
operations to the graph and returns the tensors that the call yields:

    writer = Writer(GraphBuilder(name, "onnx"))
    image = writer.builder.input((1, 3, 32, 32))
    table = writer.constant((1, 16, 24))            # a parameter, or whatever depends on parameters alone
    (y,) = writer.write(Call("Relu", [image], [(1, 3, 32, 32)], "act", "block1"))

A tensor is its index in the builder. Names are looked up in lower case and without underscores
(`leaky_relu`, `LeakyReLU`). Where a name means two things (ONNX' Sum adds operands, PyTorch's sum reduces
one), the reader gives the name that `NAMES` means. `Call.parameters` are the attributes that the Graph has
for the kind, or those that the rule in `RULES` asks for. An operation that is in no table keeps its name,
is reported, and counts as the traffic of its inputs and outputs.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from msgspec import structs

from lolat.graph import Graph, GraphBuilder
from lolat.graph.kinds import AHEAD, COMPUTE, CONVOLUTIONS, KINDS, NORMALIZATIONS, STOPPED, by_name
from lolat.graph.weights import operations_parameters

NAMES = {
    # activations
    "leaky_relu": "rrelu", "prelu": "_prelu_kernel", "silu": "swish", "hard_silu": "hard_swish",
    "softmax": "special_softmax _safe_softmax hardmax", "log_sigmoid": "log_sigmoid_forward",
    "threshold": "thresholded_relu", "soft_shrink": "shrink",
    # element by element
    "add": "addcmul addcdiv lerp", "subtract": "sub rsub diff", "multiply": "mul",
    "divide": "div true_divide floor_divide divide_no_nan remainder fmod mod",
    "power": "pow float_power cbrt", "maximum": "fmax", "minimum": "fmin", "scale": "deg2rad rad2deg",
    "rescale": "rescaling", "sqrt": "hypot", "absolute": "abs fabs", "exp": "exp2 expm1 exponential",
    "log": "log2 log10 log1p logaddexp logaddexp2", "erf": "erfc erfinv special_erf", "negative": "neg",
    "sign": "sgn", "round": "floor ceil trunc frac fix", "clip": "clamp clamp_min clamp_max nan_to_num",
    "where": "masked_fill tril triu trilu",
    "compare": "eq ne lt le gt ge equal not_equal less less_equal less_or_equal greater greater_equal "
    "greater_or_equal and or xor not logical_and logical_or logical_xor logical_not isclose isnan "
    "isinf isfinite isneginf isposinf signbit heaviside is_in",
    "bitwise": "bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_invert bitwise_left_shift "
    "bitwise_right_shift left_shift right_shift bit_shift",
    "trigonometric": "sin cos tan sinh cosh asin acos atan asinh acosh atanh arcsin arccos arctan "
    "arcsinh arccosh arctanh atan2 arctan2 sinc", "one_hot": "multi_hot",
    "fill": "zero zeros_like ones_like full_like empty_like rand_like randn_like",
    # normalization and pooling
    "batch_norm": "batch_normalization native_batch_norm cudnn_batch_norm _native_batch_norm_legit "
    "_native_batch_norm_legit_no_training _batch_norm_no_update",
    "layer_norm": "layer_normalization native_layer_norm mean_variance_normalization",
    "rms_norm": "rms_normalization _fused_rms_norm simplified_layer_normalization",
    "group_norm": "group_normalization native_group_norm", "instance_norm": "instance_normalization",
    "unit_norm": "unit_normalization normalize lp_normalization", "average_pool": "lp_pool",
    "global_average_pool": "global_lp_pool",
    "adaptive_pool": "adaptive_average_pool adaptive_max_pool",
    # reductions
    "reduce": "mean sum max min amax amin aminmax var std var_mean std_mean prod argmax argmin "
    "logsumexp any all norm linalg_vector_norm linalg_norm frobenius_norm nansum nanmean "
    "count_nonzero trace moments",
    "cumulative": "cumsum cumprod cummax cummin logcumsumexp nancumsum nancumprod",
    "sort": "median nanmedian mode argsort topk top_k kthvalue argpartition in_top_k",
    # moving data
    "concatenate": "cat concat hstack vstack dstack append",
    "gather": "index index_select take take_along_dim take_along_axis _unsafe_index gather_elements "
    "gather_nd",
    "scatter": "scatter_add scatter_reduce scatter_update scatter_nd scatter_elements tensor_scatter "
    "slice_update slice_scatter select_scatter diagonal_scatter index_put _index_put_impl index_add "
    "index_copy index_reduce index_fill masked_scatter put col2im fold",
    "transpose": "flip fliplr flipud rot90 pixel_shuffle pixel_unshuffle channel_shuffle "
    "native_channel_shuffle depth_to_space space_to_depth rearrange reverse_sequence",
    "repeat": "repeat_vector repeat_interleave tile expand broadcast_to",
    "unfold": "im2col extract_patches", "slice": "diagonal", "crop": "crop_images",
    "resize": "resizing up_sampling upsample",
    # views
    "reshape": "flatten squeeze unsqueeze expand_dims ravel",
    "identity": "stop_gradient copy convert_to_tensor activity_regularization",
}  # fmt: skip
"""Kind of operation -> its other names in the three frameworks; a kind is a name of itself."""

OPERANDS = frozenset(
    ["add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "average", "where", "compare",
     "bitwise", "trigonometric", "concatenate", "stack", "gather", "scatter", "prelu"]
)  # fmt: skip
"""Kinds whose constant operands count; another kind may have a constant as its first input alone."""


@dataclass(frozen=True)
class Call:
    """One operation of a framework.

    `inputs`: the tensors that it reads, without the kernel and biases of a layer unless the network
    computes them. `shapes`: of its outputs, at batch size 1. `name`: "" for a plain operation.
    """

    op: str
    inputs: Sequence[int]
    shapes: Sequence[tuple[int, ...]]
    name: str = ""
    path: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    dtype: str | None = None

    def label(self, kind: str, suffix: str = "") -> str:
        """The name of an operation in it; a number gets the kind in front: "conv_0"."""
        label = f"{kind}_{self.name}" if self.name.isdigit() else self.name or kind
        return f"{label}_{suffix}" if suffix else label


Rule = Callable[["Writer", Call], list[int]]


def affine(kind: str, given: int) -> dict[str, Any]:
    """The attribute `vectors` of a normalization, if its number of vectors is not that of its kind."""
    return {} if given == KINDS[kind].vectors else {"vectors": given}


LEAST_STORED = 0.01
"""A constant that no operation reads stays in a graph from this share of the largest tensor on."""


_COMPUTES = re.compile(
    "linalg|fft|dft|dist|chol|svd|qr|eig|inv(erse)?\\b|solve|lstsq|det\\b|matrix_exp|lu_"
)
"""Names, in lower case, of operations that multiply much more often than they read."""


class Writer:
    """Appends calls to a GraphBuilder; `constants`: tensors that do not depend on the network's inputs."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.constants: set[int] = set()
        self.detached: set[int] = set()  # tensors through which no gradient goes
        # Results computed of constants, and views of these, ahead of the next operation.
        self.computed, self.viewed = 0, 0
        self.scalars = set[int]()  # constants without axes that are trained
        # Parameter -> the positions of its first use's operations, the kinds of all that have it.
        self._owned: dict[Any, tuple[list[int], set[str]]] = {}

    def constant(self, shape: Sequence[int], dtype: str = "float32", batched: bool = False) -> int:
        """A tensor that does not depend on the network's inputs."""
        tensor = self.builder.tensor(shape, batched, dtype)
        self.constants.add(tensor)
        return tensor

    def repeated(self, constant: int) -> int:
        """Append the repetition of a constant for each sample of the batch; return its result."""
        shape, dtype = self.shape(constant), self.builder.tensors[constant].dtype
        made = self.builder.add("repeat", [constant], shape, dtype=dtype)
        self.builder.tensors[made] = structs.replace(self.builder.tensors[made], batched=True)
        return made

    def shape(self, tensor: int) -> tuple[int, ...]:
        """The shape of a tensor at batch size 1."""
        return self.builder.tensors[tensor].shape

    def elements(self, tensor: int) -> int:
        """Elements of a tensor at batch size 1."""
        return prod(self.shape(tensor))

    def write(self, call: Call) -> list[int]:
        """Append the operations of a call; the tensors that it yields, one for each of its shapes."""
        name = normalized(call.op)
        if name in RULES:
            return RULES[name](self, call)
        if (kind := KIND_OF.get(name)) is None:
            return self.unknown(call)
        inputs = call.inputs if kind in OPERANDS else self.activations(call)
        return self.append(call, kind, inputs, **call.parameters)

    def unknown(self, call: Call) -> list[int]:
        """Append an operation under its own name; it is counted as traffic and reported by that name.

        It may contain products that are not counted if it has weights, is one of linear algebra, a Fourier
        transform or a distance between rows, or says so (`hides`): it is marked `hides`.
        """
        constants = (self.builder.tensors[i] for i in call.inputs if i in self.constants)
        weights = any(
            ("float" in t.dtype or t.dtype in ("int8", "uint8")) and len(t.shape) > 1
            for t in constants
        )
        computes = weights or call.parameters.get("hides") or _COMPUTES.search(call.op.lower())
        said = {"autocast": call.parameters.get("autocast"), "hides": computes and True}
        return self.append(
            call, call.op, call.inputs, **{name: value for name, value in said.items() if value}
        )

    def append(self, call: Call, kind: str, inputs: Sequence[int], **attributes: Any) -> list[int]:
        """Append one operation, which writes all outputs of the call; one of no elements is a view."""
        kind = kind if any(map(prod, call.shapes)) else "identity"
        label = call.label(kind.rpartition(".")[2])
        parts = (kind, inputs, call.shapes, label, call.path, call.dtype)
        if self.computed or self.viewed:
            attributes[AHEAD], self.computed, self.viewed = (self.computed, self.viewed), 0, 0
        return self.builder.add_several(*parts, **attributes)

    def parameters(self, start: int) -> int:
        """Number of parameters of the operations from position `start` on, tied ones too."""
        made, tensors = self.builder.operations[start:], tuple(self.builder.tensors)
        return sum(map(int, operations_parameters(Graph("", tensors, tuple(made), (), ()))))

    def tie(self, start: int, parameter: Any, bits: float = 0, own_bias: bool = False) -> bool:
        """Mark the operations from position `start` on as `tied` if an earlier one has their parameter too.

        A tied operation adds no parameters. If it is of another kind, such as a head that shares the
        embedding, or has an `own_bias`, it adds its biases ("kernel"). The number of a parameter is the
        position of its first operation. `parameter`: a key that is the same for all uses of it; None if no
        other operation can have it. `bits`: of a quantized weight, its share of scales too. Returns True if
        one of the operations can have a parameter.
        """
        operations, able = self.builder.operations, COMPUTE | NORMALIZATIONS
        owning = [i for i in range(start, len(operations)) if operations[i].kind in able]
        first, kinds = self._owned.get(parameter, ([], set[str]()))
        for k, i in enumerate(owning):
            known = operations[i].kind in kinds and not own_bias
            tied = (True if known else "kernel") if first else None
            number = first[min(k, len(first) - 1)] if first else None
            if "tied" in operations[i].attributes:  # its kernel is computed
                tied = tied or "kernel"
            operations[i] = operations[i].changed(tied=tied, bits=bits or None, parameter=number)
            if number is not None:
                operations[number] = operations[number].changed(parameter=number)
        if owning and parameter is not None:
            kinds.update(operations[i].kind for i in owning)
            self._owned[parameter] = first or owning, kinds
        return bool(owning)

    def mark(self, start: int, attribute: str, value: str) -> None:
        """Give an attribute to the operations from position `start` on."""
        operations = self.builder.operations
        operations[start:] = [o.changed(**{attribute: value}) for o in operations[start:]]

    def reached(self, outputs: Sequence[int]) -> tuple[set[int], set[int]]:
        """The tensors that some outputs need, and the tensors among them that a gradient reaches."""
        needed, reached = set(outputs), set(outputs) - self.detached
        for operation in reversed(self.builder.operations):
            if not needed.isdisjoint(operation.outputs):
                needed.update(operation.inputs)
            if not reached.isdisjoint(operation.outputs):
                reached |= set(operation.inputs) - self.detached
        return needed, reached

    def mark_stops(self, still: Iterable[int]) -> None:
        """Mark where no gradient goes through; `still`: constants that are not trained."""
        operations = self.builder.operations
        for i, o in enumerate(operations):
            if not self.detached.isdisjoint(o.outputs):
                operations[i] = o.changed(**{STOPPED: True})
        self.builder.still += still

    def prune(self, outputs: Sequence[int]) -> list[int]:
        """Drop operations and results that no output needs, and tensors that nobody reads or writes.

        Large computed constants, such as a mask, stay: they take memory.
        Returns the outputs by their new numbers.
        """
        builder, needed, operations = self.builder, set(outputs), []
        for operation in reversed(builder.operations):
            if read := tuple(t for t in operation.outputs if t in needed):
                needed.update(operation.inputs)
                operations.append(structs.replace(operation, outputs=read))
        needed.update(builder.inputs)
        least = LEAST_STORED * max((builder.tensors[t].elements(1) for t in needed), default=0)
        others = [t[0] for t, last in builder.storages if last >= 0 and needed.isdisjoint(t)]
        constant = ((t, builder.tensors[t]) for t in others)
        needed.update(t for t, made in constant if not made.batched and made.elements(1) > least)
        order = sorted(needed)
        number = {tensor: i for i, tensor in enumerate(order)}
        builder.tensors[:] = [builder.tensors[tensor] for tensor in number]
        builder.operations.clear()
        for o in reversed(operations):
            read, written = (tuple(number[i] for i in tensors) for tensors in (o.inputs, o.outputs))
            builder.operations.append(structs.replace(o, inputs=read, outputs=written))
        builder.inputs[:] = [number[i] for i in builder.inputs]
        for found in (builder.kept, builder.still):
            found[:] = [number[i] for i in found if i in number]
        of_storage = (
            (tuple(dict.fromkeys(number[t] for t in tensors if t in number)), last)
            for tensors, last in builder.storages
        )
        builder.storages[:] = [(t, bisect_right(order, last) - 1) for t, last in of_storage if t]
        builder.free[:] = [
            (n, tuple(number[i] for i in made if i in number)) for n, made in builder.free
        ]
        return [number[i] for i in outputs]

    def activations(self, call: Call) -> list[int]:
        """The first input, and the others that the network computes, each once."""
        others = (i for i in call.inputs[1:] if i not in self.constants)
        return list(dict.fromkeys([*call.inputs[:1], *others]))


def sizes_of(value: Any, count: int) -> tuple[int, ...]:
    """One number for each of `count` axes, from one for all."""
    sizes = [int(n) for n in value] if isinstance(value, (tuple, list)) else [int(value)]
    return tuple(sizes * count if len(sizes) == 1 else sizes)


def kernel_sizes(shape: Sequence[int], groups: int, transposed: bool) -> dict[str, Any]:
    """Attributes of a convolution whose kernel PyTorch or ONNX stores in a shape.

    The shape is (outputs, inputs of a group, *window); if `transposed`, (inputs, outputs of a group, ...).
    """
    channels = shape[1] * groups, shape[0]
    inside, outside = channels[::-1] if transposed else channels
    sizes = {"kernel": tuple(shape[2:]), "in_channels": inside, "out_channels": outside}
    return {**sizes, "groups": groups}


def keeps_channels(rank: int, axes: Iterable[int]) -> bool:
    """True if a reduction over some axes of an image leaves the batch and its channels."""
    left = sorted({*range(rank)} - {axis % rank for axis in axes})
    return rank > 3 and left in ([0, 1], [0, rank - 1])


def normalized(name: str) -> str:
    """The name of an operation as the tables have it: "aten.leaky_relu" and "LeakyReLU" are one."""
    return name.removeprefix("aten.").replace("_", "").lower()


KIND_OF = {normalized(n): kind for n, kind in ({k: k for k in KINDS} | by_name(NAMES)).items()}
"""Normalized name -> kind."""


# ---- Rules of convolutions and products.


def convolution(writer: Writer, call: Call) -> list[int]:
    """A convolution of any sort; it reads the activation, and a kernel if the network computes it.

    Parameters: those of the graph (`kernel`, `strides`, `dilation`, `padding`, `bias`, `in_channels`,
    `out_channels`, `groups`), and `transposed`, or a `kind` where the framework says which one it is. With
    as many groups as channels it is depthwise.
    """
    parameters = dict(call.parameters)
    transposed, groups = parameters.pop("transposed", False), parameters["groups"]
    depthwise = groups == parameters["in_channels"]
    kind = "conv" if groups == 1 else "depthwise_conv" if depthwise else "grouped_conv"
    kind = parameters.pop("kind", "transposed_conv" if transposed else kind)
    return writer.append(call, kind, writer.activations(call), **parameters)


def product(writer: Writer, call: Call) -> list[int]:
    """A product of two operands; a dense layer where only the right one is constant.

    Parameters: `contracted`, the products that are summed for each result (the last axis of the left
    operand unless given); `bias`, whether a constant vector is added.
    """
    left, right = call.inputs[:2]
    contracted = call.parameters.get("contracted", (writer.shape(left) or (1,))[-1])
    if right in writer.constants and left not in writer.constants:
        features = writer.elements(right) // max(contracted, 1)
        bias = call.parameters.get("bias", False)
        return writer.append(
            call, "dense", [left], in_features=contracted, out_features=features, bias=bias
        )
    more = {"joins": True} if call.parameters.get("joins") else {}
    return writer.append(call, "matmul", [left, right], contracted=contracted, **more)


def einsum(writer: Writer, call: Call) -> list[int]:
    """A product over the labels that the second operand has and the result has not.

    Parameter: `equation`. One operand: a transposition or a reduction. More than two: unknown. An operand
    without the batch is the second one, as weights are; `joins`: it has no label of the result in common
    with the first one, so that all samples are one product.
    """
    inputs, (labels, result) = list(call.inputs), einsum_terms(call.parameters["equation"])
    if len(inputs) == 1:
        whole = len(set(labels[0])) == len(result)
        return writer.append(call, "transpose" if whole else "reduce", inputs)
    if len(inputs) > 2:
        return writer.unknown(replace(call, parameters={"hides": True}))
    grows = [writer.builder.tensors[i].batched for i in inputs]
    is_first_constant = inputs[0] in writer.constants and inputs[1] not in writer.constants
    if is_first_constant or (grows == [False, True] and inputs[1] not in writer.constants):
        inputs.reverse()
        labels.reverse()
    contracted, _ = einsum_features(labels[1], result, writer.shape(inputs[1]))
    parameters = call.parameters | {"contracted": contracted}
    if grows[0] != grows[1] and {*labels[0]}.isdisjoint({*labels[1]} & {*result}):
        parameters["joins"] = True
    return product(writer, replace(call, inputs=inputs, parameters=parameters))


def attention(writer: Writer, call: Call) -> list[int]:
    """softmax(q k' * scale + mask) v; q, k, v of (batch, heads, steps, size), or (..., steps, features).

    Inputs: query, key, value, and the mask where one is added to the scores. Parameters: `heads`, those of
    q and those of k and v, where the features of all heads lie side by side; others that the graph has for
    the kind, where they are not as the shapes say (`keys`, `scaled`). A framework that keeps the weights
    of the softmax gives a second shape for them.
    """
    parameters = dict(call.parameters)
    q, k, v = (writer.shape(i) for i in call.inputs[:3])
    heads = parameters.pop("heads", None)
    query_heads, key_heads = heads or (q[1], k[1])
    sizes = (q[-1] // query_heads, v[-1] // key_heads) if heads else (q[-1], v[-1])
    known = {
        "heads": query_heads, "key_heads": key_heads, "queries": q[-2], "keys": k[-2],
        "head_size": sizes[0], "value_size": sizes[1],
    }  # fmt: skip
    return writer.append(call, "attention", call.inputs, **{**known, **parameters})


# ---- Rules of operations that move data.


def split(writer: Writer, call: Call) -> list[int]:
    """One operation for each output."""
    parts = (replace(call, shapes=[shape]) for shape in call.shapes)
    return [writer.append(part, "split", call.inputs[:1])[0] for part in parts]


def pad(writer: Writer, call: Call) -> list[int]:
    """Elements added at the ends of axes, or taken away there.

    Parameter: `padding`, (before, after) of each axis that a convolution would slide over.
    """
    amounts = [n for pair in call.parameters["padding"] for n in pair]
    if not any(amounts) or min(amounts) < 0:
        return writer.append(call, "crop" if any(amounts) else "identity", call.inputs[:1])
    return writer.append(call, "pad", call.inputs[:1], **call.parameters)


def cast(writer: Writer, call: Call) -> list[int]:
    """A conversion to another data type; to the same one it is an identity."""
    same = writer.builder.tensors[call.inputs[0]].dtype == call.dtype
    return writer.append(call, "identity" if same else "cast", call.inputs[:1])


_RULES: dict[Rule, str] = {
    convolution: " ".join(("convolution", *sorted(CONVOLUTIONS))),
    product: "matmul mm bmm dot", einsum: "einsum", attention: "attention",
    split: "split unstack", pad: "pad", cast: "cast",
}  # fmt: skip
RULES = {normalized(name): rule for name, rule in by_name(_RULES).items()}
"""Normalized name -> the rule of an operation that is more than its kind."""


# ---- The labels of an einsum.


def einsum_terms(equation: str) -> tuple[list[str], str]:
    """Labels of the operands and of the result in an equation such as "abc,cde->abde", without "..."."""
    left, arrow, result = equation.replace(" ", "").replace("...", "").partition("->")
    if not arrow:  # the labels that occur once, in alphabetical order
        result = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    return left.split(","), result


def einsum_features(labels: str, result: str, shape: Sequence[int]) -> tuple[int, int]:
    """Product of the summed sizes of an operand, and of its others; "..." stands for its first axes."""
    sizes = list(zip(labels, shape[len(shape) - len(labels) :], strict=True))
    summed = prod(n for label, n in sizes if label not in result)
    return summed, prod(n for label, n in sizes if label in result)
