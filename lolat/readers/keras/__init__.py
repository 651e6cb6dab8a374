"""Keras network -> Graph: follows the symbolic tensors of a functional network.

A nested model is followed inside; a layer that has no rule (a subclassed model, a custom layer) is
called on symbolic tensors, so that what it does shows as operations with rules. Weights are not needed.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import re
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from lolat.errors import MissingPackageError, NetworkError
from lolat.graph import Graph, GraphBuilder
from lolat.readers.keras import layers as keras_layers
from lolat.readers.keras import ops as keras_ops
from lolat.readers.keras.calls import (
    functional_of,
    inference,
    ordered_nodes,
    symbolic_call,
    symbolic_operators,
    without_weights,
)
from lolat.readers.keras.composite import einsum_shape
from lolat.units import one_line, shapes_text, shortened

RESHAPES = {"Reshape", "Flatten", "Squeeze", "ExpandDims", "Ravel", "Rearrange", "DepthToSpace",
            "SpaceToDepth"}  # fmt: skip
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
    if not hasattr(keras, "StatelessScope"):
        raise MissingPackageError(
            f"Keras {keras.__version__} is too old for this, it must be 3.5 or newer; install it with: "
            "pip install --upgrade 'lolat[tensorflow]'"
        )
    return keras


def read_model(model: Any, name: str = "", input_size: Sequence[int] | None = None) -> Graph:
    """Read a Keras model (or layer) into a Graph.

    `input_size`: () or None for the model's own; (H,) for H x H (or H steps) with the model's own
    channels; otherwise the whole shape without the batch. What the model prints goes to stderr. Raises
    NetworkError when the shape is not known or the model cannot be called on a symbolic input.
    """
    reader = KerasReader(name or model.name)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        stack.enter_context(symbolic_operators())
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # Keras' remarks about calls that are ours
        inputs, outputs = symbolic_call(model, tuple(input_size or ()))
        for tensor in inputs:
            shape, dtype = reader.shape(tensor, 1), str(tensor.dtype)
            reader.known[id(tensor)] = reader.builder.input(shape, dtype)
        return reader.builder.build(reader.follow(outputs, ""))


class KerasReader:
    """Walks symbolic Keras tensors and writes operations into a GraphBuilder."""

    def __init__(self, name: str) -> None:
        self.builder = GraphBuilder(name, "keras")
        self.known: dict[int, int] = {}  # id of a symbolic tensor -> index in the graph
        self.alive: list[Any] = []  # symbolic tensors made on the way: their ids must stay unique

    def shape(self, tensor: Any, per_sample: int) -> tuple[int, ...]:
        """Shape at batch size 1: the open dimension becomes `per_sample` (1 unless reshaped)."""
        shape = tuple(tensor.shape)
        if shape.count(None) > 1:
            raise NetworkError(
                f"a tensor of {self.builder.name!r} has the shape {shapes_text([(0, *shape)])} with "
                "open sizes besides the batch; give its layer the size, or the input's with "
                "--input-size, for example --input-size 224"
            )
        return tuple(per_sample if n is None else int(n) for n in shape)

    def elements(self, index: int) -> int:
        """Elements of a tensor at batch size 1."""
        return prod(self.builder.tensors[index].shape)

    def follow(self, outputs: Sequence[Any], path: str) -> list[int]:
        """Emit all operations between the tensors known already and `outputs`, in order."""
        for node in ordered_nodes(self.known, outputs):
            sources = [self.known[id(t)] for t in node.input_tensors]
            shapes = self.output_shapes(node, sources)
            self.builder.dtype = str(node.output_tensors[0].dtype)
            written = self.emit(node.operation, sources, shapes, path, node)
            self.known.update((id(t), i) for t, i in zip(node.output_tensors, written, strict=True))
        return [self.known[id(t)] for t in outputs]

    def output_shapes(self, node: Any, sources: Sequence[int]) -> list[tuple[int, ...]]:
        """Output shapes at batch size 1, following sizes that a reshape moved into the batch."""
        shapes = []
        outputs = node.output_tensors
        reshaped = type(node.operation).__name__ in RESHAPES
        if any(tuple(t.shape).count(None) > 1 for t in outputs):
            outputs = self.specified(node, sources)
        for tensor in outputs:
            per_sample = 1
            if None in tensor.shape and sources:
                if reshaped:
                    rest = prod(int(n) for n in tensor.shape if n is not None)
                    per_sample = self.elements(sources[0]) // max(rest, 1)
                else:
                    per_sample = max(self.per_sample(t) for t in node.input_tensors)
            shapes.append(self.shape(tensor, per_sample))
            if reshaped and prod(shapes[-1]) != self.elements(sources[0]):
                raise NetworkError(
                    f"{node.operation.name!r} in {self.builder.name!r} reshapes to "
                    f"{tuple(tensor.shape)}, which fits another batch size alone; write -1 in place "
                    "of the batch size"
                )
        return shapes

    def specified(self, node: Any, sources: Sequence[int]) -> Sequence[Any]:
        """The outputs of a call that leaves sizes open, such as those that an einsum is not told."""
        import keras

        operation = node.operation
        try:
            _, args, kwargs = self.again(node, sources, False)
            outputs = keras.tree.flatten(operation.compute_output_spec(*args, **kwargs))
        except Exception:  # then the open sizes are reported
            return node.output_tensors
        if hasattr(operation, "equation"):
            known = self.builder.tensors[sources[0]].shape
            outputs = [
                keras.KerasTensor(einsum_shape(operation.equation, known, tuple(t.shape)))
                for t in outputs
            ]
        return outputs

    def again(self, node: Any, sources: Sequence[int], fixed: bool) -> tuple[list[Any], Any, Any]:
        """Fresh symbolic inputs for a call, and its arguments with them in place.

        `fixed`: at batch size 1, else with an open batch.
        """
        import keras

        swap = {}
        fresh = []
        for tensor, source in zip(node.input_tensors, sources, strict=True):
            shape = tuple(tensor.shape)
            if fixed:
                shape = self.builder.tensors[source].shape
            elif shape.count(None) > 1 and shape[0] is None:
                shape = (None, *self.builder.tensors[source].shape[1:])
            fresh.append(keras.KerasTensor(shape, dtype=tensor.dtype))
            swap[id(tensor)] = fresh[-1]
        args, kwargs = keras.tree.map_structure(
            lambda x: swap.get(id(x), x), (node.arguments.args, node.arguments.kwargs)
        )
        return fresh, args, kwargs

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
        nested = functional_of(operation)
        if nested is not None:
            return self.nested(operation, nested, node, sources, path)
        rule = keras_layers.rule_of(operation)
        if rule is not None:
            unmasked = self.unmasked(node, sources)
            return rule(self, operation, unmasked, list(shapes), path, node)
        op_rule = keras_ops.RULES.get(type(operation).__name__)
        if op_rule is not None and keras_ops.is_builtin(operation):
            return op_rule(self, operation, list(sources), list(shapes), path, node)
        return self.inside(operation, node, sources, shapes, path)

    def unmasked(self, node: Any, sources: Sequence[int]) -> list[int]:
        """The inputs of a layer's call without the masks that Keras passes along."""
        import keras

        if not any(name.endswith("mask") for name in node.arguments.kwargs):
            return list(sources)
        kwargs = {k: v for k, v in node.arguments.kwargs.items() if not k.endswith("mask")}
        given = keras.tree.flatten((node.arguments.args, kwargs))
        return [self.known[id(t)] for t in given if isinstance(t, keras.KerasTensor)]

    def inside(
        self,
        operation: Any,
        node: Any,
        sources: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        path: str,
    ) -> list[int]:
        """What an operation without a rule does, if it can be followed; else it is kept as unknown."""
        found = self.expanded(operation, node, sources, path)
        if found is not None and len(found) == len(shapes):
            return found
        return self.unknown(type(operation).__name__, operation.name, sources, shapes, path)

    def unknown(
        self,
        kind: str,
        name: str,
        sources: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        path: str,
    ) -> list[int]:
        """An operation without a rule: kept under its own name, counted as memory traffic."""
        return self.builder.add_several(kind, sources, shapes, name, path)

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
            outer = self.known  # a model used twice has the same tensors in both places
            self.known = {id(t): i for t, i in zip(functional.inputs, sources, strict=True)}
            found = self.follow(functional.outputs, inner)
            self.known = outer
            return found
        called = self.expanded(functional, node, sources, path)
        if called is None:
            raise NetworkError(
                f"the model {layer.name!r} inside {self.builder.name!r} cannot be read at "
                f"{shapes_text(t.shape for t in node.input_tensors)}; it was made for {shapes_text(own)}"
            )
        return called

    def expanded(
        self, layer: Any, node: Any, sources: Sequence[int], path: str
    ) -> list[int] | None:
        """What the layer's `call` does on symbolic tensors; None when it cannot be called so."""
        import keras

        if not hasattr(layer, "call"):
            return None
        for fixed in (
            False,
            True,
        ):  # some ask for the batch size, to repeat a token for each sample
            fresh, args, kwargs = self.again(node, sources, fixed)
            kwargs = {k: v for k, v in kwargs.items() if k != "training"} | inference(layer)
            try:
                outputs = keras.tree.flatten(layer.call(*args, **kwargs))
            except Exception:  # a framework's own functions do not take symbolic tensors
                continue
            if not outputs or not all(isinstance(t, keras.KerasTensor) for t in outputs):
                continue
            self.alive += [*fresh, *outputs]
            self.known.update((id(t), i) for t, i in zip(fresh, sources, strict=True))
            if self.reachable(outputs):
                return self.follow(outputs, f"{path}/{layer.name}" if path else layer.name)
        return None

    def reachable(self, outputs: Sequence[Any]) -> bool:
        """Whether all that the outputs are made of is known or made on the way."""
        nodes = ordered_nodes(self.known, outputs)
        made = {id(t) for node in nodes for t in node.output_tensors}
        needed = [*outputs, *(t for node in nodes for t in node.input_tensors)]
        return all(id(t) in made or id(t) in self.known for t in needed)


# ---- Where Keras networks come from: keras.applications by name, and `.keras` files in safe
# mode.


@contextlib.contextmanager
def _building(weights: bool) -> Iterator[None]:
    """Without Keras' warnings: they are about networks that are not the user's, or repeat an error."""
    with warnings.catch_warnings(), contextlib.nullcontext() if weights else without_weights():
        warnings.simplefilter("ignore")
        yield


def application(name: str, size: tuple[int, ...], weights: bool) -> Any:
    """A network of keras.applications with random weights, at its own input size or another."""
    keras = import_keras()
    names = [n for n in dir(keras.applications) if n[0].isupper()]
    by_lower = {n.lower(): n for n in names}
    found = by_lower.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), by_lower, n=3)
        hint = " or ".join(f"keras:{by_lower[n]}" for n in near)
        hint = f"did you mean {hint}?" if near else f"expected one of {', '.join(names)}"
        raise NetworkError(
            f"no network {shortened(f'keras:{name}')!r} in keras.applications; {hint}"
        )
    make = getattr(keras.applications, found)
    shape = size if len(size) == 3 else (*(size * 2 if len(size) == 1 else size), 3)
    options = {"input_shape": shape} if size else {}
    try:
        with _building(weights):
            model = make(weights=None, **options)
            if not size and None in model.inputs[0].shape[1:]:
                model = make(weights=None, input_shape=(224, 224, 3))
    except Exception as error:  # what an unfit size raises differs from network to network
        at = f" at {'x'.join(map(str, shape))}" if size else ""
        raise NetworkError(
            f"keras:{found} cannot be built{at}: {one_line(error)}; give another --input-size"
        ) from error
    return model


def saved(path: str, weights: bool) -> Any:
    """A network from a `.keras` file; a file with code in it is refused (Keras' safe mode)."""
    shown = shortened(path)
    if not os.path.isfile(path):
        raise NetworkError(f"no file {shown!r}; give the path of a .keras file")
    keras = import_keras()
    try:
        if weights:
            with _building(weights):
                return keras.saving.load_model(path, compile=False, safe_mode=True)
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
        config.pop("compile_config", None)
        with _building(weights):
            return keras.saving.deserialize_keras_object(config, safe_mode=True)
    except Exception as error:  # a damaged file can fail anywhere in Keras
        raise NetworkError(f"{shown!r} cannot be opened: {_reason(path, error)}") from error


def _reason(path: str, error: Exception) -> str:
    """Why a `.keras` file cannot be opened, and what to do about it."""
    if not _has_config(path):
        return "it is not a .keras file; expected a zip archive written by model.save"
    text = str(error).rpartition("Exception encountered: ")[2]  # Keras tells the cause last
    if "lambda" in text.lower():
        return (
            "it holds a Lambda layer, that is, code, which is refused; write it with layers or "
            "keras.ops, or give the network as package.module:callable"
        )
    if missing := re.match(r"Could not locate (\w+ '[^']*')", text):
        return (
            f"it needs the {shortened(missing[1])}, which Keras does not know; give the network as "
            "package.module:callable"
        )
    return f"{shortened(text.partition(chr(10))[0]) or one_line(error)}; write it again with model.save"


def _has_config(path: str) -> bool:
    """Whether the file is a zip archive with a network's configuration that can be read."""
    try:
        with zipfile.ZipFile(path) as archive:
            return isinstance(json.loads(archive.read("config.json")), dict)
    except Exception:
        return False
