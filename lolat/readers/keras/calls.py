"""The symbolic inputs and outputs of a Keras network, at its own input size or another."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from lolat.errors import NetworkError
from lolat.units import one_line, shapes_text


def symbolic_call(model: Any, size: tuple[int, ...]) -> tuple[list[Any], list[Any]]:
    """The model's symbolic inputs and outputs, with a batch dimension that is None.

    A model that was never built is built, as calling it would do. Raises NetworkError.
    """
    import keras

    functional = functional_of(model)
    if functional is None and not model.built:
        _build(model, structure(model, size))
        functional = functional_of(model)
    if functional is None:
        wanted = structure(model, size)
        shapes, target, like = _flat(wanted), model, _marked(wanted)
        dtypes = ["float32"] * len(shapes)
    else:
        own = [tuple(t.shape) for t in functional.inputs]
        shapes = sizes(own, size, model)
        if shapes == own:
            return list(functional.inputs), list(functional.outputs)
        target, like = functional, functional._inputs_struct
        dtypes = [t.dtype for t in functional.inputs]
    failed: Exception | None = None
    for batch in (None, 1):  # some ask for the batch size, to repeat a token for each sample
        inputs = [
            keras.KerasTensor((batch, *s[1:]), dtype=d) for s, d in zip(shapes, dtypes, strict=True)
        ]
        given = keras.tree.pack_sequence_as(like, inputs)
        try:
            with without_weights():
                outputs = keras.tree.flatten(target.call(given, **inference(target)))
            break
        except Exception as error:
            failed = error
    else:
        assert failed is not None
        raise _uncallable(model, shapes, failed) from failed
    if not outputs or not all(isinstance(t, keras.KerasTensor) for t in outputs):
        raise NetworkError(
            f"network {model.name!r} returns something other than tensors from a symbolic input; "
            "its call method must return what it computed from its input"
        )
    return inputs, outputs


def _build(model: Any, wanted: Any) -> None:
    """Build a model by calling it on a symbolic input."""
    import keras

    tensors = [keras.KerasTensor(s) for s in _flat(wanted)]
    try:
        model(keras.tree.pack_sequence_as(_marked(wanted), tensors))
    except Exception as error:
        raise _uncallable(model, _flat(wanted), error) from error


def _uncallable(model: Any, shapes: list[tuple[Any, ...]], error: Exception) -> NetworkError:
    return NetworkError(
        f"network {model.name!r} cannot be called on a symbolic input of shape "
        f"{shapes_text(shapes)}: {one_line(error)}; give --input-size that fits, and write its call "
        "method with layers and keras.ops (several inputs: make a keras.Model of inputs and outputs)"
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


def sizes(
    shapes: list[tuple[Any, ...]], size: tuple[int, ...], model: Any
) -> list[tuple[Any, ...]]:
    """`shapes` with the batch left open and the sizes filled in.

    With several inputs a size is for those that leave something open or have more than one axis.
    """
    flexible = [None in s[1:] or len(s) > 2 for s in shapes]
    if not any(flexible):
        flexible = [True] * len(shapes)
    return [sized(s, size if f else (), model) for s, f in zip(shapes, flexible, strict=True)]


def sized(shape: tuple[Any, ...], size: tuple[int, ...], model: Any) -> tuple[Any, ...]:
    """`shape` with the batch left open and the sizes filled in; NetworkError when some stay open."""
    rest = list(shape[1:])
    if len(size) > 1 and len(size) == len(rest):
        rest = list(size)
    elif size:
        spatial = _spatial(rest, len(size), model)
        if not spatial or len(size) not in (1, len(spatial)):
            raise NetworkError(
                f"--input-size {','.join(map(str, size))} does not fit the input "
                f"{shapes_text([shape])} of {model.name!r}; give one number, or the whole shape "
                "without the batch"
            )
        for i, axis in enumerate(spatial):
            rest[axis] = size[i] if len(size) > 1 else size[0]
    if None in rest:
        raise NetworkError(
            f"the input {shapes_text([shape])} of {model.name!r} has an open size; give it with "
            f"--input-size, for example --input-size {','.join(str(n or 224) for n in rest)}"
        )
    return (None, *rest)


def _spatial(rest: list[Any], given: int, model: Any) -> list[int]:
    """The axes (the batch left out) that a size is about: the open ones, or all but the channels."""
    import keras

    open_axes = [axis for axis, n in enumerate(rest) if n is None]
    if open_axes and given in (1, len(open_axes)):
        return open_axes
    if len(rest) < 2:
        return list(range(len(rest)))
    formats = {getattr(layer, "data_format", None) for layer in getattr(model, "layers", ())}
    formats = (formats & {"channels_first", "channels_last"}) or {keras.config.image_data_format()}
    return (
        list(range(1, len(rest))) if formats == {"channels_first"} else list(range(len(rest) - 1))
    )


def structure(model: Any, size: tuple[int, ...]) -> Any:
    """Input shapes (a tuple, or a list or dict of them) of a model without symbolic inputs.

    As it was built, or from the size given: H for H x H with three channels, or for H indices or
    features where the first layer takes no image.
    """
    known = (getattr(model, "_build_shapes_dict", None) or {}).get("input_shape")
    if known is None and getattr(model, "inputs", None):
        known = [tuple(t.shape) for t in model.inputs]
        known = known if len(known) > 1 else known[0]
    if known and all(len(s) > 1 for s in _flat(known)):
        return _packed(known, sizes(_flat(known), size, model))
    layers = getattr(model, "layers", ())
    if len(size) == 1 and layers and type(layers[0]).__name__ in ("Embedding", "Dense"):
        return (None, *size)
    if size:
        return (None, size[0], size[0], 3) if len(size) == 1 else (None, *size)
    raise NetworkError(
        f"the input shape of {model.name!r} is not known (it was not built); give it with "
        "--input-size, for example --input-size 224 or --input-size 224,224,3"
    )


def _is_shape(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(n is None or isinstance(n, int) for n in value)


def _flat(shapes: Any) -> list[tuple[Any, ...]]:
    """The shapes of a structure, in the order of keras.tree (dicts by sorted keys)."""
    if _is_shape(shapes):
        return [tuple(shapes)]
    parts = [shapes[k] for k in sorted(shapes)] if isinstance(shapes, dict) else shapes
    return [s for part in parts for s in _flat(part)]


def _packed(like: Any, flat: list[tuple[Any, ...]]) -> Any:
    """`flat` in the structure of `like`."""
    rest = iter(flat)

    def pack(part: Any) -> Any:
        if _is_shape(part):
            return next(rest)
        if isinstance(part, dict):
            return {k: pack(part[k]) for k in sorted(part)}
        return [pack(p) for p in part]

    return pack(like)


def _marked(shapes: Any) -> Any:
    """The structure with a leaf for each shape, which keras.tree would take apart."""
    if _is_shape(shapes):
        return 0
    if isinstance(shapes, dict):
        return {k: _marked(v) for k, v in shapes.items()}
    return [_marked(part) for part in shapes]


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
