"""The receiver of progress and remarks of long computations."""

from __future__ import annotations

from collections.abc import Callable

Warn = Callable[[str], object]
"""Called at once with a remark for the user."""


class Progress:
    """Receives stages, their steps, and remarks for the user; this one shows nothing."""

    def start(self, text: str, total: int) -> None:
        """A stage of `total` steps begins."""

    def step(self) -> None:
        """One step of the stage is done."""

    def note(self, text: str) -> None:
        """A remark for the user."""
