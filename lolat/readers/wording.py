"""Words for error messages of the readers: one line each, whatever was given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

LONGEST = 200
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def one_line(error: BaseException) -> str:
    """The first line of an exception that says something, short enough to read.

    Keras puts "Exception encountered when calling ..." before what was wrong, and prints it bold.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [n for n in lines if n and not n.startswith("Exception encountered when calling")]
    return shortened(lines[0]) if lines else type(error).__name__


def shortened(text: str) -> str:
    """`text` in one printable line of at most `LONGEST` characters."""
    text = " ".join(_ESCAPES.sub("", text).split())
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def shapes_text(shapes: Iterable[Sequence[Any]]) -> str:
    """Shapes as a person writes them: 224x224x3, with ? for what is open, the batch left out."""
    return ", ".join("x".join("?" if n is None else str(n) for n in s[1:]) for s in shapes)
