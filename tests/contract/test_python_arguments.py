"""Each argument that a public call takes changes its answer, is refused, or is told: none is ignored."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import lolat
from lolat.api.model import Model
from lolat.errors import InputError, LolatError
from lolat.parameters import PARAMETERS
from tests.contract import test_nothing_ignored as options
from tests.contract.test_nothing_ignored import folder as folder

OTHERS = {
    "acts": 2e6, "inp": 3e6, "flops": 4e8, "traffic": 5e6, "weights": 6e5, "ops": 7, "config": "small",
    "network": "slow.json", "networks": "slow.json", "device": "gpu", "options": ["threads=1"],
    "samples": 5000, "space": "fbnet", "model": "other", "tables": "three.csv", "path": "gpu.json",
    "input_size": 64, "batch_size": 8, "predictor": "two-regime", "backend": "torch",
    "prices": "prices.csv", "name": "t4", "facts": "other_facts.csv", "restart": True, "training": True,
    "sure": True, "tensor_parallel": 2, "objective": "other_scores.csv", "among": "few.csv",
    "table": "none.csv",
}  # fmt: skip
"""Argument -> a value that differs from the usual one; else that of the option of that name."""
TOLD = ("progress", "on_progress", "warn", "asked")
"""Arguments that are told what goes on, which changes no answer; `asked`: those of `Model.cost`."""
ELSEWHERE = {
    "a graph network": "another one is another question",
    "llm of gpu.json percentile": "without limits: the printed columns, as the answer has all percentiles",
    "llm of gpu.json prices": "a list that lacks the device is not told yet",
    "nas.fit samples": "a table, which has no other value here",
    "learn wait": "a moment to begin at, which its progress is told",
}
"""Arguments that this test does not judge, and why."""
FEW = {"objective": "user_made:score", "candidates": 9, "space": "user_made:space"}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    **{f"{name} of {model}": (getattr(Model, name), {"self": model, **given})
       for model in ("desk.json", "rtx-4090-amp", "three.json", "gpu.json", "cells.json", "epyc-2t")
       for name, given in {
           "predict": {"network": "net.json"},
           "explain": {"network": "net.json"},
           "budget": {"network": "net.json", "max_ms": 300.0, "vary": "batch"},
           "cost": {"network": "net.json", "batch_size": 4, "samples": 1000, "price_per_hour": 2.0,
                    "replicas": [1, 2]},
           "llm": {"config": "config.json"},
           "evaluate_table": {"table": "networks.csv"},
           "run_as": {},
       }.items()},
    "predict_counts": (Model.predict_counts, {"self": "desk.json", "acts": 1e6, "inp": 1e6, "flops": 1e8,
                                              "traffic": 1e6, "weights": 1e5, "ops": 9}),
    "a graph": (Model.predict, {"self": "desk.json", "network": "read"}),
    "predict on": (lolat.predict, {"network": "net.json", "on": "v100"}),
    "compare": (lolat.compare, {"network": "net.json", "on": ["v100"], "batch_size": 4, "samples": 1000}),
    "fit": (lolat.fit, {"tables": "networks.csv", "name": "v100", "facts": "facts.csv"}),
    "fit a sheet": (lolat.fit, {"name": "RTX 4080"}),
    "learn": (lolat.learn, {}),
    "nas.fit": (lolat.nas.fit, {"space": "nasbench201", "samples": "cells.csv"}),
    "nas.search": (lolat.nas.search, {**FEW, "candidates": 5, "model": "rtx-4090-amp"}),
    "nas.search, a table": (lolat.nas.search, {"space": "nasbench201", "model": "cells.json",
                                               "objective": "scores.csv"}),
    "nas.rank": (lolat.nas.rank, {"space": "nasbench201", "model": "cells.json", "output": "all.csv",
                                    "among": "archs.csv"}),
}  # fmt: skip


def value_of(name: str) -> Any:
    """Another value of an argument."""
    if name in OTHERS:
        return OTHERS[name]
    text = options.VALUES["--" + name.replace("_", "-")]
    try:
        return ast.literal_eval(text) if text else True
    except (SyntaxError, ValueError):
        return text


def answered(call: Callable[..., Any], given: dict[str, Any], here: Path) -> Any:
    """The answer as plain data, and the files; the error of a refusal."""
    given = dict(given)
    if "self" in given:
        given["self"] = lolat.load(given["self"])
    if given.get("network") == "read":
        given["network"] = lolat.read("net.json")
    before = {*here.rglob("*")}
    try:
        found = call(**given)
    except LolatError as error:
        return error
    new = sorted(p for p in {*here.rglob("*")} - before if "__pycache__" not in p.parts)
    files = [(p.name, p.read_bytes()) for p in new]
    for path in new:
        path.unlink()
    if isinstance(found, Model):
        found = {
            **found.file.document,
            "way": [*vars(found.asked).values()],
        }
    elif hasattr(found, "to_dict"):
        found = found.to_dict()
    elif hasattr(found, "section"):
        found = repr(found.section)
    return json.loads(json.dumps(found)), files


@pytest.mark.parametrize("name", CALLS)
def test_no_argument_is_ignored(name: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    call, given = CALLS[name]
    answered(call, given, folder)  # what is told but once is told now
    capfd.readouterr()
    usual, told = answered(call, given, folder), capfd.readouterr()
    if isinstance(usual, LolatError):
        return  # such a file has no answer to this question
    ignored = []
    for argument in inspect.signature(call).parameters:
        if argument in ("self", *TOLD) or f"{name} {argument}" in ELSEWHERE:
            continue
        other = options.OF_MODEL.get(str(given.get("self")), {}).get(f"--{argument}")
        changed = answered(call, {**given, argument: other or value_of(argument)}, folder)
        printed = capfd.readouterr()
        if not isinstance(changed, LolatError):
            one, two = (json.dumps(options.without(a[0], argument)) for a in (usual, changed))
            if (one, usual[1], told) == (two, changed[1], printed):
                ignored.append(argument)
    assert ignored == []


EVERY = {**CALLS, "evaluate": (Model.evaluate, {"self": "desk.json"})}
"""Each public call with arguments; one that measures is not made, but refuses."""
WRONG = {
    "flag": ("no", "True", 1, 0.0, 99),
    "sure": ("no", "95", 0, 0.95, 1, 100, float("nan")),
}
"""Values that no flag has, and that are no certainty: True, False, or a percentage above 1 below 100."""


@pytest.mark.parametrize("name", EVERY)
def test_a_flag_is_a_bool_and_a_certainty_one_or_a_percentage(name: str, folder: Path) -> None:
    call, given = EVERY[name]
    for argument, one in inspect.signature(call).parameters.items():
        kind = "flag" if isinstance(one.default, bool) else argument
        for value in WRONG.get(kind, ()):
            found = answered(call, {**given, argument: value}, folder)
            assert isinstance(found, InputError), (argument, value)
            assert (argument in str(found), "expected" in str(found)) == (True, True)
            assert repr(value) in str(found)


def test_each_flag_is_declared() -> None:
    of_calls = (
        one for call, _ in EVERY.values() for one in inspect.signature(call).parameters.values()
    )
    flags = {one.name for one in of_calls if isinstance(one.default, bool)}
    declared = {name for name, one in PARAMETERS.items() if one.kind is bool}
    assert flags == declared >= {"channels_last", "lower_is_better", "restart", "training", "wait"}
    with pytest.raises(InputError, match="channels_last 'no': expected True or False"):
        lolat.compare("net.json", 4, on="v100", channels_last="no")


TYPES = {
    "tune": (["lora:16", "full"], 16), "prices": (pd.DataFrame({"Price": [1.0]}), 2.0),
    "arrivals": ([0.1, 0.2], pd.DataFrame({"arrival_s": [0.1]}), 3), "predictor": (["extended"],),
    "tensor_parallel": ("1", True, 0), "framework": (["vllm"],), "block": (1,),
}  # fmt: skip
"""Values of types that no argument of the name takes."""


@pytest.mark.parametrize("name", [n for n in EVERY if n != "predict_counts"])  # has microseconds
def test_a_value_of_another_type_is_refused(name: str, folder: Path) -> None:
    """It is an error of LoLat's with the argument's name, not Python's TypeError."""
    call, given = EVERY[name]
    for argument in inspect.signature(call).parameters:
        for value in TYPES.get(argument, ()):
            found = answered(call, {**given, argument: value}, folder)
            assert isinstance(found, LolatError), (argument, value)
            if argument != "predictor":  # a file or a table that has no answer says so first
                assert argument in str(found) or "no latencies" in str(found)


def questions() -> Iterator[str]:
    """The public methods of a model that have arguments beside `progress`."""
    for name, method in inspect.getmembers(Model, inspect.isfunction):
        if {*inspect.signature(method).parameters} - {"self", "progress"} and name[0] != "_":
            yield name


def test_every_public_call_is_covered() -> None:
    """A new question that nobody covers fails here; a new argument without a value in `value_of`."""
    asked = {call.__name__ for call, _ in CALLS.values()}
    # Measured: tests/cli; drawn: tests/report; the report of a device takes no arguments.
    assert {*questions()} - asked == {"predictor", "evaluate", "plot", "report"}
    assert {"fit", "learn", "search", "rank"} <= asked
    for call, _ in CALLS.values():
        for argument in inspect.signature(call).parameters:
            assert argument in ("self", *TOLD) or value_of(argument) is not None


@pytest.mark.parametrize(
    ("value", "meant"),
    [((3, 512, 512), (3, 512, 512)), (pd.DataFrame([[1, 2, 3]]).to_numpy(), (3,))],
)
def test_an_input_in_the_place_of_the_batch_size(value: Any, meant: tuple[int, ...]) -> None:
    """`lolat.read` takes the size behind the network, `predict` the batch size."""
    with pytest.raises(InputError) as error:
        lolat.load("rtx-4090").predict("timm:resnet50", value)
    assert f"did you mean input_size={meant}?" in str(error.value)
    assert (error.value.code, "\n" in str(error.value)) == ("batch-size", False)
