"""Asks several devices one question: the answers, and the reasons why other devices cannot answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from typing import TypeVar

from lolat.device.question import AUTO
from lolat.errors import AnswerIsNo, InputError, LolatError, ModelFileError
from lolat.units import by_text

D = TypeVar("D")
A = TypeVar("A")
OF_ONE_DEVICE = frozenset(
    [
        "no-precision",
        "no-launch",
        "no-host",
        "no-memory",
        "no-room",
        "no-optimizer",
        "no-evaluation",
        "batch-over-data",
        "coverage-range",
        "dtype",
        "not-timed",
    ]
)
"""Codes of errors that are about the device that was asked, not about the question."""


def ask_each(
    devices: Mapping[str, D], ask: Callable[[D], A], skipped: MutableMapping[str, str]
) -> dict[str, A]:
    """Ask each device; return the answers by its name. A device that cannot answer is added to `skipped`.

    An error about the question (see OF_ONE_DEVICE) is raised, and that of a single device, if none was
    skipped before.
    """
    answers: dict[str, A] = {}
    for name, device in devices.items():
        try:
            answers[name] = ask(device)
        except LolatError as error:
            is_only_one = len(devices) == 1 and not skipped
            if is_only_one or not _is_of_one_device(error):
                raise
            skipped[name] = _reason(error)
    return answers


def no_device(skipped: Mapping[str, str]) -> InputError:
    """The error if no device can answer, with each reason once."""
    reasons = by_text(skipped.items())
    why = "; ".join(f"{', '.join(names)}: {text}" for text, names in reasons.items())
    return InputError(f"no device can answer: {why or 'there is none'}", code="no-device")


def _is_of_one_device(error: LolatError) -> bool:
    return isinstance(error, (AnswerIsNo, ModelFileError)) or error.code in OF_ONE_DEVICE


def _reason(error: LolatError) -> str:
    """The reason why a device is skipped, without its name."""
    if error.code == "no-memory":
        return f"its memory is not known, so no batch size {AUTO}; expected a number"
    return str(error)
