"""Pages of docs/reference made from the code, and tables of results and of the code in other pages.

    python -m benchmarks.pages         # writes all of them

A table of the code stands between `<!-- made NAME -->` and `<!-- end of NAME -->` (`MADE_TABLES`). Tables
of results: see benchmarks/tables.py.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

from benchmarks import command_line, schema, tables
from lolat.graph.counts import MEANINGS
from lolat.io.results import Result

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ROOT / "docs/reference"
MARKED = re.compile(r"<!-- made (\w+) -->\n.*?<!-- end of \1 -->\n", re.S)

# ---- reference pages made from the code


def _call(name: str, thing: Any) -> str:
    """Write a call with its parameters and their defaults; the text below it says their types."""
    told, only_named = [], False
    for p in (p for p in inspect.signature(thing).parameters.values() if p.name != "self"):
        if p.kind == p.KEYWORD_ONLY and not only_named:
            told, only_named = [*told, "*"], True
        stars = {p.VAR_KEYWORD: "**", p.VAR_POSITIONAL: "*"}.get(p.kind, "")
        value = p.default.__name__ if inspect.isfunction(p.default) else repr(p.default)
        told.append(f"{stars}{p.name}" + ("" if p.default is p.empty else f"={value}"))
    text = textwrap.fill(f"{name}({', '.join(told)})", 90, subsequent_indent="    ")
    return f"```python\n{text}\n```\n"


def python_page() -> str:
    """docs/reference/python.md: what `import lolat` offers, from its docstrings."""
    import lolat
    from lolat.api import doctor, measuring, table_evaluation
    from lolat.api.model import Model
    from lolat.api.predicting import Predictions
    from lolat.device import attribution, budget
    from lolat.llm import answer
    from lolat.llm.compare import ComparedModels
    from lolat.nas.ranking import Ranking
    from lolat.nas.search_result import SearchResult
    from lolat.training import cost
    from lolat.training.compare import Costs

    public = {name: getattr(lolat, name) for name in lolat.__all__}
    errors = [n for n, v in public.items() if isinstance(v, type) and issubclass(v, Exception)]
    types = [n for n, v in public.items() if isinstance(v, type) and n not in errors]
    head = (
        "`import lolat` loads no framework. Names that end in `_ms` are milliseconds. An error is a "
        "`lolat.LolatError` whose message says how to fix it. Answers are frozen dataclasses with "
        "`to_dict()`, see Results. An argument that is not explained here is the option of that name, "
        "explained at its [command](command-line.md). `progress` gets stages, steps and notes; "
        "`on_progress` is called with (done, all, name). Names that are not on this page may change."
    )
    lines = ["# Python", MADE, head, "## Functions"]
    for name in (n for n, v in public.items() if inspect.isfunction(v)):
        lines += [f"### lolat.{name}", _call(f"lolat.{name}", public[name]), _doc(public[name])]
    lines += ["## Model", _doc(Model)]
    for name, method in inspect.getmembers(Model, inspect.isfunction):
        if name[0] != "_" and name not in vars(Result) and inspect.getdoc(method):
            lines += [f"### Model.{name}", _call(f"model.{name}", method), _doc(method)]
    for name in (n for n in types if n != "Model"):
        lines += [f"## {name}", _doc(public[name])]
    results = [
        Predictions, attribution.Explanation, budget.BudgetAnswer, cost.Cost, Costs,
        answer.ServingAnswer, answer.ServingConfig, ComparedModels,
        measuring.Evaluation, table_evaluation.TableEvaluation, doctor.Diagnosis,
        SearchResult, Ranking,
    ]  # fmt: skip
    lines += ["## Results", _doc(Result)]
    for name in ("frame", "plot", "report", "rows", "to_dict", "words"):
        method = getattr(Result, name)
        lines += [f"### answer.{name}", _call(f"answer.{name}", method), _doc(method)]
    for kind in results:
        lines += [f"### {kind.__name__}", _doc(kind)]
    lines += ["## lolat.nas", _doc(lolat.nas).partition("\n\n")[0]]
    for name in lolat.nas.__all__:
        value = getattr(lolat.nas, name)
        lines += [f"### lolat.nas.{name}"]
        lines += [_call(f"nas.{name}", value)] if inspect.isfunction(value) else []
        lines += [_doc(value)]
        lines += _methods(name, value)
    table = "\n".join(
        f"| `lolat.{n}` | {public[n].exit_code} | {_first(public[n])} |" for n in errors
    )
    lines += ["## Errors", f"| exception | exit code | when |\n| --- | --- | --- |\n{table}"]
    return "\n\n".join(part.strip("\n") for part in lines) + "\n"


METHODS = {
    "Space": ("from_factory", "of_parts", "sample", "decode", "arch", "values", "network"),
    "LatencyEstimator": ("latency", "chunks"),
}
"""The methods that searches use."""


def _methods(name: str, kind: Any) -> list[str]:
    """Return the parts of the page on the methods of a class of lolat.nas."""
    lines = []
    for method in METHODS.get(name, ()):
        function = getattr(kind, method)
        owner = f"nas.{name}" if inspect.ismethod(function) else name.split("Latency")[-1].lower()
        lines += [f"#### {name}.{method}", _call(f"{owner}.{method}", function), _doc(function)]
    return lines


def counts() -> str:
    """The six counts of every formula: name, unit, meaning."""
    return "".join(
        f"- {shown}{f' ({m.unit})' if m.unit not in name else ''}: {m.words}. {m.why}\n"
        for name, shown in SIX.items()
        if (m := MEANINGS[name])
    )


def published_devices() -> str:
    """The bundled profiles fitted to published times: device, how it runs networks, median error."""
    from lolat.device.file import read
    from lolat.device.summary import mode_words
    from lolat.hardware.environment_section import FittedOn
    from lolat.io.paths import SHIPPED, list_models

    rows = []
    for name, path, where in list_models():
        if where == SHIPPED and (file := read(path)).environment.fitted_on != FittedOn():
            error = file.errors(file.default)["median"]
            rows.append([f"`{name}`", file.product, mode_words(file), f"{100 * error:.1f} %"])
    return tables.lines(["profile", "device", "how it runs networks", "error"], rows)


def spelled(product: str) -> str:
    """A device as makers write it: `h100-sxm-80gb` is H100 SXM 80 GB; a title stays."""
    if product != product.lower():
        return product
    words = product.replace("-", " ").upper().replace("PCIE", "PCIe")
    return re.sub(r"(\d)GB\b", r"\1 GB", words)


def bundled_devices() -> str:
    """The bundled profiles by device, each with its median error, and the GPUs known by data sheet."""
    from lolat import models
    from lolat.device.file import read
    from lolat.io.paths import SHIPPED, list_models

    found = dict[str, list[str]]()
    for name, path, where in list_models():
        file = read(path)
        is_timed = file.environment.is_learned or file.environment.source
        if where == SHIPPED and is_timed and "layers" not in file.answers_for:
            median = file.errors(file.default).get("median") if file.has_latencies else None
            error = "" if median is None else f" {100 * median:.1f} %"
            device = file.device if file.environment.is_learned else spelled(file.product)
            found.setdefault(device, []).append(f"`{name}`{error}")
    table = tables.lines(["device", "profiles"], [[d, ", ".join(found[d])] for d in sorted(found)])
    sheets = ", ".join(f"`{name}`" for name in models().data_sheets)
    return f"{table}\nGPUs known by data sheet: {sheets}.\n"


SIX = {
    "acts": "ACTS", "inp": "INP", "flops": "FLOPs",
    **{name: name for name in ("traffic", "weights", "ops")},
}  # fmt: skip
MADE_TABLES = {
    "counts": counts,
    "published_devices": published_devices,
    "bundled_devices": bundled_devices,
}


def rendered(text: str) -> str:
    """A page with its tables as the code and the results have them now."""
    text = MARKED.sub(
        lambda m: f"<!-- made {m[1]} -->\n{MADE_TABLES[m[1]]()}<!-- end of {m[1]} -->\n", text
    )
    return tables.rendered(text)


INDENTED = re.compile(r"(?m)(?:^ {4}.*\n?(?:\n(?= {4}))?)+")
NAMES = re.compile(r"(?:(?<=[.;])\s|^)(?=`[^`]+`(?:,\s`[^`]+`)*:\s)")
"""The place in a paragraph that begins to tell of a name, or of several."""


def _doc(thing: Any) -> str:
    """A docstring as Markdown: examples become blocks, names a list; options are in the page's head."""
    text = (inspect.getdoc(thing) or "").partition("\n\n- `")[0]
    text = re.sub(r"\s+The\s(?:other\s)?arguments\sare\s[^:.]+:$", "", text)
    text = re.sub(r"<(?=\w)", "&lt;", text)  # else a browser takes it for a tag
    text = INDENTED.sub(lambda m: f"```\n{inspect.cleandoc(m[0])}\n```\n", text)
    return "\n\n".join(map(_listed, text.split("\n\n")))


def _listed(paragraph: str) -> str:
    """A paragraph that tells of three names or more, as a list; what a call returns follows it."""
    told, *returned = re.split(
        r"(?<=\.)\s(?=Returns? |Raises |The other arguments )", paragraph, maxsplit=1
    )
    first, *items = NAMES.split(told)
    if len(items) < 3:
        return paragraph
    lines = [
        f"- {' '.join(item.split()).removesuffix(';').removesuffix('.')}."
        for item in items
        if not item.startswith(("`progress`", "`on_progress`"))  # which the head explains
    ]
    return "\n\n".join([*([first] if first else []), "\n".join(lines), *returned])


def _first(thing: Any) -> str:
    return " ".join((inspect.getdoc(thing) or "").split("\n\n")[0].split())


MADE = "<!-- made by: python -m benchmarks.pages -->"
WHOLE = {"python.md": python_page, "schema.json": schema.text, "command-line.md": command_line.text}
"""Files of docs/reference that are made whole."""

if __name__ == "__main__":
    for name, make in WHOLE.items():
        (REFERENCE / name).write_text(make(), encoding="utf-8")
    for page in tables.pages():
        page.write_text(rendered(page.read_text(encoding="utf-8")), encoding="utf-8")
