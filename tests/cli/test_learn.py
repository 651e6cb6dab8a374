"""`learn_model.py`: every wrong call; tests/microbench/test_real_runs.py has whole runs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from lolat.cli import learn
from lolat.cli.common import run
from microbench.backends import threads_of

ROOT = Path(__file__).resolve().parents[2]


def learn_model(
    *arguments: object, environment: Mapping[str, str] | None = None
) -> tuple[int, str, str]:
    """`python learn_model.py ...`, its exit code, stdout and stderr."""
    done = subprocess.run(
        [sys.executable, ROOT / "learn_model.py", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **(environment or {})},
    )
    return done.returncode, done.stdout, done.stderr


def refusal(*arguments: object, code: int = 2, environment: Mapping[str, str] | None = None) -> str:
    """The one line on stderr of a call that is refused."""
    found, out, err = learn_model(*arguments, environment=environment)
    assert found == code, err
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert err.startswith("lolat: ")
    return err


def test_a_gpu_where_there_is_none(tmp_path: Path) -> None:
    said = refusal(
        "gpu", "--backend", "tensorflow", "--output", tmp_path / "m.json",
        environment={"CUDA_VISIBLE_DEVICES": "-1"},
    )  # fmt: skip
    assert "no gpu here" in said
    assert "looked for physical devices of type GPU" in said
    assert "/physical_device:CPU:0" in said
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument '{cpu|gpu}'"),
        (["tpu"], "'tpu' is not one of 'cpu', 'gpu'"),
        (["cpu", "--backend", "jax"], "no backend 'jax'; this version has onnxruntime, tensorflow, torch"),
        (["cpu", "--backend", "torch", "--jit"], "the torch backend has no --jit; it has --compile, "
         "--channels-last, --half"),
        (["cpu", "--backend", "tensorflow", "--half"],
         "the tensorflow backend has no --half; it has --jit"),
        (["gpu", "--backend", "onnxruntime", "--compile", "--channels-last"],
         "the onnxruntime backend has no --compile, --channels-last; it has no options"),
        (["cpu", "--jit", "--half"],
         "no backend has --jit and --half together; tensorflow has --jit; torch"),
        (["--extend", "m.json", "--for", "n", "--backend", "torch"],
         "--backend does not go with --extend MODEL: blocks are added with the backend and the options"),
        (["--extend", "m.json", "--for", "n", "--channels-last"],
         "--channels-last does not go with --extend MODEL"),
        (["--extend", "m.json", "--for", "n", "--threads", "1"],
         "--threads does not go with --extend MODEL: blocks are added with the backend and the options"),
        (["cpu", "--threads", "0"], "--threads 0: expected a whole number of threads, 1 or more"),
        (["cpu", "--threads", "100000"], "--threads 100000: this process may use "),
        (["gpu", "--threads", "1"], "--threads 1 is for the cpu; a gpu computes with all that it has"),
        (["cpu", "--threads", "two"], "'two' is not a valid integer"),
        (["cpu", "--fleet", "--threads", "0"], "--threads 0: expected a whole number of threads"),
        (["gpu", "--fleet", "--threads", "1"], "--threads 1 is for the cpu"),
        (["cpu", "--output", "."], "is a folder; expected the name of a JSON file"),
        (["cpu", "--output", "/dev/null"], "is not a regular file"),
        (["cpu", "--output", "/dev/null/m.json"], "cannot write /dev/null/m.json: "),
        (["cpu", "--output", "x" * 300], "File name too long"),
        (["cpu", "--frobnicate"], "No such option"),
    ],
)  # fmt: skip
def test_a_wrong_call(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert learn.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert said in err


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
    said = refusal(
        "cpu",
        "--output",
        tmp_path / "models" / "m.json",
        environment={"PYTHONPATH": str(broken.parent)},
    )
    assert f"(no {package} here)" in said
    assert "pip install 'lolat[tensorflow]'" in said
    assert os.listdir(tmp_path / "models") == []


def test_ctrl_c_before_anything_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("microbench.learn.Runner", interrupt)
    assert learn.main(["cpu", "--output", str(tmp_path / "m.json")]) == 130
    assert capsys.readouterr().err == (
        "lolat: interrupted before anything was measured; give the same command again\n"
    )


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

    class Stop(Exception):
        pass

    def document(name: str, label: str, *_: object) -> Any:
        written.extend([name, label])
        raise Stop

    threads = [f"threads={n}" for n in arguments[2:3] if "--threads" in arguments]

    def pick(asked: str, options: list[str]) -> tuple[str, str]:
        assert (asked, options, bool(picked)) == (device, threads, True)
        remark = f"measuring with {picked}" if picked == "torch" else ""
        return "+".join([picked, *options]), remark

    def measure(backend: str, *_: object) -> Any:
        asked = threads_of(backend)
        assert asked == (int(arguments[2]) if threads else None)
        name = {"device_name": "NVIDIA T4"} if device == "gpu" else {}
        return [], {**name, "threads_asked": asked}, {}, [], None

    monkeypatch.setattr("microbench.backends.choice.pick", pick)
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


def test_ctrl_c_while_fitting_keeps_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = tmp_path / "m.json.journal.jsonl"

    def measured(*_: object) -> Any:
        journal.write_text("all of it")
        return [], {}, {}, [], None

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("microbench.learn.measure_blocks", measured)
    monkeypatch.setattr("lolat.model.learning.model_document", interrupt)
    assert learn.main(["cpu", "--output", str(tmp_path / "m.json")]) == 130
    assert f"what was measured is in {journal}" in capsys.readouterr().err
    assert journal.exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_an_output_that_takes_nothing_is_one_line() -> None:
    script = (
        "import sys, click\nfrom lolat.cli.common import run\n"
        "sys.exit(run(click.command()(lambda: click.echo('x' * 100)), [], 'it'))"
    )
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", script],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"},
        )
    assert done.returncode == 1
    assert done.stderr == "lolat: the system refused: No space left on device\n"


def test_a_reader_that_goes_away_is_no_error() -> None:
    script = (
        "import sys, click\nfrom lolat.cli.common import run\n"
        "sys.exit(run(click.command()(lambda: click.echo('x' * 10**6)), [], 'it'))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(30) == 1
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


def test_an_exception_that_nobody_foresaw_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    @click.command()
    def command() -> None:
        raise RuntimeError("a\nb")

    assert run(command, [], "it") == 1
    assert capsys.readouterr().err == (
        "lolat: unexpected RuntimeError: a b (set LOLAT_TRACEBACK=1 to see where)\n"
    )
