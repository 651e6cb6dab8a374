"""Reads a Keras network into a Graph by calling it on symbolic tensors of batch size 1.

Keras records each call of a layer or of keras.ops as a node. A layer without a rule (a nested model, a
user's class) is replaced by the calls inside its own `call`. Weights are not needed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from math import prod
from typing import Any
from unittest import mock

from lolat.errors import NetworkError, arg
from lolat.graph import Graph
from lolat.graph.kinds import COMPUTE, TRAINED
from lolat.graph.weights import completed
from lolat.readers.batch import with_remarks
from lolat.readers.keras import remarks
from lolat.readers.keras.layers import rule_of
from lolat.readers.keras.named import without_weights
from lolat.readers.keras.trace import KerasReader, calling, functional_of, inference
from lolat.readers.ops import einsum_terms
from lolat.readers.remarks import fixed_words, quantized_error
from lolat.readers.size import AnySize, InputForm, Size, as_size, filled
from lolat.readers.user_modules import quietly


def read_model(model: Any, name: str = "", input_size: AnySize = None) -> Graph:
    """Read a Keras model (or layer) into a Graph.

    `input_size`: see `lolat.readers.size.filled`. For a model that was not built, one number H means H x H
    x 3, or H if its first layer takes no image. The model's stdout goes to stderr. Raises NetworkError if
    the input shape is unknown, or the model cannot be called on a symbolic input.
    """
    for layer in model._flatten_layers():
        if getattr(layer, "lora_enabled", False):
            raise NetworkError(
                f"{model.name!r} has adapters (enable_lora), which make each kernel anew in every call; "
                "expected the network before that"
            )
        if getattr(layer, "quantization_mode", None):
            what = f"{layer.name} of {model.name!r}"
            raise quantized_error(what, "the network from before quantize()")
    reader = KerasReader(name or model.name, model, rule_of)
    with quietly(), _known_shapes(reader):
        sizes = as_size(input_size)
        found = reader.read(*_called(model, sizes, said=reader.builder.warnings))
        needed, reached = reader.writer.reached(found)
        stopped = [
            o for o in reader.builder.operations
            if o.kind in COMPUTE and not needed.isdisjoint(o.outputs) and reached.isdisjoint(o.outputs)
        ]  # fmt: skip
        reader.builder.autocast = any(map(remarks.is_mixed, model._flatten_layers()))
        reader.builder.training_obstacles += remarks.training_obstacles(model, reader.partly)
        if stopped or any(TRAINED in o.attributes for o in reader.builder.operations):
            reader.writer.mark_stops(reader.writer.constants)
        reader.builder.training_only += remarks.in_training_only(model)
        reader.builder.warnings += remarks.inference_remarks(model)
        variables = {id(v): v for one in model._flatten_layers() for v in one._trainable_variables}
        number = sum(prod(v.shape) for v in variables.values())
        graph = completed(reader.builder, found, number, reader.variables)
        several = KerasReader(graph.name, model, rule_of)
        return with_remarks(
            graph,
            lambda samples: several.builder.build(several.read(*_called(model, sizes, samples))),
        )


# ---- The call of the whole network.


def _called(
    model: Any, size: Size, samples: int = 1, said: list[str] | None = None
) -> tuple[list[Any], list[Any], list[bool]]:
    """Call a model; return its symbolic inputs, its outputs, and True for each input with a batch axis."""
    import keras

    if functional_of(model) is None and not model.built:
        example = _example(model, size, None)
        with calling(model, example):
            model(example)
    target = functional_of(model) or model
    inputs = _example(target, size, samples, said)
    with calling(model, inputs), without_weights():
        outputs = keras.tree.flatten(target.call(inputs, **inference(target)))
    flat = keras.tree.flatten(inputs)
    return flat, outputs, _grows(keras.tree.flatten(_structure(target))) or [True] * len(flat)


def _structure(model: Any) -> Any:
    """The symbolic inputs that a model was built for; None if it was not built."""
    import keras

    if functional_of(model) is not None:
        return model.input
    built = (getattr(model, "_build_shapes_dict", None) or {}).get("input_shape")
    return keras.tree.map_shape_structure(keras.KerasTensor, built) if built else None


def _grows(tensors: list[Any]) -> list[bool]:
    """True for each input whose first axis is the batch.

    The batch axis is open if the first axis of any input is open. Otherwise the batch size is the length of
    the first input's first axis.
    """
    sizes = [tuple(tensor.shape[:1]) for tensor in tensors if tensor is not None]
    return [n == ((None,) if (None,) in sizes else sizes[0]) for n in sizes]


def _example(model: Any, size: Size, batch_size: int | None, said: list[str] | None = None) -> Any:
    """Make the symbolic inputs of a model's call: a tensor, or a list or dict of tensors."""
    import keras

    structure = _structure(model)
    tensors = keras.tree.flatten(structure)
    if structure is None or any(len(tensor.shape) < 2 for tensor in tensors):
        if shapes := size.shapes:
            return [keras.KerasTensor((batch_size, *shape)) for shape in shapes]
        if not (numbers := size.numbers):
            raise NetworkError(
                f"the input shape of {model.name!r} is not known (it was not built); give "
                f"{arg('input_size')}, for example 224 or 224,224,3, or call it once before"
            )
        first = type((getattr(model, "layers", None) or [None])[0]).__name__
        is_image = len(size.images) == 1 and first not in ("Embedding", "Dense")
        shape = (*numbers, *numbers, 3) if is_image else numbers
        return keras.KerasTensor((batch_size, *shape))
    formats = {getattr(layer, "data_format", None) for layer in getattr(model, "layers", ())}
    channels = 0 if "channels_first" in formats else -1
    forms = {
        tensor.name: InputForm(tuple(tensor.shape[1:]), channels, "int" in tensor.dtype)
        for tensor in tensors
    }
    wanted = filled(forms, size, model.name, remarks=said)
    made = [
        keras.KerasTensor((batch_size if grows else tensor.shape[0], *shape), dtype=tensor.dtype)
        for tensor, shape, grows in zip(tensors, wanted.values(), _grows(tensors), strict=True)
    ]
    fixed = (tensors[0].shape[0] or 1) if functional_of(model) is not None else 1
    if said is not None and fixed > 1:
        said.append(fixed_words("its batch", fixed))
    return keras.tree.pack_sequence_as(structure, made)


_OPERATORS = {"__add__": "add", "__sub__": "subtract", "__mul__": "multiply", "__pow__": "power",
              "__truediv__": "true_divide", "__floordiv__": "floor_divide",
              "__matmul__": "matmul"}  # fmt: skip


_TURNS = (
    "transpose", "swapaxes", "moveaxis", "reshape", "expand_dims", "cast", "convert_to_tensor", "slice",
    "take",
)  # fmt: skip


@contextlib.contextmanager
def _known_shapes(reader: KerasReader) -> Iterator[None]:
    """Patch Keras for reading: the reader recognizes variables that were transposed or converted.

    It also recognizes embedding rows that depend on no input, such as learned positions. `variable *
    symbolic tensor` works; without the patch Keras passes it to TensorFlow, which does not know symbolic
    tensors. EinsumDense computes all sizes of its output, also the sizes that `output_shape` leaves open.
    """
    import keras

    def operator(name: str, original: Any) -> Any:
        def symbolic(variable: Any, other: Any) -> Any:
            if isinstance(other, keras.KerasTensor):
                return getattr(keras.ops, name)(variable, other)
            return original(variable, other)

        return symbolic

    def noted(original: Any) -> Any:
        def turned(x: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(x, *args, **kwargs)
            _, source = reader.turned.get(id(x), (x, x))
            if isinstance(source, keras.Variable) and not isinstance(result, keras.KerasTensor):
                reader.turned[id(result)] = result, source
            return result

        return turned

    look_up = keras.layers.Embedding.call

    def looked_up(layer: Any, inputs: Any) -> Any:
        rows = look_up(layer, inputs)
        if not isinstance(rows, keras.KerasTensor):
            reader.turned[id(rows)] = rows, layer._embeddings
        return rows

    def einsum_shape(layer: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
        labels, result = einsum_terms(layer.equation)
        rest = len(shape) - len(labels[0])
        sizes = dict(zip(labels[1], layer.kernel.shape, strict=True))
        sizes |= zip(labels[0], shape[rest:], strict=True)
        return (*shape[:rest], *(sizes[label] for label in result))

    variable = keras.Variable
    methods = {m: operator(name, getattr(variable, m)) for m, name in _OPERATORS.items()}
    methods["__getitem__"] = noted(variable.__getitem__)
    with (
        mock.patch.multiple(variable, **methods),
        mock.patch.multiple(keras.ops, **{n: noted(getattr(keras.ops, n)) for n in _TURNS}),
        mock.patch.object(keras.layers.Embedding, "call", looked_up),
        mock.patch.object(keras.layers.EinsumDense, "compute_output_shape", einsum_shape),
    ):
        yield
