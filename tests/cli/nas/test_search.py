"""`lolat nas search`: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lolat.cli.common import run
from lolat.cli.main import lolat as main
from tests.cli.commands import ROOT, Command, one_line, process, valid_answer

MODULE = """
import os
import time

from lolat.nas.space import Position, Space
from lolat.nas.tables import Part


def shape(*chosen):
    return (1, 16, 16, 8)


def write(layers, x, kernel, width):
    return layers.conv(layers.conv(x, width, kernel), 8, 1)


def space():
    print("a space that talks")
    positions = [Position("kernel", (1, 3, 5)), Position("width", (8, 16, 32))]
    return Space.of_parts("tiny", positions, [Part("only", (0, 1), shape, write)])


def score(choices):
    print("an objective that talks")
    return choices["kernel"] * 10 + choices["width"]


def fails(arch):
    raise ValueError("no data")


def slow(candidate):
    time.sleep(0.3)
    return sum(candidate)


def writes(choices):
    os.write(1, b"by its number")
    return 1


def leaves(arch):
    raise SystemExit(0)


class Stop(BaseException):
    pass


def stops():
    raise Stop("at once")
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a module of the user's."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "searched.py").write_text(MODULE)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "searched", raising=False)
    return folder


def test_a_front_as_a_table(lolat: Command, model: Path, here: Path) -> None:
    found = lolat("nas", "search", "searched:space", model, "--objective", "searched:score")
    assert found.code == 0
    head, by, empty, columns, *rows = found.out.splitlines()
    assert by == "latencies by the formula extended, of inference"
    assert head.startswith("tiny: 9 candidates, exhaustive search: 9 scored, ")
    assert empty == ""
    assert columns.split()[0] == "latency"
    assert rows[0].endswith("0-0")
    assert all(len(line) <= 80 for line in found.out.splitlines())
    assert "talks" not in found.out
    assert "talks" in found.err
    kept = list(csv.DictReader((here / "tiny.scores.csv").open(newline="")))
    assert len(kept) == 9
    assert {(row["arch"], float(row["score"])) for row in kept} == {
        (f"{k}-{w}", kernel * 10.0 + width)
        for k, kernel in enumerate((1, 3, 5))
        for w, width in enumerate((8, 16, 32))
    }


def test_json_and_what_is_written(lolat: Command, model: Path, here: Path) -> None:
    given = ("searched:space", model, "--objective", "searched:score", "--max-ms", "500", "--json")
    found = lolat("nas", "search", *given, "--output", "front.csv", "--batch-size", "4")
    answer = json.loads(found.out)
    assert found.out.count("\n") == 1
    assert (answer["space"], answer["size"], answer["batch_size"]) == ("tiny", 9, 4)
    assert (answer["method"], answer["max_ms"], answer["scored"]) == ("exhaustive", 500.0, 9)
    rows = list(csv.DictReader((here / "front.csv").open(newline="")))
    assert [r["arch"] for r in rows] == [c["arch"] for c in answer["front"]]
    for row, candidate in zip(rows, answer["front"], strict=True):
        assert float(row["latency_ms"]) == pytest.approx(candidate["latency_ms"], rel=1e-5)
        low, high = candidate["interval_ms"]
        assert low < candidate["latency_ms"] < high
        assert float(row["score"]) == candidate["score"]
    assert (here / "front.scores.csv").exists()
    again = lolat("nas", "search", *given, "--output", "front.csv", "--batch-size", "4")
    assert json.loads(again.out) == answer
    assert "9 scores are in front.scores.csv already" in again.err
    assert "talks" not in again.err.partition("already")[2]


def test_scores_of_a_table(lolat: Command, model: Path, here: Path) -> None:
    (here / "scores.csv").write_text("arch,score\n0-0,0.5\n2-2,0.9\n1-1,0.4\n")
    given = ("searched:space", model, "--objective", "scores.csv", "--json")
    answer = json.loads(lolat("nas", "search", *given).out)
    front = [(c["arch"], c["candidate"]) for c in answer["front"]]
    assert front == [("0-0", [0, 0]), ("2-2", [2, 2])]
    low = json.loads(lolat("nas", "search", *given, "--lower-is-better").out)
    assert [c["arch"] for c in low["front"]] == ["0-0", "1-1"]
    assert list(here.glob("*.scores.csv")) == []


def test_a_plot(lolat: Command, model: Path, here: Path) -> None:
    pytest.importorskip("matplotlib")
    given = ("searched:space", model, "--objective", "searched:score", "--max-ms", "100")
    found = lolat("nas", "search", *given, "--plot", "front.svg")
    assert found.code == 0
    assert "drawn: front.svg" in found.err
    drawn = (here / "front.svg").read_text()
    assert "tiny on a desk" in drawn
    assert "9 scored" in drawn


def test_what_is_refused(lolat: Command, model: Path, here: Path) -> None:
    def refused(*given: object, code: int = 2) -> str:
        return lolat.refused("nas", "search", *given, code=code)

    score = ("--objective", "searched:score")
    assert "no space 'tiny'; expected nasbench201, fbnet" in refused("tiny", model, *score)
    assert "Missing option '--objective'" in refused("nasbench201", model)
    assert "no objective 'score'; expected package.module:callable, or a CSV" in refused(
        "nasbench201", model, "--objective", "score"
    )
    assert "gone.csv: no such file" in refused("nasbench201", model, "--objective", "gone.csv")
    for option, value, said in (
        ("--output", "no/front.csv", "--output no/front.csv: no folder no"),
        ("--plot", "front.txt", ".svg or .png"),
        ("--predictor", "magic", "'magic' is not one of 'two-regime'"),
    ):
        assert said in refused("nasbench201", model, *score, option, value)


def last(stderr: str) -> str:
    return stderr.splitlines()[-1]


def test_a_function_that_ends_the_program(lolat: Command, model: Path, here: Path) -> None:
    asked = ("searched:space", model, "--json", "--objective", "searched:leaves")
    left = lolat("nas", "search", *asked)
    assert (left.code, left.out) == (2, "")
    assert "objective searched:leaves of " in last(left.err)
    assert "failed: SystemExit: 0; expected a number" in last(left.err)
    stopped = lolat("nas", "search", "searched:stops", model, "--objective", "searched:score")
    assert stopped.code == 2
    assert "calling 'searched:stops' failed: Stop: at once" in last(stopped.err)


def test_a_function_that_writes_to_descriptor_1(
    model: Path, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ask = ["nas", "search", "searched:space", str(model), "--objective"]
    words = [*ask, "searched:writes", "--json"]
    assert run(main, words, "lolat") == 0
    out, err = capfd.readouterr()
    assert valid_answer(words, out)["scored"] == 9
    assert err.count("by its number") == 9


def test_what_is_refused_after_a_while(lolat: Command, model: Path, here: Path) -> None:
    found = lolat("nas", "search", "fbnet", model, "--objective", "searched:fails")
    assert found.code == 2
    assert "objective searched:fails of " in last(found.err)
    assert "failed: ValueError: no data; expected a number" in last(found.err)
    for space, score, method in (
        ("fbnet", "searched:slow", "evolutionary"),
        ("searched:space", "searched:score", "exhaustive"),
    ):
        asked = (space, model, "--objective", score, "--max-ms", "0.001", "--json")
        none = lolat("nas", "search", *asked)
        assert (none.code, none.err.count("lolat: no candidate")) == (3, 1)
        assert "is within 0.001 ms; the fastest takes" in last(none.err)
        told = json.loads(none.out)
        assert (told["method"], told["scored"], told["front"]) == (method, 0, [])
        assert f"the fastest takes {told['fastest_ms']:.3g} ms" in last(none.err)
    every = ("fbnet", model, "--objective", "searched:slow", "--method", "exhaustive")
    assert "more than an int64 can index" in last(lolat("nas", "search", *every).err)


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to another process")
def test_ctrl_c_loses_no_score(model: Path, here: Path) -> None:
    call = ["nas", "search", "searched:space", str(model), "--objective", "searched:slow"]
    command = [sys.executable, "-m", "lolat.cli.main", *call]
    started = subprocess.Popen(
        command, cwd=here, env={"PYTHONPATH": str(ROOT), "PATH": ""}, stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    journal = here / "tiny.scores.csv"
    for _ in range(600):
        if journal.exists() and len(journal.read_text().splitlines()) >= 3:
            break
        time.sleep(0.1)
    started.send_signal(signal.SIGINT)
    out, err = started.communicate(timeout=60)
    kept = len(journal.read_text().splitlines()) - 1
    assert started.returncode == 130
    assert out == ""
    assert f"{kept} new scores are in tiny.scores.csv; the same command goes on from there" in err
    assert last(err).startswith("lolat: interrupted; ")
    assert 2 <= kept < 9


def test_keras_greets_nobody(lolat: Command, model: Path, here: Path) -> None:
    """TensorFlow writes to stderr from C++ when a module imports it; a refusal stays one line."""
    (here / "keras.py").write_text(
        "import os\nos.write(2, b'a greeting from C++')\nStatelessScope = object\n"
    )
    (here / "talking.py").write_text("import keras\n")
    ask = ["nas", "search", "talking:space", model, "--objective", "talking:score"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(here), str(ROOT)])}
    done = process(ask, cwd=here, env=env)
    assert done.returncode == 2
    assert "has no 'space'" in one_line(done.stderr)
