"""Charts: where things are drawn, by hand; what is said to those who do not see them."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.report.plots import SQUARE, Dot, bar, bars, frontier_chart, limits_of, scatter
from lolat.units import dollars, duration, plural

LEFT, TOP = SQUARE.left, SQUARE.top
WIDTH, HEIGHT = SQUARE.across[1] - LEFT, SQUARE.up[0] - TOP


def drawn(measured: list[float], predicted: list[float], names: list[str] | None = None,
          limits: tuple[float, float] = (1.0, 100.0)) -> ElementTree.Element:  # fmt: skip
    names = names or ["p"] * len(measured)
    return ElementTree.fromstring(scatter("k", "t", "d", measured, predicted, names, limits))


def centres(chart: ElementTree.Element) -> list[tuple[float, float]]:
    return [(float(c.get("cx", "")), float(c.get("cy", ""))) for c in chart.findall("circle")]


def test_points_lie_where_their_logarithms_are() -> None:
    found = centres(drawn([1.0, 10.0, 100.0], [100.0, 10.0, 1.0]))
    expected = [(LEFT, TOP), (LEFT + WIDTH / 2, TOP + HEIGHT / 2), (LEFT + WIDTH, TOP + HEIGHT)]
    for place, other in zip(found, expected, strict=True):
        assert place == pytest.approx(other, abs=0.1)


def test_what_lies_beyond_the_axes_is_at_their_edge() -> None:
    found = centres(drawn([10.0] * 4, [0.0, -3.0, 1e9, math.inf]))
    assert [y for _, y in found] == pytest.approx([TOP + HEIGHT, TOP + HEIGHT, TOP, TOP])


def test_the_band_is_ten_percent_to_either_side() -> None:
    chart = drawn([10.0], [10.0], limits=(1.0, 1e4))
    corners = [
        tuple(map(float, p.split(",")))
        for p in chart.find("polygon").get("points", "").split()  # type: ignore[union-attr]
    ]

    def value(corner: tuple[float, ...]) -> tuple[float, float]:
        """Milliseconds at a place."""
        x, y = corner
        return 10 ** (4 * (x - LEFT) / WIDTH), 10 ** (4 * (TOP + HEIGHT - y) / HEIGHT)

    ratios = sorted(y / x for x, y in map(value, corners))
    assert ratios == pytest.approx([0.9, 0.9, 1.0, 1.0, 1.1, 1.1], abs=0.005)


def test_ticks_are_powers_of_ten() -> None:
    chart = drawn([1.0], [1.0], limits=(0.05, 2000.0))
    ticks = [t.text for t in chart.findall("text") if "tick" in t.get("class", "")]
    assert sorted(set(ticks), key=lambda t: float(t or 0)) == ["0.1", "1", "10", "100", "1000"]


def test_a_chart_is_named_and_described() -> None:
    chart = drawn([10.0], [20.0], ["a <b>"])
    assert chart.get("role") == "img"
    assert chart.get("aria-labelledby") == "k-title k-desc"
    told = {e.get("id"): e.text for e in chart if e.get("id")}
    assert told == {"k-title": "t", "k-desc": "d"}
    assert chart.find("circle/title").text == "a <b>: measured 10 ms, predicted 20 ms"  # type: ignore[union-attr]


@given(st.lists(st.floats(min_value=1e-6, max_value=1e9), min_size=1))
def test_limits_hold_all_values(values: list[float]) -> None:
    low, high = limits_of(values)
    assert low < min(values) <= max(values) < high


@pytest.mark.parametrize("values", [[], [0.0, -1.0], [math.inf], [1e300], [1e-300]])
def test_limits_of_what_cannot_be_drawn_are_limits(values: list[float]) -> None:
    low, high = limits_of(values)
    assert 0 < low < high < math.inf
    assert len(drawn([1.0], [1.0], limits=(low, high)).findall("circle")) == 1


def test_bars_are_as_long_as_their_values() -> None:
    text = bars("k", "t", "d", [("a", 1.0, "1 %"), ("b<", 4.0, "4 %"), ("c", 0.0, "0")], "b<")
    chart = ElementTree.fromstring(text)
    widths = [float(r.get("width", "")) for r in chart.findall("rect")]
    assert widths[1] == pytest.approx(4 * widths[0])
    assert widths[2] == 1.0  # still to be seen
    assert [r.get("class") for r in chart.findall("rect")] == ["bar", "bar marked", "bar"]
    assert [t.text for t in chart.findall("text")] == ["a", "1 %", "b<", "4 %", "c", "0"]
    assert float(chart.get("height", "")) > max(
        float(r.get("y", "")) for r in chart.findall("rect")
    )


def test_bars_of_nothing() -> None:
    assert ElementTree.fromstring(bars("k", "t", "d", [])).findall("rect") == []


numbers = st.floats(1e-3, 1e9)


def dots(*points: tuple[float, float], on: bool = True) -> list[Dot]:
    return [Dot(s, d, str(i), i, on) for i, (s, d) in enumerate(points)]


def circles(svg: str) -> list[tuple[float, float]]:
    found = ElementTree.fromstring(svg).iter("circle")
    return [(float(c.attrib["cx"]), float(c.attrib["cy"])) for c in found]


def test_on_plain_axes_distances_are_proportional() -> None:
    svg = frontier_chart(dots((100, 4), (200, 2), (400, 1)), "three")
    (x1, y1), (x2, y2), (x4, y4) = circles(svg)
    assert (x4 - x2) / (x2 - x1) == pytest.approx(2, abs=0.01)
    assert (y4 - y2) / (y2 - y1) == pytest.approx(0.5, abs=0.01)
    assert x1 < x4
    assert y1 < y4  # more money is higher up


def test_what_spreads_far_is_on_logarithmic_axes() -> None:
    svg = frontier_chart(dots((10, 1000), (1000, 10), (100_000, 0.1)), "three")
    xs, ys = zip(*circles(svg), strict=True)
    assert xs[1] - xs[0] == pytest.approx(xs[2] - xs[1], abs=0.11)
    assert ys[1] - ys[0] == pytest.approx(ys[2] - ys[1], abs=0.11)


@given(st.lists(st.tuples(numbers, st.one_of(st.just(0.0), numbers)), min_size=1, max_size=20))
def test_every_dot_lies_in_the_image(points: list[tuple[float, float]]) -> None:
    svg = frontier_chart(dots(*points), "many")
    assert len(circles(svg)) == len(points)
    for x, y in circles(svg):
        assert 0 <= x <= 560
        assert 0 <= y <= 300
    assert "nan" not in svg
    ticks = [t.text for t in ElementTree.fromstring(svg).iter("text")]
    assert 2 <= len(ticks) <= len(points) + 40


def test_the_line_joins_the_frontier_alone() -> None:
    points = [Dot(1, 4, "a", 0, True), Dot(2, 5, "b", 0, False), Dot(4, 1, "c", 1, True)]
    svg = frontier_chart(points, "three")
    line = re.search(r'<polyline points="([^"]*)"', svg)
    assert line is not None
    assert len(line[1].split()) == 2
    assert 'class="dot s0 off"' in svg
    assert "<polyline" not in frontier_chart(points[:1], "one")


def test_words_in_a_chart_are_text() -> None:
    svg = frontier_chart([Dot(1, 1, "<b>&", 0, True)], "<script>")
    ElementTree.fromstring(svg)
    assert "<script>" not in svg


@pytest.mark.parametrize(("share", "width"), [(0.25, "25.00"), (-1, "0.00"), (7, "100.00")])
def test_a_bar_is_as_wide_as_its_share(share: float, width: str) -> None:
    assert f'width="{width}"' in bar(share)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.25, "250 ms"), (12.34, "12.3 s"), (99.99, "1 min 40 s"), (3599.6, "1 h 00 min"),
     (11100, "3 h 05 min"), (71.99 * 3600, "71 h 59 min"), (100 * 3600, "4 days 4 h"),
     (3e9, "34,722 days 5 h")],
)  # fmt: skip
def test_durations(seconds: float, said: str) -> None:
    assert duration(seconds) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [(0, "$0.00"), (0.0042, "$0.0042"), (0.1, "$0.10"), (9.8, "$9.80"), (12345.6, "$12,346")],
)
def test_money(value: float, said: str) -> None:
    assert dollars(value) == said


def test_memory_and_plurals() -> None:
    assert [plural(n, "device") for n in (1, 4096)] == ["1 device", "4,096 devices"]
