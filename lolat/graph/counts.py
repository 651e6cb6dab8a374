"""What an operation costs, counted: one row for each count, one small formula for each kind of operation.

The terms are those of docs/reference/counts.md: ACTS, INP, FLOPs (1 MAC = 1 FLOP), traffic,
weights, ops. A formula gets the elements that the operation reads and writes, at some batch size. An
operation whose kind has no formula is reported by name and counted as memory traffic, never as nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Annotated, Any, NamedTuple

from lolat.arrays import np
from lolat.errors import InputError, arg
from lolat.graph import Graph, Operation, is_convolution, kind_label
from lolat.graph.kinds import (
    COUNTED_AS,
    ELEMENTWISE,
    EXPONENTIALS,
    FREE,
    GATES,
    MOVES,
    NORMALIZATIONS,
    PASSES,
    POOLINGS,
    SELECTIONS,
)

# ---- The table of counts


@dataclass(frozen=True)
class Meaning:
    """Of a count: what its time goes to in a word (flops: computing, weights, memory, patches, ops); its
    name in front of people; why a unit of it costs what it does; its unit; the family that it is a kind
    of, if any.
    """

    group: str
    words: str
    why: str
    unit: str = "elements"
    family: str = ""


_macs = partial(Meaning, "flops", unit="MACs", family="flops")
_weights = partial(Meaning, "weights", unit="weights", family="weights")
_elements = partial(Meaning, "memory", family="elements")
_ops = partial(Meaning, "ops", unit="operations", family="ops")
_memory = partial(Meaning, "memory")
_exps = partial(Meaning, "flops")
_repacks = partial(Meaning, "weights", unit="weights")
_starts = partial(Meaning, "ops", unit="operations")
_groups = partial(Meaning, "ops", unit="groups")
_windows = partial(Meaning, "patches")


# fmt: off
class Count(NamedTuple):
    """Counts of one operation or a sum of several, at some batch size; all integers.

    The first six are those of every model file; the others tell apart what costs more on some devices,
    most of them (those of a family) the same work by kinds of operations. `narrow`, `passes`, `ragged`,
    `repacked`, `threaded` and `streamed` are of training alone; all but `passes` know constants of one
    processor.

    A new count is a row here, and a formula below that fills it in.
    """

    acts: Annotated[int, _memory("convolution output", "Elements that convolutions write.")] = 0
    inp: Annotated[int, _memory("convolution input", "Elements that convolutions read.")] = 0
    flops: Annotated[int, _exps("compute", "Multiplying and adding, of all layers.", "MACs")] = 0
    traffic: Annotated[int, _memory("memory traffic", "Elements that other layers read and write.")] = 0
    weights: Annotated[int, _repacks("reading weights", "Read once a pass, whatever the batch size.")] = 0
    ops: Annotated[int, _starts("starting operations", "Each costs something before it does anything.")] = 0
    patches: Annotated[int, _windows("grouped convolution",
        "Windows of grouped convolutions (output positions x kernel x input channels), which CPUs copy out "
        "where they have no code of their own for groups.")] = 0
    narrow: Annotated[int, _windows("narrow groups",
        "Patches of groups of fewer than VECTOR channels, too narrow for vector instructions, and the "
        "traffic of a normalization of so few, as of an image.")] = 0
    groups: Annotated[int, _groups("starting groups", "Groups of a convolution run one by one.")] = 0
    passes: Annotated[int, _memory("further passes over data",
        "Traffic of the further passes of operations that go over their data more than once.")] = 0
    serial: Annotated[int, _starts("operations in line",
        "Operations on the longest path wait for each other; branches beside it may run meanwhile.")] = 0
    ragged: Annotated[int, _starts("channels that fill no vectors",
        "Convolutions whose channels (of a group) do not fill vectors of PANEL elements.",
        unit="convolutions")] = 0
    repacked: Annotated[int, _repacks("repacking kernels",
        "Kernels of 1x1 convolutions at a batch size above 1, which a CPU's library puts into another "
        "order before each call (those applied at a single position cost REPACKED_FLAT times that).")] = 0
    threaded: Annotated[int, _starts("waking threads",
        "Operations on more than THREADED_FROM elements, for which further threads are woken.")] = 0
    streamed: Annotated[int, _memory("data beyond the caches",
        "Elements of operations on more than STREAMED_FROM, which no cache holds.")] = 0
    maxima: Annotated[int, _memory("windows of max pools",
        "Elements in the windows (outputs x kernel), which some frameworks go through one by one.")] = 0
    means: Annotated[int, _memory("windows of average pools",
        "Elements in the windows (outputs x kernel), which some frameworks go through one by one.")] = 0
    exps: Annotated[int, _exps("exponentials",
        "Results that take an exponential or the like (silu, softmax, gelu), as dear as many MACs.")] = 0
    border: Annotated[int, _memory("inputs and outputs of the network",
        "A runtime that keeps tensors in another order inside puts these into that order and back.")] = 0
    pointwise_macs: Annotated[int, _macs("1x1 convolution",
        "A plain matrix product, near the best that the processor does.")] = 0
    spatial_macs: Annotated[int, _macs("larger convolution",
        "An input is used by a whole window; some libraries need fewer products (Winograd).")] = 0
    depthwise_macs: Annotated[int, _macs("depthwise convolution",
        "A kernel reads one channel: few products an element, so computing waits for memory.")] = 0
    grouped_macs: Annotated[int, _macs("convolution in groups",
        "A small product for each group, which fills neither vectors nor threads.")] = 0
    dense_macs: Annotated[int, _macs("dense layers on many positions", "A plain matrix product.")] = 0
    flat_macs: Annotated[int, _macs("dense layers",
        "At one position a sample each weight is used once: reading it costs more than its product.")] = 0
    product_macs: Annotated[int, _macs("products of activations",
        "Many small products (one a head), whose operands are put into order each time.")] = 0
    pointwise_weights: Annotated[int, _weights("weights of 1x1 convolutions",
        "Read as they are used, or put into another order before each call.")] = 0
    spatial_weights: Annotated[int, _weights("weights of larger convolutions",
        "Put into another order, or transformed (Winograd), before each call by some libraries.")] = 0
    grouped_weights: Annotated[int, _weights("weights of grouped convolutions",
        "Few and in small pieces, one for each group.")] = 0
    dense_weights: Annotated[int, _weights("weights of dense layers",
        "Large matrices, read as fast as memory gives them.")] = 0
    conv_reads: Annotated[int, _elements("convolution input",
        "Read by each tile of the kernel that needs it; computing hides some of it.")] = 0
    conv_writes: Annotated[int, _elements("convolution output", "Computing hides some of it.")] = 0
    depthwise_reads: Annotated[int, _elements("depthwise convolution input",
        "Read once for each row of the kernel; computing hides little.")] = 0
    depthwise_writes: Annotated[int, _elements("depthwise convolution output", "Hidden by little.")] = 0
    dense_elements: Annotated[int, _elements("dense layers' inputs and outputs",
        "Read and written beside the product, which hides some of it.")] = 0
    pool_elements: Annotated[int, _elements("pooling", "Read in windows, by simple code.")] = 0
    norm_elements: Annotated[int, _elements("batch normalization",
        "One pass, or none where it is folded into the convolution before it.")] = 0
    layer_norm_elements: Annotated[int, _elements("layer normalization",
        "Several passes: for the mean, for the variance, for the result.")] = 0
    curve_elements: Annotated[int, _elements("activations with an exponential",
        "Each element is computed by a curve of many steps.")] = 0
    clip_elements: Annotated[int, _elements("relu and its like",
        "One cheap pass, and none where the operation before it does it too.")] = 0
    pair_elements: Annotated[int, _elements("adding and multiplying",
        "Two tensors in and one out, at the speed of memory.")] = 0
    joined_elements: Annotated[int, _elements("concatenation", "Copies all that it joins.")] = 0
    moved_elements: Annotated[int, _elements("slices, transposes and copies",
        "Read or written with gaps, which memory is slow at.")] = 0
    conv_ops: Annotated[int, _ops("starting convolutions",
        "The code for its shape is found, the threads are woken.")] = 0
    depthwise_ops: Annotated[int, _ops("starting depthwise convolutions", "As other convolutions.")] = 0
    dense_ops: Annotated[int, _ops("starting dense layers", "As convolutions.")] = 0
    pool_ops: Annotated[int, _ops("starting pools", "Little is to be set up.")] = 0
    norm_ops: Annotated[int, _ops("starting normalizations", "Nothing where it is folded.")] = 0
    curve_ops: Annotated[int, _ops("starting activations", "Nothing where it is fused.")] = 0
    pair_ops: Annotated[int, _ops("starting additions and the like", "Little is to be set up.")] = 0
    move_ops: Annotated[int, _ops("starting slices, joins and copies", "Little is to be set up.")] = 0
    unfolded: Annotated[int, _memory("windows of convolutions",
        "Windows of convolutions larger than 1x1, copied out before the product (im2col).")] = 0
    gelus: Annotated[int, _exps("gelu", "Results of gelu and erf, dearer than an exponential.")] = 0
    maps: Annotated[int, _groups("groups one after the other",
        "Groups x batch size: a backend that has no kernel of its own for grouped and depthwise "
        "convolutions convolves the groups of every sample one after the other.")] = 0
# fmt: on


MEANINGS: dict[str, Meaning] = {
    name: hint.__metadata__[0] for name, hint in Count.__annotations__.items()
}
COLUMNS = Count._fields
FEATURES = COLUMNS[:6]
EXTRAS = COLUMNS[6:]
KINDS: dict[str, tuple[str, ...]] = {
    family: tuple(name for name, meaning in MEANINGS.items() if meaning.family == family)
    for family in ("flops", "weights", "elements", "ops")
}
"""The same work told apart by kinds of operations: what a family counts -> its kinds, which add up to it.

A device's formula starts from one cost for each family and lets a kind differ from it where the points of
the device say so (`lolat.fitting.least_squares.fit_families`).
"""
GROUPS = {name: meaning.group for name, meaning in MEANINGS.items()}

VECTOR = 8  # channels that one vector instruction works on
PANEL = 16  # channels that a block of a kernel put into order has
REPACKED_FLAT = 3
THREADED_FROM = 2**17  # elements
STREAMED_FROM = 2**22  # elements: 16 MiB of float32

# ---- The formulas
#
# A formula is for whole numbers or for arrays of them: of many layers at once.

Formula = Callable[[Mapping[str, Any], Sequence[Any], Sequence[Any]], Count]


def formula_for(kind: str) -> Formula:
    """The counts of an operation of a kind, from its attributes and the elements it reads and writes.

    Numbers in, whole numbers out; arrays in, arrays out. Of an unknown kind: memory traffic.
    """
    return FORMULAS.get(kind, _traffic)


def _convolution(a: Mapping[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Count:
    """Each output element sums kernel x (input channels / groups) products."""
    per_output = prod(a["kernel"]) * a["in_channels"] // a["groups"]
    weights = a["out_channels"] * (per_output + a["bias"])
    return Count(outs[0], ins[0], outs[0] * per_output, 0, weights, 1, ragged=_is_ragged(a))


def _is_ragged(a: Mapping[str, Any]) -> Any:
    """Whether the channels of a group, in or out, do not fill vectors."""
    inside, outside = (a[side] // a["groups"] % PANEL for side in ("in_channels", "out_channels"))
    return (inside > 0) | (outside > 0)


def _grouped_convolution(a: Mapping[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Count:
    """A convolution in groups; its patches are unfolded before they are multiplied."""
    patches = outs[0] // a["out_channels"] * prod(a["kernel"]) * a["in_channels"]
    narrow = patches * (a["in_channels"] // a["groups"] < VECTOR)
    plain = _convolution(a, ins, outs)
    return plain._replace(patches=patches, narrow=narrow, groups=a["groups"])


def _transposed_convolution(a: Mapping[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Count:
    """Each input element is multiplied into kernel x (output channels / groups) outputs."""
    per_input = prod(a["kernel"]) * a["out_channels"] // a["groups"]
    weights = per_input * a["in_channels"] + a["out_channels"] * a["bias"]
    return Count(outs[0], ins[0], ins[0] * per_input, 0, weights, 1, ragged=_is_ragged(a))


def _dense(a: Mapping[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Count:
    """Each output element sums `in_features` products; the kernel is read once a pass."""
    weights = a["out_features"] * (a["in_features"] + a["bias"])
    return Count(0, 0, outs[0] * a["in_features"], ins[0] + outs[0], weights, 1)


def _traffic(a: Mapping[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Count:
    """Reads its inputs, writes its outputs, multiplies nothing that counts."""
    return Count(traffic=sum(ins) + sum(outs), ops=1)


def _in_passes(kind: str) -> Formula:
    """Traffic of an operation that goes over its data several times, or computes an exponential."""
    further, exps = PASSES.get(kind, 0), kind in EXPONENTIALS

    def formula(a: Mapping[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Count:
        traffic = sum(ins) + sum(outs)
        return Count(traffic=traffic, ops=1, passes=further * traffic, exps=sum(outs) * exps)

    return formula


def _pool(column: str) -> Formula:
    """Goes over windows, which may overlap; the elements in them count as `column`."""
    passes = _in_passes("max_pool")
    return lambda a, ins, outs: passes(a, ins, outs)._replace(
        **{column: outs[0] * prod(a["kernel"])}
    )


def _batch_norm(a: Mapping[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Count:
    """Multiplies, then adds: two passes. On fewer channels than a vector has, as of an image, slowly."""
    plain = _in_passes("batch_norm")(a, ins, outs)
    return plain._replace(narrow=plain.traffic * (a.get("channels", VECTOR) < VECTOR))


def _attention(a: Mapping[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Count:
    """softmax(queries x keys' [x scale] [+ mask]) x values: two products and what runs between them.

    Inputs: queries, keys, values and, where there is one, the mask that is added to the scores. The first
    output is (..., queries, value_size) for each head, or has the heads side by side. A framework that
    keeps the softmax's weights in memory writes them as a second output.

    Attributes: `heads`; `key_heads`, those of keys and values; `queries` and `keys`, their positions;
    `head_size`, `value_size`; `scaled`, True unless it says otherwise.
    """
    scores = outs[0] // a["value_size"] * a["keys"]
    products = (ins[0] + ins[1] + scores) + (scores + ins[2] + outs[0])
    mask, scaled = ins[3:4], bool(a.get("scaled", True))
    pairs = 2 * scores * (scaled + len(mask)) + sum(mask)
    macs = scores * a["head_size"] + outs[0] * a["keys"]
    return Count(
        flops=macs, product_macs=macs, traffic=products + pairs + 2 * scores,
        dense_elements=products, pair_elements=pairs, curve_elements=2 * scores, exps=scores,
        passes=PASSES["softmax"] * 2 * scores, ops=3 + scaled + len(mask),
        dense_ops=2, pair_ops=scaled + len(mask), curve_ops=1,
    )  # fmt: skip


def _recurrent(kind: str, step_traffic: int, biases: int) -> Formula:
    """A recurrent layer: the operations of one step, times the steps.

    A step is two products (of the input and of the state with `gates` matrices each) and elementwise
    operations on vectors of `units`, which together read and write `step_traffic` x units elements.
    It counts as one operation started: the loop that a framework runs starts its small operations
    without going back to the graph (TensorFlow took some 12 us for a step of an LSTM of 64 units).
    `biases` vectors of gates x units are learned, unless `bias_vectors` says how many.
    """
    gates = GATES[kind]

    def formula(a: Mapping[str, Any], ins: Sequence[Any], outs: Sequence[Any]) -> Count:
        units, features = a["units"], a["in_features"]
        sequences = ins[0] // features  # batch x steps
        kernel = gates * units * (features + units)
        traffic = sequences * (features + units + (2 * gates + step_traffic) * units)
        weights = kernel + gates * units * a.get("bias_vectors", biases) * a["bias"]
        return Count(0, 0, sequences * kernel, traffic, weights, a["timesteps"])

    return formula


FORMULAS: dict[str, Formula] = {
    **dict.fromkeys(sorted(ELEMENTWISE | NORMALIZATIONS | MOVES), _traffic),
    **{kind: _in_passes(kind) for kind in sorted({*EXPONENTIALS, *PASSES})},
    **dict.fromkeys(sorted(FREE), lambda a, ins, outs: Count()),
    # what it selects, and the indices where they are a tensor
    **dict.fromkeys(
        sorted(SELECTIONS), lambda a, ins, outs: Count(traffic=2 * sum(outs) + sum(ins[1:]), ops=1)
    ),
    # a constant; of its input it needs the shape alone
    "fill": lambda a, ins, outs: Count(traffic=sum(outs), ops=1),
    # the rows that it gathers, not the table
    "embedding": lambda a, ins, outs: Count(traffic=ins[0] + outs[0], weights=outs[0], ops=1),
    "batch_norm": _batch_norm,
    "max_pool": _pool("maxima"),
    "average_pool": _pool("means"),
    "conv": _convolution,
    "depthwise_conv": _convolution,
    "grouped_conv": _grouped_convolution,
    "transposed_conv": _transposed_convolution,
    "dense": _dense,
    # each output element sums `contracted` products of two activations
    "matmul": lambda a, ins, outs: _traffic(a, ins, outs)._replace(flops=outs[0] * a["contracted"]),
    "attention": _attention,
    # add the gates (12), three sigmoids (6), tanh (2), f*c (3), i*g (3), add (3), tanh (2), o*tanh (3)
    "lstm": _recurrent("lstm", step_traffic=34, biases=1),
    # add z and r (6), two sigmoids (4), r*h (3), add (3), tanh (2), 1-z (2), z*h (3), (1-z)*g (3), add (3)
    "gru": _recurrent("gru", step_traffic=29, biases=2),
    # add (3), tanh (2)
    "simple_rnn": _recurrent("simple_rnn", step_traffic=5, biases=1),
}


_MOVING = (
    POOLINGS | SELECTIONS | {"batch_norm"} | {k for k, of in FORMULAS.items() if of is _traffic}
)


def behavior(operation: Operation) -> str:
    """What kind of work an operation is, as the measured domain knows it.

    What only reads and writes memory once is one kind, whatever it is called. Attention is the products
    that it is made of. Convolutions and pools of one or three dimensions are apart from those of two.
    """
    if operation.kind == "attention":
        return "matmul"
    return "memory traffic" if operation.kind in _MOVING else kind_label(operation)


def behaviors(operations: Iterable[Operation]) -> set[str]:
    """The kinds of work of operations; what is free is none."""
    return {behavior(o) for o in operations if o.kind not in FREE}


# ---- Operations told apart by their kind


def _formula_counts(graph: Graph, operation: Operation, batch_size: int) -> Count:
    """What an operation's formula says at `batch_size`, also told apart by kinds.

    InputError when the operation lacks what its formula needs.
    """
    ins, outs = (
        [graph.tensors[i].elements(batch_size) for i in tensors]
        for tensors in (operation.inputs, operation.outputs)
    )
    try:
        plain = formula_for(operation.kind)(operation.attributes, ins, outs)
        return plain._replace(**_told_apart(graph, operation, plain, outs))
    except (KeyError, IndexError, TypeError, ZeroDivisionError) as error:
        raise InputError(
            f"operation {operation.full_name!r} cannot be counted as {operation.kind}: it lacks "
            f"{error}; expected the attributes and inputs that lolat/graph/counts.py names for this kind"
        ) from error


def _told_apart(
    graph: Graph, operation: Operation, plain: Count, outs: Sequence[int]
) -> dict[str, int]:
    """The counts of KINDS, `unfolded`, `maps` and `gelus`, of an operation whose formula says `plain`."""
    kind = operation.kind
    if kind == "attention":
        return {}  # its formula tells its parts apart
    if is_convolution(kind):
        return _convolution_apart(graph, operation, plain, outs)
    elements, started = COUNTED_AS.get(kind, ("moved_elements", "move_ops"))
    counts = {elements: plain.traffic, started: plain.ops, "dense_weights": plain.weights}
    if plain.flops:
        one = graph.tensors[operation.outputs[0]].elements()
        single = kind == "dense" and one <= operation.attributes["out_features"]  # at one position
        name = "product_macs" if kind == "matmul" else "flat_macs" if single else "dense_macs"
        counts[name] = plain.flops
    if kind in ("gelu", "erf"):
        counts["gelus"] = sum(outs)
    return counts


def _convolution_apart(
    graph: Graph, operation: Operation, plain: Count, outs: Sequence[int]
) -> dict[str, int]:
    """`_told_apart` of a convolution: 1x1, larger (and transposed), in groups, or one kernel a channel."""
    a, window = operation.attributes, prod(operation.attributes["kernel"])
    name = {"depthwise_conv": "depthwise", "grouped_conv": "grouped"}.get(operation.kind, "spatial")
    name = "pointwise" if operation.kind == "conv" and window == 1 else name
    place = "depthwise" if name == "depthwise" else "conv"
    counts = {
        f"{name}_macs": plain.flops,
        f"{'grouped' if name == 'depthwise' else name}_weights": plain.weights,
        f"{place}_reads": plain.inp,
        f"{place}_writes": plain.acts,
        f"{place}_ops": plain.ops,
    }
    if operation.kind == "conv" and name == "spatial":
        counts["unfolded"] = outs[0] // a["out_channels"] * window * a["in_channels"]
    if name in ("depthwise", "grouped"):
        counts["maps"] = a["groups"] * outs[0] // graph.tensors[operation.outputs[0]].elements()
    return counts


# ---- Whole graphs

_ELEMENTS = [COLUMNS.index(c) for c in ("acts", "inp", "traffic")]
_OPS, _SERIAL, _REPACKED, _THREADED, _STREAMED, _BORDER = (
    COLUMNS.index(c) for c in ("ops", "serial", "repacked", "threaded", "streamed", "border")
)


@dataclass(frozen=True)
class GraphCounts:
    """Counts of every operation of a graph, for any batch size.

    All formulas are affine in the batch size, so an operation's counts are `fixed + batch * scaled`,
    both (operations, columns) arrays of int64 with the columns of COLUMNS; `repacked`, `threaded` and
    `streamed`, which know thresholds, are made of those by `at`.
    """

    fixed: "np.ndarray"
    scaled: "np.ndarray"
    warnings: tuple[str, ...]

    def at(self, batch_size: int) -> "np.ndarray":
        """(operations, COLUMNS) at `batch_size`."""
        return _by_size(self.fixed + batch_size * self.scaled, batch_size)

    def total(self, batch_size: int = 1) -> Count:
        """Counts of the whole graph at `batch_size`."""
        return Count(*(int(n) for n in self.at(batch_size).sum(axis=0)))


def _by_size(rows: "np.ndarray", batch_size: int) -> "np.ndarray":
    """Fill in, in place, the columns that depend on how large an operation is at `batch_size`.

    `rows`: (operations, COLUMNS), `repacked` as it is above batch size 1.
    """
    elements = rows[:, _ELEMENTS].sum(axis=1)
    each = elements // np.maximum(rows[:, _OPS], 1)  # a recurrent layer is many operations
    rows[:, _THREADED] = np.where(each > THREADED_FROM, rows[:, _OPS], 0)
    rows[:, _STREAMED] = np.where(each > STREAMED_FROM, elements, 0)
    if batch_size == 1:
        rows[:, _REPACKED] = 0
    return rows


def _repacked(graph: Graph, operation: Operation) -> int:
    """`repacked` of one operation at a batch size above 1."""
    a = operation.attributes
    if operation.kind != "conv" or prod(a["kernel"]) != 1:
        return 0
    single = graph.tensors[operation.outputs[0]].elements() == a["out_channels"]
    return a["in_channels"] * a["out_channels"] * (REPACKED_FLAT if single else 1)


def count(graph: Graph) -> GraphCounts:
    """Count a graph; the result is kept with the graph, so a second call costs nothing."""
    return graph.cached("counts", _count)


def _count(graph: Graph) -> GraphCounts:
    shape = (len(graph.operations), len(COLUMNS))
    try:
        one, two = (
            np.array([_formula_counts(graph, o, n) for o in graph.operations], np.int64)
            for n in (1, 2)
        )
    except OverflowError:
        why = f"network {graph.name!r} is too large to count: an operation has more than 2**63 of something"
        raise InputError(f"{why}; give a smaller {arg('input_size')}", why=why) from None
    scaled = (two - one).reshape(shape)
    fixed = one.reshape(shape) - scaled
    path = _longest_path(graph, fixed[:, _OPS])
    fixed[path, _SERIAL] = fixed[path, _OPS]
    fixed[:, _BORDER] = _border(graph, 0)
    scaled[:, _BORDER] = _border(graph, 1) - fixed[:, _BORDER]
    fixed[:, _REPACKED] = [_repacked(graph, o) for o in graph.operations]
    return GraphCounts(fixed, scaled, graph.warnings + _unknown(graph))


def _border(graph: Graph, batch_size: int) -> "np.ndarray":
    """(operations,) elements of the graph's inputs, where they are first read, and of its outputs."""
    elements = np.zeros(len(graph.operations), np.int64)
    ends = set(graph.inputs) | set(graph.outputs)
    for position, operation in enumerate(graph.operations):
        for tensor in ends.intersection(operation.inputs + operation.outputs):
            elements[position] += graph.tensors[tensor].elements(batch_size)
        ends.difference_update(operation.inputs, operation.outputs)
    return elements


def _longest_path(graph: Graph, ops: "np.ndarray") -> list[int]:
    """Positions of the operations on the path that starts most operations; `ops`: (operations,) started."""
    reached: dict[int, tuple[int, int]] = {}  # tensor -> (operations so far, who wrote it)
    best: list[tuple[int, int]] = []  # per operation: (operations so far, position before it)
    for position, operation in enumerate(graph.operations):
        before, previous = max(
            (reached[t] for t in operation.inputs if t in reached), default=(0, -1)
        )
        best.append((before + int(ops[position]), previous))
        reached.update((t, (best[-1][0], position)) for t in operation.outputs)
    position = max(range(len(best)), key=lambda i: best[i][0], default=-1)
    path = []
    while position >= 0:
        path.append(position)
        position = best[position][1]
    return path


def _unknown(graph: Graph) -> tuple[str, ...]:
    """One remark per kind of operation that has no formula."""
    unknown = [o for o in graph.operations if o.kind not in FORMULAS]
    first = {o.kind: o.full_name for o in reversed(unknown)}
    return tuple(
        f"no formula for operation {kind} ({number} x, first {first[kind]!r}): counted as memory "
        "traffic of its inputs and outputs"
        for kind, number in Counter(o.kind for o in unknown).items()
    )
