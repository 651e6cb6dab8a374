"""The state of a PyTorch module's code while it runs: its modules, gradients, autocast, checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_HOLDERS = (
    "torch.nn.modules.transformer", "torch.nn.modules.container",
    "torch.nn.modules.activation.MultiheadAttention",
)  # fmt: skip
"""Modules of PyTorch's own that are several operations."""


@dataclass
class Running:
    """The state of the code.

    `modules`: module -> its path; `called`: the modules called so far; `stack`: (path, class) of each that
    is being called, the innermost last; `gradients`: True outside of torch.no_grad and the like; `applied`:
    True inside of a user's torch.autograd.Function; `autocasts`: for each torch.autocast that lasts, True
    if enabled; `part`: number of the checkpointed part that runs, and True if it is reentrant; `parts`:
    number of such parts.
    """

    modules: Mapping[Any, str]
    called: set[Any] = field(default_factory=set)
    stack: list[tuple[str, str]] = field(default_factory=lambda: [("", "")])
    gradients: bool = True
    applied: bool = False
    autocasts: list[bool] = field(default_factory=list)
    part: tuple[int, bool] | None = None
    parts: int = 0

    @contextlib.contextmanager
    def checkpointed(self, reentrant: bool = False) -> Iterator[None]:
        """Note that the code is recomputed in the backward pass; of nested parts the outer one counts."""
        outer = self.part
        self.parts += outer is None
        self.part = outer or (self.parts, reentrant)
        try:
            yield
        finally:
            self.part = outer

    def place(self) -> tuple[str, str]:
        """Name and path of an operation: a layer of PyTorch's own has a name, others a path alone."""
        path, layer = self.stack[-1]
        if path and layer.startswith("torch.nn.modules.") and not layer.startswith(_HOLDERS):
            above, _, name = path.rpartition(".")
            return name, above
        return "", path

    def stops(self, op: str) -> bool:
        """True if no gradient goes through an operation."""
        return not self.gradients or (op == "detach" and not self.applied)
