"""The table of a report in the terminal: bars, columns, what is cut where there is no room."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from lolat.model import Model
from lolat.report.rows import View
from lolat.report.text import bar, block_table
from tests import synthetic

PREDICTION = Model(synthetic.document()).predict(synthetic.network(), 4)


def printed(width: int = 112, prediction: Any = PREDICTION, **chosen: Any) -> list[str]:
    console = Console(width=width, highlight=False, force_terminal=False)
    with console.capture() as found:
        console.print(block_table(prediction, View(**chosen)))
    return [line.rstrip() for line in found.get().splitlines() if line.strip()]


@pytest.mark.parametrize(
    ("share", "shown"),
    [(1.0, "█" * 12), (0.5, "█" * 6), (0.0, ""), (1 / 96, "▏"), (0.001, ""), (13 / 96, "█▋")],
)
def test_a_bar_is_as_long_as_its_share(share: float, shown: str) -> None:
    assert bar(share, 1.0) == shown
    assert bar(share / 4, 0.25) == shown
    assert bar(0.0, 0.0) == ""


def test_chosen_columns_in_their_order() -> None:
    head, _, first, *_ = printed(columns=("weights", "ms", "macs", "patches"))
    assert head.split() == ["block", "weights", "ms", "MACs", "patches"]
    # The stem: a 3x3 convolution of 3 to 32 channels on 56 x 56 positions, 4 images.
    macs = 4 * 56 * 56 * 32 * 27
    *_, weights, _, shown, unit, patches = first.split()
    assert (weights, shown, unit, patches) == ("864", f"{macs / 1e6:.1f}", "M", "-")


@pytest.mark.parametrize("width", [80, 100])
def test_a_number_is_never_cut(width: int) -> None:
    names = ("a_rather_long_label · many convolutions, one after the other, and so on and on",)
    prediction = replace(PREDICTION, names=(*names, *PREDICTION.names[1:]))
    whole = printed(200, prediction, columns=("ms", "share", "macs"))
    cut = printed(width, prediction, columns=("ms", "share", "macs"))
    assert "…" in cut[2]
    assert "a_rather_long_label" in cut[2]
    assert all(len(line) <= 80 for line in printed(80, prediction))
    for a, b in zip(whole, cut, strict=True):
        assert len(b) <= width
        if "%" in a:
            assert a.split()[-4:] == b.split()[-4:], b
