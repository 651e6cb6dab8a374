"""Predictors side by side: the figures, the tables in the terminal, the CSV file of `lolat compare`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from lolat.comparison.candidates import CANDIDATES
from lolat.comparison.judging import Comparison, NetworkTime, Speed, figures
from lolat.fitting.intervals import noise_floor
from lolat.fitting.points import Point, times
from lolat.io.results import element, escape, table
from lolat.io.tables import to_csv
from lolat.io.writing import write_text
from lolat.model import Model
from lolat.report.plots import bars, limits_of, scatter
from lolat.report.text import wide_console
from lolat.units import percent, plain

ERRORS = (
    ("median", "median"),
    ("mean", "mean"),
    ("percentile_90", "90th"),
    ("within_10_percent", "≤ 10 %"),
    ("median_from_2_ms", "≥ 2 ms"),
    ("median_below_2_ms", "< 2 ms"),
    ("spearman", "rank"),
)
"""What the tables show: field, head of its column."""
LARGE_IS_GOOD = frozenset(["within_10_percent", "spearman", "r2", "pearson"])
LEGEND = (
    "error |predicted / measured - 1|: median, mean, 90th percentile, how many within 10 %, the median "
    "of times from 2 ms and below; rank: Spearman's correlation, 1 where all are in the right order"
)


def summary(predicted: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """`figures`, and the 90th percentile of the relative error."""
    error = np.abs(predicted / measured - 1.0)
    return {**figures(predicted, measured), "percentile_90": float(np.percentile(error, 90))}


def compare(
    model: Model,
    points: Sequence[Point],
    found: Comparison,
    networks: Sequence[NetworkTime],
    speeds: Mapping[str, Speed],
) -> dict[str, Any]:
    """Everything `compare --json` prints; "networks" is null where none were given."""
    networks_ms = np.array([n.measured_ms for n in networks])
    names = [
        {"network": n.spec, "batch_size": n.batch_size, "input_size": list(n.input_size or ())}
        | ({} if n.block is None else {"block": n.block})
        for n in networks
    ]
    left_out = {j.candidate.name: j.left_out_ms for j in found.judged}
    predicted = {j.candidate.name: j.networks_ms for j in found.judged}
    return {
        "model": model.name,
        "device": model.device,
        "default": model.default,
        "noise_floor": noise_floor(model.document),
        "points": len(points),
        "blocks": len({p.name for p in points}),
        "folds": found.folds,
        "fitted_on": list(found.fitted_on),
        "predictors": {
            j.candidate.name: {
                "label": j.candidate.label,
                "about": j.candidate.about,
                "counts": list(j.features),
                "numbers": j.candidate.numbers(j.fitted),
                "one_query_us": speeds[j.candidate.name].one_us,
                "million_rows_ms": speeds[j.candidate.name].million_ms,
                "million_rows_over_product": speeds[j.candidate.name].ratio,
                "rows_timed": speeds[j.candidate.name].rows,
            }
            for j in found.judged
        },
        "not_compared": dict(found.missing),
        "left_out": _judged(
            [{"name": p.name, "batch_size": p.batch_size} for p in points], times(points), left_out
        ),
        "networks": _judged(names, networks_ms, predicted) if networks else None,
    }


def _judged(
    names: Sequence[dict[str, Any]], measured: np.ndarray, predicted: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    return {
        "summary": {name: summary(values, measured) for name, values in predicted.items()},
        "rows": [
            {
                **about,
                "measured_ms": float(measured[i]),
                "predicted_ms": {name: float(values[i]) for name, values in predicted.items()},
            }
            for i, about in enumerate(names)
        ],
    }


def order(judged: Mapping[str, Any]) -> list[str]:
    """The predictors, the smallest median error first."""
    found = judged["summary"]
    return sorted(found, key=lambda name: found[name]["median"])


def cell(field: str, value: float | None) -> str:
    """A figure in a table."""
    if value is None:
        return "-"
    return f"{value:.3f}" if field in ("spearman", "r2", "pearson") else percent(value)


def best(judged: Mapping[str, Any], field: str) -> str | None:
    """What the best figure of a column looks like; None where there is none."""
    values = [f[field] for f in judged["summary"].values() if f[field] is not None]
    take = max if field in LARGE_IS_GOOD else min
    return cell(field, take(values)) if values else None


def figure_rows(
    judged: Mapping[str, Any], fields: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, list[str], list[bool]]]:
    """The rows of a table, the best predictor first: its name, its cells, which are a column's best."""
    bests = [best(judged, field) for field, _ in fields]
    for name in order(judged):
        cells = [cell(field, judged["summary"][name][field]) for field, _ in fields]
        yield name, cells, [text == top for text, top in zip(cells, bests, strict=True)]


def headings(result: Mapping[str, Any]) -> dict[str, str]:
    """What each table is of, in a sentence."""
    low, high = result["fitted_on"]
    on = f"{low}" if low == high else f"{low} to {high}"
    found = {
        "left_out": (
            f"Blocks left out of the fit: {result['points']} points of {result['blocks']} blocks, "
            f"{result['folds']} folds, each predictor fitted on {on} points"
        )
    }
    if result["networks"] is not None:
        found["networks"] = (
            f"Whole networks: {len(result['networks']['rows'])} measured, "
            f"each predictor fitted on all {result['points']} points"
        )
    return found


def verdict(result: Mapping[str, Any], field: str) -> str:
    """Who has the smallest median error, and who comes next."""
    judged, predictors = result[field], result["predictors"]
    names = order(judged)
    what = "blocks left out" if field == "left_out" else "whole networks"
    told = [f"{predictors[n]['label']} ({percent(judged['summary'][n]['median'])})" for n in names]
    then = f", then {told[1]}" if len(told) > 1 else ""
    return f"Smallest median error on {what}: {told[0]}{then}."


def remarks(result: Mapping[str, Any]) -> Iterator[str]:
    """What is to be known beside the tables."""
    for field in headings(result):
        yield verdict(result, field)
    floor = result["noise_floor"]
    if floor is not None:
        yield (
            f"Noise floor: {percent(floor)}; measuring a block again differs by that, and no predictor "
            "can be better."
        )
    labels = {c.name: c.label for c in CANDIDATES}
    for name, reason in result["not_compared"].items():
        yield f"Not compared: {labels.get(name, name)}: {reason}."


def duration(milliseconds: float) -> str:
    """A time to answer in two digits: 4.2 µs, 31 ms, 12 s."""
    units = ((1e3, "s"), (1.0, "ms"), (1e-3, "µs"))
    size, unit = next((u for u in units if milliseconds >= u[0]), units[-1])
    return f"{two_digits(milliseconds / size)} {unit}"


def two_digits(value: float) -> str:
    """A ratio in two digits: 1.4, 31, 4200."""
    return f"{value:.1f}" if value < 9.95 else f"{float(f'{value:.2g}'):.0f}"


COSTS = ("counts", "numbers", "one query", "10⁶ rows", "/ X @ w")


def costs(about: Mapping[str, Any]) -> list[str]:
    """A predictor's row under COSTS."""
    return [
        str(len(about["counts"])),
        f"{about['numbers']}",
        duration(about["one_query_us"] / 1e3),
        duration(about["million_rows_ms"]),
        two_digits(about["million_rows_over_product"]),
    ]


COST_LEGEND = (
    "numbers: how many a fitted one keeps; times are of this moment on this machine, / X @ w is the "
    "time of a million rows over that of numpy's product of all their counts with a vector, in turns"
)


def print_comparison(result: Mapping[str, Any]) -> None:
    """The tables in the terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = wide_console()

    def table(heads: Sequence[str], rows: Sequence[tuple[str, Sequence[Any]]]) -> None:
        shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        shown.add_column("predictor", no_wrap=True)
        for head in heads:
            shown.add_column(head, no_wrap=True, justify="right")
        for name, cells in rows:
            label = result["predictors"][name]["label"]
            mark = " *" if name == result["default"] else ""
            shown.add_row(Text(label + mark), *cells)
        console.print(shown)

    console.print(Text(plain(f"{result['model']}: {result['device']}"), style="bold"))
    for field, heading in headings(result).items():
        console.print(Text(heading))
        rows = []
        for name, texts, marks in figure_rows(result[field], ERRORS):
            both = zip(texts, marks, strict=True)
            rows.append((name, [Text(text, style="bold" if top else "") for text, top in both]))
        table([head for _, head in ERRORS], rows)
    console.print(Text("What it takes to answer"))
    table(COSTS, [(name, costs(about)) for name, about in result["predictors"].items()])
    for remark in remarks(result):
        console.print(Text(plain(remark)))
    console.print(Text(f"* the model's default; {LEGEND}; {COST_LEGEND}", style="dim"))


def write_csv(path: str | Path, result: Mapping[str, Any]) -> None:
    """One row per set and predictor. InputError where `path` cannot be written."""
    first = result["left_out"]["summary"]
    fields = list(next(iter(first.values())))
    about = ("numbers", "one_query_us", "million_rows_ms", "million_rows_over_product")
    rows = []
    for field in headings(result):
        on = min(result["fitted_on"]) if field == "left_out" else result["points"]
        for name in order(result[field]):
            values, predictor = result[field]["summary"][name], result["predictors"][name]
            judged = ["" if values[f] is None else f"{values[f]:.6g}" for f in fields]
            rows.append([field, name, on, *judged, *(f"{predictor[f]:.6g}" for f in about)])
    header = ["judged_on", "predictor", "fitted_on", *fields, *about]
    write_text(path, to_csv(header, rows))


# ---- The page of `lolat compare --html`: tables and charts in one file. Nothing in it is loaded from
# anywhere, whatever a name in a model file says. What the functions return is HTML, all text in it escaped.

FIELDS = (*ERRORS, ("r2", "R²"))
TITLES = {"left_out": "Blocks left out of the fit", "networks": "Whole networks"}


def page(result: Mapping[str, Any]) -> str:
    """The page of a `lolat.report.comparison.compare`, as HTML."""
    body = [
        element("h1", f"Predictors of latency compared: {result['model']}"),
        element("p", str(result["device"]), class_="dim"),
        *(element("p", remark) for remark in remarks(result)),
    ]
    for field, heading in headings(result).items():
        body += _section(result, field, heading)
    rows = [[_marked(result, name), *costs(about)] for name, about in result["predictors"].items()]
    body.append(element("h2", "What it takes to answer"))
    body.append(table(f"{COST_LEGEND[0].upper()}{COST_LEGEND[1:]}.", ["predictor", *COSTS], rows))
    abouts = [
        element("dt", about["label"])
        + element("dd", f"{about['about']} (from {', '.join(about['counts'])})")
        for about in result["predictors"].values()
    ]
    body += [element("h2", "What is compared"), f"<dl>{''.join(abouts)}</dl>"]
    return document(f"Predictors compared: {result['model']}", body)


def document(title: str, body: Sequence[str]) -> str:
    """A whole page; `body` is HTML."""
    template = files("lolat.report").joinpath("comparison.html").read_text(encoding="utf-8")
    return Template(template).substitute(title=element("title", title), body="\n".join(body))


def figure(image: str, name: str, words: str = "") -> str:
    """An image (HTML) with its name and some words below it."""
    told = f"{element('b', name)} {escape(words)}".strip()
    return f"<figure>{image}<figcaption>{told}</figcaption></figure>"


def _section(result: Mapping[str, Any], field: str, heading: str) -> list[str]:
    """The table of a set of points, its bars and its scatter plots."""
    judged, predictors = result[field], result["predictors"]
    shown = list(figure_rows(judged, FIELDS))
    rows = [[_marked(result, name), *cells] for name, cells, _ in shown]
    medians = [
        (predictors[name]["label"], f["median"], percent(f["median"]))
        for name, f in ((name, judged["summary"][name]) for name in order(judged))
    ]
    told = "; ".join(f"{label} {text}" for label, _, text in medians)
    default = predictors.get(result["default"], {}).get("label", "")
    title = f"Median error: {TITLES[field].lower()}"
    measured = [row["measured_ms"] for row in judged["rows"]]
    low, high = limits_of(measured)
    plots = [
        figure(
            scatter(
                f"{field}-{name}",
                f"{label}: measured against predicted",
                f"{len(measured)} points; median error {median}, "
                f"{100 * judged['summary'][name]['within_10_percent']:.0f} % within the band of 10 %",
                measured,
                [row["predicted_ms"][name] for row in judged["rows"]],
                [_point(row) for row in judged["rows"]],
                (low / 1.5, high * 1.5),
            ),
            label,
            f"median error {median}",
        )
        for (name, _, _), (label, _, median) in zip(shown, medians, strict=True)
    ]
    return [
        element("h2", TITLES[field]),
        table(
            heading,
            ["predictor", *(head for _, head in FIELDS)],
            rows,
            [[False, *marks] for *_, marks in shown],
        ),
        element("p", f"{LEGEND}; R²: of the milliseconds.", class_="dim"),
        figure(
            bars(f"{field}-bars", title, told, medians, default),
            "Median error",
            "the shorter the better",
        ),
        element(
            "p",
            "Measured against predicted milliseconds; the band is 10 % to either side, and a point "
            "beyond the axes lies at their edge.",
            class_="dim",
        ),
        f'<div class="charts">{"".join(plots)}</div>',
    ]


def _point(row: Mapping[str, Any]) -> str:
    """What a point says when pointed at: a block or network, its size, its batch size."""
    size, block = "x".join(map(str, row.get("input_size") or ())), row.get("block")
    parts = (row.get("network") or row.get("name"), size, "" if block is None else f"block {block}")
    return f"{' '.join(p for p in parts if p)}, batch {row['batch_size']}"


def _marked(result: Mapping[str, Any], name: str) -> str:
    default = " (default)" if name == result["default"] else ""
    return f"{result['predictors'][name]['label']}{default}"


def write_page(path: str, result: Mapping[str, Any]) -> None:
    """Write the page; errors as of `write_text`."""
    write_text(path, page(result))
