"""Which operations tell most: judged by what is then known of a made-up device."""

from __future__ import annotations

import csv
import io
import random
from pathlib import Path

import numpy as np
import pytest

from lolat.devices import TimedOperation, read_operations
from lolat.devices.fit import MIDDLING, drawn, fit_kernels, predicted, suggested, table
from lolat.devices.from_tables import Timed, read_facts
from lolat.graph.modes import Mode
from tests.devices import made_up


def error_after(rows: list[TimedOperation], facts: Path) -> float:
    """Of large operations that were not timed, where `rows` were."""
    formula = fit_kernels(Timed(rows, [], Mode()).times, read_facts(facts, "desk"))
    other = facts.parent / "other.csv"
    other.write_text("\n".join([made_up.COLUMNS, *made_up.rows(seed=9, number=100)]) + "\n")
    times = Timed([r for r in read_operations(other) if r.latency_ms > 1.0], [], Mode()).times
    return float(np.median(np.abs(predicted(formula, times) / times.latency_ms - 1)))


def test_ten_suggested_ones_tell_more_than_ten_at_random(tmp_path: Path) -> None:
    operations, facts = made_up.write_tables(tmp_path, seed=4)
    facts.write_text(made_up.FACTS.replace("9400", "14000"))  # a data sheet that is far off
    rows = read_operations(operations)
    best = [rows[i] for i in suggested(rows, 10, read_facts(facts, "desk"))]
    at_random = [error_after(random.Random(seed).sample(rows, 10), facts) for seed in range(8)]
    assert error_after(best, facts) <= np.median(at_random)


def test_each_is_chosen_once_and_the_first_ones_do_not_depend_on_how_many() -> None:
    candidates = drawn(60, seed=2)
    all_of_them = suggested(candidates, 100, MIDDLING)
    assert sorted(all_of_them) == list(range(60))
    assert suggested(candidates, 7, MIDDLING) == all_of_them[:7]


def test_equal_operations_are_not_timed_again_and_again() -> None:
    dense = [c for c in drawn(100, seed=5) if c.name == "linear"]
    candidates = dense[:1] * 10 + dense[1:6]
    found = suggested(candidates, 5, MIDDLING)
    assert sum(i < 10 for i in found) <= 1


def test_the_table_is_read_again(tmp_path: Path) -> None:
    candidates = drawn(12, seed=6)
    text = table([c.row for c in candidates])
    assert "latency_ms" not in text
    rows = list(csv.DictReader(io.StringIO(text)))
    path = tmp_path / "timed.csv"
    with path.open("w") as file:
        writer = csv.DictWriter(file, [*rows[0], "latency_ms"])
        writer.writeheader()
        writer.writerows({**row, "latency_ms": "1"} for row in rows)
    again = read_operations(path)
    assert [(o.name, o.graph.to_dict(), o.batch_size) for o in again] == [
        (o.name, o.graph.to_dict(), o.batch_size) for o in candidates
    ]


@pytest.mark.parametrize("number", [1, 700])
def test_more_candidates_than_are_looked_at(number: int) -> None:
    candidates = drawn(50, seed=1) * 14
    found = suggested(candidates, number, MIDDLING)
    assert len(found) == len(set(found)) == min(number, 600)
