"""`lolat suggest`, then the operations timed and fitted, as a user would."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from tests.cli.commands import Command
from tests.devices import made_up


def test_a_table_to_time(lolat: Command, tmp_path: Path) -> None:
    out, facts = tmp_path / "todo.csv", tmp_path / "devices.csv"
    facts.write_text(made_up.FACTS)
    found = lolat("suggest", "--facts", facts, "--device", "desk", "--output", out)
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith(f"written: {out}, 20 operations\nNext: python examples/time_oper")
    with out.open() as file:
        assert len(list(csv.DictReader(file))) == 20


def test_from_a_table_and_of_an_unknown_device(lolat: Command, tmp_path: Path) -> None:
    operations, _ = made_up.write_tables(tmp_path)
    out = tmp_path / "todo.csv"
    lolat.done("suggest", "--from", operations, "--rows", 5, "--output", out)
    with operations.open() as pool, out.open() as file:
        known = [[r[c] for c in ("op", "batch", "m", "rows")] for r in csv.DictReader(pool)]
        chosen = [[r[c] for c in ("op", "batch", "m", "rows")] for r in csv.DictReader(file)]
    assert len(chosen) == 5
    assert all(row in known for row in chosen)


@pytest.mark.parametrize("given", [["--device", "l4"], ["--facts", "devices.csv"]])
def test_facts_without_a_device(lolat: Command, tmp_path: Path, given: list[str]) -> None:
    assert "--facts and --device go together" in lolat.refused(
        "suggest", *given, "--output", tmp_path / "todo.csv"
    )
