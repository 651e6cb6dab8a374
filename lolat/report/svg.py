"""Small charts as inline SVG for a page of `lolat.report.html`: points on two logarithmic axes, bars.

Colours are classes of the page's style, so that a chart is dark where the page is. All text is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from lolat.report.html import element, escape

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
