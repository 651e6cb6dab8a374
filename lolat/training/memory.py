"""Memory of a device in training: bytes of each parameter by the recipe, as named parts.

recipe = recipe_of("bf16", optimizer_named("adamw"))
state_parts(recipe, trained=8e9)                        # {"weights": 16e9, "gradients": 16e9, ...}
state_parts(recipe, trained=2e7, frozen=8e9)            # LoRA
state_parts(recipe, 8e9, shards=Shards(8, 8, 8))        # ZeRO 3 of eight devices
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from lolat.graph import Graph, once
from lolat.graph.analysis import analyze, operations_parameters
from lolat.graph.backward import (
    CHECKPOINT,
    SELECTIVE,
    TRAINED,
    backward_of,
    free_parameters,
    is_view,
)
from lolat.graph.kinds import KERNELS, MULTIPLYING, VIEWS
from lolat.graph.modes import (
    AMP,
    BFLOAT16,
    DTYPES,
    FLOAT32,
    FLOAT_BYTES,
    SIZES,
    TF32,
    Mode,
    element_bytes,
    own_dtype,
)
from lolat.io.results import Remark
from lolat.parameters import Optimizer, optimizer_named
from lolat.units import byte_size

HALF_BYTES = 2
WEIGHTS, COPIES, GRADIENTS = "weights", "copies in half precision", "gradients"
MASTERS, STATES = "master weights", "optimizer states"


@dataclass(frozen=True)
class Recipe:
    """Bytes of a parameter in training.

    `dtype`: a value of `lolat.graph.modes.DTYPES`; `optimizer`: its name. `weight`, `gradient`: of a
    trained parameter; `copy`: in half precision, which autocast keeps for the backward pass; `master`: a
    copy in float32 that the optimizer updates instead; `states`: all of the optimizer's together; `frozen`:
    of a parameter that is not trained, which has none of the others but `copy`.
    """

    dtype: str
    optimizer: str
    weight: float
    copy: float
    gradient: float
    master: float
    states: float
    frozen: float

    @property
    def trained(self) -> float:
        """Bytes of a trained parameter, all together."""
        return self.weight + self.copy + self.gradient + self.master + self.states

    def words(self, frozen: bool = False) -> str:
        """Return the recipe in words; `frozen`: with what a frozen parameter takes."""
        plain = FLOAT32 if self.dtype in (AMP, TF32) else self.dtype
        words = [f"{plain} weights and gradients"]
        words += ["copies in half precision"] * bool(self.copy)
        words += [f"{FLOAT32} master weights"] * bool(self.master)
        words += ["optimizer states"] * bool(self.states)
        rest = f", {self.frozen:g} if it is frozen" * frozen
        return f"{', '.join(words)}: {self.trained:g} bytes a parameter{rest}"


def recipe_of(
    precision: str, optimizer: Optimizer, masters: bool = False, half_frozen: bool = False
) -> Recipe:
    """Return the recipe of a precision, by any name of `lolat.graph.modes.DTYPES` or of another data type.

    `amp`: parameters, gradients and states in float32, and the copies that autocast makes; `bf16`, `fp16`:
    everything in half precision. `masters`: in half precision a copy of the weights in float32, and states
    in float32, as in mixed precision of Apex, DeepSpeed and Megatron (Rajbhandari et al., "ZeRO", 2020).
    `half_frozen`: frozen parameters are in bfloat16, as a base of LoRA, unless all is in float32.
    """
    dtype = DTYPES.get(precision.lower(), precision)
    mixed = dtype == AMP
    weight = float(SIZES.get(dtype, FLOAT_BYTES))
    masters &= weight == HALF_BYTES
    updated = float(FLOAT_BYTES) if masters else weight
    each = updated if optimizer.state_bytes is None else optimizer.state_bytes
    return Recipe(
        dtype, optimizer.name,
        weight=weight,
        copy=float(HALF_BYTES) if mixed else 0.0,
        gradient=weight,
        master=updated if masters else 0.0,
        states=optimizer.states * float(each),
        frozen=SIZES[BFLOAT16] if half_frozen and (mixed or weight == HALF_BYTES) else weight,
    )  # fmt: skip


class Shards(NamedTuple):
    """Devices among which the parameters, their gradients, and the optimizer's states are divided."""

    parameters: int = 1
    gradients: int = 1
    states: int = 1


def state_parts(
    recipe: Recipe, trained: float, frozen: float = 0, copied: float | None = None,
    shards: Shards = Shards(),  # noqa: B008 (it is frozen)
) -> dict[str, float]:  # fmt: skip
    """Return the bytes on a device of parameters and what goes with them, by name; none of 0 bytes.

    `trained`, `frozen`: numbers of parameters. `copied`: those that autocast keeps in half precision too;
    None: all, but for frozen ones that are in half precision anyway. Master weights are divided as the
    optimizer's states.
    """
    if copied is None:
        copied = trained + (frozen if recipe.frozen > HALF_BYTES else 0)
    parts = {
        WEIGHTS: (recipe.weight * trained + recipe.frozen * frozen) / shards.parameters,
        COPIES: recipe.copy * copied / shards.parameters,
        GRADIENTS: recipe.gradient * trained / shards.gradients,
        MASTERS: recipe.master * trained / shards.states,
        STATES: recipe.states * trained / shards.states,
    }
    return {name: size for name, size in parts.items() if size}


# ---- The parameters of a network.


class Numbers(NamedTuple):
    """Numbers of parameters: trained and frozen, and those of both that autocast copies."""

    trained: int
    frozen: int
    copied: int
    copied_frozen: int


@once
def trained_parameters(graph: Graph) -> tuple[int, ...]:
    """Return the number of trained parameters of each operation.

    One that no gradient reaches is not trained. One that is no operation's weight is of what reads it.
    """
    numbers = [*_trained_weights(graph)]
    for position, elements in free_parameters(graph):
        numbers[position] += elements
    return tuple(numbers)


def _trained_weights(graph: Graph) -> tuple[int, ...]:
    part = backward_of(graph)
    numbers = operations_parameters(graph)
    each = zip(graph.operations, numbers, part.runs.tolist(), strict=True)
    return tuple(min(n, o.attributes.get(TRAINED, n)) * runs for o, n, runs in each)


def numbers_of(graph: Graph) -> Numbers:
    """Count the parameters of a graph.

    Autocast copies no tables of embeddings, unless they are a product's kernel too, and no parameters that
    are no operation's weights; it keeps a frozen kernel's copy where a gradient goes through.
    """
    part, weights = backward_of(graph), _trained_weights(graph)
    numbers = operations_parameters(graph)
    trained = sum(trained_parameters(graph))
    frozen = sum(numbers) + sum(n for n, _ in graph.free) - trained
    tied = any(o.attributes.get("tied") for o in graph.operations)
    copied = [i for i, o in enumerate(graph.operations) if o.kind != "embedding" or tied]
    passed = [
        numbers[i] - weights[i] for i in copied
        if part.first[i] and graph.operations[i].kind in KERNELS
    ]  # fmt: skip
    return Numbers(trained, frozen, sum(weights[i] for i in copied), sum(passed))


def recipe_for(
    graph: Graph, optimizer: Optimizer, mode: Mode | None, half_frozen: bool = False
) -> Recipe:
    """Return the recipe of a network in a mode: its own data type, if the mode is not in half precision."""
    dtype = mode.dtype if mode is not None and mode.half else own_dtype(graph)
    own = dtype if dtype in SIZES or (mode is not None and mode.half) else FLOAT32
    recipe = recipe_of(own or FLOAT32, optimizer, half_frozen=half_frozen)
    still = {
        graph.tensors[o.outputs[0]].dtype
        for o in graph.operations if o.kind in KERNELS and o.attributes.get(TRAINED) == 0
    }  # fmt: skip
    # As of a base in half precision, whose adapters are in float32.
    of_base = {SIZES.get(dtype, FLOAT_BYTES) for dtype in still}
    return (
        replace(recipe, frozen=min(recipe.frozen, of_base.pop())) if len(of_base) == 1 else recipe
    )


def gradient_bytes(graph: Graph, mode: Mode | None = None) -> float:
    """Return the bytes of a gradient, and of the weight and each state that an optimizer updates."""
    return recipe_for(graph, optimizer_named("sgd"), mode).gradient


# ---- Activations: tensors that are kept for the backward pass.

RECURRENT = {"lstm": 7, "gru": 7, "simple_rnn": 1}
"""Kind of recurrent layer -> vectors of a step that its forward pass keeps for the backward pass (gates,
cell, state), as PyTorch's saved_tensors_hooks show; oneDNN's LSTM keeps two to three times as many."""

INDEXED, INDEX_BYTES = ("max_pool", "global_max_pool"), 8
"""Kinds that keep the index of each result, in PyTorch an int64."""


def _views(graph: Graph) -> Iterator[int]:
    """Yield the positions of transpositions that PyTorch's kernels take as they are.

    They turn back the result of an attention, or are of the matrices of a batch for its product.
    """
    readers, of_attention = graph.consumers(), set[int]()
    for i, o in enumerate(graph.operations) if graph.framework == "torch" else ():
        if o.kind == "attention":
            of_attention.update(o.outputs)
        elif o.kind == "transpose":
            kinds = {graph.operations[r].kind for r in readers.get(o.outputs[0], ())}
            multiplied = kinds == {"matmul"} and len(graph.tensors[o.outputs[0]].shape) == 3
            if multiplied or not of_attention.isdisjoint(o.inputs):
                yield i


@once
def saved_tensors(graph: Graph) -> tuple[set[int], list[set[int]]]:
    """Return the tensors that the forward pass keeps, and those that each part adds as it runs again.

    They are those that each kind of operation `saves` (`lolat.graph.kinds`); a view is the tensor that it
    shows. A part keeps what it reads, and a selective one the results of its products.
    """
    part, viewed, kept = backward_of(graph), dict[int, int](), set[int]()
    turned = {*_views(graph)}
    inside, around, writer = dict[int, set[int]](), dict[int, set[int]](), dict[int, int | None]()
    for i, o in enumerate(graph.operations):
        reads = {viewed.get(t, t) for t in o.inputs}
        if is_view(graph, o) or i in turned:
            viewed.update(dict.fromkeys(o.outputs, viewed.get(o.inputs[0], o.inputs[0])))
            continue
        tensors = {viewed.get(t, t) for t in part.saved(graph, i)}
        number = o.attributes.get(CHECKPOINT)
        writer.update(dict.fromkeys(o.outputs, number))
        if number is None:
            kept |= tensors
            continue
        inside.setdefault(number, set()).update(tensors)
        others = (t for t in reads if graph.tensors[t].batched and writer.get(t) != number)
        around.setdefault(number, set()).update(others)
        if SELECTIVE in o.attributes and o.kind in MULTIPLYING:
            around[number].update(o.outputs)
    for number, tensors in inside.items():
        kept |= around[number] if tensors else set()
    return kept, [tensors - kept for tensors in inside.values()]


def saved_bytes(graph: Graph, batch_size: int, mode: Mode | None = None) -> tuple[int, int]:
    """Return the bytes that the forward pass keeps for the backward pass, and the most that it adds again.

    They are those of `saved_tensors`, the vectors of each step of a recurrent layer, and the indices of
    maxima. What it adds are activations of the largest part that runs again.
    """
    part, sizes, vectors = backward_of(graph), element_bytes(graph, mode), 0.0

    def size(tensors: set[int]) -> float:
        return sum(graph.tensors[t].elements(batch_size) * sizes[t] for t in tensors)

    for i, o in enumerate(graph.operations):
        if not part.runs[i]:
            continue
        if o.kind in INDEXED and graph.framework == "torch":
            vectors += INDEX_BYTES * graph.tensors[o.outputs[0]].elements(batch_size)
        elif o.kind in RECURRENT:
            a, read = o.attributes, graph.tensors[o.inputs[0]]
            steps = read.elements(batch_size) // a["in_features"]
            vectors += RECURRENT[o.kind] * steps * a["units"] * sizes[o.outputs[0]]
    kept, again = saved_tensors(graph)
    return int(vectors + size(kept)), int(max(map(size, again), default=0))


LOSS_NUMBERS = 3
"""Numbers in float32 per output of a loss: the output, its log-softmax, its gradient, as PyTorch's
MemTracker shows for cross_entropy."""


def loss_bytes(graph: Graph, batch_size: int) -> int:
    """Return the bytes of the loss of all outputs while its gradient is computed."""
    outputs = [graph.tensors[t] for t in set(graph.outputs).difference(graph.kept)]
    numbers = sum(t.elements(batch_size) for t in outputs if t.batched and "float" in t.dtype)
    return LOSS_NUMBERS * FLOAT_BYTES * numbers


# ---- An iteration.

ACTIVATIONS, AGAIN, LOSS = "activations", "activations computed again", "loss"
TEMPORARY, BUCKETS = "gradients of activations", "buckets of gradients"
MOVING = (ACTIVATIONS, AGAIN, LOSS, TEMPORARY)
FORWARD = "tensors of the forward pass"
GATHERED = "gathered"


def memory_parts(
    graph: Graph, batch_size: int, recipe: Recipe, mode: Mode | None = None, several: bool = False,
    shards: Shards = Shards(),  # noqa: B008 (it is frozen)
) -> dict[str, int]:  # fmt: skip
    """Estimate the bytes of an iteration at their peak by name, without framework, library and allocator.

    They are those of `state_parts`, the saved activations, and the larger of the loss, in float32, and
    of what the backward pass of the largest operation reads and writes; or the tensors that are alive
    at once in the forward pass, where these are more, as of a network of which little is trained.
    `mode`: float32 if None; autocast saves activations in half precision. `several`: devices exchange
    gradients, of which the buckets of DistributedDataParallel are a copy; with `shards` they divide
    something instead, and if these are the parameters, two operations have theirs whole.
    """
    of_element, part = element_bytes(graph, mode), backward_of(graph)
    sizes = [
        sum(graph.tensors[t].elements(batch_size) * of_element[t] for t in {*o.inputs, *o.outputs})
        for i, o in enumerate(graph.operations)
        if o.kind not in VIEWS and part.runs[i]
    ]
    numbers, loss = numbers_of(graph), loss_bytes(graph, batch_size)
    kept, again = saved_bytes(graph, batch_size, mode)
    copied = numbers.copied + numbers.copied_frozen * (recipe.frozen > HALF_BYTES)
    parts = state_parts(recipe, numbers.trained, numbers.frozen, copied, shards)
    parts |= {BUCKETS: (several and shards == Shards()) * recipe.gradient * numbers.trained}
    if shards.parameters > 1:
        parts[GATHERED] = (2 * recipe.weight + recipe.gradient) * max(
            trained_parameters(graph), default=0
        )
    parts |= {ACTIVATIONS: kept, AGAIN: again, LOSS: loss, TEMPORARY: max(*sizes, loss, 0) - loss}
    # A part that is not trained keeps nothing, and runs all the same.
    passing = analyze(graph).memory(batch_size, mode).activations_bytes
    parts[FORWARD] = max(passing - sum(parts.get(n, 0) for n in MOVING), 0)
    return {name: int(size) for name, size in parts.items() if size}


def mixed_remarks(graph: Graph, needed: int, recipe: Recipe, optimizer: Optimizer) -> Iterator[str]:
    """Remark on training in half precision alone, with the memory that master weights take besides.

    `needed`: bytes of an iteration without these. Other recipes have no remark.
    """
    if recipe.weight == HALF_BYTES:
        mixed = recipe_of(recipe.dtype, optimizer, masters=True).trained
        yield Remark(
            f"pure {recipe.dtype}: weights, gradients and states of {optimizer.name} take "
            f"{recipe.trained:g} bytes a parameter; with weights and states in float32 besides, as is "
            f"usual, {mixed:g} bytes",
            byte_size(needed + numbers_of(graph).trained * (mixed - recipe.trained)),
        )
