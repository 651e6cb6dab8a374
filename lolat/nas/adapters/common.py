"""A space's tables in milliseconds, by the choices that they depend on, for one model and batch size."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.errors import InputError, MissingPackageError
from lolat.fitting.predictors.formula import Formula
from lolat.fitting.predictors.two_regime import TwoRegime
from lolat.graph.counts import COLUMNS
from lolat.model import Model
from lolat.nas.space import Position, Space

# ---- Imports the package that an adapter is for, or says how to install it.


def needed(module: str, what: str, install: str) -> Any:
    """A module of a package, imported; MissingPackageError where it is missing or does not import.

    `what`: the name that people know it by; `install`: what pip has to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"{what} is needed for this and cannot be imported ({error}); install it with: "
            f"pip install '{install}'"
        ) from error


# ---- Candidates as what other tools hold: values by the name of their position.


def row_of(space: Space, values: Mapping[str, Any]) -> np.ndarray:
    """(positions,) integers of the candidate with these values; names that the space lacks are left out.

    A position with one choice needs none. InputError for a position without a value, or with a value
    that it does not have.
    """
    found = []
    for position in space.positions:
        if position.name not in values:
            if len(position.choices) == 1:
                found.append(0)
                continue
            raise InputError(
                f"no value for {position.name!r} of space {space.name!r}; expected one of "
                f"{shown(position.choices)}"
            )
        value = values[position.name]
        matching = [i for i, c in enumerate(position.choices) if same(c, value)]
        if not matching:
            raise InputError(
                f"{position.name!r} is {value!r}; expected one of {shown(position.choices)}"
            )
        found.append(matching[0])
    return np.array(found, np.int64)


def same(choice: Any, value: Any) -> bool:
    """Whether a value is a choice: equal, and not a number where that is True or False."""
    return bool(choice == value) and isinstance(choice, bool) == isinstance(value, bool)


def shown(choices: tuple[Any, ...]) -> str:
    """Choices as they stand in a message."""
    text = ", ".join(map(repr, choices[:12]))
    return text if len(choices) <= 12 else f"{text}, ..."


# ---- milliseconds ----------------------------------------


@dataclass(frozen=True)
class Milliseconds:
    """Latency of a candidate: `constant` plus an entry of each table, then the formula's `bend`.

    `tables`: positions -> milliseconds, with an axis for each of the positions in this order.
    """

    name: str
    positions: tuple[Position, ...]
    tables: dict[tuple[int, ...], np.ndarray]
    constant: float
    formula: Formula
    batch_size: int


def milliseconds(
    space: Space, model: Model, batch_size: int = 1, predictor: str | None = None
) -> Milliseconds:
    """The tables of `space` on the device of `model`. InputError as `Space.scorer`.

    A position with one choice has no axis: it changes nothing.
    """
    formula = model.predictor(predictor)
    columns = [COLUMNS.index(f) for f in formula.features]
    slopes = np.asarray(formula.coefficients)
    constant = formula.constant
    tables: dict[tuple[int, ...], np.ndarray] = {}
    for table, counts in zip(space.tables, space.table_counts(batch_size), strict=True):
        times = counts[..., columns] @ slopes
        chosen = [a for a, p in enumerate(table.positions) if len(space.positions[p].choices) > 1]
        times = times.reshape([times.shape[a] for a in chosen])
        positions = tuple(table.positions[a] for a in chosen)
        if positions:
            tables[positions] = tables[positions] + times if positions in tables else times
        else:
            constant += float(times)
    return Milliseconds(space.name, space.positions, tables, constant, formula, batch_size)


def bent(formula: Formula, time: Any, where: Callable[[Any, Any, Any], Any]) -> Any:
    """`Formula.bend` on a framework's tensor, by its `where(condition, yes, no)`."""
    if isinstance(formula, TwoRegime):
        below = formula.breakpoint - formula.slope * (formula.breakpoint - time)
        return where(time < formula.breakpoint, below, time)
    return time
