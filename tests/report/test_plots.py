"""Charts and plots: what is drawn stands where its numbers say; it is said to those who do not see it."""

from __future__ import annotations

import math
import re
import struct
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.errors import InputError, MissingPackageError
from lolat.model import Model
from lolat.report.plots import (
    SQUARE,
    Dot,
    bar,
    bars,
    check_plot,
    evaluation_plot,
    fit_plot,
    frontier_chart,
    limits_of,
    scatter,
)
from tests import synthetic

ROWS: list[dict[str, Any]] = [
    {"measured_ms": 2.0, "predicted_ms": 2.1},
    {"measured_ms": 20.0, "predicted_ms": 18.0},
    {"measured_ms": 5.0, "predicted_ms": 7.0},
]
SVG = "{http://www.w3.org/2000/svg}"


def model(device: str = "a desk", **two_regime: Any) -> Model:
    document = synthetic.document(device=device)
    document["predictors"]["two-regime"] |= two_regime
    return Model(document)


def texts(path: Path) -> str:
    """All text of an SVG, which parses as XML."""
    return "|".join(ElementTree.parse(path).getroot().itertext())


def markers(path: Path) -> np.ndarray:
    """Where the data of an SVG are drawn, in its own coordinates; ticks and legend are not clipped."""
    clipped = [g for g in ElementTree.parse(path).getroot().iter(f"{SVG}g") if g.get("clip-path")]
    # The band of agreement is used too, at the origin.
    drawn = [u for g in clipped for u in g.iter(f"{SVG}use") if u.attrib["x"] != "0"]
    return np.array([[float(u.attrib["x"]), float(u.attrib["y"])] for u in drawn])


def per_decade(drawn: np.ndarray, values: Any) -> float:
    """How far a factor of ten is on a logarithmic axis, which all of the values must lie on."""
    logs = np.log10(values)
    slope, start = np.polyfit(logs, drawn, 1)
    assert drawn == pytest.approx(start + slope * logs, abs=0.01)
    return float(slope)


def test_measured_against_predicted(tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    evaluation_plot(ROWS, "three networks", str(path))
    x, y = markers(path).T
    measured = [r["measured_ms"] for r in ROWS]
    predicted = [r["predicted_ms"] for r in ROWS]
    right = per_decade(x, measured)
    assert right > 0
    assert per_decade(y, predicted) == pytest.approx(-right, rel=1e-3)  # up, on the same scale
    assert "three networks" in texts(path)


@pytest.mark.parametrize("name", ["plot.png", "PLOT.PNG"])
def test_a_png(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    evaluation_plot(ROWS, "three networks", str(path))
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert min(struct.unpack(">II", content[16:24])) > 500


def test_the_fit(tmp_path: Path) -> None:
    """By hand: each point at its time to the right, and up at what the default predictor says of it."""
    path = tmp_path / "fit.svg"
    fit_plot(model(), str(path))
    document = synthetic.document()
    assert document["default"] == "extended"
    formula = dict(document["predictors"]["extended"]["coefficients"])
    call = formula.pop("call")
    points = document["points"]
    sums = [sum(c * p[f] for f, c in formula.items()) + call for p in points]
    x, y = markers(path).T
    right = per_decade(x, [p["latency_ms"] for p in points])
    assert right > 0
    assert per_decade(y, sums) == pytest.approx(-right, rel=1e-3)
    assert "a desk: 105 points" in texts(path)
    assert "105 blocks" in texts(path)
    assert "predicted by extended, ms" in texts(path)


def test_whole_networks_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "fit.svg"
    document = synthetic.document()
    for point in document["points"][:5]:
        point["whole"] = True
    fit_plot(Model(document), str(path))
    assert {"100 blocks", "5 whole networks"} <= set(texts(path).split("|"))


def test_points_of_nothing_are_left_out(tmp_path: Path) -> None:
    """All coefficients 0: the time of each point is 0, which a logarithm does not have."""
    path = tmp_path / "a.svg"
    document = synthetic.document()
    found = document["predictors"]["extended"]["coefficients"]
    document["predictors"]["extended"] = {"coefficients": dict.fromkeys(found, 0.0)}
    fit_plot(Model(document), str(path))
    assert len(markers(path)) == 0
    assert "105 points" in texts(path)


def test_a_device_name_is_text_and_no_formula(tmp_path: Path) -> None:
    path = tmp_path / "fit.svg"
    fit_plot(model("$5 \\frac VPS$ <b>&\x1b"), str(path))
    assert "$5 \\frac VPS$ <b>&\\x1b: 105 points" in texts(path)


def test_a_users_own_settings_stay(tmp_path: Path) -> None:
    before = dict(matplotlib.rcParams)
    fit_plot(model(), str(tmp_path / "fit.svg"))
    assert dict(matplotlib.rcParams) == before
    if "matplotlib.pyplot" in sys.modules:
        assert sys.modules["matplotlib.pyplot"].get_fignums() == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, r"ends in \.svg or \.png") for name in ("plot.pdf", "plot", "svg", "plot.svg.txt")),
        ("no/fit.svg", "no folder"),
        ("folder.svg", "is a folder"),
    ],
)  # fmt: skip
def test_where_no_plot_can_be(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "folder.svg").mkdir()
    for draw in (check_plot, lambda path: fit_plot(model(), path)):
        with pytest.raises(InputError, match=words):
            draw(str(tmp_path / name))
    assert [p.name for p in tmp_path.iterdir()] == ["folder.svg"]


def test_without_matplotlib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install .*\[plot\]'"):
        check_plot(str(tmp_path / "fit.svg"))


def test_a_model_without_points(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no points to draw"):
        fit_plot(Model(synthetic.document() | {"points": []}), str(tmp_path / "a.svg"))


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
