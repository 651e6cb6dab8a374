"""What a command says on stderr while it works: remarks, and how far it is."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from typing import Any

import click

LONG = 200  # characters of a word: no path that people use, but what damaged files hold
QUIET = "lolat.quiet"
"""In the `meta` of a call's context: true with --quiet."""


def is_quiet() -> bool:
    """Whether the call was given --quiet."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(QUIET))


def say(text: str) -> None:
    """One line on stderr: a remark, a warning, how far it is; none with --quiet."""
    if not is_quiet():
        complain(text)


def complain(text: str) -> None:
    """One line on stderr, whatever was asked for: an error. Of a very long word the ends are shown."""
    words = (w if len(w) <= LONG else f"{w[: LONG // 2]}...{w[-20:]}" for w in str(text).split())
    line = " ".join(words)
    shown = (
        line
        if line.isprintable()
        else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    )
    with contextlib.suppress(OSError):  # a full disk below stderr: the exit code still says it
        click.echo(f"lolat: {shown}", err=True)


# ---- How far a run is: a bar with the time left on a terminal, plain lines elsewhere; both on
# stderr.

QUIET_S = 5.0  # between two plain lines of a stage, at least
AGAIN_S = 60.0  # between two lines that the same stage begins
FEW = 4  # steps: with fewer there is nothing to tell between beginning and end


class PlainProgress:
    """A line at the start of a stage and at every quarter of it, unless they come thick and fast."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, takes: str = "") -> None:
        """`takes`: how long it will be, said before the first stage: what is wrong is found out before."""
        self.clock, self.takes = clock, takes
        self.text, self.total, self.done, self.began, self.said = "", 0, 0, 0.0, 0.0
        self.told: dict[str, float] = {}  # stage -> when its beginning was said last

    def __enter__(self) -> PlainProgress:
        return self

    def __exit__(self, *unused: object) -> None:
        return None

    def announce(self) -> None:
        """Say how long it takes, once."""
        if self.takes:
            say(f"this takes {self.takes}")
        self.takes = ""

    def start(self, text: str, total: int) -> None:
        """A stage of `total` steps begins; one that comes again and again is told once a minute."""
        self.announce()
        now = self.clock()
        if now - self.told.get(text, -AGAIN_S) >= AGAIN_S:
            say(f"{text}: {total} step{'s' * (total != 1)}")
            self.said = self.told[text] = now
        self.text, self.total, self.done, self.began = text, total, 0, now

    def step(self) -> None:
        """One step is done."""
        self.done += 1
        now = self.clock()
        quarter = max(1, self.total // 4)
        if self.done % quarter == 0 and self.total >= FEW and now - self.said >= QUIET_S:
            left = (now - self.began) / self.done * (self.total - self.done)
            say(f"{self.text}: {self.done} of {self.total}, about {left:.0f} s left")
            self.said = now

    def note(self, text: str) -> None:
        """A remark."""
        say(text)


class BarProgress(PlainProgress):
    """rich's progress bar."""

    def __init__(self, takes: str = "") -> None:
        from rich import progress as bars
        from rich.console import Console

        super().__init__(takes=takes)
        self.bar = bars.Progress(
            bars.TextColumn("{task.description:10}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(stderr=True),
        )
        self.task: Any = None

    def __enter__(self) -> PlainProgress:
        self.bar.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.bar.stop()

    def start(self, text: str, total: int) -> None:
        """A stage of `total` steps begins."""
        self.announce()
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


def progress(takes: str = "") -> PlainProgress:
    """What suits stderr; `takes`: how long, of what takes more than a minute."""
    shown = sys.stderr.isatty() and not is_quiet()
    return BarProgress(takes) if shown else PlainProgress(takes=takes)


def counting(bar: Any) -> Callable[[int, int, str], None]:
    """What `lolat.devices` tells of its networks, on a bar."""

    def said(done: int, total: int, name: str) -> None:
        if done == 1:
            bar.start("counting networks", total)
        bar.step()

    return said
