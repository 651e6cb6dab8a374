"""What errors carry to each surface and across processes; the line that a missing package is installed
with, wherever this LoLat came from.
"""

from __future__ import annotations

import copy
import json
import linecache
import pickle
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import lolat
from lolat import errors, parameters
from lolat.cli.main import lolat as commands
from lolat.cli.main import run
from lolat.io.process import Child, RequestFailed
from lolat.web.form import Form
from tests import synthetic

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("inside", [True, False])
def test_in_a_checkout_its_folder_is_named(
    inside: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT if inside else tmp_path)
    *command, what = shlex.split(errors.install("torch"))
    folder, extra = what.removesuffix("]").split("[")
    assert command == ["pip", "install", "-e"]
    assert extra == "torch"
    assert Path(folder).resolve() == ROOT


def test_a_missing_package_travels_between_processes() -> None:
    error = errors.MissingPackageError("no PyTorch", "torch")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)
    assert str(error).count("pip install") == 1


def test_nobody_is_told_to_install_what_is_not_released() -> None:
    """`pip install lolat` finds nothing on the package index, or one day somebody else's package."""
    told = re.compile(r"pip install (--upgrade )?'?lolat\b(?!\[\w+\] @)")
    folders = ("lolat", "microbench", "docs", "benchmarks", "examples")
    places = [*ROOT.glob("*.md"), *(p for f in folders for p in (ROOT / f).rglob("*"))]
    texts = [p for p in places if p.suffix in {".py", ".md", ".yml", ".html"}]
    assert [str(p) for p in texts if told.search(p.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("is_cell", [True, False])
def test_a_notebook_shows_the_line_that_asked_and_the_message(
    is_cell: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IPython calls `_render_traceback_`; it keeps the lines of a cell, which is no file."""
    code, name = "import lolat\nlolat.load('nothing')\n", str(tmp_path / "asks.py")
    if is_cell:
        monkeypatch.setitem(linecache.cache, name, (len(code), None, code.splitlines(True), name))
    else:
        Path(name).write_text(code)
    with pytest.raises(errors.ModelFileError) as caught:
        exec(compile(code, name, "exec"), {})
    shown = caught.value._render_traceback_()
    where = "" if is_cell else f"{name}, "
    assert shown == [f"{where}line 2: lolat.load('nothing')", f"ModelFileError: {caught.value}"]
    monkeypatch.setenv("LOLAT_DEBUG", "1")
    assert "loading.py" in "".join(caught.value._render_traceback_())


# ---- Codes, data, and arguments in each surface's words


def raising() -> dict[str, Any]:
    """The handler of a request in a child process, which fails."""
    raise errors.AnswerIsNo(
        f"too slow; give {errors.arg('max_ms')} 9", code="over-budget", enough_ms=9.0, path=ROOT
    )


def start_raising() -> Any:
    """The start of the child process."""
    return lambda request: raising()


def test_an_error_from_a_child_process_is_the_same() -> None:
    with (
        Child(f"{__name__}:start_raising") as child,
        pytest.raises(RequestFailed, match=r"^too slow; give max_ms 9$") as caught,
    ):
        child.request(None, 60.0)
    error = caught.value.as_error(errors.LolatError)
    assert (type(error), error.exit_code, error.code) == (errors.AnswerIsNo, 3, "over-budget")
    assert error.data == {"enough_ms": 9.0, "path": str(ROOT)}
    assert error.worded(lambda name: f"<{name}>") == "too slow; give <max_ms> 9"


@pytest.mark.parametrize(
    ("argument", "words"),
    [("precision", (parameters.BEST,)), ("launch", parameters.LAUNCHES),
     ("sharding", parameters.SHARDINGS)],
)  # fmt: skip
def test_a_word_of_an_argument_is_text_in_python(argument: str, words: tuple[str, ...]) -> None:
    for word in words:
        error = errors.InputError(f"ask with {errors.arg(argument)} {word}, or without")
        assert str(error) == f'ask with {argument}="{word}", or without'
        assert errors.in_options(error.message) == f"ask with --{argument} {word}, or without"


def test_another_exception_of_a_child_process_is_what_is_asked_for() -> None:
    failed = RequestFailed({"error": "ValueError: no", "kind": "ValueError"})
    error = failed.as_error(errors.NetworkError)
    assert (type(error), str(error), error.code) == (
        errors.NetworkError,
        "ValueError: no",
        "network",
    )


@pytest.mark.parametrize(
    "kind", [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, Exception)]
)
def test_an_error_is_pickled_and_copied_with_all_it_has(kind: type[errors.LolatError]) -> None:
    error = kind(f"{errors.arg('sure')} is wrong", code="some-code", row=3)
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert (str(again), again.code, again.data) == ("sure is wrong", "some-code", {"row": 3})
        assert again.arguments == ["sure"]
    assert re.fullmatch(r"[a-z]+(-[a-z]+)*", kind("some words").code)


def test_an_error_shows_its_arguments_without_marks() -> None:
    error = errors.InputError(f"{errors.arg('batch_size')} 0: expected 1 or more")
    assert repr(error) == "InputError('batch_size 0: expected 1 or more')"


def test_python_the_command_line_and_the_page_name_an_argument_each_in_their_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, sure = tmp_path / "desk.json", "0.999999"
    model.write_text(json.dumps(synthetic.document()))
    with pytest.raises(errors.InputError) as caught:
        lolat.load(model).predict(synthetic.network(), coverage=float(sure))
    error = caught.value
    assert (error.code, error.data) == ("coverage-range", {"coverage": 0.999999})
    assert str(error).startswith("coverage 0.999999: expected at most")
    call = ["predict", str(model), "keras:ResNet50", "--coverage", sure]
    assert run(commands, call, "lolat") == 2
    assert capsys.readouterr().err.startswith("lolat: --coverage 0.999999: expected at most")
    form = Form([("view", "budget")], {})
    words = form.words(errors.InputError(f"{errors.arg('max_ms')} 0: expected more"))
    assert words == '"Time limit, ms" 0: expected more'
    form = Form([("view", "training")], {})
    assert form.line("with --launch compiled: 3 h") == 'with "Launch: compiled": 3 h'
    field = form.fields["global_batch_size"].label
    assert form.line("--global-batch-size N compares") == f'"{field}" compares'
    assert form.line("see --nothing N") == "see --nothing N"
