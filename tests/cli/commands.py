"""Runs `lolat` in this process, as the entry point does, and in another one."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import pytest
from jsonschema.exceptions import best_match

from benchmarks.schema import ANSWERS, FILE
from lolat.cli.main import lolat, run
from lolat.microbench import check, environment
from lolat.microbench.environment import Difference
from lolat.microbench.timing import JobLatency, Latencies
from lolat.tables.blocks import Point
from tests import synthetic

ROOT = Path(__file__).resolve().parent.parent.parent


class Result(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str


class Command:
    """`lolat` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *arguments: object) -> Result:
        self.capsys.readouterr()
        code = run(lolat, [str(a) for a in arguments], "lolat")
        done = Result(code, *self.capsys.readouterr())
        assert not re.search(r"\x01|\\u0001|\\x01", done.out + done.err)  # of `arg`
        if "--json" in arguments and done.out:
            valid_answer([str(a) for a in arguments], done.out)
        return done

    def done(self, *arguments: object) -> Result:
        """A call that works, whatever it remarks on."""
        result = self(*arguments)
        assert result.code == 0, result.err
        return result

    def text(self, *arguments: object, code: int = 0) -> str:
        """Stdout of a call that says nothing on stderr."""
        result = self(*arguments)
        assert (result.code, result.err) == (code, "")
        return result.out

    def json(self, *arguments: object, code: int = 0) -> Any:
        """The object that a call prints with --json: one line, and nothing else anywhere.

        Without its schema and version, which `valid_answer` has looked at.
        """
        (line,) = self.text(*arguments, "--json", code=code).splitlines()
        return without_schema(line)

    def answer(self, *arguments: object) -> Any:
        """The same of a call that works, whatever it remarks on."""
        return without_schema(self.done(*arguments, "--json").out)

    def refused(self, *arguments: object, code: int = 2) -> str:
        """The one line on stderr of a call that must fail."""
        result = self(*arguments)
        assert (result.code, result.out) == (code, ""), result.err
        return one_line(result.err)


def without_schema(text: str) -> dict[str, Any]:
    """An answer but for its schema and version."""
    return {k: v for k, v in json.loads(text).items() if k not in ("schema", "version")}


def valid_answer(arguments: Sequence[str], out: str) -> dict[str, Any]:
    """What a command printed with --json: one strict JSON object, with the keys of its schema."""

    def never(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    (line,) = out.splitlines()
    answer: dict[str, Any] = json.loads(line, parse_constant=never)
    name = answer["schema"].removeprefix("lolat-")
    assert {arguments[0], " ".join(arguments[:2])} & set(ANSWERS[name][1])
    schema = {**closed(schemas()), "$ref": f"#/$defs/lolat-{name}"}
    del schema["oneOf"]
    fault = best_match(jsonschema.Draft202012Validator(schema).iter_errors(answer))
    if fault is not None:
        pytest.fail(f"{name}: {fault.json_path}: {fault.message[:300]}", pytrace=False)
    return answer


@functools.cache
def schemas() -> Any:
    """The document of all answers."""
    return json.loads(FILE.read_text(encoding="utf-8"))


def closed(schema: Any) -> Any:
    """A schema that takes no other keys than it names, so that none is left out of the documents."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: closed(part) for key, part in schema.items()}
    if found.get("type") == "object" and isinstance(found.get("properties"), dict):
        found.setdefault("additionalProperties", False)
    return found


def one_line(stderr: str) -> str:
    """The only line of stderr, but for the progress that a slow machine shows."""
    lines = [n for n in stderr.splitlines() if not n.startswith("lolat: counting ")]
    assert len(lines) == 1, stderr
    assert lines[0].startswith("lolat: ")
    assert "Traceback" not in lines[0]
    return lines[0]


def process(arguments: Sequence[object], **options: object) -> subprocess.CompletedProcess[str]:
    """`lolat` in a new process."""
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        [sys.executable, "-m", "lolat.cli.main", *map(str, arguments)],
        **{"capture_output": True, "text": True, "cwd": ROOT, "timeout": 120, **options},
    )


class Measuring:
    """In place of measuring networks: those of a user take a tenth longer than `model` predicts.

    `others`: processors that other programs use. `ratio`: how many times as long as learned the model's own
    networks take; None: it has none. `failures`:
    networks that fail -> the reason. `versions`: the backend's environment. `differences`: from when the
    model was learned. `error`: raised in place of an answer.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, list[tuple[str, int, tuple[int, ...]]]]] = []
        self.ratio: float | None = None
        self.others = 0.0
        self.networks = 5
        self.failures: dict[str, str] = {}
        self.versions: dict[str, Any] = {}
        self.differences: tuple[Difference, ...] = ()
        self.error: BaseException | None = None
        self.model: Any = None

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Let `evaluate` and `doctor` measure with this."""
        real = environment.differences
        patch.setattr(environment, "other_programs", self.watch)
        patch.setattr("lolat.api.measuring.runners.Runner", self.runner)
        patch.setattr(check, "references_of", self.references_of)
        patch.setattr(check, "read_cases", self.read_cases)
        patch.setattr(check, "measure", self.measure)
        patch.setattr(environment, "differences", lambda *a: self.differences or real(*a))

    def watch(self, seconds: float = 0.0, sleep: Callable[[float], object] = float) -> float:
        sleep(seconds)
        return self.others

    def runner(self, backend: str, device: str, progress: Any) -> Any:
        self.calls.append((backend, device, []))
        if self.error is not None:
            raise self.error
        return self

    def __enter__(self) -> Measuring:
        return self

    def __exit__(self, *unused: object) -> None:
        pass

    @property
    def environment(self) -> dict[str, Any]:
        return self.versions

    def references_of(self, points: Sequence[Point], backend: str) -> list[tuple[Point, Any]]:
        return [] if self.ratio is None else [(p, None) for p in points[: self.networks]]

    def read_cases(
        self, backend: str, networks: Any, batch_sizes: Any, input_size: Any
    ) -> list[check.Case]:
        return [check.Case(spec, n, input_size) for spec in networks for n in batch_sizes]

    def measure(
        self, runner: Any, backend: str, wanted: Sequence[check.Case], references: Any
    ) -> check.Measured:
        self.calls[-1][2].extend((c.spec, c.batch_size, c.input_size.given) for c in wanted)
        names = list(dict.fromkeys(c.spec for c in wanted))
        networks = []
        for case in wanted:
            i = names.index(case.spec)
            size = 8 * i + (case.input_size.numbers or (32,))[0]
            graph = synthetic.network(stages=1 + i % 4, size=size, name=case.spec)
            if case.spec not in self.failures:
                ms = 1.1 * self.model.predict(graph, case.batch_size).latency_ms
                networks.append(check.MeasuredNetwork(case, graph, ms, 0.01))
        ratio = self.ratio or 1.0
        again = tuple(
            check.NetworkAgain(p.name, p.batch_size, p.latency_ms, ratio * p.latency_ms, ratio)
            for p, _ in references
        )
        steady = Latencies({"a": JobLatency(1.0, 0.02)}, 0.9, 1.3)
        return check.Measured(tuple(networks), again, self.failures, steady)
