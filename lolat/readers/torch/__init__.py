"""PyTorch network -> Graph: taken apart at batch size 1, its ATen operations followed one by one.

Nothing is computed: the export runs on fake tensors, so neither weights nor activations need memory.
Shapes in the Graph are PyTorch's own (channels first); counts and blocks do not depend on the layout.

What depends on parameters alone (a table of position biases that is gathered, a mask) is a constant
operand, as it is in a Keras network, and costs nothing; an in-place operation gives the tensor that it
changes, and those that this one is a view of, a new value.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from math import prod
from typing import Any

from msgspec.structs import replace

from lolat.errors import MissingPackageError, NetworkError
from lolat.graph import Graph, GraphBuilder
from lolat.readers.rules import WITH_AXIS, Reader, axis_of
from lolat.readers.torch import export, rules
from lolat.readers.torch.program import (
    Call,
    Program,
    arguments_of,
    base_name,
    channel_axis,
    dtype_name,
    flat,
    is_made_for_batch,
    is_mutable,
    is_tensor,
    is_view,
    numbers,
    source_line,
    submodule,
    tensors_of,
)

OLDEST = (2, 6)


def import_torch() -> Any:
    """PyTorch; MissingPackageError when it is missing or too old."""
    try:
        import torch
    except ImportError as error:
        raise MissingPackageError(
            f"PyTorch is needed for this and cannot be imported ({error})", "torch"
        ) from error
    version = tuple(int(n) for n in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST:
        raise MissingPackageError(
            f"PyTorch {torch.__version__} is too old for this, it must be "
            f"{'.'.join(map(str, OLDEST))} or newer; install it with: pip install --upgrade torch"
        )
    return torch


def is_network(model: Any) -> bool:
    """Whether an object is a PyTorch module."""
    names = {f"{c.__module__}.{c.__qualname__}" for c in type(model).__mro__}
    return "torch.nn.modules.module.Module" in names


def read_model(model: Any, name: str = "", size: Any = (), example: Any = None) -> Graph:
    """Read an `nn.Module` into a Graph.

    `size`: () for what the module says; (H,) for H x H (or H steps) with the module's own channels; a
    whole shape without the batch; several shapes, or a dict of them by the names of `forward`'s
    arguments. `example`: inputs to call it with, instead (a tensor, a tuple or a dict of them; the first
    axis is the batch). The module is read as in evaluation mode and stays as it is. Raises NetworkError.
    """
    import_torch()
    model = export.unwrapped(model)
    name = name or type(model).__name__
    return read_program(export.export(model, name, size, example), name)


def read_program(program: Program, name: str) -> Graph:
    """A Program as a Graph. Raises NetworkError when it computes nothing.

    Operations that no output needs, such as attention weights that nobody reads, are left out.
    """
    builder = GraphBuilder(name, "torch")
    outputs = Walker(builder, program).run()
    if not outputs:
        raise NetworkError(
            f"network {name!r} returns no tensor that depends on its inputs; its forward must return "
            "what it computed"
        )
    needed, kept = set(outputs), []
    for operation in reversed(builder.operations):
        if not needed.isdisjoint(operation.outputs):
            needed.update(operation.inputs)
            kept.append(operation)
    builder.operations[:] = reversed(kept)
    return builder.build(outputs)


# ---- The walk through the nodes of an exported program.

_EXPORTED = re.compile(rf"^{export.PREFIX}(\.|$)|@\d+")
"""What the export adds to a module's path: a module in front, numbers of repeated calls."""
_HOLDERS = (
    "torch.nn.modules.transformer", "torch.nn.modules.container",
    "torch.nn.modules.activation.MultiheadAttention",
)  # fmt: skip
"""Modules of PyTorch's own that are several operations."""
_WRAPPERS = ("wrap", "checkpoint", "invoke_subgraph")
_BRANCHES = {"cond", "while_loop", "scan", "map", "map_impl", "switch"}


class Walker(Reader):
    """Follows a Program; `values`: node -> tensor index, list of them, or None for what is no tensor."""

    def __init__(self, builder: GraphBuilder, program: Program) -> None:
        self.builder = builder
        self.program = program
        self.values: dict[Any, Any] = {}
        self.constants: set[int] = set()
        self.views: dict[Any, Any] = {}  # node -> the node of which it is a view
        self.channels: dict[int, int] = {}  # tensor -> the axis of its channels, if it is known
        self.parts: dict[int, list[int]] = {}  # states stacked by a recurrent layer -> each of them

    def run(self) -> list[int]:
        """Emit everything; the tensors that the network returns."""
        module = self.program.graph_module
        returned = self.walk(module, None)
        # What comes before is written to buffers.
        returned = returned[len(returned) - self.program.outputs :]
        return list(dict.fromkeys(i for i in returned if i is not None and i not in self.constants))

    def walk(self, module: Any, given: Sequence[Any] | None) -> list[int | None]:
        """The nodes of a graph whose placeholders are `given` (None: parameters and inputs)."""
        supplied = iter(given or ())
        for node in module.graph.nodes:
            if node.op == "placeholder":
                self.values[node] = self.placeholder(node) if given is None else next(supplied)
            elif node.op == "get_attr":
                self.values[node] = submodule(module, node) or self.constant(node)
            elif node.op == "call_function":
                self.called(node)
            elif node.op == "output":
                leaves = flat(node.args[0])
                return [self.values.get(n) if hasattr(n, "op") else None for n in leaves]
        return []

    def placeholder(self, node: Any) -> int | None:
        """A parameter, a buffer, or an input of the network."""
        value = node.meta.get("val")
        if not is_tensor(value):
            return None
        if node.name in self.program.inputs:
            shape = numbers(value, node)
            return self.builder.input(shape, dtype_name(value), batched=shape[:1] == (1,))
        return self.constant(node)

    def constant(self, node: Any) -> int | None:
        """A tensor that no operation of the network writes."""
        value = node.meta.get("val")
        return self.constants_like(node, [value])[0] if is_tensor(value) else None

    def constants_like(self, node: Any, values: Sequence[Any], grows: bool = False) -> list[Any]:
        """Constants with the shapes of what a node yields; whether they grow with the batch."""
        constants: list[Any] = [None] * len(values)
        for at, value in enumerate(values):
            if value is not None:
                constants[at] = self.builder.tensor(numbers(value, node), grows, dtype_name(value))
                self.constants.add(constants[at])
        return constants

    def called(self, node: Any) -> None:
        """One node that computes."""
        if node.target is operator.getitem:
            whole, position = self.values.get(node.args[0]), node.args[1]
            self.values[node] = whole[position] if isinstance(whole, list) else whole
            self.views[node] = node.all_input_nodes[0]
            return
        if any(c.__name__ == "HigherOrderOperator" for c in type(node.target).__mro__):
            inner = self.inside(node)
            if inner is not None:
                self.values[node] = inner
                return
        tensors = tensors_of(node.meta.get("val"))
        if all(v is None for v in tensors):
            self.values[node] = None  # sizes, assertions
            return
        several = isinstance(node.meta.get("val"), (tuple, list))
        written = self.emitted(node, tensors)
        written += self.constants_like(node, tensors[len(written) :])
        self.values[node] = written if several else written[0]
        if is_mutable(node):
            self.overwritten(node, written[0])
        elif is_view(node):
            self.views[node] = node.all_input_nodes[0]

    def emitted(self, node: Any, tensors: Sequence[Any]) -> list[Any]:
        """The tensors that a node writes."""
        sources, made = self.sources(node), is_made_for_batch(node)
        grows = made or any(self.builder.tensors[i].batched for i in sources)
        typed = base_name(node).startswith("new_")  # of the type of a tensor, not of its values
        constant = self.constants.issuperset(sources) and not (sources and grows)
        if typed or (constant and base_name(node) not in rules.HEAVY):
            return self.constants_like(node, tensors, made)
        shapes = [numbers(v, node) for v in tensors if v is not None]
        name, path = self.named(node)
        dtype = dtype_name(next(v for v in tensors if v is not None))
        call = Call(node, base_name(node), arguments_of(node), shapes, name, path, dtype)
        self.builder.dtype = dtype
        written = self.emit(call)
        if made:
            was = self.builder.tensors[written[0]]
            self.builder.tensors[written[0]] = replace(was, batched=True)
        return written

    def emit(self, call: Call) -> list[Any]:
        """Write a call as operations; what it wrote."""
        rule = rules.RULES.get(call.op)
        if rule is not None:
            return list(rule(self, call))
        # Under its own name, which says whose operation it is: so it is reported.
        kind = call.op if "." in call.op else f"aten.{call.op}"
        name = call.name or call.op.rpartition(".")[2]
        return self.whole(call, kind, self.operands(call), name)

    def sources(self, node: Any) -> list[int]:
        """The tensors that a node reads, scalars too."""
        values = (i for n in node.all_input_nodes for i in flat(self.values.get(n)))
        return [i for i in values if isinstance(i, int)]

    def activations(self, call: Call, first: int | None = None) -> list[int]:
        """The first tensor that a call reads (or `first`), and others that the network computes.

        Those stand where parameters usually do: the weights of a convolution that depend on the input.
        """
        sources = self.sources(call.node)
        first = sources[0] if first is None else first
        others = [i for i in sources if i != first and i not in self.constants]
        return [first, *dict.fromkeys(others)]

    def index(self, argument: Any) -> int | None:
        """The tensor that an argument is; None for numbers and what is left out."""
        value = self.values.get(argument) if hasattr(argument, "op") else None
        return value if isinstance(value, int) else None

    def operands(self, call: Call) -> list[int]:
        """Every operand with a shape, in order, or else what it reads; a single number is none."""
        leaves = (self.index(a) for argument in call.arguments.values() for a in flat(argument))
        shaped = [i for i in leaves if i is not None and self.shape(i)]
        return shaped or self.sources(call.node)

    def axes(self, call: Call, kind: str) -> dict[str, Any]:
        """The axis or axes that an operation works along."""
        inputs = self.sources(call.node)
        if kind not in WITH_AXIS or not inputs:
            return {}
        first = self.index(call.get("self", call.get("input")))
        rank = len(self.shape(inputs[0] if first is None else first))
        axis = call.get("dim", 0 if kind in ("concatenate", "stack") else None)
        if call.op in ("hstack", "vstack", "dstack"):
            axis = {"hstack": min(rank, 2) - 1, "vstack": 0, "dstack": 2}[call.op]
        elif call.op in ("index", "_unsafe_index"):
            places = [i for i, n in enumerate(call.get("indices")) if n is not None]
            axis = places[0] if len(places) == 1 else None
        return axis_of(axis, rank + (kind == "stack"), everything=kind == "reduce")

    def is_constant(self, tensor: int) -> bool:
        """Whether a tensor depends on parameters alone."""
        return tensor in self.constants

    def write(self, call: Call, kind: str, inputs: Sequence[int], **attributes: Any) -> list[int]:
        """The operation that a call is, for its first output."""
        return [self.add(call, kind, inputs, **attributes)]

    def whole(self, call: Call, kind: str, inputs: Sequence[int], name: str) -> list[int]:
        """An operation without a formula, for all outputs of a call."""
        return self.builder.add_several(kind, inputs, call.shapes, name, call.path)

    def add(
        self,
        call: Call,
        kind: str,
        inputs: Sequence[int],
        shape: Sequence[int] | None = None,
        suffix: str = "",
        **attributes: Any,
    ) -> int:
        """An operation named after the call; its output has the call's first shape unless told."""
        shape = tuple(call.shapes[0] if shape is None else shape)
        label = call.label(kind, suffix)
        out = self.builder.add(kind, inputs, shape, label, call.path, **attributes)
        axis = channel_axis(self, kind, inputs, shape)
        if axis is not None:
            self.channels[out] = axis
        return out

    def named(self, node: Any) -> tuple[str, str]:
        """(name, path): a layer of PyTorch's own by its name in the module it is in; others have none."""
        stack = list((node.meta.get("nn_module_stack") or {}).values())
        path, cls = stack[-1] if stack else ("", "")
        path = _EXPORTED.sub("", path)
        cls = cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"
        if path and cls.startswith("torch.nn.modules.") and not cls.startswith(_HOLDERS):
            above, _, name = path.rpartition(".")
            return name, above
        return "", path

    def inside(self, node: Any) -> list[int | None] | None:
        """A call of a graph inside the graph: what `no_grad`, `autocast` and checkpoints make of code.

        None for an operation that only takes a graph as one of its arguments.
        """
        name = str(node.target)
        given = [self.values.get(a) if hasattr(a, "op") else None for a in node.args]
        graphs = [i for i, value in enumerate(given) if hasattr(value, "graph")]
        if name in _BRANCHES:
            raise NetworkError(
                f"network {self.builder.name!r} chooses what it computes while it runs ({name}"
                f"{source_line(node.meta.get('stack_trace'))}), so it has no one latency; give a module "
                "without that choice, or one for each branch"
            )
        if len(graphs) != 1 or not any(part in name for part in _WRAPPERS):
            return None
        return self.walk(given[graphs[0]], given[graphs[0] + 1 :])

    def overwritten(self, node: Any, index: int) -> None:
        """After an in-place operation: the new value of what it changed and of what that is a view of."""
        changed = node.all_input_nodes[0]
        self.values[changed] = index
        while changed in self.views:
            base = self.views[changed]
            before = self.values.get(base)
            if not isinstance(before, int):
                return
            changed = base
            if index in self.constants and before in self.constants:
                continue
            shape = self.shape(before)
            whole = prod(self.shape(index)) == prod(shape)
            sources = [index] if whole else [before, index]
            self.values[base] = index = self.builder.add("identity", sources, shape)
            self.constants.discard(index)
