"""`learn_model.py`: every wrong call; tests/microbench/test_real_runs.py has whole runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lolat.cli import learn
from lolat.microbench.backends import threads_of
from lolat.microbench.check import NetworkAgain
from tests import synthetic
from tests.cli.commands import ROOT, one_line
from tests.processes import PATIENCE_S

CALM = {"quiet": 1.0, "busy": 1.0, "others": 0.0, "trend": 1.0, "floor": 0.0}


def refusal(*arguments: object, **environment: str) -> str:
    """The last line on stderr of `python learn_model.py ...` that is refused; a remark may stand above
    it, that the machine is busy.
    """
    done = subprocess.run(
        [sys.executable, ROOT / "learn_model.py", *map(str, arguments)],
        capture_output=True, text=True, timeout=PATIENCE_S, env={**os.environ, **environment},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    return one_line(done.stderr.splitlines()[-1])


@pytest.mark.parametrize(
    ("arguments", "named", "given"),
    [
        ([], "{cpu|gpu}", ""),
        (["cpu", "--backend", "jax"], "--backend", "'jax'"),
        (["cpu", "--backend", "torch", "--jit"], "--jit", "torch"),
        (["gpu", "--backend", "onnxruntime", "--compile", "--half"], "--compile, --half", "onnxruntime"),
        (["cpu", "--jit", "--half"], "--jit and --half", ""),
        (["cpu", "--threads", "0"], "--threads", "0"),
        (["cpu", "--threads", "100000", "--backend", "torch"], "--threads", "100000"),
        (["gpu", "--threads", "1", "--backend", "torch"], "--threads", "1"),
        (["cpu", "--output", "."], "", "is a folder"),
        (["gpu", "--backend", "onnxruntime"], "--backend torch", "only a cpu"),
    ],
)  # fmt: skip
def test_a_wrong_call(
    arguments: list[str], named: str, given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert learn.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert named in one_line(err)
    assert given in err


def test_without_tensorflow_the_install_line_is_said(tmp_path: Path) -> None:
    broken = tmp_path / "path" / "keras"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("print('noise')\nraise ModuleNotFoundError('not here')")
    said = refusal("cpu", "--output", tmp_path / "m.json", PYTHONPATH=str(broken.parent))
    assert "[tensorflow]'" in said


@pytest.mark.parametrize(
    ("arguments", "picked", "expected"),
    [
        (["cpu"], "torch", ["cpu-epyc-2-threads-torch", "EPYC, 2 threads"]),
        (["cpu", "--threads", "1"], "tensorflow", ["cpu-epyc-1-thread", "EPYC, 1 thread"]),
        (["cpu", "--threads", "2", "--backend", "torch", "--half"], "",
         ["cpu-epyc-2-threads-torch-half", "EPYC, 2 threads"]),
        (["gpu"], "torch", ["gpu-nvidia-t4-torch", "NVIDIA T4"]),
        (["gpu", "--backend", "tensorflow"], "", ["gpu-nvidia-t4", "NVIDIA T4"]),
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

    name = {"device_name": "NVIDIA T4"} if device == "gpu" else {}

    def pick(kind: str, options: list[str]) -> tuple[str, str, dict[str, str]]:
        assert (kind, options, bool(picked)) == (device, threads, True)
        remark = f"measuring with {picked}" if picked == "torch" else ""
        return "+".join([picked, *options]), remark, name

    def measure(run: Any) -> Any:
        number = threads_of(run.backend, run.device)
        assert number == (int(arguments[2]) if threads else None)
        where = {**name, "device": device, "threads": number or 2, "threads_asked": number}
        return [], where, CALM, {}, None

    monkeypatch.setattr("lolat.microbench.choice.pick", pick)
    monkeypatch.setattr("lolat.microbench.choice.environment_in_child", lambda *_: name)
    monkeypatch.setattr("lolat.io.paths.local_folder", lambda: tmp_path)
    monkeypatch.setattr("lolat.microbench.environment.cpu_model", lambda: "EPYC")
    monkeypatch.setattr("lolat.microbench.environment.cpu_count", lambda: 2)
    monkeypatch.setattr("lolat.microbench.environment.processor_facts", dict)
    monkeypatch.setattr("lolat.fitting.blocks.fitted_file", document)
    monkeypatch.setattr("lolat.microbench.backends.cpu_count", lambda: 2)
    monkeypatch.setattr("lolat.microbench.learn.measure_blocks", measure)
    assert learn.main(arguments) == 1
    assert written == expected
    said = capsys.readouterr().err
    assert ("lolat: measuring with torch" in said) == (picked == "torch")


def test_the_file_says_how_well_times_repeat_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """At the end of learning a network takes a quarter longer."""
    output, points = tmp_path / "m.json", synthetic.measured()
    where = {"device": "cpu", "threads": 2, "date": "2026-11-22T08:00:00+00:00"}
    noise = CALM | {"floor": 0.01}
    journal = SimpleNamespace(remove=lambda: None)
    monkeypatch.setattr(
        "lolat.microbench.learn.measure_blocks",
        lambda *_: (points, dict(where), noise, {}, journal),
    )
    again = NetworkAgain("net", 1, 8.0, 10.0, 1.25)
    monkeypatch.setattr("lolat.microbench.check.measure_again", lambda *_: (again,))
    assert learn.main(["cpu", "--output", str(output)]) == 0
    document = json.loads(output.read_text())
    assert document["noise"] == noise | {"repeatability": 0.25}
    (repeat,) = document["warnings"]
    assert "times repeat within 25 %" in repeat
    assert f"lolat: warning: {repeat}" in capsys.readouterr().err
