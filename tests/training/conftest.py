"""The command line, and a model file without training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import synthetic
from tests.cli.commands import Command


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "desk.json"
    path.write_text(json.dumps(synthetic.document()))
    return path
