"""Charts: where things are drawn, by hand; what is said to those who do not see them."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.report.charts import BOTTOM, LEFT, RIGHT, SIZE, TOP, bars, limits_of, scatter

WIDTH, HEIGHT = SIZE - LEFT - RIGHT, SIZE - TOP - BOTTOM


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
