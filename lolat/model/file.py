"""The JSON model file: read whole or refused with one plain error, written whole or not at all.

Standard library only; `lolat.model.schema` says what a document must hold.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from typing import Any, NoReturn

from lolat.errors import InputError, LolatError, ModelFileError
from lolat.io.documents import DEEPEST, show, text_too_deep
from lolat.model.schema import FORMAT_VERSION, SCHEMA, validate

__all__ = ["FORMAT_VERSION", "SCHEMA", "NotJsonError", "read", "to_json", "validate", "write"]

AnyPath = str | os.PathLike[str]

# Real models are a few hundred kilobytes. Parsing takes several times the file's size in memory.
LARGEST_BYTES = 64 * 2**20
_EXPECTED = "expected a LoLat model file"
_LINE = 100

_NOT_ALLOWED = {errno.EACCES, errno.EPERM, errno.EROFS}
_WRONG_PLACE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EEXIST}
_WRONG_NAME = {errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL}
_DISK_FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}


class NotJsonError(ModelFileError):
    """A file that is something else than JSON, a table maybe."""


def read(path: AnyPath) -> dict[str, Any]:
    """The document in the model file at `path`, parsed and checked by `validate`.

    Raises ModelFileError, one line that names the path: no such file, a folder, no permission,
    too large, not UTF-8, not JSON, cut off, something else than a LoLat model, or a wrong field.
    """
    source = _shown_path(path)
    content = _content(path, source)
    document = _parse(content, source)
    validate(document, source)
    return document


def write(path: AnyPath, document: dict[str, Any]) -> None:
    """Check `document` and put it at `path`, making parent folders as needed.

    The file is replaced in one step: whoever reads it, and whatever is killed when, sees the old
    file or the new one, never a part. A link is followed and stays a link.

    Raises ModelFileError where the document is not valid, InputError where `path` cannot be
    written (no permission, a folder, a bad name), LolatError where the disk is full or fails.
    """
    source = _shown_path(path)
    validate(document, source)
    write_bytes(path, to_json(document, source).encode("ascii"))


def write_bytes(path: AnyPath, content: bytes) -> None:
    """Put `content` at `path` in one step, making parent folders as needed; errors as of `write`."""
    source = _shown_path(path)
    try:
        target = os.path.realpath(path)
        _check_target(target, source)
        folder = os.path.dirname(target)
        os.makedirs(folder, exist_ok=True)
        _replace(target, folder, content)
    except (OSError, ValueError) as error:
        _raise_write_error(error, source)


def to_json(document: dict[str, Any], source: str = "document") -> str:
    """`document` as the text of a model file: keys sorted, one point a line, ASCII, for any editor.

    `json.loads` gives back an equal document. Raises ModelFileError for what JSON cannot hold.
    """
    try:
        return _formatted(document, "\n", in_list=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{source}: cannot be written as JSON ({_one_line(error)}); expected text keys, lists, "
            "text, finite numbers, true, false and null"
        ) from None


def _content(path: AnyPath, source: str) -> bytes:
    try:
        # Asked before opening, as opening a pipe that nobody writes to would wait for ever.
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise ModelFileError(f"{source}: is a folder; {_EXPECTED}")
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{source}: is not a regular file; {_EXPECTED}")
        if status.st_size > LARGEST_BYTES:
            raise ModelFileError(
                f"{source}: {status.st_size / 2**20:.0f} MiB is too large; {_EXPECTED} of at most "
                f"{LARGEST_BYTES // 2**20} MiB"
            )
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except FileNotFoundError:
        raise ModelFileError(
            f"{source}: no such file; {_EXPECTED} (`python learn_model.py cpu` makes one, "
            "`lolat models` lists those there are)"
        ) from None
    except PermissionError:
        raise ModelFileError(
            f"{source}: no permission to read it; {_EXPECTED} that this user can read"
        ) from None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"{source}: cannot be read ({_reason(error)}); {_EXPECTED}") from None


def _parse(content: bytes, source: str) -> Any:
    try:
        # Some editors put a byte order mark in front of UTF-8; it does no harm.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        # A file cut off within a character ends in one that is not whole.
        cut = error.reason == "unexpected end of data"
        if cut:
            raise ModelFileError(_truncated(source, len(content))) from None
        raise NotJsonError(
            f"{source}: not UTF-8 text (at byte {error.start}); {_EXPECTED}"
        ) from None
    if text_too_deep(text):  # before the parser, which calls itself for each
        raise ModelFileError(
            f"{source}: lists or objects nested too deeply (more than {DEEPEST} in each other); "
            f"{_EXPECTED}"
        )
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise _not_json(error, text, source, len(content)) from None
    except _ConstantError as error:
        raise ModelFileError(
            f"{source}: holds {error}, which is not a finite number; {_EXPECTED}, with finite "
            "numbers only"
        ) from None
    except ValueError:
        # Python's limit on the digits of an integer, which is not a JSONDecodeError.
        raise ModelFileError(
            f"{source}: holds an integer of thousands of digits; {_EXPECTED}"
        ) from None


class _ConstantError(Exception):
    """NaN, Infinity or -Infinity stands in the text; Python's parser would take it."""


def _refuse_constant(name: str) -> NoReturn:
    raise _ConstantError(name)


def _not_json(error: json.JSONDecodeError, text: str, source: str, size: int) -> ModelFileError:
    body = text.strip()
    if not body:
        return NotJsonError(f"{source}: is empty; {_EXPECTED}")
    # Only the start of an object is there; an object with something after it is not cut off.
    breaks_off = not body.endswith("}") or error.pos >= len(text.rstrip())
    if body.startswith("{") and breaks_off and error.msg != "Extra data":
        return ModelFileError(_truncated(source, size))
    place = f"line {error.lineno}, column {error.colno}"
    return NotJsonError(f"{source}: not JSON ({error.msg} at {place}); {_EXPECTED}")


def _truncated(source: str, size: int) -> str:
    return (
        f"{source}: looks truncated: the JSON breaks off after {size} bytes; expected a whole "
        "LoLat model file: copy it again, or learn it again"
    )


def _check_target(target: str, source: str) -> None:
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise InputError(f"{source}: is a folder; expected the name of a file to write")
    # Replacing /dev/stdout or a pipe by a file would break it for everybody.
    if not stat.S_ISREG(mode):
        raise InputError(f"{source}: is not a regular file; expected the name of a file to write")
    # The replacement needs only the folder's permission; a read-only file is meant to stay.
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), target)


def _replace(target: str, folder: str, content: bytes) -> None:
    """Write beside the target, force it to the disk, then rename over it."""
    # Its own short name: the target's may already be as long as names can be.
    temporary = os.path.join(folder, f".lolat-{os.getpid()}-{os.urandom(4).hex()}.tmp")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    handle = os.open(temporary, flags, 0o666)
    try:
        try:
            rest = memoryview(content)
            while rest:
                rest = rest[os.write(handle, rest) :]
            os.fsync(handle)
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


def _raise_write_error(error: OSError | ValueError, source: str) -> NoReturn:
    code = error.errno if isinstance(error, OSError) else None
    if code in _NOT_ALLOWED:
        raise InputError(
            f"{source}: no permission to write it; expected a file in a folder that this user can "
            "write to: give another name, with --output say"
        ) from None
    if code in _DISK_FULL:
        raise LolatError(
            f"{source}: not written, the disk is full ({_reason(error)}); what was there before is "
            "unchanged: make room and run it again"
        ) from None
    if code is None or code in _WRONG_PLACE or code in _WRONG_NAME:
        raise InputError(
            f"{source}: cannot be written ({_reason(error)}); expected the name of a file to write"
        ) from None
    raise LolatError(
        f"{source}: not written ({_reason(error)}); what was there before is unchanged"
    ) from None


def _formatted(value: Any, newline: str, in_list: bool) -> str:
    """`value` as JSON, indented by one; `newline` is the line break and indent of where it stands.

    On one line go: a list of plain values, an entry of a list whose values are plain or lists of
    plain values (a point), and a short object of plain values.
    """
    if not isinstance(value, dict | list) or not value:
        return _compact(value)
    if isinstance(value, dict) and not all(isinstance(key, str) for key in value):
        raise TypeError("a key that is not text")
    items = value.values() if isinstance(value, dict) else value
    if all(_plain(item) for item in items):
        flat = isinstance(value, list) or in_list or len(_compact(value)) + len(newline) <= _LINE
    else:
        flat = isinstance(value, dict) and in_list and all(_plain_list(item) for item in items)
    if flat:
        return _compact(value)
    inner = newline + " "
    if isinstance(value, list):
        parts = [_formatted(item, inner, in_list=True) for item in value]
        return "[" + inner + ("," + inner).join(parts) + newline + "]"
    parts = [
        f"{_compact(key)}: {_formatted(value[key], inner, in_list=False)}" for key in sorted(value)
    ]
    return "{" + inner + ("," + inner).join(parts) + newline + "}"


def _plain(value: Any) -> bool:
    return not isinstance(value, dict | list)


def _plain_list(value: Any) -> bool:
    """True for a plain value and for a list of plain values."""
    return all(map(_plain, value)) if isinstance(value, list) else _plain(value)


def _compact(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _shown_path(path: AnyPath) -> str:
    text = os.fsdecode(path)
    return text if text.isprintable() and text else show(text)


def _reason(error: Exception) -> str:
    return _one_line(error.strerror if isinstance(error, OSError) and error.strerror else error)


def _one_line(error: object) -> str:
    return " ".join(str(error).split())
