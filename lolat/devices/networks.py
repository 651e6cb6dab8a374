"""A table of whole networks that somebody has timed: to fit a device to, or to judge a model by.

Also as timm's benchmark.py writes them (--results-file), and as timm publishes them.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lolat.errors import InputError
from lolat.modes import Mode
from lolat.points import open_text

NAMED = ("network", "model")
SIZES = ("sequence_length", "input_size", "pixels", "infer_img_size", "train_img_size")
BATCHES = ("batch_size", "infer_batch_size", "train_batch_size")
TIMES = ("latency_ms", "step_ms", "infer_step_time", "train_step_time")
MILLIONS = ("params_millions", "param_count")  # of parameters, as timm has them
MOST_BATCH = 2**20
LEAST_MS, MOST_MS = 1e-3, 1e7
ENCODERS = frozenset(["bert", "electra", "roberta"])
DISAGREE = 1.5  # times of the same, one after the other, that are further apart than this
EXPECTED = (
    "expected the columns network (or model), batch_size and latency_ms (or step_ms), and where known "
    "sequence_length or input_size (or pixels), dtype, channels_last, compiled, pass"
)


@dataclass(frozen=True)
class TimedNetwork:
    """One row: the network as `lolat.readers.read` takes it, its size, and how it was run; `parameters`:
    how many it has, where the table says so.
    """

    spec: str
    size: int | None
    batch_size: int
    latency_ms: float
    mode: Mode
    parameters: float | None
    where: str
    row: Mapping[str, str]

    @property
    def name(self) -> str:
        """As the table calls it."""
        return next(self.row[c] for c in NAMED if self.row.get(c))


@dataclass
class Table:
    """The rows of a table that are of one device, its columns, and why others are left out."""

    path: str
    columns: list[str]
    rows: list[TimedNetwork]
    skipped: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        """Count a row that is left out."""
        self.skipped[reason] = self.skipped.get(reason, 0) + 1

    def nothing(self) -> InputError:
        """The error where no row is left."""
        why = "; ".join(f"{n} x {r}" for r, n in self.skipped.items()) or "it has no rows"
        return InputError(f"{self.path}: no row could be used ({why}); {EXPECTED}")


def is_of_networks(columns: list[str]) -> bool:
    """Whether a table with these columns is one of networks."""
    return bool(set(NAMED) & set(columns)) and bool(set(TIMES) & set(columns))


def read_networks(
    path: str | Path, device: str | None = None, skip: bool = False, mode: Mode | None = None
) -> Table:
    """The rows of a table of networks; of `device` alone, where the table has that column.

    A network is a NETWORK as everywhere, a name of timm's where the column is called `model`, or a
    configuration of transformers of that name in the folder `networks` beside the table. How it was run
    is said by the columns dtype, compiled and channels_last, or else by the file's name, or else it is
    `mode`. InputError names the line that is wrong; `skip`: such lines are left out.
    """
    reader = csv.DictReader(open_text(path), strict=True)
    columns = [n.strip().lower() for n in reader.fieldnames or []]
    reader.fieldnames = columns
    if not is_of_networks(columns):
        raise InputError(f"{path} is no table of networks; {EXPECTED}")
    table = Table(str(path), columns, [])
    usual = Mode.of_file(Path(path).name, mode)
    if "train_step_time" in columns and "infer_step_time" not in columns:
        usual = replace(usual, training=True)
    try:
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            try:
                reason = _not_answered(row, device)
                if reason is None:
                    table.rows.append(_timed(row, where, path, usual))
            except InputError as error:
                if not skip:
                    raise
                reason = str(error).removeprefix(f"{where}: ")
            if reason is not None:
                table.skip(reason)
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}: {error}; expected a CSV table"
        ) from error
    return table


def _timed(row: Mapping[str, Any], where: str, path: str | Path, usual: Mode) -> TimedNetwork:
    if None in row or None in row.values():
        raise InputError(
            f"{where}: {'more' if None in row else 'fewer'} fields than the first line has names"
        )
    name = next((c for c in NAMED if row.get(c)), None)
    if name is None:
        raise InputError(f"{where}: names no network; {EXPECTED}")
    time = next(c for c in TIMES if c in row)
    batch = next((c for c in BATCHES if row.get(c)), None)
    size = next((c for c in SIZES if row.get(c)), None)
    ms = _number(row[time], time, where)
    if not LEAST_MS <= ms <= MOST_MS:
        raise InputError(
            f"{where}: {time} is {row[time][:40]}, which no network takes; are these seconds? expected "
            "milliseconds"
        )
    mode = usual.of_row(row, where)
    millions = next((c for c in MILLIONS if row.get(c)), None)
    return TimedNetwork(
        _spec(row[name].strip(), path, name == "model", mode.training),
        None if size is None else _whole(row[size], size, where, MOST_BATCH),
        1 if batch is None else _whole(row[batch], batch, where, MOST_BATCH),
        ms,
        mode,
        None if millions is None else 1e6 * _number(row[millions], millions, where),
        where,
        row,
    )


def contradictions(rows: list[TimedNetwork]) -> Iterator[tuple[TimedNetwork, TimedNetwork]]:
    """Rows of the same network, size, batch and mode whose times are more than DISAGREE apart."""
    seen: dict[Any, TimedNetwork] = {}
    for row in rows:
        first = seen.setdefault((row.spec, row.size, row.batch_size, row.mode), row)
        ratio = first.latency_ms / row.latency_ms
        if max(ratio, 1.0 / ratio) > DISAGREE:
            yield first, row


def family_of(name: str) -> str:
    """The architecture's family by its name: letters before the first digit or underscore."""
    plain = name.rpartition("/")[2].partition(":")[2] or name.rpartition("/")[2]
    plain = re.sub(r"^(tf|legacy|gluon|test|tv|ssl|swsl|dm)_", "", plain.lower())
    return re.split(r"[\d_.?-]", plain)[0] or plain


def _not_answered(row: Mapping[str, Any], device: str | None) -> str | None:
    """Why a model of one device does not answer a row; None where it does."""
    if device is not None and row.get("device") not in (None, device):
        return "of another device"
    return "on several devices" if row.get("parallel") else None


def _spec(name: str, path: str | Path, of_timm: bool, training: bool) -> str:
    config = Path(path).parent / "networks" / f"{name}.json"
    if config.is_file():
        # An encoder is trained with the heads that it is made for; for inference it classifies.
        return f"transformers:{config}" + "?AutoModelForPreTraining" * (
            training and encodes(config)
        )
    return f"timm:{name}" if of_timm and ":" not in name else name


def encodes(config: Path) -> bool:
    """Whether a configuration of transformers is of an encoder, as BERT."""
    try:
        found = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # said when it is read
        return False
    return isinstance(found, dict) and found.get("model_type") in ENCODERS


def _whole(text: str, column: str, where: str, most: int) -> int:
    value = _number(text, column, where)
    if value != int(value) or value > most:
        raise InputError(
            f"{where}: {column} is {text[:40]!r}; expected a whole number from 1 to {most}"
        )
    return int(value)


def _number(text: str, column: str, where: str) -> float:
    try:
        value = float(text)
    except (TypeError, ValueError):
        value = math.nan
    if not 0.0 < value < math.inf:
        raise InputError(f"{where}: {column} is {text[:40]!r}; expected a number above 0")
    return value
