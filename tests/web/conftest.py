"""What the tests of the calculator share: models of made-up devices, and the page in this process."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lolat.io import paths as places
from tests import synthetic
from tests.web import language_models

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and prices of whoever runs the tests are not seen."""
    monkeypatch.setattr(places, "local_folder", lambda: tmp_path / "local")
    monkeypatch.setattr(places, "bundled_folder", lambda: tmp_path / "shipped")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a profile into a folder; of a device that takes `slower` times as long."""

    def model(folder: str, name: str, slower: float = 1.0, **changes: Any) -> Path:
        document = copy.deepcopy(synthetic.document(name=name, **changes))
        extended = document["predictors"]["extended"]
        extended["coefficients"] = {k: v * slower for k, v in extended["coefficients"].items()}
        (tmp_path / folder).mkdir(exist_ok=True)
        path = tmp_path / folder / f"{name}.json"
        path.write_text(json.dumps(document))
        return path

    return model


@pytest.fixture
def laptop(write: Write) -> Path:
    return write("given", "laptop", device="a laptop")


@pytest.fixture
def board(write: Write) -> Path:
    return write("given", "board", slower=3.0, device="a board")


@pytest.fixture
def gpu(tmp_path: Path) -> Path:
    """A device that knows language models alone."""
    path = tmp_path / "gpu.json"
    path.write_text(json.dumps(language_models.document()))
    return path


@pytest.fixture
def page(laptop: Path, board: Path, gpu: Path) -> Iterator[Any]:
    """The page with these models, and networks that a fake reader makes: `tests.web.pages.Site`."""
    pytest.importorskip("starlette")
    from tests.web.pages import site

    with site([laptop, board, gpu]) as running:
        yield running
