"""Keras network -> Graph: follows the symbolic tensors of a functional network.

A nested model is followed inside; a layer that has no rule (a subclassed model, a custom layer) is
called on symbolic tensors, so that what it does shows as operations with rules. Weights are not needed.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from lolat.errors import MissingPackageError, NetworkError
from lolat.graph import Graph, GraphBuilder
from lolat.readers import keras_layers, keras_ops

RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "ExpandDims", "Ravel"})
"""Operations that keep the number of elements: with them part of a shape may move into the batch."""


def import_keras() -> Any:
    """Keras, imported quietly: TensorFlow greets on stderr from C++ whatever the log level."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    saved = os.dup(2)
    try:
        with tempfile.TemporaryFile() as muffled:
            os.dup2(muffled.fileno(), 2)
            try:
                import keras
            finally:
                os.dup2(saved, 2)
    except ImportError as error:
        raise MissingPackageError(
            f"Keras with TensorFlow is needed for this and cannot be imported ({error}); install it "
            "with: pip install 'lolat[tensorflow]'"
        ) from error
    finally:
        os.close(saved)
    return keras


def read_model(model: Any, name: str = "", input_size: Sequence[int] | None = None) -> Graph:
    """Read a Keras model (or layer) into a Graph.

    `input_size`: () or None for the model's own; (H,) for H x H (or H steps) with the model's own
    channels; otherwise the whole shape without the batch. Raises NetworkError when the shape is not
    known or the model cannot be called on a symbolic input.
    """
    inputs, outputs = symbolic_call(model, tuple(input_size or ()))
    reader = KerasReader(name or model.name)
    indices = []
    for tensor in inputs:
        index = reader.builder.input(reader.shape(tensor, 1), str(tensor.dtype))
        reader.known[id(tensor)] = index
        indices.append(index)
    written = reader.follow(inputs, outputs, "")
    return reader.builder.build(written)


def symbolic_call(model: Any, input_size: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """The model's symbolic inputs and outputs, with a batch dimension that is None."""
    import keras

    functional = functional_of(model)
    if functional is not None:
        shapes = [tuple(t.shape) for t in functional.inputs]
        wanted = [sized(s, input_size, model.name) for s in shapes]
        if wanted == shapes:
            return list(functional.inputs), list(functional.outputs)
        dtypes = [t.dtype for t in functional.inputs]
    else:
        wanted, dtypes = unbuilt_shapes(model, input_size), ["float32"]
    inputs = [keras.KerasTensor(s, dtype=d) for s, d in zip(wanted, dtypes, strict=False)]
    target = functional if functional is not None else model
    given = _structured(functional, inputs) if functional is not None else inputs[0]
    try:
        with keras.StatelessScope(initialize_variables=False):
            if functional is None and not model.built:
                model(keras.KerasTensor(wanted[0]))
            outputs = target.call(given, **_inference(target))
    except Exception as error:
        raise NetworkError(
            f"network {model.name!r} cannot be called on a symbolic input of shape "
            f"{_text(wanted)}: {one_line(error)}; give --input-size that fits, or use keras.ops "
            "instead of a framework's own functions in its call method"
        ) from error
    return inputs, keras.tree.flatten(outputs)


def functional_of(model: Any) -> Any:
    """The functional network behind a model: itself, or the one that a Sequential keeps; or None."""
    if type(model).__name__ == "Sequential":
        model = getattr(model, "_functional", None)
    return model if hasattr(model, "_nodes_by_depth") and hasattr(model, "inputs") else None


def sized(shape: tuple[Any, ...], size: tuple[int, ...], name: str) -> tuple[Any, ...]:
    """`shape` with the batch left open and the sizes filled in; NetworkError when some stay open."""
    import keras

    rest = list(shape[1:])
    if len(size) > 1 and len(size) == len(rest):
        rest = list(size)
    elif size:
        channels_first = keras.config.image_data_format() == "channels_first"
        spatial = range(1, len(rest)) if channels_first else range(len(rest) - 1)
        spatial = spatial if len(rest) > 1 else range(len(rest))
        if len(size) not in (1, len(spatial)):
            raise NetworkError(
                f"--input-size {','.join(map(str, size))} does not fit the input {_text([shape])} "
                f"of {name!r}; give one number, {len(spatial)} numbers or the whole shape without "
                "the batch"
            )
        for i, axis in enumerate(spatial):
            rest[axis] = size[i] if len(size) > 1 else size[0]
    if None in rest:
        raise NetworkError(
            f"the input {_text([shape])} of {name!r} has an open size; give it with --input-size, "
            "for example --input-size 224"
        )
    return (None, *rest)


def unbuilt_shapes(model: Any, size: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """Input shapes of a model without symbolic inputs: as it was built, or from the size given."""
    known = list((getattr(model, "_build_shapes_dict", None) or {}).values())
    shapes = [tuple(s) for s in known if isinstance(s, (tuple, list)) and len(s) > 1]
    if len(shapes) == 1 and not isinstance(shapes[0][0], (tuple, list)):
        return [sized(shapes[0], size, model.name)]
    if len(size) == 1:
        return [(None, size[0], size[0], 3)]
    if size:
        return [(None, *size)]
    raise NetworkError(
        f"the input shape of {model.name!r} is not known (a subclassed model that was not built); "
        "give it with --input-size, for example --input-size 224 or --input-size 224,224,3"
    )


def _structured(functional: Any, inputs: list[Any]) -> Any:
    """The flat inputs in the structure that the model was made with (a list, a dict, one tensor)."""
    import keras

    return keras.tree.pack_sequence_as(functional._inputs_struct, inputs)


def _inference(layer: Any) -> dict[str, Any]:
    """The keyword argument that asks for inference, if the layer's call has it."""
    return {"training": False} if getattr(layer, "_call_has_training_arg", False) else {}


def _text(shapes: Iterable[Sequence[Any]]) -> str:
    """Shapes as a person writes them: 224x224x3, with ? for what is open."""
    return ", ".join("x".join("?" if n is None else str(n) for n in s[1:]) for s in shapes)


def one_line(error: BaseException) -> str:
    """The first informative line of an exception, short enough to read."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else type(error).__name__
    return text if len(text) < 200 else text[:197] + "..."


class KerasReader:
    """Walks symbolic Keras tensors and writes operations into a GraphBuilder."""

    def __init__(self, name: str) -> None:
        self.builder = GraphBuilder(name)
        self.known: dict[int, int] = {}  # id of a symbolic tensor -> index in the graph
        self.alive: list[Any] = []  # symbolic tensors made on the way: their ids must stay unique

    def shape(self, tensor: Any, per_sample: int) -> tuple[int, ...]:
        """Shape at batch size 1: the open dimension becomes `per_sample` (1 unless reshaped)."""
        shape = tuple(tensor.shape)
        if shape.count(None) > 1:
            raise NetworkError(
                f"a tensor of {self.builder.name!r} has the shape {_text([(0, *shape)])} with open "
                "sizes besides the batch; give the input's with --input-size, for example "
                "--input-size 224"
            )
        return tuple(per_sample if n is None else int(n) for n in shape)

    def elements(self, index: int) -> int:
        """Elements of a tensor at batch size 1."""
        return prod(self.builder.tensors[index].shape)

    def follow(self, inputs: Sequence[Any], outputs: Sequence[Any], path: str) -> list[int]:
        """Emit all operations between symbolic `inputs` (known already) and `outputs`, in order."""
        for node in ordered_nodes(inputs, outputs):
            sources = [self.known[id(t)] for t in node.input_tensors]
            shapes = self.output_shapes(node, sources)
            written = self.emit(node.operation, sources, shapes, path, node)
            self.known.update(
                (id(t), i) for t, i in zip(node.output_tensors, written, strict=False)
            )
        return [self.known[id(t)] for t in outputs]

    def output_shapes(self, node: Any, sources: Sequence[int]) -> list[tuple[int, ...]]:
        """Output shapes at batch size 1, following sizes that a reshape moved into the batch."""
        shapes = []
        for tensor in node.output_tensors:
            per_sample = 1
            if None in tensor.shape and sources:
                if type(node.operation).__name__ in RESHAPES:
                    rest = prod(int(n) for n in tensor.shape if n is not None)
                    per_sample = self.elements(sources[0]) // max(rest, 1)
                else:
                    per_sample = max(self.per_sample(t) for t in node.input_tensors)
            shapes.append(self.shape(tensor, per_sample))
        return shapes

    def per_sample(self, tensor: Any) -> int:
        """What the open dimension of a symbolic tensor is at batch size 1."""
        shape = tuple(tensor.shape)
        if None not in shape:
            return 1
        return self.builder.tensors[self.known[id(tensor)]].shape[shape.index(None)]

    def emit(
        self,
        operation: Any,
        sources: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        path: str,
        node: Any,
    ) -> list[int]:
        """Write one call of a layer or keras.ops operation; returns the indices of its outputs."""
        kind = type(operation).__name__
        nested = functional_of(operation)
        if nested is not None:
            return self.nested(operation, nested, node, sources, path)
        rule = keras_layers.RULES.get(kind)
        if rule is not None and keras_layers.is_builtin(operation):
            return rule(self, operation, list(sources), list(shapes), path, node)
        op_rule = keras_ops.RULES.get(kind)
        if op_rule is not None and keras_ops.is_builtin(operation):
            return op_rule(self, operation, list(sources), list(shapes), path, node)
        inside = self.expanded(operation, node, sources, path)
        if inside is not None:
            return inside
        return self.unknown(kind, operation.name, sources, shapes, path)

    def unknown(
        self,
        kind: str,
        name: str,
        sources: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        path: str,
    ) -> list[int]:
        """An operation without a rule: kept under its own name, counted as memory traffic."""
        first = self.builder.add(kind, sources, shapes[0], name, path)
        return [first, *(self.view(first, shape, name, path) for shape in shapes[1:])]

    def view(self, source: int, shape: Sequence[int], name: str, path: str) -> int:
        """The same data seen as another shape; free."""
        return self.builder.add("reshape", [source], shape, name, path)

    def nested(
        self, layer: Any, functional: Any, node: Any, sources: Sequence[int], path: str
    ) -> list[int]:
        """A model used as a layer: its own operations, under its name."""
        inner = f"{path}/{layer.name}" if path else layer.name
        own = [tuple(t.shape) for t in functional.inputs]
        if own == [tuple(t.shape) for t in node.input_tensors]:
            saved = {id(t): self.known.get(id(t)) for t in functional.inputs}
            self.known.update(zip(saved, sources, strict=True))
            return self.follow(functional.inputs, functional.outputs, inner)
        found = self.expanded(functional, node, sources, path)
        if found is None:
            raise NetworkError(f"the model {layer.name!r} inside cannot be read at {own}")
        return found

    def expanded(
        self, layer: Any, node: Any, sources: Sequence[int], path: str
    ) -> list[int] | None:
        """What the layer's `call` does on symbolic tensors; None when it cannot be called so."""
        import keras

        if not hasattr(layer, "call"):
            return None
        fresh = [keras.KerasTensor(t.shape, dtype=t.dtype) for t in node.input_tensors]
        swap = {id(t): new for t, new in zip(node.input_tensors, fresh, strict=True)}
        args, kwargs = keras.tree.map_structure(
            lambda x: swap.get(id(x), x), (node.arguments.args, node.arguments.kwargs)
        )
        kwargs = {k: v for k, v in kwargs.items() if k != "training"} | _inference(layer)
        try:
            outputs = keras.tree.flatten(layer.call(*args, **kwargs))
        except Exception:  # a framework's own functions do not take symbolic tensors
            return None
        if not outputs or not all(isinstance(t, keras.KerasTensor) for t in outputs):
            return None
        self.alive += [*fresh, *outputs]
        self.known.update((id(t), i) for t, i in zip(fresh, sources, strict=True))
        try:
            return self.follow(fresh, outputs, f"{path}/{layer.name}" if path else layer.name)
        except KeyError:  # an output that does not come from the inputs
            return None


def ordered_nodes(inputs: Sequence[Any], outputs: Sequence[Any]) -> list[Any]:
    """The calls between inputs and outputs, each after the ones it needs, branch by branch."""
    stop = {id(t) for t in inputs}
    done: set[int] = set()
    order: list[Any] = []
    stack = [(_producer(t), False) for t in reversed(list(outputs)) if id(t) not in stop]
    while stack:
        node, ready = stack.pop()
        if node is None or id(node) in done:
            continue
        if ready:
            done.add(id(node))
            order.append(node)
            continue
        stack.append((node, True))
        stack += [(_producer(t), False) for t in reversed(node.input_tensors) if id(t) not in stop]
    return order


def _producer(tensor: Any) -> Any:
    """The call that made a symbolic tensor; None for one that nothing made."""
    history = getattr(tensor, "_keras_history", None)
    if history is None or history.operation is None:
        return None
    return history.operation._inbound_nodes[history.node_index]
