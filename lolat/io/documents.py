"""JSON documents: read whole or refused with one line, checked by their shape, written for any editor.

What a document holds is said by a `msgspec.Struct`, the one schema of its kind; fields that it does not
name may be there (a later minor version adds some). Documents stay plain dicts: the shape only checks them.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import stat
from collections import Counter
from os import PathLike
from typing import Annotated, Any

import msgspec

from lolat.errors import ModelFileError
from lolat.io.writing import shown_path

# Real models are a few hundred kilobytes. Parsing takes several times the file's size in memory.
LARGEST_BYTES = 64 * 2**20
DEEPEST = 100
"""Lists and objects in each other; real models are about eight deep."""
_LINE = 100
SHOWN = 60

LEAST, MOST = 1e-30, 1e30
"""Beyond them is no time, size or rate of any device; what is computed with those between stays finite."""
Number = Annotated[float, msgspec.Meta(ge=-MOST, le=MOST)]
NotNegative = Annotated[float, msgspec.Meta(ge=0.0, le=MOST)]
Positive = Annotated[float, msgspec.Meta(ge=LEAST, le=MOST)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
Range = tuple[Number, Number]


class NotJsonError(ModelFileError):
    """A file that is something else than JSON, a table maybe."""


def read_json(
    path: str | PathLike[str], expected: str, largest_bytes: int = LARGEST_BYTES, hint: str = ""
) -> Any:
    """The document in the file at `path`, unchecked.

    ModelFileError, one line that names the file and ends in `expected`: no such file (then with `hint`, how
    to get one), a folder, no permission, larger than `largest_bytes`, not UTF-8, cut off, not JSON
    (NotJsonError), nested too deeply, a key twice in an object, numbers that are not finite.
    """
    source = shown_path(path)
    content = _content(path, source, expected, largest_bytes, hint)
    try:
        # Some editors put a byte order mark in front of UTF-8; it does no harm.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.reason == "unexpected end of data":  # cut off within a character
            raise ModelFileError(_truncated(source, len(content), expected)) from None
        raise NotJsonError(
            f"{source}: not UTF-8 text (at byte {error.start}); {expected}"
        ) from None
    if not text.strip():
        raise NotJsonError(f"{source}: is empty; {expected}")
    if _too_deep(text):  # before the parser, which calls itself for each
        raise ModelFileError(
            f"{source}: lists or objects nested too deeply (more than {DEEPEST} in each other); {expected}"
        )
    return _decoded(text, source, len(content), expected)


class _ContentError(Exception):
    """What Python's parser would take: NaN, Infinity, a number like 1e999, a key twice in an object."""


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        what = text if len(text) <= SHOWN else "a number above 1.8e308"
        raise _ContentError(f"holds {what}, which is not a finite number", "finite numbers only")
    return value


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):  # one of the values would be dropped without a word
        double = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise _ContentError(f"has the key {key_text(double)} twice in an object", "each key once")
    return made


def _decoded(text: str, source: str, size: int, expected: str) -> Any:
    try:
        return json.loads(
            text, parse_constant=_finite, parse_float=_finite, object_pairs_hook=_object
        )
    except json.JSONDecodeError as error:
        body = text.strip()
        # Only the start of an object is there; an object with something after it is not cut off.
        breaks_off = not body.endswith("}") or error.pos >= len(text.rstrip())
        if body.startswith("{") and breaks_off and error.msg != "Extra data":
            raise ModelFileError(_truncated(source, size, expected)) from None
        place = f"line {error.lineno}, column {error.colno}"
        raise NotJsonError(f"{source}: not JSON ({error.msg} at {place}); {expected}") from None
    except _ContentError as error:
        what, instead = error.args
        raise ModelFileError(f"{source}: {what}; {expected}, with {instead}") from None
    except ValueError:  # Python's limit on the digits of an integer, which is not a JSONDecodeError
        raise ModelFileError(
            f"{source}: holds an integer of thousands of digits; {expected}"
        ) from None


def check(document: Any, shape: Any, source: str) -> None:
    """ModelFileError unless `document` (as parsed from JSON, unchanged) is as `shape`, a type of
    msgspec's, says.

    The message begins with `source`, and names the field, what it is and what is expected.
    """
    fault = fault_of(document, shape)
    if fault is not None:
        raise ModelFileError(f"{source}: {fault}")


def fault_of(document: Any, shape: Any, place: str = "") -> str | None:
    """What is wrong with a document, None for nothing; `place`: where it stands in a larger one."""
    try:
        refusal = _refusal(document, shape)
    except RecursionError:
        return f"`{place or 'it'}` is nested too deeply"
    if refusal is None:
        return None
    said, _, path = str(refusal).partition(" - at `")
    missing = re.search(r"missing required field `(.*)`", said)
    first = _missing(document, shape)
    steps = [first] if first else _steps(document, shape, path.rstrip("`"))
    if missing and not first:
        steps.append(missing[1])
    at = place + "".join(f"[{s}]" if isinstance(s, int) else f".{key_text(s)}" for s in steps)
    at = at.removeprefix(".") or "it"
    if missing or first:  # what is put there instead is told what would have been right
        said = str(_refusal(_put({} if first else document, steps, _Nothing()), shape))
        return f"the field `{at}` is missing; expected {_expectation(said)}"
    value = document
    for step in steps:
        value = value[step]
    return f"`{at}` is {show(value)}; expected {_expectation(said)}"


def _missing(document: Any, shape: Any) -> str | None:
    """The first field of the document itself that is missing, which is said before what is wrong inside."""
    if not (isinstance(document, dict) and isinstance(shape, type(msgspec.Struct))):
        return None
    fields = (f.encode_name for f in msgspec.structs.fields(shape) if f.required)
    return next((name for name in fields if name not in document), None)


class _Nothing:
    """No value of any shape."""


def _refusal(document: Any, shape: Any) -> msgspec.ValidationError | None:
    try:
        converted(document, shape)
    except msgspec.ValidationError as error:
        return error
    return None


def converted(document: Any, shape: Any) -> Any:
    """As `msgspec.convert`, ValidationError too where half a surrogate pair is a key, or for a number."""
    try:
        return msgspec.convert(document, shape)
    except UnicodeEncodeError:
        raise msgspec.ValidationError(
            "Expected Unicode text, no half of a surrogate pair"
        ) from None


_WORDS = {
    r"float": "a finite number", r"int": "a whole number", r"str": "text", r"array": "a list",
    r"object": "an object", r"bool": "true or false", r" \|": " or",
    r"Number out of range": "a finite number", r" >= 1e-30": " above 0 (from 1e-30)",
    r" >= (\S+)": r" of \1 or more", r" > (\S+)": r" above \1", r" <= (\S+)": r" of \1 or less",
    r"(\d)\.0\b": r"\1",
}  # fmt: skip


def _expectation(said: str) -> str:
    """What msgspec expected, in words."""
    if said.startswith("Invalid enum value"):  # of a Literal, whose values msgspec does not tell
        return "one that this LoLat knows"
    wanted = said.partition(" - at `")[0].removeprefix("Expected ").partition(", got ")[0]
    wanted = wanted.replace("`", "")
    for pattern, words in _WORDS.items():
        wanted = re.sub(rf"\b{pattern}\b" if pattern.isalpha() else pattern, words, wanted)
    return wanted


def _put(holder: Any, steps: list[Any], value: Any) -> Any:
    """A copy of a document in which `value` stands at `steps`."""
    if not steps:
        return value
    copy = holder.copy()
    copy[steps[0]] = _put(holder[steps[0]], steps[1:], value) if steps[1:] else value
    return copy


def _steps(document: Any, shape: Any, path: str) -> list[Any]:
    """The keys and indices of msgspec's path, such as $.points[3].counts[...]: "[...]" is some key of
    an object.

    Which one is found out by giving the objects with one key alone.
    """
    steps: list[Any] = []
    holder = document
    for name, index, some in re.findall(r"\.([^.\[]+)|\[(\d+)\]|(\[\.\.\.\])", path):
        if some:
            step = next((k for k in holder if _fails(document, shape, steps, k)), None)
            if step is None:
                break
        else:
            step = int(index) if index else name
        steps.append(step)
        holder = holder[step]
    return steps


def _fails(document: Any, shape: Any, steps: list[Any], key: Any) -> bool:
    """Whether the document is still wrong with nothing but `key` in the object at `steps`."""
    holder = document
    for step in steps:
        holder = holder[step]
    return _refusal(_put(document, steps, {key: holder[key]}), shape) is not None


def show(value: Any) -> str:
    """`value` as it stands in a message: on one line, short, and safe for numbers of any size."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"an integer of about {int(value.bit_length() * 0.30103) + 1} digits"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = " ".join(ascii(value).split())
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


def key_text(key: Any) -> str:
    """A key from the file, safe in a one-line message."""
    plain = isinstance(key, str) and key.isascii() and key.isprintable() and len(key) <= SHOWN
    return key if plain and key else show(key)


# ---- Writing


def to_json(document: dict[str, Any], source: str = "document") -> str:
    """`document` as text: keys sorted, one point a line, ASCII, for any editor; `json.loads` gives it back.

    ModelFileError for what JSON cannot hold, NaN and infinities too.
    """
    try:
        return _formatted(document, "\n", in_list=False) + "\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{source}: cannot be written as JSON ({' '.join(str(error).split())}); expected text keys, "
            "lists, text, finite numbers, true, false and null"
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


# ---- Reading


def _content(
    path: str | PathLike[str], source: str, expected: str, largest_bytes: int, hint: str
) -> bytes:
    try:
        # Asked before opening, as opening a pipe that nobody writes to would wait for ever.
        status = os.stat(path)
        if stat.S_ISDIR(status.st_mode):
            raise ModelFileError(f"{source}: is a folder; {expected}")
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError(f"{source}: is not a regular file; {expected}")
        if status.st_size > largest_bytes:
            raise ModelFileError(
                f"{source}: {status.st_size / 2**20:.0f} MiB is too large; {expected} of at most "
                f"{largest_bytes // 2**20} MiB"
            )
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except FileNotFoundError:
        raise ModelFileError(
            f"{source}: no such file; {expected}{f' ({hint})' if hint else ''}"
        ) from None
    except PermissionError:
        raise ModelFileError(
            f"{source}: no permission to read it; {expected} that this user can read"
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ModelFileError(f"{source}: cannot be read ({reason}); {expected}") from None


def _truncated(source: str, size: int, expected: str) -> str:
    return f"{source}: looks truncated: the JSON breaks off after {size} bytes; {expected}: copy it again"


# A text that breaks off within a string ends there: what is in it nests nothing.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}
_NOT_A_BRACKET = re.compile(r"[^\[\]{}]+")


def _too_deep(text: str) -> bool:
    """Whether JSON `text` opens more than DEEPEST lists and objects in each other.

    Python's own limit is no answer: packages raise it, and from some depth a raised one ends the process.
    """
    if text.count("[") + text.count("{") <= DEEPEST:
        return False
    brackets = _NOT_A_BRACKET.sub("", _STRING.sub("", text))
    return any(depth > DEEPEST for depth in itertools.accumulate(map(_STEP.__getitem__, brackets)))
