"""Why a PyTorch network cannot be read, in one line that names the line of the user's code."""

from __future__ import annotations

import os
import re

from lolat.readers.wording import one_line, shortened

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_NOISE = re.compile(r"^(?:\w+Error|Exception): |\(unhinted: .*?\)|\(Size-like symbols: .*?\)")


def source_line(trace: str | None) -> str:
    """ " at net.py:12" from the text of a traceback: its last line of the user's own code; else ""."""
    return _named(_FRAME.findall(trace or ""))


def user_line(error: BaseException) -> str:
    """The same from an exception and what caused it."""
    seen: BaseException | None = error
    while seen is not None:
        frames, trace = [], seen.__traceback__
        while trace is not None:
            frames.append((trace.tb_frame.f_code.co_filename, str(trace.tb_lineno)))
            trace = trace.tb_next
        if found := _named(frames):
            return found
        seen = seen.__cause__ or seen.__context__
    return source_line(str(error))


def _named(frames: list[tuple[str, str]]) -> str:
    """The last frame of the user's own files; of an installed package that is not PyTorch, if none is."""
    frames = [f for f in frames if os.path.exists(f[0]) and not _is_ours(f[0])]
    own = [f for f in frames if "-packages/" not in f[0].replace("\\", "/")]
    file, line = (own or frames or [("", "")])[-1]
    return f" at {_relative(file)}:{line}" if file else ""


def reason(error: BaseException) -> str:
    """What went wrong, in a person's words where the exception is a known one."""
    text = str(error)
    kind = type(error).__name__
    if kind == "GuardOnDataDependentSymNode" or "data-dependent" in text.lower():
        return "what it does depends on the values of a tensor, not on shapes alone"
    if "symbolically traced variables cannot be used as inputs to control flow" in text:
        return "what it does depends on the values of a tensor, not on shapes alone"
    said = one_line(error)
    said = shortened(_NOISE.sub("", said))
    return said if said != kind else kind


def _is_ours(file: str) -> bool:
    """Whether a file belongs to PyTorch, to Python, or to LoLat."""
    file = os.path.abspath(file).replace("\\", "/")
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__))).replace("\\", "/")
    python = os.path.dirname(os.__file__).replace("\\", "/")
    return (
        "-packages/torch/" in file
        or file.startswith(f"{package}/")
        or (file.startswith(f"{python}/") and "-packages/" not in file)
    )


def _relative(file: str) -> str:
    """A path as a person in the working directory writes it."""
    near = os.path.relpath(file)
    return file if near.startswith("..") else near
