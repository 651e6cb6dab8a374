"""Charts as inline SVG, made on the server: an iteration's parts, and money against time.

Colours and sizes are classes of the page's style sheet; its policy allows no style in the page itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lolat.report.html import element, escape
from lolat.web.words import TIME_UNITS, dollars

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 300, 64, 24, 14, 44
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
    x, x_ticks = _axis([d.seconds / seconds for d in dots], LEFT, WIDTH - RIGHT)
    y, y_ticks = _axis([d.dollars for d in dots], HEIGHT - BOTTOM, TOP)
    parts = []
    for tick in x_ticks:
        parts.append(_line(x(tick), TOP, x(tick), HEIGHT - BOTTOM, "rule"))
        parts.append(
            element("text", f"{tick:,g}", x=x(tick), y=HEIGHT - BOTTOM + 16, class_="middle")
        )
    for tick in y_ticks:
        parts.append(_line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "rule"))
        parts.append(element("text", _money(tick), x=LEFT - 6, y=y(tick) + 4, class_="end"))
    middle = (LEFT + WIDTH - RIGHT) / 2
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
