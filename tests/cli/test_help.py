"""What helps on a command line: first steps, --quiet, exit codes, suggestions, completion."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lolat as package
from benchmarks import command_line
from lolat.cli.common import option, run
from lolat.cli.main import COMMANDS, COMPLETE
from lolat.cli.main import lolat as group
from lolat.cli.parsing import Command as OfLoLat
from lolat.cli.parsing import Percent
from lolat.cli.progress import progress, say
from lolat.errors import AnswerIsNo, InputError
from tests.cli.commands import ROOT, Command


def test_a_bare_call_says_what_to_do_first(lolat: Command) -> None:
    lines = lolat.text().splitlines()
    shown = [line.split()[1] for line in lines if line.startswith("  lolat ")]
    assert shown[:3] == ["predict", "learn", "report"]
    assert set(shown) <= {*COMMANDS, "--help"}
    assert len(lines) < 10


def test_versions_are_those_installed(lolat: Command) -> None:
    (line,) = lolat.text("--version").splitlines()
    assert line.startswith(f"lolat {package.__version__} (Python ")
    assert f"Python {platform.python_version()}" in line
    assert f"numpy {importlib.metadata.version('numpy')}" in line


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (["predcit", "m", "n"], "predict"),
        (["nas", "serch", "s", "m"], "search"),
        (["predict", "m", "n", "--batchsize", "3"], "--batch-size"),
        (["predict", "lokal", "keras:X"], "local"),
        (["predict", "epyc2t", "keras:X"], "epyc-2t"),
        (["predict", "epyc-2t", "resnet50"], "keras:ResNet50"),
        (["predict", "epyc-2t", "mobilenetv2"], "keras:MobileNetV2"),
    ],
)
def test_a_typing_error_gets_a_suggestion(lolat: Command, call: list[str], meant: str) -> None:
    line = lolat.refused(*call)
    assert re.search(rf"did you mean.* '?{re.escape(meant)}\b", line, re.IGNORECASE), line


def test_what_is_like_nothing_gets_none(lolat: Command) -> None:
    assert "did you mean" not in lolat.refused("xyzzy")
    assert "did you mean" not in lolat.refused("predict", "epyc-2t", "qqqqqqqqqqqq")


# ---- --quiet.


def remarking(error: BaseException | None) -> OfLoLat:
    """A command that remarks, shows progress, answers and fails with `error`."""

    def callback() -> None:
        say("warning: careful")
        with progress() as bar:
            bar.start("working", 2)
            bar.note("halfway")
        print("answer")
        if error is not None:
            raise error

    return OfLoLat("remark", callback=callback)


@pytest.mark.parametrize("option", ["--quiet", "-q"])
def test_quiet_leaves_answer_and_errors(capsys: pytest.CaptureFixture[str], option: str) -> None:
    assert run(remarking(None), [], "remark") == 0
    assert len(capsys.readouterr().err.splitlines()) == 3
    assert run(remarking(None), [option], "remark") == 0
    assert capsys.readouterr() == ("answer\n", "")
    assert run(remarking(InputError("it is wrong")), [option], "remark") == 2
    assert capsys.readouterr() == ("answer\n", "lolat: it is wrong\n")


@pytest.mark.parametrize("call", [["-q", "budget", "{}"], ["budget", "{}", "--quiet"]])
def test_quiet_before_a_command_and_behind_it(
    lolat: Command, model: Path, monkeypatch: pytest.MonkeyPatch, call: list[str]
) -> None:
    monkeypatch.setattr("lolat.readers.read", lambda *_: (_ for _ in ()).throw(AnswerIsNo("no")))
    words = [word.format(model) for word in call]
    rest = ["n:n", "--vary", "batch", "--ms", "3"]
    assert "--ms is now" in lolat("budget", model, *rest).err
    assert lolat(*words, *rest).err.splitlines() == ["lolat: no"]


# ---- Exit codes: those of the table in the reference.

CODES: dict[int, BaseException | None] = {
    0: None,
    1: OSError(28, "No space left on device"),
    2: InputError("it is wrong"),
    3: AnswerIsNo("it is not"),
    130: KeyboardInterrupt(),
}


def test_the_table_of_exit_codes_has_each() -> None:
    section = command_line.text().partition("## Exit codes")[2].partition("\n## ")[0]
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", section, re.MULTILINE)} == set(CODES)


@pytest.mark.parametrize("code", CODES)
def test_each_exit_code(capsys: pytest.CaptureFixture[str], code: int) -> None:
    assert run(remarking(CODES[code]), ["-q"], "remark") == code
    assert len(capsys.readouterr().err.splitlines()) == (code != 0)


# ---- Completion.


def completed(words: str, shell: str = "bash") -> list[str]:
    """What the shell is told for the words typed, of which the last is begun."""
    environment = {**os.environ, COMPLETE: f"{shell}_complete", "COMP_WORDS": words,
                   "COMP_CWORD": str(len(words.split()) - 1)}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "lolat.cli.main"],
        env=environment, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False,
    )  # fmt: skip
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("lolat pred", "predict"),
        ("lolat nas su", "suggest"),
        ("lolat predict epyc", "epyc-2t"),
        ("lolat predict epyc-2t keras:ResNet5", "keras:ResNet50"),
        ("lolat cost m n --opt", "--optimizer"),
        ("lolat cost m n --optimizer ada", "adagrad"),
    ],
)
def test_a_shell_completes(words: str, expected: str) -> None:
    assert expected in completed(words)


@pytest.mark.parametrize("words", ['lolat "', "lolat nas '", "lolat predict \\", "lolat a b c"])
@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_where_nothing_can_be_completed_nothing_is_said(words: str, shell: str) -> None:
    completed(words, shell)


@pytest.mark.parametrize("value", ["junk", "1", "bash_complete", "bash_", "\u00b2"])
def test_a_variable_that_is_left_over_is_one_line(value: str) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "COMP_WORDS"} | {COMPLETE: value}
    done = subprocess.run(
        [sys.executable, "-m", "lolat.cli.main", "models"],
        env=environment, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"lolat: {COMPLETE} is {value!r}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_us(lolat: Command, shell: str) -> None:
    assert f"{COMPLETE}={shell}_complete" in lolat.done("completion", shell).out


# ---- --sure.


def test_sure_alone_is_ninety_percent(lolat: Command) -> None:
    budget = group.get_command(None, "budget")  # type: ignore[arg-type]
    assert budget is not None
    call = ["m", "n", "--vary", "batch", "--max-ms", "3"]
    for given, share in ([], None), (["--sure"], 0.9), (["--sure", "95"], 0.95):
        assert budget.make_context("budget", [*call, *given]).params["sure"] == share
    for wrong in ("0", "100", "many"):
        assert "percent above 0 and below 100" in lolat.refused("budget", *call, "--sure", wrong)
    assert "--sure 80" in lolat.refused(
        "budget", "epyc-2t", "n", *call[2:], "--sure", "--coverage", "0.8"
    )


def test_percent_may_have_its_sign() -> None:
    assert Percent().convert("99.5%", None, None) == 0.995


def test_an_option_is_used_as_it_is_or_with_changes() -> None:
    plain = option("--name", help="What it is called.")

    @plain(more="Or else.", default="x")
    def called(**_: object) -> None: ...

    (made,) = called.__click_params__  # type: ignore[attr-defined]
    assert (made.help, made.default) == ("What it is called. Or else.", "x")
    assert json.dumps(made.opts) == '["--name"]'
