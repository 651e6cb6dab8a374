"""How many threads a backend is to use on a CPU: the option `threads=N`, which every backend has.

Without it a framework takes as many as there are processors.
"""

from __future__ import annotations

from typing import Any

from lolat.errors import InputError
from microbench.environment import cpu_count

PREFIX = "threads="


def number(option: str) -> int:
    """N of `threads=N`; InputError where it is no whole number from 1."""
    given = option.removeprefix(PREFIX)
    # Such digits as ² are no number to `int`.
    found = int(given) if given.isascii() and given.isdigit() and len(given) < 10 else 0
    if found < 1:
        raise InputError(f"--threads {given}: expected a whole number of threads, 1 or more")
    return found


def check_asked(threads: int | None, device: str) -> None:
    """InputError where `threads` (None: not asked for) can be had on no `device` (cpu or gpu)."""
    if threads is None:
        return
    if device != "cpu":
        raise InputError(
            f"--threads {threads} is for the cpu; a {device} computes with all that it has: leave it out"
        )
    number(f"{PREFIX}{threads}")


def check(threads: int | None, device: str) -> None:
    """The same, and where this process has not so many processors."""
    check_asked(threads, device)
    most = cpu_count()
    if threads is not None and threads > most:
        several = f"{most} processors" if most > 1 else "one processor"
        raise InputError(
            f"--threads {threads}: this process may use {several}; expected a number from 1 to {most}"
        )


def environment(threads: int | None) -> dict[str, Any]:
    """What a backend's environment says of it; nothing where it was not asked for."""
    return {} if threads is None else {"threads": threads, "threads_asked": threads}
