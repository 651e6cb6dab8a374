"""Result pages in docs/results: tables between marks, put there by the command that makes them.

A table stands between `<!-- table NAME -->` and `<!-- end of NAME -->`. A figure elsewhere is followed by
`<!-- PAGE#NAME: ROW: COLUMN -->`, the cell that it is from; tests/test_docs.py compares them. Each page
says with which version of a formula it was made; docs/results/formula.json has the present ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lolat.io.writing import write_bytes

RESULTS = Path(__file__).resolve().parent.parent / "docs/results"
MADE_WITH = re.compile(
    r"Measured with formula `([\w-]+)` (\d+)(, the present one\.|; the present one is (\d+)\.)"
)


def versions() -> dict[str, int]:
    """The present version of each formula."""
    found = json.loads((RESULTS / "formula.json").read_text(encoding="utf-8"))
    return {name: entry["version"] for name, entry in found.items()}


def table(text: str, name: str) -> dict[str, dict[str, str]]:
    """The cells of a table of a page by row (its first cell, without emphasis) and column."""
    body = text.partition(f"<!-- table {name} -->\n")[2].partition(f"<!-- end of {name} -->")[0]
    rows = [
        [c.strip(" *`") for c in line.strip("|\n").split("|")]
        for line in body.splitlines()
        if "|" in line
    ]
    return {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[2:]}


def replaced(text: str, name: str, lines: Sequence[str]) -> str:
    """The page with the lines between the marks of a table; SystemExit where it lacks them."""
    first, last = f"<!-- table {name} -->\n", f"<!-- end of {name} -->\n"
    before, found, rest = text.partition(first)
    _, ended, after = rest.partition(last)
    if not (found and ended):
        raise SystemExit(f"the page lacks the lines {first.strip()} and {last.strip()}")
    return "".join([before, first, *(f"{line}\n" for line in lines), last, after])


def update(page: Path, tables: Mapping[str, Sequence[str]]) -> None:
    """Put tables that were just made into a page, which is of the present formula then."""
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        text = replaced(text, name, lines)
    now = versions()
    text = MADE_WITH.sub(
        lambda m: f"Measured with formula `{m[1]}` {now[m[1]]}, the present one.", text
    )
    write_bytes(page, text.encode())
