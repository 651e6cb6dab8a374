"""What can go wrong, as exceptions that the command line turns into one plain line and an exit code.

A message says what was given, what is expected and how to mend it, in that order.
"""

from __future__ import annotations

import errno
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class LolatError(Exception):
    """Anything LoLat reports to a person. `exit_code` is what the command line returns."""

    exit_code = 1


class InputError(LolatError):
    """The call or its input is wrong."""

    exit_code = 2


class ModelFileError(InputError):
    """A model file that is missing, damaged or something else."""


class NetworkError(InputError):
    """A network that cannot be found, opened or read."""


class MissingPackageError(InputError):
    """An optional package is not installed; the message ends with the line that installs it.

    `what`: what is missing and who needs it; `extra`: the extra of LoLat that brings it, or nothing where
    `what` says it all.
    """

    def __init__(self, what: str, extra: str = "") -> None:
        super().__init__(f"{what}; install it with: {install(extra)}" if extra else what)


class DeviceError(InputError):
    """The device that was asked for is not on this machine."""


class AnswerIsNo(LolatError):
    """The question was fine and its answer is no: a budget exceeded, a model that no longer holds.

    `answer`: what `--json` prints then; None where it was printed before.
    """

    exit_code = 3

    def __init__(self, message: str, answer: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.answer = answer


class MeasuringError(LolatError):
    """A measurement run that could not go on; what was measured so far is kept."""


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


def not_written(path: object, error: OSError, option: str) -> LolatError:
    """What to raise where the file of an option cannot be written; a full disk is no wrong call."""
    if error.errno == errno.ENOSPC:
        return LolatError(f"{path} is not whole: the disk is full; make room and run it again")
    return InputError(f"cannot write {path}: {error.strerror or error}; give {option} elsewhere")
