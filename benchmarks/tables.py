"""Tables of results: one JSON file a topic in benchmarks/results, from which the pages are rendered.

A file names the formula of its tables. Each table has the version of the formula and the command that made
it, its columns and its rows; a cell is the text that a page shows. A page shows a table between
`<!-- table TOPIC#NAME -->` and `<!-- end of TOPIC#NAME -->`; after the name may stand the columns that it
shows, as in `| median | bias`, and a pattern of its rows, as in `rows=tf.*`. A figure in a sentence is
followed by `<!-- TOPIC#NAME: ROW: COLUMN -->`. tests/test_docs.py compares both.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks/results"
FORMULAS = RESULTS / "formulas.json"
MARKED = re.compile(
    r"<!-- table ([\w-]+)#([\w-]+)((?: \|[^|\n]+?)*?)(?: rows=(\S+))? -->\n.*?<!-- end of \1#\2 -->\n",
    re.S,
)


def versions() -> dict[str, int]:
    """The present version of each formula."""
    return {name: entry["version"] for name, entry in _json(FORMULAS).items()}


def topics() -> list[str]:
    """The names of all files of results."""
    return sorted(path.stem for path in RESULTS.glob("*.json") if path != FORMULAS)


def read(topic: str) -> dict[str, Any]:
    """The file of a topic: `formula`, `tables`."""
    return _json(RESULTS / f"{topic}.json")


def cells(topic: str, name: str) -> dict[str, dict[str, str]]:
    """The cells of a table, by row (its first cell) and column."""
    table = read(topic)["tables"][name]
    return {row[0]: dict(zip(table["columns"], row, strict=True)) for row in table["rows"]}


def save(
    topic: str,
    formula: str,
    command: str,
    tables: Mapping[str, tuple[Sequence[str], Sequence[Sequence[str]]]],
) -> None:
    """Keep tables, each (columns, rows), that `command` just made; the other tables of the topic stay."""
    path, version = RESULTS / f"{topic}.json", versions()[formula]
    made = _json(path) if path.exists() else {"tables": {}}
    for name, (columns, rows) in tables.items():
        made["tables"][name] = {
            "version": version,
            "command": command,
            "columns": [*columns],
            "rows": [[*r] for r in rows],
        }
    document = {"formula": formula, "tables": made["tables"]}
    path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def markdown(topic: str, name: str, columns: str = "", rows: str | None = None) -> str:
    """A table as lines of Markdown; `columns` as a mark has them, `rows`: a pattern of the first cell."""
    table = read(topic)["tables"][name]
    heads = table["columns"]
    shown = [c.strip() for c in columns.split("|")[1:]] or heads[1:]
    places = [0, *(heads.index(c) for c in shown)]
    kept = [r for r in table["rows"] if rows is None or re.fullmatch(rows, r[0])]
    return lines([heads[p] for p in places], [[row[p] for p in places] for row in kept])


def lines(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown, numbers to the right."""
    every = [columns, ["---"] + ["--:"] * (len(columns) - 1), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in every)


def rendered(text: str) -> str:
    """A page with each of its tables as the results have it now."""

    def one(mark: re.Match[str]) -> str:
        first, end = mark[0].partition("\n")[0], mark[0].rstrip("\n").rpartition("\n")[2]
        table = markdown(mark[1], mark[2], mark[3], mark[4])
        return f"{first}\n{table}{_outdated(mark[1], mark[2])}{end}\n"

    return MARKED.sub(one, text)


def _outdated(topic: str, table: str) -> str:
    """A line below a table that an earlier version of its formula made; else nothing."""
    made = read(topic)
    name, version = made["formula"], made["tables"][table]["version"]
    present = versions()[name]
    return (
        f"\nMade with formula `{name}` {version}; the present one is {present}.\n"
        if version < present
        else ""
    )


def pages() -> Iterator[Path]:
    """The pages that may show tables."""
    yield from (
        *(ROOT / folder / "README.md" for folder in (".", "benchmarks", "models")),
        *sorted((ROOT / "docs").rglob("*.md")),
    )


def _json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))
