"""Errors: exceptions that the command line turns into one plain line and an exit code.

A message names the wrong value, the expected one and the remedy, in that order. It names an argument by
`arg`: `coverage` in Python, `--coverage` on the command line, its label on the page.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import traceback
from collections.abc import Callable, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, Self

_MARKED = re.compile("\x01([a-z_]+)\x01")
"""An argument's name as `arg` marks it: between control characters, which occur nowhere else in a message.
"""
_OPTION = re.compile(r"--([a-z]+(?:-[a-z]+)*)(?: (\w+(?:[.:]\w+)*))?")


_SIZES = re.compile("(\x01input_size\x01) (?:(\\d+) or )?(\\d+(?:,\\d+)+)")
"""The value of a marked `input_size`: a shape such as 3,224,224, or "224 or 3,224,224"."""
_WORD = re.compile(
    "(\x01(?:launch|precision|sharding)\x01) (eager|compiled|graph|best|"
    "none|zero1|zero2|fsdp|hybrid)\\b"
)
"""A marked argument with one of its words, which Python writes as `launch="graph"`. Precisions stay bare,
because a terminal shows the reasons why devices are left out too."""


def arg(name: str) -> str:
    """The name of a Python argument, marked for `worded`."""
    return f"\x01{name}\x01"


def argument_code(argument: str) -> str:
    """The code of an error about an argument: `batch-size` for `batch_size`."""
    return argument.replace("_", "-")


def worded(message: str, name: Callable[[str], str] = str) -> str:
    """A message in which `name` writes each marked argument; by default, as Python writes it, sizes too."""
    if name is str:
        message = _WORD.sub(r'\1="\2"', _SIZES.sub(_size_in_python, message))
    return _MARKED.sub(lambda match: name(match[1]), message)


def in_options(message: str) -> str:
    """A message with each marked argument as an option: `--max-ms`."""
    return worded(message, lambda name: f"--{name.replace('_', '-')}")


def _size_in_python(match: re.Match[str]) -> str:
    name, side, size = match.groups()
    whole = f"{name}=({size.replace(',', ', ')})"
    return f"{name}={side} or {whole}" if side else whole


def without_options(line: str, name: Callable[[str, str], str]) -> str:
    """A line of an answer with each option and its value ("" without one) as `name(option, value)`.

    A line that holds a `lolat` command stays as it is.
    """
    if "lolat " in line:
        return line
    return _OPTION.sub(lambda match: name(match[1].replace("-", "_"), match[2] or ""), line)


class LolatError(Exception):
    """The base class of LoLat's errors; `exit_code`: the exit code of the command line.

    `code` names the kind of error for programs; `data` holds its values, as in JSON. `data["why"]` is the
    reason alone, for a caller that writes the place and the remedy itself. `of_device`: True if the error
    is about the device and not about the question, so that other devices may answer.
    """

    exit_code = 1
    code = "failed"
    of_device = False

    def __init__(
        self, message: str, /, *, code: str = "", of_device: bool = False, **data: Any
    ) -> None:
        super().__init__(message)
        self.message = message
        """The message with marked arguments; the message of another error can include it."""
        if code:
            self.code = code
        if of_device:
            self.of_device = True
        self.data = data

    def __str__(self) -> str:
        return self.worded()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.worded()!r})"

    def _render_traceback_(self) -> list[str]:
        """The traceback in IPython and Jupyter: the user's line that called LoLat, and the message.

        All lines of the traceback if LOLAT_DEBUG is set in the environment.
        """
        if os.environ.get("LOLAT_DEBUG"):
            return traceback.format_exception(self)
        here = str(Path(__file__).parent)
        calls = traceback.extract_tb(self.__traceback__)
        outside = [*takewhile(lambda call: not call.filename.startswith(here), calls)]
        lines = []
        for call in outside[-1:]:
            place = f"{call.filename}, " if Path(call.filename).is_file() else ""  # not for a cell
            lines += [f"{place}line {call.lineno}: {call.line}"] if call.line else []
        return [*lines, f"{type(self).__name__}: {self}"]

    @property
    def arguments(self) -> list[str]:
        """The arguments that the message names, in order."""
        return _MARKED.findall(self.message)

    def reworded(self, message: str) -> Self:
        """A copy of the error, with its code and data, and another message."""
        other = copy.copy(self)
        other.message, other.args = message, (message,)
        return other

    def worded(self, name: Callable[[str], str] = str) -> str:
        """The message with its arguments named by `name`; Python's names by default."""
        return worded(self.message, name)


class InputError(LolatError):
    """The call or its input is wrong; the code of an error about an argument is its name: `batch-size`."""

    exit_code = 2
    code = "input"


class ModelFileError(InputError):
    """A profile is missing or damaged, or the file is not a profile."""

    code = "model-file"
    of_device = True


class NetworkError(InputError):
    """A network that cannot be found, opened or read."""

    code = "network"


class MissingPackageError(InputError):
    """An optional package is not installed; the message ends with the line that installs it.

    `what`: the package, and the part of LoLat that needs it; `extra`: the extra of LoLat that installs the
    package, or "" if `what` is the whole message.
    """

    code = "no-package"

    def __init__(self, what: str, extra: str = "", /, *, code: str = "", **data: Any) -> None:
        message = f"{what}; install it with: {install(extra)}" if extra else what
        super().__init__(message, code=code, **data)


class DeviceError(InputError):
    """The device that was asked for is not on this machine."""

    code = "no-device"


class AnswerIsNo(LolatError):
    """The question is valid and its answer is no: a time limit is exceeded, a profile no longer holds.

    `answer`: the object that `--json` prints; None if it is printed already.
    """

    exit_code = 3
    code = "no"
    of_device = True

    def __init__(
        self,
        message: str,
        answer: Mapping[str, Any] | None = None,
        /,
        *,
        code: str = "",
        **data: Any,
    ) -> None:
        super().__init__(message, code=code, **data)
        self.answer = answer


class MeasuringError(LolatError):
    """A run of measurements cannot go on; the measurements made so far are kept."""

    code = "measuring"


def to_dict(error: LolatError) -> dict[str, Any]:
    """An error as plain data, for `from_dict` in another process."""
    data = json.loads(json.dumps(error.data, default=str))
    return {
        "kind": type(error).__name__, "error": error.message, "code": error.code, "data": data
    }  # fmt: skip


def from_dict(document: Mapping[str, Any], default: type[LolatError]) -> LolatError:
    """The error that `to_dict` made in another process; of class `default` if its class is not LoLat's."""
    kind = globals().get(document["kind"])
    if not (isinstance(kind, type) and issubclass(kind, LolatError)):
        kind = default
    return kind(document["error"], code=document.get("code", ""), **document.get("data", {}))


def install(extra: str) -> str:
    """The `pip install` line for an extra of LoLat; it names the source that this LoLat was installed from.

    LoLat is not on the package index: pip would find nothing, or another project, under its bare name. The
    line therefore names the checkout, or the address that pip installed this LoLat from.
    """
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        where = "." if Path.cwd() == checkout else str(checkout)
        return f"pip install -e {shlex.quote(f'{where}[{extra}]')}"
    return f"pip install {shlex.quote(f'lolat[{extra}]{_address()}')}"


def _address() -> str:
    """The address that pip installed this LoLat from, as " @ URL" behind a requirement; "" if unknown."""
    from importlib import metadata  # takes some ten milliseconds

    try:
        text = metadata.distribution("lolat").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return ""
    origin = json.loads(text) if text else {}
    system = origin.get("vcs_info", {}).get("vcs")
    return f" @ {system}+{origin['url']}" if system else f" @ {origin['url']}" if origin else ""
