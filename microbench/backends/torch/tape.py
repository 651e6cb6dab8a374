"""Writes down layers and calls as a PyTorch module with a forward of straight-line code."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from lolat.graph import Graph, Tensor
from microbench.backends.shapes import Shape, build


class TorchTape:
    """Collects an FX graph; every step is tried at once on meta tensors, which have a shape and no memory.

    The code that FX generates lets go of a tensor after its last use, as a network's own code does, and is
    a code object of its own, so that torch.compile treats blocks as different networks.
    """

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.root: Any = torch.nn.Module()
        self.graph: Any = torch.fx.Graph()
        self.meta: dict[Any, Any] = {}  # node -> what it gives at batch size 1

    def dtype(self, name: str) -> Any:
        """A data type by its name in a Graph; float32 where PyTorch has none of that name."""
        return getattr(self.torch, name, self.torch.float32)

    def input(self, tensor: Tensor, shape: Shape) -> Any:
        """An input of the module."""
        node = self.graph.placeholder(f"x{len(self.meta)}")
        return self._noted(node, self._empty(shape, tensor.dtype))

    def constant(self, tensor: Tensor) -> Any:
        """A buffer: an operand that nothing writes."""
        name = f"constant_{len(self.meta)}"
        value = self._empty(tensor.shape, tensor.dtype)
        self.root.register_buffer(name, value)
        return self._noted(self.graph.get_attr(name), value)

    def grown(self, node: Any, shape: Shape) -> Any:
        """A view of it for each sample of the first input."""
        inputs = (n for n in self.graph.nodes if n.op == "placeholder")
        return self.call(for_each_sample, node, next(inputs))

    def permute(self, node: Any, order: Sequence[int]) -> Any:
        """A view with the axes in another order."""
        return self.call(self.torch.permute, node, tuple(order))

    def shape(self, node: Any) -> Shape | None:
        """Shape of a node at batch size 1."""
        return tuple(self.meta[node].shape)

    def module(self, kind: str, layer: Any, *nodes: Any, **options: Any) -> Any:
        """The output of a layer (an nn.Module on the meta device), which becomes part of the module."""
        name = f"{kind}_{len(self.meta)}"
        value = layer.eval()(*(self.meta[n] for n in nodes), **options)
        setattr(self.root, name, layer)
        return self._noted(self.graph.call_module(name, nodes, options), value)

    def call(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """The output of a function; nodes among its arguments, or in a list as its first, are operands."""
        value = function(*map(self._meta_of, arguments), **options)
        return self._noted(self.graph.call_function(function, arguments, options), value)

    def item(self, node: Any, at: int) -> Any:
        """One of several things that a node gives."""
        return self.call(operator.getitem, node, at)

    def _meta_of(self, argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return type(argument)(map(self._meta_of, argument))
        return self.meta[argument] if isinstance(argument, self.torch.fx.Node) else argument

    def _noted(self, node: Any, value: Any) -> Any:
        self.meta[node] = value
        return node

    def _empty(self, shape: Shape, dtype: str) -> Any:
        return self.torch.empty(shape, dtype=self.dtype(dtype), device="meta")

    def finished(self, outputs: Sequence[Any], name: str) -> Any:
        """The module, on the meta device; it returns a tuple."""
        self.graph.output(tuple(outputs))
        found = self.torch.fx.GraphModule(self.root, self.graph, name)
        return found.eval()


def for_each_sample(x: Any, like: Any) -> Any:
    """`x` as many times as `like` has samples."""
    return x.expand(like.shape[0] * x.shape[0], *x.shape[1:])


def block_module(torch: Any, graph: Graph) -> tuple[Any, list[Shape]]:
    """(an nn.Module of `graph` on the meta device, the shapes of its inputs at batch size 1).

    MeasuringError names an operation that cannot be built.
    """
    from microbench.backends.torch.layers import MAKERS

    tape = TorchTape(torch)
    with torch.device("meta"), torch.no_grad():
        outputs, shapes = build(graph, tape, MAKERS, "torch")
        return tape.finished(outputs, "Block"), shapes


def materialise(torch: Any, module: Any, device: Any) -> Any:
    """A module of the meta device on `device`, with random weights made there, layer by layer."""
    module = module.to_empty(device=device)
    for part in module.modules():
        reset = getattr(part, "reset_parameters", None)
        if callable(reset):
            reset()
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            if name.startswith("constant_"):
                buffer.fill_(1)
        for part in module.modules():
            if type(part).__name__ in (
                "PReLU",
                "MultiheadAttention",
            ):  # to_empty left what lay there
                for parameter in part.parameters(recurse=False):
                    parameter.fill_(0.25)
    return module
