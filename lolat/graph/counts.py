"""Counts of operations: one row for each count, one formula for each kind of operation.

The terms are those of docs/reference/counts.md: ACTS, INP, FLOPs (1 MAC = 1 FLOP), traffic, weights, ops.
An operation whose kind has no formula is named in a remark and counted as memory traffic.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Annotated, Any, NamedTuple

from lolat.arrays import np
from lolat.errors import InputError
from lolat.graph import Graph, Operation, cached_on_graph, kinds
from lolat.graph.kinds import GATES, VIEWS, kind_of
from lolat.io.results import Figure, Remark
from lolat.units import percent

# ---- The table of counts


@dataclass(frozen=True)
class Meaning:
    """The meaning of a count.

    `group`: the kind of cost (flops: computing, weights, memory, patches, ops); `words`: the count's name
    for people; `why`: why it costs time; `family`: the total count that it is a part of.
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
_starts = partial(Meaning, "ops", unit="operations")
_groups = partial(Meaning, "ops", unit="groups")


# fmt: off
class Count(NamedTuple):
    """Counts of one operation, or sums over several, at some batch size; all integers.

    Every profile has the first six. The others separate work that costs more on some devices. Counts of one
    family add up to the family's total, split by kinds of operations. Only training uses `threaded` and
    `streamed`.

    A new count is a row here, and a formula below that fills it in.
    """

    acts: Annotated[int, _memory("convolution output", "Elements that convolutions write.")] = 0
    inp: Annotated[int, _memory("convolution input", "Elements that convolutions read.")] = 0
    flops: Annotated[int, _exps("compute", "Multiplying and adding, of all layers.", "MACs")] = 0
    traffic: Annotated[int, _memory("memory traffic", "Elements that other layers read and write.")] = 0
    weights: Annotated[int, Meaning("weights", "reading weights",
        "Read once a pass, whatever the batch size.", "weights")] = 0
    ops: Annotated[int, _starts("launch overhead", "Each costs something before it does anything.")] = 0
    patches: Annotated[int, Meaning("patches", "grouped convolution",
        "Windows of grouped convolutions (output positions x kernel x input channels), which CPUs copy out "
        "where they have no code of their own for groups.")] = 0
    groups: Annotated[int, _groups("starting groups", "Groups of a convolution run one by one.")] = 0
    serial: Annotated[int, _starts("operations in line",
        "Operations on the longest path wait for each other; branches beside it may run meanwhile.")] = 0
    threaded: Annotated[int, _starts("waking threads",
        "Operations on more than THREADED_FROM elements, for which further threads are woken.")] = 0
    streamed: Annotated[int, _memory("data beyond the caches",
        "Elements of operations on more than STREAMED_FROM, which no cache holds.")] = 0
    maxima: Annotated[int, _memory("windows of max pools",
        "Elements in the windows (outputs x kernel), which some frameworks go through one by one.")] = 0
    means: Annotated[int, _memory("windows of average pools",
        "Elements in the windows (outputs x kernel), which some frameworks go through one by one.")] = 0
    exps: Annotated[int, _exps("exponentials",
        "Results that take an exponential or the like (silu, softmax, gelu), worth many MACs.")] = 0
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
    curve_elements: Annotated[int, _elements("activations of several steps",
        "Each element takes an exponential or the like, or several passes (hard swish).")] = 0
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
    gelus: Annotated[int, _exps("gelu", "Results of gelu and erf, more expensive than an exponential.")] = 0
    maps: Annotated[int, _groups("groups one after the other",
        "Groups x batch size: a backend that has no kernel of its own for grouped and depthwise "
        "convolutions convolves the groups of every sample one after the other.")] = 0
    repacked: Annotated[int, Meaning("weights", "reordering weights",
        "Weights of convolutions at batch sizes above 1, which some libraries put into another order in "
        "each call (oneDNN in TensorFlow).", "weights")] = 0
# fmt: on


MEANINGS: dict[str, Meaning] = {
    name: hint.__metadata__[0] for name, hint in Count.__annotations__.items()
}
COLUMNS = Count._fields
FEATURES = COLUMNS[:6]
EXTRAS = COLUMNS[6:]
MEMBERS: dict[str, tuple[str, ...]] = {
    family: tuple(name for name, meaning in MEANINGS.items() if meaning.family == family)
    for family in ("flops", "weights", "elements", "ops")
}
"""Family -> its columns, one for each kind of operation; their sum is the count of the family.

A device's formula starts with one cost for each family. A kind gets another cost if the device's points
show it (`lolat.fitting.least_squares.fit_families`).
"""
GROUPS = {name: meaning.group for name, meaning in MEANINGS.items()}

THREADED_FROM = 2**17  # elements
STREAMED_FROM = 2**22  # elements: 16 MiB of float32

# ---- The formulas


class Sizes(NamedTuple):
    """The sizes of an operation's tensors at a batch size.

    `ins`, `outs`: elements of each tensor that it reads and writes. `single`: elements of its first output
    at batch size 1.
    """

    kind: str
    attributes: Mapping[str, Any]
    ins: list[int]
    outs: list[int]
    single: int


Formula = Callable[[Sizes], Count]


def _of_kind(w: Sizes, traffic: int | None = None, ops: int = 1, **more: int) -> Count:
    """Count traffic and operations, in total and for their kind, and add the counts in `more`.

    `traffic`: elements; None for the elements of all inputs and outputs.
    """
    kind, traffic = kind_of(w.kind), sum(w.ins) + sum(w.outs) if traffic is None else traffic
    return Count(traffic=traffic, ops=ops, **{kind.elements: traffic, kind.ops: ops}, **more)


def _exponential(w: Sizes) -> Count:
    results = sum(w.outs)
    return _of_kind(w, exps=results, gelus=results * kind_of(w.kind).is_gelu)


def _pool(w: Sizes) -> Count:
    """Count traffic, and the elements in all windows; one in several windows counts several times."""
    column = "maxima" if w.kind == "max_pool" else "means"
    return _of_kind(w, **{column: w.outs[0] * prod(w.attributes["kernel"])})


def _convolution(w: Sizes) -> Count:
    """Count kernel x (input channels / groups) products for each output element.

    A transposed convolution has kernel x (output channels / groups) products for each input element.
    """
    a, window, inputs, outputs = w.attributes, prod(w.attributes["kernel"]), w.ins[0], w.outs[0]
    in_channels, out_channels, groups = a["in_channels"], a["out_channels"], a["groups"]
    per_output = window * in_channels // groups
    macs, weights = outputs * per_output, out_channels * (per_output + a["bias"])
    if w.kind == "transposed_conv":
        per_input = window * out_channels // groups
        macs, weights = inputs * per_input, per_input * in_channels + out_channels * a["bias"]
    unfolded = outputs // out_channels * window * in_channels
    more = {}
    if w.kind == "depthwise_conv":
        name = place = "depthwise"
    elif w.kind == "grouped_conv":
        name, place, more = "grouped", "conv", {"patches": unfolded, "groups": groups}
    else:
        name, place = "pointwise" if w.kind == "conv" and window == 1 else "spatial", "conv"
        if w.kind == "conv" and window > 1:
            more = {"unfolded": unfolded}
    if name in ("depthwise", "grouped"):
        more["maps"] = groups * outputs // w.single
    of_weights = "grouped" if name == "depthwise" else name
    return Count(
        acts=outputs, inp=inputs, flops=macs, weights=weights, ops=1,
        **{f"{name}_macs": macs, f"{of_weights}_weights": weights, f"{place}_reads": inputs,
           f"{place}_writes": outputs, f"{place}_ops": 1},
        **more,
    )  # fmt: skip


def _dense(w: Sizes) -> Count:
    """Count `in_features` products for each output element; all experts' kernels are read once per pass.

    Attribute `bias`: True, False, or the fraction of the outputs that have a bias.
    """
    a = w.attributes
    macs, kernel = w.outs[0] * a["in_features"], a["in_features"] * a["out_features"]
    weights = (kernel + round(a["bias"] * a["out_features"])) * a.get("experts", 1)
    name = "flat_macs" if w.single <= a["out_features"] else "dense_macs"  # one position or several
    more = {"flops": macs, name: macs, "weights": weights, "dense_weights": weights}
    return _of_kind(w, w.ins[0] + w.outs[0], **more)


def _embedding(w: Sizes) -> Count:
    """Count the rows that are read, not the whole table; a bag sums several rows into one output row."""
    rows = max(w.ins[0] * w.attributes.get("out_features", 0), w.outs[0])
    return _of_kind(w, w.ins[0] + w.outs[0], weights=rows, dense_weights=rows)


def _matmul(w: Sizes) -> Count:
    """Count `contracted` products of two activations for each output element."""
    macs = w.outs[0] * w.attributes["contracted"]
    return _of_kind(w, flops=macs, product_macs=macs)


def _attention(w: Sizes) -> Count:
    """Count softmax(queries x keys' [x scale] [+ mask]) x values as two products and the steps between.

    Inputs: queries, keys, values, and an optional mask that is added to the scores. The first output is
    (..., queries, value_size) for each head, or has the heads side by side. The optional second output is
    the softmax's result, if the framework keeps it.
    """
    a, (queries, keys, values, *masks), mixed = w.attributes, w.ins, w.outs[0]
    scores = mixed // a["value_size"] * a["keys"]
    products = (queries + keys + scores) + (scores + values + mixed)
    scaled = bool(a.get("scaled", True))
    pairs = 2 * scores * (scaled + len(masks)) + sum(masks)
    macs = scores * a["head_size"] + mixed * a["keys"]
    return Count(
        flops=macs, product_macs=macs, traffic=products + pairs + 2 * scores,
        dense_elements=products, pair_elements=pairs, curve_elements=2 * scores, exps=scores,
        ops=3 + scaled + len(masks), dense_ops=2, pair_ops=scaled + len(masks), curve_ops=1,
    )  # fmt: skip


def _recurrent(step_traffic: int, biases: int) -> Formula:
    """The formula of a recurrent layer: the counts of one step, times the steps.

    Each step multiplies the input and the state with one matrix per gate, then runs element-wise operations
    that access `step_traffic` x units elements. A step counts as one operation: a framework's loop launches
    its small operations faster than a graph's operations (TensorFlow takes some 12 us for a step of an LSTM
    of 64 units). `biases`: learned vectors of gates x units elements; the attribute `bias_vectors`
    overrides it. The attribute `projection`: size of the state after one more product (Sak et al., 2014).
    """

    def formula(w: Sizes) -> Count:
        a, gates = w.attributes, GATES[w.kind]
        units, features = a["units"], a["in_features"]
        sequences = w.ins[0] // features  # batch x steps
        state, projected = a.get("projection", units), "projection" in a
        kernel = gates * units * (features + state) + units * state * projected
        traffic = (
            features + state + (2 * gates + step_traffic) * units + (units + state) * projected
        )
        traffic *= sequences
        weights = kernel + gates * units * a.get("bias_vectors", biases) * a["bias"]
        macs = sequences * kernel
        more = {"flops": macs, "dense_macs": macs, "weights": weights, "dense_weights": weights}
        return _of_kind(w, traffic, a["timesteps"], **more)

    return formula


_OF_GROUP: dict[str, Formula] = {
    "convolution": _convolution,
    "exponential": _exponential,
    # reads and writes the selected elements; reads a tensor of indices
    "selection": lambda w: _of_kind(w, 2 * sum(w.outs) + sum(w.ins[1:])),
    "fill": lambda w: _of_kind(w, sum(w.outs)),
    "embedding": _embedding,
    "view": lambda w: Count(),
}
FORMULAS: dict[str, Formula] = {
    **{name: _OF_GROUP.get(kind.group, _of_kind) for name, kind in kinds.KINDS.items()},
    **dict.fromkeys(("max_pool", "average_pool"), _pool),
    "dense": _dense,
    "matmul": _matmul,
    "attention": _attention,
    "dropout": lambda w: _of_kind(w) if w.attributes.get("always") else Count(),
    # add the gates (12), three sigmoids (6), tanh (2), f*c (3), i*g (3), add (3), tanh (2), o*tanh (3)
    "lstm": _recurrent(step_traffic=34, biases=1),
    # add z and r (6), two sigmoids (4), r*h (3), add (3), tanh (2), 1-z (2), z*h (3), (1-z)*g (3), add (3)
    "gru": _recurrent(step_traffic=29, biases=2),
    # add (3), tanh (2)
    "simple_rnn": _recurrent(step_traffic=5, biases=1),
}


def behavior(operation: Operation) -> str:
    """The name of an operation's kind of work in a device's measured domain.

    It is "memory traffic" for kinds that read and write memory once, and "matmul" for attention. Names of
    convolutions and pools with one or three dimensions end in "_1d" and "_3d".
    """
    if kind_of(operation.kind).like_memory:
        return "memory traffic"
    dimensions = len(operation.attributes.get("kernel", ()))
    kind = "matmul" if operation.kind == "attention" else operation.kind
    return f"{kind}_{dimensions}d" if dimensions in (1, 3) else kind


def behaviors(operations: Iterable[Operation]) -> set[str]:
    """The names of the operations' kinds of work (see `behavior`), without views."""
    return {behavior(o) for o in operations if o.kind not in VIEWS}


# ---- Whole graphs

MOST_COUNT = 2.0**53  # of an operation: larger integers are not exact as floats
_ELEMENTS = [COLUMNS.index(c) for c in ("acts", "inp", "traffic")]
REPACKED, *_REORDERED = map(COLUMNS.index, ("repacked", "pointwise_weights", "spatial_weights"))
_PLACES = ("ops", "serial", "threaded", "streamed", "border")
_OPS, _SERIAL, _THREADED, _STREAMED, _BORDER = map(COLUMNS.index, _PLACES)


@dataclass(frozen=True)
class GraphCounts:
    """Counts of every operation of a graph, for any batch size.

    An operation's counts are `fixed + batch * scaled`; both arrays are (operations, COLUMNS), int64. Only
    `threaded`, `streamed` and `repacked` are not linear; `at` computes them. `quantized`: the share of the
    multiply-accumulates whose operations have the attribute `bits`.
    """

    fixed: "np.ndarray"
    scaled: "np.ndarray"
    warnings: tuple[str, ...]
    quantized: float = 0.0

    def check_size(self, batch_size: int, name: str) -> None:
        """Raise InputError if a count at `batch_size` overflows 64 bits; `name`: the network's name."""
        if float(self.scaled.max(initial=0)) * batch_size > MOST_COUNT:
            why = f"batch size {batch_size} of {name!r}: its counts do not fit in 64 bits"
            raise InputError(f"{why}; give a smaller batch size or input size", why=why)

    def at(self, batch_size: int) -> "np.ndarray":
        """Counts at `batch_size`, (operations, COLUMNS), int64."""
        rows = self.fixed + batch_size * self.scaled
        elements = rows[:, _ELEMENTS].sum(axis=1)
        each = elements // np.maximum(rows[:, _OPS], 1)  # a recurrent layer is many operations
        rows[:, _THREADED] = np.where(each > THREADED_FROM, rows[:, _OPS], 0)
        rows[:, _STREAMED] = np.where(each > STREAMED_FROM, elements, 0)
        rows[:, REPACKED] = repacked(rows, batch_size)
        return rows

    def total(self, batch_size: int = 1) -> Count:
        """Counts of the whole graph at `batch_size`."""
        return Count(*(int(n) for n in self.at(batch_size).sum(axis=0)))


def repacked(counts: "np.ndarray", batch_size: int) -> "np.ndarray":
    """Weights that each call at `batch_size` puts in another layout, (...,); `counts`: (..., COLUMNS)."""
    reordered: np.ndarray = (batch_size > 1) * counts[..., _REORDERED].sum(axis=-1)
    return reordered


@cached_on_graph
def count(graph: Graph) -> GraphCounts:
    """Count the operations of a graph; each kind without a formula gets one remark."""
    shape = (len(graph.operations), len(COLUMNS))
    one, two = (
        np.array([_operation_counts(graph, o, n) for o in graph.operations], np.int64)
        for n in (1, 2)
    )
    scaled = (two - one).reshape(shape)
    fixed = one.reshape(shape) - scaled
    path = _longest_path(graph, fixed[:, _OPS])
    fixed[path, _SERIAL] = fixed[path, _OPS]
    # The network's inputs and outputs, each counted where it is first read or written.
    ends = {*graph.inputs, *graph.outputs}
    for position, operation in enumerate(graph.operations):
        for tensor in (graph.tensors[t] for t in ends & {*operation.inputs, *operation.outputs}):
            (scaled if tensor.batched else fixed)[position, _BORDER] += tensor.elements()
        ends.difference_update(operation.inputs, operation.outputs)
    unknown = [o for o in graph.operations if o.kind not in FORMULAS]
    first = {o.kind: o.full_name for o in reversed(unknown)}
    hiding = {o.kind for o in unknown if "hides" in o.attributes}
    remarks = tuple(
        f"no formula for operation {kind} ({number} x, first {first[kind]!r}): counted as memory "
        f"traffic of its inputs and outputs{', without its products' if kind in hiding else ''}"
        for kind, number in Counter(o.kind for o in unknown).items()
    )
    share = share_of_macs(one.reshape(shape), ["bits" in o.attributes for o in graph.operations])
    told = (quantized_remark(share),) if share else ()
    return GraphCounts(fixed, scaled, graph.warnings + remarks + told, share)


def quantized_remark(share: float) -> str:
    """The remark on a network in which a `share` of the multiply-accumulates is quantized."""
    return Remark(
        "quantized",
        "{share} of its multiply-accumulates, which no device was timed with; counted and timed as in "
        "float",
        share=Figure(percent, share),
    )


@cached_on_graph
def wide_share(graph: Graph) -> float:
    """The share of the multiply-accumulates that amp leaves in float32 (torch.autocast(enabled=False))."""
    return share_of_macs(
        count(graph).at(1), [kinds.KEPT_FLOAT32 in o.attributes for o in graph.operations]
    )


def share_of_macs(counts: "np.ndarray", chosen: Sequence[bool]) -> float:
    """The share of the multiply-accumulates in the chosen operations; `counts`: (operations, COLUMNS)."""
    macs = counts[:, COLUMNS.index("flops")]
    return float(macs[[*chosen]].sum()) / max(float(macs.sum()), 1.0)


def _operation_counts(graph: Graph, operation: Operation, batch_size: int) -> Count:
    """Counts of an operation; InputError if an attribute is missing or a size is below 1."""
    ins, outs = (
        [graph.tensors[i].elements(batch_size) for i in tensors]
        for tensors in (operation.inputs, operation.outputs)
    )
    single = graph.tensors[operation.outputs[0]].elements()
    work = Sizes(operation.kind, operation.attributes, ins, outs, single)
    lacking = set(kind_of(operation.kind).requires.split()).difference(operation.attributes)
    try:
        if lacking:
            raise ValueError(", ".join(sorted(lacking)))
        counts = FORMULAS.get(operation.kind, _of_kind)(work)
        if min(counts) < 0 or (operation.kind not in VIEWS and 0 in outs):
            raise ValueError("sizes from 1")
    except (IndexError, TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(
            f"operation {operation.full_name!r} cannot be counted as {operation.kind}: it lacks {error}",
            code="network",
        ) from error
    return counts


def _longest_path(graph: Graph, ops: "np.ndarray") -> list[int]:
    """Positions of the operations on the longest path, by the sum of `ops`, (operations,)."""
    reached: dict[int, tuple[int, int]] = {}  # tensor -> (started so far, its writer's position)
    best: list[tuple[int, int]] = []  # per operation: (started so far, position before it)
    for position, operation in enumerate(graph.operations):
        ways = (reached[t] for t in operation.inputs if t in reached)
        started, previous = max(ways, default=(0, -1))
        best.append((started + int(ops[position]), previous))
        reached.update((t, (best[-1][0], position)) for t in operation.outputs)
    most = [started for started, _ in best]
    position = most.index(max(most)) if most else -1
    path = []
    while position >= 0:
        path.append(position)
        position = best[position][1]
    return path
