"""Kills commands at random moments (SIGKILL, the whole process group) and looks what is lost.

    python benchmarks/kills.py                       # 50 times each command
    python benchmarks/kills.py --only learn,search --kills 10 --seed 7

A command that was killed is given again, and killed again, until it is done; then anew, until it was killed
so many times. Half of the moments are drawn from the time that it takes undisturbed, the others just after
a unit of its work (a measurement, an evaluation, an epoch, a file) has begun. After each kill: no process
and no temporary file is left, what is at the output is whole, what was kept before is there unchanged, and
of the units that had begun at most a chunk is lost. In the end all units are there once, and where the
result does not depend on measured times, it is that of an undisturbed run.

Measuring is done on a dozen tiny blocks with a real backend; the rest are commands as users give them.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.killing import Command, commands  # noqa: E402

LIMIT_S = 600.0  # of one attempt
GONE_S = 60.0  # for processes that have to end themselves
MARK = "LOLAT_KILLS"


@dataclass
class Told:
    """What came of a command's kills."""

    name: str
    kills: int = 0
    done: int = 0
    most_lost: int = 0
    faults: dict[str, list[str]] = field(
        default_factory=lambda: {k: [] for k in ("lost", "half", "left", "different")}
    )
    left_over: set[str] = field(default_factory=set)
    slowest_end_s: float = 0.0

    def fault(self, kind: str, text: str) -> None:
        """Something is wrong: said at once, counted in the table."""
        self.faults[kind].append(text)
        print(f"{self.name}: kill {self.kills}: {kind}: {text}", file=sys.stderr, flush=True)


class Attempt:
    """A command in a process group of its own, its files in `folder`."""

    def __init__(self, command: Command, folder: Path) -> None:
        self.folder, self.mark = folder, f"{MARK}={os.urandom(8).hex()}"
        self.log = folder / "units.log"
        self.begun_before = self.begun()
        (folder / "tmp").mkdir(exist_ok=True)
        self.said = (folder / "said.txt").open("wb")
        path = os.pathsep.join([str(ROOT), str(folder)])
        key, _, value = self.mark.partition("=")
        self.process = subprocess.Popen(
            [sys.executable, "-c", command.code, *command.arguments],
            stdin=subprocess.DEVNULL, stdout=self.said, stderr=subprocess.STDOUT, cwd=folder,
            start_new_session=True,
            env={
                **os.environ, "PYTHONPATH": path, "TMPDIR": str(folder / "tmp"), key: value,
                "LOLAT_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1",
            },
        )  # fmt: skip

    def begun(self) -> int:
        """Units of work that have begun, in all attempts so far."""
        return self.log.read_bytes().count(b"\n") if self.log.exists() else 0

    def is_over(self) -> bool:
        """Whether it ended by itself."""
        return self.process.poll() is not None

    def wait(self, true: Callable[[], bool], limit_s: float = LIMIT_S) -> None:
        """Wait until it is over or something is true."""
        end = time.monotonic() + limit_s
        while not self.is_over() and not true():
            if time.monotonic() > end:
                self.kill()
                raise SystemExit(f"not over after {limit_s:.0f} s: {self.last_words()}")
            time.sleep(0.002)

    def kill(self) -> None:
        """SIGKILL to the whole group."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def left(self) -> list[int]:
        """Processes that this attempt started and that still live."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                living = (path / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
                if living and self.mark.encode() in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
            except OSError:
                continue
        return found

    def last_words(self) -> str:
        """The last line that it said."""
        self.said.close()
        lines = (self.folder / "said.txt").read_text(errors="replace").strip().splitlines()
        return lines[-1][:300] if lines else ""


def files(folder: Path) -> set[str]:
    """What lies in a command's folder, its own notes apart."""
    own = {"units.log", "said.txt", "tmp", "__pycache__", "cache"}
    return {p.name for p in folder.iterdir() if p.name not in own}


def after_kill(
    command: Command, attempt: Attempt, kept: list[str], told: Told, expected: set[str]
) -> list[str]:
    """What is kept now; faults are told."""
    began = time.monotonic()
    while (left := attempt.left()) and time.monotonic() < began + GONE_S:
        time.sleep(0.05)
    told.slowest_end_s = max(told.slowest_end_s, time.monotonic() - began)
    if left:
        told.fault("left", f"{len(left)} processes live on after {GONE_S:.0f} s")
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    odd = files(attempt.folder) - expected - set(command.while_running)
    odd |= {f"tmp/{p.name}" for p in (attempt.folder / "tmp").iterdir()}
    if new := sorted(odd - told.left_over):
        told.left_over |= odd
        told.fault("left", f"files {new[:3]}")
    for name in command.outputs:
        if (attempt.folder / name).exists() and (why := command.half(attempt.folder / name)):
            told.fault("half", f"{name}: {why}")
    try:
        now = command.kept(attempt.folder)
    except Exception as error:
        told.fault("half", f"what was kept cannot be read: {error!r}")
        return kept
    if command.is_done(attempt.folder):  # and what was kept on the way is gone
        return kept
    if not set(kept) <= set(now):
        told.fault("different", "what was kept before is not there as it was")
    lost = attempt.begun() - attempt.begun_before - (len(now) - len(kept))
    told.most_lost = max(told.most_lost, lost)
    if lost > command.chunk:
        told.fault("lost", f"{lost} units begun and not kept, at most {command.chunk} may be")
    return now


def trial(
    command: Command, folder: Path, told: Told, kills: int, span_s: float, draw: random.Random,
    wanted: Any, expected: set[str], units: int,
) -> None:  # fmt: skip
    """Begin anew, kill until it is done or was killed often enough; then let it end, and compare."""
    command.make(folder)
    kept: list[str] = []
    while True:
        attempt = Attempt(command, folder)
        if told.kills < kills:
            if draw.random() < 0.5:
                moment = time.monotonic() + draw.uniform(0.0, span_s)
                attempt.wait(lambda: time.monotonic() >= moment)  # noqa: B023 - called at once
            else:
                target = attempt.begun_before + draw.randint(1, command.some_units)
                attempt.wait(lambda: attempt.begun() >= target)  # noqa: B023 - called at once
                time.sleep(draw.uniform(0.0, 0.03))
        else:
            attempt.wait(lambda: False)
        if attempt.is_over():
            break
        attempt.kill()
        told.kills += 1
        attempt.said.close()
        kept = after_kill(command, attempt, kept, told, expected)
        if command.is_done(folder):  # killed on its way out
            break
    told.done += 1
    if attempt.process.returncode > 0:
        told.fault("different", f"exit code {attempt.process.returncode}: {attempt.last_words()}")
        return
    attempt.said.close()
    if why := command.wrong(folder, kept):
        told.fault("different", why)
    if command.result is not None and command.result(folder) != wanted:
        told.fault("different", "not the result of an undisturbed run")
    if files(folder) != expected:
        told.fault("left", f"files {sorted(files(folder) ^ expected)[:3]} in the end")
    again = attempt.begun() - attempt.begun_before - (units - len(kept))
    if again > command.chunk - 1 and attempt.process.returncode == 0:
        told.fault("lost", f"{again} units that were kept are done again in the end")


def kill_often(command: Command, kills: int, seed: int) -> Told:
    """Kill a command so many times."""
    told, draw = Told(command.name), random.Random(f"{seed} {command.name}")
    with tempfile.TemporaryDirectory(prefix="kills-") as name:
        first = Path(name) / "undisturbed"
        first.mkdir()
        command.make(first)
        began = time.monotonic()
        attempt = Attempt(command, first)
        attempt.wait(lambda: False)
        span_s = time.monotonic() - began
        if attempt.process.returncode:
            raise SystemExit(f"{command.name}: undisturbed, it fails: {attempt.last_words()}")
        wanted = None if command.result is None else command.result(first)
        while told.kills < kills:
            folder = Path(name) / f"trial{told.done}"
            folder.mkdir()
            trial(command, folder, told, kills, span_s, draw, wanted, files(first), attempt.begun())
            print(f"{command.name}: {told.kills} kills, done {told.done} times", file=sys.stderr)
    return told


def main() -> int:
    """Kill, print the table; exit code 3 if anything was wrong."""
    known = {c.name: c for c in commands()}
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default=",".join(known), help="of " + ", ".join(known))
    given = parser.parse_args()
    print("| command | kills | runs that ended | most lost by a kill | lost more | half files | "
          "left over | different results |\n| --- | --: | --: | --: | --: | --: | --: | --: |")  # fmt: skip
    wrong = 0
    for name in given.only.split(","):
        told = kill_often(known[name], given.kills, given.seed)
        chunk = f"{told.most_lost} of {known[name].chunk} {known[name].unit}"
        counts = [len(faults) for faults in told.faults.values()]
        cells = [f"`{known[name].shown}`", told.kills, told.done, chunk, *counts]
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
        slowest = f"{told.slowest_end_s:.1f} s"
        print(f"{name}: processes ended themselves within {slowest}", file=sys.stderr)
        wrong += sum(counts)
    return 3 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
