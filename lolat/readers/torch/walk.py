"""Walks the nodes of an exported PyTorch program and writes operations into a GraphBuilder.

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

from lolat.errors import NetworkError
from lolat.graph import GraphBuilder
from lolat.graph.kinds import HEAVY
from lolat.readers.torch import attention as torch_attention
from lolat.readers.torch import calls as torch_layouts
from lolat.readers.torch import rules as torch_rules
from lolat.readers.torch.calls import (
    Call,
    arguments_of,
    base_name,
    dtype_name,
    flat,
    indices_of,
    is_mutable,
)
from lolat.readers.torch.program import Program, is_tensor, source_line, submodule, tensors_of

_AGAIN = re.compile(r"@\d+")
_HOLDERS = ("torch.nn.modules.transformer", "torch.nn.modules.container")
_WRAPPERS = ("wrap", "checkpoint", "invoke_subgraph")
_BRANCHES = {"cond", "while_loop", "scan", "map", "map_impl", "switch"}


class Walker:
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
        found: list[Any] = []
        for value in values:
            if value is not None:
                shape, batched = self.program.sizes(node, value, grows)
                index = self.builder.tensor(shape, batched, dtype_name(value))
                self.constants.add(index)
                found.append(index)
            else:
                found.append(None)
        return found

    def called(self, node: Any) -> None:
        """One node that computes."""
        if node.target is operator.getitem:
            whole, position = self.values.get(node.args[0]), node.args[1]
            self.values[node] = whole[position] if isinstance(whole, list) else whole
            self.views[node] = node.all_input_nodes[0]
            return
        if any(c.__name__ == "HigherOrderOperator" for c in type(node.target).__mro__):
            found = self.inside(node)
            if found is not None:
                self.values[node] = found
                return
        if torch_attention.read_whole(self, node):
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
        elif base_name(node) in torch_layouts.VIEWS:
            self.views[node] = node.all_input_nodes[0]

    def emitted(self, node: Any, tensors: Sequence[Any]) -> list[Any]:
        """The tensors that a node writes."""
        sources = self.sources(node)
        grows = any(self.builder.tensors[i].batched for i in sources)
        sized = [None if v is None else self.program.sizes(node, v, grows) for v in tensors]
        batched = any(s is not None and s[1] for s in sized)
        kind = torch_rules.kind_of(base_name(node))
        made = base_name(node).startswith(
            "new_"
        )  # zeros of the type of a tensor, not of its values
        constant = self.constants.issuperset(sources) and not (sources and batched)
        if made or (constant and kind not in HEAVY):
            return self.constants_like(node, tensors, grows)
        shapes = [s[0] for s in sized if s is not None]
        name, path = self.named(node)
        dtype = dtype_name(next(v for v in tensors if v is not None))
        call = Call(node, base_name(node), arguments_of(node), shapes, name, path, dtype)
        self.builder.dtype = dtype
        written: list[Any] = list(torch_rules.emit(self, call))
        for index, size in zip(written, sized, strict=False):
            if size is not None and index not in sources:
                was = self.builder.tensors[index]
                self.builder.tensors[index] = replace(was, batched=size[1])
        return written

    def sources(self, node: Any) -> list[int]:
        """The tensors that a node reads, scalars too."""
        found = (self.values.get(n) for n in node.all_input_nodes)
        return [i for value in found for i in indices_of(value)]

    def read(self, call: Call, first: int | None = None) -> list[int]:
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
        """Every operand with a shape, in order; a single number is none."""
        found = (self.index(a) for argument in call.arguments.values() for a in flat(argument))
        return [i for i in found if i is not None and self.builder.tensors[i].shape]

    def shape(self, index: int) -> tuple[int, ...]:
        """Shape at batch size 1."""
        return self.builder.tensors[index].shape

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
        axis = torch_layouts.channel_axis(self, kind, inputs, shape)
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
