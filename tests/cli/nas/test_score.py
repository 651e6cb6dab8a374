"""`lolat nas score`: what it says and writes, and every wrong call; Ray is in tests/nas."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lolat.cli import cluster as ray_cluster
from lolat.errors import InputError
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
        ("nasbench201", ["--ray", "fbnet"], "'fbnet' is no address: expected host:port of the "
         "cluster's head, such as 10.0.0.1:6379, or auto; if it is an argument of the command, write"),
        ("nasbench201", ["--ray", "ray://h:10001"], "Ray's client is not supported; expected host:port"),
        ("nasbench201", ["--ray", "h:99999999"], "is no address"),
        ("nasbench201", ["--ray", "127.0.0.1:70000"], "no Ray cluster answers at 127.0.0.1:70000"),
        ("nasbench201", ["--ray", "nowhere.invalid:6379"], "no Ray cluster answers at nowhere.invalid"),
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
    assert "Ray cannot be imported here" in said
    assert "[ray]'" in said
    assert not (tmp_path / "out").exists()
    assert score().code == 0  # without --ray no Ray is needed


@contextmanager
def server(answer: bytes) -> Iterator[str]:
    """Something at an address that accepts a connection and says `answer`, then nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept: list[socket.socket] = []

        def serve() -> None:
            try:
                kept.append(listening.accept()[0])
                kept[0].sendall(answer)
            except OSError:  # closed: the test is over
                pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        for line in kept:
            line.close()


def closed_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return f"127.0.0.1:{listening.getsockname()[1]}"


def test_an_address_where_nothing_is(score: Any) -> None:
    pytest.importorskip("ray")
    said = score("--ray", closed_port(), refused=True)
    assert "(Connection refused); expected host:port of the cluster's head" in said
    assert "`ray start --head` starts one" in said


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"", "(silence for 0.3 s)"),
        (b"\x00\x00", "(silence for 0.3 s)"),
        (b"-ERR unknown command\r\n", "(what is there is no Ray)"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "(what is there is no Ray)"),
    ],
)
def test_an_address_that_does_not_answer_as_ray_does(
    answer: bytes, said: str, score: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray")
    assert ray_cluster.LIMIT_S < 15.0
    monkeypatch.setattr(ray_cluster, "LIMIT_S", 0.3)
    with server(answer) as address:
        found = score("--ray", address, refused=True)
    assert f"no Ray cluster answers at {address}" in found
    assert said in found


def test_a_ray_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(**options: Any) -> None:
        os.write(2, b"pages of C++\n")
        time.sleep(60)

    ray = SimpleNamespace(init=hang, is_initialized=lambda: False, shutdown=lambda: None)
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: ray)
    with (
        server(b"\x00\x00\x00\x04") as address,
        pytest.raises(InputError, match="hangs: given up after 1 s"),
        ray_cluster.connected(address, 1.0),
    ):
        pass


def test_a_cluster_that_this_machine_is_not_in(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**options: Any) -> None:
        os.write(2, b"pages of C++\n")
        raise ConnectionError("no raylet\nhere")

    ray = SimpleNamespace(init=refuse, is_initialized=lambda: False, shutdown=lambda: None)
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: ray)
    with (
        pytest.raises(InputError, match=r"cannot join the Ray cluster at auto: no raylet here; .*--head"),
        ray_cluster.connected("auto"),
    ):  # fmt: skip
        pass
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("address", "variable", "running", "expected"),
    [
        ("here", None, False, "local"),
        ("here", "auto", False, "auto"),
        ("auto", None, False, "auto"),
        ("here", "auto", True, None),
    ],
)
def test_which_ray_is_meant(
    address: str, variable: str | None, running: bool, expected: str | None,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    asked: list[Any] = []
    left: list[int] = []
    ray = SimpleNamespace(
        init=lambda **options: asked.append(options["address"]),
        is_initialized=lambda: running,
        shutdown=lambda: left.append(1),
    )
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: ray)
    if variable is None:
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
    else:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    with ray_cluster.connected(address) as found:
        print("a page about a dead worker")
        assert found is ray
    assert asked == ([] if expected is None else [expected])
    assert left == ([] if running else [1])  # what was running before is not ours to stop
    assert capsys.readouterr().out == ""


def test_with_ray_as_without(score: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command hands the same job to Ray; the ranges are scored here for once."""
    ray = SimpleNamespace(is_initialized=lambda: True)
    monkeypatch.setattr(ray_cluster, "import_ray", lambda: ray)
    monkeypatch.setattr(scoring, "on_ray", scoring.here)
    told = json.loads(score("--json", "--ray").out)
    assert told["scored"] == 15625
    assert len(pandas.read_parquet(tmp_path / "out")) == 15625


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
