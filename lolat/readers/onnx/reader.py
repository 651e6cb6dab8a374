"""Reads an ONNX network into a Graph, from an `.onnx` file or a ModelProto; weights are not needed.

The steps: large constants become inputs; the inputs get sizes; ONNX's shape inference and onnxscript's
constant folding find all shapes at batch size 1; `patterns` finds the operations that exporters decompose;
`operators` writes a call for each operator. Shapes are as in the file, channels first.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from lolat.errors import MissingPackageError, NetworkError
from lolat.graph import Graph
from lolat.readers.batch import for_one_batch, with_remarks
from lolat.readers.onnx.inputs import Input, inputs_of, set_sizes
from lolat.readers.onnx.patterns import node_name
from lolat.readers.remarks import fixed_words
from lolat.readers.size import AnySize, as_size
from lolat.units import one_line, shortened

MOST_FOLLOWED = 4096
"""Constants with more elements are not read: shapes are computed from a few numbers."""


def import_onnx() -> Any:
    """Import and return `onnx`; MissingPackageError without it, or without onnxscript."""
    try:
        import onnx
        import onnx.inliner
        import onnx.shape_inference
        import onnxscript.optimizer  # noqa: F401 - it takes long: here, not within a limit of time
    except ImportError as error:
        raise MissingPackageError(
            f"onnx and onnxscript are needed to read .onnx files and cannot be imported ({error})",
            "onnx",
        ) from error
    # It warns of constants that it cannot fold, which is no error here.
    logging.getLogger("onnxscript").setLevel(logging.ERROR)
    return onnx


def read_file(path: str, name: str = "", input_size: AnySize = None) -> Graph:
    """Read the ONNX file at `path` into a Graph, without its external data.

    `input_size`: see `lolat.readers.size.filled`. Raises NetworkError if the file is not an ONNX network,
    an input's axis stays open, or a shape cannot be inferred; MissingPackageError without onnx.
    """
    return _graph(_load(path), name or Path(path).stem, input_size)


def read_model(model: Any, name: str = "", input_size: AnySize = None) -> Graph:
    """Read an `onnx.ModelProto`, which stays unchanged, into a Graph; sizes and errors: see `read_file`."""
    import_onnx()
    copy = type(model)()
    copy.CopyFrom(model)
    return _graph(copy, name or model.graph.name or "onnx", input_size)


def read_inputs(path: str, input_size: AnySize = None) -> dict[str, Input]:
    """The inputs of the network in a file, by name; sizes and errors: see `read_file`."""
    model, name = _load(path), shortened(path)
    constants = _without_large_constants(model, name)
    return inputs_of(model.graph, constants, as_size(input_size), name, [])


def _graph(model: Any, name: str, input_size: AnySize) -> Graph:
    """The Graph of a ModelProto; changes the ModelProto."""
    parameters = _without_large_constants(model, name)
    remarks: list[str] = []
    inputs = inputs_of(model.graph, parameters, as_size(input_size), name, remarks)
    twin = type(model)()
    twin.CopyFrom(model)
    again = partial(_graph_of_samples, twin, name, inputs, parameters)
    fixed = [one.fixed for one in inputs.values()]
    most = max(fixed, default=0)
    try:
        graph = _graph_of_samples(model, name, inputs, parameters)
    except NetworkError as error:
        if most < 2 or not _is_read(partial(again, most)):
            raise
        raise error.reworded(
            f"{name!r} was exported at a fixed batch of {most:,}, which its operations have too; export it "
            "with a batch that is open (dynamic_axes or dynamic_shapes of torch.onnx.export)"
        ) from None
    remarks += [
        fixed_words(f"input {name!r}", f"{one.fixed} x ...")
        for name, one in inputs.items() if one.fixed > 1
    ]  # fmt: skip
    graph = replace(graph, warnings=(*remarks, *graph.warnings))
    if inputs and all(one.batch_axis is None for one in inputs.values()):
        graph = for_one_batch(graph, "its inputs have no batch axis")
    if ones := [repr(name) for name, one in inputs.items() if one.fixed == 1]:
        told = (
            f"the file has a fixed batch of 1 ({', '.join(ones)}): other batch sizes are predicted for a "
            "file exported with an open batch"
        )
        graph = replace(graph, batch_independent=(*graph.batch_independent, told))
    return with_remarks(graph, again) if inputs and not any(fixed) else graph


def _is_read(read: Callable[[], Graph]) -> bool:
    """True if `read` raises no NetworkError."""
    try:
        read()
    except NetworkError:
        return False
    return True


def _graph_of_samples(
    model: Any, name: str, inputs: Mapping[str, Input], parameters: set[str], samples: int = 1
) -> Graph:
    """The Graph of a ModelProto at batch size `samples`."""
    from lolat.readers.onnx.operators import OnnxReader

    set_sizes(model.graph, inputs, samples)
    batched = {name: one.batch_axis is not None for name, one in inputs.items()}
    grown = _grown(model.graph, inputs)
    number = _elements(model.graph, parameters)
    return OnnxReader(name, _shaped(model, name), batched, parameters, grown).read(number)


def _load(path: str) -> Any:
    """The ModelProto in a file; NetworkError if the file is missing or holds none."""
    onnx, shown = import_onnx(), shortened(path)
    try:
        if not os.path.getsize(path):
            raise ValueError("it is empty")
        return onnx.load(path, load_external_data=False)
    except Exception as error:  # an OSError, or one of the parser's own
        raise NetworkError(
            f"{shown!r} cannot be read: {one_line(error)}; expected a complete ONNX file, above 2 GiB "
            "with its weights in another file (external data): export it again"
        ) from error


# ---- The model without its large constants.


def _without_large_constants(model: Any, name: str) -> set[str]:
    """Turn large or externally stored constants into inputs; return the names of all parameters.

    The shapes of constants stay; their contents are neither copied nor read. Calls of local functions are
    inlined. NetworkError if ONNX's checker refuses the model.
    """
    onnx, graph = import_onnx(), model.graph
    import onnx_ir

    from lolat.readers.onnx.quantized import in_float

    graph.name = graph.name or "graph"
    for value in graph.output:  # some exporters leave out shapes, which shape inference finds
        tensor = value.type.tensor_type
        tensor.elem_type = tensor.elem_type or onnx.TensorProto.FLOAT
        tensor.shape.SetInParent()
    parameters = {i.name for i in graph.initializer}
    if _removed(graph.input, lambda i: i.name in parameters):  # as before version 4 of the format
        model.ir_version = max(model.ir_version, 4)
    large = [_as_input(t, t.name) for t in _removed(graph.initializer, _is_large)]
    try:
        if model.functions:
            model.CopyFrom(onnx.inliner.inline_local_functions(model))
            graph = model.graph
        constants = _removed(
            graph.node, lambda n: n.op_type == "Constant" and _is_large(n.attribute[0].t)
        )
        large += [_as_input(node.attribute[0].t, node.output[0]) for node in constants]
        graph.input.extend(large)
        parameters |= {value.name for value in large}
        in_float(model, parameters)
        try:
            onnx.checker.check_model(model)
        except onnx.checker.ValidationError:
            # Nodes may be unsorted, as from converters to half precision.
            ordered = onnx_ir.from_proto(model)
            ordered.graph.sort()
            model.CopyFrom(onnx_ir.to_proto(ordered))
            onnx.checker.check_model(model)
    except Exception as error:
        raise NetworkError(
            f"{name!r} is not an ONNX network: {one_line(error).rstrip('.')}; export it again, or update "
            "onnx"
        ) from error
    return parameters


def _elements(graph: Any, parameters: set[str]) -> int:
    """Number of elements of all parameters that nodes read; no scalars, no statistics of batch norms."""
    onnx, read, others = import_onnx(), set[str](), set[str]()
    for node in graph.node:
        read.update(node.input)
        others.update(node.input[3:5] if node.op_type == "BatchNormalization" else ())
        others.update(node.input if node.op_type == "Resize" else ())
    found = {i.name: (i.data_type, i.dims) for i in graph.initializer}
    for value in (i for i in graph.input if i.name in parameters):
        tensor = value.type.tensor_type
        found[value.name] = tensor.elem_type, [d.dim_value for d in tensor.shape.dim]
    sizes = [
        prod(dims) for name, (dtype, dims) in found.items()
        if name in read - others and onnx.helper.tensor_dtype_to_np_dtype(dtype).kind == "f"
    ]  # fmt: skip
    return sum(size for size in sizes if size > 1)


def _removed(messages: Any, which: Any) -> list[Any]:
    """Remove the messages for which `which` is True from a repeated field, and return them."""
    taken = [(at, message) for at, message in enumerate(messages) if which(message)]
    for at, _ in reversed(taken):
        del messages[at]
    return [message for _, message in taken]


def _is_large(tensor: Any) -> bool:
    return prod(tensor.dims) > MOST_FOLLOWED or bool(tensor.data_location)


def _as_input(tensor: Any, name: str) -> Any:
    """An input with the type and shape of a tensor."""
    return import_onnx().helper.make_tensor_value_info(name, tensor.data_type, tensor.dims)


def _grown(graph: Any, inputs: Mapping[str, Input]) -> set[str]:
    """Names of constants (a class token) that the network repeats for each sample, and of the results."""
    live, grown = set(inputs), set[str]()
    for node in graph.node:
        if not live.isdisjoint(node.input):
            live.update(node.output)
            if node.op_type == "Expand" and node.input[0] not in live:
                grown.update((node.input[0], node.output[0]))
    return grown


# ---- The shapes of all tensors.


def _shaped(model: Any, network: str) -> Any:
    """The onnx_ir network with constants folded and all shapes inferred, else NetworkError."""
    import onnx_ir
    from onnx_ir.passes.common import IdentityEliminationPass, RemoveUnusedNodesPass
    from onnxscript.optimizer import fold_constants

    onnx, before = import_onnx(), len(model.graph.node) + 1
    while True:
        graph = onnx_ir.from_proto(model)
        try:
            IdentityEliminationPass()(graph)
            RemoveUnusedNodesPass()(graph)
            fold_constants(graph, onnx_shape_inference=True, should_fold=_should_fold)
            IdentityEliminationPass()(graph)  # it makes some
            RemoveUnusedNodesPass()(graph)
            unknown = [node for node in graph.graph if not all(map(_is_known, node.outputs))]
            if not unknown or len(unknown) == before:
                break
            before = len(unknown)
            for node in unknown:
                source, out = node.inputs[0] if node.inputs else None, node.outputs[0]
                if node.op_type == "GroupNormalization" and source is not None:
                    out.shape, out.type = source.shape, source.type
            # Only the inference of the whole graph finds the shapes of an If's results.
            model = onnx_ir.to_proto(graph)
            model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
        except Exception as error:
            raise NetworkError(
                f"the shapes of {network!r} cannot be found: {one_line(error)}; export it again"
            ) from error
    if not unknown:
        return graph
    node = unknown[0]
    remedy = (
        "it is an operator of ONNX Runtime; give the file from before it is optimized, or quantized as QDQ"
        if node.domain.startswith("com.microsoft") else
        "export it with the shapes of its tensors (onnx.shape_inference), or the part before as a network "
        "of its own"
    )  # fmt: skip
    raise NetworkError(
        f"operation {node_name(node)!r} ({node.op_type}) of {network!r} gives a shape that cannot be "
        f"found; {remedy}"
    )


def _should_fold(node: Any) -> bool | None:
    """Decide whether to fold a constant operation: True, False, or None if onnxscript decides.

    A large result is not folded, a small ConstantOfShape is.
    """
    shape = node.outputs[0].shape if node.outputs else None
    if shape is None or not shape.is_static() or prod(shape.numpy()) > MOST_FOLLOWED:
        return False
    return True if node.op_type == "ConstantOfShape" else None


def _is_known(value: Any) -> bool:
    """True if a tensor's shape is known, or if the tensor is an omitted output, which has no name."""
    return not value.name or (value.shape is not None and value.shape.is_static())
