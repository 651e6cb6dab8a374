"""The command line, and a profile without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lolat.readers.torch.named import load_torchvision
from tests import synthetic
from tests.cli.commands import Command
from tests.training.several import PRICES, network


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "desk.json"
    path.write_text(json.dumps(synthetic.document()))
    return path


@pytest.fixture
def prices(tmp_path: Path) -> str:
    path = tmp_path / "prices.csv"
    path.write_text(PRICES)
    return str(path)


@pytest.fixture
def net(tmp_path: Path) -> str:
    path = tmp_path / "net.json"
    path.write_text(json.dumps(network().to_dict()))
    return f"{path}"


@pytest.fixture(scope="module")
def peft() -> Any:
    load_torchvision()  # which peft imports
    return pytest.importorskip("peft")
