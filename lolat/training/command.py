"""The command that asks for a single row of a comparison of trainings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import fields
from shlex import quote
from typing import Any

from lolat.graph.modes import COMPILED, EAGER
from lolat.hardware.prices import Prices
from lolat.readers.size import as_size
from lolat.training.cost import Cost
from lolat.training.prediction import TrainingPrediction
from lolat.training.question import TrainingQuestion
from lolat.units import plain


def command_of(cost: Cost, option: TrainingPrediction) -> str:
    """The command that shows one row alone, with the same figures; "" if the network is a Python object."""
    if cost.question is None or not isinstance(cost.question.network, (str, os.PathLike)):
        return ""
    words = [cost.profile, os.fspath(cost.question.network)]
    size = as_size(cost.question.asked.input_size).options
    return (
        f"lolat cost {' '.join(quote(plain(word)) for word in words)}{size}{_options(cost, option)}"
    )


def _options(cost: Cost, option: TrainingPrediction) -> str:
    """The command-line options of a row: its way to run, then further arguments of the question."""
    is_launched = cost.launch not in (None, EAGER) or COMPILED in cost.profile
    row: dict[str, Any] = {
        "precision": cost.precision,
        "launch": cost.launch if is_launched else None,
        "channels_last": cost.channels_last and cost.launch == EAGER,
        "batch_size": option.batch_size,
        "replicas": option.devices if option.devices > 1 else None,
        "accumulate": cost.accumulate if cost.accumulate > 1 else None,
        "checkpointing": cost.question and cost.question.asked.checkpointing and cost.checkpointing,
    }
    given = dict(_given(cost.question.asked)) if cost.question else {}
    each = row | {name: value for name, value in given.items() if name not in row}
    words = ((f" --{name.replace('_', '-')}", value) for name, value in each.items() if value)
    return "".join(name if value is True else f"{name} {_word(value)}" for name, value in words)


def _given(asked: TrainingQuestion) -> Iterator[tuple[str, Any]]:
    """(argument, value) of each argument of a question that is not the default."""
    for field in fields(asked):
        value = getattr(asked, field.name)
        if value == field.default or field.name in ("global_batch_size", "input_size"):
            continue
        if field.name == "prices" and isinstance(value, Prices):
            value = value.file
        if field.name == "coverage" and asked.sure:
            continue
        if field.name == "sure" and asked.coverage is not None:
            if not asked.sure:
                continue
            value = 100 * asked.coverage
        yield field.name, value


def _word(value: Any) -> str:
    return quote(plain(value)) if isinstance(value, str) else f"{value:.15g}"
