"""`benchmarks/design.py` judges measured points, not made-up times."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def design(*arguments: object) -> list[str]:
    """Its lines from the condition numbers on."""
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks/design.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    lines = done.stdout.splitlines()
    return lines[next(i for i, line in enumerate(lines) if "condition number" in line) :]


@pytest.mark.slow
def test_without_a_model_the_shipped_one_of_tensorflow_is_judged() -> None:
    shipped = ROOT / "models" / "epyc-2t.json"
    assert design() == design(shipped)
    count = len(json.loads(shipped.read_text())["points"])
    assert design()[0].startswith(f"{count} points of ")
