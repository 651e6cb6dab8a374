"""An ATen operation that PyTorch runs, which writes itself as a call of `lolat.readers.ops`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils._pytree import tree_leaves

from lolat.graph.kinds import BOTH, FLOAT32, INPUT, INTEGERS, OTHERS, POSITIONS, by_name
from lolat.readers.ops import Call, Writer
from lolat.readers.torch.layout import Layout

_SAVED = by_name(
    {
        INPUT: "var var_mean gather take take_along_dim",
        BOTH: "amax amin std std_mean prod logsumexp norm linalg_norm linalg_vector_norm frobenius_norm "
        "cumprod logcumsumexp scatter_reduce",
        POSITIONS: "sort topk kthvalue mode",
        f"{INPUT} {POSITIONS}": "cummax cummin",
        OTHERS: "addcmul addcdiv",
        INTEGERS: "index index_select index_add index_copy scatter scatter_add index_put put",
    }
)
"""Operation -> tensors that PyTorch's autograd saves (derivatives.yaml), if they differ from its kind's."""
_AUTOCAST = by_name(
    {
        FLOAT32: "sum prod logsumexp norm linalg_norm linalg_vector_norm linalg_matrix_norm frobenius_norm "
        "nuclear_norm acos arccos asin arcsin cosh sinh tan erfinv square dist cdist _cdist_forward "
        "_euclidean_dist pdist renorm",
        "": "exp2 logaddexp logaddexp2 cummax cummin logcumsumexp",
        INPUT: "lolat.roi_align torchvision.roi_align",  # converted, and its result back
    }
)
"""Operation -> its precision under autocast (ATen/autocast_mode.h), if it differs from its kind's."""
_EXTREMES = frozenset(["max", "min", "median", "nanmedian"])


@dataclass(frozen=True)
class AtenOperation:
    """One ATen operation.

    `op`: its name, without the underscore of an in-place operation; `arguments`: argument name in its
    schema -> value; `shapes`: shapes of its results; `tensor`: argument -> the graph's tensor; `layout`:
    knows channel axes; `is_copy`: True if the result shares no memory with the first argument; `is_view`:
    True if by its schema the result may share this memory, as for an in-place operation.
    """

    op: str
    arguments: Mapping[str, Any]
    shapes: Sequence[tuple[int, ...]]
    name: str
    path: str
    dtype: str
    writer: Writer
    tensor: Callable[[Any], int | None]
    layout: Layout
    is_copy: bool
    is_view: bool

    def get(self, name: str, default: Any = None) -> Any:
        """An argument; `default` if the operation does not have it, or if it is None."""
        value = self.arguments.get(name)
        return default if value is None else value

    def operand(self, name: str) -> int | None:
        """The graph's tensor of an argument; None if the argument is no tensor."""
        return self.tensor(self.get(name))

    @property
    def operands(self) -> list[int]:
        """The tensors that it reads, in order; a constant scalar only if trained or the only operand."""
        leaves, writer = tree_leaves(list(self.arguments.values())), self.writer
        tensors = [i for leaf in leaves if (i := self.tensor(leaf)) is not None]

        def is_read(i: int) -> bool:
            return bool(writer.shape(i)) or i in writer.scalars or i not in writer.constants

        return [*filter(is_read, tensors)] or tensors

    def write(self, op: str, inputs: Sequence[int] | None = None, **parameters: Any) -> list[int]:
        """Write the operation as a call; `inputs`: None for all operands."""
        inputs = self.operands if inputs is None else inputs
        parameters |= _saved(self.op, self.arguments) | _autocast(self.op)
        return self.writer.write(self.call(op, inputs, self.shapes, **parameters))

    def call(
        self, op: str, inputs: Sequence[int], shapes: Sequence[tuple[int, ...]], **parameters: Any
    ) -> Call:
        """The operation as a Call."""
        return Call(op, inputs, shapes, self.name, self.path, parameters, self.dtype)


def _autocast(op: str) -> dict[str, Any]:
    """{"autocast": ...} if an operation differs from its kind under autocast, else {}."""
    return {"autocast": _AUTOCAST[op]} if op in _AUTOCAST else {}


def _saved(op: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """{"saved": ...} if autograd saves other tensors for an operation than for its kind, else {}.

    A maximum along an axis saves its position; a maximum over all elements saves the elements.
    """
    if op in _EXTREMES and "other" not in arguments:
        return {"saved": POSITIONS if "dim" in arguments else BOTH}
    if op == "lerp" and not isinstance(arguments.get("weight"), int | float):
        return {"saved": INPUT}
    return {"saved": _SAVED[op]} if op in _SAVED else {}


def base_name(schema: Any) -> str:
    """conv2d for aten::conv2d, relu for aten::relu_, mylib.op for an operation of another library."""
    space, _, name = schema.name.partition("::")
    if schema.is_mutable and name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return name if space == "aten" else f"{space}.{name}"
