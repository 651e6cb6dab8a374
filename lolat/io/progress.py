"""Receives the progress and the remarks of long computations."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

Warn = Callable[[str], object]
"""A callback that gets each remark for the user as soon as it is known."""
OnProgress = Callable[[int, int, str], None]
"""A callback that gets (number of networks done, number of all, name of the last one)."""


def nobody(text: str) -> None:
    """A `Warn` that says nothing."""


class Progress:
    """Receives stages, their steps, and remarks for the user; this one shows nothing."""

    def start(self, text: str, total: int, done: int = 0) -> None:
        """Begin a stage of `total` steps (0: unknown), of which `done` are done already."""

    def step(self) -> None:
        """Count one step of the stage as done."""

    def note(self, text: str) -> None:
        """Receive a remark for the user."""


LATE_S = 1.5


@contextlib.contextmanager
def late(tell: Warn, text: str) -> Iterator[None]:
    """Call `tell` with a text if the work inside this context takes longer than a moment."""
    timer = threading.Timer(LATE_S, tell, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
