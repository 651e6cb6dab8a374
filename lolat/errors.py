"""What can go wrong, as exceptions that the command line turns into one plain line and an exit code.

A message says what was given, what is expected and how to mend it, in that order.
"""

from __future__ import annotations

import errno


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
    """An optional package is not installed; the message has the line that installs it."""


class DeviceError(InputError):
    """The device that was asked for is not on this machine."""


class AnswerIsNo(LolatError):
    """The question was fine and its answer is no: a budget exceeded, a model that no longer holds."""

    exit_code = 3


class MeasuringError(LolatError):
    """A measurement run that could not go on; what was measured so far is kept."""


def not_written(path: object, error: OSError, option: str) -> LolatError:
    """What to raise where the file of an option cannot be written; a full disk is no wrong call."""
    if error.errno == errno.ENOSPC:
        return LolatError(f"{path} is not whole: the disk is full; make room and run it again")
    return InputError(f"cannot write {path}: {error.strerror or error}; give {option} elsewhere")
