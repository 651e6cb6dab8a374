"""Writes files completely or not at all; a failure is one plain line."""

from __future__ import annotations

import contextlib
import errno
import gzip
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from lolat.errors import InputError, LolatError, arg, argument_code
from lolat.io.paths import AnyPath, reason_of, shown_path

_MISTAKES = {
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST,
    errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL,
}  # fmt: skip
"""System errors that another file name avoids; other errors, such as a full disk, are not the user's."""


def write_bytes(path: AnyPath, content: bytes) -> None:
    """Write `content` to `path` atomically; makes parent folders, keeps an existing file's permissions.

    Readers see the old or the new file, never a part of it, even if the process is killed. A link is
    followed and stays a link. InputError if `path` cannot be written (no permission, a folder, a wrong
    name), LolatError if the disk is full or fails.
    """
    try:
        target = os.path.realpath(path)
        mode = _check_target(target)
        folder = os.path.dirname(target)
        os.makedirs(folder, exist_ok=True)
        # A short name: the target's may already be as long as names can be.
        temporary = os.path.join(folder, f".lolat-{os.getpid()}-{os.urandom(4).hex()}.tmp")
        try:
            with open(temporary, "xb") as file:
                if mode is not None:
                    os.chmod(temporary, stat.S_IMODE(mode))
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    except (OSError, ValueError) as error:
        raise not_written(error, shown_path(path)) from None


def write_text(path: AnyPath, text: str) -> None:
    """Write `text` in UTF-8 to `path` by `write_bytes`; compressed if the name ends in .gz."""
    write_bytes(path, encoded(path, text))


def encoded(path: AnyPath, text: str) -> bytes:
    """The bytes of `text` in UTF-8 for the file `path`: compressed if the name ends in .gz."""
    content = text.encode()
    is_compressed = os.fspath(path).lower().endswith(".gz")
    return gzip.compress(content, mtime=0) if is_compressed else content


def check_file(path: AnyPath | None, argument: str, make_folder: bool = False) -> None:
    """Raise InputError, before minutes of work, if the output file of an argument cannot be written.

    `path`: None if the argument is not given; `make_folder`: make the folder, which otherwise must exist.
    """
    if path is None:
        return
    if os.fspath(path) == "-":
        raise InputError(
            f"{arg(argument)} -: expected a file; nothing is written to the output",
            code=argument_code(argument),
        )
    try:
        _check_target(os.path.realpath(path))
        folder = Path(os.path.realpath(path)).parent
        if make_folder:
            folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):  # a file is replaced by one that is written beside it
            if not folder.is_dir():
                missing = folder if Path(path).parent.is_dir() else Path(path).parent
                raise NotADirectoryError(errno.ENOTDIR, f"no folder {shown_path(missing)}")
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), folder)
    except (OSError, ValueError) as error:
        raise not_written(error, f"{arg(argument)} {shown_path(path)}") from error


def check_inputs_stay(
    outputs: Mapping[str, AnyPath | None], inputs: Iterable[AnyPath], renews: bool = False
) -> None:
    """Raise InputError if an output would overwrite an input file or another output.

    `outputs`: argument -> file, None if not given; `inputs`: the inputs, of which texts that are no files
    are ignored. `renews`: True if a JSON file may be overwritten by its new version.
    """
    read = {os.path.realpath(path) for path in inputs if os.path.isfile(path)}
    for name, path in outputs.items():
        is_renewed = renews and str(path).endswith(".json")
        if path is not None and os.path.realpath(path) in read and not is_renewed:
            words = f"{arg(name)} {shown_path(path)}: this file is read here; expected another name"
            raise InputError(words, code="not-written", path=shown_path(path))
    given = {name: path for name, path in outputs.items() if path is not None}
    for (one, path), (other, second) in itertools.combinations(given.items(), 2):
        if os.path.realpath(path) == os.path.realpath(second):
            words = f"{arg(one)} and {arg(other)} are one file, {shown_path(path)}; expected two"
            raise InputError(words, code="not-written", path=shown_path(path))


def check_kind(path: AnyPath, argument: str, read: Callable[[str], object]) -> None:
    """Raise InputError if the file of an argument exists and is of another kind.

    `read`: reads a file of this kind, and raises LolatError for one of another kind.
    """
    if os.path.exists(path):
        try:
            read(str(path))
        except LolatError:
            words = f"{arg(argument)} {shown_path(path)} holds something else; expected a new name"
            raise InputError(words, code="not-written", path=shown_path(path)) from None


def _check_target(target: str) -> int | None:
    """The permissions of an existing file, or None; OSError if the file must not be replaced."""
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return None
    # Replacing /dev/stdout or a pipe by a file would break it for everybody.
    if not stat.S_ISREG(mode):
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EEXIST
        raise OSError(code, "it is a folder" if stat.S_ISDIR(mode) else "it is no regular file")
    # Replacing needs the folder's permission alone; a read-only file is meant to stay.
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)
    return mode


def not_written(error: OSError | ValueError, source: str) -> LolatError:
    """The error for a file that could not be written."""
    kind: type[LolatError] = LolatError
    words = (
        f"not written ({reason_of(error)}); the former file is unchanged: fix that and run it again"
    )
    if isinstance(error, ValueError) or error.errno in _MISTAKES:
        kind = InputError
        words = f"cannot be written ({reason_of(error)}); expected the name of a file that you can write"
    return kind(f"{source}: {words}", code="not-written", path=source)
