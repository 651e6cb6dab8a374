"""Plots with matplotlib (the extra `plot`): measured against predicted, points with both regimes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError, MissingPackageError
from lolat.learning import answers
from lolat.model import Model
from lolat.points import Point, matrix, times

FORMATS = (".svg", ".png")
COLOURS = {"extended": "#0b6e99", "two-regime": "#d1603d"}


def _figure(path: str, width: float, height: float) -> tuple[Any, Any]:
    """(figure, axes); InputError for a format that is not offered."""
    if Path(path).suffix.lower() not in FORMATS:
        raise InputError(f"--plot {path}: expected a file name that ends in .svg or .png")
    try:
        import matplotlib
    except ImportError as error:
        raise MissingPackageError(
            "plots need matplotlib; install it with: pip install 'lolat[plot]'"
        ) from error
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"font.size": 10, "svg.fonttype": "none", "svg.hashsalt": "lolat"})
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height), layout="constrained")


def _save(figure: Any, path: str) -> None:
    from matplotlib import pyplot

    try:
        figure.savefig(path, dpi=130, metadata={"Date": None} if path.endswith(".svg") else None)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}; give --plot elsewhere") from error
    finally:
        pyplot.close(figure)


def _diagonal(axes: Any, low: float, high: float) -> None:
    """The line of agreement, a band of 10 % around it, logarithmic axes in plain milliseconds."""
    ends = np.array([low / 1.3, high * 1.3])
    axes.fill_between(ends, ends * 0.9, ends * 1.1, color="0.88", lw=0, label="within 10 %")
    axes.plot(ends, ends, color="0.5", lw=1)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    axes.set_aspect("equal")


def evaluation_plot(
    rows: Sequence[dict[str, Any]], predictors: Sequence[str], title: str, path: str
) -> None:
    """Measured against predicted latencies of whole networks."""
    figure, axes = _figure(path, 6.4, 6.0)
    measured = np.array([r["measured_ms"] for r in rows])
    found = [np.array([r["predicted_ms"][p] for r in rows]) for p in predictors]
    everything = np.concatenate([measured, *found])
    _diagonal(axes, everything.min(), everything.max())
    for name, predicted, marker in zip(predictors, found, "os^vD", strict=False):
        axes.plot(measured, predicted, marker, ms=5, alpha=0.8, color=COLOURS.get(name), label=name)
    axes.set(xlabel="measured, ms", ylabel="predicted, ms", title=title)
    axes.legend(frameon=False, loc="upper left")
    _save(figure, path)


def fit_plot(model: Model, path: str) -> None:
    """The measured points against the two-regime formula, with both of its lines."""
    points = [Point.from_dict(p) for p in model.document["points"]]
    if not points:
        raise InputError(f"{model.source} has no points to draw")
    formula = model.predictor("two-regime")
    figure, axes = _figure(path, 7.2, 5.0)
    measured = times(points)
    features = matrix(points, formula.features)
    linear = features @ np.asarray(formula.coefficients) + formula.constant
    grid = np.geomspace(min(linear.min(), measured.min()), max(linear.max(), measured.max()), 200)
    bent = formula.bend(grid.copy())
    axes.plot(linear, measured, "o", ms=4, alpha=0.7, color="0.35", label="measured blocks")
    break_ms = float(getattr(formula, "breakpoint", 0.0))
    above = grid >= break_ms
    axes.plot(
        grid[above], bent[above], color=COLOURS["two-regime"], lw=2, label="a*ACTS+b*INP+c*FLOPs+d"
    )
    if break_ms > 0:
        slope, offset = model.document["predictors"]["two-regime"]["slope"], break_ms
        below = np.append(grid[~above], break_ms)
        axes.plot(
            below,
            formula.bend(below.copy()),
            color=COLOURS["extended"],
            lw=2,
            label=f"below {offset:.3g} ms: slope {slope:.2f}",
        )
        axes.axvline(break_ms, color="0.7", lw=1, ls=":")
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="a*ACTS + b*INP + c*FLOPs + d, ms",
        ylabel="measured, ms",
        title=f"{model.device}: {len(points)} points, two-regime fit",
    )
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter("{x:g}")
    error = float(np.median(np.abs(answers(formula, features) / measured - 1.0)))
    axes.legend(frameon=False, title=f"median error {100 * error:.1f} %", loc="upper left")
    _save(figure, path)
