"""`lolat nas score`: what it says and writes, and every wrong call; Ray is in tests/nas."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lolat.nas import scoring
from tests.cli.commands import Command

pandas = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

VALUE = "tests.nas.ray_spaces:most_convolutions"


@pytest.fixture
def score(lolat: Command, model: Path, tmp_path: Path) -> Any:
    def call(*arguments: object, space: str = "nasbench201", refused: bool = False) -> Any:
        do = lolat.refused if refused else lolat
        return do("nas", "score", space, model, "--output", tmp_path / "out", *arguments)

    return call


def test_what_a_person_sees(score: Any, tmp_path: Path) -> None:
    found = score("--max-ms", 6, "--best", 25, "--chunk", 5000)
    assert found.code == 0
    lines = found.out.splitlines()
    assert lines.pop(1).startswith("latencies by ")
    frame = pandas.read_parquet(tmp_path / "out")
    assert lines[0].startswith("nasbench201: 15,625 candidates scored in ")
    assert lines[0].endswith(f" s, {len(frame):,} within 6 ms")
    assert lines[2].split() == ["latency", "candidate"]
    assert lines[3].split()[:2] == [f"{frame['latency_ms'].min():.2f}", "ms"]
    assert lines[3].endswith("|skip_connect~0|skip_connect~1|skip_connect~2|")
    assert lines[23] == "20 of the best 25 are shown; _best.csv has them all"
    assert lines[-1] == f"written: {tmp_path / 'out'}, 4 Parquet files and _best.csv"
    assert max(map(len, lines)) <= 120
    again = score("--max-ms", 6, "--best", 25, "--chunk", 5000)
    assert "(4 of 4 files were there already)" in again.out.splitlines()[0]
    assert "going on: 4 of 4 ranges are in" in again.err
    assert again.out.splitlines()[2:] == lines[1:]


def test_json(score: Any, tmp_path: Path) -> None:
    options = ["--limit", 1000, "--best", 2, "--value", VALUE, "--batch-size", 8, "--json"]
    found = score(*options)
    told = json.loads(found.out)
    assert {k: told[k] for k in ("space", "size", "batch_size", "predictor", "scored", "kept")} == {
        "space": "nasbench201", "size": 15625, "batch_size": 8, "predictor": "extended",
        "scored": 1000, "kept": 1000,
    }  # fmt: skip
    assert (told["max_ms"], told["files"], told["output"]) == (None, 1, str(tmp_path / "out"))
    # In base 5 that is 003333 and 000333: below 1000 the first with so many.
    assert [(row["index"], row["value"]) for row in told["best"]] == [(468, 4.0), (93, 3.0)]
    assert set(told["best"][0]) == {"index", "arch", "latency_ms", "value"}
    shown = score(*options[:-1]).out.splitlines()
    assert shown[0].startswith("nasbench201: 1,000 of 15,625 candidates scored")
    assert shown[3].split() == ["latency", "value", "candidate"]
    assert shown[4].split()[2] == "4"


@pytest.mark.parametrize(
    ("space", "arguments", "said"),
    [
        ("fbnet", [], "22 positions make 9.8e+20 candidates, more than an int64 can index"),
        ("fbnot", [], "no space 'fbnot'; expected nasbench201, fbnet, "),
        ("nasbench201", ["--value", "nothing"], "no objective 'nothing'"),
        ("nasbench201", ["--value", "tests.nas.ray_spaces:wrong_shape"], "returned an array of shape"),
        ("nasbench201", ["--batch-size", "9" * 17], "at most 2**53"),
        ("nasbench201", ["--ray", "fbnet"], "no Ray at 'fbnet' ("),
        ("nasbench201", ["--ray", "127.0.0.1:70000"], "no Ray at '127.0.0.1:70000' ("),
    ],
)  # fmt: skip
def test_a_wrong_call(score: Any, space: str, arguments: list[str], said: str) -> None:
    pytest.importorskip("ray")
    assert said in score(*arguments, space=space, refused=True)


def test_output_is_needed(lolat: Command, model: Path) -> None:
    assert "Missing option '--output'" in lolat.refused("nas", "score", "nasbench201", model)


def test_no_ray_installed(score: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    said = score("--ray", refused=True)
    assert "Ray is needed for this and cannot be imported" in said
    assert "[ray]'" in said
    assert not (tmp_path / "out").exists()
    assert score().code == 0  # without --ray no Ray is needed


def test_an_address_where_nothing_is(score: Any) -> None:
    pytest.importorskip("ray")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
    said = score("--ray", address, refused=True)
    assert f"no Ray at '{address}' (ConnectionRefusedError: " in said
    assert "expected host:port of the head of a cluster" in said


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where a made-up Ray was asked for; "left" when it was left. Ranges are scored in this process."""
    asked: list[str] = []

    def init(address: str, **options: Any) -> None:
        asked.append(address)
        if address == "auto":
            raise ConnectionError("no raylet\nhere")
        print("a page about a dead worker")

    made_up = SimpleNamespace(init=init, shutdown=lambda: asked.append("left"))
    monkeypatch.setitem(sys.modules, "ray", made_up)
    monkeypatch.setattr(scoring, "on_ray", scoring.here)
    return asked


def test_a_cluster_that_this_machine_is_not_in(score: Any, ray: list[str]) -> None:
    said = score("--ray", "auto", refused=True)
    assert "no Ray at 'auto' (ConnectionError: no raylet here); expected" in said
    assert ray == ["auto"]


@pytest.mark.parametrize("variable", [None, "127.0.0.1"])
def test_with_ray_as_without(
    score: Any, ray: list[str], variable: str | None, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    told = json.loads(score("--json", "--ray").out)
    assert told["scored"] == 15625
    assert len(pandas.read_parquet(tmp_path / "out")) == 15625
    assert ray == [variable or "local", "left"]


def test_ctrl_c_says_what_becomes_of_what_is_done(
    score: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = scoring.score_range

    def interrupted(job: Any, start: int) -> Any:
        if start:
            raise KeyboardInterrupt
        return real(job, start)

    monkeypatch.setattr(scoring, "score_range", interrupted)
    found = score("--chunk", 5000)
    assert found.code == 130
    assert "interrupted; what is done is in" in found.err.splitlines()[-1]
    monkeypatch.undo()
    assert "going on: 1 of 4 ranges" in score("--chunk", 5000).err
