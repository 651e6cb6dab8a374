"""Plots with matplotlib (the extra `plot`): measured against predicted; latency against score."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lolat.errors import InputError, MissingPackageError
from lolat.fitting.points import Point, times
from lolat.io.writing import check_file, write_bytes
from lolat.model import Model
from lolat.model.learning import as_measured
from lolat.report.charts import log_ticks
from lolat.units import percent, plain

if TYPE_CHECKING:
    from lolat.nas.pareto import SearchAnswer

FORMATS = (".svg", ".png")
COLORS = {"extended": "#0b6e99", "two-regime": "#d1603d"}


STYLE: dict[Any, Any] = {
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "lolat",  # the same plot gives the same file
    "text.parse_math": False,  # a "$" in the name of a device is a "$"
}


def check_plot(path: str) -> None:
    """Whether a plot could be written to `path`: its format, its folder, matplotlib.

    Raises InputError (a wrong ending, no such folder, no permission) or MissingPackageError.
    """
    if Path(path).suffix.lower() not in FORMATS:
        raise InputError(f"--plot {path}: expected a file name that ends in .svg or .png")
    check_file(path, "--plot")
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
        svg = path.lower().endswith(".svg")
        drawn = io.BytesIO()
        date = {"Date": None} if svg else None
        figure.savefig(drawn, format="svg" if svg else "png", dpi=130, metadata=date)
        write_bytes(path, drawn.getvalue())


def _diagonal(axes: Any, low: float, high: float) -> None:
    """The line of agreement, a band of 10 % around it, logarithmic axes in plain milliseconds."""
    ends = np.array([low / 1.3, high * 1.3])
    axes.fill_between(ends, ends * 0.9, ends * 1.1, color="0.88", lw=0, label="within 10 %")
    axes.plot(ends, ends, color="0.5", lw=1)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(log_ticks(*ends), minor=False)
        axis.set_major_formatter("{x:g}")
        # Matplotlib labels the ticks between, as 2 x 10^0, where an axis has few decades.
        axis.set_minor_formatter("")
    axes.set_aspect("equal")


def evaluation_plot(
    rows: Sequence[dict[str, Any]], predictors: Sequence[str], title: str, path: str
) -> None:
    """Measured against predicted latencies of whole networks.

    `rows`: the "networks" of `lolat.report.evaluation.compare`; `path`: see `check_plot`.
    """
    measured = np.array([r["measured_ms"] for r in rows])
    found = [np.array([r["predicted_ms"][p] for r in rows]) for p in predictors]
    everything = np.concatenate([measured, *found])
    with _axes(path, 6.4, 6.0) as axes:
        _diagonal(axes, everything.min(), everything.max())
        for name, values, marker in zip(predictors, found, "os^vD", strict=False):
            axes.plot(measured, values, marker, ms=5, alpha=0.8, color=COLORS.get(name), label=name)
        axes.set(xlabel="measured, ms", ylabel="predicted, ms", title=plain(title))
        axes.legend(frameon=False, loc="upper left")


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
    measured, predicted = times(points), as_measured(formula, points)
    shown = predicted[predicted > 0.0]
    error = float(np.median(np.abs(predicted / measured - 1.0)))
    drawn = np.concatenate([measured, shown])
    with _axes(path, 6.4, 6.2) as axes:
        _diagonal(axes, drawn.min(), drawn.max())
        kinds = ((False, "blocks", "o", "#0b6e99"), (True, "whole networks", "^", "#d1603d"))
        for whole, words, marker, color in kinds:
            which = np.array([p.whole == whole for p in points]) & (predicted > 0.0)
            if which.any():
                axes.plot(measured[which], predicted[which], marker, ms=4.5, alpha=0.7, color=color,
                          label=f"{which.sum()} {words}")  # fmt: skip
        axes.set(
            xlabel="measured, ms",
            ylabel=f"predicted by {formula.name}, ms",
            title=f"{plain(model.device)}: {len(points)} points",
        )
        axes.legend(frameon=False, title=f"median error {percent(error)}", loc="upper left")


def front_plot(answer: SearchAnswer, device: str, path: str) -> None:
    """Latency against score of all that a search scored, the front as a line; `path`: see `check_plot`."""
    result, search = answer.result, answer.search
    gray: dict[str, Any] = {"ls": "", "ms": 4, "alpha": 0.5, "color": "0.6"}
    line: dict[str, Any] = {"ms": 5, "lw": 1.2, "color": "#0b6e99"}
    with _axes(path, 6.4, 4.4) as axes:
        drawn = ((result.scored, "scored", gray), (result.front, "on the front", line))
        for candidates, what, style in drawn:
            times_ms, scores = [c.latency_ms for c in candidates], [c.score for c in candidates]
            axes.plot(times_ms, scores, marker="o", label=f"{len(candidates)} {what}", **style)
        if math.isfinite(search.max_ms):
            axes.axvline(search.max_ms, color="0.7", lw=1, ls=":")
        axes.set(
            xlabel=f"predicted latency, ms, batch {search.scorer.batch_size}",
            ylabel="score",
            title=plain(f"{search.space.name} on {device}"),
        )
        axes.legend(frameon=False, loc="lower right" if search.sign > 0 else "upper right")
