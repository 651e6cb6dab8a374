"""What can go wrong, as exceptions that the command line turns into one plain line and an exit code.

A message says what was given, what is expected and how to mend it, in that order. An argument is named by
`arg`: `coverage` in Python, `--coverage` on the command line, its label on the page.
"""

from __future__ import annotations

import copy
import errno
import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

_MARKED = re.compile("\x01([a-z_]+)\x01")
"""A name that `arg` marked: between control characters that no message has otherwise."""


def arg(name: str) -> str:
    """The name of a Python argument, marked for `worded`."""
    return f"\x01{name}\x01"


def worded(message: str, name: Callable[[str], str] = str) -> str:
    """A message with each marked argument as `name` names it: if not given, as Python does."""
    return _MARKED.sub(lambda found: name(found[1]), message)


class LolatError(Exception):
    """Anything LoLat reports to a person. `exit_code` is what the command line returns.

    `code` says to programs what it is, `data` of what; data holds what JSON has. `data["why"]` is the
    reason alone, where whoever catches the error says the place and the remedy in words of its own.
    """

    exit_code = 1
    code = "failed"

    def __init__(self, message: str, /, *, code: str = "", **data: Any) -> None:
        super().__init__(message)
        self.message = message
        """With its arguments marked: to be put into the message of another error."""
        if code or (self.code == InputError.code and self.arguments):
            self.code = code or self.arguments[0].replace("_", "-")
        self.data = data

    def __str__(self) -> str:
        return self.worded()

    @property
    def arguments(self) -> list[str]:
        """The arguments that the message names, in its order."""
        return _MARKED.findall(self.message)

    def reworded(self, message: str) -> Self:
        """The same error, of the same code and data, with another message."""
        other = copy.copy(self)
        other.message, other.args = message, (message,)
        return other

    def worded(self, name: Callable[[str], str] = str) -> str:
        """The message with each argument as `name` names it: if not given, as Python does."""
        return worded(self.message, name)


class InputError(LolatError):
    """The call or its input is wrong.

    Where the message names an argument and no code is given, the code is that argument: `batch-size`.
    """

    exit_code = 2
    code = "input"


class ModelFileError(InputError):
    """A model file that is missing, damaged or something else."""

    code = "model-file"


class NetworkError(InputError):
    """A network that cannot be found, opened or read."""

    code = "network"


class MissingPackageError(InputError):
    """An optional package is not installed; the message ends with the line that installs it.

    `what`: what is missing and who needs it; `extra`: the extra of LoLat that brings it, or nothing where
    `what` says it all.
    """

    code = "no-package"

    def __init__(self, what: str, extra: str = "", /, *, code: str = "", **data: Any) -> None:
        message = f"{what}; install it with: {install(extra)}" if extra else what
        super().__init__(message, code=code, **data)


class DeviceError(InputError):
    """The device that was asked for is not on this machine."""

    code = "no-device"


class AnswerIsNo(LolatError):
    """The question was fine and its answer is no: a budget exceeded, a model that no longer holds.

    `answer`: what `--json` prints then; None where it was printed before.
    """

    exit_code = 3
    code = "no"

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
    """A measurement run that could not go on; what was measured so far is kept."""

    code = "measuring"


def sent(error: LolatError) -> dict[str, Any]:
    """An error as JSON has it, for `received` in another process."""
    data = json.loads(json.dumps(error.data, default=str))
    return {
        "kind": type(error).__name__, "error": error.message, "code": error.code, "data": data
    }  # fmt: skip


def received(said: Mapping[str, Any], otherwise: type[LolatError]) -> LolatError:
    """The error that `sent` was given in another process; `otherwise` where it is none of LoLat's."""
    kind = globals().get(said["kind"])
    if not (isinstance(kind, type) and issubclass(kind, LolatError)):
        kind = otherwise
    return kind(said["error"], code=said.get("code", ""), **said.get("data", {}))


def install(extra: str) -> str:
    """The line that brings the packages of an extra of LoLat, from where this LoLat is.

    LoLat is not on the package index: asked for by name alone, pip finds nothing there, or somebody else's.
    So a checkout, or the address that pip installed it from, is named.
    """
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        where = "." if Path.cwd() == checkout else str(checkout)
        return f"pip install -e {shlex.quote(f'{where}[{extra}]')}"
    return f"pip install {shlex.quote(f'lolat[{extra}]{_address()}')}"


def newer() -> str:
    """How to get a newer LoLat, in words: there is no release that pip could find."""
    return (
        "get a newer LoLat (git pull in its checkout, or install it again from where this one came)"
    )


def _address() -> str:
    """Where pip had this LoLat from (a wheel, a folder, a repository), as it names it behind an @."""
    from importlib import metadata  # some ten milliseconds, needed by nobody else

    try:
        text = metadata.distribution("lolat").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return ""
    found = json.loads(text) if text else {}
    system = found.get("vcs_info", {}).get("vcs")
    return f" @ {system}+{found['url']}" if system else f" @ {found['url']}" if found else ""


def not_written(path: object, error: OSError, argument: str) -> LolatError:
    """What to raise where the file of an argument cannot be written; a full disk is no wrong call."""
    about: dict[str, Any] = {"code": "not-written", "path": str(path)}
    if error.errno == errno.ENOSPC:
        return LolatError(
            f"{path} is not whole: the disk is full; make room and run it again", **about
        )
    why = error.strerror or error
    return InputError(f"cannot write {path}: {why}; give {arg(argument)} elsewhere", **about)
