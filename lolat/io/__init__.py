"""Files: documents (JSON), tables (CSV), where models and other data of a user live; what reading may take.

The last is here, and no more: every command asks for it.
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
