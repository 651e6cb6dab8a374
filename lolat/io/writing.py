"""The one way a file is written: whole or not at all, with one plain line where it cannot be."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import Any, NoReturn

from lolat.errors import InputError, LolatError, arg, not_written
from lolat.units import plain

AnyPath = str | os.PathLike[str]

_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
_WRONG_PLACE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
_WRONG_NAME = {errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
_DISK_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


def write_bytes(path: AnyPath, content: bytes) -> None:
    """Put `content` at `path` in one step, making parent folders as needed.

    Whoever reads it, and whatever is killed when, sees the old file or the new one, never a part. A link is
    followed and stays a link. InputError where `path` cannot be written (no permission, a folder, a bad
    name), LolatError where the disk is full or fails.
    """
    source = shown_path(path)
    try:
        target = os.path.realpath(path)
        _check_target(target, source)
        folder = os.path.dirname(target)
        os.makedirs(folder, exist_ok=True)
        _replace(target, folder, content)
    except (OSError, ValueError) as error:
        _raise_write_error(error, source)


def write_text(path: AnyPath, text: str) -> None:
    """Put `text`, in UTF-8, at `path` as `write_bytes` does; straight into a device or a pipe."""
    try:
        straight = not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode)
    except (OSError, ValueError):
        straight = False
    if not straight:
        write_bytes(path, text.encode())
        return
    try:
        with open(path, "wb") as file:
            file.write(text.encode())
    except OSError as error:
        _raise_write_error(error, shown_path(path))


def shown_path(path: AnyPath) -> str:
    """A path as a message names it: one line, whatever is in it."""
    text = os.fsdecode(path)
    return plain(text) if text else "''"


def _check_target(target: str, source: str) -> None:
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise InputError(
            f"{source}: is a folder; expected the name of a file to write",
            code="not-written",
            path=source,
        )
    # Replacing /dev/stdout or a pipe by a file would break it for everybody.
    if not stat.S_ISREG(mode):
        raise InputError(
            f"{source}: is not a regular file; expected the name of a file to write",
            code="not-written",
            path=source,
        )
    # The replacement needs only the folder's permission; a read-only file is meant to stay.
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)


def _replace(target: str, folder: str, content: bytes) -> None:
    """Write beside the target, force it to the disk, then rename over it."""
    # Its own short name: the target's may already be as long as names can be.
    temporary = os.path.join(folder, f".lolat-{os.getpid()}-{os.urandom(4).hex()}.tmp")
    handle, has_name = _new_file(folder, temporary)
    try:
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
            if not has_name:
                os.link(f"/proc/self/fd/{handle}", temporary, src_dir_fd=handle)
        finally:
            os.close(handle)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    if os.name == "posix":
        # The new name is on the disk only with its folder. Some file systems refuse this; the
        # file is whole all the same.
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _new_file(folder: str, temporary: str) -> tuple[int, bool]:
    """(descriptor, whether it has its name yet): without one where it can: a kill leaves nothing."""
    if hasattr(os, "O_TMPFILE") and os.path.isdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # a file system that knows no such files
            return os.open(folder, os.O_WRONLY | os.O_TMPFILE, 0o666), False
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    return os.open(temporary, flags, 0o666), True


def _raise_write_error(error: OSError | ValueError, source: str) -> NoReturn:
    code = error.errno if isinstance(error, OSError) else None
    about: dict[str, Any] = {"code": "not-written", "path": source}
    if code in _NOT_ALLOWED:
        raise InputError(
            f"{source}: no permission to write it; expected a file in a folder that this user can "
            "write to: give another name",
            **about,
        ) from None
    if code in _DISK_FULL:
        raise LolatError(
            f"{source}: not written, the disk is full ({_reason(error)}); what was there before is "
            "unchanged: make room and run it again",
            **about,
        ) from None
    if code is None or code in _WRONG_PLACE or code in _WRONG_NAME:
        raise InputError(
            f"{source}: cannot be written ({_reason(error)}); expected the name of a file to write",
            **about,
        ) from None
    raise LolatError(
        f"{source}: not written ({_reason(error)}); what was there before is unchanged", **about
    ) from None


def _reason(error: Exception) -> str:
    said = error.strerror if isinstance(error, OSError) and error.strerror else error
    return " ".join(str(said).split())


def check_file(path: AnyPath | None, argument: str) -> None:
    """InputError now rather than after minutes, if the file of an argument, where it is given, cannot be
    written, or has no folder.
    """
    if path is None:
        return
    target = Path(path)
    if target.is_dir():
        raise InputError(
            f"{arg(argument)} {path}: is a folder; expected the name of a file",
            code="not-written", path=str(path),
        )  # fmt: skip
    reason = "no permission to write it"
    try:
        target.stat()
        able = os.access(target, os.W_OK)
    except FileNotFoundError:
        able = os.access(target.parent, os.W_OK)
        reason = reason if target.parent.is_dir() else f"no folder {target.parent}"
    except OSError as error:  # a ring of links, a name that is too long
        able, reason = False, _reason(error)
    if not able:
        raise InputError(
            f"{arg(argument)} {path}: {reason}; expected a file in a folder of yours",
            code="not-written", path=str(path),
        )  # fmt: skip


def check_writable(path: Path, argument: str = "output") -> None:
    """InputError now rather than after minutes of measuring, if the file of an argument cannot be written;
    its folder is made.
    """
    folder, wrong = path.parent, ""
    try:
        if path.is_dir():
            wrong = f"{arg(argument)} {path} is a folder; expected the name of a file"
        elif path.exists() and not path.is_file():
            wrong = f"{arg(argument)} {path} is not a regular file; expected the name of a file"
        elif path.exists() and not os.access(path, os.W_OK):
            wrong = f"no permission to write {path}; give {arg(argument)} elsewhere"
        else:
            with contextlib.suppress(FileNotFoundError):
                path.stat()  # a ring of links
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                wrong = f"no permission to write in {folder}; give {arg(argument)} elsewhere"
    except OSError as error:
        raise not_written(path, error, argument) from error
    if wrong:
        raise InputError(wrong, code="not-written", path=str(path))
