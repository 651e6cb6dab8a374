"""Calls a PyTorch module once on fake tensors, and writes its operations into a graph as they come.

In inference mode PyTorch hands a `TorchDispatchMode` each operation as the code calls it (a convolution, a
layer norm, an attention), before it is taken apart. Under `FakeTensorMode` tensors have a shape and no
values, so nothing is computed, and weights need no memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence, Set
from math import prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import WeakTensorKeyDictionary

from lolat.errors import NetworkError
from lolat.graph import Graph, GraphBuilder, Tensor
from lolat.graph.backward import learns
from lolat.graph.kinds import (
    ASKED,
    CHECKPOINT,
    COMPUTED,
    IN_PLACE,
    KERNELS,
    PACKED,
    REENTRANT,
    REMADE,
    TRAINED,
    kind_of,
)
from lolat.graph.memory import completed
from lolat.readers.ops import Writer
from lolat.readers.torch import operations
from lolat.readers.torch.isolation import data_copied, evaluated, without_values
from lolat.readers.torch.layout import Layout, free_turns
from lolat.readers.torch.ledger import Ledger, free_parameters
from lolat.readers.torch.lifetimes import Lifetimes, held_by, is_copied, leaves_of, shares
from lolat.readers.torch.memory import tensors_of, with_buffers
from lolat.readers.torch.operations import AtenOperation, base_name
from lolat.readers.torch.patches import OnCpu, eagerly, following_modules, mark_autocast, watched
from lolat.readers.torch.positions import Positions
from lolat.readers.torch.remarks import (
    anew_in_each_call,
    dropped,
    in_training_alone,
    in_training_only,
    otherwise,
)
from lolat.units import plural

_HOLDERS = (
    "torch.nn.modules.transformer", "torch.nn.modules.container",
    "torch.nn.modules.activation.MultiheadAttention",
)  # fmt: skip
"""Modules of PyTorch's own that are several operations."""


class Tracer(TorchDispatchMode):
    """Writes the operations that run while it lasts; `known`: tensor -> the graph's tensor.

    It keeps no result of an operation alive: `lifetimes` sees when PyTorch frees it.
    """

    def __init__(self, builder: GraphBuilder, modules: dict[Any, str], axis: int) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.axis = axis  # of the batch, in the inputs
        self.misread: list[str] = []  # layers that have it elsewhere
        self.builder, self.writer, self.layout = builder, Writer(builder), Layout(builder)
        self.known: Any = WeakTensorKeyDictionary()
        self.constants: list[Any] = []  # those of no operation, so that no other gets their ids
        self.views: Any = WeakTensorKeyDictionary()  # tensor -> the tensor of which it is a view
        self.lifetimes, self.positions = Lifetimes(builder), Positions()
        self.modules = modules  # module -> its path
        attentions = (m for m in modules if isinstance(m, torch.nn.MultiheadAttention))
        self.packed = {id(p) for m in attentions for p in m.parameters(recurse=False)}
        # (id of a parameter, tensors that its operation writes, True if they give it a gradient)
        self.learned: list[tuple[int, list[int], bool]] = []
        # Key of a parameter -> for each use: positions of its operations, whether it is learned there.
        self.uses: dict[Any, list[tuple[range, bool]]] = {}
        self.biases: set[Any] = set()  # keys of parameters beside the largest one of an operation
        self.called: set[Any] = set()  # modules
        self.trained, self.every = Ledger(), Ledger()  # trained parameters; all, and buffers
        self.still: set[int] = set()  # frozen parameters
        self.computed: set[int] = set()  # constants computed from others, which are not counted
        self.upcasts = 0  # operations that ask for float32 and have it already
        self.anew = 0  # operations whose weights are such constants
        self.aside = 0  # elements of such constants
        self.fixed: list[list[int]] = []  # results of operations without such weights
        self.asked: set[int] = set()  # results whose gradient the code asks for (requires_grad_)
        self.bare: set[int] = set()  # results of normalizations without parameters
        self.autocasts: list[bool] = []  # for each torch.autocast that lasts, whether it is enabled
        self.gradients = True  # whether the code is outside of torch.no_grad and its like
        self.applied = False  # whether a torch.autograd.Function of a user's own runs
        # Of a part that is computed again: its number, whether it is reentrant.
        self.part: tuple[int, bool] | None = None
        self.parts = 0
        self.stack: list[tuple[str, str]] = [("", "")]  # (path, class) of the modules being called

    def input(self, tensor: Any, grows: bool) -> None:
        """An input of the network, which grows with the batch or not."""
        self.learn(tensor, self.builder.input(tuple(tensor.shape), dtype_name(tensor), grows))

    def has_batch_elsewhere(self, layer: Any, given: Any) -> bool:
        """True if a recurrent layer or an attention takes the batch of a tensor as its steps."""
        batch_first = getattr(layer, "batch_first", None)
        index = self.known.get(given) if isinstance(given, torch.Tensor) else None
        grows = index is not None and self.builder.tensors[index].batched
        if not (isinstance(batch_first, bool) and grows and given.dim() in (2, 3)):
            return False
        in_front = not batch_first and given.shape[0] == 1
        # Of two axes there is no batch.
        return given.dim() == 2 or (
            given.shape[1 - batch_first] != 1 and (in_front or self.axis == 1)
        )

    def learn(self, tensor: Any, index: int) -> None:
        """Remember the graph's tensor of a tensor of PyTorch."""
        self.known[tensor] = index
        self.lifetimes.note(tensor, index)

    def index(self, value: Any) -> int | None:
        """The graph's tensor; a constant if no operation wrote it. None if the value is no tensor."""
        if not isinstance(value, torch.Tensor):
            return None
        found: int | None = self.known.get(value)
        if found is None:
            found = self.writer.constant(tuple(value.shape), dtype_name(value))
            self.constants.append(value)
            self.lifetimes.own(value)
            self.learn(value, found)
            if isinstance(value, torch.nn.Parameter):
                self.every.made_of[found] = {id(value): value.numel()}
            if value.requires_grad:
                self.train(found, {id(value): value.numel()})
            elif isinstance(value, torch.nn.Parameter):
                self.still.add(found)
        return found

    def train(self, constant: int, parameters: dict[int, int]) -> None:
        """Note the ids and elements of the trained parameters that a constant is, or is computed from."""
        self.trained.made_of[constant] = parameters
        if not self.writer.shape(constant):
            self.writer.scalars.add(constant)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on fake tensors, and write it."""
        kwargs = kwargs or {}
        schema = func._schema
        if schema.name == "aten::detach_":  # refused for new meta tensors
            self.write("detach", {"self": args[0]}, args[:1], True)
            return args[0]
        if schema.name in ("aten::gru_cell", "aten::lstm_cell"):
            self.builder.warnings.append(
                "the steps of its GRUCell or LSTMCell count as the single operations that a CPU runs; a "
                "GPU runs three for each step, so that an answer for GPUs is up to six times too slow"
            )
        if func.namespace == "aten" and not operations.is_known(base_name(schema)):
            with self:  # the operations that it consists of
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if schema.name in operations.DYNAMIC_LINEAR:  # packed weights cannot be compared
            result = args[0].new_empty((*args[0].shape[:-1], len(operations.unpacked(args[1])[0])))
        else:
            result = without_values(self.fake, func, args, kwargs)
        results = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        if not results:
            return result  # sizes, assertions
        named = {a.name: kwargs.get(a.name, a.default_value) for a in schema.arguments}
        named |= dict(zip(named, args, strict=False))
        of_first = getattr(next(iter(args), None), "dtype", None)
        self.upcasts += named.get("dtype") is torch.float32 is of_first
        written = (a.name for a in schema.arguments if a.alias_info and a.alias_info.is_write)
        overwritten = [named[name] for name in written]
        before = [self.index(t) for t in overwritten[:1]]
        bases = [t for t in args if isinstance(t, torch.Tensor)]
        is_view = any(r.alias_info is not None for r in schema.returns)
        if bases and not self.builder.autocast:  # which converts weights too, and is counted
            is_view &= not is_copied(base_name(schema), bases[0], results[0])
        if bases and is_view and not isinstance(bases[0], FakeTensor):  # of a parameter or a buffer
            self.lifetimes.own(results[0])
        self.positions.follow(schema.name.removeprefix("aten::"), named, results[0])
        self.write(base_name(schema), named, results, is_view)
        if self.known[results[0]] in self.writer.constants:
            self.aside += sum(t.numel() for t in overwritten)
        if overwritten and isinstance(overwritten[0], torch.Tensor):
            every, index = self.builder.operations, self.known[results[0]]
            if every and every[-1].outputs == (index,) and [*every[-1].inputs[:1]] == before:
                every[-1] = every[-1].changed(**{IN_PLACE: True})
            self.overwrite(overwritten[0], index)
        elif bases and is_view:
            base = bases[0]
            # A copy of a weight stands for it; one of a result keeps nothing alive.
            is_weight = self.index(base) in self.writer.constants
            others = (t for t in results if t is not base and (is_weight or shares(t, base)))
            self.views.update((t, base) for t in others)
        return result

    def write(self, op: str, named: dict[str, Any], results: Sequence[Any], is_view: bool) -> None:
        """Write an operation; one that reads constants alone is folded into one, unless it is a product."""
        sources = [i for v in pytree.tree_leaves(named) if (i := self.index(v)) is not None]
        for_batch = operations.for_batch(op, named, bool(sources))
        grows = for_batch or any(self.builder.tensors[i].batched for i in sources)
        constant = self.writer.constants.issuperset(sources) and not (sources and grows)
        before, start = len(self.builder.tensors), len(self.builder.operations)
        # new_zeros(x) is of the type of x, not of its values
        if op.startswith("new_") or (constant and op not in operations.NEVER_FOLDED):
            written = []
            self.writer.ahead[is_view] += "empty" not in op
        else:
            shapes, dtype = [tuple(t.shape) for t in results], dtype_name(results[0])
            call = AtenOperation(
                op, named, shapes, *self.place(), dtype, self.writer, self.index, self.layout,
                not shares(results[0], named.get("self")), is_view,
            )  # fmt: skip
            written = operations.write(call)
            weights = self.weights(sources, start)
            owned = self.parameters(named, weights)
            *others, largest = sorted(key for key, _ in owned) or [(0, 0, 0)]
            own_bias = not self.biases.issuperset(others)
            self.biases.update(others)
            if owned and self.writer.tie(start, largest[::-1], own_bias=own_bias):
                use = range(start, len(self.builder.operations)), any(yes for _, yes in owned)
                self.uses.setdefault(largest[::-1], []).append(use)
                self.learned += [(key[-1], written, yes and self.gradients) for key, yes in owned]
            self.anew += not self.computed.isdisjoint(weights)
            is_fixed = not self.still.issuperset(weights)
            is_fixed &= self.trained.made_of.keys().isdisjoint(weights)
            if grows and is_fixed:
                self.fixed.append(written)
            new = self.builder.operations[start:]
            if any(map(learns, new)):
                held, taken = self.writer.constants.intersection(sources), self.trained.taken
                held.difference_update(*(o.inputs for o in new))
                taken.update(dict.fromkeys(self.trained.parts(held), 0))
                taken.update({key[-1]: key[0] for key, is_learned in owned if is_learned})
            self.mark(start, owned, is_fixed, weights)
            mark_autocast(self, start, named)
            for tensor, index in zip(results, written, strict=False):
                if index >= before or for_batch:
                    made = self.builder.tensors[index]
                    grows = made.batched or for_batch
                    self.builder.tensors[index] = Tensor(made.shape, grows, dtype_name(tensor))
        for tensor in results[len(written) :]:
            shape, batched = tuple(tensor.shape), for_batch and not written
            written.append(self.writer.constant(shape, dtype_name(tensor), batched))
            made_of = [] if op.startswith("new_") else sources
            learned = [] if self.stops(op) else made_of
            if parts := self.trained.parts(learned):
                self.train(written[-1], parts)
            self.every.made_of[written[-1]] = self.every.parts(made_of)
            self.aside += prod(shape) * (bool(made_of) and not is_view)
            if (made_of and not is_view) or self.computed.intersection(made_of):
                self.computed.add(written[-1])
        if self.stops(op):
            self.writer.held.update(index for index in written if index >= before)
        for tensor, index in zip(results, written, strict=True):
            self.learn(tensor, index)

    def stops(self, op: str) -> bool:
        """True if no gradient goes through an operation."""
        return not self.gradients or (op == "detach" and not self.applied)

    def mark(
        self, start: int, owned: Sequence[Any], is_fixed: bool, weights: Sequence[int]
    ) -> None:
        """Mark the operations from position `start` on: how many parameters are trained, if not all.

        `owned`: their parameters; `is_fixed`: their `weights` are none. A weight that is computed has as
        many trained ones as are in it and in no operation before. A part that is computed again too.
        """
        trained = sum(key[0] for key, is_learned in owned if is_learned)
        rest = sum(key[0] for key, _ in owned) - trained
        inside, computed = dict[int, int](), self.computed.intersection(weights)
        for i in computed:
            parts = self.trained.parts((i,))
            if parts.keys().isdisjoint(key[-1] for key, _ in owned):
                rest += self.writer.elements(i)
                inside |= parts if self.gradients else {}
        number = self.count(owned, computed)
        every = self.builder.operations
        is_tied = bool(inside) and "tied" in every[-1].attributes  # has them from its first use
        is_first = bool(inside) and not is_tied
        found = self.trained.take(inside, rest, every[-1].outputs[0]) if is_first else 0
        made: dict[str, Any] = {"owns": number} if number is not None and not is_tied else {}
        if is_fixed or found < rest:
            made |= {TRAINED: trained + found} | ({COMPUTED: True} if inside else {})
        if any(key[-1] in self.packed for key, _ in owned):
            made |= {PACKED: True}
        made |= {REMADE: sum(map(self.writer.elements, computed))} if computed else {}
        if self.part is not None:
            made |= {CHECKPOINT: self.part[0]} | ({REENTRANT: True} if self.part[1] else {})
        for i in range(start, len(every)) if made else ():
            every[i] = every[i].changed(**made)
        if not owned:
            self.bare.update(t for o in every[start:] for t in o.outputs if kind_of(o.kind).vectors)

    def count(self, owned: Sequence[Any], computed: Set[int]) -> int | None:
        """The number of an operation's parameters if its weights are `computed` from fewer; else None.

        `owned`: the parameters that it reads. Those that an operation before has are not in the number.
        """
        taken = self.every.taken
        for key, _ in owned:
            taken[key[-1]] = max(key[0], taken[key[-1]])
        room = sum(map(self.writer.elements, computed))
        new = self.every.take(self.every.parts(computed), room)
        return sum(key[0] for key, _ in owned) + new if new < room else None

    @contextlib.contextmanager
    def again(self, reentrant: bool = False) -> Iterator[None]:
        """Note that what runs meanwhile runs again in the backward pass; of nested parts the outer one."""
        outer = self.part
        self.parts += outer is None
        self.part = outer or (self.parts, reentrant)
        try:
            yield
        finally:
            self.part = outer

    def weights(self, sources: Sequence[int], start: int) -> list[int]:
        """The constant matrices, kernels and tables that the operations from position `start` on read."""
        written = [o for o in self.builder.operations[start:] if o.kind in (*KERNELS, "embedding")]
        if any(o.attributes.get("in_features") == 1 for o in written):
            return []  # sums nothing, such as the angles of positions
        read = {i for o in written for i in o.inputs}
        tensors = self.builder.tensors
        return [
            i for i in sources if written and i in self.writer.constants and i not in read
            and "float" in tensors[i].dtype and len(tensors[i].shape) > 1
        ]  # fmt: skip

    def parameters(
        self, named: dict[str, Any], weights: Sequence[int]
    ) -> list[tuple[tuple[int, int, int], bool]]:
        """A key of each parameter of an operation (elements, offset, id), and True if it is learned.

        A buffer among its `weights` is one that is not.
        """
        buffers = {i for i in weights if i not in self.computed and not self.every.made_of.get(i)}
        found = []
        for value in pytree.tree_leaves(named):
            *seen, root = self.viewed(value)
            is_learned = self.writer.held.isdisjoint(self.known[t] for t in seen)
            is_buffer = self.index(value) in buffers and any(root is one for one in self.constants)
            if isinstance(root, torch.nn.Parameter) or is_buffer:
                key = (value.numel(), value.storage_offset(), id(root))
                found.append((key, is_learned and root.requires_grad))
        return found

    def viewed(self, tensor: Any) -> list[Any]:
        """A tensor, the one of which it is a view, and so on."""
        found = [tensor]
        while isinstance(found[-1], torch.Tensor) and found[-1] in self.views:
            found.append(self.views[found[-1]])
        return found

    def is_whole(self, outputs: Sequence[int]) -> bool:
        """True if all weights that some outputs need are trained, wherever they are used."""
        needed, reached = self.writer.reached(outputs)
        still = any(
            not (needed.isdisjoint(written) or (yes and not reached.isdisjoint(written)))
            for _, written, yes in self.learned
        )  # a use of a parameter without a gradient
        return not (still or any(not needed.isdisjoint(one) for one in self.fixed))

    def hand_over(self, outputs: Sequence[int]) -> None:
        """Let the first use with a gradient have a shared parameter, where the first of all has none."""
        _, reached = self.writer.reached(outputs)
        every = self.builder.operations
        for uses in self.uses.values():
            first, live = uses[0][0], (use for use, is_learned in uses if is_learned)
            of_use = ((u, {t for i in u for t in every[i].outputs}) for u in live)
            found = next((u for u, written in of_use if not reached.isdisjoint(written)), first)
            if found != first and not any("tied" in every[i].attributes for i in first):
                for i in first:
                    every[i] = every[i].changed(tied=True)
                for i in found:
                    every[i] = every[i].changed(tied=None)

    def mark_parts(self, outputs: Sequence[int]) -> None:
        """Mark what has a gradient, and what has none, in a network of which a part is trained."""
        self.hand_over(outputs)
        every = self.builder.operations
        for i, o in enumerate(every):
            if not self.bare.isdisjoint(o.outputs):
                every[i] = o.changed(**{TRAINED: 0})
            if not self.asked.isdisjoint(o.outputs):
                every[i] = every[i].changed(**{ASKED: True})

    def overwrite(self, changed: Any, index: int) -> None:
        """Record that an operation in place gave its tensor, and what that is a view of, a new value."""
        is_own = not isinstance(changed, FakeTensor)
        if is_own and {index, self.known[changed]} <= self.writer.constants:
            return  # a parameter that is updated stays one
        self.learn(changed, index)
        while changed in self.views:
            changed = self.views[changed]
            before = self.known[changed]
            if {index, before} <= self.writer.constants:
                continue
            shape = self.writer.shape(before)
            whole = self.writer.elements(index) == prod(shape)
            sources = [index] if whole else [before, index]
            index = self.builder.add("identity", sources, shape)
            self.learn(changed, index)

    def place(self) -> tuple[str, str]:
        """Name and path of an operation: a layer of PyTorch's own has a name, others a path alone."""
        path, layer = self.stack[-1]
        if path and layer.startswith("torch.nn.modules.") and not layer.startswith(_HOLDERS):
            above, _, name = path.rpartition(".")
            return name, above
        return "", path


def dtype_name(tensor: Any) -> str:
    """float32, int64 ... of a tensor."""
    return str(tensor.dtype).removeprefix("torch.")


def traced(model: Any, name: str, call: tuple[Any, Any, Set[int]], axis: int) -> tuple[Graph, str]:
    """Trace a call of a module; return its graph, and the first layer with its batch elsewhere, or "".

    `call`: positional and named arguments, at batch size 1 on their `axis`, and the ids of the tensors in
    them that have no batch. Raises whatever the module's code raises, and NetworkError if no output depends
    on the inputs.
    """
    held = tensors_of(model)
    tracer, outputs = _called(model, name, call, axis)
    builder = tracer.builder
    outputs = [i for i in dict.fromkeys(outputs) if i not in tracer.writer.constants]
    if not outputs:
        raise NetworkError(
            f"network {name!r} returns no tensor that depends on its inputs; its forward must return what "
            "it computed"
        )
    alone = in_training_alone(model, tracer)
    builder.training += otherwise(model, tracer, alone)
    whole = tracer.is_whole(outputs)
    if tracer.parts or not whole:
        tracer.mark_parts(outputs)
    tracer.writer.mark_stops(tracer.writer.constants - tracer.trained.made_of.keys())
    builder.free += free_parameters(tracer.trained, tracer.every)
    drops, builder.training_only_on_cpu = dropped(model, tracer)
    builder.training_only += [*drops, *in_training_only(model)]
    builder.warnings += anew_in_each_call(tracer, model)
    multiplying = sum(o.kind in KERNELS for o in builder.operations)
    outputs = tracer.writer.prune(outputs)
    if unused := multiplying - sum(o.kind in KERNELS for o in builder.operations):
        builder.warnings.append(
            f"none of the tensors that it returns depends on {plural(unused, 'layer')}, which PyTorch "
            "runs all the same: skipped"
        )
    builder.operations[:] = free_turns(builder.operations, builder.tensors)
    builder.upcasts = tracer.upcasts
    builder.autocast &= any(p.dtype == torch.float32 for p in model.parameters())
    own = {id(p): p.numel() for p in model.parameters()}  # and buffers that are weights
    graph = completed(builder, outputs, sum((tracer.every.taken | own).values()))
    return with_buffers(model, held, graph), next(iter(tracer.misread), "")


def read_with_several(
    model: Any, name: str, call: tuple[Any, Any, Set[int]], axis: int, samples: int
) -> Graph:
    """Trace a call with several samples, as a graph at batch size 1.

    `call`, `axis`: as of `traced`. Raises whatever the module's code raises.
    """
    tracer, outputs = _called(model, name, call, axis, samples)
    return tracer.builder.build(tracer.writer.prune(outputs))


def _called(
    model: Any, name: str, call: tuple[Any, Any, Set[int]], axis: int, samples: int = 1
) -> tuple[Tracer, list[int]]:
    """Call a module in evaluation mode; return the tracer that watched, and the graph's outputs.

    Inputs that are of one sample on their axis get the number of `samples` there.
    """
    *arguments, still = call
    builder = GraphBuilder(name, "torch")
    tracer = Tracer(builder, {module: path for path, module in model.named_modules()}, axis)

    def of_samples(tensor: Any) -> Any:
        shape = list(tensor.shape)
        grows = shape[axis : axis + 1] == [1] and id(tensor) not in still
        shape[axis : axis + 1] = [samples] if grows else shape[axis : axis + 1]
        made = tensor.new_empty(shape) if grows else torch.empty_like(tensor)
        tracer.input(made, grows and samples == 1)
        return made

    weights = (*model.parameters(), *model.buffers())
    on_cpu = OnCpu() if all(w.device.type == "cpu" for w in weights) else contextlib.nullcontext()
    with (
        evaluated(model), eagerly(), data_copied(), torch.inference_mode(), watched(tracer), tracer.fake,
        on_cpu,
    ):  # fmt: skip
        args, kwargs = pytree.tree_map_only(torch.Tensor, of_samples, arguments)
        with following_modules(tracer), tracer:
            result = model(*args, **kwargs)
            tracer.lifetimes.end()
        leaves = [*leaves_of(result)]
        outputs = [i for t in leaves if (i := tracer.index(t)) is not None]
        held = (tracer.viewed(t)[-1] for t in held_by(leaves))  # a window of keys keeps all of them
        builder.kept += [i for t in held if (i := tracer.known.get(t)) is not None]
    return tracer, outputs
