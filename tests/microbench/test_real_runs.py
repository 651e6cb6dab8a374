"""Whole runs of `learn_model.py` on tiny blocks: killed, gone on with, interrupted, the disk full."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lolat.device.file import read
from microbench.journal import read as read_journal
from tests.processes import PATIENCE_S, is_running, wait_until

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 3

# The command as a user runs it, but on five tiny blocks and two tiny networks; what it asks its worker is
# written to a log.
DRIVER = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, if the tests run in the background
from microbench import learn, runner, worker
from microbench.blocks import Predefined
from lolat.graph.layers import Layers
from microbench.runner import Settings

def tiny(size, channels):
    n = Layers.on("tiny", size, size, 3)
    return n.done(n.conv_norm_act(n.input, channels, 3))

learn.BLOCKS = tuple(
    Predefined(f"tiny {{c}}", lambda c=c: tiny(8 * c, 2 * c), (1, 4)) for c in (1, 2, 3, 4, 5)
)
learn.NETWORKS = tuple(
    Predefined(f"net {{c}}", lambda c=c: tiny(16, 2 * c), (1,), True) for c in (3, 4)
)
learn.USUAL = Settings(rounds={ROUNDS})

class Logged(worker.WorkerProcess):
    def request(self, document, limit_s):
        with open(sys.argv[1], "a") as log:
            log.write(f"{{self.pid}} {{document['do']}} {{document.get('key', '')}}\\n")
        return super().request(document, limit_s)

runner.WorkerProcess = Logged
from lolat.cli.learn import main
sys.exit(main(sys.argv[2:]))
"""
POINTS = 12
QUICK = ("--backend", "onnxruntime")  # starts in a second


class Run:
    """The driver in a process group of its own, as a terminal starts it."""

    def __init__(self, output: Path, log: Path, *options: str) -> None:
        self.output, self.log = output, log
        self.journal = output.with_name(output.name + ".journal.jsonl")
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, log, "cpu", "--output", output, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            start_new_session=True,
        )

    def asked(self) -> list[list[str]]:
        """Lines of the log: worker, verb, key."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line.split(" ", 2) for line in lines]

    def visits(self) -> list[dict[str, Any]]:
        return [r for r in read_journal(self.journal)[1:] if "visit" in r]

    def wait_for(self, visits: int) -> None:
        def there() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return len(self.visits()) >= visits

        wait_until(there, f"{visits} visits")

    def done(self) -> tuple[int, str, str]:
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err

    def workers(self) -> set[int]:
        return {int(pid) for pid, *_ in self.asked()}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    runs: list[Run] = []

    def start(*options: str) -> Run:
        log = tmp_path / f"{len(runs)}.log"
        runs.append(Run(tmp_path / "models" / "m.json", log, *options))
        return runs[-1]

    yield start
    for one in runs:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_where_it_was(start: Any) -> None:
    first = start(*QUICK)
    first.wait_for(4)
    first.process.kill()
    first.process.communicate()
    wait_until(lambda: not any(map(is_running, first.workers())), "the worker's end")
    kept = first.visits()
    timed = [key for _, verb, key in first.asked() if verb == "sample"]
    assert len(timed) - len(kept) in (0, 1), "at most one measurement is lost"
    assert not first.output.exists()

    second = start(*QUICK)
    code, out, err = second.done()
    assert code == 0, err
    assert f"going on from {first.journal}: {len(kept)} measurements" in err
    timed = [key for _, verb, key in second.asked() if verb == "sample"]
    assert len(kept) + len(timed) == ROUNDS * POINTS
    document = read(first.output)
    assert len(document["points"]) == POINTS
    for point in document["points"]:
        key = f"{point['name']} x{point['batch_size']}"
        before = [round(t, 4) for v in kept if v["key"] == key for t in v["visit"]["samples_ms"]]
        assert point["samples_ms"][: len(before)] == before
        assert len(point["samples_ms"]) > len(before) or timed.count(key) == 0
    assert os.listdir(first.output.parent) == ["m.json"], "the journal is gone"
    assert document["environment"]["framework"] == "onnxruntime"
    assert str(first.output) in out
    assert all(line.startswith("lolat: ") for line in err.splitlines())
    assert "lolat:" not in out
