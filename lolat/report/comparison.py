"""Predictors side by side: the figures, the tables in the terminal, the CSV file of `lolat compare`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lolat.comparison.candidates import CANDIDATES
from lolat.comparison.judging import Comparison, Judged, NetworkTime, Speed, figures
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
    predictors = {j.candidate.name: _about(j, speeds[j.candidate.name]) for j in found.judged}
    measured = times(points)
    network_ms = np.array([n.measured_ms for n in networks])
    names = [
        {"network": n.spec, "batch_size": n.batch_size, "input_size": list(n.input_size)}
        | ({} if n.block is None else {"block": n.block})
        for n in networks
    ]
    return {
        "model": model.name,
        "device": model.device,
        "default": model.default,
        "noise_floor": noise_floor(model.document),
        "points": len(points),
        "blocks": len({p.name for p in points}),
        "folds": found.folds,
        "fitted_on": list(found.fitted_on),
        "predictors": predictors,
        "not_compared": dict(found.missing),
        "left_out": _judged(
            [{"name": p.name, "batch_size": p.batch_size} for p in points],
            measured,
            {j.candidate.name: j.left_out_ms for j in found.judged},
        ),
        "networks": _judged(
            names, network_ms, {j.candidate.name: j.networks_ms for j in found.judged}
        )
        if networks
        else None,
    }


def _about(judged: Judged, speed: Speed) -> dict[str, Any]:
    """What a predictor is and what it costs."""
    return {
        "label": judged.candidate.label,
        "about": judged.candidate.about,
        "counts": list(judged.features),
        "numbers": judged.candidate.numbers(judged.fitted),
        "one_query_us": speed.one_us,
        "million_rows_ms": speed.million_ms,
        "million_rows_over_product": speed.ratio,
        "rows_timed": speed.rows,
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
    if not values:
        return None
    return cell(field, max(values) if field in LARGE_IS_GOOD else min(values))


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
    for factor, unit in ((1e3, "s"), (1.0, "ms")):
        if milliseconds >= factor:
            return f"{_two(milliseconds / factor)} {unit}"
    return f"{_two(1e3 * milliseconds)} µs"


def times_as(ratio: float) -> str:
    """A ratio in two digits: 1.4, 31, 4200."""
    return _two(ratio)


def _two(value: float) -> str:
    return f"{value:.1f}" if value < 9.95 else f"{float(f'{value:.2g}'):.0f}"


COSTS = ("counts", "numbers", "one query", "10⁶ rows", "/ X @ w")


def costs(about: Mapping[str, Any]) -> list[str]:
    """A predictor's row under COSTS."""
    return [
        str(len(about["counts"])),
        f"{about['numbers']}",
        duration(about["one_query_us"] / 1e3),
        duration(about["million_rows_ms"]),
        times_as(about["million_rows_over_product"]),
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
        judged = result[field]
        console.print(Text(heading))
        rows = []
        for name in order(judged):
            cells = []
            for key, _ in ERRORS:
                text = cell(key, judged["summary"][name][key])
                cells.append(Text(text, style="bold" if text == best(judged, key) else ""))
            rows.append((name, cells))
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


# ---- The page of `lolat compare --html`: tables and charts in one file; nothing in it is loaded from
# anywhere. What the functions return is HTML, in which all text is escaped.

STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --dim: #5b6570; --paper: #ffffff; --card: #f5f7f9;
  --line: #d9dfe5; --mark: #0b6e99; --bar: #9aa9b7; --band: #c3dfec; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ec; --dim: #9aa5b0; --paper: #14181c; --card: #1c2228; --line: #333c45;
    --mark: #5cb8e0; --bar: #64727f; --band: #285064; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 72rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .25rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; }
p { margin: .4rem 0; max-width: 46rem; }
.dim, caption, figcaption, dd { color: var(--dim); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .5rem 0; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .4rem; }
th, td { padding: .3rem .7rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line); }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
thead th { color: var(--dim); font-weight: 500; vertical-align: bottom; }
tbody th { font-weight: 500; }
td.best { font-weight: 700; color: var(--mark); }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(268px, 1fr)); gap: 1rem; }
figure { margin: 0; background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: .6rem .7rem; }
main > figure { width: fit-content; max-width: 100%; }
figcaption { font-size: .9rem; }
figcaption b { color: var(--ink); display: block; }
svg { display: block; max-width: 100%; height: auto; font: 11px system-ui, sans-serif; }
svg text { fill: var(--dim); } svg .label { fill: var(--ink); font-size: 13px; }
svg .middle { text-anchor: middle; } svg .end { text-anchor: end; }
.charts svg { width: 100%; }
.frame { fill: none; stroke: var(--line); } .grid { stroke: var(--line); stroke-width: .6; }
.band { fill: var(--band); } .equal { stroke: var(--dim); stroke-width: 1; }
.point { fill: var(--mark); fill-opacity: .6; stroke: var(--mark); stroke-width: .5; }
.bar { fill: var(--bar); } .bar.marked { fill: var(--mark); }
dl { margin: .5rem 0; } dt { font-weight: 600; } dd { margin: 0 0 .5rem; max-width: 46rem; }
code { font: .92em ui-monospace, "Cascadia Mono", Consolas, monospace; overflow-wrap: anywhere; }
@media print { body { max-width: none; } figure { break-inside: avoid; } }
"""


def figure(image: str, name: str, words: str = "") -> str:
    """An image (HTML) with its name and some words below it."""
    told = f"{element('b', name)} {escape(words)}".strip()
    return f"<figure>{image}<figcaption>{told}</figcaption></figure>"


def document(title: str, body: Sequence[str]) -> str:
    """A whole page; `body` is HTML."""
    lines = "\n".join(body)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        # Nothing may be loaded, whatever a name in a model file says.
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"{element('title', title)}\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{lines}\n"
        "</main>\n</body>\n</html>\n"
    )


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
    body += [element("h2", "What it takes to answer"), _costs(result)]
    body += [element("h2", "What is compared"), _abouts(result)]
    return document(f"Predictors compared: {result['model']}", body)


def _section(result: Mapping[str, Any], field: str, heading: str) -> list[str]:
    """The table of a set of points, its bars and its scatter plots."""
    judged, predictors = result[field], result["predictors"]
    names = order(judged)
    labels = {name: predictors[name]["label"] for name in names}
    found = judged["summary"]
    rows = [
        [_marked(result, name), *(cell(f, found[name][f]) for f, _ in FIELDS)] for name in names
    ]
    marks = [
        [False, *(cell(f, found[name][f]) == best(judged, f) for f, _ in FIELDS)] for name in names
    ]
    medians = [(labels[n], found[n]["median"], percent(found[n]["median"])) for n in names]
    title = f"Median error: {TITLES[field].lower()}"
    told = "; ".join(f"{label} {text}" for label, _, text in medians)
    chart = bars(f"{field}-bars", title, told, medians, labels.get(result["default"], ""))
    measured = [row["measured_ms"] for row in judged["rows"]]
    points = [_point(row) for row in judged["rows"]]
    limits = limits_of(measured)
    limits = (limits[0] / 1.5, limits[1] * 1.5)
    plots = [
        figure(
            scatter(
                f"{field}-{name}",
                f"{labels[name]}: measured against predicted",
                f"{len(measured)} points; median error {percent(found[name]['median'])}, "
                f"{100 * found[name]['within_10_percent']:.0f} % within the band of 10 %",
                measured,
                [row["predicted_ms"][name] for row in judged["rows"]],
                points,
                limits,
            ),
            labels[name],
            f"median error {percent(found[name]['median'])}",
        )
        for name in names
    ]
    return [
        element("h2", TITLES[field]),
        table(heading, ["predictor", *(head for _, head in FIELDS)], rows, marks),
        element("p", f"{LEGEND}; R²: of the milliseconds.", class_="dim"),
        figure(chart, "Median error", "the shorter the better"),
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


def _costs(result: Mapping[str, Any]) -> str:
    rows = [[_marked(result, name), *costs(about)] for name, about in result["predictors"].items()]
    return table(f"{COST_LEGEND[0].upper()}{COST_LEGEND[1:]}.", ["predictor", *COSTS], rows)


def _abouts(result: Mapping[str, Any]) -> str:
    parts: list[str] = []
    for about in result["predictors"].values():
        counts: Sequence[str] = about["counts"]
        parts.append(element("dt", about["label"]))
        parts.append(element("dd", f"{about['about']} (from {', '.join(counts)})"))
    return f"<dl>{''.join(parts)}</dl>"


def write_page(path: str, result: Mapping[str, Any]) -> None:
    """Write the page; errors as of `write_text`."""
    write_text(path, page(result))
