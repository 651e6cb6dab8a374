"""Small charts as inline SVG, for pages; plots in files with matplotlib (the extra `plot`), for `--plot`.

In a page colors and sizes are classes of its style sheet, so that a chart is dark where the page is, and no
policy is broken by a style in the page itself. All text is escaped.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lolat.errors import InputError, MissingPackageError, arg
from lolat.fitting.points import Point, times
from lolat.io.results import element, escape
from lolat.io.writing import check_file, write_bytes
from lolat.model import Model
from lolat.model.learning import as_measured
from lolat.units import TIME_UNITS, dollars, percent, plain

if TYPE_CHECKING:
    from lolat.nas.pareto import SearchAnswer

Scale = Callable[[float], float]
"""Where a value lies in the picture."""


@dataclass(frozen=True)
class Frame:
    """A picture with room around what is drawn in it, in units of its view box."""

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float

    @property
    def across(self) -> tuple[float, float]:
        """Where the x axis begins and ends."""
        return self.left, self.width - self.right

    @property
    def up(self) -> tuple[float, float]:
        """Where the y axis begins (below) and ends."""
        return self.height - self.bottom, self.top


SQUARE = Frame(260, 260, left=42, right=16, top=8, bottom=36)
WIDE = Frame(560, 300, left=64, right=24, top=14, bottom=44)
BAND = 0.1
ROW, LABEL, VALUE, BAR_WIDTH = 24, 130, 64, 260
MOST_MAGNITUDE = 12.0  # decades to either side of 1 that an axis can show
MOST_TICKS = 7
LINE, WIDEST_LETTER = 20, 8  # of a label, in units of the view box
LARGE = 1.3  # times as large are a wide picture's labels on a phone
SERIES = 6
"""Colors that the style sheet has."""
SPREAD = 12.0
"""An axis whose largest value is more than so many times its smallest is logarithmic."""


@dataclass(frozen=True)
class Dot:
    """One way to train: seconds, dollars, what it is called, and the model (by number) that it is of."""

    seconds: float
    dollars: float
    label: str
    series: int
    on_frontier: bool


def scatter(
    key: str,
    title: str,
    description: str,
    measured: Sequence[float],
    predicted: Sequence[float],
    names: Sequence[str],
    limits: tuple[float, float],
) -> str:
    """Measured (x) against predicted (y), both in ms on the same logarithmic axis, as an <svg>.

    `key`: unique in the page, of letters, digits and hyphens; `names`: what a point says when pointed at;
    `limits`: the ends of the axes, see `limits_of`; what lies beyond is drawn at the edge. The line is
    where the two are equal, the band 10 % to either side.
    """
    frame = SQUARE
    x, y = _logarithmic(*limits, *frame.across), _logarithmic(*limits, *frame.up)
    (left, right), (bottom, top) = frame.across, frame.up
    wide, high = right - left, bottom - top
    parts = [element("rect", x=left, y=top, width=wide, height=high, class_="frame")]
    ticks = log_ticks(*limits)
    parts += _grid(frame, [(x(t), _short(t)) for t in ticks], [(y(t), _short(t)) for t in ticks],
                   "grid", "tick ")  # fmt: skip
    first, last = limits
    more, less = 1 + BAND, 1 - BAND
    corners = [(first, first * more), (last / more, last), (last, last)]
    corners += [(last, last * less), (first / less, first), (first, first)]
    band = _points((x(a), y(b)) for a, b in corners)
    parts.append(element("polygon", points=band, class_="band"))
    parts.append(_line(x(first), y(first), x(last), y(last), "equal"))
    for a, b, name in zip(measured, predicted, names, strict=True):
        told = f"{name}: measured {a:.3g} ms, predicted {b:.3g} ms"
        parts.append(_circle(x(a), y(b), 3, "point", told))
    middle = (left + right) / 2
    below = frame.height - 5
    parts.append(element("text", "measured, ms", x=middle, y=below, class_="axis middle"))
    turned = f"translate(11 {(top + bottom) / 2:.1f}) rotate(-90)"
    parts.append(element("text", "predicted, ms", transform=turned, class_="axis middle"))
    return _image(key, title, description, frame.width, frame.height, parts)


def limits_of(values: Sequence[float]) -> tuple[float, float]:
    """Ends of a logarithmic axis for positive values: a little beyond the smallest and largest."""
    least, most = 10**-MOST_MAGNITUDE, 10**MOST_MAGNITUDE
    positive = [min(max(v, least), most) for v in values if v > 0] or [1.0]
    return min(positive) / 1.4, max(positive) * 1.4


def bars(
    key: str, title: str, description: str, rows: Sequence[tuple[str, float, str]], marked: str = ""
) -> str:
    """Horizontal bars as an <svg>: rows of (label, length >= 0, what stands at its end).

    The row whose label is `marked` stands out; `key`: see `scatter`.
    """
    longest = max((length for _, length, _ in rows), default=0.0) or 1.0
    left = max([LABEL, *(_room(label) for label, _, _ in rows)])
    right = max([VALUE, *(_room(text) for _, _, text in rows)])
    parts = []
    for i, (label, length, text) in enumerate(rows):
        top, base = i * ROW, i * ROW + 16
        size = max(1.0, BAR_WIDTH * length / longest)
        class_ = "bar marked" if label == marked else "bar"
        parts += [
            element("text", label, x=left - 8, y=base, class_="label end"),
            element("rect", x=left, y=top + 4, width=size, height=ROW - 8, class_=class_),
            element("text", text, x=left + size + 6, y=base, class_="label"),
        ]
    width = left + BAR_WIDTH + right
    return _image(key, title, description, width, max(1, len(rows)) * ROW, parts)


def frontier_chart(dots: Sequence[Dot], description: str) -> str:
    """Money over time, with a line through what nothing beats in both; a table says the same."""
    unit, seconds = _unit([d.seconds for d in dots])
    y, y_ticks = _axis([d.dollars for d in dots], *WIDE.up)
    up = [(y(t), f"${t:,g}") for t in y_ticks]
    frame = replace(WIDE, left=max(WIDE.left, *(LARGE * _room(words) for _, words in up)))
    x, x_ticks = _axis([d.seconds / seconds for d in dots], *frame.across)
    parts = _grid(frame, [(x(t), f"{t:,g}") for t in x_ticks], up, "rule", "")
    named = f"time of the whole training, {unit}"
    middle = sum(frame.across) / 2
    parts.append(element("text", named, x=middle, y=frame.height - 8, class_="middle"))
    best = sorted((d for d in dots if d.on_frontier), key=lambda d: (d.seconds, -d.dollars))
    if len(best) > 1:
        line = _points((x(d.seconds / seconds), y(d.dollars)) for d in best)
        parts.append(element("polyline", points=line, class_="frontier"))
    taken: list[tuple[float, float, float]] = []
    for dot in dots:
        at = x(dot.seconds / seconds), y(dot.dollars)
        kind = f"dot s{dot.series % SERIES}{'' if dot.on_frontier else ' off'}"
        told = f"{dot.label}: {dot.seconds / seconds:,.3g} {unit}, {dollars(dot.dollars)}"
        parts.append(_circle(*at, 5, kind, told))
        parts += _beside(frame, at, dot.label, taken)
    title = "Cost against time"
    return _image("frontier", title, description, frame.width, frame.height, parts, "chart")


def bar(share: float, series: int = 0, sure: tuple[float, float] | None = None) -> str:
    """A bar of that share (0 to 1) of its box, for a cell of a table that says the number.

    `sure`: where an interval begins and ends, likewise; a thin line over the bar.
    """

    def part(start: float, end: float, y: float, height: float, class_: str) -> str:
        low, high = (100 * min(max(x, 0.0), 1.0) for x in (start, end))
        return element(
            "rect", x=f"{low:.2f}", width=f"{high - low:.2f}", y=y, height=height, class_=class_
        )

    drawn = part(0.0, share, 0, 10, f"s{series % SERIES}")
    drawn += part(*sure, 4, 2, "sure") if sure else ""
    return (
        '<svg class="share" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f"{drawn}</svg>"
    )


def key(series: int) -> str:
    """The mark of a model in the chart, to stand before its name."""
    dot = _circle(6, 6, 5, f"dot s{series % SERIES}")
    return f'<svg class="key" viewBox="0 0 12 12" aria-hidden="true">{dot}</svg>'


# ---- Parts of a picture


def _room(text: str) -> float:
    """The width that a label and a gap take at most."""
    return WIDEST_LETTER * len(text) + 10


def _short(value: float) -> str:
    """A tick of a small picture."""
    return f"{value:g}" if value < 1e4 else f"{value / 1e3:g} k"


def _beside(
    frame: Frame, at: tuple[float, float], label: str, taken: list[tuple[float, float, float]]
) -> list[str]:
    """A label above or below its dot where there is room, else none; `taken`: (x, y, half) of labels."""
    half = LARGE * _room(label) / 2
    x = min(max(at[0], half), frame.width - half)
    for y in (at[1] - 10, at[1] + 20):
        inside = LINE < y < frame.up[0]
        if inside and all(abs(x - a) >= half + w or abs(y - b) >= LINE for a, b, w in taken):
            taken.append((x, y, half))
            return [element("text", label, x=x, y=y, class_="label middle")]
    return []


def _image(
    key: str,
    title: str,
    description: str,
    width: float,
    height: float,
    parts: Sequence[str],
    class_: str = "",
) -> str:
    """An image with a title and a description, for those who do not see it."""
    told = element("title", title, id=f"{key}-title")
    told += element("desc", description, id=f"{key}-desc")
    size = f'class="{class_}"' if class_ else f'width="{width}" height="{height}"'
    return (
        f'<svg role="img" {size} viewBox="0 0 {width} {height}" '
        f'aria-labelledby="{escape(key)}-title {escape(key)}-desc">{told}{"".join(parts)}</svg>'
    )


def _grid(
    frame: Frame,
    across: Sequence[tuple[float, str]],
    up: Sequence[tuple[float, str]],
    line: str,
    text: str,
) -> list[str]:
    """Lines at the ticks of both axes, (where, its words); `line`, `text`: classes."""
    (left, right), (bottom, top) = frame.across, frame.up
    parts = []
    for at, words in across:
        parts.append(_line(at, top, at, bottom, line))
        parts.append(element("text", words, x=at, y=bottom + 15, class_=f"{text}middle"))
    for at, words in up:
        parts.append(_line(left, at, right, at, line))
        parts.append(element("text", words, x=left - 6, y=at + 4, class_=f"{text}end"))
    return parts


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def _circle(x: float, y: float, radius: float, class_: str, told: str = "") -> str:
    """A dot; `told`: what it says when pointed at."""
    tip = element("title", told) if told else ""
    return element("circle", tip, raw=True, cx=x, cy=y, r=radius, class_=class_)


def _points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


# ---- Axes


def _axis(values: Sequence[float], start: float, end: float) -> tuple[Scale, list[float]]:
    """Where values lie between `start` and `end`, and the ticks: from 0, or logarithmic if they spread."""
    most = max(values, default=0.0) or 1.0
    least = min((v for v in values if v > 0), default=most)
    if most / least > SPREAD and all(v > 0 for v in values):
        low, high = least / 1.3, most * 1.3
        return _logarithmic(low, high, start, end), log_ticks(low, high)
    top = 1.12 * most
    power = 10.0 ** math.floor(math.log10(top / 5))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= top / 5 * 0.999)
    ticks = [float(f"{step * i:.10g}") for i in range(int(top / step) + 1)]
    return lambda value: start + (end - start) * value / top, ticks


def _logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """A scale from `low` to `high`; what lies beyond is at its end."""
    first, last = math.log10(low), math.log10(high)

    def at(value: float) -> float:
        decades = math.log10(value) if value > 0 else -math.inf
        return start + (end - start) * min(1.0, max(0.0, (decades - first) / (last - first)))

    return at


def log_ticks(low: float, high: float) -> list[float]:
    """Ticks of a logarithmic axis from `low` to `high`: seven at most, the densest that are regular."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for factors in ((1, 1.5, 2, 3, 5, 7), (1, 2, 5), (1, 3)):
        ticks = [10.0**n * m for n in range(first, last + 1) for m in factors]
        inside = [float(f"{t:.10g}") for t in ticks if low <= t <= high]
        if len(inside) <= MOST_TICKS:
            return inside
    step = math.ceil((last - first + 1) / MOST_TICKS)
    return [t for n in range(first, last + 1, step) if low <= (t := float(f"1e{n}")) <= high]


def _unit(seconds: Sequence[float]) -> tuple[str, float]:
    """The largest unit in which the longest time is 2 or more."""
    fits = [u for u in TIME_UNITS if u[1] * 2 <= max(seconds)]
    return fits[-1] if fits else TIME_UNITS[0]


# ---- Plots in files.

FORMATS = (".svg", ".png")


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


def evaluation_plot(rows: Sequence[dict[str, Any]], title: str, path: str) -> None:
    """Measured against predicted latencies of whole networks.

    `rows`: the "networks" of `microbench.evaluate.compare`; `path`: see `check_plot`.
    """
    measured, predicted = (np.array([r[k] for r in rows]) for k in ("measured_ms", "predicted_ms"))
    everything = np.concatenate([measured, predicted])
    with _axes(path, 6.4, 6.0) as axes:
        _diagonal(axes, everything.min(), everything.max())
        axes.plot(measured, predicted, "o", ms=5, alpha=0.8, color="#0b6e99", label="networks")
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
