"""Runs `lolat` in this process, as the entry point does, and in another one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from lolat.cli.common import run
from lolat.cli.main import lolat

ROOT = Path(__file__).resolve().parent.parent.parent


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


class Command:
    """`lolat` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> Result:
        self.capsys.readouterr()
        code = run(lolat, [str(a) for a in arguments], "lolat")
        return Result(code, *self.capsys.readouterr())

    def refused(self, *arguments: object, code: int = 2) -> str:
        """The one line on stderr of a call that must fail."""
        found = self(*arguments)
        assert found.code == code
        assert found.out == ""
        return one_line(found.err)


def one_line(stderr: str) -> str:
    """The only line of stderr."""
    lines = stderr.splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("lolat: ")
    assert "Traceback" not in lines[0]
    return lines[0]


def process(arguments: Sequence[object], **options: object) -> subprocess.CompletedProcess[str]:
    """`lolat` in a new process."""
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-m", "lolat.cli.main", *map(str, arguments)],
        **{"capture_output": True, "text": True, "cwd": ROOT, "timeout": 120, **options},
    )
