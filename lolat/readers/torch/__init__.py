"""PyTorch network -> Graph: exported by torch.export, its ATen operations followed one by one.

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
from dataclasses import replace
from math import prod
from typing import Any

from lolat.errors import MissingPackageError, NetworkError
from lolat.graph import Graph, GraphBuilder
from lolat.readers.rules import WITH_AXIS, Reader, attention, axis_of
from lolat.readers.torch import export, rules
from lolat.readers.torch.program import (
    RESHAPES,
    TRANSPOSITIONS,
    VIEWS,
    Call,
    Program,
    arguments_of,
    base_name,
    channel_axis,
    dtype_name,
    flat,
    is_mutable,
    is_tensor,
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
    builder.warnings += program.warnings
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

_AGAIN = re.compile(r"@\d+")
_HOLDERS = ("torch.nn.modules.transformer", "torch.nn.modules.container")
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
        self.done: set[Any] = set()  # nodes of an attention that was read as a whole

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
        self.done.difference_update(module.graph.nodes)  # a graph may be called again
        for node in module.graph.nodes:
            if node in self.done:
                continue
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
            shape, batched = self.program.sizes(node, value, True)
            return self.builder.input(shape, dtype_name(value), batched)
        return self.constant(node)

    def constant(self, node: Any) -> int | None:
        """A tensor that no operation of the network writes."""
        value = node.meta.get("val")
        return self.constants_like(node, [value])[0] if is_tensor(value) else None

    def constants_like(self, node: Any, values: Sequence[Any], grows: bool = False) -> list[Any]:
        """Constants with the shapes of what a node yields."""
        constants: list[Any] = [None] * len(values)
        for at, value in enumerate(values):
            if value is not None:
                shape, batched = self.program.sizes(node, value, grows)
                constants[at] = self.builder.tensor(shape, batched, dtype_name(value))
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
        if _attention_layer(self, node):
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
        elif base_name(node) in VIEWS:
            self.views[node] = node.all_input_nodes[0]

    def emitted(self, node: Any, tensors: Sequence[Any]) -> list[Any]:
        """The tensors that a node writes."""
        sources = self.sources(node)
        grows = any(self.builder.tensors[i].batched for i in sources)
        sized = [None if v is None else self.program.sizes(node, v, grows) for v in tensors]
        batched = any(s is not None and s[1] for s in sized)
        made = base_name(node).startswith("new_")  # of the type of a tensor, not of its values
        constant = self.constants.issuperset(sources) and not (sources and batched)
        if made or (constant and base_name(node) not in rules.HEAVY):
            return self.constants_like(node, tensors, grows)
        shapes = [s[0] for s in sized if s is not None]
        name, path = self.named(node)
        dtype = dtype_name(next(v for v in tensors if v is not None))
        call = Call(node, base_name(node), arguments_of(node), shapes, name, path, dtype)
        self.builder.dtype = dtype
        written = self.emit(call)
        for index, size in zip(written, sized, strict=False):
            if size is not None and index not in sources:
                was = self.builder.tensors[index]
                self.builder.tensors[index] = replace(was, batched=size[1])
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
        path = self.shortened(path)
        cls = cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"
        if path and cls.startswith("torch.nn.modules.") and not cls.startswith(_HOLDERS):
            above, _, name = path.rpartition(".")
            return name, above
        return "", path

    def shortened(self, path: str) -> str:
        """A module path without what the export puts before it and numbers of repeated calls."""
        path = _AGAIN.sub("", path)
        path = path.removeprefix("L['self'].").removeprefix("L__self__.")
        if self.program.prefix and f"{path}.".startswith(f"{self.program.prefix}."):
            path = path[len(self.program.prefix) + 1 :]
        return path

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


# ---- `nn.MultiheadAttention` as the operations it consists of, as Keras' MultiHeadAttention is read.

_MULTI_HEAD = "activation.MultiheadAttention"
_FUSED = "scaled_dot_product_attention"
_QUERIES = {_FUSED: "query", "bmm": "self", "baddbmm": "batch1"}
"""The product of queries and keys, and which of its arguments the queries are."""
_SEEN_THROUGH = RESHAPES | TRANSPOSITIONS | {"slice", "select", "dropout"}


def _layer_of(node: Any) -> tuple[str, str] | None:
    """(key of the call, module path) of the attention layer that a node is in."""
    for key, (path, cls) in (node.meta.get("nn_module_stack") or {}).items():
        name = cls if isinstance(cls, str) else f"{cls.__module__}.{cls.__qualname__}"
        if name.startswith("torch.nn.") and name.endswith(_MULTI_HEAD):
            return str(key), str(path)
    return None


def _attention_layer(walker: Walker, node: Any) -> bool:
    """Read the attention layer that begins at a node, as Keras' MultiHeadAttention is read.

    False when the node begins none, or one of an unusual kind (keys of its own, decomposed to matrices):
    then it is read operation by operation.
    """
    place = _layer_of(node)
    if place is None:
        return False
    layer = [n for n in node.graph.nodes if n.op == "call_function" and _layer_of(n) == place]
    if layer[0] is not node:
        return False
    inside = set(layer)
    linears = [n for n in layer if base_name(n) == "linear"]
    product = next((n for n in layer if base_name(n) in _QUERIES), None)
    if (
        len(linears) not in (2, 3, 4)
        or product is None
        or any(base_name(n) == "cat" for n in layer)
    ):
        return False
    sources = [walker.index(_outside(arguments_of(n)["input"], inside)) for n in linears[:-1]]
    returned = {n: _origin(n, inside) for n in layer if set(n.users) - inside}
    if None in sources or not set(returned.values()) <= {"linear", "softmax", "mean"}:
        return False
    _emit(walker, product, linears, sources, walker.shortened(place[1]), returned)
    walker.done |= inside
    return True


def _emit(
    walker: Walker, product: Any, linears: list[Any], sources: list[Any], path: str,
    returned: dict[Any, str],
) -> None:  # fmt: skip
    b, name = walker.builder, base_name(product)
    total = int(arguments_of(linears[-1])["weight"].meta["val"].shape[1])
    size = int(arguments_of(product)[_QUERIES[name]].meta["val"].shape[-1])  # of one head
    shape, _ = walker.program.sizes(product, product.meta["val"], True)
    # How many sequences there are at batch size 1: windows are in the batch.
    rows = prod(shape[:-3]) if name == _FUSED else max(1, shape[0] * size // total)
    sources = [sources[0], *(sources[1:] or sources) * 2][:3] if len(sources) < 3 else sources
    biased = arguments_of(linears[0])["bias"] is not None
    projected = []
    for role, source in zip(("query", "key", "value"), sources, strict=True):
        shape = walker.shape(source)
        steps = prod(shape[:-1]) // rows
        projected.append(b.add(
            "dense", [source], (rows, steps, total), role, path,
            in_features=shape[-1], out_features=total, bias=biased,
        ))  # fmt: skip
    heads = total // size
    query, key, value = projected
    mixed, weights = attention(walker.builder, query, key, value, (heads, heads), "attention", path)
    last = linears[-1]
    features = int(arguments_of(last)["weight"].meta["val"].shape[0])
    out = b.add(
        "dense", [mixed], (*b.tensors[mixed].shape[:-1], features), "output", path,
        in_features=total, out_features=features,
        bias=arguments_of(last)["bias"] is not None,
    )  # fmt: skip
    for node, origin in returned.items():
        shape, _ = walker.program.sizes(node, node.meta["val"], True)
        source, name = (out, "result") if origin == "linear" else (weights, "weights")
        over = {"axis": len(b.tensors[weights].shape) - 3} if origin == "mean" else {}  # the heads
        kind = "reduce" if origin == "mean" else "reshape"
        index = b.add(kind, [source], shape, name, path, **over)
        walker.values[node] = index
        if origin == "linear":
            walker.channels[index] = len(shape) - 1


def _outside(node: Any, inside: set[Any]) -> Any:
    """What a node inside the layer is a view of, outside it."""
    while node in inside and base_name(node) in _SEEN_THROUGH:
        node = node.all_input_nodes[0]
    return None if node in inside else node


def _origin(node: Any, inside: set[Any]) -> str:
    """The operation whose result, seen in another shape, a node returns from the layer."""
    while node in inside and (base_name(node) in _SEEN_THROUGH or node.target is operator.getitem):
        node = node.all_input_nodes[0]
    return base_name(node) if node in inside else ""
