"""Files: documents (JSON), tables (CSV), where models and other data of a user live.

Here is only who reads networks apart: every command asks for it.
"""

from __future__ import annotations

from contextvars import ContextVar

FILES_APART: ContextVar[bool] = ContextVar("FILES_APART", default=False)
"""True in the command line, where files and code may be anybody's. In Python the caller has classes."""
