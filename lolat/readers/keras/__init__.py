"""Keras network -> Graph: follows the symbolic tensors of a functional network.

A nested model is followed inside; a layer that has no rule (a subclassed model, a custom layer) is
called on symbolic tensors, so that what it does shows as operations with rules. Weights are not needed.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from lolat.errors import MissingPackageError, NetworkError, arg
from lolat.graph import Graph, GraphBuilder
from lolat.readers.keras import ops
from lolat.readers.keras.calls import (
    Call,
    functional_of,
    inference,
    ordered_nodes,
    symbolic_call,
    symbolic_operators,
    without_weights,
)
from lolat.readers.keras.layers import rule_of
from lolat.readers.rules import WITH_AXIS, Reader, axis_of
from lolat.units import did_you_mean, one_line, shapes_text, shortened

SAFE = (3, 13, 2)
"""Of Keras, the first whose safe mode lets no .keras file run code (CVE-2026-1462 and others)."""
RESHAPES = {"Reshape", "Flatten", "Squeeze", "ExpandDims", "Ravel", "Rearrange", "DepthToSpace",
            "SpaceToDepth"}  # fmt: skip
"""Operations that keep the number of elements: with them part of a shape may move into the batch."""


def import_keras() -> Any:
    """Keras, imported quietly: TensorFlow greets on stderr from C++ whatever the log level."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        with contextlib.ExitStack() as stack:
            saved, muffled = os.dup(2), stack.enter_context(tempfile.TemporaryFile())
            stack.callback(os.close, saved)
            stack.callback(os.dup2, saved, 2)
            os.dup2(muffled.fileno(), 2)
            import keras
    except ImportError as error:
        raise MissingPackageError(
            f"Keras with TensorFlow is needed for this and cannot be imported ({error})",
            "tensorflow",
        ) from error
    if not hasattr(keras, "StatelessScope"):
        raise MissingPackageError(
            f"Keras {keras.__version__} is too old for this, it must be 3.5 or newer; install it with: "
            "pip install --upgrade keras"
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
            shape, dtype = reader.sized(tensor, 1), str(tensor.dtype)
            reader.known[id(tensor)] = reader.builder.input(shape, dtype)
        return reader.builder.build(reader.follow(outputs, ""))


class KerasReader(Reader):
    """Walks symbolic Keras tensors and writes operations into a GraphBuilder."""

    def __init__(self, name: str) -> None:
        self.builder = GraphBuilder(name, "keras")
        self.known: dict[int, int] = {}  # id of a symbolic tensor -> index in the graph
        self.alive: list[Any] = []  # symbolic tensors made on the way: their ids must stay unique

    # ---- What the rules use.

    def add(
        self, call: Call, kind: str, inputs: Sequence[int], shape: Sequence[int] | None = None,
        suffix: str = "", **attributes: Any,
    ) -> int:  # fmt: skip
        """An operation named after the call; its output has the call's first shape unless told."""
        name = f"{call.name}_{suffix}" if suffix else call.name
        shape = call.shapes[0] if shape is None else shape
        return self.builder.add(kind, inputs, shape, name, call.path, **attributes)

    def write(self, call: Call, kind: str, inputs: Sequence[int], **attributes: Any) -> list[int]:
        """An operation that writes all outputs of the call."""
        return self.builder.add_several(
            kind, inputs, call.shapes, call.name, call.path, **attributes
        )

    def view(self, source: int, shape: Sequence[int], name: str, path: str) -> int:
        """The same data seen as another shape; free."""
        return self.builder.add("reshape", [source], shape, name, path)

    def activations(self, call: Call) -> list[int]:
        """The symbolic tensors that a call gets."""
        return call.inputs

    def operands(self, call: Call) -> list[int]:
        """Every operand of a call in order: symbolic tensors, and constants that have a shape."""
        if not ops.is_builtin(call.layer):
            return call.inputs
        import keras

        arguments = call.node.arguments
        operands = []
        for value in keras.tree.flatten((arguments.args, arguments.kwargs)):
            if isinstance(value, keras.KerasTensor):
                operands.append(self.known[id(value)])
            elif getattr(value, "shape", None) and not isinstance(value, type):
                operands.append(self.builder.tensor(tuple(value.shape), batched=False))
        return operands

    def axes(self, call: Call, kind: str) -> dict[str, Any]:
        """The axis or axes that a layer or operation works along."""
        if kind not in WITH_AXIS or not call.inputs:
            return {}
        rank, layer = len(self.shape(call.inputs[0])), call.layer
        stacks = {"Hstack": min(rank, 2) - 1, "Vstack": 0, "Dstack": 2}
        own = [getattr(layer, name) for name in ("axis", "axes") if hasattr(layer, name)]
        told = [stacks[n] for n in (type(layer).__name__,) if n in stacks] or own
        return axis_of(told[0], rank + (kind == "stack"), kind == "reduce") if told else {}

    def is_constant(self, tensor: int) -> bool:
        """Whether a tensor does not grow with the batch."""
        return not self.builder.tensors[tensor].batched

    # ---- The walk.

    def follow(self, outputs: Sequence[Any], path: str) -> list[int]:
        """Emit all operations between the tensors known already and `outputs`, in order."""
        for node in ordered_nodes(self.known, outputs):
            sources = [self.known[id(t)] for t in node.input_tensors]
            shapes = self.output_shapes(node, sources)
            self.builder.dtype = str(node.output_tensors[0].dtype)
            if getattr(node.operation, "data_format", "") == "channels_first":
                self.builder.channels_first = True
            written = self.emit(Call(node.operation, sources, shapes, path, node))
            self.known.update((id(t), i) for t, i in zip(node.output_tensors, written, strict=True))
        return [self.known[id(t)] for t in outputs]

    def sized(self, tensor: Any, per_sample: int) -> tuple[int, ...]:
        """Shape at batch size 1: the open dimension becomes `per_sample` (1 unless reshaped)."""
        shape = tuple(tensor.shape)
        if shape.count(None) > 1:
            raise NetworkError(
                f"a tensor of {self.builder.name!r} has the shape {shapes_text([(0, *shape)])} with "
                "open sizes besides the batch; give its layer the size, or the input's with "
                f"{arg('input_size')}, for example 224"
            )
        return tuple(per_sample if n is None else int(n) for n in shape)

    def output_shapes(self, node: Any, sources: Sequence[int]) -> list[tuple[int, ...]]:
        """Output shapes at batch size 1, following sizes that a reshape moved into the batch."""
        shapes, outputs = [], node.output_tensors
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
                    opened = (t for t in node.input_tensors if None in t.shape)
                    sizes = (self.shape(self.known[id(t)])[t.shape.index(None)] for t in opened)
                    per_sample = max(sizes, default=1)
            shapes.append(self.sized(tensor, per_sample))
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
            shape = _einsum_shape(operation.equation, self.shape(sources[0]), outputs[0].shape)
            outputs = [keras.KerasTensor(shape)]
        return outputs

    def again(self, node: Any, sources: Sequence[int], fixed: bool) -> tuple[list[Any], Any, Any]:
        """Fresh symbolic inputs for a call, and its arguments with them in place.

        `fixed`: at batch size 1, else with an open batch.
        """
        import keras

        fresh = []
        for tensor, source in zip(node.input_tensors, sources, strict=True):
            shape = tuple(tensor.shape)
            if fixed:
                shape = self.shape(source)
            elif shape.count(None) > 1 and shape[0] is None:
                shape = (None, *self.shape(source)[1:])
            fresh.append(keras.KerasTensor(shape, dtype=tensor.dtype))
        swap = {id(t): new for t, new in zip(node.input_tensors, fresh, strict=True)}
        args, kwargs = keras.tree.map_structure(
            lambda x: swap.get(id(x), x), (node.arguments.args, node.arguments.kwargs)
        )
        return fresh, args, kwargs

    def emit(self, call: Call) -> list[int]:
        """Write one call of a layer or keras.ops operation; returns the indices of its outputs."""
        functional = functional_of(call.layer)
        if functional is not None:
            return self.nested(call, functional)
        rule = rule_of(call.layer)
        if rule is not None:
            return rule(self, replace(call, inputs=self.unmasked(call)))
        if ops.is_builtin(call.layer):
            rule = ops.RULES.get(type(call.layer).__name__)
        return self.inside(call) if rule is None else rule(self, call)

    def unmasked(self, call: Call) -> list[int]:
        """The inputs of a layer's call without the masks that Keras passes along."""
        import keras

        args, kwargs = call.node.arguments.args, call.node.arguments.kwargs
        if not any(name.endswith("mask") for name in kwargs):
            return call.inputs
        kwargs = {k: v for k, v in kwargs.items() if not k.endswith("mask")}
        leaves = keras.tree.flatten((args, kwargs))
        return [self.known[id(t)] for t in leaves if isinstance(t, keras.KerasTensor)]

    def inside(self, call: Call) -> list[int]:
        """What an operation without a rule does, if it can be followed; else it is kept as unknown.

        Then it has its own name, and counts as memory traffic.
        """
        written = self.expanded(call.layer, call)
        if written is not None and len(written) == len(call.shapes):
            return written
        return self.write(call, type(call.layer).__name__, call.inputs)

    def nested(self, call: Call, functional: Any) -> list[int]:
        """A model used as a layer: its own operations, under its name."""
        own = [tuple(t.shape) for t in functional.inputs]
        given = [tuple(t.shape) for t in call.node.input_tensors]
        if own == given:
            outer = self.known  # a model used twice has the same tensors in both places
            self.known = {id(t): i for t, i in zip(functional.inputs, call.inputs, strict=True)}
            written = self.follow(functional.outputs, call.inner)
            self.known = outer
            return written
        expanded = self.expanded(functional, call)
        if expanded is None:
            raise NetworkError(
                f"the model {call.name!r} inside {self.builder.name!r} cannot be read at "
                f"{shapes_text(given)}; it was made for {shapes_text(own)}"
            )
        return expanded

    def expanded(self, layer: Any, call: Call) -> list[int] | None:
        """What the layer's `call` does on symbolic tensors; None when it cannot be called so."""
        import keras

        if not hasattr(layer, "call"):
            return None
        path = f"{call.path}/{layer.name}" if call.path else layer.name
        for fixed in (False, True):  # some ask for the batch size, to repeat a token per sample
            fresh, args, kwargs = self.again(call.node, call.inputs, fixed)
            kwargs = {k: v for k, v in kwargs.items() if k != "training"} | inference(layer)
            try:
                outputs = keras.tree.flatten(layer.call(*args, **kwargs))
            except Exception:  # a framework's own functions do not take symbolic tensors
                continue
            if not outputs or not all(isinstance(t, keras.KerasTensor) for t in outputs):
                continue
            self.alive += [*fresh, *outputs]
            self.known.update((id(t), i) for t, i in zip(fresh, call.inputs, strict=True))
            if self.reachable(outputs):
                return self.follow(outputs, path)
        return None

    def reachable(self, outputs: Sequence[Any]) -> bool:
        """Whether all that the outputs are made of is known or made on the way."""
        nodes = ordered_nodes(self.known, outputs)
        made = {id(t) for node in nodes for t in node.output_tensors}
        needed = [*outputs, *(t for node in nodes for t in node.input_tensors)]
        return all(id(t) in made or id(t) in self.known for t in needed)


def _einsum_shape(equation: str, first: Sequence[int], result: Sequence[Any]) -> tuple[Any, ...]:
    """The shape of an einsum's result, what it leaves open taken from its first operand."""
    left, labels = equation.replace(" ", "").split("->")
    if "..." in equation:  # stands for the leading axes, the same on both sides
        sizes: list[Any] = list(first[: len(result)])
    else:
        known = dict(zip(left.split(",")[0], first, strict=False))
        sizes = [known.get(label) for label in labels]
    filled = [size if n is None else n for n, size in zip(result, sizes, strict=False)]
    return (None, *filled[1:])


# ---- Where Keras networks come from: keras.applications by name, and `.keras` files in safe mode.


@contextlib.contextmanager
def _building(weights: bool) -> Iterator[None]:
    """Without Keras' warnings: they are about networks that are not the user's, or repeat an error."""
    with warnings.catch_warnings(), contextlib.nullcontext() if weights else without_weights():
        warnings.simplefilter("ignore")
        yield


def application(name: str, size: tuple[int, ...], weights: bool) -> Any:
    """A network of keras.applications with random weights, at its own input size or another."""
    keras = import_keras()
    by_lower = {n.lower(): n for n in dir(keras.applications) if n[0].isupper()}
    known = by_lower.get(name.lower())
    if known is None:
        others = f"expected one of {', '.join(by_lower.values())}"
        shown = {lower: f"keras:{full}" for lower, full in by_lower.items()}
        hint = did_you_mean(name.lower(), shown, others)
        raise NetworkError(
            f"no network {shortened(f'keras:{name}')!r} in keras.applications; {hint}",
            code="unknown-network",
            network=f"keras:{name}",
        )
    make = getattr(keras.applications, known)
    shape = size if len(size) == 3 else (*(size * 2 if len(size) == 1 else size), 3)
    try:
        with _building(weights):
            model = make(weights=None, **({"input_shape": shape} if size else {}))
            if not size and None in model.inputs[0].shape[1:]:
                model = make(weights=None, input_shape=(224, 224, 3))
    except Exception as error:  # what an unfit size raises differs from network to network
        at = f" at {'x'.join(map(str, shape))}" if size else ""
        why = f"keras:{known} cannot be built{at}: {one_line(error)}"
        raise NetworkError(f"{why}; give another {arg('input_size')}", why=why) from error
    return model


def saved(path: str, weights: bool) -> Any:
    """A network from a `.keras` file; a file with code in it is refused (Keras' safe mode).

    MissingPackageError where Keras is older than SAFE.
    """
    shown = shortened(path)
    if not os.path.isfile(path):
        raise NetworkError(
            f"no file {shown!r}; give the path of a .keras file", code="unknown-network"
        )
    keras = import_keras()
    if tuple(map(int, re.findall(r"\d+", keras.__version__)[:3])) < SAFE:
        raise MissingPackageError(
            f"Keras {keras.__version__} lets a .keras file run code while it is read, it must be "
            f"{'.'.join(map(str, SAFE))} or newer; install it with: pip install --upgrade keras"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            config = json.loads(archive.read("config.json"))
        config.pop("compile_config", None)
    except Exception as error:  # no archive, no configuration, or one that is no object
        raise NetworkError(
            f"{shown!r} cannot be opened: it is not a .keras file; expected a zip archive written by "
            "model.save"
        ) from error
    try:
        with _building(weights):
            if weights:
                return keras.saving.load_model(path, compile=False, safe_mode=True)
            return keras.saving.deserialize_keras_object(config, safe_mode=True)
    except Exception as error:  # a damaged file can fail anywhere in Keras
        raise NetworkError(f"{shown!r} cannot be opened: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """Why a `.keras` file cannot be opened, and what to do about it."""
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
