"""Keras network -> Graph, from a call on symbolic tensors of batch size 1.

Each call of a layer or of a keras.ops operation is a node of the history that Keras keeps. A layer without
a rule (a nested model, a class of the user's) is followed into its own `call`. Weights are not needed.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any
from unittest import mock

from lolat.errors import MissingPackageError, NetworkError, arg
from lolat.graph import Graph, GraphBuilder
from lolat.graph.analysis import unread_parameters
from lolat.graph.backward import TRAINED, changed
from lolat.graph.kinds import COMPUTE, KERNELS, NORMALIZATIONS
from lolat.io.forms import not_a_network, unknown_network
from lolat.readers.batch import ONLY, batch_remarks
from lolat.readers.keras import layers, remarks
from lolat.readers.ops import Call, Writer, einsum_terms, switched
from lolat.readers.size import Form, as_sizes, filled, numbers_of, of_images
from lolat.units import one_line, shapes_text, shortened


def import_keras() -> Any:
    """Import Keras quietly: TensorFlow prints to stderr from C++ at any log level."""
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
    return keras


def read_model(model: Any, name: str = "", input_size: Any = None) -> Graph:
    """Read a Keras model (or layer) into a Graph.

    `input_size`: as of `lolat.readers.size.filled`; a model that was never built gets H x H x 3, or H where
    its first layer takes no image. Output to stdout goes to stderr. Raises NetworkError when the shape is
    not known or the model cannot be called on a symbolic input.
    """
    reader = KerasReader(name or model.name, model)
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        stack.enter_context(_known_shapes())
        stack.enter_context(warnings.catch_warnings(action="ignore"))  # on our own calls
        sizes = as_sizes(input_size)
        found = reader.read(*_called(model, sizes, said=reader.builder.warnings))
        needed, reached = reader.writer.reached(found)
        stopped = [
            o for o in reader.builder.operations
            if o.kind in COMPUTE and not needed.isdisjoint(o.outputs) and reached.isdisjoint(o.outputs)
        ]  # fmt: skip
        reader.builder.autocast = any(map(remarks.is_mixed, model._flatten_layers()))
        reader.builder.training += remarks.otherwise(model, reader.partly)
        if stopped or any(TRAINED in o.attributes for o in reader.builder.operations):
            reader.writer.mark_stops(reader.writer.constants)
        reader.builder.training_only += remarks.in_training_only(model)
        graph = reader.builder.build(found)
        number = sum(prod(v.shape) for v in model.trainable_variables)
        reader.builder.warnings += unread_parameters(graph, number)
        reader.builder.warnings += [
            *switched(model._flatten_layers(), "call"),
            *remarks.run_as(model),
        ]
        reader.builder.warnings += _of_two(model, sizes, graph)
        return reader.builder.build(found)


def _of_two(model: Any, size: Any, graph: Graph) -> Iterator[str]:
    """Remarks on work that does not grow as the batch does; see `lolat.readers.batch`."""
    reader = KerasReader(graph.name, model)
    try:
        found = reader.read(*_called(model, size, samples=2))
    except Exception as error:  # whatever the user's code raises
        yield f"it does not take a batch of two ({shortened(one_line(error))}), {ONLY}"
        return
    yield from batch_remarks(graph, reader.builder.build(found))


# ---- The call of the whole network.


def _called(
    model: Any, size: Any, samples: int = 1, said: list[str] | None = None
) -> tuple[list[Any], list[Any]]:
    """The symbolic inputs and outputs of a call with `samples`; a model that is not built is built."""
    import keras

    functional = _functional(model)
    if functional is None and not model.built:
        example = _example(model, size, None)
        with _calling(model, example):
            model(example)
        functional = _functional(model)
    target = model if functional is None else functional
    inputs = _example(target, size, samples, said)
    with _calling(model, inputs), without_weights():
        outputs = keras.tree.flatten(target.call(inputs, **_inference(target)))
    return keras.tree.flatten(inputs), outputs


def _functional(model: Any) -> Any:
    """The functional network behind a model: itself, or the one that a Sequential has; or None.

    A class with a call method of its own may do something else than its inputs and outputs say: None.
    """
    if not getattr(getattr(type(model), "call", None), "__module__", "").startswith("keras."):
        return None
    if any(c.__name__ == "Sequential" for c in type(model).__mro__):
        model = getattr(model, "_functional", None)
    return model if hasattr(model, "_nodes_by_depth") and hasattr(model, "inputs") else None


def _example(model: Any, size: Any, batch_size: int | None, said: list[str] | None = None) -> Any:
    """Symbolic inputs of a model, as its call takes them: a tensor, or a list or dict of tensors."""
    import keras

    structure = model.input if _functional(model) is not None else None
    built = (getattr(model, "_build_shapes_dict", None) or {}).get("input_shape")
    if structure is None and built:
        structure = keras.tree.map_shape_structure(keras.KerasTensor, built)
    tensors = keras.tree.flatten(structure)
    if structure is None or any(len(tensor.shape) < 2 for tensor in tensors):
        if not numbers_of(size):
            raise NetworkError(
                f"the input shape of {model.name!r} is not known (it was not built); give "
                f"{arg('input_size')}, for example 224 or 224,224,3"
            )
        first = type((getattr(model, "layers", None) or [None])[0]).__name__
        is_image = len(of_images(size)) == 1 and first not in ("Embedding", "Dense")
        size = numbers_of(size)
        return keras.KerasTensor((batch_size, *((*size, *size, 3) if is_image else size)))
    formats = {getattr(layer, "data_format", None) for layer in getattr(model, "layers", ())}
    channels = 0 if "channels_first" in formats else -1
    forms = {
        tensor.name: Form(tuple(tensor.shape[1:]), channels, "int" in tensor.dtype)
        for tensor in tensors
    }
    wanted = filled(forms, size, model.name, remarks=said)
    made = [
        keras.KerasTensor((batch_size, *shape), dtype=tensor.dtype)
        for tensor, shape in zip(tensors, wanted.values(), strict=True)
    ]
    return keras.tree.pack_sequence_as(structure, made)


@contextlib.contextmanager
def _calling(model: Any, inputs: Any) -> Iterator[None]:
    """Raise a NetworkError for any error of a model that is called."""
    import keras

    try:
        yield
    except Exception as error:
        shapes = [tuple(tensor.shape) for tensor in keras.tree.flatten(inputs)]
        raise NetworkError(
            f"network {model.name!r} cannot be called on a symbolic input of shape {shapes_text(shapes)}: "
            f"{one_line(error)}; give {arg('input_size')} that fits, and write its call method with "
            "layers and keras.ops (several inputs: make a keras.Model of inputs and outputs)"
        ) from error


def _inference(layer: Any) -> dict[str, Any]:
    """The keyword argument that asks for inference, if the layer's call has it."""
    return {"training": False} if "training" in inspect.signature(layer.call).parameters else {}


@contextlib.contextmanager
def without_weights() -> Iterator[None]:
    """Variables made meanwhile get a shape but no memory.

    Keras would fill them with random numbers when it next leaves a scope of its own, so they are taken
    off its list.
    """
    import keras
    from keras.src.backend.common import global_state

    listed = "uninitialized_variables"
    before = list(global_state.get_global_attribute(listed) or ())
    try:
        with keras.StatelessScope(initialize_variables=False):
            yield
    finally:
        global_state.set_global_attribute(listed, before)


_OPERATORS = {"__add__": "add", "__sub__": "subtract", "__mul__": "multiply", "__pow__": "power",
              "__truediv__": "true_divide", "__floordiv__": "floor_divide",
              "__matmul__": "matmul"}  # fmt: skip


@contextlib.contextmanager
def _known_shapes() -> Iterator[None]:
    """Let `variable * symbolic tensor` work, and EinsumDense know all sizes of its output.

    Keras hands the variable to TensorFlow, which knows no symbolic tensors, and leaves sizes open that
    `output_shape` leaves open.
    """
    import keras

    def operator(name: str, original: Any) -> Any:
        def symbolic(variable: Any, other: Any) -> Any:
            if isinstance(other, keras.KerasTensor):
                return getattr(keras.ops, name)(variable, other)
            return original(variable, other)

        return symbolic

    def einsum_shape(layer: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
        labels, result = einsum_terms(layer.equation)
        rest = len(shape) - len(labels[0])
        sizes = dict(zip(labels[1], layer.kernel.shape, strict=True))
        sizes |= zip(labels[0], shape[rest:], strict=True)
        return (*shape[:rest], *(sizes[label] for label in result))

    patches: list[tuple[Any, str, Any]] = [
        (keras.Variable, method, operator(name, getattr(keras.Variable, method)))
        for method, name in _OPERATORS.items()
    ]
    patches.append((keras.layers.EinsumDense, "compute_output_shape", einsum_shape))
    with contextlib.ExitStack() as stack:
        for cls, name, function in patches:
            stack.enter_context(mock.patch.object(cls, name, function))
        yield


# ---- The walk through the calls.


@dataclass(frozen=True)
class LayerCall:
    """One call of a layer or operation: its inputs in the graph, the shapes of its outputs."""

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
    """Walks symbolic Keras tensors and writes the calls that made them into a GraphBuilder."""

    def __init__(self, name: str, model: Any) -> None:
        self.owner = model  # the layer whose `call` is followed
        self.partly: list[str] = []  # layers of several operations of which some are trained
        self.builder = GraphBuilder(name, "keras")
        self.writer = Writer(self.builder)
        self.known: dict[int, int] = {}  # id of a symbolic tensor -> tensor of the graph
        self.alive: list[Any] = []  # symbolic tensors made on the way: their ids must stay unique

    def read(self, inputs: Sequence[Any], outputs: Sequence[Any]) -> list[int]:
        """Write all calls from the inputs to the outputs of the network; return the latter's tensors."""
        for tensor in inputs:
            self.known[id(tensor)] = self.builder.input(tuple(tensor.shape), str(tensor.dtype))
        return self.follow(outputs, "")

    def follow(self, outputs: Sequence[Any], path: str) -> list[int]:
        """Write all calls between the tensors known already and `outputs`, in order."""
        for node in _ordered_nodes(self.known, outputs):
            sources = [self.known[id(t)] for t in node.input_tensors]
            shapes = [tuple(t.shape) for t in node.output_tensors]
            if getattr(node.operation, "data_format", "") == "channels_first":
                self.builder.channels_first = True
            start, own = len(self.builder.operations), _functional(node.operation) is None
            written = self.emit(LayerCall(node.operation, sources, shapes, path, node))
            if own and layers.rule_of(node.operation) is not None:
                self.writer.tie(start, id(node.operation), remarks.bits_of(node.operation))
                self.mark(node, start)
                for part in getattr(node.operation, "_flatten_layers", tuple)():
                    if getattr(part, "lora_enabled", False):
                        self.add_adapter(part, path)
            if type(node.operation).__name__ == "StopGradient":
                self.writer.held.update(written)
            self.known.update((id(t), i) for t, i in zip(node.output_tensors, written, strict=True))
        return [self.known[id(t)] for t in outputs]

    def emit(self, call: LayerCall) -> list[int]:
        """Write one call of a layer or keras.ops operation; the tensors that it yields."""
        rule = layers.rule_of(call.layer) if _functional(call.layer) is None else None
        if rule is None:
            return self.follow_layer(call)
        return rule(self, replace(call, inputs=self.unmasked(call)))

    def write(
        self, call: LayerCall, op: str, inputs: Sequence[int],
        shapes: Sequence[tuple[int, ...]] | None = None, suffix: str = "", **parameters: Any,
    ) -> list[int]:  # fmt: skip
        """Write one operation of a call, named after its layer; its shapes are the call's unless given."""
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
        """Mark the operations of a call, from position `start` on, if not all of their parameters train."""
        every, (trained, total) = (
            self.builder.operations,
            remarks.trained_parameters(node.operation),
        )
        own = [i for i in range(start, len(every)) if every[i].kind in COMPUTE | NORMALIZATIONS]
        kernels = any(every[i].kind in KERNELS for i in own) and remarks.fixed_kernels(
            node, self.owner
        )
        if not own or not (kernels or trained < total):
            return
        if trained and len(own) > 1:
            self.partly.append(node.operation.name)
        for i in own:
            every[i] = changed(every[i], **{TRAINED: trained})

    def add_adapter(self, layer: Any, path: str) -> None:
        """Write the sum of a kernel and the product of two thin ones, made in each call (enable_lora)."""
        thin = "kernel" if hasattr(layer, "lora_kernel_a") else "embeddings"
        shapes = [tuple(getattr(layer, f"lora_{thin}_{end}").shape) for end in "ab"]
        made, whole = [*map(self.writer.constant, shapes)], (*shapes[0][:-1], shapes[1][-1])
        for op, more in (("matmul", []), ("scale", []), ("add", [self.writer.constant(whole)])):
            made = self.writer.write(Call(op, [*more, *made], [whole], f"{layer.name}_lora", path))

    def view(
        self, call: LayerCall, source: int, shape: tuple[int, ...], name: str, path: str
    ) -> int:
        """A view of another shape."""
        return self.step(call, "reshape", [source], [shape], name, path)[0]

    def shape(self, tensor: int) -> tuple[int, ...]:
        """The shape of a tensor at batch size 1."""
        return self.writer.shape(tensor)

    def operands(self, call: LayerCall) -> list[int]:
        """The operands of a call in order: symbolic tensors, and constants that have a shape."""
        import keras

        arguments = call.node.arguments
        operands = []
        for value in keras.tree.flatten((arguments.args, arguments.kwargs)):
            if isinstance(value, keras.KerasTensor) or (
                getattr(value, "shape", None) and not isinstance(value, type)
            ):
                operands.append(self.operand(value))
        return operands

    def operand(self, value: Any) -> int:
        """A symbolic tensor, or a constant such as a variable of the layer."""
        if id(value) in self.known:
            return self.known[id(value)]
        return self.writer.constant(tuple(value.shape))

    def unmasked(self, call: LayerCall) -> list[int]:
        """The inputs of a layer's call without the masks that Keras passes along."""
        import keras

        args, kwargs = call.node.arguments.args, call.node.arguments.kwargs
        kwargs = {k: v for k, v in kwargs.items() if not k.endswith("mask")}
        leaves = keras.tree.flatten((args, kwargs))
        return [self.known[id(t)] for t in leaves if isinstance(t, keras.KerasTensor)]

    def follow_layer(self, call: LayerCall) -> list[int]:
        """Write the operations of the layer's own `call`; an unknown operation if it cannot be followed."""
        import keras

        layer, arguments = call.layer, call.node.arguments
        sources = {id(t): self.known[id(t)] for t in call.node.input_tensors}  # masks too
        fresh = {
            id(t): keras.KerasTensor(self.shape(sources[id(t)]), dtype=t.dtype)
            for t in call.node.input_tensors
        }
        args, kwargs = keras.tree.map_structure(
            lambda value: fresh.get(id(value), value), (arguments.args, arguments.kwargs)
        )
        kwargs = {k: v for k, v in kwargs.items() if k != "training"} | _inference(layer)
        outputs: list[Any] = []
        try:
            with _calling(layer, list(fresh.values())):
                outputs = keras.tree.flatten(layer.call(*args, **kwargs))
        except NetworkError:  # a framework's own functions do not take symbolic tensors
            if _functional(layer) is not None or any(len(w.shape) > 1 for w in layer.weights):
                raise  # products cannot be counted
        self.alive += [*fresh.values(), *outputs]
        self.known.update((id(fresh[t]), source) for t, source in sources.items())
        if len(outputs) == len(call.shapes) and self.reachable(outputs):
            with mock.patch.object(self, "owner", layer):
                return self.follow(outputs, call.inner)
        return self.writer.unknown(
            Call(type(layer).__name__, call.inputs, call.shapes, layer.name, call.path)
        )

    def reachable(self, outputs: Sequence[Any]) -> bool:
        """True if outputs are symbolic and made of known tensors alone."""
        if not all(hasattr(t, "_keras_history") or id(t) in self.known for t in outputs):
            return False
        nodes = _ordered_nodes(self.known, outputs)
        made = {id(t) for node in nodes for t in node.output_tensors}
        needed = [*outputs, *(t for node in nodes for t in node.input_tensors)]
        return all(id(t) in made or id(t) in self.known for t in needed)


def _ordered_nodes(known: Mapping[int, int], outputs: Sequence[Any]) -> list[Any]:
    """The calls that lead to `outputs` from tensors with `known` ids.

    Each comes after the ones it needs, branch by branch.
    """
    done: set[int] = set()
    order: list[Any] = []
    stack = [(_producer(t), False) for t in reversed(list(outputs)) if id(t) not in known]
    while stack:
        node, ready = stack.pop()
        if node is None or id(node) in done:
            continue
        if ready:
            done.add(id(node))
            order.append(node)
            continue
        stack.append((node, True))
        stack += [(_producer(t), False) for t in reversed(node.input_tensors) if id(t) not in known]
    return order


def _producer(tensor: Any) -> Any:
    """The call that made a symbolic tensor; None for one that nothing made."""
    history = getattr(tensor, "_keras_history", None)
    if history is None or history.operation is None:
        return None
    return history.operation._inbound_nodes[history.node_index]


# ---- Where Keras networks come from: keras.applications by name, and `.keras` files in safe mode.


@contextlib.contextmanager
def _building(weights: bool) -> Iterator[None]:
    """Silence Keras' warnings: they repeat errors, or tell about networks that somebody else wrote."""
    variables = contextlib.nullcontext() if weights else without_weights()
    with warnings.catch_warnings(action="ignore"), variables:
        yield


def application(name: str, size: Any, weights: bool) -> Any:
    """A network of keras.applications with random weights, at its own input size or another."""
    keras = import_keras()
    by_lower = {n.lower(): n for n in dir(keras.applications) if n[0].isupper()}
    known = by_lower.get(name.lower())
    if known is None:
        raise unknown_network(f"keras:{name}", by_lower.values(), "keras.io/api/applications")
    make, size = getattr(keras.applications, known), of_images(size)
    shape = size if len(size) == 3 else (*(size * 2 if len(size) == 1 else size), 3)
    try:
        with _building(weights):
            model = make(weights=None, **({"input_shape": shape} if size else {}))
            if not size and None in model.inputs[0].shape[1:]:
                model = make(weights=None, input_shape=(224, 224, 3))
    except Exception as error:  # what an unfit size raises differs from network to network
        raise NetworkError(
            f"keras:{known} cannot be built at this {arg('input_size')}: {one_line(error)}"
        ) from error
    return model


def saved(path: str, weights: bool) -> Any:
    """A network from a `.keras` file; a file with code in it is refused (Keras' safe mode)."""
    shown = shortened(path)
    if not os.path.isfile(path):
        raise not_a_network(path)
    keras = import_keras()
    try:
        with _building(weights):
            if weights:
                return keras.saving.load_model(path, compile=False, safe_mode=True)
            with zipfile.ZipFile(path) as archive:
                config = json.loads(archive.read("config.json"))
            config.pop("compile_config", None)
            return keras.saving.deserialize_keras_object(config, safe_mode=True)
    except Exception as error:  # a damaged file can fail anywhere in Keras
        raise NetworkError(
            f"{shown!r} cannot be opened: {one_line(error)}; expected a file that model.save wrote; a "
            "network with code of its own (a Lambda layer) as package.module:callable"
        ) from error
