"""Plots in files, with matplotlib (the extra `plot`): what `--plot` draws."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import InputError, MissingPackageError, arg
from lolat.fitting.points import Point, times
from lolat.io.writing import check_file, write_bytes
from lolat.model import Model
from lolat.model.learning import predicted_ms
from lolat.units import percent, plain

MOST_TICKS = 7
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


@contextlib.contextmanager
def _axes(path: str, width: float, height: float) -> Iterator[Any]:
    """Axes to draw on; written to `path` at the end.

    The figure is not pyplot's and the style is for its time only, so that a notebook's settings stay
    as they are.
    """
    check_plot(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure.subplots()
        drawn, kind = io.BytesIO(), Path(path).suffix.lower()[1:]
        figure.savefig(
            drawn, format=kind, dpi=130, metadata={"Date": None} if kind == "svg" else None
        )
        write_bytes(path, drawn.getvalue())


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis from `low` to `high`: seven at most, the densest that are regular."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [t for n in decades for m in factors if low <= (t := float(f"{m}e{n}")) <= high]
        if len(ticks) <= MOST_TICKS:
            break
    return ticks[:: math.ceil(len(ticks) / MOST_TICKS)] if ticks else []


Series = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""What is drawn is called -> its measured and predicted milliseconds; NaN is not drawn."""


def _against(path: str, series: Series, predictor: str, title: str, legend: str = "") -> None:
    """Measured against predicted: the line of agreement, a band of 10 %, logarithmic axes in plain ms."""
    everything = np.concatenate([ms for pair in series.values() for ms in pair])
    ends = np.array([np.nanmin(everything) / 1.3, np.nanmax(everything) * 1.3])
    with _axes(path, 6.4, 6.2) as axes:
        axes.fill_between(ends, ends * 0.9, ends * 1.1, color="0.88", lw=0, label="within 10 %")
        axes.plot(ends, ends, color="0.5", lw=1)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks(log_ticks(*ends), minor=False)
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")  # else 2 x 10^0 and the like, where there are few decades
        for (name, (x, y)), marker, color in zip(series.items(), "o^", (BLUE, RED), strict=False):
            axes.plot(x, y, marker, ms=4.5, alpha=0.7, color=color, label=name)
        axes.set(xlabel="measured, ms", ylabel=f"predicted{predictor}, ms", title=plain(title))
        axes.set_aspect("equal")
        axes.legend(frameon=False, loc="upper left", title=legend)


def evaluation_plot(rows: Sequence[dict[str, Any]], title: str, path: str) -> None:
    """Measured against predicted latencies of whole networks.

    `rows`: the "networks" of `microbench.evaluate.compare`; `path`: see `check_plot`.
    """
    measured, predicted = (np.array([r[k] for r in rows]) for k in ("measured_ms", "predicted_ms"))
    _against(path, {"networks": (measured, predicted)}, "", title)


def fit_plot(model: Model, path: str) -> None:
    """The measured points against what the model's default predictor says of them.

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
    series = {
        f"{which.sum()} {words}": (
            measured[which],
            np.where(predicted > 0, predicted, np.nan)[which],
        )
        for words, which in (("blocks", ~whole), ("whole networks", whole))
        if which.any()
    }
    words = f"{model.device}: {len(points)} points", f"median error {percent(error)}"
    _against(path, series, f" by {formula.name}", *words)
