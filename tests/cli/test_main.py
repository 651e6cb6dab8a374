"""`lolat` itself: help, what is wrong with a call, how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lolat.cli.main import COMMANDS
from lolat.errors import AnswerIsNo
from tests import synthetic
from tests.cli.commands import ROOT, Command, one_line
from tests.processes import python


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_lists_the_commands(lolat: Command, option: str) -> None:
    found = lolat.done(option)
    assert found.err == ""
    listed = [line.split()[0] for line in found.out.partition("Commands:")[2].splitlines() if line]
    assert listed == list(COMMANDS)
    assert "keras:ResNet50" in found.out


@pytest.mark.parametrize("command", list(COMMANDS))
def test_every_command_has_help_that_is_whole(lolat: Command, command: str) -> None:
    found = lolat.done(command, "--help")
    assert found.out.startswith(f"Usage: lolat {command}")
    assert "..." not in found.out.partition("\n\n")[2].replace("[NETWORK]...", "")


def test_help_versions_and_what_to_do_first_import_nothing() -> None:
    code = (
        "import sys; from lolat.cli.common import run; from lolat.cli.main import lolat\n"
        "for call in [], ['--version'], ['--help']: run(lolat, call, 'lolat')\n"
        "print({'numpy', 'keras', 'torch'} & set(sys.modules))"
    )
    done = python(code)
    assert done.stdout.splitlines()[-1] == "set()"
    listed = done.stdout.partition("Usage: ")[2]
    assert all(len(line) <= 80 for line in listed.splitlines())
    assert "..." not in listed.partition("\n\n")[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nas"], "Missing command"),
        (["pretend"], "No such command 'pretend'"),
        (["--fast"], "No such option"),
        (["predict"], "Missing argument 'MODEL'"),
        (["predict", "m.json"], "Missing argument 'NETWORK...'"),
        (["explain", "m.json", "keras:X", "more"], "unexpected extra argument (more)"),
        (["predict", "m.json", "keras:X", "--fast"], "No such option"),
        (["predict", "m.json", "keras:X", "--batch-size", "0"], "'0': expected whole numbers from 1"),
        (["predict", "m.json", "keras:X", "--batch-size", "-3"], "'-3': expected whole numbers"),
        (["predict", "m.json", "keras:X", "--batch-size", "many"], "'many': expected whole numbers"),
        (["predict", "m.json", "keras:X", "--batch-size", "1,2.5"], "'1,2.5': expected whole numbers"),
        (["predict", "m.json", "keras:X", "--batch-size"], "requires an argument"),
        (["predict", "m.json", "keras:X", "--input-size", "0"], "'0': expected a positive whole"),
        (["predict", "m.json", "keras:X", "--input-size", "224x224"], "'224x224': expected"),
        (["predict", "m.json", "keras:X", "--input-size", ""], "'': expected"),
        (["fit"], "Missing option '--output'"),
        (["fit", "points.csv"], "Missing option '--output'"),
        (["show"], "Missing argument 'MODEL'"),
        (["evaluate"], "Missing argument 'MODEL'"),
        (["evaluate", "m.json", "--batch-size", "0"], "'0': expected whole numbers from 1"),
        (["learn", "tpu"], "'tpu' is not one of 'cpu', 'gpu'"),
        (["models", "all"], "unexpected extra argument (all)"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_one_line(lolat: Command, arguments: list[str], words: str) -> None:
    line = lolat.refused(*arguments)
    assert words in line
    assert line.endswith(" --help")


@pytest.mark.parametrize("command", ["predict", "report", "show", "evaluate", "fit"])
def test_a_model_that_is_none_is_one_line(lolat: Command, tmp_path: Path, command: str) -> None:
    rest = {"predict": ["keras:X"], "report": ["keras:X"], "fit": ["--output", tmp_path / "o.json"]}
    whole = json.dumps(synthetic.document())
    contents = {
        "something": '{"a": 1}',
        "list": "[]",
        "truncated": whole[: len(whole) // 2],
        "empty": "",
        "binary": "\x00\x01",
        "nan": whole.replace('"slope": ', '"slope": NaN, "x": '),
        "newer": whole.replace('"version": 1', '"version": 2'),
    }
    for name, content in contents.items():
        path = tmp_path / f"{name}.json"
        path.write_text(content)
        assert str(path) in lolat.refused(command, path, *rest.get(command, []))
    assert "no such model" in lolat.refused(command, "missing.json", *rest.get(command, []))
    assert "is a folder" in lolat.refused(command, tmp_path, *rest.get(command, []))
    assert not (tmp_path / "o.json").exists()


def raising(error: BaseException) -> object:
    def read(*unused: object) -> None:
        raise error

    return read


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (ZeroDivisionError("one\ntwo"), 1, "unexpected ZeroDivisionError: one two"),
        (MemoryError(), 1, "not enough memory"),
        (OSError(28, "No space left on device", "/x/y"), 1, "/x/y: No space left on device"),
        (AnswerIsNo("over the budget"), 3, "over the budget"),
        (RecursionError("too deep"), 1, "unexpected RecursionError"),
        (ImportError("no numpy", name="numpy.random"), 1, "cannot be imported (no numpy)"),
        (ModuleNotFoundError("none", name="lolat.x"), 1, "unexpected ModuleNotFoundError: none"),
    ],
)
def test_whatever_happens_it_is_one_line_and_a_code(
    lolat: Command, model: Path, monkeypatch: pytest.MonkeyPatch,
    error: BaseException, code: int, words: str,
) -> None:  # fmt: skip
    monkeypatch.delenv("LOLAT_DEBUG", raising=False)
    monkeypatch.setattr("lolat.readers.read", raising(error))
    found = lolat("predict", model, "keras:X")
    assert found.code == code
    assert found.out == ""
    assert words in one_line(found.err.lstrip("\n"))  # click ends the line of a terminal's ^C


def test_where_an_error_is_from_can_be_asked(
    lolat: Command, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOLAT_DEBUG", "1")
    monkeypatch.setattr("lolat.readers.read", raising(ZeroDivisionError("x")))
    found = lolat("predict", model, "keras:X")
    assert found.code == 1
    assert "Traceback" in found.err
    assert found.err.splitlines()[-1].startswith("lolat: unexpected ZeroDivisionError")


def test_what_is_not_to_be_printed_and_what_is_very_long(lolat: Command, model: Path) -> None:
    found = lolat("predict", model, "keras:\x1b[31m\u202e" + "A" * 5000)
    assert found.code == 2
    line = one_line(found.err)
    assert line.isprintable()
    assert len(line) < 1500


class TestAsAProcess:
    """The same from outside: the code that a shell sees, stderr as it is."""

    def test_ctrl_c(self, model: Path, tmp_path: Path) -> None:
        (tmp_path / "slow.py").write_text(
            "import pathlib, time  # says torch, and so spares itself the import of Keras\n"
            "def net():\n"
            "    pathlib.Path('started').touch()\n"
            "    time.sleep(60)\n"
        )
        with subprocess.Popen(
            [sys.executable, "-m", "lolat.cli.main", "predict", str(model), "slow:net"],
            cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
            # A shell's background jobs ignore Ctrl-C and so would what they start.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        ) as running:  # fmt: skip
            try:
                give_up = time.monotonic() + 60
                while not (tmp_path / "started").exists() and time.monotonic() < give_up:
                    time.sleep(0.02)
                running.send_signal(signal.SIGINT)
                out, err = running.communicate(timeout=30)
            finally:
                running.kill()
        assert running.returncode == 130
        assert out == ""
        assert one_line(err.lstrip("\n")) == "lolat: interrupted"

    def test_a_terminal_that_knows_only_ascii(self, model: Path) -> None:
        environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
        code = (
            "import lolat.readers; from tests.synthetic import network\n"
            "lolat.readers.read = lambda *unused: network()\n"
            f"from lolat.cli.main import main; main(['report', {str(model)!r}, 'keras:X'])"
        )
        done = python(code, env=environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("hand made ? batch 1")


NOWHERE = (">&-", ">/dev/full", ">&- 2>&- <&-", ">/dev/full 2>/dev/full")


@pytest.mark.parametrize("streams", NOWHERE)
def test_an_answer_that_nobody_can_get_is_exit_code_1(streams: str) -> None:
    """One line where there is a stderr; a file that is opened is not taken for a closed stdout."""
    shell = f"exec {sys.executable} -m lolat.cli.main completion bash {streams}"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    expected = "" if "2>" in streams else "lolat: the system refused"
    assert done.stderr.startswith(expected)
    assert done.stderr.count("\n") == ("2>" not in streams)


def test_an_error_that_nobody_can_get_has_its_exit_code() -> None:
    shell = f"exec {sys.executable} -m lolat.cli.main predict none none 2>/dev/full"
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("size", ["0", "\u00b2", "9" * 5000])
def test_a_terminal_of_a_size_that_none_has(model: Path, size: str) -> None:
    """The answer is not lost, and is as on a terminal that says nothing."""
    code = (
        "import sys; from lolat.cli.main import main; import lolat.readers\n"
        "from tests.synthetic import network\n"
        "lolat.readers.read = lambda *unused: network()\n"
        "sys.stdout.isatty = lambda: True\n"
        f"main(['report', {str(model)!r}, 'keras:X'])"
    )
    done = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False,
            env={k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")} | sizes,
        )
        for sizes in ({}, {"COLUMNS": size, "LINES": size})
    ]  # fmt: skip
    assert [one.returncode for one in done] == [0, 0], done
    assert "hand made" in done[0].stdout
    assert done[0].stdout == done[1].stdout
