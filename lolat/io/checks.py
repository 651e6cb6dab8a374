"""Checks of single values of a document, to be replaced by shapes (`lolat.io.documents.check`)."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

# ---- How deep lists and objects of a document may lie in each other, the same in every
# process.
#
# Python's own limit is no answer: packages raise it, and from some depth on a raised one ends the process.
# Nothing here calls itself.

DEEPEST = 100
"""Real models are about eight deep."""

# A text that breaks off within a string ends there: what is in it nests nothing.
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_STEP = {"[": 1, "{": 1, "]": -1, "}": -1}
_NOT_A_BRACKET = re.compile(r"[^\[\]{}]+")


def text_too_deep(text: str) -> bool:
    """Whether JSON `text` opens more than DEEPEST lists and objects in each other; it need not be whole."""
    brackets = _NOT_A_BRACKET.sub("", _STRING.sub("", text))
    depths = itertools.accumulate(map(_STEP.__getitem__, brackets))
    return any(depth > DEEPEST for depth in depths)


def too_deep(document: Any) -> bool:
    """The same of a document in memory; one that holds itself is too deep."""
    level = [document] if isinstance(document, dict | list) else []
    for _ in range(DEEPEST):
        if not level:
            return False
        held = itertools.chain.from_iterable(map(_held, level))
        level = list({id(h): h for h in held}.values())  # each once, however often it is there
    return bool(level)


def _held(holder: Any) -> list[Any]:
    """The lists and objects in one; most lists are of numbers, which are passed at the speed of C."""
    values = holder.values() if isinstance(holder, dict) else holder
    if not any(issubclass(kind, dict | list) for kind in set(map(type, values))):
        return []
    return [v for v in values if isinstance(v, dict | list)]


# ---- Checks of single values of a document, and how a value stands in a message. Standard
# library only.

# Counts end up in 64-bit integers and floats; nothing that runs on a device is larger.
_MOST = 2**63 - 1
SHOWN = 60


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


# A check answers None, or what was expected. It sees one value and knows nothing of its place.
Check = Callable[[Any], str | None]
Table = dict[str, Check]


class Nothing:
    """Fails every check."""


def _is_number(value: Any) -> bool:
    """True for an int or float that is finite as a float; a bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def a_text(value: Any) -> str | None:
    """Text."""
    return None if isinstance(value, str) else "text"


def a_number(value: Any) -> str | None:
    """A finite number."""
    return None if _is_number(value) else "a finite number"


def not_negative(value: Any) -> str | None:
    """A finite number from 0."""
    return None if _is_number(value) and value >= 0 else "a finite number that is not negative"


def positive(value: Any) -> str | None:
    """A finite number above 0."""
    return None if _is_number(value) and value > 0 else "a finite number above 0"


def a_count(value: Any) -> str | None:
    """What counts something, in 64 bits."""
    # `type`, not isinstance: True is an int, and a count of True is a mistake.
    return None if type(value) is int and 0 <= value <= _MOST else "an integer from 0 to 2**63 - 1"


def yes_or_no(value: Any) -> str | None:
    """True or false."""
    return None if isinstance(value, bool) else "true or false"


def at_least(least: int) -> Check:
    """The check of an integer from `least` on."""
    expected = f"an integer of {least} or more"
    return lambda value: None if type(value) is int and least <= value <= _MOST else expected


def a_range(value: Any) -> str | None:
    """Two finite numbers."""
    good = isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
    return None if good else "a list of two finite numbers"


def an_object(value: Any) -> str | None:
    """An object, whatever is in it."""
    return None if isinstance(value, dict) else "an object"


def a_list(value: Any) -> str | None:
    """A list, whatever is in it."""
    return None if isinstance(value, list) else "a list"


def or_null(check: Check) -> Check:
    """`check`, or null."""
    expected = f"{check(Nothing)}, or null"
    return lambda value: None if value is None or check(value) is None else expected


def number_or_object(value: Any) -> str | None:
    """Either, as the errors of different versions are."""
    good = isinstance(value, dict) or not_negative(value) is None
    return None if good else "a finite number that is not negative, or an object"
