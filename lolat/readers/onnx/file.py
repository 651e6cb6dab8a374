"""An `.onnx` file as a model without its weights, whatever its size.

The file is mapped, not read: a walk over its protobuf messages copies everything but the contents of large
tensors, whose sizes and types stay. So the memory needed is that of the graph, and the 2 GiB limit of
protobuf concerns the graph alone. The field numbers are those of onnx/onnx.proto.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lolat.errors import MissingPackageError, NetworkError
from lolat.units import one_line, shortened

LARGEST = 4096
"""Elements of a constant that is still followed."""

KEPT_BYTES = 16384
"""Contents of tensors up to this many bytes are kept: the constants that shapes are computed from."""

# What is inside a message: field number -> the message in it; `None`: left out (comments, stack traces).
_TENSOR: dict[int, Any] = {}
_SPARSE = {1: _TENSOR, 2: _TENSOR}
_GRAPH: dict[int, Any] = {}
_ATTRIBUTE = {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 13: None, 22: _SPARSE, 23: _SPARSE}
_NODE = {5: _ATTRIBUTE, 6: None}
_GRAPH |= {1: _NODE, 5: _TENSOR, 10: None, 15: _SPARSE}
_FUNCTION = {7: _NODE, 8: None, 11: _ATTRIBUTE}
_MODEL = {6: None, 7: _GRAPH, 14: None, 20: None, 25: _FUNCTION}
_CONTENTS = {4, 5, 6, 7, 9, 10, 11}  # of a tensor: float_data ... raw_data ... uint64_data


Type = tuple[int, tuple[int, ...]]
"""Of a tensor: TensorProto's number of the element type, shape."""


class _DamagedError(Exception):
    """The bytes are no protobuf message."""


def import_onnx() -> Any:
    """The `onnx` package; MissingPackageError where there is none."""
    try:
        import onnx
        import onnx.shape_inference
    except ImportError as error:
        raise MissingPackageError(
            f"the package onnx is needed to read .onnx files and cannot be imported ({error})",
            "onnx",
        ) from error
    if not hasattr(onnx.NodeProto(), "metadata_props"):
        raise MissingPackageError(
            f"onnx {onnx.__version__} is too old for this, it must be 1.16 or newer; install it with: "
            "pip install --upgrade onnx"
        )
    return onnx


def load(path: str) -> Any:
    """The ModelProto of the file at `path`, without the contents of its large tensors.

    Local functions are put in place of their calls. Raises NetworkError when the file cannot be read, is
    no ONNX model, ends early or has no graph.
    """
    onnx = import_onnx()
    shown = shortened(path)
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                raise NetworkError(f"{shown!r} is an empty file; expected an ONNX model")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                _refuse(data[:512], shown)
                stripped = _without_contents(data, size, shown)
    except OSError as error:
        raise NetworkError(
            f"{shown!r} cannot be read: {error.strerror or error}; expected an .onnx file"
        ) from error
    return _checked(onnx, stripped, shown)


def without_weights(model: Any) -> Any:
    """The same of a ModelProto in memory, which is not changed; NetworkError as of `load`."""
    onnx = import_onnx()
    shown = shortened(model.graph.name or "the ModelProto")
    try:
        data = model.SerializeToString()
    except Exception as error:  # protobuf's limit of 2 GiB, and its own errors
        raise NetworkError(
            f"{shown!r} cannot be looked into: {one_line(error)}; save it with external data (onnx.save), "
            "and give the file"
        ) from error
    return _checked(onnx, _without_contents(data, len(data), shown), shown)


def _without_contents(data: Any, size: int, shown: str) -> bytes:
    """A ModelProto's bytes without the contents of its large tensors; NetworkError where it is none."""
    try:
        return b"".join(_stripped(data, 0, size, _MODEL))
    except (_DamagedError, RecursionError):
        raise NetworkError(
            f"{shown!r} is not an ONNX model, or only a part of one ({size:,} bytes); export it or copy it "
            "again"
        ) from None


def _checked(onnx: Any, stripped: bytes, shown: str) -> Any:
    """The ModelProto of bytes without weights, its functions in place of their calls."""
    try:
        model = onnx.ModelProto.FromString(stripped)
    except Exception as error:  # protobuf's DecodeError, which is in another package
        raise NetworkError(
            f"{shown!r} is not an ONNX model: {one_line(error)}; export it or copy it again"
        ) from error
    graph, sets = model.graph, model.opset_import
    parts = {"operator sets": sets, "operations": graph.node, "outputs": graph.output}
    if lacks := [f"no {name}" for name, part in parts.items() if not part]:
        raise NetworkError(f"{shown!r} is not an ONNX network: it has {lacks[0]}; export it again")
    if not all(isinstance(text, str) for text in _texts(graph)):
        raise NetworkError(f"{shown!r} is damaged: it has names that are no text; copy it again")
    return _inlined(model, shown)


def _texts(graph: Any) -> Iterator[Any]:
    """Names in a graph; protobuf gives bytes for what is no UTF-8."""
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (text for entry in node.metadata_props for text in (entry.key, entry.value))
        yield from (a.name for a in node.attribute)
    yield from (v.name for v in (*graph.input, *graph.output, *graph.initializer))


def _inlined(model: Any, shown: str) -> Any:
    """The model with its local functions written out."""
    if not model.functions:
        return model
    try:
        from onnx import inliner

        return inliner.inline_local_functions(model)
    except Exception as error:
        raise NetworkError(
            f"the functions in {shown!r} cannot be put in place of their calls: {one_line(error)}; "
            "export it without local functions"
        ) from error


_OTHERS = (
    (b"PK\x03\x04", "a zip archive, as torch.save and Keras write them", "use torch.onnx.export"),
    (b"\x80", "a Python pickle, as torch.save once wrote them", "use torch.onnx.export"),
    (b"\x89HDF", "an HDF5 file, as Keras once wrote them", "convert the network with tf2onnx"),
    (b"version https://git-lfs", "a pointer of Git LFS", "get the file itself with: git lfs pull"),
)


def _refuse(start: bytes, shown: str) -> None:
    """NetworkError for a file that begins like something else."""
    for magic, what, remedy in _OTHERS:
        if start.startswith(magic) and start[:1] != b"\x08":
            raise NetworkError(f"{shown!r} is {what}, not an ONNX model; {remedy}")
    if start[4:8] == b"ORTM":
        raise NetworkError(
            f"{shown!r} is in ONNX Runtime's own format; give the .onnx file that it was made from"
        )
    if start[:1] not in b"\x08\x0a\x12" and all(c >= 32 or c in b"\t\r\n" for c in start):
        raise NetworkError(f"{shown!r} is a text file, not an ONNX model; export it again")


def _fields(data: Any, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Of the fields of the message in data[at:end]: number, wire type, where each begins, has its contents
    and ends. _DamagedError where it is none."""
    while at < end:
        begin = at
        key, at = _varint(data, at, end)
        wire, content = key & 7, at
        if wire == 0:
            _, at = _varint(data, at, end)
        elif wire == 2:
            length, content = _varint(data, at, end)
            at = content + length
        else:
            at += 8 if wire == 1 else 4
        if not key >> 3 or wire not in (0, 1, 2, 5) or at > end:
            raise _DamagedError
        yield key >> 3, wire, begin, content, at


def _stripped(data: Any, at: int, end: int, inside: dict[int, Any]) -> Iterator[bytes]:
    """The message in data[at:end] without what is left out, in pieces."""
    packed = 0
    for number, wire, begin, content, after in _fields(data, at, end):
        if wire == 2 and number in inside:
            below = inside[number]
            if below is not None:
                pieces = b"".join(_stripped(data, content, after, below))
                yield _as_varint(number << 3 | wire) + _as_varint(len(pieces)) + pieces
            continue
        if inside is _TENSOR and number in _CONTENTS:
            packed += after - begin  # numbers one by one too, as older writers did
            if after - content > KEPT_BYTES or packed > 2 * KEPT_BYTES:
                continue
        yield data[begin:after]


def _varint(data: Any, at: int, end: int) -> tuple[int, int]:
    """A number of protobuf's variable length, and where it ends."""
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise _DamagedError


def _as_varint(value: int) -> bytes:
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    return bytes([*written, value])


def constant(onnx: Any, tensor: Any, folder: str) -> Any:
    """The contents of a TensorProto as an array; None where they were left out.

    Small tensors in files of their own (external data) are read; FileNotFoundError names a file that is not
    there, or that lies outside of `folder`.
    """
    count = math.prod(tensor.dims)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        if count * 8 > KEPT_BYTES:
            return None
        return _external(onnx, tensor, folder)
    present = any(getattr(tensor, f) for f in ("raw_data", "float_data", "int32_data", "int64_data",
                                               "double_data", "uint64_data"))  # fmt: skip
    if (not present and count) or tensor.data_type == onnx.TensorProto.STRING:
        return None
    try:
        return onnx.numpy_helper.to_array(tensor)
    except Exception:  # half of its contents was too much
        return None


def _external(onnx: Any, tensor: Any, folder: str) -> Any:
    """A small tensor out of its file."""
    told = {entry.key: entry.value for entry in tensor.external_data}
    location = told.get("location", "")
    path = os.path.normpath(os.path.join(folder, location))
    outside = os.path.isabs(location) or os.path.relpath(path, folder or ".").startswith("..")
    if outside or not os.path.isfile(path):
        raise FileNotFoundError(location)
    try:
        with open(path, "rb") as file:
            file.seek(int(told.get("offset", 0)))
            contents = file.read(max(0, min(int(told.get("length", KEPT_BYTES)), KEPT_BYTES)))
    except (OSError, OverflowError, ValueError):
        raise FileNotFoundError(f"{location} (at no such place)") from None
    copy = onnx.TensorProto()
    copy.dims.extend(tensor.dims)
    copy.data_type = tensor.data_type
    copy.raw_data = contents
    try:
        return onnx.numpy_helper.to_array(copy)
    except (KeyError, ValueError):
        raise FileNotFoundError(f"{location} (too short)") from None


@dataclass
class Constants:
    """Initializers: their types, the contents of the small ones, the files of those that are missing."""

    types: dict[str, Type] = field(default_factory=dict)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, onnx: Any, graph: Any, folder: str) -> None:
        """Take in the initializers of a graph."""
        for tensor in graph.initializer:
            self.types[tensor.name] = (tensor.data_type, tuple(tensor.dims))
            try:
                value = constant(onnx, tensor, folder)
            except FileNotFoundError as error:
                self.missing[tensor.name] = str(error)
                continue
            if value is not None and value.size <= LARGEST:
                self.values[tensor.name] = value
        for sparse in graph.sparse_initializer:
            self.types[sparse.values.name] = (sparse.values.data_type, tuple(sparse.dims))
