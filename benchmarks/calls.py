"""Counts the functions of LoLat that a command calls, their files, and the depth of the stack.

python benchmarks/calls.py predict epyc-2t keras:ResNet50
"""

from __future__ import annotations

import sys
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from lolat.cli.main import lolat, run  # noqa: E402

PARTS = ("<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")
"""Names of code inside functions; bodies of modules and classes are told by their flags."""
PACKAGES = tuple(f"{ROOT / name}/" for name in ("lolat", "microbench"))


def count(arguments: list[str]) -> tuple[int, int, int]:
    """(functions called at least once, files that they are in, deepest stack of them) of a command.

    Functions that run while a module is imported, such as decorators, are not counted.
    """
    functions: set[tuple[str, str]] = set()
    stack = deepest = importing = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal stack, deepest, importing
        code, change = frame.f_code, (event == "call") - (event == "return")
        if not code.co_filename.startswith(PACKAGES) or code.co_name in PARTS:
            return
        if not code.co_flags & CO_OPTIMIZED:
            importing += change
        elif not importing:
            stack += change
            deepest = max(deepest, stack)
            functions.add((code.co_filename, code.co_qualname))

    sys.setprofile(profile)
    try:
        run(lolat, arguments, "lolat")
    finally:
        sys.setprofile(None)
    return len(functions), len({file for file, _ in functions}), deepest


if __name__ == "__main__":
    print("{} functions in {} files, {} deep".format(*count(sys.argv[1:])), file=sys.stderr)
