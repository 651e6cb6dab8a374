"""How far a run is, on a stderr that is no terminal."""

from __future__ import annotations

import pytest

from lolat.cli.common import PlainProgress


def test_a_line_a_quarter_and_no_more_than_one_in_five_seconds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    bar = PlainProgress(lambda: now[0])
    bar.start("measuring", 8)
    for _ in range(8):
        now[0] += 3
        bar.step()
    for _ in range(3):  # a short stage, again and again
        bar.start("once more", 2)
        bar.step()
        bar.step()
    bar.note("two\nlines")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "lolat: measuring: 8 steps",
        "lolat: measuring: 2 of 8, about 18 s left",
        "lolat: measuring: 4 of 8, about 12 s left",
        "lolat: measuring: 6 of 8, about 6 s left",
        "lolat: measuring: 8 of 8, about 0 s left",
        "lolat: once more: 2 steps",
        "lolat: two lines",
    ]
