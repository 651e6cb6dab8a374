"""A fixture that writes a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from lolat.io.writing import write_text

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, text: str) -> Path:
        write_text(tmp_path / name, text)
        return tmp_path / name

    return write
