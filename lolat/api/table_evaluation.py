"""Compares a profile with a table of measured times; measures nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType

from lolat.api.table_rows import COMPARE, Compared, Comparison, fitted_rows
from lolat.device.question import TableQuestion
from lolat.errors import InputError, arg, argument_code
from lolat.hardware.card_names import card_of, find_gpu
from lolat.io.results import Result, plain_data
from lolat.io.tables import Row, say_unread, to_csv
from lolat.tables.contents import BLOCKS, NETWORKS, RUNS, Content, content_of, content_of_columns
from lolat.tables.copies import unique
from lolat.tables.left_out import LeftOut
from lolat.tables.networks import TimedNetwork
from lolat.units import digits, percent, plain, plural

if TYPE_CHECKING:
    from lolat.api.model import Model

BY_CHANCE = 0.1
"""Up to this share, rows of an independent table agree with fitted rows in four digits by chance."""
UNIT_OFF = (100.0, 10_000.0)
"""Times this far off, by less than 10 times from 1000, look like times in another unit."""
PREDICTED = ("predicted_ms", "low_ms", "high_ms")


Rows = list[dict[str, Any]] | UnsetType


@dataclass(frozen=True, repr=False)
class TableEvaluation(Result):
    """The times in a table compared with the predictions.

    `content`: "networks", "operations", "blocks", "served" or "runs"; in JSON the key of this name has the
    table's rows, with latency_ms, predicted_ms, interval_ms and in_domain. `summary`: relative errors, and
    the number of rows. `skipped`: reason -> number of skipped rows. `warnings`: remarks on the table.
    """

    KEYS = ("networks", "operations", "blocks", "served", "runs", "summary", "skipped", "warnings")

    content: str
    compared: list[Compared]
    left_out: LeftOut
    columns: Sequence[str]
    warnings: tuple[str, ...]
    networks: Rows = UNSET
    operations: Rows = UNSET
    blocks: Rows = UNSET
    served: Rows = UNSET
    runs: Rows = UNSET

    @property
    def skipped(self) -> Mapping[str, int]:
        """Reason -> number of rows that were skipped."""
        return self.left_out.reasons

    @property
    def summary(self) -> dict[str, float]:
        """The relative errors of the rows: mean, median, bias, shares within 10 % and the interval."""
        off = [c.error for c in self.compared]
        known = [(c.latency_ms, c.interval_ms) for c in self.compared if c.interval_ms is not None]
        return {
            self.content: len(off),
            "mean": sum(map(abs, off)) / len(off),
            "median": median(map(abs, off)),
            "bias": median(off),
            "within_10": sum(abs(o) <= 0.1 for o in off) / len(off),
            "inside": sum(low <= ms <= high for ms, (low, high) in known),
            "intervals": len(known),
        }

    def words(self) -> str:
        """The median error of the predictions."""
        return (
            f"{len(self.compared)} {self.content}: median error {percent(self.summary['median'])}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """The table's rows, with latency_ms, predicted_ms, interval_ms and in_domain added."""
        rows: list[dict[str, Any]] = getattr(self, self.content)
        return rows

    def to_csv(self) -> str:
        """The table's rows as CSV text, with the columns predicted_ms, low_ms and high_ms added."""
        more = dict.fromkeys(name for c in self.compared for name in c.more)
        rows = (
            [*map(c.row.get, self.columns), c.predicted_ms, *(c.interval_ms or ("", "")),
             *map(c.more.get, more)]
            for c in self.compared
        )  # fmt: skip
        return to_csv([*self.columns, *PREDICTED, *more], rows)


def evaluate_table(model: Model, tables: Sequence[str], question: TableQuestion) -> TableEvaluation:
    """Compare predictions with the times in tables: see `Model.evaluate_table`."""
    if question.training and question.predictor:
        raise InputError(
            f"{arg('predictor')} is for a forward pass, and {arg('training')} compares training steps; "
            "give one of them",
            code="predictor",
        )
    remarks, left_out, compared = list[str](), LeftOut(), list[Compared]()
    asked = [Comparison(path, question, remarks.append, left_out) for path in tables]
    contents = {one.path: _content_of(one) for one in asked}
    if len({*contents.values()}) != 1:
        kinds = ", ".join(f"{plain(path)} ({one.name})" for path, one in contents.items())
        raise InputError(f"{arg('table')} {kinds}: expected tables of one kind", code="content")
    for one in asked:
        _refuse_ignored(one, contents[one.path])
    content, model = contents[asked[0].path], model.run_as(question.precision)
    for one in asked:
        found = COMPARE[content](model, one)
        remarks += _other_devices_remark(model, found, one.path)
        remarks += _other_unit_remark(found, one.path) if content != RUNS else []
        compared += found
    if content != NETWORKS:
        say_unread((row.row for row in compared if isinstance(row.row, Row)), remarks.append)
    compared = unique([((r.timed.name, *r.row.items()), r) for r in compared], remarks.append)
    remarks += _fitted_rows_remark(model, compared, tables)
    names = ("latency_ms", "predicted_ms", "interval_ms", "in_domain")
    rows = [
        {
            **c.row,
            **_batch_size_entry(c),
            **{name: plain_data(getattr(c, name)) for name in names},
            **c.more,
        }
        for c in compared
    ]
    columns = tuple(dict.fromkeys(name for row in compared for name in row.row))
    return TableEvaluation(
        content.key, compared, left_out, columns, tuple(remarks), **{content.key: rows}
    )


def _batch_size_entry(row: Compared) -> dict[str, int]:
    """{"batch_size": number} if the row of a network has a batch size, else {}."""
    if isinstance(row.timed, TimedNetwork) and "batch_size" in row.row:
        return {"batch_size": row.timed.batch_size}
    return {}


def _content_of(asked: Comparison) -> Content:
    """The content of a file; InputError if it is of a kind that cannot be compared."""
    given = asked.given
    content = content_of(asked.path) if given is None else content_of_columns(given.names)
    if content not in COMPARE:
        expected = ", ".join(known.name for known in COMPARE)
        raise InputError(
            f"{plain(asked.path)} has {content.name}; expected a table of {expected}",
            code="content",
        )
    return content


def _other_devices_remark(model: Model, compared: Sequence[Compared], table: str) -> list[str]:
    """A remark on rows of another device than the profile's, by device column or name of the table."""
    own, hardware = model.file.product, model.file.kind
    found = dict.fromkeys(filter(None, (row.row.get("device") for row in compared)))
    card = None if found else card_of(Path(table).stem)
    if card and card != card_of(hardware):
        return [f"by its name the table is of {card}, the predictions are of {own}"]
    gpu = find_gpu(hardware)
    same = {own, model.name, *(name for name in found if gpu and find_gpu(name) == gpu)}
    others = [name for name in found if name not in same]
    return [f"the times are of {', '.join(others)}, the predictions of {own}"] if others else []


def _other_unit_remark(compared: Sequence[Compared], table: str) -> list[str]:
    """A remark on times that are about a thousand times off, as those in seconds or microseconds are."""
    off = median(row.predicted_ms / row.latency_ms for row in compared)
    low, high = UNIT_OFF
    if low < max(off, 1.0 / off) < high:
        unit, mend = ("seconds", "multiply") if off > 1.0 else ("microseconds", "divide")
        way = f"{digits(max(off, 1.0 / off))} times {'shorter' if off > 1.0 else 'longer'}"
        return [
            f"{plain(table)}: the times look like {unit}: half of them are {way} than predicted, or more; "
            f"if they are, {mend} them by 1000: expected milliseconds"
        ]
    return []


def _fitted_rows_remark(
    model: Model, compared: Sequence[Compared], tables: Sequence[str]
) -> list[str]:
    """A remark on rows that the profile was fitted to, or on their tables if the profile stores no rows."""
    known = fitted_rows(model)
    again = sum(getattr(row.timed, "key", "") in known for row in compared)
    sources = model.file.environment.sources
    by_name = [name for name in (Path(table).name for table in tables) if name in sources]
    if again <= BY_CHANCE * len(compared) and (known or not by_name):
        return []
    what = f"{again} of the {plural(len(compared), 'row')}" if again else f"a table {by_name[0]}"
    return [
        f"{model.label} was fitted to {what}: errors of rows that it was fitted to are smaller than others "
        f"(`lolat show {model.label}` has those of rows left out)"
    ]


def _refuse_ignored(asked: Comparison, content: Content) -> None:
    """Raise InputError for an option that does not apply to the rows of a table."""
    table, columns = asked.path, () if asked.given is None else asked.given.names
    if content == BLOCKS and "acts" not in columns:
        return  # of no known kind, as its reader says
    for name in ("only", "predictor", "precision", "training", "tensor_parallel", "served_model"):
        no_device = name == "only" and "device" not in columns
        if getattr(asked.question, name) and (no_device or name not in content.takes):
            lacks = " and no column device" if no_device else ""
            raise InputError(
                f"{plain(table)} has {content.name}{lacks}, to which {arg(name)} does not apply; leave "
                "it out, or give a table that it is for",
                code=argument_code(name),
            )
