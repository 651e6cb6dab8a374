"""The page of `lolat compare --html`: tables and charts in one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lolat.errors import not_written
from lolat.report.comparison import (
    COST_LEGEND,
    COSTS,
    ERRORS,
    LEGEND,
    best,
    cell,
    costs,
    headings,
    order,
    remarks,
)
from lolat.report.html import document, element, figure, table
from lolat.report.svg import bars, limits_of, scatter
from lolat.units import percent

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
    size = "x".join(map(str, row.get("input_size") or ()))
    parts = (row.get("network") or row.get("name"), size, row.get("block"))
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
    """Write the page. InputError where `path` cannot be written."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(page(result))
    except OSError as error:
        raise not_written(path, error, "--html") from error
