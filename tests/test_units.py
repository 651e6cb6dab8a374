"""Numbers and names as people read them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.units import milliseconds, percent, plain, quantity


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0.000 ms"), (0.0123, "0.012 ms"), (0.00123, "0.0012 ms"), (0.5, "0.500 ms"),
        (2.914, "2.91 ms"), (29.14, "29.1 ms"), (291.4, "291 ms"), (2914, "2914 ms"),
        (1234567, "1234567 ms"), (9.996, "10.0 ms"), (99.96, "100 ms"), (0.9996, "1.00 ms"),
    ],
)  # fmt: skip
def test_milliseconds(value: float, text: str) -> None:
    assert milliseconds(value) == text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (980, "", "980"), (980, "MACs", "980 MACs"), (4.09e9, "MACs", "4.09 GMACs"),
        (25.6e6, "", "25.6 M"), (1e3, "", "1.00 k"), (1.5e12, "B", "1.50 TB"), (0, "", "0"),
        (999.7, "", "1.00 k"), (999_950, "", "1.00 M"), (999.6e6, "MACs", "1.00 GMACs"),
        (2.5e16, "MACs", "25000 TMACs"),
    ],
)  # fmt: skip
def test_quantity(value: float, unit: str, text: str) -> None:
    assert quantity(value, unit) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.042, "4.2 %"), (0.2, "20 %"), (0, "0.0 %"), (1.5, "150 %"), (-0.03, "-3.0 %"),
     (0.0999, "10 %"), (0.0994, "9.9 %")],
)  # fmt: skip
def test_percent(value: float, text: str) -> None:
    assert percent(value) == text


@given(st.floats(1e-3, 1e6))
def test_three_digits_are_kept(value: float) -> None:
    shown = float(milliseconds(value).removesuffix(" ms"))
    digits = 0.006 if value >= 0.1 else 0.06
    assert math.isclose(shown, value, rel_tol=digits)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("conv3_block2 · 3 convs, add", "conv3_block2 · 3 convs, add"),
        ("日本", "日本"),
        ("[red]x[/]", "[red]x[/]"),
        ("\x1b[2J", r"\x1b[2J"),
        ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\ud800", r"\ud800"),
        ("it's", "it's"),
        ("'\x00", r"'\x00"),
    ],
)
def test_names_are_shown_and_not_acted_on(text: str, shown: str) -> None:
    assert plain(text) == shown


@given(st.text())
def test_a_plain_name_is_one_printable_line(text: str) -> None:
    assert plain(text).isprintable()
