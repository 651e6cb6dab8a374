"""Numbers and names as people read them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.units import (
    as_amount,
    as_number,
    between,
    byte_size,
    did_you_mean,
    digits,
    dollars,
    duration,
    milliseconds,
    one_line,
    percent,
    plain,
    plural,
    quantity,
    shapes_text,
    shortened,
)


@pytest.mark.parametrize(
    ("say", "texts"),
    [
        (milliseconds, {
            0: "0.000 ms", 0.0123: "0.012 ms", 0.00123: "0.0012 ms", 0.5: "0.500 ms", 2.914: "2.91 ms",
            29.14: "29.1 ms", 291.4: "291 ms", 2910: "2910 ms", 12_340: "12.3 s", 3_614_697: "1 h 00 min",
            9.996: "10.0 ms",
            99.96: "100 ms", 0.9996: "1.00 ms"}),
        (quantity, {980: "980", 25.6e6: "25.6 M", 1e3: "1.00 k", 0: "0", 999.7: "1.00 k",
                    999_950: "1.00 M"}),
        (lambda n: quantity(n, "MACs"), {980: "980 MACs", 4.09e9: "4.09 GMACs", 999.6e6: "1.00 GMACs",
                                         2.5e16: "25,000 TMACs"}),
        (percent, {0.042: "4.2 %", 0.2: "20 %", 0: "0.0 %", 1.5: "150 %", -0.03: "-3.0 %",
                   0.0999: "10 %", 0.0994: "9.9 %"}),
        (duration, {0.25: "250 ms", 12.34: "12.3 s", 99.99: "1 min 40 s", 250: "4 min 10 s",
                    3599.6: "1 h 00 min", 11100: "3 h 05 min", 71.99 * 3600: "71 h 59 min",
                    1051200: "12 days 4 h", 3e9: "34,722 days 5 h"}),
        (dollars, {0: "$0.00", 0.012: "$0.012", 0.1: "$0.10", 12.5: "$12.50", 1234.5: "$1,234"}),
        (byte_size, {640: "640 B", 2**15: "32.0 KiB", 39_321_600: "37.5 MiB", 2**30 - 1: "1.00 GiB",
                     120 * 2**30: "120 GiB", 1.5 * 2**40: "1.50 TiB"}),
        (digits, {12_345.6: "12,346"}),
        (lambda n: plural(n, "device"), {1: "1 device", 50000: "50,000 devices"}),
        (lambda word: plural(2, word), {"multiply": "2 multiplies", "array": "2 arrays",
                                        "softmax": "2 softmaxes", "epoch": "2 epochs"}),
    ],
)  # fmt: skip
def test_numbers(say: Callable[[float], str], texts: dict[float, str]) -> None:
    assert {value: say(value) for value in texts} == texts


@pytest.mark.parametrize("text", ["1_0", "١٢", "½", "nan", "inf", "0x1", "", " 1", "1,5", "-", "."])
def test_what_is_no_number(text: str) -> None:
    """Though float() takes some of them: a table, an option and a field of the page say the same."""
    assert math.isnan(as_number(text))
    assert [as_number(t) for t in ("+1", "-.5", "1.", "1e-3")] == [1.0, -0.5, 1.0, 0.001]


def test_an_interval_has_the_unit_of_its_time() -> None:
    assert between(26.41, 31.94, 29.1) == "26.4 .. 31.9"
    assert between(122, 86_712, 240) == "122 .. 86,712"
    assert between(9000, 13_000, 9600) == "9000 .. 13,000"
    assert between(9000, 13_000, 11_000) == "9.00 .. 13.0"
    assert between(120, 106_000, 240, longest=11_000) == "0.120 .. 106"
    assert between(3_130_000, 3_870_000, 3_500_000) == "52 min 10 s .. 1 h 04 min"


@given(st.floats(1e-3, 1e6))
def test_three_digits_are_kept(value: float) -> None:
    shown = float(digits(value).replace(",", ""))
    assert math.isclose(shown, value, rel_tol=0.006 if value >= 0.1 else 0.06)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("conv3_block2 · 3 convs, add", "conv3_block2 · 3 convs, add"), ("日本", "日本"),
        ("[red]x[/]", "[red]x[/]"), ("\x1b[2J", r"\x1b[2J"), ("a\nb\tc\r", r"a\nb\tc\r"),
        ("\u202egnp.exe", r"\u202egnp.exe"), ("\ud800", r"\ud800"), ("it's", "it's"), ("'\x00", r"'\x00"),
    ],
)  # fmt: skip
def test_names_are_shown_and_not_acted_on(text: str, shown: str) -> None:
    assert plain(text) == shown


@given(st.text())
def test_what_is_shown_is_one_printable_line(text: str) -> None:
    assert plain(text).isprintable()
    assert shortened(text).isprintable()
    assert len(shortened(text)) <= 200


def test_errors_and_shapes_in_a_line() -> None:
    bold = ValueError("Exception encountered when calling Dense\n\n\x1b[1mwrong size\x1b[0m\nmore")
    assert one_line(bold) == "wrong size"
    assert one_line(KeyError()) == "KeyError"
    loading = RuntimeError(
        "Error(s) in loading state_dict for Net:\n\tMissing key(s): 0.weight\n\tmore"
    )
    assert one_line(loading) == "Error(s) in loading state_dict for Net: Missing key(s): 0.weight"
    assert shapes_text([(224, None, 3), (8,)]) == "224x?x3, 8"


@pytest.mark.parametrize(
    ("text", "amount"),
    [("1,281,167", 1281167), ("1_281_167", 1281167), ("1.3M", 1.3e6), ("200e6", 2e8), (" 2b ", 2e9),
     ("50 M", 5e7), ("12", 12), ("4k", 4000)],
)  # fmt: skip
def test_an_amount_has_its_thousands_apart_or_named(text: str, amount: float) -> None:
    assert as_amount(text) == pytest.approx(amount, rel=1e-15)


@pytest.mark.parametrize("text", ["1,28,167", "", "k", "1,281,16", "3x", "12,345k"])
def test_no_amount_is_guessed(text: str) -> None:
    assert math.isnan(as_amount(text))


@pytest.mark.parametrize(
    ("text", "amount"), [("1,000", 1000), ("2.5", 2.5), ("20m", math.nan), ("5k", math.nan)]
)
def test_a_quantity_with_a_unit_has_no_millions(text: str, amount: float) -> None:
    assert as_amount(text, is_count=False) == pytest.approx(amount, nan_ok=True)


def test_a_name_with_a_letter_too_many_is_meant_first() -> None:
    known = {n: n for n in ("resnet50x4_clip", "resnet50x16_clip", "resnet50x64_clip", "resnet50")}
    assert did_you_mean("resnet50x", known, "").startswith("did you mean resnet50, ")
    assert "resnet50," not in did_you_mean("resnet50x4_", known, "")  # three letters more
