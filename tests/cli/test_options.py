"""Names of options: each means one thing, and the former ones still work."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from benchmarks import command_line
from lolat.cli import common
from lolat.cli.main import lolat as group
from lolat.cli.parsing import Argument, Command, Group, Option
from tests.cli.commands import Command as Run

LEAVES = dict(command_line.leaves(group))

RENAMED = [
    ("budget", "m n --vary batch --ms 3", "m n --vary batch --max-ms 3", "--ms is now --max-ms"),
    ("cost", "m n --samples 9 --batch-size 1 --devices 1,2",
     "m n --samples 9 --batch-size 1 --replicas 1,2", "--devices is now --replicas"),
    ("training predict", "m n --batch-size 1 --devices=4", "m n --batch-size 1 --replicas 4",
     "--devices is now --replicas"),
    ("fit", "t.csv --output m --device x", "t.csv --output m --name x", "--device is now --name"),
    ("suggest", "--output t --device x --facts f --rows 3 --from p",
     "--output t --name x --facts f --count 3 --among p", "--rows is now --count"),
    ("evaluate", "m --table t --device x", "m --table t --only x", "--device is now --only"),
    ("mlp fit", "t --layer dense --output m --gpus a,b --devices f",
     "t --layer dense --output m --only a,b --facts f", "--gpus is now --only"),
    ("mlp network", "c d n --gpu x --devices f", "c d n --gpu x --facts f", "--devices is now --facts"),
    ("mlp predict", "m t --output o --devices f", "m t --output o --facts f", "--devices is now --facts"),
    ("mlp evaluate", "m t --devices f", "m t --facts f", "--devices is now --facts"),
    ("nas fit", "--space fbnet s.csv --output o", "fbnet s.csv --output o",
     "--space is now the first argument, SPACE"),
    ("nas suggest", "--count 3 --space=fbnet", "fbnet --count 3",
     "--space is now the first argument, SPACE"),
    ("nas search", "s m --objective o --samples 5", "s m --objective o --candidates 5",
     "--samples is now --candidates"),
    ("nas score", "s m --output o --columns arch", "s m --output o --label arch",
     "--columns is now --label"),
]  # fmt: skip
"""(command, a call as it was, the same as it is, what is said)."""


@pytest.mark.parametrize(("name", "was", "now", "words"), RENAMED)
def test_a_former_name_works_and_says_the_new_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    name: str, was: str, now: str, words: str,
) -> None:  # fmt: skip
    command = LEAVES[name]
    monkeypatch.setattr(command, "callback", lambda **values: None)
    said = []
    contexts = []
    for call in (was, now):
        contexts.append(command.make_context(name, call.split()))
        contexts[-1].command.invoke(contexts[-1])
        said.append(capsys.readouterr())
    assert contexts[0].params == contexts[1].params
    assert f"lolat: {words}" in said[0].err.splitlines()
    assert (said[1].err, said[0].out) == ("", "")


def test_every_former_name_is_tried() -> None:
    tried = {(name, word.partition("=")[0]) for name, was, *_ in RENAMED for word in was.split()}
    for name, command in LEAVES.items():
        for parameter in command.params:
            was = getattr(parameter, "was", ())
            for old in [was] if isinstance(was, str) else was:
                # `--space` of a search was an argument before.
                assert not old or (name, old) in tried or name in ("nas search", "nas score")


def test_a_wrong_value_by_a_former_name_is_one_line(lolat: Run) -> None:
    assert "'0': expected" in lolat.refused("budget", "m", "n", "--vary", "batch", "--ms", "0")


def test_former_names_are_not_in_the_help(lolat: Run) -> None:
    for name, command in LEAVES.items():
        shown = lolat.done(*name.split(), "--help").out
        for parameter in command.params:
            was = getattr(parameter, "was", ())
            assert isinstance(parameter, Argument) or not any(f"{old} " in shown for old in was)


def test_every_command_and_option_is_of_ours() -> None:
    for name, command in LEAVES.items():
        assert isinstance(command, Command | Group), f"{name}: write @command() of lolat.cli.common"
        options = [p for p in command.params if isinstance(p, click.Option)]
        assert all(isinstance(o, Option) for o in options), f"{name}: write @option() of it too"


def test_the_choices_are_those_there_are() -> None:
    """They are written out, so that a help imports nothing."""
    from lolat.fitting.predictors import PREDICTORS
    from lolat.mlp.table import OPTIMIZERS as OF_LAYERS
    from lolat.training.iteration import OPTIMIZERS
    from lolat.training.replicas import STRATEGIES
    from microbench.backends import BACKENDS, TRAINING

    assert set(common.OPTIMIZERS) == set(OPTIMIZERS) == set(OF_LAYERS) - {"none"}
    assert common.STRATEGIES == STRATEGIES
    assert set(common.BACKENDS) == set(BACKENDS)
    assert set(common.BACKENDS) - {"onnxruntime"} == set(TRAINING)
    assert set(common.PREDICTORS) == set(PREDICTORS)


# ---- One table of options without two meanings: docs/reference/command-line.md.

OWN_DEFAULT = {
    "--count": "of operations, layers and networks that one can time in an afternoon",
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
        first, *rest = shlex.split(example.partition(">>")[0].partition("|")[0])
        assert [first, *rest[: len(name.split())]] == ["lolat", *name.split()]
        command.make_context(name, rest[len(name.split()) :])


CHEAP = ("show", "models", "prices", "cache", "suggest", "nas suggest", "completion")


@pytest.mark.parametrize("name", CHEAP)
def test_an_example_that_is_cheap_runs(
    lolat: Run, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    example = LEAVES[name].examples[0]  # type: ignore[attr-defined]
    assert lolat.done(*shlex.split(example.partition(">>")[0])[1:]).out
