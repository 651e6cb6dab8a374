"""Pages that commands make: tables of docs/results between marks, and three pages of docs/reference.

A table stands between `<!-- table NAME -->` and `<!-- end of NAME -->`. A figure elsewhere is followed by
`<!-- PAGE#NAME: ROW: COLUMN -->`, the cell that it is from; tests/test_docs.py compares them. Each page
says with which version of a formula it was made; docs/results/formula.json has the present ones.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import command_line, schema
from lolat.io.results import Result
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


# ---- reference pages made from the code


def _call(name: str, thing: Any) -> str:
    """A call with its parameters, over several lines where it is long."""
    signature = inspect.signature(thing)
    told, only_named = [], False
    for p in (p for p in signature.parameters.values() if p.name != "self"):
        if p.kind == p.KEYWORD_ONLY and not only_named:
            told, only_named = [*told, "*"], True
        stars = {p.VAR_KEYWORD: "**", p.VAR_POSITIONAL: "*"}.get(p.kind, "")
        value = p.default.__name__ if inspect.isfunction(p.default) else repr(p.default)
        default = "" if p.default is p.empty else f" = {value}"
        told.append(f"{stars}{p.name}: {p.annotation}{default}")
    text = ", ".join(told)
    if len(text) > 70:
        text = "".join(f"\n    {each}," for each in told) + "\n"
    return f"```python\n{name}({text}) -> {signature.return_annotation}\n```\n"


def python_page() -> str:
    """docs/reference/python.md: what `import lolat` offers, from its docstrings."""
    import lolat
    from lolat.api import measuring
    from lolat.model import Model, attribution, budget
    from lolat.model.prediction import Predictions
    from lolat.nas import pareto, scoring
    from lolat.training import cost

    public = {name: getattr(lolat, name) for name in lolat.__all__}
    errors = [n for n, v in public.items() if isinstance(v, type) and issubclass(v, Exception)]
    types = [n for n, v in public.items() if isinstance(v, type) and n not in errors]
    head = (
        "`import lolat` loads no framework. Times are in milliseconds in names that end in `_ms`. What can "
        "go wrong is a `lolat.LolatError` whose message says how to mend it. Answers are frozen "
        "dataclasses with `to_dict()` and more, see Results. What is not on this page may change."
    )
    lines = ["# Python", MADE, head, "## Functions"]
    for name in (n for n, v in public.items() if inspect.isfunction(v)):
        lines += [f"### lolat.{name}", _call(f"lolat.{name}", public[name]), _doc(public[name])]
    lines += ["## Model", _doc(Model)]
    for name, method in inspect.getmembers(Model, inspect.isfunction):
        if not name.startswith("_") and inspect.getdoc(method):
            lines += [f"### Model.{name}", _call(f"model.{name}", method), _doc(method)]
    for name in (n for n in types if n != "Model"):
        lines += [f"## {name}", _doc(public[name])]
    results = [
        Predictions, attribution.Explanation, budget.BudgetAnswer, cost.Cost,
        measuring.Evaluation, measuring.TableEvaluation, measuring.Diagnosis,
        pareto.SearchResult, scoring.ScoreResult,
    ]  # fmt: skip
    lines += ["## Results", _doc(Result)]
    for kind in results:
        lines += [f"### {kind.__name__}", _doc(kind)]
    lines += ["## lolat.nas", _doc(lolat.nas).partition("\n\n")[0]]
    for name in lolat.nas.__all__:
        value = getattr(lolat.nas, name)
        lines += [f"### lolat.nas.{name}"]
        lines += [_call(f"nas.{name}", value)] if inspect.isfunction(value) else []
        lines += [_doc(value)]
    table = "\n".join(
        f"| `lolat.{n}` | {public[n].exit_code} | {_first(public[n])} |" for n in errors
    )
    lines += ["## Errors", f"| exception | exit code | when |\n| --- | --- | --- |\n{table}"]
    return "\n\n".join(part.strip("\n") for part in lines) + "\n"


def json_page() -> str:
    """docs/reference/json.md: what each command's --json is."""
    rows = []
    for name, (kind, commands) in sorted(schema.ANSWERS.items()):
        told = ", ".join(f"`lolat {command} --json`" for command in commands)
        rows.append(f"| lolat-{name} | {told} | {_first(kind)} |")
    head = "| answer | printed by | what |\n| --- | --- | --- |\n"
    text = (
        "Every command that answers has `--json`: one object on stdout, nothing else there. It names its "
        "answer and the answer's version; a reader of a version can read later additions to it. "
        "[schema.json](schema.json) is the JSON Schema of all of them, in `$defs` by the answer's name. "
        "Times are in ms where the key ends in `_ms`, in s where it ends in `_s`; an interval is "
        "[low, high]; what is not known is null.\n\n"
        "With exit code 3 there is an object too: what was found, with null or an empty list where nothing "
        "answers. With exit codes 1, 2 and 130 one line on stderr says why; stdout is empty, or has the "
        "whole object where a part failed: a network of several, which `failures` names, or a file that "
        "could not be written."
    )
    return f"# JSON\n\n{MADE}\n\n{text}\n\n{head}" + "\n".join(rows) + "\n"


INDENTED = re.compile(r"(?m)(?:^ {4}.*\n?(?:\n(?= {4}))?)+")


def _doc(thing: Any) -> str:
    """A docstring as Markdown: its indented examples become blocks."""
    text = re.sub(
        r"<(?=\w)", "&lt;", inspect.getdoc(thing) or ""
    )  # else a browser takes it for a tag
    return INDENTED.sub(lambda m: f"```\n{inspect.cleandoc(m[0])}\n```\n", text)


def _first(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


MADE = "<!-- made by: python benchmarks/pages.py -->"
REFERENCE = {
    "python.md": python_page, "json.md": json_page, "schema.json": schema.text,
    "command-line.md": command_line.text,
}  # fmt: skip

if __name__ == "__main__":
    for name, make in REFERENCE.items():
        write_bytes(RESULTS.parent / "reference" / name, make().encode())
