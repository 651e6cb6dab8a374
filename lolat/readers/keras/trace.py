"""Follows symbolic Keras tensors back to the calls that made them, and writes the calls into a graph."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any
from unittest import mock

from lolat.errors import NetworkError, arg
from lolat.graph import GraphBuilder
from lolat.graph.blocks import depth_first
from lolat.graph.kinds import COMPUTE, KERNELS, NORMALIZATIONS, TRAINED
from lolat.readers.keras import remarks
from lolat.readers.ops import Call, Writer
from lolat.units import one_line, shapes_text


@dataclass(frozen=True)
class LayerCall:
    """A call of a layer or operation. `inputs`: tensors of the graph; `shapes`: shapes of the outputs."""

    layer: Any
    inputs: list[int]
    shapes: list[tuple[int, ...]]
    path: str
    node: Any

    @property
    def inner(self) -> str:
        """The path of the operations inside the layer."""
        return f"{self.path}/{self.layer.name}" if self.path else str(self.layer.name)


class KerasReader:
    """Writes the calls that made symbolic Keras tensors into a GraphBuilder.

    `rule_of`: returns the rule of a layer or operation; None for a layer whose `call` is followed.
    """

    def __init__(self, name: str, model: Any, rule_of: Callable[[Any], Rule | None]) -> None:
        self.rule_of = rule_of
        self.owner = model  # the layer whose `call` is followed
        self.partly: list[str] = []  # layers with trained and frozen operations
        self.builder = GraphBuilder(name, "keras")
        self.writer = Writer(self.builder)
        self.shape = self.writer.shape
        self.known: dict[int, int] = {}  # id of a symbolic tensor -> tensor of the graph
        self.alive: list[Any] = []  # symbolic tensors, kept alive so that ids stay unique
        # Constant -> elements of its variable, 0 if an earlier constant has the same variable.
        self.variables: dict[int, int] = {}
        # id -> (tensor made of a variable, the variable)
        self.turned: dict[int, tuple[Any, Any]] = {}
        self.trained: dict[int, Any] = {}  # id -> variable among the operands

    def read(
        self, inputs: Sequence[Any], outputs: Sequence[Any], grow: Sequence[bool]
    ) -> list[int]:
        """Write all calls from the network's inputs to its outputs; returns the graph's output tensors.

        `grow`: for each input, True if it grows with the batch.
        """
        for tensor, grows in zip(inputs, grow, strict=True):
            shape, dtype = tuple(tensor.shape), str(tensor.dtype)
            self.known[id(tensor)] = self.builder.input(shape, dtype, grows)
        return self.follow(outputs, "")

    def follow(self, outputs: Sequence[Any], path: str) -> list[int]:
        """Write all calls between known tensors and `outputs`, in order; return the graph's outputs."""
        for node in _ordered_nodes(self.known, outputs):
            sources = [self.known[id(t)] for t in node.input_tensors]
            layer, start = node.operation, len(self.builder.operations)
            call = LayerCall(
                layer, sources, [tuple(t.shape) for t in node.output_tensors], path, node
            )
            if getattr(layer, "data_format", "") == "channels_first":
                self.builder.channels_first = True
            rule = self.rule_of(layer) if functional_of(layer) is None else None
            if rule is None:
                written = self.follow_layer(call)
            else:
                written = rule(self, replace(call, inputs=self.unmasked(call)))
                if not _is_time_distributed(layer):  # which marks the calls of its layer
                    self.writer.tie(start, self.weight(node))
                    self.mark(node, start)
            if type(layer).__name__ == "StopGradient":
                self.writer.detached.update(written)
            self.known.update((id(t), i) for t, i in zip(node.output_tensors, written, strict=True))
        return [self.known[id(t)] for t in outputs]

    def write(
        self, call: LayerCall, op: str, inputs: Sequence[int],
        shapes: Sequence[tuple[int, ...]] | None = None, suffix: str = "", **parameters: Any,
    ) -> list[int]:  # fmt: skip
        """Write one operation of a call, named after its layer. `shapes`: None for the call's shapes."""
        name = f"{call.layer.name}_{suffix}" if suffix else str(call.layer.name)
        return self.step(call, op, inputs, shapes or call.shapes, name, call.path, **parameters)

    def step(
        self, call: LayerCall, op: str, inputs: Sequence[int], shapes: Sequence[tuple[int, ...]],
        name: str, path: str, **parameters: Any,
    ) -> list[int]:  # fmt: skip
        """Write one operation of a call, with its own name and path."""
        dtype = str(call.node.output_tensors[0].dtype)
        return self.writer.write(Call(op, inputs, shapes, name, path, parameters, dtype))

    def mark(self, node: Any, start: int) -> None:
        """Store in a call's operations, from `start` on, how many parameters train, unless all do."""
        every = self.builder.operations
        trained, total = remarks.trained_parameters(node.operation)
        own = [i for i in range(start, len(every)) if every[i].kind in COMPUTE | NORMALIZATIONS]
        kernels = any(every[i].kind in KERNELS for i in own) and remarks.has_fixed_kernel(
            node, self.owner
        )
        if not own or not (kernels or trained < total):
            return
        if trained and len(own) > 1:
            self.partly.append(node.operation.name)
        for i in own:
            every[i] = every[i].changed(**{TRAINED: trained})

    def view(
        self, call: LayerCall, source: int, shape: tuple[int, ...], name: str, path: str
    ) -> int:
        """Write a reshape of `source`; return its tensor."""
        return self.step(call, "reshape", [source], [shape], name, path)[0]

    def weight(self, node: Any) -> int:
        """An id of the largest weight of a call, among its layer's variables or the call's arguments."""
        import keras

        given = keras.tree.flatten((node.arguments.args, node.arguments.kwargs))
        found = getattr(node.operation, "weights", None) or [
            self.turned.get(id(value), (value, value))[1] for value in given
        ]
        found = [value for value in found if isinstance(value, keras.Variable)]
        return id(max(found, key=lambda value: prod(value.shape), default=node.operation))

    def operands(self, call: LayerCall) -> list[int]:
        """The operands of a call in order: symbolic tensors, and constants with a shape."""
        import keras

        arguments = call.node.arguments
        leaves = keras.tree.flatten((arguments.args, arguments.kwargs))

        def is_tensor(value: Any) -> bool:
            constant = getattr(value, "shape", None) and not isinstance(value, type)
            return isinstance(value, keras.KerasTensor) or bool(constant)

        return [self.operand(value) for value in leaves if is_tensor(value)]

    def operand(self, value: Any) -> int:
        """The graph's tensor of a symbolic tensor, or of a constant such as a layer's variable."""
        known = self.known.get(id(value))
        if known is not None:
            return known
        made = self.writer.constant(tuple(value.shape))
        _, source = self.turned.get(id(value), (value, value))
        if getattr(source, "trainable", False):
            self.variables[made] = 0 if id(source) in self.trained else prod(source.shape)
            self.trained[id(source)] = source
            self.writer.builder.storages.append(((made,), -1))
        return made

    def unmasked(self, call: LayerCall) -> list[int]:
        """The inputs of a layer's call, without masks that Keras adds to the call."""
        import keras

        args, kwargs = call.node.arguments.args, call.node.arguments.kwargs
        kwargs = {k: v for k, v in kwargs.items() if not k.endswith("mask")}
        leaves = keras.tree.flatten((args, kwargs))
        return [self.known[id(t)] for t in leaves if isinstance(t, keras.KerasTensor)]

    def follow_layer(self, call: LayerCall) -> list[int]:
        """Write the operations inside a layer's `call`; if this fails, write an unknown operation."""
        import keras

        layer, arguments = call.layer, call.node.arguments
        fresh = {
            id(t): keras.KerasTensor(self.shape(self.known[id(t)]), dtype=t.dtype)
            for t in call.node.input_tensors  # masks too
        }
        args, kwargs = keras.tree.map_structure(
            lambda value: fresh.get(id(value), value), (arguments.args, arguments.kwargs)
        )
        kwargs = {k: v for k, v in kwargs.items() if k != "training"} | inference(layer)
        outputs: list[Any] = []
        try:
            with calling(layer, list(fresh.values())):
                outputs = keras.tree.flatten(layer.call(*args, **kwargs))
        except NetworkError:  # TensorFlow's functions do not take symbolic tensors
            if functional_of(layer) is not None or any(len(w.shape) > 1 for w in layer.weights):
                raise  # products cannot be counted
        self.alive += [*fresh.values(), *outputs]
        self.known.update((id(tensor), self.known[t]) for t, tensor in fresh.items())
        if len(outputs) == len(call.shapes) and self.reachable(outputs):
            with mock.patch.object(self, "owner", layer):
                return self.follow(outputs, call.inner)
        name, hides = type(layer).__name__, {"hides": True}
        return self.writer.unknown(
            Call(name, call.inputs, call.shapes, layer.name, call.path, hides)
        )

    def reachable(self, outputs: Sequence[Any]) -> bool:
        """True if outputs are symbolic and depend on known tensors alone."""
        if not all(hasattr(t, "_keras_history") or id(t) in self.known for t in outputs):
            return False
        nodes = _ordered_nodes(self.known, outputs)
        made = {id(t) for node in nodes for t in node.output_tensors}
        needed = [*outputs, *(t for node in nodes for t in node.input_tensors)]
        return all(id(t) in made or id(t) in self.known for t in needed)


def _ordered_nodes(known: Mapping[int, int], outputs: Sequence[Any]) -> list[Any]:
    """The calls between tensors with `known` ids and `outputs`, in topological order."""

    def makers(tensors: Sequence[Any]) -> list[Any]:
        found = [getattr(t, "_keras_history", (None, 0)) for t in tensors if id(t) not in known]
        return [one._inbound_nodes[at] for one, at, *_ in found if one is not None]

    return depth_first(makers(outputs), lambda node: makers(node.input_tensors))


def _is_time_distributed(layer: Any) -> bool:
    return any(c.__name__ == "TimeDistributed" for c in type(layer).__mro__)


def functional_of(model: Any) -> Any:
    """The functional network of a model: the model itself, or the network inside a Sequential, or None.

    None also for a class with its own `call`, which may not compute what its graph of layers shows.
    """
    if not getattr(getattr(type(model), "call", None), "__module__", "").startswith("keras."):
        return None
    if any(c.__name__ == "Sequential" for c in type(model).__mro__):
        model = getattr(model, "_functional", None)
    return model if hasattr(model, "_nodes_by_depth") and hasattr(model, "inputs") else None


@contextlib.contextmanager
def calling(model: Any, inputs: Any) -> Iterator[None]:
    """Turn any exception of a model that is called in this context into a NetworkError."""
    import keras

    try:
        yield
    except Exception as error:
        shapes = [tuple(tensor.shape[1:]) for tensor in keras.tree.flatten(inputs)]
        raise NetworkError(
            f"network {model.name!r} cannot be called on a symbolic input of shape {shapes_text(shapes)}: "
            f"{one_line(error)}; give {arg('input_size')} that fits, and write its call method with "
            "layers and keras.ops (several inputs: call it once on them before)"
        ) from error


def inference(layer: Any) -> dict[str, Any]:
    """{"training": False} if the layer's `call` has the argument `training`, else {}."""
    return {"training": False} if "training" in inspect.signature(layer.call).parameters else {}


Rule = Callable[[KerasReader, LayerCall], list[int]]
"""Writes a call; returns the graph's tensors of its outputs."""
