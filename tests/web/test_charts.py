"""Charts: where dots lie, and that they are well-formed images; words for numbers."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.report.charts import Dot, bar, frontier_chart
from lolat.units import dollars, duration, gibibytes, plural

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
    assert [gibibytes(n * 2**30) for n in (0.05, 7.344, 120)] == ["0.05 GiB", "7.34 GiB", "120 GiB"]
    assert [plural(n, "device") for n in (1, 4096)] == ["1 device", "4,096 devices"]
