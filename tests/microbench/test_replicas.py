"""Processes that measure together: their answers, and what becomes of the rest when one dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lolat.errors import DeviceError, LolatError, MeasuringError
from microbench.timing import REPLICA_CALLS as CALLS
from microbench.timing import REPLICA_WARM_CALLS as WARM_CALLS
from microbench.timing import timed
from microbench.worker import run_together
from tests.processes import is_running, wait_until

HERE = "tests.microbench.replica_calls"
ROOT = Path(__file__).resolve().parents[2]


def test_answers_come_in_the_order_of_the_requests() -> None:
    found = run_together(f"{HERE}:echo", [{"rank": 0, "n": 7}, {"rank": 1, "n": 8}], 60)
    assert [(f["n"], f["rank"], f["other"]) for f in found] == [(7, 0, 1), (8, 1, 0)]
    assert found[0]["folder"] == found[1]["folder"]
    assert not Path(found[0]["folder"]).exists()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        ("refuse", DeviceError, "^no such device; plug one in$"),
        ("fail", MeasuringError, "^ZeroDivisionError: by nought$"),
        ("eat", LolatError, "^not enough memory; try fewer replicas$"),
        ("missing", MeasuringError, "^AttributeError: module .* has no attribute 'missing'"),
    ],
)
def test_an_error_is_that_of_the_process(call: str, error: type[LolatError], words: str) -> None:
    with pytest.raises(error, match=words) as raised:
        run_together(f"{HERE}:{call}", [{}], 60)
    assert type(raised.value) is error


@pytest.mark.parametrize(
    ("dies", "words"),
    [
        ("killed", r"^a measuring process was killed \(often: the system ran out of memory\)$"),
        ("exits", "^a measuring process exited with code 3: last words$"),
    ],
)
def test_when_one_dies_all_are_ended(tmp_path: Path, dies: str, words: str) -> None:
    files = [tmp_path / "0", tmp_path / "2"]
    requests = [
        {"rank": 0, "pid_file": str(files[0])},
        {"rank": 1, "dies": dies},
        {"rank": 2, "pid_file": str(files[1])},
    ]
    with pytest.raises(MeasuringError, match=words):
        run_together(f"{HERE}:hang", requests, 60)
    # One that is ended at once has not written its number yet.
    pids = [int(word) for f in files if f.exists() for word in f.read_text().split()[:1]]
    assert not any(map(is_running, pids))


def test_there_is_a_limit(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(MeasuringError, match=r"no answer within 1 s; on a"):
        run_together(f"{HERE}:hang", [{"pid_file": str(pid_file)}], 1)
    assert not (pid_file.exists() and is_running(int(pid_file.read_text().split()[0])))


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at /proc")
def test_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "from microbench.worker import run_together; "
        f"run_together('{HERE}:hang', [{{'pid_file': {str(pid_file)!r}}}], 600)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        wait_until(lambda: pid_file.exists() and bool(pid_file.read_text()), 60, "a process starts")
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        pid, folder = pid_file.read_text().split()
        wait_until(lambda: not is_running(int(pid)), 10, "it ends")
        assert not Path(folder).exists()
    finally:
        parent.kill()
        parent.wait()


class Work:
    """Calls that take a time of their own by a clock that only they move."""

    def __init__(self, *lengths_ms: float) -> None:
        self.now, self.met = 0.0, 0
        self.order: list[int] = []
        self.calls = [self._call(i, ms) for i, ms in enumerate(lengths_ms)]

    def _call(self, index: int, ms: float):  # type: ignore[no-untyped-def]
        def call() -> None:
            self.order.append(index)
            self.now += ms / 1e3

        return call

    def clock(self) -> float:
        return self.now

    def meet(self) -> None:
        self.met += 1
        self.now += 1.0  # waiting for the others is no part of a time


def test_times_are_those_of_the_calls() -> None:
    work = Work(2.0, 30.0)
    found = timed(work.calls, work.clock, work.meet, rounds=4)
    assert found == [[pytest.approx(2.0)] * 4 * CALLS, [pytest.approx(30.0)] * 4 * CALLS]
    assert work.met == 2 * 4 * CALLS
    assert work.order.count(0) == work.order.count(1) == WARM_CALLS + 4 * (1 + CALLS)


def test_all_processes_take_the_same_order() -> None:
    orders = []
    for _ in range(2):
        work = Work(1.0, 2.0, 3.0, 4.0)
        timed(work.calls, work.clock, rounds=8)
        orders.append(work.order)
    assert orders[0] == orders[1]
    rounds = orders[0][4 * WARM_CALLS :]
    step = 1 + CALLS
    firsts = {tuple(rounds[i : i + 4 * step : step]) for i in range(0, len(rounds), 4 * step)}
    assert len(firsts) > 1  # not always the same one first
