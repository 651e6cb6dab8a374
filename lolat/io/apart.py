"""What reading a network may take, and whether one that may do harm is read in a process of its own.

A module by itself, as every command asks.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

FILES_APART: ContextVar[bool] = ContextVar("FILES_APART", default=False)
"""True in the command line, where files and code may be anybody's. In Python the caller has classes."""


class Limits(NamedTuple):
    """Seconds for one network, the largest of keras.applications takes about ten; and GiB of memory on top
    of what the frameworks take themselves."""

    max_read_s: float = 60.0
    max_read_gib: float = 2.0


USUAL = Limits()
LIMITS: ContextVar[Limits] = ContextVar("LIMITS", default=USUAL)
"""Of what is read apart; options of the command line."""
