"""A whole run of `learn_model.py` on tiny blocks that is killed and gone on with."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lolat.device.file import read
from lolat.microbench.journal import read as read_journal
from tests.processes import PATIENCE_S, is_running, wait_until

ROOT = Path(__file__).resolve().parents[2]
ROUNDS = 3

# The command as a user runs it, but on five tiny blocks and two tiny networks; requests are logged.
DRIVER = f"""
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, if the tests run in the background
from lolat.microbench import blocks, learn, runner, worker
from lolat.microbench.blocks import Predefined
from lolat.graph.layers import Layers
from lolat.microbench.runner import Settings

def tiny(size, channels):
    n = Layers.on("tiny", size, size, 3)
    return n.done(n.conv_norm_act(n.input, channels, 3))

blocks.QUANTIZED = ()
blocks.BLOCKS = tuple(
    Predefined(f"tiny {{c}}", lambda c=c: tiny(8 * c, 2 * c), (1, 4)) for c in (1, 2, 3, 4, 5)
)
blocks.NETWORKS = learn.NETWORKS = tuple(
    Predefined(f"net {{c}}", lambda c=c: tiny(16, 2 * c), (1,), True) for c in (3, 4)
)
learn.DEFAULT_SETTINGS = Settings(rounds={ROUNDS})

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

    def __init__(self, folder: Path, name: str) -> None:
        self.output, self.log = folder / "models" / "m.json", folder / f"{name}.log"
        self.journal = self.output.with_name("m.json.journal.jsonl")
        command = [sys.executable, "-c", DRIVER, self.log, "cpu", "--output", self.output, *QUICK]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(
            command, text=True, cwd=ROOT, start_new_session=True, **pipes
        )

    def asked(self) -> list[list[str]]:
        """Lines of the log: worker, verb, key."""
        return [line.split(" ", 2) for line in self.log.read_text().splitlines()]

    def timed(self) -> list[str]:
        return [key for _, verb, key in self.asked() if verb == "sample"]

    def visits(self) -> list[dict[str, Any]]:
        return [r for r in read_journal(self.journal)[1:] if "visit" in r]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[], Run]]:
    runs: list[Run] = []

    def start() -> Run:
        runs.append(Run(tmp_path, f"run {len(runs)}"))
        return runs[-1]

    yield start
    for one in runs:
        one.process.kill()
        one.process.communicate()


@pytest.mark.slow
def test_a_run_that_is_killed_goes_on_where_it_was(start: Callable[[], Run]) -> None:
    first = start()
    wait_until(lambda: len(first.visits()) >= 4, "four visits")
    first.process.kill()
    first.process.communicate()
    workers = {int(pid) for pid, *_ in first.asked()}
    wait_until(lambda: not any(map(is_running, workers)), "the worker's end")
    kept = first.visits()
    assert len(first.timed()) - len(kept) in (0, 1), "at most one measurement is lost"
    assert not first.output.exists()

    second = start()
    out, err = second.process.communicate(timeout=PATIENCE_S)
    assert second.process.returncode == 0, err
    assert f"going on from {first.journal}: {len(kept)} measurements" in err
    timed = second.timed()
    assert len(kept) + len(timed) == ROUNDS * POINTS
    document = read(first.output).document
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
