"""Epochs that somebody timed, from a CSV table: network, batch_size, samples, optimizer, epoch_s."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from lolat.errors import InputError
from lolat.training.optimizers import optimizer_named
from lolat.training.sizes import check_sizes

REQUIRED = ("network", "batch_size", "samples", "optimizer", "epoch_s")


@dataclass(frozen=True)
class Epoch:
    """One timed epoch; `line` says where it stands in its table."""

    network: str
    batch_size: int
    samples: int
    optimizer: str
    epoch_s: float
    line: int


def read_epochs(path: str | Path) -> list[Epoch]:
    """The rows of a table; other columns are ignored, names of columns may be in capitals.

    InputError names what is wrong and its line: a missing column, no rows, a number that is none or not
    above 0, a batch larger than the data set, an optimiser that is not known.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            reader.fieldnames = columns = [c.strip().lower() for c in reader.fieldnames or []]
            missing = [c for c in REQUIRED if c not in columns]
            if missing:
                raise InputError(
                    f"{path} lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)}; "
                    f"expected a first line with {','.join(REQUIRED)}"
                )
            found = [
                _epoch(row, f"{path}, line {reader.line_num}", reader.line_num) for row in reader
            ]
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror or error}; expected a CSV table with the columns "
            f"{','.join(REQUIRED)}"
        ) from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is not a CSV table in UTF-8: {error}") from error
    if not found:
        raise InputError(f"{path} has no rows; expected one per timed epoch")
    return found


def _epoch(row: dict[str, str | None], where: str, line: int) -> Epoch:
    cells = {c: (row[c] or "").strip() for c in REQUIRED}
    if not cells["network"]:
        raise InputError(f"{where}: network is empty; expected such as keras:ResNet50")
    batch_size, samples = (_whole(cells[c], c, where) for c in ("batch_size", "samples"))
    try:
        check_sizes(batch_size, samples, 1)
        optimizer = optimizer_named(cells["optimizer"]).name
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    seconds = _number(cells["epoch_s"])
    if not 1e-9 <= seconds <= 1e12:
        raise _wrong(cells["epoch_s"], "epoch_s", where, "a time above 0, in seconds")
    return Epoch(cells["network"], batch_size, samples, optimizer, seconds, line)


def _whole(text: str, column: str, where: str) -> int:
    value = _number(text)
    if not (1 <= value <= 2**53 and value == int(value)):
        raise _wrong(text, column, where, "a whole number from 1")
    return int(value)


def _number(text: str) -> float:
    """The number that a cell holds, NaN for none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def _wrong(text: str, column: str, where: str, expected: str) -> InputError:
    given = f"is {text!r}" if text else "is empty"
    return InputError(f"{where}: {column} {given}; expected {expected}")
