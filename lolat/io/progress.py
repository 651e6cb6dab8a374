"""Where something that takes long says how far it is."""

from __future__ import annotations

from collections.abc import Callable

Warn = Callable[[str], object]
"""Is told at once what a person should know."""


class Progress:
    """Is told of stages, of their steps, and of what a person should know; this one shows nothing."""

    def start(self, text: str, total: int) -> None:
        """A stage of `total` steps begins."""

    def step(self) -> None:
        """One step of the stage is done."""

    def note(self, text: str) -> None:
        """A remark for the user."""
