"""Names of options: each means one thing, and every command shows examples."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from benchmarks import command_line
from lolat.cli import common
from lolat.cli.main import lolat as group
from lolat.cli.parsing import Command
from tests.cli.commands import Command as Run

LEAVES = dict(command_line.leaves(group))


def test_every_command_is_of_ours() -> None:
    for name, command in LEAVES.items():
        assert isinstance(command, Command), f"{name}: write @command() of lolat.cli.common"


def test_the_choices_are_those_there_are() -> None:
    """They are written out, so that a help imports nothing."""
    from lolat.fitting.predictors import PREDICTORS
    from lolat.graph.modes import LAUNCHES
    from lolat.mlp.table import OPTIMIZERS as OF_LAYERS
    from lolat.training.iteration import OPTIMIZERS
    from lolat.training.replicas import STRATEGIES
    from microbench.backends import BACKENDS, TRAINING

    assert set(common.OPTIMIZERS) == set(OPTIMIZERS) == set(OF_LAYERS) - {"none"}
    assert common.STRATEGIES == STRATEGIES
    assert set(common.BACKENDS) == set(BACKENDS)
    assert set(common.BACKENDS) - {"onnxruntime"} == set(TRAINING)
    assert set(common.PREDICTORS) == set(PREDICTORS)
    assert common.LAUNCHES == LAUNCHES


# ---- One table of options without two meanings: docs/reference/command-line.md.

OWN_DEFAULT = {
    "--optimizer": "mlp network predicts forward passes, training trains",
}
"""Options whose default is each command's own, and why."""


def kind(value: str) -> set[str]:
    """What an option takes, how many of it apart: its choices, or its unit."""
    return set(re.sub(r"\[,.*?\]", "", value).strip("[]").split("|"))


def test_an_option_means_the_same_in_every_command() -> None:
    widest = {one.name: kind(one.value) for one in command_line.table()}
    meanings: dict[str, set[str]] = {}
    defaults: dict[str, set[str]] = {}
    for name, command in LEAVES.items():
        for one in command_line.options(command):
            assert one.help.endswith((".", ")")), f"{name} {one.name} says nothing"
            assert kind(one.value) <= widest[one.name], f"{name} {one.name} takes {one.value}"
            meanings.setdefault(one.name, set()).add(one.meaning)
            defaults.setdefault(one.name, set()).update({one.default} - {"", "required"})
    assert {name: said for name, said in meanings.items() if len(said) > 1} == {}
    assert {name for name, given in defaults.items() if len(given) > 1} == set(OWN_DEFAULT)


def test_every_help_is_whole_and_names_no_type_of_click(lolat: Run) -> None:
    for name in LEAVES:
        shown = lolat.done(*name.split(), "--help").out
        assert shown.startswith(f"Usage: lolat {name}")
        assert not re.search(r"INTEGER|FLOAT|TEXT\b|<=x", shown), name
        whole = (
            shown.partition("\n\n")[2].replace("[NETWORK]...", "").replace("normalization ...", "")
        )
        assert "..." not in whole, name


# ---- Examples.


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_shows_an_example_that_parses(lolat: Run, name: str) -> None:
    command = LEAVES[name]
    examples = command.examples  # type: ignore[attr-defined]
    assert examples
    shown = lolat.done(*name.split(), "--help").out
    for example in examples:
        assert f"  {example}\n" in shown
        first, *rest = shlex.split(example)
        assert [first, *rest[: len(name.split())]] == ["lolat", *name.split()]
        command.make_context(name, rest[len(name.split()) :])


CHEAP = ("show", "models", "prices")


@pytest.mark.parametrize("name", CHEAP)
def test_an_example_that_is_cheap_runs(
    lolat: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example = LEAVES[name].examples[0]  # type: ignore[attr-defined]
    assert lolat.done(*shlex.split(example)[1:]).out
