"""Every picture that a command makes, in a real browser: no text lies over another or is cut off."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lolat.model import Model
from lolat.report.plots import evaluation_plot, fit_plot
from tests import synthetic
from tests.browser.chromium import Chromium, cut_off, overlaps

ROOT = Path(__file__).parents[2]
FIGURES = sorted(ROOT.joinpath("docs", "figures").glob("*.svg"))
NARROW = [(2.0, 2.1), (3.1, 3.0), (4.2, 4.4)]
WIDE = [(0.002, 0.003), (1.0, 1.3), (90_000.0, 80_000.0)]


def rows(pairs: Sequence[tuple[float, float]]) -> list[dict[str, Any]]:
    return [{"measured_ms": m, "predicted_ms": p} for m, p in pairs]


def of_times(pairs: Sequence[tuple[float, float]]) -> Model:
    """A model whose points have these measured times."""
    made = synthetic.document()
    for point, (measured, _) in zip(made["points"], pairs, strict=False):
        point["latency_ms"] = measured
    del made["points"][len(pairs) :]
    return Model(made)


DRAWN: dict[str, Any] = {
    "fit": lambda path: fit_plot(Model(synthetic.document()), path),
    "fit, narrow": lambda path: fit_plot(of_times(NARROW), path),
    "fit, wide": lambda path: fit_plot(of_times(WIDE), path),
    "evaluation": lambda path: evaluation_plot(rows(NARROW), "t", path),
    "evaluation, wide": lambda path: evaluation_plot(rows(WIDE), "t", path),
}


@pytest.mark.parametrize("name", DRAWN)
def test_no_text_lies_over_another(browser: Chromium, tmp_path: Path, name: str) -> None:
    path = tmp_path / "p.svg"
    DRAWN[name](str(path))
    browser.size(1280)
    browser.open(path)
    assert browser.run("document.querySelectorAll('svg text, text').length") > 3
    assert overlaps(browser) == []
    assert cut_off(browser) == []


@pytest.mark.parametrize("path", FIGURES, ids=lambda path: path.stem)
def test_the_figures_of_the_documents(browser: Chromium, path: Path) -> None:
    browser.size(1280)
    browser.open(path)
    assert overlaps(browser) == []
    assert cut_off(browser) == []
