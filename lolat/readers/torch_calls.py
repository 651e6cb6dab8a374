"""A node of an exported PyTorch program, as the rules see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Call:
    """A node as a rule sees it: its arguments by name, the shapes it writes, how it is called."""

    node: Any
    op: str  # "conv2d", without the underscore of an in-place one
    arguments: dict[str, Any]
    shapes: list[tuple[int, ...]]
    name: (
        str  # of the layer in its module: "conv1", or "0" in a Sequential; "" for a plain operation
    )
    path: str
    dtype: str

    def label(self, kind: str, suffix: str = "") -> str:
        """What an operation of this call is called; a mere number is that of its kind: "conv_0"."""
        label = f"{kind}_{self.name}" if self.name.isdigit() else self.name or kind
        return f"{label}_{suffix}" if suffix else label

    def get(self, name: str, default: Any = None) -> Any:
        """An argument; `default` when the operation has none of that name, or None in it."""
        found = self.arguments.get(name)
        return default if found is None else found


def dtype_name(value: Any) -> str:
    """float32, int64 ... of a torch tensor."""
    return str(value.dtype).removeprefix("torch.")


def is_mutable(node: Any) -> bool:
    """Whether an operation writes into its first argument."""
    return bool(getattr(getattr(node.target, "_schema", None), "is_mutable", False))


def base_name(node: Any) -> str:
    """conv2d for aten.conv2d.default, relu for aten.relu_.default, mylib.op for others' operations."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return f"python.{getattr(node.target, '__name__', node.target)}"
    space, _, name = schema.name.partition("::")
    if schema.is_mutable and name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return name if space == "aten" else f"{space}.{name}"


def arguments_of(node: Any) -> dict[str, Any]:
    """The arguments of a node by the names of the operation's schema, defaults filled in."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return {str(i): argument for i, argument in enumerate(node.args)} | dict(node.kwargs)
    found = {}
    for position, argument in enumerate(schema.arguments):
        if position < len(node.args):
            found[argument.name] = node.args[position]
        else:
            found[argument.name] = node.kwargs.get(argument.name, argument.default_value)
    return found


def flat(value: Any) -> Sequence[Any]:
    """The leaves of nested tuples, lists and dicts."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [leaf for item in value for leaf in flat(item)]
    return [value]


def indices_of(value: Any) -> list[int]:
    """The tensors in what a walker knows of a node."""
    if isinstance(value, list):
        return [i for i in value if isinstance(i, int)]
    return [value] if isinstance(value, int) else []
