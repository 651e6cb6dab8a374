"""Memory of a device in training: parameters, tensors kept for the backward pass, and the peak of an
iteration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lolat.arrays import np
from lolat.graph import Graph, cached_on_graph
from lolat.graph.backward import (
    backward_of,
    drops,
    free_parameters,
    has_trained_parameters,
    is_view,
    open_outputs,
    read_parameters,
    saves_positions,
)
from lolat.graph.dtypes import FLOAT_BYTES, HALF_BYTES
from lolat.graph.kinds import (
    CHECKPOINT,
    CONVOLUTIONS,
    IN_PLACE,
    KERNELS,
    MULTIPLYING,
    REMADE,
    SELECTIVE,
    TRAINED,
    VIEWS,
)
from lolat.graph.lowering import lowered_eagerly, transpositions
from lolat.graph.memory import INDEX_BYTES, alive_bytes, as_padded, element_bytes, sliced_bytes
from lolat.graph.modes import DEFAULT_MODE, Mode
from lolat.graph.weights import copied_at, operations_parameters, parameter_key, weight_elements
from lolat.training.recipe import COPIES, GRADIENTS, WEIGHTS, PrecisionRecipe, Shards, state_parts

# ---- The parameters of a network.


class Numbers(NamedTuple):
    """Numbers of trained and of frozen parameters; weights in buffers count as frozen."""

    trained: int
    frozen: int


@cached_on_graph
def trained_parameters(graph: Graph) -> tuple[int, ...]:
    """The number of trained parameters of each operation.

    A parameter that no gradient reaches is not trained. A parameter that is no operation's weight belongs
    to the first operation that reads it.
    """
    numbers = [*_trained_weights(graph)]
    for positions, elements in free_parameters(graph):
        numbers[positions[0]] += elements
    return tuple(numbers)


@cached_on_graph
def _trained_weights(graph: Graph) -> tuple[int, ...]:
    runs = backward_of(graph).runs.tolist()
    each = zip(graph.operations, operations_parameters(graph), runs, strict=True)
    return tuple(min(n, o.attributes.get(TRAINED, n)) * runs for o, n, runs in each)


@cached_on_graph
def gradients_by_use(graph: Graph, autocast: bool = False) -> np.ndarray:
    """(2, operations) numbers of trained parameters: row 0, gradients that the backward pass stores first
    at an operation; row 1, gradients that it computes there and adds to stored ones.

    A parameter that several operations share gets its gradient at the last operation. Each other operation
    computes another gradient, which is added in place unless the stored gradient is a view, as of a dense
    layer. Under `autocast` the gradients of kernels are in half precision until the backward pass of the
    first operation; the gradient of a head is converted.
    """
    operations, runs = graph.operations, backward_of(graph).runs
    found, uses = np.zeros((2, len(operations))), dict[object, list[int]]()
    for i, o in enumerate(operations):
        if "tied" in o.attributes and runs[i] and has_trained_parameters(o):
            uses.setdefault(parameter_key(o), []).append(i)
    for i, number in enumerate(_trained_weights(graph)):
        *others, last = sorted({i, *uses.get(parameter_key(operations[i]), ())})
        share = 0.5 if others and autocast and operations[i].kind in KERNELS else 1.0
        found[0, last] += share * number
        found[0, i] += (1.0 - share) * number
        is_view = operations[last].kind == "dense" and not (autocast and share == 1.0)
        found[1, others] += share * number * (1 + is_view)
    for positions, elements in free_parameters(graph):
        found[0, positions[-1]] += elements
    return found


def numbers_of(graph: Graph) -> Numbers:
    """Count the parameters of a graph."""
    trained = sum(trained_parameters(graph))
    return Numbers(trained, weight_elements(graph) - trained)


def copied_parameters(graph: Graph, frozen: bool) -> np.ndarray:
    """(2, operations) numbers of parameters that autocast copies in half precision: row 0, copies kept for
    the backward pass; row 1, other copies.

    With `frozen`, frozen kernels are copied too. Such a copy is kept if a gradient goes through the
    operation; else it lives while the operation runs.
    """
    part, weights, every = backward_of(graph), _trained_weights(graph), operations_parameters(graph)
    found = np.zeros((2, len(weights)))
    for i, at in copied_at(graph).items():
        passed = frozen and part.first[i] and graph.operations[i].kind in KERNELS
        kept = every[i] if passed else weights[i]
        found[:, at] += kept, frozen * (every[i] - kept)
    return found


# ---- Activations: tensors that are kept for the backward pass.

RECURRENT = {"lstm": 7, "gru": 7, "simple_rnn": 1}
"""Kind of recurrent layer -> number of vectors (gates, cell, state) that the forward pass of each step
keeps for the backward pass, as PyTorch's saved_tensors_hooks show; oneDNN's LSTM keeps two to three times
as many."""


Kept = dict[int, list[tuple[int, int]]]
"""Tensor -> [(position of an operation that keeps it, the view of the tensor that the operation reads)]."""


@cached_on_graph
def saved_tensors(graph: Graph, in_half: bool) -> tuple[Kept, dict[int, int], dict[int, Kept]]:
    """(tensors that the forward pass keeps, tensors that checkpointed parts keep to run again, part ->
    tensors that it keeps while it runs again).

    Operations keep the tensors that their kind `saves` (`lolat.graph.kinds`); a view counts as its base
    tensor. A part is known by its number, the attribute CHECKPOINT of its operations. It keeps the tensors
    that it reads and, with selective checkpointing, the results of its products: tensor -> position of the
    part's first operation. `in_half`: see `transpositions`.
    """
    part, viewed, kept = backward_of(graph), dict[int, int](), Kept()
    strided, copied = transpositions(graph, in_half) if graph.framework == "torch" else ((), ())
    inside, around, writer = dict[int, Kept](), dict[int, set[int]](), dict[int, int | None]()
    first = dict[int, int]()
    for i, o in enumerate(graph.operations):
        reads = {viewed.get(t, t) for t in o.inputs}
        if (is_view(graph, o) or i in strided) and i not in copied:
            viewed.update(dict.fromkeys(o.outputs, viewed.get(o.inputs[0], o.inputs[0])))
            continue
        number = o.attributes.get(CHECKPOINT)
        writer.update(dict.fromkeys(o.outputs, number))
        of_section = kept if number is None else inside.setdefault(number, Kept())
        # A dropout keeps its mask alone, which is no tensor of the graph (`saved_parts`).
        for t in part.saved(graph, i) if not drops(graph, o) else ():
            of_section.setdefault(viewed.get(t, t), []).append((i, t))
        if number is None:
            continue
        first.setdefault(number, i)
        others = (t for t in reads if graph.tensors[t].batched and writer.get(t) != number)
        around.setdefault(number, set()).update(others)
        if SELECTIVE in o.attributes and o.kind in MULTIPLYING:
            around[number].update(o.outputs)
    stored = dict[int, int]()
    for number in sorted((n for n, tensors in inside.items() if tensors), key=first.__getitem__):
        stored = dict.fromkeys(around[number], first[number]) | stored
    return kept, stored, inside


def saved_parts(
    graph: Graph, batch_size: int, mode: Mode = DEFAULT_MODE, of_caller: Sequence[int] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """((operations,) bytes kept until the backward pass of each, (operations,) bytes that its part keeps
    when it runs again).

    The bytes include the tensors of `saved_tensors`, each kept until the backward pass of the first
    operation that keeps it, and the tensors `of_caller`, kept to the end. They also include kernels that
    each call computes, the vectors of each step of a recurrent layer, the positions of maxima, and the
    masks of dropouts (a byte an element). Autocast keeps its copy in place of the tensor, and a convolution
    its padded copy; a reflected padding keeps the tensor too.
    """
    sizes, (kept, again) = element_bytes(graph, mode), np.zeros((2, len(graph.operations)))
    lowered = lowered_eagerly(graph, mode.dtype)

    def size(t: int, each: float = 0.0) -> float:
        return graph.tensors[t].elements(batch_size) * (each or sizes[t])

    def split(tensors: Kept) -> tuple[dict[int, int], list[tuple[int, float]]]:
        """(tensor -> the first operation that keeps it unchanged, [(operation, bytes of a copy that it
        keeps)]).
        """
        whole, copies = dict[int, int](), []
        for t, readers in tensors.items():
            for i, read in readers:
                o = graph.operations[i]
                converted = {t: after for t, _, after in lowered.conversions(o)}
                padded = as_padded(graph, i, read)
                if padded or read in converted:
                    copies.append((i, (padded or 1.0) * size(read, converted.get(read, 0.0))))
                if (padded and "filled" not in o.attributes) or not (padded or read in converted):
                    whole.setdefault(t, i)
        return whole, copies

    tensors, stored, inside = saved_tensors(graph, mode.half)
    whole, copies = split(tensors)
    whole |= {t: min(i, whole.get(t, i)) for t, i in stored.items()}
    whole |= dict.fromkeys(of_caller if graph.operations else (), 0)
    for i, needed in [*((i, size(t)) for t, i in whole.items()), *copies]:
        kept[i] += needed
    parts = {}
    for number, tensors in inside.items():
        added, copies = split(tensors)
        parts[number] = sum(size(t) for t in added if t not in whole) + sum(b for _, b in copies)
    for i, o in enumerate(graph.operations):
        part, beside = o.attributes.get(CHECKPOINT), _beside(graph, i, batch_size, sizes)
        if part is None:
            kept[i] += beside
        else:
            parts[part] = parts.get(part, 0.0) + beside
    for i, o in enumerate(graph.operations):
        again[i] = parts.get(o.attributes.get(CHECKPOINT, -1), 0.0)
    return kept, again


def _beside(graph: Graph, position: int, batch_size: int, sizes: Sequence[float]) -> float:
    """The bytes that an operation keeps for its backward pass besides tensors of the graph.

    `sizes`: bytes of an element of each tensor.
    """
    o, part, found = graph.operations[position], backward_of(graph), 0.0
    if not part.runs[position]:
        return found
    written = o.outputs[0]
    if part.first[position] or o.kind in CONVOLUTIONS:
        found += o.attributes.get(REMADE, 0) * sizes[written]
    if drops(graph, o):
        found += graph.tensors[written].elements(batch_size)
    elif saves_positions(graph, o):
        found += INDEX_BYTES * graph.tensors[written].elements(batch_size)
    elif o.kind in RECURRENT:
        a, read = o.attributes, graph.tensors[o.inputs[0]]
        steps = read.elements(batch_size) // a["in_features"]
        found += RECURRENT[o.kind] * steps * a["units"] * sizes[written]
    return found


LOSS_NUMBERS = 3
"""Number of float32 values that a loss keeps for each output: the output, its log-softmax, its gradient, as
PyTorch's MemTracker shows for cross_entropy."""


# ---- An iteration.

ACTIVATIONS, AGAIN, LOSS = "activations", "activations computed again", "loss"
TEMPORARY, BUCKETS = "gradients of activations", "buckets of gradients"
FORWARD = "tensors of the forward pass"
GATHERED = "gathered"
UPDATING = "temporaries of the update"
AT_LOSS, AT_FORWARD, AT_END = "the loss", "the forward pass", "the end of the backward pass"
AT_UPDATE = "the update"
Moment = tuple[str, dict[str, float]]
"""(the name of a moment of an iteration, its bytes by part)."""


class PeakMemory(NamedTuple):
    """The moment of an iteration at which a device needs most memory, and its bytes by part."""

    moment: str
    parts: dict[str, int]

    @property
    def total(self) -> int:
        """The bytes of all parts together."""
        return sum(self.parts.values())


def at_peak(
    names: Sequence[str], freed: Mapping[str, np.ndarray], made: np.ndarray,
    working: Mapping[str, np.ndarray], others: Mapping[str, Mapping[str, float]], accumulate: int = 1,
) -> Moment:  # fmt: skip
    """The moment of an iteration with the most bytes.

    `names`: the parts of a network, in the order of the forward pass. (parts,) bytes: `freed` are kept by a
    part until its backward pass has run; `made` are its gradients, which exist from its backward pass on;
    `working` are needed only during its backward pass. `others`: moments before the backward pass. If an
    iteration accumulates micro-batches, all gradients exist from the second micro-batch on.
    """
    walked = {name: np.cumsum(sizes) for name, sizes in freed.items()}
    for name, sizes in working.items():
        walked[name] = walked.get(name, 0.0) + sizes
    there = float(made.sum()) if accumulate > 1 else 0.0
    walked[GRADIENTS] = np.full(len(made), there) if there else np.cumsum(made[::-1])[::-1]
    at = int(np.argmax(sum(walked.values()))) if len(made) else 0
    where = f"the backward pass of {names[at]}" if at else AT_END
    moments = {where: {name: float(sizes[at]) for name, sizes in walked.items()}} if names else {}
    moments |= {name: {GRADIENTS: there, **sizes} for name, sizes in others.items()}
    return max(moments.items(), key=lambda moment: sum(moment[1].values()))


def _moved(graph: Graph, batch_size: int, sizes: Sequence[float], slices: np.ndarray) -> np.ndarray:
    """(operations,) bytes of the gradients of tensors that each operation's backward pass reads and writes.

    `sizes`: bytes of an element of each tensor; `slices`: bytes copied for each operation (`sliced_bytes`),
    which a convolution copies again. Gradients of parameters are left out (`gradients_by_use`).
    """
    part, views, found = backward_of(graph), set[int](), np.zeros(len(graph.operations))
    learned = read_parameters(graph)
    for i, o in enumerate(graph.operations):
        in_place = IN_PLACE in o.attributes and not views.isdisjoint(o.inputs[:1])
        if in_place or is_view(graph, o) or o.kind == "instance_norm":  # a view in PyTorch
            views.update(o.outputs)
        if o.kind in VIEWS or not part.runs[i]:
            continue
        wanted = (t for t in {*o.inputs, *o.outputs} if part.needs[t] and learned.get(t) != i)
        moved = sum(graph.tensors[t].elements(batch_size) * sizes[t] for t in wanted)
        # The gradients of a changed view, and of the view before the change, are copied.
        found[i] = moved * (1 + in_place) + slices[i] * (o.kind in CONVOLUTIONS)
    return found


def _at_update(
    graph: Graph, recipe: PrecisionRecipe, several: bool, shards: Shards
) -> dict[str, float]:
    """The bytes at the update of the weights, by part, without the inputs; no shards are gathered then.

    The end of the backward pass needs more, unless the update makes temporaries.
    """
    trained, frozen = numbers_of(graph)
    parts = state_parts(recipe, trained, frozen, shards._replace(parameters=shards.gradients))
    parts[WEIGHTS] += graph.extra_bytes.buffers
    parts[GRADIENTS] = recipe.gradient * trained / shards.gradients
    parts[UPDATING] = recipe.temporary * trained / shards.states
    whole = several and shards.gradients == 1
    return parts | {BUCKETS: recipe.gradient * trained * whole}


@cached_on_graph
def memory_at_peak(
    graph: Graph, batch_size: int, recipe: PrecisionRecipe, mode: Mode = DEFAULT_MODE,
    several: bool = False, shards: Shards = Shards(), accumulate: int = 1,  # noqa: B008 (it is frozen)
) -> PeakMemory:  # fmt: skip
    """Estimate the peak of an iteration's memory, in bytes by part, without framework, library and
    allocator.

    The peak is at the loss, in float32, with the saved activations; at the backward pass of an operation,
    with the tensors that it reads and writes, the remaining activations and the gradients so far; if little
    is trained, at the forward pass with its live tensors; or at the update (`_at_update`). `several`:
    devices exchange gradients, which DistributedDataParallel copies into buckets; divided gradients are
    sent operation by operation instead. If `shards` divide the parameters, two operations at a time have
    theirs whole.
    """
    of_element, part = element_bytes(graph, mode), backward_of(graph)
    numbers, learned = numbers_of(graph), gradients_by_use(graph, recipe.copy > 0)
    slices = sliced_bytes(graph, mode)[int(batch_size > 1)] * float(batch_size)
    working = recipe.gradient * learned[1] + _moved(graph, batch_size, of_element, slices)
    kept, again = saved_parts(graph, batch_size, mode, graph.inputs)  # which the caller holds
    halves = recipe.copy * copied_parameters(graph, recipe.frozen > HALF_BYTES) / shards.parameters
    copies, passed = halves[0], halves[0].cumsum() + halves[1]
    is_again = np.array([CHECKPOINT in o.attributes for o in graph.operations], bool)
    before = {COPIES: float(copies.sum())}
    # A network that ends with the log-softmax itself leaves the loss its gradient alone.
    own = {t for o in graph.operations if o.kind == "log_softmax" for t in o.outputs}
    results = sum(
        (1 if t in own else LOSS_NUMBERS) * graph.tensors[t].elements(batch_size)
        for t in open_outputs(graph) if graph.tensors[t].batched
    )  # fmt: skip
    loss = {ACTIVATIONS: float(kept.sum()), LOSS: float(FLOAT_BYTES * results)}
    # A part that is not trained runs, but keeps nothing.
    fixed, scaled = alive_bytes(graph, mode)
    alive = fixed + scaled.astype(float) * batch_size + slices
    at = int(np.argmax(alive + passed)) if len(alive) else 0
    passing = {FORWARD: alive[at], COPIES: passed[at]} if len(alive) else {}
    moment, moving = at_peak(
        [o.full_name for o in graph.operations], {ACTIVATIONS: kept, COPIES: copies * ~is_again},
        recipe.gradient * learned[0] / shards.gradients,
        {AGAIN: again * part.runs, TEMPORARY: working, COPIES: copies * is_again},
        {AT_LOSS: before | loss, AT_FORWARD: passing}, accumulate,
    )  # fmt: skip
    parts = state_parts(recipe, numbers.trained, numbers.frozen, shards) | moving
    parts[WEIGHTS] += graph.extra_bytes.buffers
    trained = np.array([0, *trained_parameters(graph)])
    if shards.parameters > 1:
        frozen = np.maximum(np.array([0, *operations_parameters(graph)]) - trained, 0)
        each = (2 * recipe.weight + recipe.gradient) * trained + 2 * recipe.frozen * frozen
        parts[GATHERED] = float(each.max())
    elif several:
        is_divided = shards.gradients > 1
        parts[BUCKETS] = recipe.gradient * float(trained.max() if is_divided else numbers.trained)
        if is_divided:  # FSDP's SHARD_GRAD_OP keeps its shard beside the weights that it gathers
            weights = recipe.weight * numbers.trained + recipe.frozen * numbers.frozen
            parts[WEIGHTS] += weights / shards.gradients
    inputs_bytes = sum(graph.tensors[t].elements(batch_size) * of_element[t] for t in graph.inputs)
    updated = {ACTIVATIONS: inputs_bytes} | _at_update(graph, recipe, several, shards)
    parts, moment = max((parts, moment), (updated, AT_UPDATE), key=lambda one: sum(one[0].values()))
    return PeakMemory(moment, {name: int(size) for name, size in parts.items() if size >= 1})
