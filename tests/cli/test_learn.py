"""`learn_model.py`: every wrong call; tests/microbench/test_real_runs.py has whole runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lolat.cli import learn
from lolat.fitting.points import Point
from microbench.backends import threads_of
from microbench.doctor import Again
from tests import synthetic
from tests.cli.commands import ROOT, one_line

CALM = {"quiet": 1.0, "busy": 1.0}


def refusal(*arguments: object, **environment: str) -> str:
    """The one line on stderr of `python learn_model.py ...` that is refused."""
    done = subprocess.run(
        [sys.executable, ROOT / "learn_model.py", *map(str, arguments)],
        capture_output=True, text=True, timeout=120, env={**os.environ, **environment},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    return one_line(done.stderr)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_gpu_where_there_is_none(tmp_path: Path) -> None:
    output = tmp_path / "m.json"
    said = refusal("gpu", "--backend", "onnxruntime", "--output", output)
    assert "no gpu here" in said
    assert "looked for" in said
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument '{cpu|gpu}'"),
        (["cpu", "--backend", "jax"], "'jax' is not one of 'tensorflow', 'torch', 'onnxruntime'"),
        (["cpu", "--backend", "torch", "--jit"], "the torch backend has no --jit; it has --compile, "
         "--channels-last, --half"),
        (["cpu", "--backend", "tensorflow", "--half"],
         "the tensorflow backend has no --half; it has --jit"),
        (["gpu", "--backend", "onnxruntime", "--compile", "--channels-last"],
         "the onnxruntime backend has no --compile, --channels-last; it has no options"),
        (["cpu", "--jit", "--half"],
         "no backend has --jit and --half together; tensorflow has --jit; torch"),
        (["cpu", "--threads", "0"], "'0': expected a whole number from 1"),
        (["cpu", "--threads", "100000"], "--threads 100000: this process may use "),
        (["gpu", "--threads", "1"], "--threads 1 is for the cpu; a gpu computes with all that it has"),
        (["cpu", "--output", "."], "is a folder; expected the name of a file"),
        (["cpu", "--output", "/dev/null"], "is not a regular file"),
        (["cpu", "--output", "/dev/null/m.json"], "cannot write /dev/null/m.json: "),
        (["cpu", "--output", "x" * 300], "File name too long"),
    ],
)  # fmt: skip
def test_a_wrong_call(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert learn.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in one_line(err)


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_no_permission_is_said_before_measuring(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "m.json"
    if kind == "file":
        output.write_text("{}")
    refused = tmp_path if kind == "folder" else output
    access = os.access  # root may write everywhere
    monkeypatch.setattr(os, "access", lambda p, mode: p != refused and access(p, mode))
    assert learn.main(["cpu", "--output", str(output)]) == 2
    assert "no permission to write" in capsys.readouterr().err


@pytest.mark.parametrize("package", ["keras", "tensorflow"])
def test_without_tensorflow_the_install_line_is_said(tmp_path: Path, package: str) -> None:
    broken = tmp_path / "path" / package
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text(
        f"print('noise')\nraise ModuleNotFoundError('no {package} here')"
    )
    output = tmp_path / "models" / "m.json"
    said = refusal("cpu", "--output", output, PYTHONPATH=str(broken.parent))
    assert f"(no {package} here)" in said
    assert "[tensorflow]'" in said
    assert os.listdir(output.parent) == []


def test_ctrl_c_before_anything_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("microbench.learn.Runner", interrupt)
    assert learn.main(["cpu", "--output", str(tmp_path / "m.json")]) == 130
    assert "before anything was measured" in one_line(capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "picked", "expected"),
    [
        (["cpu"], "tensorflow", ["cpu-epyc-2-threads", "EPYC, 2 threads"]),
        (["cpu"], "torch", ["cpu-epyc-2-threads-torch", "EPYC, 2 threads"]),
        (["cpu", "--threads", "1"], "tensorflow", ["cpu-epyc-1-thread", "EPYC, 1 thread"]),
        (["cpu", "--threads", "2", "--backend", "torch", "--half"], "",
         ["cpu-epyc-2-threads-torch-half", "EPYC, 2 threads"]),
        (["gpu"], "torch", ["gpu-torch", "NVIDIA T4"]),
        (["gpu", "--backend", "tensorflow"], "", ["gpu", "NVIDIA T4"]),
        (["gpu", "--backend", "torch", "--half", "--channels-last"], "",
         ["gpu-torch-channels-last-half", "NVIDIA T4"]),
    ],
)  # fmt: skip
def test_the_device_and_the_backend_in_the_model_file_and_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], picked: str,
    expected: list[str], capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    device = arguments[0]
    written: list[Any] = []

    def document(name: str, label: str, *_: object) -> Any:
        written.extend([name, label])
        raise RuntimeError("enough")

    threads = [f"threads={n}" for n in arguments[2:3] if "--threads" in arguments]

    def pick(kind: str, options: list[str]) -> tuple[str, str]:
        assert (kind, options, bool(picked)) == (device, threads, True)
        remark = f"measuring with {picked}" if picked == "torch" else ""
        return "+".join([picked, *options]), remark

    def measure(backend: str, *_: object) -> Any:
        number = threads_of(backend)
        assert number == (int(arguments[2]) if threads else None)
        name = {"device_name": "NVIDIA T4"} if device == "gpu" else {}
        where = {**name, "device": device, "threads": number or 2, "threads_asked": number}
        return [], where, CALM, [], None

    monkeypatch.setattr("microbench.worker.pick", pick)
    monkeypatch.setattr("lolat.io.paths.local_folder", lambda: tmp_path)
    monkeypatch.setattr("microbench.environment.cpu_model", lambda: "EPYC")
    monkeypatch.setattr("microbench.environment.cpu_count", lambda: 2)
    monkeypatch.setattr("microbench.environment.processor_facts", dict)
    monkeypatch.setattr("lolat.model.learning.model_document", document)
    monkeypatch.setattr("microbench.backends.cpu_count", lambda: 2)
    monkeypatch.setattr("microbench.learn.measure_blocks", measure)
    assert learn.main(arguments) == 1
    assert written == expected
    said = capsys.readouterr().err
    assert ("lolat: measuring with torch" in said) == (picked == "torch")


def test_the_file_says_how_well_times_repeat_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Learned twice: the second time all takes twice as long, and its end a quarter longer than that."""
    output, made = tmp_path / "m.json", synthetic.measured()
    made[0] = replace(made[0], whole=True)
    where = {"device": "cpu", "threads": 2, "date": "2026-11-22T08:00:00+00:00"}
    noise = {"floor": 0.01, "others": 0.0, "trend": 1.0} | CALM
    factor = 1.0

    def measured(*_: object) -> Any:
        points = [replace(p, latency_ms=factor * p.latency_ms) for p in made]
        journal = SimpleNamespace(remove=lambda: None)
        return points, dict(where), dict(noise), [], journal

    def once_more(points: list[Point], *_: object) -> Any:
        return (Again(points[0], 1.25 * points[0].latency_ms),)

    monkeypatch.setattr("microbench.learn.measure_blocks", measured)
    monkeypatch.setattr("microbench.doctor.once_more", once_more)
    assert learn.main(["cpu", "--output", str(output)]) == 0
    first = json.loads(output.read_text())["noise"]
    assert first == noise | {
        "repeatability": 0.25,
        "again": [
            {
                "name": made[0].name,
                "batch_size": made[0].batch_size,
                "first_ms": made[0].latency_ms,
                "last_ms": pytest.approx(1.25 * made[0].latency_ms),
            }
        ],
    }
    factor = 2.0
    assert learn.main(["cpu", "--output", str(output)]) == 0
    document = json.loads(output.read_text())
    assert document["noise"]["former"] == {"ratio": 2.0, "date": where["date"]}
    (repeat, former) = document["warnings"]
    assert "repeat within 25 %" in repeat
    assert "2.0 times slower than when it was learned on 2026-11-22" in former
    assert former in " ".join(capsys.readouterr().out.split())


def test_ctrl_c_while_fitting_keeps_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "m.json.journal.jsonl"

    def measured(*_: object) -> Any:
        journal.write_text("all of it")
        return [], {"device": "cpu", "threads": 2}, CALM, [], None

    monkeypatch.setattr("microbench.learn.measure_blocks", measured)
    monkeypatch.setattr("lolat.model.learning.model_document", interrupt)
    assert learn.main(["cpu", "--output", str(tmp_path / "m.json")]) == 130
    assert f"what was measured is in {journal}" in capsys.readouterr().err
    assert journal.exists()


def test_a_reader_of_the_output_that_goes_away_is_no_error_to_talk_of() -> None:
    script = (
        "import sys, click\nfrom lolat.cli.common import run\n"
        "sys.exit(run(click.command()(lambda: click.echo('x' * 10**6)), [], 'it'))"
    )
    read, write = os.pipe()
    os.close(read)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=environment, timeout=60,
    )  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (1, "")
