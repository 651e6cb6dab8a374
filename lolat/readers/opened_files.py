"""Records the files that the user's code reads, so that results made from them can be cached."""

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
from lolat.units import INSTALLED, PYTHON

Stamps = dict[str, list[int] | None]
"""Path -> [time of the last change in ns, size in bytes] of a file; None if the file does not exist."""

_CODE = (CODE_FILE, ".pyc", ".so")
_ELSEWHERE = (
    PYTHON,
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    "/dev/", "/proc/", "/sys/",
)  # fmt: skip
"""Prefixes of paths that are not the user's data: files of Python, LoLat and the system."""


def stamp(path: str) -> list[int] | None:
    """The stamp of a file, as in `Stamps`."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return [found.st_mtime_ns, found.st_size]


class Watch:
    """An audit hook of Python. A hook cannot be removed, so a process has one `Watch` for each use.

    `stamps`: stamps of all files read so far, because code may keep what it read for later calls;
    `written`: files that the code wrote.
    """

    def __init__(self) -> None:
        self.stamps: Stamps = {}
        self.written: set[str] = set()
        self._thread = threading.local()
        self._is_hooked = False

    @contextlib.contextmanager
    def during(self) -> Iterator[Stamps]:
        """Record the files that this thread opens; yield the stamps of all files read so far.

        A stamp is taken just before the file's last opening. Not recorded: folders, modules, files that the
        code wrote, and files of Python, LoLat and installed packages.
        """
        if not self._is_hooked:
            sys.addaudithook(self._hook)
            self._is_hooked = True
        before = getattr(self._thread, "cache", None)
        self._thread.cache = f"{cache_folder()}{os.sep}"
        try:
            yield self.stamps
        finally:
            self._thread.cache = before

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and getattr(self._thread, "cache", None):
            with contextlib.suppress(Exception):  # else the user's `open` would fail
                self._note(args[0], args[2])

    def _note(self, given: Any, flags: int) -> None:
        """Record a file that is about to be opened with the os.open `flags`."""
        if isinstance(given, int):
            return
        path = os.path.abspath(os.fsdecode(given))
        if flags & (os.O_WRONLY | os.O_RDWR):
            self.written.add(path)
            self.stamps.pop(path, None)
        elif not (
            path in self.written
            or path.endswith(_CODE)
            or path.startswith((*_ELSEWHERE, self._thread.cache))
            or INSTALLED in path
        ):
            with contextlib.suppress(OSError):
                if stat.S_ISDIR(os.stat(path).st_mode):
                    return
            self.stamps[path] = stamp(path)


watched = Watch().during
