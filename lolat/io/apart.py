"""Whether networks' files are read in a process of their own; a module by itself, as every command asks."""

from __future__ import annotations

from contextvars import ContextVar

FILES_APART: ContextVar[bool] = ContextVar("FILES_APART", default=False)
"""True in the command line, where a file may be anybody's. In Python the caller has classes."""
