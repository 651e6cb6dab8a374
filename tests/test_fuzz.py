"""A fixed number of hostile inputs; `python benchmarks/fuzz.py` runs as many as one likes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("starlette.testclient")

from benchmarks.fuzzing.cases import KINDS, commands

FUZZER = Path(__file__).resolve().parent.parent / "benchmarks" / "fuzz.py"
EACH = 6
KEPT = (
    "models:930017", "models:930144", "models:940316", "networks:300335", "options:300337",
    "options:500129", "sections:940425", "tables:900013", "tables:930134",
)  # fmt: skip
"""What it found once; another generator of cases would need others."""


@pytest.mark.slow
def test_nothing_is_found() -> None:
    """Every command answers what is right, or damaged input would be refused for another reason; what was
    found stays mended; what is damaged ends in one line. In one run: it imports much once.
    """
    cases = [f"whole:{seed}" for seed in range(len(commands()))]
    cases += [f"{kind}:{seed}" for kind in KINDS for seed in range(18, 18 + EACH)]
    done = subprocess.run(
        [sys.executable, str(FUZZER), "--case", *KEPT, *cases],
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    found = re.findall(r"^\w+:\d+  (?!nothing wrong).*", done.stdout, re.MULTILINE)
    assert (done.returncode, found) == (0, []), done.stderr
