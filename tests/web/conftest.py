"""What the tests of the calculator share: a model of a made-up device, and the page in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lolat.io import paths as places
from lolat.model.file import write
from tests import synthetic


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models and prices of whoever runs the tests are not seen."""
    monkeypatch.setattr(places, "local_folder", lambda: tmp_path / "local")
    monkeypatch.setattr(places, "shipped_folder", lambda: tmp_path / "shipped")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of inference whose device is in no list of prices; its training is estimated."""
    path = tmp_path_factory.mktemp("models") / "desk.json"
    write(path, synthetic.document(name="desk", device="a desk"))
    return path


@pytest.fixture
def page(made: Path) -> Iterator[Any]:
    """The page with that model, and networks that a fake reader makes: `tests.web.pages.Site`."""
    pytest.importorskip("starlette")
    from tests.web.pages import site

    with site([made]) as running:
        yield running
