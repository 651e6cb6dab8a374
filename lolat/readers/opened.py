"""The files that the user's code opens to read, so that what was made from them can be cached."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
import threading
from collections.abc import Iterator
from typing import Any

from lolat.io.forms import CODE_FILE
from lolat.io.paths import cache_folder

Stamps = dict[str, list[int] | None]
"""Path -> time of the last change (ns) and size of a file, None where there is none."""

_STAMPS: Stamps = {}
"""Of all files so far: code may keep for its next call what it read for the first."""
_WRITTEN: set[str] = set()
_CODE = (CODE_FILE, ".pyc", ".so")
_ELSEWHERE = (
    os.path.dirname(os.__file__) + os.sep,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    "/dev/", "/proc/", "/sys/",
)  # fmt: skip
"""Beginnings of paths that are no data of the user's: Python's, LoLat's, the system's."""
_watching = threading.local()


def stamp(path: str) -> list[int] | None:
    """The stamp of a file, as of `Stamps`."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return [found.st_mtime_ns, found.st_size]


@contextlib.contextmanager
def watched() -> Iterator[Stamps]:
    """Note the files that this thread opens; yield the stamps of all that were opened so far to be read.

    A stamp is of the moment before the file was opened last. A file that the code wrote, a folder, a module
    and a file of Python, of an installed package or of LoLat have none.
    """
    if not hasattr(sys, "_lolat_watches"):
        sys.addaudithook(_hook)  # which Python never removes
        sys._lolat_watches = True  # type: ignore[attr-defined]
    before = getattr(_watching, "cache", None)
    _watching.cache = f"{cache_folder()}{os.sep}"
    try:
        yield _STAMPS
    finally:
        _watching.cache = before


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and getattr(_watching, "cache", None):
        with contextlib.suppress(Exception):  # else the user's `open` would fail
            _note(args[0], args[2])


def _note(given: Any, flags: int) -> None:
    """Note a file that is about to be opened with these flags of the system."""
    if isinstance(given, int):
        return
    path = os.path.abspath(os.fsdecode(given))
    if flags & (os.O_WRONLY | os.O_RDWR):
        _WRITTEN.add(path)
        _STAMPS.pop(path, None)
    elif not (
        path in _WRITTEN
        or path.endswith(_CODE)
        or path.startswith((*_ELSEWHERE, _watching.cache))
        or f"-packages{os.sep}" in path
    ):
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.stat(path).st_mode):
                return
        _STAMPS[path] = stamp(path)
