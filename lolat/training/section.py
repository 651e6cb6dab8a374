"""What a model file says of training, read and checked: coefficients, errors, what was measured."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.checks import show
from lolat.training.passes import PASS_TERMS

LARGEST = 1e300  # a float holds it


@dataclass(frozen=True)
class Section:
    """Of one device, all times in ms.

    `forward`, `backward`: (PASS_TERMS,) for each unit, without the call of a block measured alone;
    `update`: optimiser -> for each variable and each parameter; `loop`: for each epoch, each step, each
    input element of a step; `start`: a constant and for each operation, None where it could not be
    measured; `start_variable`: optimiser -> for each variable; `kinds`: of operation, as
    `lolat.counts.behaviours` names them; `entry`: residuals and interval, as `lolat.intervals` reads them;
    `floor`: the noise floor, relative.
    """

    forward: np.ndarray
    backward: np.ndarray
    update: Mapping[str, Mapping[str, float]]
    loop: Mapping[str, float]
    start: Mapping[str, float] | None
    start_variable: Mapping[str, float]
    kinds: frozenset[str]
    entry: Mapping[str, Any]
    floor: float


def read_section(document: Any) -> Section:
    """Read "training" of a model file; ValueError names the field that is missing or wrong."""
    section = _object(document, "training")
    updates = _object(section.get("update_ms"), "update_ms")
    if not updates:
        raise ValueError("`update_ms` has no optimiser")
    start, variable = section.get("start_ms"), {}
    if start is not None:
        found = _object(_object(start, "start_ms").get("variable"), "start_ms.variable")
        variable = _numbers(found, list(found), "start_ms.variable")
    return Section(
        _coefficients(section.get("forward_ms"), "forward_ms"),
        _coefficients(section.get("backward_ms"), "backward_ms"),
        {
            n: _numbers(own, ("variable", "parameter"), f"update_ms.{n}")
            for n, own in updates.items()
        },
        _numbers(section.get("loop_ms"), ("epoch", "step", "element"), "loop_ms"),
        None if start is None else _numbers(start, ("constant", "operation"), "start_ms"),
        variable,
        frozenset(map(str, _list(section.get("kinds"), "kinds"))),
        _errors(section),
        _number(_object(section.get("noise"), "noise").get("floor", 0.0), "noise.floor"),
    )


def _errors(section: Mapping[str, Any]) -> Mapping[str, Any]:
    """The section, whose errors of left-out blocks are numbers."""
    for residual in _list(section.get("residuals"), "residuals"):
        _number(residual, "residuals", -math.inf)
    if "interval" in section:
        interval = _object(section["interval"], "interval")
        _number(interval.get("exponent"), "interval.exponent")
        for field in ("ops", "scores"):
            for number in _list(interval.get(field), f"interval.{field}"):
                _number(number, f"interval.{field}")
        if len(interval["ops"]) != 2:
            raise ValueError(f"`interval.ops` is {show(interval['ops'])}, not two numbers")
    return section


def _coefficients(value: Any, field: str) -> np.ndarray:
    """(PASS_TERMS,), 0 where not named, `call` left out; ValueError for a term that is not known."""
    named = _object(value, field)
    unknown = [t for t in named if t not in PASS_TERMS and t != "call"]
    if unknown:
        raise ValueError(f"`{field}` has the unknown term {show(unknown[0])}")
    return np.array([_number(named.get(t, 0.0), f"{field}.{t}") for t in PASS_TERMS])


def _numbers(value: Any, fields: Sequence[str], field: str) -> dict[str, float]:
    named = _object(value, field)
    return {f: _number(named.get(f), f"{field}.{f}") for f in fields}


def _object(value: Any, field: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"`{field}` is {_given(value)}, not an object")
    return value


def _list(value: Any, field: str) -> Sequence[Any]:
    if not isinstance(value, list):
        raise ValueError(f"`{field}` is {_given(value)}, not a list")
    return value


def _number(value: Any, field: str, least: float = 0.0) -> float:
    """A finite number of at least `least`, or ValueError."""
    good = isinstance(value, int | float) and not isinstance(value, bool)
    if not good or not abs(value) <= LARGEST or value < least:  # neither NaN nor infinite
        expected = "a number of 0 or more" if least == 0.0 else "a number"
        raise ValueError(f"`{field}` is {_given(value)}, not {expected}")
    return float(value)


def _given(value: Any) -> str:
    return "missing" if value is None else show(value)
