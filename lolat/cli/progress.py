"""Prints remarks and progress on stderr while a command runs."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any, Self

import click

from lolat.io.progress import Progress
from lolat.units import duration, plain

QUIET = "lolat.quiet"
"""The key in the `meta` of click's context that is True with --quiet."""
EVERY_S = 10.0
"""Least seconds between progress lines if stderr is not a terminal; later lines are rarer."""


def is_quiet() -> bool:
    """Return whether the call has --quiet."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def say(text: str) -> None:
    """Print one line on stderr (a remark, a warning, progress); nothing with --quiet."""
    if not is_quiet():
        complain(text)


def complain(text: str) -> None:
    """Print one line on stderr even with --quiet, for an error."""
    with contextlib.suppress(OSError):  # a full disk below stderr: the exit code still says it
        click.echo(f"lolat: {plain(' '.join(str(text).split()))}", err=True)


MOST_UNTOLD = 20
"""Most steps at the start of a stage from which no duration is told; they may be the longest."""
SLOW_S = 600.0
"""A stage with more seconds left than this prints `slow`, the way to a shorter run."""


class Show(Progress):
    """Shows the progress of a run on stderr: a bar on a terminal, otherwise occasional lines."""

    def __init__(self, takes: str = "", slow: str = "") -> None:
        """`takes`: the expected duration of a run of more than a minute, printed before the first stage;
        `slow`: a remedy, printed once if a stage takes more than SLOW_S.
        """
        from rich.console import Console
        from rich.progress import Progress as Bar

        self.takes, self.text, self.total, self.done, self.time = takes, "", 0, 0, 0.0
        self.slow = slow
        self.began, self.first = 0.0, 0
        self.quiet = is_quiet()  # asked here: another thread does not know the call
        self.on_terminal = sys.stderr.isatty() and not self.quiet
        self.bar = Bar(console=Console(stderr=True), disable=not self.on_terminal)
        self.task: Any = None

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.bar.stop()

    def start(self, text: str, total: int, done: int = 0) -> None:
        """Begin a stage of `total` steps, of which `done` steps were done in an earlier run."""
        if self.takes:
            say(f"this takes {self.takes}")
            self.takes = ""
        if text != self.text:
            self.task = self.bar.add_task(text, total=total or None, completed=done)
            self._line(f"{text}: {total} step{'s' if total != 1 else ''}" if total else text)
        else:
            self.bar.reset(self.task, total=total, completed=done)
        self.text, self.total, self.done, self.began = text, total, done, time.monotonic()
        self.first = done

    def step(self) -> None:
        """Count one step as done."""
        self.done += 1
        self.bar.advance(self.task)
        run_s = time.monotonic() - self.began
        if time.monotonic() - self.time >= max(EVERY_S, run_s / 3):  # the longer, the rarer
            steps, tells = self.done - self.first, min((self.total - self.first) / 8, MOST_UNTOLD)
            left = run_s / steps * (self.total - self.done) if steps >= tells else 0.0
            more = f", about {duration(left)} more" if left >= 1.0 else ""
            of = f"of {self.total}" if self.total else "so far"
            if self.slow and left > SLOW_S:
                say(f"this is slow here: about {duration(left)} more; {self.slow}")
                self.slow = ""
            self._line(f"{self.text}: {self.done} {of}{more}")

    def note(self, text: str) -> None:
        """Print a remark."""
        if not self.quiet:
            complain(text)

    def _line(self, text: str) -> None:
        self.time = time.monotonic()
        if not self.on_terminal:
            say(text)


def counting(show: Show, what: str = "counting networks") -> Callable[[int, int, str], None]:
    """An `on_progress` callback that shows each network, or other item, as a step of the stage `what`."""

    def step(done: int, total: int, name: str) -> None:
        if done == 1:
            show.start(what, total)
        show.step()

    return step
