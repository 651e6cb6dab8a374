"""A model file of the formula before: one line that says how to make it again, wherever it is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import lolat as api
from lolat.errors import ModelFileError
from lolat.graph.counts import FEATURES
from lolat.web.devices import opened
from tests import synthetic
from tests.cli.commands import Command

SAID = ": its formula extended is of another version than this LoLat's (it has the term 'ragged'): "


def write(path: Path, **where: Any) -> None:
    old = synthetic.document()
    known = {**dict.fromkeys(FEATURES, 1e-6), "ragged": 0.0, "streamed": 0.0, "call": 0.1}
    old["predictors"]["extended"] = {"coefficients": known}
    old["environment"] = old["environment"] | where
    path.write_text(json.dumps(old))


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    write(folder / "desk.json")
    (folder / "times.csv").write_text("network,batch_size,latency_ms\nkeras:ResNet50,1,30\n")
    monkeypatch.setattr("lolat.io.paths.local_folder", lambda: folder)
    monkeypatch.chdir(tmp_path)
    return folder / "desk.json"


TRAINED = ("keras:A", "--batch-size", 4)
SURFACES: list[tuple[Any, ...]] = [
    ("predict", "local", "keras:A"), ("predict", "epyc-2t", "keras:A", "--device", "desk"),
    ("predict", "local", "keras:A", "--json"), ("report", "desk", "keras:A"),
    ("explain", "desk", "keras:A"), ("budget", "desk", "keras:A", "--max-ms", 9, "--vary", "batch"),
    ("evaluate", "local"), ("evaluate", "local", "--table", "models/times.csv"), ("doctor", "local"),
    ("show", "local"), ("show", "local", "--formula"), ("fit", "models/desk.json", "--output", "new.json"),
    ("fit", "desk", "models/times.csv", "--output", "new.json"),
    ("training", "predict", "local", *TRAINED),
    ("cost", "local", *TRAINED, "--samples", 9, "--price-per-hour", 1),
    ("nas", "score", "nasbench201", "local", "--output", "scores"), ("serve", "local", "--port", 0),
]  # fmt: skip


@pytest.mark.parametrize("ask", SURFACES, ids=lambda ask: "-".join(map(str, ask[:3])))
def test_every_command_says_how_to_make_it_again(
    lolat: Command, old: Path, ask: tuple[Any, ...]
) -> None:
    again = "learn it again on its device: `lolat learn cpu --output models/desk.json`"
    assert lolat.refused(*ask) == f"lolat: models/desk.json{SAID}{again}"


def test_the_list_the_page_and_python_say_it(lolat: Command, old: Path) -> None:
    line = next(x for x in lolat.text("models").splitlines() if x.startswith("desk "))
    assert SAID in line
    for ask in (lambda: api.load("local"), lambda: opened(old, "desk", True)):
        with pytest.raises(ModelFileError) as error:
            ask()
        assert SAID in str(error.value)


@pytest.mark.parametrize(
    ("where", "command"),
    [
        ({"framework": "torch", "compile": True, "half": False, "threads_asked": 2},
         "learn it again on its device: `lolat learn cpu --backend torch --compile --threads 2 --output"),
        ({"device": "gpu", "framework": "tensorflow", "jit": True},
         "learn it again on its device: `lolat learn gpu --jit --output models/desk.json`"),
        ({"device": "unknown", "source": "times.csv"},
         "fit it again to its table: `lolat fit TABLE.csv --output models/desk.json`"),
    ],
)  # fmt: skip
def test_it_is_made_as_it_was_made(
    lolat: Command, old: Path, where: dict[str, Any], command: str
) -> None:
    write(old, **where)
    assert command in lolat.refused("show", "desk")
