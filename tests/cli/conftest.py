"""What the tests of the commands share: the command line, and a profile to ask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import synthetic
from tests.cli.commands import Command, Measuring


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several networks are read here, not each by a process that imports its framework."""
    monkeypatch.setattr("lolat.readers.children.default_processes", lambda: 1)


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "desk.json"
    path.write_text(json.dumps(synthetic.document()))
    return path


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch) -> Measuring:
    fake = Measuring()
    fake.install(monkeypatch)
    return fake
