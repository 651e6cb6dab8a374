"""The README's commands and snippets run: what it tells people to type works as it stands."""

import json
import os
import re
import shlex
from pathlib import Path

import pytest

from tests.processes import python

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The fenced blocks of a language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def commands() -> list[list[str]]:
    """Every `lolat ...` line of the README's unmarked blocks, comments left out, as words."""
    lines = [line for block in blocks("") for line in block.splitlines()]
    found = [shlex.split(line, comments=True) for line in lines if line.startswith("lolat ")]
    return [words[1:] for words in found]


def test_it_is_one_page() -> None:
    assert len(README.splitlines()) <= 100


def test_the_five_questions_are_there() -> None:
    assert {"predict", "report", "explain", "budget", "cost"} <= {w[0] for w in commands()}


DRIVER = """
import json, sys
from lolat.cli.common import run
from lolat.cli.main import lolat

commands, snippets = json.loads(sys.argv[1])
print("codes", [run(lolat, words, "lolat") for words in commands])
for snippet in snippets:
    exec(snippet, {})
"""


def test_the_commands_and_snippets_run(tmp_path: Path) -> None:
    """As they stand; `local` is the shipped model. In one process, which imports its framework once."""
    pytest.importorskip("keras")
    told = [["epyc-2t" if w == "local" else w for w in words] for words in commands()]
    assert len(told) >= 6
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = python(DRIVER, json.dumps([told, blocks("python")]), cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    codes, _, printed = done.stdout.partition(f"codes {[0] * len(told)}\n")
    assert printed.count("slowest:") == len(blocks("python")) > 0, codes
    assert (tmp_path / "report.html").exists()


def test_the_snippet_that_times_as_lolat_does_runs(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("keras")
    text = (ROOT / "docs/explanation/stopwatch.md").read_text(encoding="utf-8")
    (snippet,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    exec(snippet, {})
    assert re.fullmatch(r"\d+\.\d\d ms\n", capsys.readouterr().out)


def test_make_targets_exist() -> None:
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"learn", "test"} <= set(targets)
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_shipped_models_load_and_are_listed() -> None:
    from lolat.model import load

    text = (ROOT / "models" / "README.md").read_text(encoding="utf-8")
    shipped = sorted((ROOT / "models").glob("*.json"))
    assert shipped
    for path in shipped:
        model = load(path)
        assert f"`{path.stem}`" in text
        # Those that others measured keep the formulas, not the times.
        of_tables = "kernels" in model.predictors
        assert of_tables or len(model.document["points"]) >= 90
        assert model.predict_counts(1e6, 1e6, 1e8, 1e6, 1e5, 20) > 0
