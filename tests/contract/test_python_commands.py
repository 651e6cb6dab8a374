"""What the options of a command give, Python gives: the same names, the same numbers, one type for many."""

from __future__ import annotations

import inspect
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

import lolat
from lolat.api.model import Model
from lolat.api.predicting import Predictions
from lolat.cli.main import lolat as commands
from lolat.cli.main import run
from lolat.errors import LolatError
from tests.cli.commands import without_schema
from tests.contract.test_nothing_ignored import LEAVES, VALUES
from tests.contract.test_nothing_ignored import folder as folder

ON = ["v100-fp32", "rtx-4090-amp"]
COMMANDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "predict": (lolat.predict, {"network": "net.json", "on": ON}),
    "cost": (lolat.compare, {"network": "net.json", "on": ON, "batch_size": 4, "samples": 1000}),
}
"""Command -> the function of Python, and a call of it."""
CONTEXT = click.Context(LEAVES["predict"])
FILES = {"json", "csv", "html", "now", "as_learned", "min_samples_per_s"}
"""Options for what a command reads and writes; measuring, of which `as_now` is a method of a model; and a
limit, with which Python compares `samples_per_s`.
"""


def options() -> list[tuple[str, click.Option]]:
    return [
        (name, param) for name in COMMANDS for param in LEAVES[name].params
        if isinstance(param, click.Option) and param.name not in FILES
    ]  # fmt: skip


OPTIONS = [pytest.param(name, param, id=f"{name} {param.opts[0]}") for name, param in options()]


@pytest.mark.parametrize(("command", "param"), OPTIONS)
def test_an_option_is_an_argument_with_the_same_answer(
    command: str, param: click.Option, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ask, usual = COMMANDS[command]
    known = {*inspect.signature(ask).parameters, *inspect.signature(Model.cost).parameters}
    name, option = str(param.name), next(o for o in param.opts if o in VALUES)
    text = VALUES[option]
    assert name in known
    value = text if name == "on" else param.is_flag or param.type_cast_value(CONTEXT, text)
    given = {**usual, name: value}
    if command == "predict" and name == "max_ms":  # of other sizes the command checks it
        given["batch_size"] = "auto"
    if name == "sure":  # a percentage of the command
        given |= {"sure": True, "coverage": float(text) / 100, "max_ms": 20.0, "batch_size": "auto"}
    own = {"network", "on", "input_size", name}
    words = [f"--{n.replace('_', '-')} {v}" for n, v in given.items() if n not in own]
    words = [w for w in words if "coverage" not in w or name == "coverage"]
    on = given["on"] if name == "on" else ",".join(ON)
    words.append(f"--on {on} {'' if name == 'on' else f'{option} {text}'}")
    code = run(commands, shlex.split(f"{command} net.json {' '.join(words)} --json"), "lolat")
    printed = capsys.readouterr()
    try:
        found = ask(**given)
    except LolatError as error:
        refused: LolatError | None = error
    else:
        refused = None
    if refused is not None:
        assert code == refused.exit_code, printed.err
        return
    named = {*given["on"].split(",")} if isinstance(given["on"], str) else {*given["on"]}
    assert code in ((2,) if getattr(found, "left_out", ()) and "all" not in named else (0, 3)), (
        printed.err
    )
    assert json.loads(json.dumps(found.to_dict())) == without_schema(printed.out)


def test_many_are_of_one_type_however_many(folder: Path) -> None:
    one = lolat.predict("net.json", on="v100")
    assert isinstance(one, lolat.Prediction)
    for given in (
        {"on": ["v100"]}, {"on": "v100", "batch_size": [1]}, {"on": "v100", "network": ["net.json"]},
        {"on": "v100,rtx-4090-amp", "precision": "fp32"}, {"on": "all", "precision": "fp32"},
    ):  # fmt: skip
        found = lolat.predict(**{"network": "net.json", **given})  # type: ignore[arg-type]
        assert isinstance(found, Predictions)
        assert any(p.latency_ms == one.latency_ms for p in found)
    costs = [lolat.compare("net.json", n, on=ON[:1], samples=100) for n in (4, [4], [4, 8])]
    assert {type(c).__name__ for c in costs} == {"Costs"}
    assert [len(c.answers) for c in costs] == [1, 1, 2]


@pytest.mark.parametrize(
    ("device", "mode"),
    [("a100", ("amp", True)), ("a100-fp32", ("fp32", None)), ("rtx-4090-amp", ("amp", False))],
)
def test_a_card_trains_in_its_fastest_mode_alone_as_beside_others(
    device: str, mode: tuple[str, bool | None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A profile that names its mode answers in that one. The command and Python say the same."""
    network = "timm:resnet18"
    asked = {"batch_size": 64, "samples": 10**5, "replicas": 1}
    alone = lolat.load(device).cost(network, **asked)
    words = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in asked.items())
    assert run(commands, shlex.split(f"cost {device} {network} {words} --json"), "lolat") == 0
    assert json.loads(json.dumps(alone.to_dict())) == without_schema(capsys.readouterr().out)
    assert (alone.precision, alone.channels_last) == mode
    (beside,) = lolat.compare(network, on=device, **asked).answers
    assert (beside.precision, beside.channels_last) == ("amp", True)
    assert (alone.options == beside.options) == (device == "a100")
    own = lolat.load(device).run_as("tf32").cost(network, **asked)
    assert own.precision == "tf32"
    assert ("its fastest" in alone.report()) == (device == "a100")
