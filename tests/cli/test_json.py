"""--json: which commands have it, and that what they print is of their schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from benchmarks.schema import ANSWERS
from lolat.cli.main import lolat as main
from tests.cli.commands import GOING, ROOT, Command, closed, valid_answer

NO_ANSWER = {"serve"}
"""It does not end with an answer."""
GOING_COMMANDS = {"compare", "suggest", "nas suggest", "prices refresh", "training link"}


def commands(
    group: click.Group, context: click.Context, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by what a user types."""
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        assert found is not None
        if not isinstance(found, click.Group) or found.invoke_without_command:
            yield " ".join((*path, name)), found
        if isinstance(found, click.Group):
            yield from commands(found, context, (*path, name))


def test_every_command_that_answers_has_json_and_a_schema() -> None:
    with click.Context(main) as context:
        found = dict(commands(main, context))
    assert len(found) > 20
    with_json = {
        path for path, command in found.items()
        if any("--json" in option.opts for option in command.params)
    }  # fmt: skip
    assert with_json == found.keys() - NO_ANSWER
    printing = {command for _, commands in ANSWERS.values() for command in commands}
    assert with_json - GOING_COMMANDS == printing


def test_the_schema_has_what_the_commands_print() -> None:
    """The names that stand in the calls are those of the schema."""
    files = [path.read_text(encoding="utf-8") for path in (ROOT / "lolat" / "cli").glob("*.py")]
    called = r'(?:common\.answer|say_json|json_of_no)\(\s*"([\w-]+)"'
    assert {name for text in files for name in re.findall(called, text)} - GOING == ANSWERS.keys()


@pytest.mark.parametrize(
    "words",
    [
        ["show", "epyc-2t"],
        ["show", "rtx-5090-amp"],
        ["models"],
        ["predict", "rtx-5090-amp", "generate:vgg?layers=1&filters=8"],
        ["report", "epyc-2t", "generate:vgg?layers=1&filters=8"],
        ["explain", "epyc-2t", "generate:vgg?layers=1&filters=8"],
        ["budget", "epyc-2t", "generate:vgg?layers=1&filters=8", "--vary", "batch", "--max-ms", "900"],
        ["prices"],
        ["training", "predict", "rtx-5090-amp", "generate:fc?layers=8", "--batch-size", "8"],
        ["cost", "rtx-5090-amp", "generate:fc?layers=8", "--batch-size", "8", "--samples", "80",
         "--price-per-hour", "1"],
    ],
    ids=lambda words: " ".join(words[:2]),
)  # fmt: skip
def test_shipped_models_answer_in_json(lolat: Command, words: list[str]) -> None:
    """`Command` validates every answer of every test; here those of models as they are shipped."""
    pytest.importorskip("keras")
    assert lolat.done(*words, "--json").out


def test_what_is_written_is_answered_in_json(lolat: Command, model: Path, tmp_path: Path) -> None:
    again = lolat.json("fit", model, "--output", tmp_path / "again.json")
    assert (again["points"], again["name"]) == (105, "again")
    assert again == lolat.json("show", tmp_path / "again.json")


def test_a_key_that_no_schema_has_is_found() -> None:
    """The tests' own check can fail: on a key too many, one too few and NaN."""
    whole = '{"schema": "lolat-prices", "version": 1, "prices": "x", "offers": []}'
    assert valid_answer(["prices"], whole)["prices"] == "x"
    for damaged in (whole.replace("}", ', "more": 1}'), whole.replace('"prices": "x", ', "")):
        with pytest.raises(pytest.fail.Exception, match=r"more|prices"):
            valid_answer(["prices"], damaged)
    with pytest.raises(pytest.fail.Exception, match="NaN"):
        valid_answer(["prices"], whole.replace('"x"', "NaN"))
    assert closed({"type": "object", "properties": {}})["additionalProperties"] is False
