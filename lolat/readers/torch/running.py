"""The state of a PyTorch module's running code: its modules, gradients, autocast, checkpoints."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_HOLDERS = (
    "torch.nn.modules.transformer", "torch.nn.modules.container",
    "torch.nn.modules.activation.MultiheadAttention",
)  # fmt: skip
"""Modules of PyTorch that consist of several layers."""


@dataclass
class Running:
    """The state of the running code.

    `modules`: module -> its path; `called`: the modules called so far; `stack`: (path, class) of each
    module that is being called, the innermost last; `gradients`: False inside torch.no_grad and similar
    contexts; `applied`: True inside a user's torch.autograd.Function; `autocasts`: for each active
    torch.autocast, True if enabled; `part`: (number of the checkpointed part that runs, True if it is
    reentrant), or None; `parts`: number of checkpointed parts so far.
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
        """Mark the code in this context as recomputed in the backward pass; nested parts are one part."""
        outer = self.part
        self.parts += outer is None
        self.part = outer or (self.parts, reentrant)
        try:
            yield
        finally:
            self.part = outer

    def place(self) -> tuple[str, str]:
        """(name, path) of an operation: in a PyTorch layer the layer's name; elsewhere the name is ""."""
        path, layer = self.stack[-1]
        if path and layer.startswith("torch.nn.modules.") and not layer.startswith(_HOLDERS):
            above, _, name = path.rpartition(".")
            return name, above
        return "", path

    def stops(self, op: str) -> bool:
        """True if no gradient passes through an operation."""
        return not self.gradients or (op == "detach" and not self.applied)
