"""Charts as inline SVG, made on the server: an iteration's parts, and money against time.

Colours and sizes are classes of the page's style sheet; its policy allows no style in the page itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lolat.report.html import element, escape
from lolat.units import TIME_UNITS, dollars

# ---- Small charts as inline SVG for a page of `lolat.report.html`: points on two logarithmic
# axes, bars.
#
# Colours are classes of the page's style, so that a chart is dark where the page is. All text is escaped.

SIZE, LEFT, BOTTOM, TOP, RIGHT = 260, 42, 36, 8, 16
BAND = 0.1
ROW, LABEL, VALUE, BAR_WIDTH = 24, 130, 64, 260
MOST_MAGNITUDE = 12.0  # decades to either side of 1 that an axis can show


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
    low, high = (math.log10(end) for end in limits)
    width, height = SIZE - LEFT - RIGHT, SIZE - TOP - BOTTOM

    def at(value: float) -> float:
        """Where a value lies, 0 to 1."""
        decades = math.log10(value) if value > 0 else -math.inf
        return min(1.0, max(0.0, (decades - low) / (high - low)))

    def x(value: float) -> float:
        return LEFT + width * at(value)

    def y(value: float) -> float:
        return TOP + height * (1.0 - at(value))

    parts = [element("rect", "", x=LEFT, y=TOP, width=width, height=height, class_="frame")]
    for tick in _decades(limits):
        text = f"{tick:g}"
        parts += [
            element("line", "", x1=x(tick), x2=x(tick), y1=TOP, y2=TOP + height, class_="grid"),
            element("line", "", x1=LEFT, x2=LEFT + width, y1=y(tick), y2=y(tick), class_="grid"),
            element("text", text, x=x(tick), y=TOP + height + 14, class_="tick middle"),
            element("text", text, x=LEFT - 5, y=y(tick) + 4, class_="tick end"),
        ]
    first, last = limits
    corners = [
        (first, first * (1 + BAND)),
        (last / (1 + BAND), last),
        (last, last),
        (last, last * (1 - BAND)),
        (first / (1 - BAND), first),
        (first, first),
    ]
    band = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in corners)
    parts.append(element("polygon", "", points=band, class_="band"))
    parts.append(element("line", x1=x(first), y1=y(first), x2=x(last), y2=y(last), class_="equal"))
    for a, b, name in zip(measured, predicted, names, strict=True):
        told = f"{name}: measured {a:.3g} ms, predicted {b:.3g} ms"
        tip = element("title", told)
        parts.append(element("circle", tip, raw=True, cx=x(a), cy=y(b), r=3, class_="point"))
    middle = LEFT + width / 2
    parts.append(element("text", "measured, ms", x=middle, y=SIZE - 5, class_="axis middle"))
    turned = f"translate(11 {TOP + height / 2:.1f}) rotate(-90)"
    parts.append(element("text", "predicted, ms", transform=turned, class_="axis middle"))
    return _svg(key, title, description, SIZE, SIZE, parts)


def limits_of(values: Sequence[float]) -> tuple[float, float]:
    """Ends of a logarithmic axis for positive values: a little beyond the smallest and largest."""
    least, most = 10**-MOST_MAGNITUDE, 10**MOST_MAGNITUDE
    seen = [min(max(v, least), most) for v in values if v > 0] or [1.0]
    return min(seen) / 1.4, max(seen) * 1.4


def bars(
    key: str, title: str, description: str, rows: Sequence[tuple[str, float, str]], marked: str = ""
) -> str:
    """Horizontal bars as an <svg>: rows of (label, length >= 0, what stands at its end).

    The row whose label is `marked` stands out; `key`: see `scatter`.
    """
    longest = max((length for _, length, _ in rows), default=0.0) or 1.0
    parts = []
    for i, (label, length, text) in enumerate(rows):
        top, base = i * ROW, i * ROW + 16
        size = max(1.0, BAR_WIDTH * length / longest)
        class_ = "bar marked" if label == marked else "bar"
        parts += [
            element("text", label, x=LABEL - 8, y=base, class_="label end"),
            element("rect", "", x=LABEL, y=top + 4, width=size, height=ROW - 8, class_=class_),
            element("text", text, x=LABEL + size + 6, y=base, class_="label"),
        ]
    return _svg(key, title, description, LABEL + BAR_WIDTH + VALUE, max(1, len(rows)) * ROW, parts)


def _decades(limits: tuple[float, float]) -> list[float]:
    """Ticks: powers of ten between the ends, thinned where they are many."""
    first, last = math.ceil(math.log10(limits[0])), math.floor(math.log10(limits[1]))
    step = max(1, math.ceil((last - first + 1) / 5))
    return [10.0**n for n in range(first, last + 1, step)]


def _svg(
    key: str, title: str, description: str, width: int, height: int, parts: Sequence[str]
) -> str:
    """An image with a title and a description, for those who do not see it."""
    told = element("title", title, id=f"{key}-title") + element(
        "desc", description, id=f"{key}-desc"
    )
    return (
        f'<svg role="img" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'aria-labelledby="{escape(key)}-title {escape(key)}-desc">{told}{"".join(parts)}</svg>'
    )


# ---- charts ----------------------------------------

WIDTH, HEIGHT, LEFT_CHARTS, RIGHT_CHARTS, TOP_CHARTS, BOTTOM_CHARTS = 560, 300, 64, 24, 14, 44
SERIES = 6
"""Colours that the style sheet has."""
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


def bar(share: float, series: int = 0) -> str:
    """A bar of that share (0 to 1) of its box, for a cell of a table that says the number."""
    size = f"{100 * min(max(share, 0.0), 1.0):.2f}"
    drawn = element("rect", width=size, height=10, class_=f"s{series % SERIES}")
    return (
        '<svg class="share" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f"{drawn}</svg>"
    )


def frontier_chart(dots: Sequence[Dot], description: str) -> str:
    """Money over time, with a line through what nothing beats in both; a table says the same."""
    unit, seconds = _unit([d.seconds for d in dots])
    x, x_ticks = _axis([d.seconds / seconds for d in dots], LEFT_CHARTS, WIDTH - RIGHT_CHARTS)
    y, y_ticks = _axis([d.dollars for d in dots], HEIGHT - BOTTOM_CHARTS, TOP_CHARTS)
    parts = []
    for tick in x_ticks:
        parts.append(_line(x(tick), TOP_CHARTS, x(tick), HEIGHT - BOTTOM_CHARTS, "rule"))
        parts.append(
            element("text", f"{tick:,g}", x=x(tick), y=HEIGHT - BOTTOM_CHARTS + 16, class_="middle")
        )
    for tick in y_ticks:
        parts.append(_line(LEFT_CHARTS, y(tick), WIDTH - RIGHT_CHARTS, y(tick), "rule"))
        parts.append(element("text", _money(tick), x=LEFT_CHARTS - 6, y=y(tick) + 4, class_="end"))
    middle = (LEFT_CHARTS + WIDTH - RIGHT_CHARTS) / 2
    parts.append(
        element(
            "text", f"time of the whole training, {unit}", x=middle, y=HEIGHT - 8, class_="middle"
        )
    )
    front = sorted((d for d in dots if d.on_frontier), key=lambda d: (d.seconds, -d.dollars))
    if len(front) > 1:
        points = " ".join(f"{x(d.seconds / seconds):.1f},{y(d.dollars):.1f}" for d in front)
        parts.append(element("polyline", points=points, class_="frontier"))
    for dot in dots:
        across, up = x(dot.seconds / seconds), y(dot.dollars)
        kind = f"dot s{dot.series % SERIES}{'' if dot.on_frontier else ' off'}"
        told = element(
            "title", f"{dot.label}: {dot.seconds / seconds:,.3g} {unit}, {dollars(dot.dollars)}"
        )
        parts.append(element("circle", told, raw=True, cx=across, cy=up, r=5, class_=kind))
        parts.append(element("text", dot.label, x=across, y=up - 10, class_="label middle"))
    named = element("title", "Cost against time", id="frontier-title")
    named += element("desc", description, id="frontier-desc")
    return (
        f'<svg role="img" class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'aria-labelledby="frontier-title frontier-desc">{named}{"".join(parts)}</svg>'
    )


def key(series: int) -> str:
    """The mark of a model in the chart, to stand before its name."""
    dot = element("circle", cx=6, cy=6, r=5, class_=f"dot s{series % SERIES}")
    return f'<svg class="key" viewBox="0 0 12 12" aria-hidden="true">{dot}</svg>'


def _line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=escape(class_))


def _unit(seconds: Sequence[float]) -> tuple[str, float]:
    """The largest unit in which the longest time is 2 or more."""
    fits = [u for u in TIME_UNITS if u[1] * 2 <= max(seconds)]
    return fits[-1] if fits else TIME_UNITS[0]


def _money(value: float) -> str:
    return f"${value:,g}"


def _axis(
    values: Sequence[float], start: float, end: float
) -> tuple[Callable[[float], float], list[float]]:
    """(where a value lies between `start` and `end`, the ticks): from 0, or logarithmic if they spread."""
    most = max(values, default=0.0) or 1.0
    least = min((v for v in values if v > 0), default=most)
    if most / least > SPREAD and all(v > 0 for v in values):
        low, high = math.log10(least / 1.3), math.log10(most * 1.3)

        def at(value: float) -> float:
            return start + (end - start) * (math.log10(value) - low) / (high - low)

        return at, _log_ticks(10**low, 10**high)
    top = 1.12 * most
    step = _step(top / 5)
    ticks = [step * i for i in range(int(top / step) + 1)]
    return (lambda value: start + (end - start) * value / top), [float(f"{t:.10g}") for t in ticks]


def _step(rough: float) -> float:
    """1, 2 or 5 times a power of ten, at least `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * m for m in (1, 2, 5, 10) if power * m >= rough * 0.999)


def _log_ticks(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [10.0**p * m for p in powers for m in (1, 2, 5)]
    inside = [float(f"{t:.10g}") for t in every if low <= t <= high]
    return inside[:: max(1, math.ceil(len(inside) / 7))]
