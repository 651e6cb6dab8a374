"""One form for the operations of Keras, PyTorch and ONNX, and the tables of their kinds and rules.

A reader makes a `Call` from each operation of its framework and passes it to `Writer.write`, which appends
operations to the graph and returns the output tensors of the call:

    writer = Writer(GraphBuilder(name, "onnx"))
    image = writer.builder.input((1, 3, 32, 32))
    table = writer.constant((1, 16, 24))            # a parameter, or a result of parameters only
    (y,) = writer.write(Call("Relu", [image], [(1, 3, 32, 32)], "act", "block1"))

A tensor is its index in the builder. Names are looked up in lower case and without underscores
(`leaky_relu`, `LeakyReLU`). If a name means two things (ONNX' Sum adds operands, PyTorch's sum reduces
one), the reader passes the name as `NAMES` uses it. `Call.parameters` are the attributes of the kind in the
Graph, or the parameters of its rule in `RULES`. An operation that is in no table keeps its name, is
reported, and counts as the traffic of its inputs and outputs.
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
"""Kind of operation -> its further names in the three frameworks, besides the kind itself."""

OPERANDS = frozenset(
    ["add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "average", "where", "compare",
     "bitwise", "trigonometric", "concatenate", "stack", "gather", "scatter", "prelu"]
)  # fmt: skip
"""Kinds whose constant operands are inputs. Other kinds have a constant input only if it comes first."""


@dataclass(frozen=True)
class Call:
    """One operation of a framework.

    `inputs`: the tensors that it reads, without a layer's kernel and biases unless the network computes
    them. `shapes`: shapes of its outputs at batch size 1. `name`: "" for an operation that is not a layer.
    """

    op: str
    inputs: Sequence[int]
    shapes: Sequence[tuple[int, ...]]
    name: str = ""
    path: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)
    dtype: str | None = None

    def label(self, kind: str, suffix: str = "") -> str:
        """The name of an operation of this call; a number gets the kind in front: "conv_0"."""
        label = f"{kind}_{self.name}" if self.name.isdigit() else self.name or kind
        return f"{label}_{suffix}" if suffix else label


Rule = Callable[["Writer", Call], list[int]]


def affine(kind: str, given: int) -> dict[str, Any]:
    """{"vectors": given} if a normalization differs from its kind in the number of vectors, else {}."""
    return {} if given == KINDS[kind].vectors else {"vectors": given}


LEAST_STORED = 0.01
"""A constant that no operation reads stays in a graph above this share of the largest tensor's elements."""


_COMPUTES = re.compile(
    "linalg|fft|dft|dist|chol|svd|qr|eig|inv(erse)?\\b|solve|lstsq|det\\b|matrix_exp|lu_"
)
"""Pattern of names, in lower case, of operations that do many multiplications per element read."""


class Writer:
    """Appends calls to a GraphBuilder. `constants`: tensors that do not depend on the network's inputs."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.constants: set[int] = set()
        self.detached: set[int] = set()  # tensors that no gradient passes through
        # Numbers of results computed from constants, and of views of them, before the next operation.
        self.computed, self.viewed = 0, 0
        self.scalars = set[int]()  # trained constants without axes
        # Parameter -> (positions of the operations of its first use, kinds of all its operations).
        self._owned: dict[Any, tuple[list[int], set[str]]] = {}

    def constant(self, shape: Sequence[int], dtype: str = "float32", batched: bool = False) -> int:
        """Add a tensor that does not depend on the network's inputs; return its index."""
        tensor = self.builder.tensor(shape, batched, dtype)
        self.constants.add(tensor)
        return tensor

    def repeated(self, constant: int) -> int:
        """Append a repetition of a constant for each sample of the batch; return the repeated tensor."""
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
        """Append the operations of a call; return its output tensors, one for each of its shapes."""
        name = normalized(call.op)
        if name in RULES:
            return RULES[name](self, call)
        if (kind := KIND_OF.get(name)) is None:
            return self.unknown(call)
        inputs = call.inputs if kind in OPERANDS else self.activations(call)
        return self.append(call, kind, inputs, **call.parameters)

    def unknown(self, call: Call) -> list[int]:
        """Append an operation that no table has; it is counted as traffic and reported by its name.

        It is marked `hides` if it may contain matrix products, which are not counted: if it has weights, is
        linear algebra, a Fourier transform or a distance between rows, or if the call says `hides`.
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
        """Append one operation that writes all outputs of the call; without elements it is a view."""
        kind = kind if any(map(prod, call.shapes)) else "identity"
        label = call.label(kind.rpartition(".")[2])
        parts = (kind, inputs, call.shapes, label, call.path, call.dtype)
        if self.computed or self.viewed:
            attributes[AHEAD], self.computed, self.viewed = (self.computed, self.viewed), 0, 0
        return self.builder.add_several(*parts, **attributes)

    def parameters(self, start: int) -> int:
        """Number of parameters of the operations from position `start` on, including tied operations."""
        made, tensors = self.builder.operations[start:], tuple(self.builder.tensors)
        return sum(map(int, operations_parameters(Graph("", tensors, tuple(made), (), ()))))

    def tie(self, start: int, parameter: Any, bits: float = 0, own_bias: bool = False) -> bool:
        """Mark operations from position `start` on as `tied` if an earlier operation has their parameter.

        A tied operation adds no parameters. If it is of another kind, such as a head that shares the
        embedding, or has an `own_bias`, only its kernel is tied ("kernel") and it adds its biases. The
        number of a parameter is the position of its first operation. `parameter`: a key that all uses of a
        parameter share; None if no other operation can use it. `bits`: bits per weight of a quantized
        operation, with its scales. Returns True if one of the operations is of a kind that has parameters.
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
        """Set an attribute of the operations from position `start` on."""
        operations = self.builder.operations
        operations[start:] = [o.changed(**{attribute: value}) for o in operations[start:]]

    def reached(self, outputs: Sequence[int]) -> tuple[set[int], set[int]]:
        """(tensors that `outputs` depend on, tensors among them that a gradient reaches)."""
        needed, reached = set(outputs), set(outputs) - self.detached
        for operation in reversed(self.builder.operations):
            if not needed.isdisjoint(operation.outputs):
                needed.update(operation.inputs)
            if not reached.isdisjoint(operation.outputs):
                reached |= set(operation.inputs) - self.detached
        return needed, reached

    def mark_stops(self, untrained: Iterable[int]) -> None:
        """Mark operations that no gradient passes through. `untrained`: constants that are not trained."""
        operations = self.builder.operations
        for i, o in enumerate(operations):
            if not self.detached.isdisjoint(o.outputs):
                operations[i] = o.changed(**{STOPPED: True})
        self.builder.untrained += untrained

    def prune(self, outputs: Sequence[int]) -> list[int]:
        """Drop operations that no output needs, and tensors that no operation reads or writes.

        Large computed constants, such as a mask, stay: they take memory. Returns the new indices of the
        outputs.
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
        for found in (builder.kept, builder.untrained):
            found[:] = [number[i] for i in found if i in number]
        of_storage = (
            (tuple(dict.fromkeys(number[t] for t in tensors if t in number)), last)
            for tensors, last in builder.storages
        )
        builder.storages[:] = [(t, bisect_right(order, last) - 1) for t, last in of_storage if t]
        builder.loose_parameters[:] = [
            (n, tuple(number[i] for i in made if i in number))
            for n, made in builder.loose_parameters
        ]
        return [number[i] for i in outputs]

    def activations(self, call: Call) -> list[int]:
        """The first input, and the other inputs that the network computes, without repetitions."""
        others = (i for i in call.inputs[1:] if i not in self.constants)
        return list(dict.fromkeys([*call.inputs[:1], *others]))


def sizes_of(value: Any, count: int) -> tuple[int, ...]:
    """A tuple with a number for each of `count` axes. `value`: one number for all axes, or a sequence."""
    sizes = [int(n) for n in value] if isinstance(value, (tuple, list)) else [int(value)]
    return tuple(sizes * count if len(sizes) == 1 else sizes)


def kernel_sizes(shape: Sequence[int], groups: int, transposed: bool) -> dict[str, Any]:
    """Attributes of a convolution, from the `shape` in which PyTorch or ONNX stores its kernel.

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
    """The name of an operation as in the tables: "aten.leaky_relu" and "LeakyReLU" become the same name."""
    return name.removeprefix("aten.").replace("_", "").lower()


KIND_OF = {normalized(n): kind for n, kind in ({k: k for k in KINDS} | by_name(NAMES)).items()}
"""Normalized name -> kind."""


# ---- Rules of convolutions and products.


def convolution(writer: Writer, call: Call) -> list[int]:
    """A convolution of any kind. It reads the activation, and the kernel if the network computes it.

    Parameters: the graph's attributes (`kernel`, `strides`, `dilation`, `padding`, `bias`, `in_channels`,
    `out_channels`, `groups`), and `transposed`, or the `kind` if the framework names it. A convolution with
    as many groups as channels is depthwise.
    """
    parameters = dict(call.parameters)
    transposed, groups = parameters.pop("transposed", False), parameters["groups"]
    depthwise = groups == parameters["in_channels"]
    kind = "conv" if groups == 1 else "depthwise_conv" if depthwise else "grouped_conv"
    kind = parameters.pop("kind", "transposed_conv" if transposed else kind)
    return writer.append(call, kind, writer.activations(call), **parameters)


def product(writer: Writer, call: Call) -> list[int]:
    """A product of two operands; a dense layer if only the right operand is constant.

    Parameters: `contracted`, number of products summed for each result (by default the length of the left
    operand's last axis); `bias`, whether a constant vector is added.
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
    """A product that sums over the labels of the second operand that the result does not have.

    Parameter: `equation`. With one operand it is a transposition or a reduction; with more than two it is
    unknown. An operand without the batch becomes the second one, as weights are. `joins`: the operands
    share no label of the result, so that all samples are one matrix product.
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
    """softmax(q k' * scale + mask) v, for q, k, v of (batch, heads, steps, size) or (..., steps, features).

    Inputs: query, key, value, and the mask if one is added to the scores. Parameters: `heads`, (heads of q,
    heads of k and v), if the features of all heads lie side by side; the graph's other attributes of
    attention (`keys`, `scaled`), if the shapes do not tell them. A framework that keeps the weights of the
    softmax passes their shape as a second one.
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
    """A split: one operation for each output."""
    parts = (replace(call, shapes=[shape]) for shape in call.shapes)
    return [writer.append(part, "split", call.inputs[:1])[0] for part in parts]


def pad(writer: Writer, call: Call) -> list[int]:
    """A padding or cropping at the ends of axes.

    Parameter: `padding`, (before, after) for each spatial axis.
    """
    amounts = [n for pair in call.parameters["padding"] for n in pair]
    if not any(amounts) or min(amounts) < 0:
        return writer.append(call, "crop" if any(amounts) else "identity", call.inputs[:1])
    return writer.append(call, "pad", call.inputs[:1], **call.parameters)


def cast(writer: Writer, call: Call) -> list[int]:
    """A conversion to another data type; an identity if the data type stays the same."""
    same = writer.builder.tensors[call.inputs[0]].dtype == call.dtype
    return writer.append(call, "identity" if same else "cast", call.inputs[:1])


_RULES: dict[Rule, str] = {
    convolution: " ".join(("convolution", *sorted(CONVOLUTIONS))),
    product: "matmul mm bmm dot", einsum: "einsum", attention: "attention",
    split: "split unstack", pad: "pad", cast: "cast",
}  # fmt: skip
RULES = {normalized(name): rule for name, rule in by_name(_RULES).items()}
"""Normalized name -> rule, for operations whose attributes depend on the call."""


# ---- The labels of an einsum.


def einsum_terms(equation: str) -> tuple[list[str], str]:
    """Labels of the operands and of the result in an equation such as "abc,cde->abde", without "..."."""
    left, arrow, result = equation.replace(" ", "").replace("...", "").partition("->")
    if not arrow:  # the labels that occur once, in alphabetical order
        result = "".join(sorted(c for c in set(left) - {","} if left.count(c) == 1))
    return left.split(","), result


def einsum_features(labels: str, result: str, shape: Sequence[int]) -> tuple[int, int]:
    """(product of the sizes of summed axes of an operand, product of its other sizes).

    "..." in `labels` stands for the first axes.
    """
    sizes = list(zip(labels, shape[len(shape) - len(labels) :], strict=True))
    summed = prod(n for label, n in sizes if label not in result)
    return summed, prod(n for label, n in sizes if label in result)
