"""What every builder of a layer gets: an operation, its operands and their shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lolat.graph import Operation, Tensor

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """One operation on symbolic Keras tensors: `ins` and `outs` say their shapes at batch size 1."""

    keras: Any
    operation: Operation
    inputs: list[Any]
    ins: list[Shape]
    outs: list[Tensor]

    @property
    def x(self) -> Any:
        """The first input."""
        return self.inputs[0]

    @property
    def shape(self) -> Shape:
        """Shape of the first input at batch size 1."""
        return self.ins[0]

    @property
    def out(self) -> Shape:
        """Shape of the first output at batch size 1."""
        return self.outs[0].shape

    def layer(self, pattern: str, *arguments: Any, **options: Any) -> Any:
        """A Keras layer by name; "{}" in it becomes the number of spatial dimensions, "2D"."""
        return getattr(self.keras.layers, pattern.format(f"{len(self.shape) - 2}D"))(
            *arguments, **options
        )

    def reshape(self, x: Any, shape: Shape) -> Any:
        """`x` in the shape that is `shape` at batch size 1."""
        return self.keras.ops.reshape(x, (-1, *shape[1:]) if self.outs[0].batched else shape)


Maker = Callable[[Call], Any]
