"""Shapes of everything in an ONNX network: the operators' own inference, node by node.

Between, what exporters compute shapes with is followed by ONNX' reference evaluator: the inference of a
whole graph with data propagation leaves many of those open (Range, ConstantOfShape, Where, If). Done at
batch size 1 and at 2, which shows what grows with the batch; where 2 does not fit (a 1 written into a
reshape), what depends on the inputs does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from lolat.errors import NetworkError, arg, worded
from lolat.readers.onnx import file as onnx_file
from lolat.readers.onnx.file import LARGEST, Type
from lolat.readers.onnx.nodes import (
    DATA_DEPENDENT,
    SAME,
    STANDARD,
    Net,
    Node,
    captured,
    place,
    with_its_own_names,
    work,
)
from lolat.units import one_line, shortened

# ---- What goes into an ONNX network: which axis is the batch, and the sizes that the file leaves open.

RECURRENT = ("LSTM", "GRU", "RNN")


@dataclass
class Inputs:
    """Inputs of a network: name -> sizes, None where the batch is; and the symbols of the file.

    `fixed` is the batch size that the file was made for, None where it is open.
    """

    sizes: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    dtypes: dict[str, int] = field(default_factory=dict)
    symbols: dict[str, int | None] = field(default_factory=dict)  # None: the batch
    fixed: int | None = None
    warnings: list[str] = field(default_factory=list)

    def at(self, batch: int) -> dict[str, tuple[int, ...]]:
        """The shapes at a batch size."""
        return {name: tuple(batch if n is None else n for n in s) for name, s in self.sizes.items()}


def read_inputs(model: Any, size: Sequence[int], network: str) -> Inputs:
    """The inputs of a model; `size` as of --input-size: open sizes, or all without the batch.

    Raises NetworkError where a size stays open, or the file fixes another one.
    """
    inputs = Inputs()
    constants = {i.name for i in model.graph.initializer}
    values = [i for i in model.graph.input if i.name not in constants]
    dims = {i.name: _dims(i, network) for i in values}
    if len(dims) < len(values):
        raise NetworkError(f"{network!r} has two inputs of one name; export it again")
    named = any(isinstance(n, str) and "batch" in n.lower() for d in dims.values() for n in d)
    batch = {name: _batch_axis(model, name, d, named) for name, d in dims.items()}
    sizes = {name: dims[name][axis] for name, axis in batch.items() if axis is not None}
    first = next(iter(sizes.values()), None)
    for name, at in sizes.items():
        if isinstance(first, int) and at not in (first, 1):
            batch[name] = None  # of another size than the other inputs' batch
        elif isinstance(at, str) and at:
            inputs.symbols[at] = None
        elif isinstance(at, int):
            inputs.fixed = max(at, inputs.fixed or 1)
            if at > 1:
                inputs.warnings.append(
                    f"input {name!r} is fixed at {at} x ...: taken as the batch size and read at 1"
                )
    changed = False
    for value in values:
        name = value.name
        wanted = _wanted(dims[name], batch[name], tuple(size), inputs.symbols)
        changed = changed or bool(wanted)
        inputs.sizes[name] = _filled(
            value.name, dims[name], batch[name], wanted, inputs, network, size
        )
        inputs.dtypes[name] = value.type.tensor_type.elem_type
    if size and values and not changed:
        shown = "; ".join(f"{n}: {_shown(d, batch[n])}" for n, d in dims.items())
        why = (
            f"{arg('input_size')} {','.join(map(str, size))} fits no input of {network!r} ({shown})"
        )
        raise NetworkError(
            f"{why}; give a size where it says ?, or all sizes without the batch", why=worded(why)
        )
    return inputs


def _dims(value: Any, network: str) -> list[int | str]:
    """Sizes of an input, the symbol or "" for open ones."""
    kind, tensor = value.type.WhichOneof("value"), value.type.tensor_type
    what = ""
    if kind != "tensor_type":
        what = f"is no tensor but a {kind}; export the network with tensors as inputs"
    elif not tensor.HasField("shape"):
        what = "has no shape in the file; export it with a shape"
    if what:
        raise NetworkError(f"input {value.name!r} of {network!r} {what}")
    return [d.dim_value if d.dim_value > 0 else d.dim_param for d in tensor.shape.dim]


def _batch_axis(model: Any, name: str, dims: list[int | str], named: bool) -> int | None:
    """The axis that is named after the batch; else the first, or the second of a recurrent layer's.

    `named`: some input has an axis named after the batch; then an axis of another name is none.
    """
    for axis, n in enumerate(dims):
        if isinstance(n, str) and "batch" in n.lower():
            return axis
    if len(dims) == 3:
        for node in model.graph.node:
            if node.op_type in RECURRENT and list(node.input[:1]) == [name]:
                return 0 if any(a.name == "layout" and a.i for a in node.attribute) else 1
    return None if not dims or (named and isinstance(dims[0], str) and dims[0]) else 0


def _is_batch(n: int | str, symbols: Mapping[str, int | None]) -> bool:
    """Whether a size is the symbol of the batch."""
    return isinstance(n, str) and bool(n) and symbols.get(n, 0) is None


def _wanted(
    dims: list[int | str], axis: int | None, size: tuple[int, ...], symbols: Mapping[str, int | None]
) -> dict[int, int]:  # fmt: skip
    """What `size` says about an input: axis -> size."""
    rest = [i for i in range(len(dims)) if i != axis]
    opened = [i for i in rest if isinstance(dims[i], str) and not _is_batch(dims[i], symbols)]
    if len(size) == len(rest) and len(size) > 1:
        return dict(zip(rest, size, strict=True))
    if size and len(size) in (1, len(opened)) and opened:
        return dict(zip(opened, size * len(opened), strict=False))
    if len(size) == 1 and rest and all(isinstance(dims[i], int) for i in rest):
        return dict.fromkeys(rest[1:] or rest, size[0])
    return {}


def _filled(
    name: str, dims: list[int | str], axis: int | None, wanted: Mapping[int, int], inputs: Inputs,
    network: str, size: Sequence[int],
) -> tuple[int | None, ...]:  # fmt: skip
    """All sizes of an input (None for the batch), those that are open as `wanted`."""
    sizes: list[int | None] = []
    for i, n in enumerate(dims):
        if i == axis or _is_batch(n, inputs.symbols):
            sizes.append(None)
            continue
        known = n if isinstance(n, int) else wanted.get(i) or inputs.symbols.get(n)
        what = ""
        if not known:
            what = (
                f"leaves sizes open: {_shown(dims, axis)}; give them with "
                f"{arg('input_size')}, for example 224"
            )
        elif isinstance(n, int) and wanted.get(i, n) != n:
            what = (
                f"is fixed at {_shown(dims, axis)} in the file; {arg('input_size')} "
                f"{','.join(map(str, size))} "
                "cannot change it; export the network with dynamic axes, or at that size"
            )
        if what:
            raise NetworkError(f"input {name!r} of {network!r} {what}")
        if isinstance(n, str) and n:
            inputs.symbols.setdefault(n, known)
        sizes.append(known)
    return tuple(sizes)


def _shown(dims: Sequence[int | str], axis: int | None) -> str:
    """Sizes without the batch: 3x?x?."""
    return "x".join(str(n) if isinstance(n, int) else "?" for i, n in enumerate(dims) if i != axis)


# ---- The walk through the nodes.

_RESULT_SIZE: dict[str, Callable[..., float]] = {
    "ConstantOfShape": lambda shape: prod(map(int, shape)),
    "Expand": lambda x, shape: np.size(x) * prod(map(int, shape)),
    "Tile": lambda x, repeats: np.size(x) * prod(map(int, repeats)),
    "Range": lambda start, limit, step: float((limit - start) / step),
}
"""Elements (or more) of what an operator makes of small inputs, where that may be large."""
_NOT_EVALUATED = frozenset(
    ["RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial",
     "EyeLike", "Dropout", "If", "Loop", "Scan"]
)  # fmt: skip


def read_net(model: Any, name: str, size: tuple[int, ...], folder: str) -> Net:
    """The network of a model (of `onnx_file.load`), with all shapes known.

    `folder`: where the file is, for small constants in files of their own. Raises NetworkError when a shape
    cannot be found, saying at which node.
    """
    inputs = read_inputs(model, size, name)
    first = Walk(model, inputs, 1, name, folder)
    first.graph(model.graph)
    try:
        second = Walk(model, inputs, 2, name, folder, first.constants)
        second.nodes(first.done)
        grows = {n for n, (_, s) in first.types.items() if prod(s) != prod(second.types[n][1])}
    except NetworkError:
        grows = set(first.live)
    for output in model.graph.output:
        if output.name not in first.types:
            raise NetworkError(
                f"{name!r} promises the output {output.name!r}, which nothing writes; export it again"
            )
    return Net(
        name, first.done, list(inputs.sizes), [o.name for o in model.graph.output],
        {n: s for n, (_, s) in first.types.items()}, first.dtypes(), first.values, first.live, grows,
        [*inputs.warnings, *first.warnings], set(first.constants.types), first.opsets.get("", 1),
    )  # fmt: skip


class Walk:
    """Goes through the nodes once, at one batch size."""

    def __init__(
        self, model: Any, inputs: Inputs, batch: int, network: str, folder: str,
        constants: onnx_file.Constants | None = None,
    ) -> None:  # fmt: skip
        self.onnx = onnx_file.import_onnx()
        self.network, self.folder, self.inputs = network, folder, inputs
        self.constants = constants or onnx_file.Constants()
        if constants is None:
            self.constants.add(self.onnx, model.graph, folder)
        self.symbols = {k: batch if n is None else n for k, n in inputs.symbols.items()}
        self.imports, self.ir_version = list(model.opset_import), model.ir_version
        self.opsets = {"" if o.domain in STANDARD else o.domain: o.version for o in self.imports}
        self.checking = self.onnx.checker.C.CheckerContext()
        self.checking.ir_version = self.onnx.IR_VERSION
        self.checking.opset_imports = {o.domain: abs(o.version) % 2**31 for o in self.imports}
        self.declared = {v.name: v.type for v in [*model.graph.value_info, *model.graph.output]}
        shapes = inputs.at(batch)
        self.types = self.constants.types | {n: (inputs.dtypes[n], s) for n, s in shapes.items()}
        self.values = dict(self.constants.values)
        self.live = set(shapes)
        self.done: list[Node] = []
        self.warnings: list[str] = []

    def dtypes(self) -> dict[str, str]:
        """The data types as numpy calls them."""
        numbers = {number for number, _ in self.types.values()} - {0}
        try:
            known = {n: str(self.onnx.helper.tensor_dtype_to_np_dtype(n)) for n in numbers}
        except KeyError as error:
            raise NetworkError(
                f"{self.network!r} has a tensor of the type {error}, which onnx does not know; "
                "export it again"
            ) from error
        return {name: known.get(number, "float32") for name, (number, _) in self.types.items()}

    def graph(self, graph: Any) -> None:
        """Every node of a graph."""
        for proto in graph.node:
            if proto.op_type != "If" or proto.domain not in STANDARD:
                self.nodes([self.read(proto)])
                continue
            try:
                self.branch(proto)
            except (IndexError, KeyError, ValueError) as error:
                what = "lacks a condition, a branch or an output of one"
                raise self.error(self.read(proto), what) from error

    def read(self, proto: Any) -> Node:
        """A node as plain data."""
        attributes: dict[str, Any] = {}
        inputs = list(proto.input)
        kinds = self.onnx.AttributeProto
        for a in proto.attribute:
            if a.ref_attr_name:
                raise NetworkError(
                    f"node {shortened(_called(proto))!r} ({proto.op_type}) of {self.network!r} takes "
                    f"{shortened(a.name)!r} from a function, and is in none; export it again"
                )
            if a.HasField("g"):
                read = dict.fromkeys(captured(a.g))
                inputs += [n for n in read if n in self.types and n not in inputs]
                self.warnings.append(
                    f"{proto.op_type} {_called(proto)!r} repeats {len(a.g.node)} operations "
                    "that are not looked into: counted as memory traffic of its inputs and outputs"
                )
            elif a.HasField("t"):
                try:
                    attributes[a.name] = onnx_file.constant(self.onnx, a.t, self.folder)
                except FileNotFoundError as error:
                    self.constants.missing.update((out, str(error)) for out in proto.output)
            elif a.type not in (kinds.SPARSE_TENSOR, kinds.GRAPHS):
                value = self.onnx.helper.get_attribute_value(a)
                is_text = isinstance(value, bytes)
                attributes[a.name] = value.decode("utf-8", "replace") if is_text else value
        path, name = place(proto)
        domain = "" if proto.domain in STANDARD else proto.domain
        return Node(
            proto.op_type, domain, name, path, inputs, list(proto.output), attributes, proto=proto
        )

    def branch(self, proto: Any) -> None:
        """An If: the branch that is taken, or the larger one where that depends on what goes in."""
        bodies = {a.name: a.g for a in proto.attribute if a.HasField("g")}
        if proto.input[0] not in self.types or not proto.output:
            raise KeyError
        taken = self.values.get(proto.input[0])
        if taken is None or proto.input[0] in self.live:
            which = max(bodies, key=lambda name: work(bodies[name]))
            self.warnings.append(
                f"If {_called(proto)!r} depends on data: counted as its larger branch, {which}"
            )
        else:
            which = "then_branch" if bool(taken.reshape(-1)[0]) else "else_branch"
        body = with_its_own_names(bodies[which], self.types)
        self.constants.add(self.onnx, body, self.folder)
        for tensor in body.initializer:
            self.types[tensor.name] = self.constants.types[tensor.name]
            if tensor.name in self.constants.values:
                self.values[tensor.name] = self.constants.values[tensor.name]
        self.declared |= {v.name: v.type for v in [*body.value_info, *body.output]}
        self.graph(body)
        for inner, outer in zip(body.output, proto.output, strict=True):
            alias = self.onnx.helper.make_node("Identity", [inner.name], [outer], name=proto.name)
            self.nodes([self.read(alias)])

    def nodes(self, nodes: Iterable[Node]) -> None:
        """Find the types of what these nodes write, in order."""
        for node in nodes:
            written = [name for name in node.outputs if name]
            if unknown := [n for n in node.inputs if n and n not in self.types]:
                raise self.error(node, f"reads {unknown[0]!r}, which nothing writes")
            if twice := [n for i, n in enumerate(written) if n in self.types or n in written[:i]]:
                raise self.error(node, f"writes {twice[0]!r}, which is there already")
            try:
                value = self.value(node)
            except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
                raise self.error(node, f"cannot be read ({one_line(error)})") from error
            if value is not None:
                number = self.onnx.helper.np_dtype_to_tensor_dtype(value.dtype)
                self.values[node.outputs[0]] = value
                self.types[node.outputs[0]] = (number, value.shape)
            else:
                self.types |= self.inferred(node)
                shapes_alone = node.op in ("Shape", "Size", "ConstantOfShape", "Constant")
                if not shapes_alone and any(n in self.live for n in node.inputs):
                    self.live.update(written)
            self.done.append(node)

    def value(self, node: Node) -> np.ndarray | None:
        """The contents of a node's only output, where they are known and few."""
        a = node.attributes
        if node.domain or len(node.outputs) != 1:
            return None
        if node.op == "Shape":
            shape = self.types[node.inputs[0]][1]
            return np.array(shape[a.get("start", 0) : a.get("end", len(shape))], np.int64)
        if node.op == "Size":
            return np.array(prod(self.types[node.inputs[0]][1]), np.int64)
        if node.op == "CastLike" and node.inputs[0] in self.values:
            dtype = self.onnx.helper.tensor_dtype_to_np_dtype(self.types[node.inputs[1]][0])
            return self.values[node.inputs[0]].astype(dtype)
        if any(n and n not in self.values for n in node.inputs):
            return None
        value = a["value"] if node.op == "Constant" and "value" in a else self.evaluated(node)
        return value if value is None or value.size <= LARGEST else None

    def evaluated(self, node: Node) -> np.ndarray | None:
        """What the operator gives for constants; None where that is not known, or too much."""
        from onnx.reference import ReferenceEvaluator

        feeds = {n: self.values[n] for n in node.inputs if n}
        size = _RESULT_SIZE.get(node.op)
        try:
            if node.op in _NOT_EVALUATED or (size and size(*feeds.values()) > LARGEST):
                return None
            with np.errstate(all="ignore"):
                evaluator = ReferenceEvaluator(node.proto, opsets=self.opsets)
                return np.asarray(evaluator.run(None, feeds)[0])
        except Exception:  # an input of a form that shape computations do not have
            return None

    def inferred(self, node: Node) -> dict[str, Type]:
        """The types of a node's outputs. NetworkError when they cannot be known."""
        types_of: Mapping[str, Any] = {}
        reason = f"is of the domain {node.domain!r}, which is not ONNX's own" if node.domain else ""
        opset = self.opsets.get(node.domain, 1)
        try:
            schema = self.onnx.defs.get_schema(node.op, opset, node.domain)
        except Exception:  # onnx.defs.SchemaError, of a name that changed between versions
            reason = reason or f"is no operator of opset {self.opsets.get('', 0)} that onnx knows"
        else:
            try:
                types_of = self.of_operator(schema, node)
            except Exception as error:
                reason = one_line(error)
                self.check(node)
                if not (node.op in SAME or any(n in self.declared for n in node.outputs)):
                    raise self.refused(node, reason) from error
        types: dict[str, Type] = {}
        for position, name in enumerate(node.outputs):
            if not name:
                continue
            known = self.complete(types_of.get(name)) or self.complete(self.declared.get(name))
            if known is None and position == 0 and node.op in SAME:
                known = self.types.get(node.input(0))
            if known is None and node.op == "Loop":  # a state stays as large as it was
                known = self.types.get(node.input(position + 2))
            if known is None and position > 0 and types:
                known = next(iter(types.values()))  # a further output that hardly anything reads
            if known is None:
                raise self.refused(node, reason)
            types[name] = known
        first = next(iter(types.values()), None)
        before = self.types[node.inputs[0]][1] if node.input(0) else ()
        if node.op == "Reshape" and not node.domain and first and prod(first[1]) != prod(before):
            raise self.refused(node, f"makes {_x(first[1])} of {_x(before)}")
        return types

    def check(self, node: Node) -> None:
        """NetworkError where a node has what its operator does not admit, such as an attribute of another
        name: it would be counted without."""
        if any(a.HasField("t") or a.HasField("g") for a in node.proto.attribute):
            return  # a constant's contents were left out
        try:
            self.onnx.checker.check_node(node.proto, self.checking)
            if node.attributes.get("num_outputs", len(node.outputs)) != len(node.outputs):
                raise ValueError(f"num_outputs is not {len(node.outputs)}")
        except Exception as error:
            raise self.refused(node, one_line(error), "export it again") from error

    def of_operator(self, schema: Any, node: Node) -> Mapping[str, Any]:
        """What the operator's own inference says."""
        if node.op == "Split":
            self.check(node)  # of another number of parts onnx would end the process
        make = self.onnx.helper.make_tensor_type_proto
        return self.onnx.shape_inference.infer_node_outputs(
            schema, node.proto,
            {n: make(*self.types[n]) for n in node.inputs if n},
            {n: self.onnx.numpy_helper.from_array(np.array(self.values[n], order="C"))
             for n in node.inputs if n in self.values and n not in self.live},
            opset_imports=self.imports, ir_version=self.ir_version,
        )  # fmt: skip

    def complete(self, declared: Any) -> Type | None:
        """The type that a TypeProto says, symbols replaced; None when it leaves something open."""
        if declared is None or declared.WhichOneof("value") != "tensor_type":
            return None
        tensor = declared.tensor_type
        if not tensor.HasField("shape"):
            return None
        sizes = []
        for d in tensor.shape.dim:
            n = d.dim_value if d.HasField("dim_value") else self.symbols.get(d.dim_param)
            if n is None or n < 0:
                return None
            sizes.append(n)
        return tensor.elem_type, tuple(sizes)

    def refused(self, node: Node, reason: str, remedy: str = "") -> NetworkError:
        """Why the shape of what a node writes is not known, and what to do."""
        lost = [self.constants.missing[n] for n in node.inputs if n in self.constants.missing]
        newest = self.onnx.defs.onnx_opset_version()
        what = reason or "gives a shape that cannot be found"
        shapes = "export it with the shapes of what is between (onnx.shape_inference, value_info)"
        remedy = remedy or shapes
        if lost:
            what = f"needs a constant in the file {shortened(lost[0])!r}, which is missing"
            remedy = "put it beside the .onnx file"
        elif node.op in DATA_DEPENDENT or "Sequence" in node.op:
            sequences = "Sequence" in node.op
            what = "works on sequences" if sequences else "gives as much as the data has"
            remedy = "export the part before it as a network of its own"
        elif (self.inputs.fixed or 1) > 1:
            what = f"{reason} (the batch size {self.inputs.fixed} is fixed inside)"
            remedy = "export it with batch size 1 or a dynamic batch axis"
        elif self.opsets.get("", 0) > newest:
            newer = f"a newer onnx than {self.onnx.__version__}"
            remedy = f"install {newer}: pip install --upgrade onnx"
        return self.error(node, what, remedy)

    def error(self, node: Node, what: str, remedy: str = "export it again") -> NetworkError:
        """One line about a node."""
        called = shortened(_called(node.proto))
        domain = f"{node.domain}." if node.domain else ""
        return NetworkError(
            f"node {called!r} ({domain}{node.op}) of {self.network!r} {what}; {remedy}"
        )


def _x(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape)) or "one number"


def _called(proto: Any) -> str:
    """What a message calls a node."""
    return proto.name or "".join(proto.output[:1])
