"""The receiver of the progress and the remarks of long computations."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

Warn = Callable[[str], object]
"""Called at once with a remark for the user."""
OnProgress = Callable[[int, int, str], None]
"""Called with (number of networks that are done, number of all, name of the last)."""


def nobody(text: str) -> None:
    """A `Warn` that says nothing."""


class Progress:
    """Receives stages, their steps, and remarks for the user; this one shows nothing."""

    def start(self, text: str, total: int, done: int = 0) -> None:
        """A stage of `total` steps begins, of which `done` are done already; 0: not known how many."""

    def step(self) -> None:
        """One step of the stage is done."""

    def note(self, text: str) -> None:
        """A remark for the user."""


LATE_S = 1.5


@contextlib.contextmanager
def late(tell: Warn, text: str) -> Iterator[None]:
    """Tell a text if the work takes longer than a moment."""
    timer = threading.Timer(LATE_S, tell, [text])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
