"""A network as plain data, the same from all frameworks: operations and tensors.

Shapes are at batch size 1 and include the batch axis. A tensor that does not grow with the batch (a
constant operand, a position embedding) has `batched=False`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import prod
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Literal,
    NamedTuple,
    ParamSpec,
    TypeVar,
)

import msgspec
from msgspec.structs import replace

from lolat.errors import InputError, arg
from lolat.graph.kinds import CONVOLUTIONS, kind_of
from lolat.io.documents import converted
from lolat.units import shortened

FORMAT_VERSION = 1
RESULTS = "results"
"""Attribute of a graph that holds the results of functions decorated with `cached_on_graph`."""

Size = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
if TYPE_CHECKING:
    Attribute = Any
else:  # JSON's lists become tuples
    Scalar = bool | int | float | str | None
    Attribute = Scalar | tuple[Scalar | tuple[Scalar, ...], ...]
Result = TypeVar("Result")
Others = ParamSpec("Others")


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """A value that flows between operations; `shape` is at batch size 1."""

    shape: tuple[Size, ...]
    batched: bool = True
    dtype: str = "float32"

    def elements(self, batch_size: int = 1) -> int:
        """Number of elements at `batch_size`."""
        return prod(self.shape) * (batch_size if self.batched else 1)

    @property
    def batch_axis(self) -> int:
        """The batch axis of an input: the second axis if it alone has size 1, else the first."""
        return int(self.shape[:1] != (1,) and self.shape[1:2] == (1,))


class Operation(msgspec.Struct, frozen=True):
    """An operation: its kind (see `lolat.graph.kinds`), and the tensors that it reads and writes.

    `inputs`, `outputs`: indices into `Graph.tensors`; `path`: the module that holds it ("encoder/layer_1";
    "" at the top); `attributes`: some of `lolat.graph.kinds.ATTRIBUTES`.
    """

    name: str
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    attributes: dict[str, Attribute] = {}
    path: str = ""

    @property
    def full_name(self) -> str:
        """The name with its module path."""
        return f"{self.path}/{self.name}" if self.path else self.name

    @property
    def vectors(self) -> int:
        """Number of parameters per channel of a normalization: the attribute `vectors`, else its kind's."""
        return int(self.attributes.get("vectors", kind_of(self.kind).vectors))

    def changed(self, **attributes: Attribute | None) -> Operation:
        """A copy with other attributes; None removes an attribute."""
        every = self.attributes | attributes
        return replace(self, attributes={k: v for k, v in every.items() if v is not None})


class ExtraBytes(NamedTuple):
    """Bytes of the parameters and buffers that belong to no operation of a graph.

    `own`: in their own data types; `half`: with all floats in half precision; `buffers`: bytes of the
    buffers alone.
    """

    own: int = 0
    half: int = 0
    buffers: int = 0


class Graph(msgspec.Struct, frozen=True, dict=True):
    """A directed acyclic graph of operations, in an order in which they can run.

    The fields are the JSON that `lolat read` writes.

    `inputs`, `outputs`: tensor indices. `warnings`: remarks of the reader for the user. `framework`: keras,
    torch, onnx, or "" if unknown. `channels_first`: True if the channels of images are on axis 1, as in
    PyTorch and ONNX; else they are on the last axis. `kept`: tensors that the caller keeps besides the
    outputs, such as a decoder's keys and values. `training_obstacles`: reasons why training the network
    cannot be counted.
    """

    name: str
    tensors: tuple[Tensor, ...]
    operations: tuple[Operation, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    warnings: tuple[str, ...] = ()
    framework: str = ""
    channels_first: bool = False
    kept: tuple[int, ...] = ()
    storages: tuple[tuple[tuple[int, ...], int], ...] = ()
    """(tensors that share memory in PyTorch, the last tensor written before this memory is freed); the
    second is -1 for the memory of parameters, in any framework."""
    training_obstacles: tuple[str, ...] = msgspec.field(default=(), name="training")
    autocast: bool = False  # its code computes in half precision with parameters in float32
    training_only: tuple[
        str, ...
    ] = ()  # effects in training that are not counted, such as stochastic depth
    untrained: tuple[int, ...] = msgspec.field(default=(), name="still")  # constants
    loose_parameters: tuple[tuple[Size, tuple[int, ...]], ...] = msgspec.field(
        default=(), name="free"
    )
    """(elements of a parameter that is no operation's weight, the constants computed from the parameter);
    the constants are () if the parameter is not trained."""
    redundant_casts: Size = msgspec.field(default=0, name="upcasts")
    """Number of conversions to float32 of tensors that are in float32 already."""
    extra_bytes: ExtraBytes = ExtraBytes()
    one_sample: str = ""  # reason why the network's code accepts only batches of one sample
    training_only_on_cpu: tuple[str, ...] = ()  # effects in training on a CPU only
    batch_independent: tuple[str, ...] = msgspec.field(default=(), name="one_batch")
    """The `warnings` on work that does not grow with the batch."""
    schema: Literal["lolat-network"] = "lolat-network"
    version: Literal[1] = 1

    def __post_init__(self) -> None:
        """Raise InputError unless each tensor is written exactly once, before it is read."""
        known = set(range(len(self.tensors)))
        ready = known.difference(*(o.outputs for o in self.operations))
        whole = ready.issuperset(self.inputs)
        for o in self.operations:
            whole &= ready.issuperset(o.inputs) and ready.isdisjoint(o.outputs)
            whole &= len(set(o.outputs)) == len(o.outputs) > 0
            ready.update(o.outputs)
            if not whole:
                raise self._wrong(f"operation {o.name!r} reads what is unwritten, or writes twice")
        if not (whole and ready == known and ready.issuperset(self.outputs)):
            raise self._wrong(
                f"an input, an operation or an output is none of its {len(known)} tensors"
            )

    def __repr__(self) -> str:
        shapes = ", ".join(str(self.tensors[t].shape) for t in self.inputs)
        return f"<Graph: {self.name}, {len(self.operations)} operations, inputs {shapes}>"

    def _wrong(self, reason: str) -> InputError:
        return InputError(f"graph {self.name!r}: {reason}", code="network")

    def check_batch(self, batch_size: int) -> None:
        """Raise InputError for a batch size that the network's code does not accept."""
        if self.one_sample and batch_size > 1:
            raise InputError(
                f"{shortened(self.name)} does not run at {arg('batch_size')} {batch_size} "
                f"({self.one_sample}); expected {arg('batch_size')} 1, or a forward that takes a batch; if "
                "one of its inputs has none, give inputs of two samples, which tell it from the others",
                code="one-sample",
            )  # fmt: skip

    def largest_batch(self, most: int) -> int:
        """The largest batch size, up to `most`, that the network's code accepts."""
        return min(most, 1) if self.one_sample else most

    @property
    def input_sizes(self) -> list[tuple[int, ...]]:
        """Shapes of the inputs without the batch axis."""
        inputs = [self.tensors[i] for i in self.inputs]
        return [
            (*t.shape[: t.batch_axis], *t.shape[t.batch_axis + 1 :]) if t.batched else t.shape
            for t in inputs
        ]

    def input_shapes(self, batch_size: int) -> tuple[tuple[int, ...], ...]:
        """Shapes of the inputs at a batch size; the batch axis, if an input has one, comes first."""
        sized = zip(self.inputs, self.input_sizes, strict=True)
        return tuple((batch_size,) * self.tensors[i].batched + shape for i, shape in sized)

    def shapes(self, indices: Sequence[int]) -> list[tuple[int, ...]]:
        """Shapes (at batch size 1) of the tensors at `indices`."""
        return [self.tensors[i].shape for i in indices]

    def channel_axis(self, tensor: int) -> int:
        """The axis of a tensor that holds the channels of convolutions, pools and batch normalizations."""
        rank = len(self.tensors[tensor].shape)
        return 1 if self.channels_first and rank > 1 else rank - 1

    def writers(self) -> dict[int, int]:
        """Tensor -> position of the operation that writes it."""
        return {t: position for position, o in enumerate(self.operations) for t in o.outputs}

    def consumers(self) -> dict[int, list[int]]:
        """Tensor -> positions of the operations that read it."""
        readers: dict[int, list[int]] = {}
        for position, operation in enumerate(self.operations):
            for tensor in operation.inputs:
                readers.setdefault(tensor, []).append(position)
        return readers

    def to_dict(self) -> dict[str, Any]:
        """The graph as JSON-ready data; `from_dict` is the inverse."""
        document: dict[str, Any] = msgspec.to_builtins(self)
        return document

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> Graph:
        """The graph of a document that `to_dict` made; InputError for any other document."""
        graph: Graph = converted(document, Graph, "not a graph document")
        # With two inputs an operation reads its kernel, which the network computes.
        for o in graph.operations:
            if "tied" in o.attributes and "parameter" not in o.attributes and len(o.inputs) < 2:
                raise graph._wrong(
                    f"operation {o.name!r} shares a parameter, and the file does not say with which "
                    "operation, as those of earlier versions of LoLat; read the network again"
                )
        return graph


def cached_on_graph(
    function: Callable[Concatenate[Graph, Others], Result],
) -> Callable[Concatenate[Graph, Others], Result]:
    """Decorate a function of a graph to cache its results on the graph, by the function's other arguments.

    Cached results are not part of the graph's value or of its JSON.
    """
    name = function.__module__, function.__qualname__

    @wraps(function)
    def kept(graph: Graph, /, *args: Others.args, **named: Others.kwargs) -> Result:
        results, key = vars(graph).setdefault(RESULTS, {}), (*name, args, *sorted(named.items()))
        if key not in results:
            results[key] = function(graph, *args, **named)
        result: Result = results[key]
        return result

    return kept


class GraphBuilder:
    """Collects tensors and operations, in running order, for a `Graph`; names are made unique.

    Its attributes become the fields of the Graph. The reader of Keras networks sets `channels_first` if a
    layer uses that order.
    """

    def __init__(self, name: str, framework: str = "") -> None:
        self.name, self.framework = name, framework
        self.channels_first = framework in ("torch", "onnx")
        self.autocast = False
        self.tensors: list[Tensor] = []
        self.operations: list[Operation] = []
        self.inputs: list[int] = []
        self.kept: list[int] = []
        self.storages: list[tuple[Sequence[int], int]] = []
        self.untrained: list[int] = []
        self.loose_parameters: list[tuple[int, tuple[int, ...]]] = []
        self.redundant_casts = 0
        self.warnings: list[str] = []
        self.training_obstacles: list[str] = []
        self.training_only: list[str] = []
        self.training_only_on_cpu: list[str] = []
        self._names: dict[tuple[str, str], int] = {}

    def input(self, shape: Sequence[int], dtype: str = "float32", batched: bool = True) -> int:
        """Add an input of the network; return its tensor index."""
        self.inputs.append(self.tensor(shape, batched, dtype))
        return self.inputs[-1]

    def tensor(self, shape: Sequence[int], batched: bool = True, dtype: str = "float32") -> int:
        """Add a tensor that no operation writes (a constant operand); return its index."""
        self.tensors.append(Tensor(tuple(int(n) for n in shape), batched, dtype))
        return len(self.tensors) - 1

    def add(
        self, kind: str, inputs: Sequence[int], shape: Sequence[int], *more: Any, **rest: Any
    ) -> int:
        """Add an operation with one output of `shape` (at batch size 1); return the output's tensor index.

        The output is batched if any input is. Its data type is `dtype`, or else the first input's.
        """
        return self.add_several(kind, inputs, [shape], *more, **rest)[0]

    def add_several(
        self,
        kind: str,
        inputs: Sequence[int],
        shapes: Sequence[Sequence[int]],
        name: str = "",
        path: str = "",
        dtype: str | None = None,
        **attributes: Any,
    ) -> list[int]:
        """Add an operation with one output per shape, as `add` does; return the outputs' tensor indices."""
        batched = any(self.tensors[i].batched for i in inputs) if inputs else True
        dtype = dtype or (self.tensors[inputs[0]].dtype if inputs else "float32")
        outputs = [self.tensor(shape, batched, dtype) for shape in shapes]
        name = self._unique(name or kind, path)
        operation = Operation(name, kind, tuple(inputs), tuple(outputs), attributes, path)
        self.operations.append(operation)
        return outputs

    def _unique(self, name: str, path: str) -> str:
        """`name` on its first use, then `name:2`, `name:3` ..."""
        uses, unique = 1, name
        while (path, unique) in self._names:
            uses = max(uses, self._names[path, name]) + 1
            unique = f"{name}:{uses}"
        self._names[path, unique] = 1
        self._names[path, name] = uses
        return unique

    def build(self, outputs: Sequence[int]) -> Graph:
        """The finished graph; a padding that only convolutions read becomes part of them."""
        fields = {n: v for n, v in vars(self).items() if not n.startswith("_")}
        parts: dict[str, Any] = {
            n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()
        }
        for name in ("warnings", "training_only", "training_only_on_cpu"):
            parts[name] = tuple(dict.fromkeys(parts[name]))
        return merge_padding(Graph(outputs=tuple(outputs), **parts))


def is_flat(shape: Sequence[int]) -> bool:
    """True if at most one axis after the first is longer than 1, as in a tensor of channels alone."""
    return sum(n > 1 for n in shape[1:]) < 2


def merge_padding(graph: Graph) -> Graph:
    """Merge each padding that only convolutions read into them, so that INP excludes padding."""
    operations, readers = list[Operation](), graph.consumers()
    pads = {o.outputs[0]: o for o in graph.operations if o.kind == "pad"}
    for t in [*pads]:
        kinds = {graph.operations[p].kind for p in readers.get(t, ())}
        if t in graph.outputs or not kinds or not kinds <= CONVOLUTIONS:
            del pads[t]
    for operation in graph.operations:
        if operation.outputs[0] in pads:
            continue
        if operation.inputs and (pad := pads.get(operation.inputs[0])):
            attributes = {**operation.attributes, "pad_before": pad.attributes.get("padding")}
            attributes |= {"filled": True} if "filled" in pad.attributes else {}
            inputs = (pad.inputs[0], *operation.inputs[1:])
            operation = replace(operation, inputs=inputs, attributes=attributes)
        operations.append(operation)
    return replace(graph, operations=tuple(operations)) if pads else graph
