"""What a command says on stderr while it works: remarks, and how far it is."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import click


def say(text: str) -> None:
    """One line on stderr."""
    click.echo(f"lolat: {' '.join(str(text).split())}", err=True)


# ---- How far a run is: a bar with the time left on a terminal, plain lines elsewhere; both on
# stderr.

QUIET_S = 5.0  # between two plain lines of a stage, at least


class PlainProgress:
    """A line at the start of a stage and at every quarter of it, unless they come thick and fast."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.text, self.total, self.done, self.began, self.said = "", 0, 0, 0.0, 0.0

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *unused: object) -> None:
        return None

    def start(self, text: str, total: int) -> None:
        """A stage of `total` steps begins; the same one again within QUIET_S of a line has none."""
        now = self.clock()
        if text != self.text or now - self.said >= QUIET_S:
            say(f"{text}: {total} steps")
            self.said = now
        self.text, self.total, self.done, self.began = text, total, 0, now

    def step(self) -> None:
        """One step is done."""
        self.done += 1
        now = self.clock()
        quarter = max(1, self.total // 4)
        if self.done % quarter == 0 and now - self.said >= QUIET_S:
            left = (now - self.began) / self.done * (self.total - self.done)
            say(f"{self.text}: {self.done} of {self.total}, about {left:.0f} s left")
            self.said = now

    def note(self, text: str) -> None:
        """A remark."""
        say(text)


class BarProgress:
    """rich's progress bar."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self.bar = Progress(
            TextColumn("{task.description:10}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
        )
        self.task: Any = None
        self.text = ""

    def __enter__(self) -> BarProgress:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def start(self, text: str, total: int) -> None:
        """A stage of `total` steps begins."""
        if text == self.text:
            self.bar.reset(self.task, total=total)
        else:
            self.task = self.bar.add_task(text, total=total)
        self.text = text

    def step(self) -> None:
        """One step is done."""
        self.bar.advance(self.task)

    def note(self, text: str) -> None:
        """A remark."""
        self.bar.console.print(f"lolat: {text}", markup=False, highlight=False)


def progress() -> PlainProgress | BarProgress:
    """What suits stderr."""
    return BarProgress() if sys.stderr.isatty() else PlainProgress()


def counting(bar: Any) -> Callable[[int, int, str], None]:
    """What `lolat.devices.tables` tells of its networks, on a bar."""

    def said(done: int, total: int, name: str) -> None:
        if done == 1:
            bar.start("counting networks", total)
        bar.step()

    return said
