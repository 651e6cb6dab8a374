"""The symbolic inputs and outputs of a Keras network, at its own input size or another; its calls."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lolat.errors import NetworkError, arg, worded
from lolat.units import one_line, shapes_text

Shape = tuple[Any, ...]


@dataclass(frozen=True)
class Call:
    """One call of a layer or operation: its inputs in the graph, its outputs' shapes at batch size 1."""

    layer: Any
    inputs: list[int]
    shapes: list[tuple[int, ...]]
    path: str
    node: Any

    @property
    def name(self) -> str:
        """What the layer is called."""
        return str(self.layer.name)

    @property
    def inner(self) -> str:
        """The path of what is inside the layer."""
        return f"{self.path}/{self.name}" if self.path else self.name


def symbolic_call(model: Any, size: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """The model's symbolic inputs and outputs, with a batch dimension that is None.

    A model that was never built is built, as calling it would do. Raises NetworkError.
    """
    import keras

    functional = functional_of(model)
    if functional is None and not model.built:
        wanted = _inputs(model, size)
        try:
            model(wanted)
        except Exception as error:
            raise _uncallable(model, _shapes(wanted), error) from error
        functional = functional_of(model)
    target, like = functional, getattr(functional, "_inputs_struct", None)
    if functional is None:
        target, like = model, _inputs(model, size)
    shapes = _shapes(like)
    if functional is not None:
        shapes = sizes(shapes, size, model)
        if shapes == _shapes(like):
            return list(functional.inputs), list(functional.outputs)
    dtypes = [t.dtype for t in keras.tree.flatten(like)]
    failed = Exception()
    for batch in (None, 1):  # some ask for the batch size, to repeat a token for each sample
        inputs = [
            keras.KerasTensor((batch, *s[1:]), dtype=d) for s, d in zip(shapes, dtypes, strict=True)
        ]
        try:
            with without_weights():
                given = keras.tree.pack_sequence_as(like, inputs)
                outputs = keras.tree.flatten(target.call(given, **inference(target)))
            break
        except Exception as error:
            failed = error
    else:
        raise _uncallable(model, shapes, failed) from failed
    if not outputs or not all(isinstance(t, keras.KerasTensor) for t in outputs):
        raise NetworkError(
            f"network {model.name!r} returns something other than tensors from a symbolic input; "
            "its call method must return what it computed from its input"
        )
    return inputs, outputs


def _shapes(tensors: Any) -> list[Shape]:
    import keras

    return [tuple(t.shape) for t in keras.tree.flatten(tensors)]


def _uncallable(model: Any, shapes: list[Shape], error: Exception) -> NetworkError:
    why = (
        f"network {model.name!r} cannot be called on a symbolic input of shape "
        f"{shapes_text(shapes)}: {one_line(error)}"
    )
    return NetworkError(
        f"{why}; give {arg('input_size')} that fits, and write its call method with layers and "
        "keras.ops (several inputs: make a keras.Model of inputs and outputs)",
        why=why,
    )


def functional_of(model: Any) -> Any:
    """The functional network behind a model: itself, or the one that a Sequential keeps; or None.

    A functional model of a class with a call method of its own is not what its inputs and outputs say.
    """
    call = getattr(type(model), "call", None)
    if not getattr(call, "__module__", "").startswith("keras."):
        return None
    if any(c.__name__ == "Sequential" for c in type(model).__mro__):
        model = getattr(model, "_functional", None)
    return model if hasattr(model, "_nodes_by_depth") and hasattr(model, "inputs") else None


def sizes(shapes: list[Shape], size: tuple[int, ...], model: Any) -> list[Shape]:
    """`shapes` with the batch left open and the sizes filled in.

    With several inputs a size is for those that leave something open or have more than one axis.
    """
    if any(not isinstance(n, int) for n in size):
        raise NetworkError(f"{model.name!r}: give one size, or none", code="input-size")
    flexible = [None in s[1:] or len(s) > 2 for s in shapes]
    if not any(flexible):
        flexible = [True] * len(shapes)
    return [_sized(s, size if f else (), model) for s, f in zip(shapes, flexible, strict=True)]


def _sized(shape: Shape, size: tuple[int, ...], model: Any) -> Shape:
    rest = list(shape[1:])
    if len(size) > 1 and len(size) == len(rest):
        rest = list(size)
    elif size:
        spatial = _spatial(rest, len(size), model)
        if not spatial or len(size) not in (1, len(spatial)):
            why = (
                f"{arg('input_size')} {','.join(map(str, size))} does not fit the input "
                f"{shapes_text([shape])} of {model.name!r}"
            )
            raise NetworkError(
                f"{why}; give one number, or the whole shape without the batch", why=worded(why)
            )
        for i, axis in enumerate(spatial):
            rest[axis] = size[i] if len(size) > 1 else size[0]
    if None in rest:
        raise NetworkError(
            f"the input {shapes_text([shape])} of {model.name!r} has an open size; give it with "
            f"{arg('input_size')}, for example {','.join(str(n or 224) for n in rest)}"
        )
    return (None, *rest)


def _spatial(rest: list[Any], count: int, model: Any) -> list[int]:
    """Axes that `count` sizes are about, the batch left out: the open ones, or all but the channels."""
    import keras

    open_axes = [axis for axis, n in enumerate(rest) if n is None]
    if open_axes and count in (1, len(open_axes)):
        return open_axes
    if len(rest) < 2:
        return list(range(len(rest)))
    formats = {getattr(layer, "data_format", None) for layer in getattr(model, "layers", ())}
    formats = (formats & {"channels_first", "channels_last"}) or {keras.config.image_data_format()}
    first = formats == {"channels_first"}
    return list(range(1, len(rest)) if first else range(len(rest) - 1))


def _inputs(model: Any, size: tuple[int, ...]) -> Any:
    """Symbolic inputs (a tensor, or a list or dict of them) of a model that has none itself.

    As it was built, or from the size given: H for H x H with three channels, or for H indices or
    features where the first layer takes no image.
    """
    import keras

    known = (getattr(model, "_build_shapes_dict", None) or {}).get("input_shape")
    if known is None and getattr(model, "inputs", None):
        known = _shapes(model.inputs)
        known = known if len(known) > 1 else known[0]
    if known:
        tensors = keras.tree.map_shape_structure(keras.KerasTensor, known)
        if all(len(s) > 1 for s in _shapes(tensors)):
            filled = sizes(_shapes(tensors), size, model)
            return keras.tree.pack_sequence_as(tensors, [keras.KerasTensor(s) for s in filled])
    layers = getattr(model, "layers", ())
    flat = layers and type(layers[0]).__name__ in ("Embedding", "Dense")
    if not size:
        raise NetworkError(
            f"the input shape of {model.name!r} is not known (it was not built); give "
            f"{arg('input_size')}, for example 224 or 224,224,3"
        )
    return keras.KerasTensor((None, *(size if flat or len(size) > 1 else (size[0], size[0], 3))))


@contextlib.contextmanager
def without_weights() -> Iterator[None]:
    """Variables made inside get a shape but no memory, so that building takes no time.

    Keras lists them, and would fill them all with random numbers when it next leaves a scope of its
    own, however long ago their network was dropped. Hence they are taken off that list.
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
def symbolic_operators() -> Iterator[None]:
    """While it lasts, `variable * symbolic tensor` is what `symbolic tensor * variable` is.

    Keras hands the left one to TensorFlow, which knows no symbolic tensors: a call method with
    `self.scale * x` could not be followed.
    """
    import keras

    def operator(name: str, original: Any) -> Any:
        def symbolic(variable: Any, other: Any) -> Any:
            if isinstance(other, keras.KerasTensor):
                return getattr(keras.ops, _OPERATORS[name])(variable, other)
            return original(variable, other)

        return symbolic

    own = {name: vars(keras.Variable).get(name) for name in _OPERATORS}
    for name in _OPERATORS:
        setattr(keras.Variable, name, operator(name, getattr(keras.Variable, name)))
    try:
        yield
    finally:
        for name, method in own.items():
            if method is None:
                delattr(keras.Variable, name)
            else:
                setattr(keras.Variable, name, method)


def inference(layer: Any) -> dict[str, Any]:
    """The keyword argument that asks for inference, if the layer's call has it."""
    return {"training": False} if getattr(layer, "_call_has_training_arg", False) else {}


def ordered_nodes(known: Collection[int], outputs: Sequence[Any]) -> list[Any]:
    """The calls that lead from the tensors whose ids are `known` to `outputs`.

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
