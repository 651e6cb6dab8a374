"""Real child processes that misbehave: what their parent sees, and what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lolat.errors import DeviceError, LolatError, MeasuringError
from lolat.io.process import Child, ProcessDied, RequestFailed
from tests.processes import PATIENCE_S, is_running, open_files, wait_until

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")

ROOT = Path(__file__).resolve().parents[2]
CALLS = "tests.io.child_calls:start"


@pytest.fixture
def child() -> Iterator[Child]:
    with Child(CALLS) as started:
        yield started


def test_answers_of_any_length(child: Child) -> None:
    assert child.request({"a": [1, None, "é\n"]}, PATIENCE_S) == {"a": [1, None, "é\n"]}
    assert child.request("x" * 10_000_000, PATIENCE_S) == "x" * 10_000_000


def test_what_a_child_has_from_its_parent() -> None:
    with Child(CALLS, environment={"LOLAT_TEST": "1"}) as child:
        assert child.request("environment", PATIENCE_S) == "1"
        assert child.request("path", PATIENCE_S) == sys.path
        assert os.getpgid(child.pid) != os.getpgid(0), "Ctrl-C in the terminal does not reach it"
        os.kill(child.pid, signal.SIGINT)
        child.request("still there", PATIENCE_S)


def test_what_fails_is_one_line_and_the_child_lives(child: Child) -> None:
    for request_, kind, message in (
        ("lines", DeviceError, "ValueError: first line"),
        ("silent", DeviceError, "ValueError: "),
        ("known", MeasuringError, "operation 'foo' is not built here"),
    ):
        with pytest.raises(RequestFailed, match=f"^{message}$") as caught:
            child.request(request_, PATIENCE_S)
        error = caught.value.as_error(DeviceError)
        assert (type(error), str(error)) == (kind, message)
    child.request("good", PATIENCE_S)


@pytest.mark.parametrize("request_", ["print", "chatter", "read"])
def test_what_a_network_prints_or_reads_does_not_mix_in(
    child: Child, request_: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert child.request(request_, PATIENCE_S) == request_
    assert child.request("good", PATIENCE_S) == "good"
    assert capfd.readouterr() == ("", "")


KILLED = "it was killed (often: the system ran out of memory)"


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("kill", KILLED),
        ("abort", "it was ended by signal SIGABRT: Fatal: the kernel is on fire"),
        ("exit", "it exited with code 7"),
        ("torn", KILLED),
    ],
)
def test_a_death_in_a_plain_word(request_: str, message: str) -> None:
    before = open_files()
    with Child(CALLS, name="it") as child:
        with pytest.raises(ProcessDied) as caught:
            child.request(request_, PATIENCE_S)
        assert str(caught.value) == message
        with pytest.raises(ProcessDied):
            child.request("good", PATIENCE_S)
    assert not child.is_running()
    assert open_files() == before


def test_one_that_takes_too_long_is_ended(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    wait = child._process.wait

    def slowly(*limit: float) -> int:  # as on a busy machine: its pipes close before it is gone
        time.sleep(0.3)
        return wait(*limit)

    monkeypatch.setattr(child._process, "wait", slowly)
    with pytest.raises(ProcessDied, match="no answer within 1 s"):
        child.request("sleep", 1)
    assert not is_running(child.pid)


def test_the_group_of_a_child_that_is_gone_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's number may be another's by then."""
    killed: list[int] = []
    with Child(CALLS) as one, Child(CALLS) as other:
        other.ready()
        with pytest.raises(ProcessDied):
            one.request("exit", PATIENCE_S)
        monkeypatch.setattr(os, "killpg", lambda group, _: killed.append(group))
    assert killed == [other.pid]


def test_closing_ends_a_busy_child() -> None:
    before = open_files()
    child = Child(CALLS)
    child.ready()

    def ask() -> None:
        with pytest.raises(ProcessDied):
            child.request("sleep", PATIENCE_S)

    asking = threading.Thread(target=ask)
    asking.start()
    sleeping = child._errors
    assert sleeping is not None
    wait_until(lambda: os.fstat(sleeping.fileno()).st_size > 0, "its sleep")
    child.close()
    child.close()
    asking.join(PATIENCE_S)
    assert not asking.is_alive()
    assert not is_running(child.pid)
    assert open_files() == before


@pytest.mark.parametrize(
    ("how", "kind", "words"),
    [
        ("refused", DeviceError, "looked under the table"),
        ("broken", LolatError, "RuntimeError: import broken"),
    ],
)
def test_what_cannot_start(how: str, kind: type[LolatError], words: str) -> None:
    with Child(CALLS, how) as child:
        with pytest.raises(RequestFailed, match=words) as caught:
            child.ready()
        assert type(caught.value.as_error(LolatError)) is kind
        with pytest.raises(ProcessDied):
            child.request("good", PATIENCE_S)


def test_files_of_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "queue", "numpy", "lolat", "threading"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    with Child(CALLS) as child:
        assert "" not in child.request("path", PATIENCE_S)


PARENT = f"""
import sys
from lolat.io import process
child = process.Child({CALLS!r}, shows_errors=True)
child.ready()
print(child.pid, flush=True)
child.request(sys.argv[1], 600)
print("answered", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("request_", ["sleep", "nothing"])
def test_a_child_ends_itself_when_its_parent_is_killed(request_: str) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, request_],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
    )  # fmt: skip
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline() in ("sleeping\n", "answered\n")
        assert is_running(pid)
        parent.kill()
        parent.wait()
        wait_until(lambda: not is_running(pid), "the child's end")
