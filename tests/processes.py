"""Looking at processes from outside, and code of the pages run as scripts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
PATIENCE_S = 300.0
"""The longest wait of a test: no less than a busy machine may need."""


def python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own at the root of the checkout."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    usual = {"cwd": ROOT, "capture_output": True, "text": True, "timeout": PATIENCE_S}
    return subprocess.run(command, **{**usual, **options})


def is_running(pid: int) -> bool:
    """True while the process lives, not for one that has ended and is not yet waited for."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_until(true: Callable[[], bool], what: str) -> None:
    """Wait, but not for ever."""
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, f"{what}: not within {PATIENCE_S} s"
        time.sleep(0.02)


def open_files() -> set[str]:
    """This process's file descriptors, with what they are."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:
            continue
    return found


def script(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A block of Python as a script of its own, in a folder of its own; its names afterwards."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": "example"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the tools themselves
        exec(compile(code, "a page", "exec"), names)
    return names
