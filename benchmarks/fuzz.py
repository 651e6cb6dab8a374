"""Hostile input, made from whole input by damaging it where its structure is.

    python benchmarks/fuzz.py                       # 10,000 cases, about a quarter of an hour
    python benchmarks/fuzz.py --cases 500 --only tables --seed 7
    python benchmarks/fuzz.py --case tables:123     # one again, with all that it wrote
    python benchmarks/fuzz.py --only whole --cases 76  # every command with nothing damaged
    python benchmarks/fuzz.py --only archives --cases 50  # .keras files, each in seconds

Each case is a command of LoLat's in a process of its own with limits of time and memory. It is a finding if
the process is killed, a traceback or "unexpected" is seen, an error is not one line of printable text with
exit code 2 or 3, `--json` gives something else than one strict object, or a wrong answer is given: a time
that is not positive, an interval that does not hold it, blocks that do not add up, a damaged table that is
read without a word. The seed makes the case: what was found can be seen again.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import math
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.fuzzing.cases import KINDS, SLOW_KINDS, Case, make_case
from benchmarks.fuzzing.whole import make_archives, make_whole

LIMIT_S = 60
LIMIT_BYTES = 2 * 2**30
HERE_BYTES = 2**30
"""What the process may have before the case, which is not counted."""
OF_PAGE = ("queries", "uploads")


# ---- Running one, and what is wrong with what came of it.


@dataclass(frozen=True)
class Outcome:
    """How a case ended: an exit code or the signal that killed it, what it wrote, what it took."""

    code: int | None
    signal: int | None
    stdout: str
    stderr: str
    took_s: float
    cpu_s: float
    peak_bytes: int


def run(case: Case, folder: Path) -> Outcome:
    """Run a case in a process of its own, in `folder`."""
    out, err = folder / "stdout.txt", folder / "stderr.txt"
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        _run_here(case, folder, out, err)
    _, status, used = os.wait4(pid, 0)
    took = time.monotonic() - began
    code = os.waitstatus_to_exitcode(status)
    stdout, stderr = (p.read_text(encoding="utf-8", errors="backslashreplace") for p in (out, err))
    how = (code, None) if code >= 0 else (None, -code)
    cpu = used.ru_utime + used.ru_stime
    return Outcome(*how, stdout, stderr, took, cpu, 1024 * used.ru_maxrss)


def _run_here(case: Case, folder: Path, out: Path, err: Path) -> None:
    """In the forked process: never returns."""
    code = 99
    try:
        os.chdir(folder)
        for path, number in ((out, 1), (err, 2)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        for name, number in (("stdout", 1), ("stderr", 2)):
            setattr(
                sys,
                name,
                io.TextIOWrapper(
                    io.FileIO(number, "w", closefd=False), "utf-8", "backslashreplace"
                ),
            )
        with open("/proc/self/statm") as file:
            now = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + LIMIT_BYTES, now + LIMIT_BYTES))
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT_S)
        code = _command(case) if case.kind not in OF_PAGE else _asked(case, folder)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _command(case: Case) -> int:
    """As `lolat` does; files of networks in a process of their own only where that is looked at."""
    from lolat.cli.common import run as run_command
    from lolat.cli.main import lolat
    from lolat.io import FILES_APART

    FILES_APART.set(case.kind in SLOW_KINDS)
    return run_command(lolat, case.arguments, "lolat")


def _reader() -> Any:
    """Reads networks for the page's server in this process, which is thrown away."""
    from lolat.errors import NetworkError
    from lolat.graph import Graph
    from lolat.readers.apart import answer
    from lolat.web.networks import Reader

    class ReadsHere(Reader):
        def start(self) -> Any:
            return SimpleNamespace(folder=None)

        def read(self, network: str, size: Sequence[int] = ()) -> Any:
            if not network.endswith(".onnx"):
                raise NetworkError(
                    f"{network[:60]!r} needs a framework, which is not waited for here"
                )
            return Graph.from_dict(answer({"network": network, "size": size}))

    return ReadsHere()


def _asked(case: Case, folder: Path) -> int:
    """Ask the page's server, in this process: 0 for an answer, 2 for one of 4xx, 1 for anything else."""
    from starlette.testclient import TestClient

    from lolat.web.networks import NetworkCache
    from lolat.web.server import create_app

    before = {path.name for path in folder.iterdir()}
    tempfile.tempdir = str(folder)
    address = "http://127.0.0.1:8000"
    with TestClient(create_app(networks=NetworkCache(_reader())), base_url=address) as client:
        if case.kind == "queries":
            found = client.get(case.arguments[1])
        else:
            headers = {"origin": address, "content-type": case.arguments[1]}
            body = Path(case.arguments[2]).read_bytes()
            found = client.post("/upload", headers=headers, content=body)
    left = {path.name for path in folder.iterdir()} - before
    print(
        f"status {found.status_code}", file=sys.stderr if found.status_code >= 400 else sys.stdout
    )
    if left:
        print(f"left behind: {left}", file=sys.stderr)
    if left or found.status_code >= 500 or (case.kind == "uploads" and "</html>" not in found.text):
        return 1
    return 0 if found.status_code < 400 else 2


def faults(case: Case, outcome: Outcome) -> list[str]:
    """What is wrong with an outcome; nothing for a good one."""
    found = []
    if outcome.signal is not None:
        found.append(f"killed by signal {outcome.signal} after {outcome.took_s:.0f} s")
    for word in ("Traceback", "lolat: unexpected", "not enough memory"):
        if word in outcome.stderr:
            found.append(f"says {word!r}")
    if any(not c.isprintable() and c not in "\n\t" for c in outcome.stdout + outcome.stderr):
        found.append("writes characters that are not printable")
    if outcome.signal is None and outcome.code not in (0, 2, 3):
        found.append(f"exit code {outcome.code}")
    if case.must_answer and outcome.code != 0:
        found.append("refuses what is right")
    if outcome.peak_bytes > LIMIT_BYTES + HERE_BYTES:
        found.append("takes more than 2 GiB")
    if case.kind in OF_PAGE:
        return found
    errors = [line for line in outcome.stderr.splitlines() if not line.startswith("lolat: warning")]
    if outcome.code == 2 and not (errors and errors[-1].startswith("lolat: ")):
        found.append("an error without a line of lolat's")
    if outcome.code == 2 and len(errors[-1] if errors else "") > 1000:
        found.append(f"an error of {len(errors[-1])} characters")
    if outcome.code == 0 and case.must_refuse:
        found.append(f"takes a table with {case.must_refuse}")
    if outcome.code == 0 and "--json" in case.arguments and "--help" not in case.arguments:
        found += _faults_of_json(outcome.stdout, whole=case.arguments[0] in ("predict", "report"))
    return found


def _faults_of_json(text: str, whole: bool) -> list[str]:
    """Of an answer; `whole`: its blocks are all that there are."""

    def refuse(constant: str) -> None:
        raise ValueError(f"holds {constant}")

    try:
        answer = json.loads(text, parse_constant=refuse)
    except ValueError as error:
        return [f"--json is not strict JSON ({error})"]
    if not isinstance(answer, dict):
        return ["--json is not one object"]
    found = []
    latency, interval = answer.get("latency_ms"), answer.get("interval_ms")
    if isinstance(latency, int | float) and not (0.0 < latency < math.inf):
        found.append(f"a latency of {latency} ms")
    if interval and latency is not None and not interval[0] <= latency <= interval[1]:
        found.append(f"{latency} ms outside its own interval {interval}")
    blocks = answer.get("blocks")
    if whole and blocks and latency and isinstance(blocks[0], dict) and "latency_ms" in blocks[0]:
        total = sum(block["latency_ms"] for block in blocks)
        if not math.isclose(total, latency, rel_tol=1e-6, abs_tol=1e-12):
            found.append(f"blocks of {total} ms in all for {latency} ms")
    return found


def warm_up() -> None:
    """Import what the cases need, once and before they are forked."""
    os.environ["LOLAT_CACHE"] = "off"
    import numpy  # noqa: F401
    import onnx  # noqa: F401
    import rich.table  # noqa: F401
    import starlette.testclient  # noqa: F401

    import lolat.cli.cost
    import lolat.cli.evaluate
    import lolat.cli.fit
    import lolat.cli.mlp
    import lolat.cli.nas
    import lolat.cli.predict
    import lolat.cli.show
    import lolat.cli.training
    import lolat.mlp.networks
    import lolat.model
    import lolat.nas.fewshot
    import lolat.nas.scorer
    import lolat.readers.onnx
    import lolat.report.prediction
    import lolat.web.server  # noqa: F401


def fuzz(
    cases: Sequence[tuple[str, int]], whole: Path
) -> Iterator[tuple[Case, Outcome, list[str]]]:
    """Cases by kind and seed; each in a copy of `whole` that is thrown away."""
    for kind, seed in cases:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for path in whole.iterdir():
                os.link(path, folder / path.name)
            case = make_case(kind, seed, folder)
            outcome = run(case, folder)
            yield case, outcome, faults(case, outcome)


@dataclass
class Row:
    """Of all cases of a kind; memory with what was imported before."""

    cases: int = 0
    answered: int = 0
    refused: int = 0
    failed: int = 0
    slowest_s: float = 0.0
    cpu_s: float = 0.0
    peak_mb: float = 0.0

    def add(self, outcome: Outcome, wrong: Sequence[str]) -> None:
        """One more."""
        self.cases += 1
        self.failed += bool(wrong)
        self.answered += not wrong and outcome.code == 0
        self.refused += not wrong and outcome.code != 0
        self.slowest_s = max(self.slowest_s, outcome.took_s)
        self.cpu_s += outcome.cpu_s
        self.peak_mb = max(self.peak_mb, outcome.peak_bytes / 1e6)


def print_table(rows: Mapping[str, Row]) -> None:
    """As Markdown, a line a kind and one for all."""
    names = [field.name for field in fields(Row)]
    whole = {n: max if n in ("slowest_s", "peak_mb") else sum for n in names}
    every = Row(**{n: whole[n](getattr(row, n) for row in rows.values()) for n in names})
    print("| kind |", " | ".join(names).replace("_", " "), "|")
    print("| --- |", " | ".join(["--:"] * len(names)), "|")
    for kind, row in {**rows, "all": every}.items():
        print(f"| {kind} |", " | ".join(f"{getattr(row, n):,.4g}" for n in names), "|")


def main() -> int:
    """Run, print what was found; exit code 3 if anything was."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--only", default=",".join(KINDS), help="of " + ", ".join({**KINDS, **SLOW_KINDS})
    )
    parser.add_argument("--case", nargs="+", help="some again, such as tables:123")
    given = parser.parse_args()
    kinds = given.only.split(",")
    cases = [(kinds[i % len(kinds)], given.seed + i // len(kinds)) for i in range(given.cases)]
    if given.case:
        cases = [(kind, int(seed)) for kind, _, seed in (c.partition(":") for c in given.case)]
        kinds = [kind for kind, _ in cases]
    warm_up()
    found: Counter[str] = Counter()
    rows: dict[str, Row] = {kind: Row() for kind in kinds}
    with tempfile.TemporaryDirectory() as name:
        make_whole(Path(name))
        if set(kinds) & set(SLOW_KINDS):
            make_archives(Path(name))
        gc.freeze()  # what is shared with the cases' processes is not looked at there
        for case, outcome, wrong in fuzz(cases, Path(name)):
            rows[case.kind].add(outcome, wrong)
            if wrong or given.case:
                last = (outcome.stderr.strip().splitlines() or [""])[-1]
                print(f"{case.name}  {'; '.join(wrong) or 'nothing wrong'}")
                print(f"    {' '.join(case.arguments)[:300]!a}\n    {last[:300]!a}", flush=True)
            if given.case:
                print(outcome.stdout, outcome.stderr, sep="\n")
            for fault in wrong:
                found[f"{case.kind}: {fault.partition(' after ')[0][:60]}"] += 1
    print_table(rows)
    for fault, times in found.most_common():
        print(f"{times:6d}  {fault}")
    return 3 if found else 0


if __name__ == "__main__":
    sys.exit(main())
