"""How deep lists and objects of a document may lie in each other, the same in every process.

Python's own limit is no answer: packages raise it, and from some depth on a raised one ends the process.
Nothing here calls itself.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

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
