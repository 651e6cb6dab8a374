"""The README's commands and snippets run: what it tells people to type works as it stands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from lolat.cli.main import COMMANDS, lolat
from lolat.errors import NetworkError

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


def test_the_readme_shows_every_command() -> None:
    shown = {words[0] for words in commands()}
    assert shown | {"learn"} == set(COMMANDS)


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_commands_take_the_options_shown(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line is parsed in full and gets as far as its model, network or file."""

    def stop(*args: object, **kwargs: object) -> None:
        raise NetworkError("stopped by the test")

    monkeypatch.setattr("lolat.model.load", stop)
    monkeypatch.setattr("lolat.cli.fit._points", stop)
    monkeypatch.setattr("lolat.places.list_models", lambda: [])
    result = CliRunner().invoke(lolat, words)
    assert result.exit_code == 0 or isinstance(result.exception, NetworkError), result.output


def test_make_targets_exist() -> None:
    targets = re.findall(r"^make (\w+)", README, re.MULTILINE)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert {"learn", "test"} <= set(targets)
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)


def test_python_snippets_run() -> None:
    snippets = blocks("python")
    assert snippets
    for snippet in snippets:
        done = subprocess.run(
            [sys.executable, "-c", snippet], cwd=ROOT, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        assert "slowest:" in done.stdout


def test_local_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\((?!http)([^)#]+)\)", README) + re.findall(r'src="([^"]+)"', README)
    assert targets
    missing = [t for t in targets if not (ROOT / t).exists()]
    assert not missing


def test_shipped_models_load_and_are_listed() -> None:
    from lolat.model import load

    text = (ROOT / "models" / "README.md").read_text(encoding="utf-8")
    shipped = sorted((ROOT / "models").glob("*.json"))
    assert shipped
    for path in shipped:
        model = load(path)
        assert f"`{path.stem}`" in text
        assert len(model.document["points"]) >= 90
        assert model.predict_counts(1e6, 1e6, 1e8, 1e6, 1e5, 20) > 0
