"""A fixed number of hostile inputs; `python benchmarks/fuzz.py` runs as many as one likes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("starlette.testclient")

from benchmarks.fuzzing.cases import KINDS, commands

FUZZER = Path(__file__).resolve().parent.parent / "benchmarks" / "fuzz.py"
EACH = 12


def fuzz(*arguments: str) -> None:
    """Run the fuzzer; what it found is what the test says."""
    done = subprocess.run(
        [sys.executable, str(FUZZER), *arguments], capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_command_answers_what_is_right() -> None:
    """Or the damaged input would be refused for another reason than its damage."""
    fuzz("--only", "whole", "--cases", str(len(commands())))


KEPT = ("networks:300335", "options:300337", "options:500129", "tables:900013")
"""What it found once; another generator of cases would need others."""


def test_what_was_found_stays_mended() -> None:
    fuzz("--case", *KEPT)


@pytest.mark.slow
def test_what_is_damaged_ends_in_one_line() -> None:
    fuzz("--only", ",".join(KINDS), "--cases", str(EACH * len(KINDS)), "--seed", "18")
