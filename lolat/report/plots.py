"""Plots in files, with matplotlib (the extra `plot`): what `--plot` draws."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError, MissingPackageError, arg
from lolat.fitting.points import Point, times
from lolat.io.writing import check_file, write_bytes
from lolat.model import Model
from lolat.model.learning import predicted_ms
from lolat.units import percent, plain

BLUE, RED = "#0b6e99", "#d1603d"
STYLE: dict[Any, Any] = {
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "lolat",  # the same plot gives the same file
    "text.parse_math": False,  # a "$" in the name of a device is a "$"
}


def check_plot(path: str) -> None:
    """InputError where no plot can be written: its ending, its folder; MissingPackageError."""
    if Path(path).suffix.lower() not in (".svg", ".png"):
        raise InputError(f"{arg('plot')} {path}: expected a file name that ends in .svg or .png")
    check_file(path, "plot")
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingPackageError("plots need matplotlib, which is not installed", "plot")


def scatter(
    path: str, series: Mapping[str, tuple[np.ndarray, np.ndarray]], predictor: str, title: str,
    legend: str = "",
) -> None:  # fmt: skip
    """Measured against predicted milliseconds, on logarithmic axes, with a band of 10 % of agreement.

    `series`: name -> (measured, predicted), each (points,); NaN is not drawn. Not a figure of pyplot, and
    the style is for its time only, so that a notebook's settings stay as they are.
    """
    check_plot(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator

    every = np.concatenate([ms for pair in series.values() for ms in pair])
    ends = np.array([np.nanmin(every) / 1.3, np.nanmax(every) * 1.3])
    with rc_context(STYLE):
        figure = Figure(figsize=(6.4, 6.2), layout="constrained")
        axes = figure.subplots()
        axes.fill_between(ends, ends * 0.9, ends * 1.1, color="0.88", lw=0, label="within 10 %")
        axes.plot(ends, ends, color="0.5", lw=1)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, aspect="equal")
        subs = (1.0,) if ends[1] / ends[0] > 300 else (1.0, 2.0, 5.0)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=subs))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
        for (name, (x, y)), marker, color in zip(series.items(), "o^", (BLUE, RED), strict=False):
            axes.plot(x, y, marker, ms=4.5, alpha=0.7, color=color, label=name)
        axes.set(xlabel="measured, ms", ylabel=f"predicted{predictor}, ms", title=plain(title))
        axes.legend(frameon=False, loc="upper left", title=legend)
        drawn, kind = io.BytesIO(), Path(path).suffix.lower()[1:]
        about = {"Date": None} if kind == "svg" else None
        figure.savefig(drawn, format=kind, dpi=130, metadata=about)
    write_bytes(path, drawn.getvalue())


def evaluation_plot(rows: Sequence[dict[str, Any]], title: str, path: str) -> None:
    """Measured against predicted latencies of networks: rows with measured_ms and predicted_ms."""
    measured, predicted = (np.array([r[k] for r in rows]) for k in ("measured_ms", "predicted_ms"))
    scatter(path, {"networks": (measured, predicted)}, "", title)


def fit_plot(model: Model, path: str) -> None:
    """The measured points of a model against what its default predictor says of them.

    InputError where the model has no points; `path`: see `check_plot`.
    """
    points = [Point.from_dict(p) for p in model.inference["points"]]
    if not points:
        raise InputError(
            f"{model.source} has no points to draw: it was made from times of whole networks; expected a "
            "model that was learned on a device or fitted on a table of blocks"
        )
    formula = model.predictor()
    measured, predicted = times(points), predicted_ms(formula, points)
    error = float(np.median(np.abs(predicted / measured - 1.0)))
    whole = np.array([p.whole for p in points])
    drawn = np.where(predicted > 0, predicted, np.nan)
    series = {
        f"{which.sum()} {words}": (measured[which], drawn[which])
        for words, which in (("blocks", ~whole), ("whole networks", whole))
        if which.any()
    }
    title = f"{model.device}: {len(points)} points"
    scatter(path, series, f" by {formula.name}", title, f"median error {percent(error)}")
