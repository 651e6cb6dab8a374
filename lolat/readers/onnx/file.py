"""Small constants followed through the operators that exporters compute shapes with.

`evaluate` gives the contents of a node's output from those of its inputs, None where it cannot.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lolat.errors import MissingPackageError, NetworkError
from lolat.units import one_line, shortened

LARGEST = 4096
"""Elements of a constant that is still followed."""

Values = Sequence[Any]
Rule = Callable[[Values, Mapping[str, Any]], Any]


def _axes(values: Values, a: Mapping[str, Any]) -> tuple[int, ...] | None:
    given = values[1] if len(values) > 1 and values[1] is not None else a.get("axes")
    return None if given is None else tuple(int(n) for n in np.ravel(given))


def _unsqueeze(v: Values, a: Mapping[str, Any]) -> Any:
    axes = _axes(v, a) or ()
    rank = np.ndim(v[0]) + len(axes)
    found = v[0]
    for axis in sorted(n % rank for n in axes):
        found = np.expand_dims(found, axis)
    return found


def _slice(v: Values, a: Mapping[str, Any]) -> Any:
    starts, ends = (v[1], v[2]) if len(v) > 2 else (a["starts"], a["ends"])
    axes = v[3] if len(v) > 3 and v[3] is not None else a.get("axes", range(len(starts)))
    steps = v[4] if len(v) > 4 and v[4] is not None else [1] * len(starts)
    at = [slice(None)] * np.ndim(v[0])
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        last = None if step < 0 and end < -np.shape(v[0])[int(axis)] else int(end)
        at[int(axis)] = slice(int(start), last, int(step))
    return v[0][tuple(at)]


def _reshape(v: Values, a: Mapping[str, Any]) -> Any:
    keep = not a.get("allowzero")
    return v[0].reshape(
        [np.shape(v[0])[i] if n == 0 and keep else int(n) for i, n in enumerate(v[1])]
    )


def _div(v: Values, a: Mapping[str, Any]) -> Any:
    if np.asarray(v[0]).dtype.kind in "iu":  # towards zero, as in C
        return (np.sign(v[0]) * np.sign(v[1]) * (abs(v[0]) // abs(v[1]))).astype(v[0].dtype)
    return v[0] / v[1]


def _mod(v: Values, a: Mapping[str, Any]) -> Any:
    return np.fmod(v[0], v[1]) if a.get("fmod") else np.mod(v[0], v[1])


def _cast(v: Values, a: Mapping[str, Any]) -> Any:

    return v[0].astype(import_onnx().helper.tensor_dtype_to_np_dtype(a["to"]))


def _constant(v: Values, a: Mapping[str, Any]) -> Any:
    for key, kind in (("value_int", np.int64), ("value_ints", np.int64),
                      ("value_float", np.float32), ("value_floats", np.float32)):  # fmt: skip
        if key in a:
            return np.asarray(a[key], kind)
    return a.get("value")


def _filled(v: Values, a: Mapping[str, Any]) -> Any:
    value = a.get("value")
    value = np.zeros(1, np.float32) if value is None else value
    return np.broadcast_to(value.reshape(-1)[0], [int(n) for n in v[0]])  # takes no memory


def _range(v: Values, a: Mapping[str, Any]) -> Any:
    start, limit, step = (n.reshape(()).item() for n in v)
    if (limit - start) / step > LARGEST:
        return None
    return np.arange(start, limit, step).astype(v[0].dtype)


def _tile(v: Values, a: Mapping[str, Any]) -> Any:
    repeats = [int(n) for n in v[1]]
    return None if np.prod(repeats) * np.size(v[0]) > LARGEST else np.tile(v[0], repeats)


def _reduce(function: Callable[..., Any]) -> Rule:
    def rule(v: Values, a: Mapping[str, Any]) -> Any:
        return function(v[0], axis=_axes(v, a), keepdims=bool(a.get("keepdims", 1)))

    return rule


def _on(function: Callable[..., Any]) -> Rule:
    """A function of all inputs."""
    return lambda v, a: function(*v)


def _expand(v: Values, a: Mapping[str, Any]) -> Any:
    shape = np.broadcast_shapes(np.shape(v[0]), tuple(int(n) for n in v[1]))
    return np.broadcast_to(v[0], shape)


def _fold(function: Callable[..., Any]) -> Rule:
    def rule(v: Values, a: Mapping[str, Any]) -> Any:
        found = v[0]
        for other in v[1:]:
            found = function(found, other)
        return found

    return rule


RULES: dict[str, Rule] = {
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Gather": lambda v, a: np.take(v[0], v[1], axis=a.get("axis", 0)),
    "Concat": lambda v, a: np.concatenate(v, axis=a["axis"]),
    "Unsqueeze": _unsqueeze,
    "Squeeze": lambda v, a: np.squeeze(v[0], _axes(v, a)),
    "Slice": _slice,
    "Reshape": _reshape,
    "Flatten": lambda v, a: v[0].reshape(int(np.prod(np.shape(v[0])[: a.get("axis", 1)])), -1),
    "Transpose": lambda v, a: np.transpose(v[0], a.get("perm")),
    "Cast": _cast,
    "Identity": lambda v, a: v[0],
    "Add": _on(np.add), "Sub": _on(np.subtract), "Mul": _on(np.multiply), "Div": _div, "Mod": _mod,
    "Pow": lambda v, a: np.power(v[0], v[1]).astype(v[0].dtype),
    "Neg": _on(np.negative), "Abs": _on(np.abs), "Sqrt": _on(np.sqrt), "Floor": _on(np.floor),
    "Ceil": _on(np.ceil), "Round": _on(np.round), "Sign": _on(np.sign), "Exp": _on(np.exp),
    "Log": _on(np.log), "Reciprocal": _on(np.reciprocal), "Sin": _on(np.sin), "Cos": _on(np.cos),
    "Min": _fold(np.minimum), "Max": _fold(np.maximum), "Where": _on(np.where),
    "Equal": _on(np.equal), "Less": _on(np.less), "Greater": _on(np.greater),
    "LessOrEqual": _on(np.less_equal), "GreaterOrEqual": _on(np.greater_equal),
    "And": _on(np.logical_and), "Or": _on(np.logical_or), "Not": _on(np.logical_not),
    "Range": _range,
    "ReduceProd": _reduce(np.prod), "ReduceSum": _reduce(np.sum), "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min), "ReduceMean": _reduce(np.mean),
    "Expand": _expand,
    "Tile": _tile,
    "NonZero": lambda v, a: np.array(np.nonzero(v[0]), np.int64),
}  # fmt: skip


def evaluate(op: str, values: Values, attributes: Mapping[str, Any]) -> np.ndarray | None:
    """What the operator gives for these inputs (None for one left out); None where that is not known."""
    rule = RULES.get(op)
    if rule is None:
        return None
    with np.errstate(all="ignore"):
        try:
            found = rule(values, attributes)
        except Exception:  # an input of a form that shape computations do not have
            return None
    if found is None or np.size(found) > LARGEST:
        return None
    return np.asarray(found)


# ---- An `.onnx` file as a model without its weights, whatever its size.
#
# The file is mapped, not read: a walk over its protobuf messages copies everything but the contents of
# large
# tensors, whose sizes and types stay. So the memory needed is that of the graph, and the 2 GiB limit of
# protobuf concerns the graph alone. The field numbers are those of onnx/onnx.proto.

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


class _Damaged(Exception):
    """The bytes are no protobuf message."""


def import_onnx() -> Any:
    """The `onnx` package; MissingPackageError where there is none."""
    try:
        import onnx
        import onnx.shape_inference
    except ImportError as error:
        raise MissingPackageError(
            f"the package onnx is needed to read .onnx files and cannot be imported ({error}); install it "
            "with: pip install 'lolat[onnx]'"
        ) from error
    if not hasattr(onnx.NodeProto(), "metadata_props"):
        raise MissingPackageError(
            f"onnx {onnx.__version__} is too old for this, it must be 1.16 or newer; install it with: "
            "pip install --upgrade 'lolat[onnx]'"
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
                stripped = b"".join(_stripped(data, 0, size, _MODEL))
    except OSError as error:
        raise NetworkError(
            f"{shown!r} cannot be read: {error.strerror or error}; expected an .onnx file"
        ) from error
    except (_Damaged, RecursionError):
        raise NetworkError(
            f"{shown!r} is not an ONNX model, or only a part of one ({size:,} bytes); export it "
            "or copy it again"
        ) from None
    try:
        model = onnx.ModelProto.FromString(stripped)
    except Exception as error:  # protobuf's DecodeError, which is in another package
        raise NetworkError(
            f"{shown!r} is not an ONNX model: {one_line(error)}; export it or copy it again"
        ) from error
    if not model.graph.node or not model.opset_import:
        lacks = "no operations" if model.opset_import else "no operator sets"
        raise NetworkError(f"{shown!r} is not an ONNX network: it has {lacks}; export it again")
    if not all(isinstance(text, str) for text in _texts(model.graph)):
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


def _stripped(data: Any, at: int, end: int, inside: dict[int, Any]) -> Iterator[bytes]:
    """The message in data[at:end] without what is left out, in pieces."""
    tensor = inside is _TENSOR
    packed = 0
    while at < end:
        begin = at
        key, at = _varint(data, at, end)
        field, wire = key >> 3, key & 7
        if not field:
            raise _Damaged
        if wire == 0:
            _, at = _varint(data, at, end)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        elif wire == 2:
            length, at = _varint(data, at, end)
            if at + length > end:
                raise _Damaged
            content, at = at, at + length
            if field in inside:
                below = inside[field]
                if below is not None:
                    pieces = b"".join(_stripped(data, content, at, below))
                    yield _as_varint(key) + _as_varint(len(pieces)) + pieces
                continue
            if tensor and field in _CONTENTS and length > KEPT_BYTES:
                continue
        else:
            raise _Damaged
        if at > end:
            raise _Damaged
        if tensor and field in _CONTENTS:  # also one by one, as older writers did
            packed += at - begin
            if packed > 2 * KEPT_BYTES:
                continue
        yield data[begin:at]


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
    raise _Damaged


def _as_varint(value: int) -> bytes:
    written = bytearray()
    while value > 127:
        written.append(value & 127 | 128)
        value >>= 7
    written.append(value)
    return bytes(written)


def constant(onnx: Any, tensor: Any, folder: str) -> Any:
    """The contents of a TensorProto as an array; None where they were left out.

    Small tensors in files of their own (external data) are read; FileNotFoundError names a file that is not
    there, or that lies outside of `folder`.
    """
    count = 1
    for n in tensor.dims:
        count *= n
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
    with open(path, "rb") as file:
        file.seek(int(told.get("offset", 0)))
        contents = file.read(int(told.get("length", KEPT_BYTES)))
    copy = onnx.TensorProto()
    copy.dims.extend(tensor.dims)
    copy.data_type = tensor.data_type
    copy.raw_data = contents
    try:
        return onnx.numpy_helper.to_array(copy)
    except ValueError:
        raise FileNotFoundError(f"{location} (too short)") from None


@dataclass
class Constants:
    """Initialisers: their types, the contents of the small ones, the files of those that are missing."""

    types: dict[str, Type] = field(default_factory=dict)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, onnx: Any, graph: Any, folder: str) -> None:
        """Take in the initialisers of a graph."""
        for tensor in graph.initializer:
            self.types[tensor.name] = (tensor.data_type, tuple(tensor.dims))
            self.read(onnx, tensor.name, tensor, folder)
        for sparse in graph.sparse_initializer:
            self.types[sparse.values.name] = (sparse.values.data_type, tuple(sparse.dims))

    def read(self, onnx: Any, name: str, tensor: Any, folder: str) -> None:
        """Keep the contents of a small tensor."""
        try:
            value = constant(onnx, tensor, folder)
        except FileNotFoundError as error:
            self.missing[name] = str(error)
            return
        if value is not None and value.size <= LARGEST:
            self.values[name] = value
