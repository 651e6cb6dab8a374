"""A real worker process, with a backend that misbehaves: what the parent sees, and what is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lolat.errors import DeviceError, InputError, MeasuringError
from microbench import process
from microbench.process import JobFailed, WorkerDied, WorkerProcess
from tests.microbench import processes
from tests.microbench.processes import is_running, open_files, wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("scratch")))
    monkeypatch.setattr(process, "_START", processes.FAKE_START)
    monkeypatch.setattr(process, "LOOK_S", 0.2)


@pytest.fixture
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess("fake", "cpu") as started:
        yield started


def prepare(network: str, key: str = "job") -> dict[str, Any]:
    job = {"network": network, "input_size": [], "batch_size": 1}
    return {"do": "prepare", "key": key, "job": job}


def time_it(key: str = "job", calls: int = 3) -> dict[str, Any]:
    return {"do": "time", "key": key, "reference": "ref", "calls": calls}


def test_prepare_time_forget(worker: WorkerProcess) -> None:
    assert worker.request(prepare("good", "ref"), 10)["estimate_ms"] >= 0
    worker.request(prepare("good"), 10)
    taken = worker.request(time_it(), 10)
    assert len(taken["samples_ms"]) == 3
    assert len(taken["reference_ms"]) == 4
    worker.request({"do": "forget", "keys": ["job", "never there"]}, 10)
    with pytest.raises(JobFailed, match="KeyError: 'job'"):
        worker.request(time_it(), 10)


def test_a_sample_after_another_job(worker: WorkerProcess) -> None:
    for key in ("net", "block"):
        worker.request(prepare("good", key), 10)
    began = time.time()
    after = worker.request({"do": "sample", "key": "block", "before": "net", "calls": 2}, 10)
    alone = worker.request({"do": "sample", "key": "net", "before": "", "calls": 3}, 10)
    assert (after.pop("others_s"), alone.pop("others_s")) == (None, None), "as the fake says"
    assert {k: v if k == "before" else len(v) for k, v in after.items()} == {
        "samples_ms": 2, "reference_ms": 2, "at_s": 2, "before": "net",
    }  # fmt: skip
    assert {k: v if k == "before" else len(v) for k, v in alone.items()} == {
        "samples_ms": 3, "reference_ms": 0, "at_s": 3, "before": "",
    }  # fmt: skip
    moments = [*after["at_s"], *alone["at_s"]]
    assert moments == sorted(moments)
    assert began - 0.001 <= moments[0] <= moments[-1] <= time.time() + 0.001
    with pytest.raises(JobFailed, match="KeyError: 'gone'"):
        worker.request({"do": "sample", "key": "block", "before": "gone", "calls": 1}, 10)


@pytest.mark.skipif(not hasattr(os, "setpriority"), reason="where there are priorities")
def test_it_goes_before_other_programs_where_that_is_allowed(worker: WorkerProcess) -> None:
    """Whether it is, a process says that tries it, and ends."""
    ask = "import os; os.setpriority(os.PRIO_PROCESS, 0, -20)"
    allowed = subprocess.run([sys.executable, "-c", ask], capture_output=True).returncode == 0
    own = os.getpriority(os.PRIO_PROCESS, 0)
    nice = worker.request({"do": "environment"}, 10)["environment"]["nice"]
    assert nice == (-20 if allowed else own), "of the thread in which the framework was started"
    assert os.getpriority(os.PRIO_PROCESS, worker.pid) == nice
    assert os.getpriority(os.PRIO_PROCESS, 0) == own, "the parent stays as it is"


def test_a_long_answer_and_a_long_request(worker: WorkerProcess) -> None:
    assert len(worker.request({"do": "environment"}, 10)["environment"]["ints"]) == 100_000
    worker.request(prepare("x" * 10_000_000), 10)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("memory", "not enough memory"),
        ("lines", "ValueError: first line"),
        ("silent", "ValueError: "),
        ("known", "operation 'foo' is not built here"),
    ],
)
def test_a_job_that_fails_is_one_line_and_the_worker_lives(
    worker: WorkerProcess, network: str, message: str
) -> None:
    with pytest.raises(JobFailed) as caught:
        worker.request(prepare(network), 10)
    assert str(caught.value) == message
    worker.request(prepare("good"), 10)


@pytest.mark.parametrize("network", ["print", "chatter", "read"])
def test_what_a_network_prints_or_reads_does_not_mix_in(
    worker: WorkerProcess, network: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert set(worker.request(prepare(network), 10)) == {"estimate_ms"}
    assert "ints" in worker.request({"do": "environment"}, 10)["environment"]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("kill", "the measuring process was killed (often: the system ran out of memory)"),
        (
            "abort",
            "the measuring process was ended by signal SIGABRT: Fatal: the kernel is on fire",
        ),
        ("exit", "the measuring process exited with code 7"),
        ("realtime signal", "the measuring process was ended by signal 36"),
        ("torn", "the measuring process was killed (often: the system ran out of memory)"),
        ("heir", "the measuring process was killed (often: the system ran out of memory)"),
    ],
)
def test_a_death_in_a_plain_word(network: str, message: str) -> None:
    before = open_files()
    folder = Path(os.environ["TMPDIR"])
    with WorkerProcess("fake", "cpu") as worker:
        assert len(list(folder.iterdir())) == 1
        began = time.monotonic()
        with pytest.raises(WorkerDied) as caught:
            worker.request(prepare(network), 60)
        assert time.monotonic() - began < 20
        assert str(caught.value) == message
        with pytest.raises(WorkerDied):
            worker.request(prepare("good"), 60)
    assert not is_running(worker.pid)
    assert list(folder.iterdir()) == []
    if network != "heir":
        assert open_files() == before


def test_killed_from_outside(worker: WorkerProcess) -> None:
    threading.Timer(0.3, os.kill, (worker.pid, signal.SIGKILL)).start()
    with pytest.raises(WorkerDied, match="was killed"):
        worker.request(prepare("sleep"), 60)


def test_a_worker_that_hangs_is_killed(worker: WorkerProcess) -> None:
    with pytest.raises(WorkerDied, match="no answer within 1 s"):
        worker.request(prepare("sleep"), 1)
    assert not is_running(worker.pid)


def test_closing_ends_a_busy_worker_and_leaves_nothing_open() -> None:
    before = open_files()
    worker = WorkerProcess("fake", "cpu")
    assert worker._process.stdin is not None
    worker._process.stdin.write(json.dumps(prepare("sleep")) + "\n")
    worker._process.stdin.flush()
    worker.close()
    worker.close()
    assert not is_running(worker.pid)
    assert open_files() == before


def test_what_it_leaves_behind_in_the_temporary_folder_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with WorkerProcess("fake", "cpu") as worker:
        worker.request(prepare("temporary"), 10)
        assert len(list(tmp_path.rglob("left_behind*"))) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_is_refused_is_gone() -> None:
    before = open_files()
    with pytest.raises(DeviceError, match="looked under the table"):
        WorkerProcess("fake", "gpu")
    with pytest.raises(InputError, match="no backend 'none'"):
        WorkerProcess("none", "cpu")
    with pytest.raises(MeasuringError, match=r"did not start.*exited with code 1.*import broken"):
        WorkerProcess("fake", "broken")
    assert open_files() == before


def test_ctrl_c_while_it_starts_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_files()
    pids = []

    def interrupt(self: WorkerProcess, limit_s: float) -> Any:
        pids.append(self.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(WorkerProcess, "_next", interrupt)
    with pytest.raises(KeyboardInterrupt):
        WorkerProcess("fake", "cpu")
    assert not is_running(pids[0])
    assert open_files() == before


def test_a_file_in_the_working_directory_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("json", "queue", "numpy", "microbench", "threading"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    with WorkerProcess("fake", "cpu") as worker:
        assert not worker.request({"do": "environment"}, 10)["environment"]["cwd_on_path"]


PARENT = f"""
import sys
from microbench import process
process._START = {processes.FAKE_START!r}
worker = process.WorkerProcess("fake", "cpu")
print(worker.pid, flush=True)
job = {{"network": sys.argv[1], "input_size": [], "batch_size": 1}}
worker.request({{"do": "prepare", "key": "job", "job": job}}, 600)
sys.stdin.read()
"""


@pytest.mark.parametrize("doing", ["sleep", "nothing"])
def test_a_worker_ends_itself_when_its_parent_is_killed(doing: str, tmp_path: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, doing],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.2)
        assert is_running(pid)
        parent.kill()
        parent.wait()
        wait_until(lambda: not is_running(pid), 10, "the worker's end")
        assert list(tmp_path.iterdir()) == []


def test_a_worker_whose_parent_dies_in_the_middle_of_a_line_ends() -> None:
    worker = subprocess.Popen(
        [sys.executable, "-c", processes.FAKE_START, json.dumps(sys.path), "fake", "cpu"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert worker.stdin is not None
        assert worker.stdout is not None
        assert b"scratch" in worker.stdout.readline()
        worker.stdin.write(b'{"do": "prep')
        worker.stdin.close()
        worker.wait(10)
    finally:
        worker.kill()
        worker.wait()
        for stream in (worker.stdin, worker.stdout):
            if stream is not None:
                stream.close()


def test_ctrl_c_in_the_terminal_does_not_reach_it(worker: WorkerProcess) -> None:
    assert os.getpgid(worker.pid) != os.getpgid(0)
    os.kill(worker.pid, signal.SIGINT)
    worker.request(prepare("good"), 10)
