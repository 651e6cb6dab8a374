"""Every picture that a command makes, in a real browser: no text lies over another or is cut off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.report.test_comparison import result as compared

from lolat.io.results import element
from lolat.model import Model
from lolat.report.comparison import document, write_page
from lolat.report.plots import (
    Dot,
    bars,
    evaluation_plot,
    fit_plot,
    front_plot,
    frontier_chart,
    limits_of,
    scatter,
)
from tests import synthetic
from tests.browser.chromium import Chromium, cut_off, overlaps, violations

ROOT = Path(__file__).parents[2]
FIGURES = sorted(ROOT.joinpath("docs", "figures").glob("*.svg"))
STYLE = ROOT / "lolat" / "web" / "static" / "page.css"
NARROW = [(2.0, 2.1), (3.1, 3.0), (4.2, 4.4)]
WIDE = [(0.002, 0.003), (1.0, 1.3), (90_000.0, 80_000.0)]


def rows(pairs: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    return [{"measured_ms": m, "predicted_ms": p} for m, p in pairs]


def searched(times: Sequence[float]) -> Any:
    """What `nas search` found, as far as it is drawn."""
    found = [SimpleNamespace(latency_ms=t, score=0.7 + 0.01 * i) for i, t in enumerate(times)]
    scorer = SimpleNamespace(batch_size=1)
    space = SimpleNamespace(name="a space")
    search = SimpleNamespace(max_ms=times[-1], sign=1, scorer=scorer, space=space)
    return SimpleNamespace(result=SimpleNamespace(scored=found, front=found), search=search)


def of_times(pairs: Sequence[tuple[float, float]]) -> Model:
    """A model whose points have these measured times."""
    made = synthetic.document()
    for point, (measured, _) in zip(made["points"], pairs, strict=False):
        point["latency_ms"] = measured
    del made["points"][len(pairs) :]
    return Model(made)


def of_page(*pictures: str) -> Any:
    return lambda path: Path(path).write_text(document("pictures", pictures), encoding="utf-8")


def a_scatter(pairs: Sequence[tuple[float, float]]) -> str:
    measured, predicted = zip(*pairs, strict=True)
    names = [f"n{i}" for i in range(len(pairs))]
    return scatter("k", "t", "d", measured, predicted, names, limits_of([*measured, *predicted]))


LONG = [("a long name of a predictor", 1.0, "12.3 %"), ("two-regime", 4000.0, "123456 %")]
DRAWN: dict[str, Any] = {
    "fit": lambda path: fit_plot(Model(synthetic.document()), path),
    "fit, narrow": lambda path: fit_plot(of_times(NARROW), path),
    "fit, wide": lambda path: fit_plot(of_times(WIDE), path),
    "evaluation": lambda path: evaluation_plot(rows(NARROW), "t", path),
    "evaluation, wide": lambda path: evaluation_plot(rows(WIDE), "t", path),
    "search": lambda path: front_plot(searched([1.0, 2.0, 5.0]), "a desk", path),
    "search, wide": lambda path: front_plot(searched([0.001, 4e6]), "a desk", path),
    "scatter": of_page(a_scatter(NARROW)),
    "scatter, wide": of_page(a_scatter(WIDE)),
    "bars": of_page(bars("k", "t", "d", LONG)),
}


@pytest.mark.parametrize("name", DRAWN)
def test_no_text_lies_over_another(browser: Chromium, tmp_path: Path, name: str) -> None:
    path = tmp_path / ("p.html" if name.startswith(("scatter", "bars")) else "p.svg")
    DRAWN[name](str(path))
    browser.size(1280)
    browser.open(path)
    assert browser.run("document.querySelectorAll('svg text, text').length") > 3
    assert overlaps(browser) == []
    assert cut_off(browser) == []


def test_the_page_of_a_comparison(browser: Chromium, tmp_path: Path) -> None:
    """That of `lolat compare --html`, with all its charts; axe-core too."""
    path = tmp_path / "c.html"
    write_page(str(path), compared())
    for width, scheme in ((390, "dark"), (1280, "light")):
        browser.size(width)
        browser.media(scheme)
        browser.open(path)
        assert browser.run("document.querySelectorAll('svg').length") > 5
        assert overlaps(browser) == []
        assert cut_off(browser) == []
        assert violations(browser) == []


DOTS = {
    "one for each number of devices": [(2000.0 / n, 3.0 + 0.05 * n, str(n)) for n in (1, 2, 4, 8, 16, 32)],
    "all at one place": [(100.0 + 0.1 * i, 5.0, str(2**i)) for i in range(8)],
    "two models": [(s / n, 2.0 * k, str(n)) for k, s in ((1, 900.0), (2, 930.0)) for n in (1, 2, 4)],
    "at the edges": [(1.0, 9000.0, "4,096"), (9e6, 0.0004, "1")],
}  # fmt: skip


@pytest.mark.parametrize("name", DOTS)
def test_the_costs_of_many_ways_to_train(browser: Chromium, tmp_path: Path, name: str) -> None:
    """A label that has no room is left out; its dot says the same when pointed at."""
    dots = [Dot(s, d, label, i % 3, True) for i, (s, d, label) in enumerate(DOTS[name])]
    path = tmp_path / "p.html"
    style = element("style", STYLE.read_text(encoding="utf-8"), raw=True)
    path.write_text(
        "<meta name=viewport content=width=device-width>" + style + frontier_chart(dots, "d"),
        encoding="utf-8",
    )
    for width in (390, 1280):
        browser.size(width)
        browser.open(path)
        assert overlaps(browser) == []
        assert cut_off(browser) == []
    told = browser.run("[...document.querySelectorAll('circle title')].map(t => t.textContent)")
    assert [t.split(":")[0] for t in told] == [d.label for d in dots]


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_the_figures_of_the_documents(browser: Chromium, path: Path) -> None:
    browser.size(1280)
    browser.open(path)
    assert overlaps(browser) == []
    assert cut_off(browser) == []
