"""Numbers and names written for people: milliseconds, counts in three significant digits, text."""

from __future__ import annotations

import difflib
import math
import os
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from numbers import Number
from string import ascii_letters
from typing import Any, TypeVar

T = TypeVar("T")
GIB = 2**30
MONTH_HOURS = 730.0
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


LONGEST_MS = 9999.5
"""Longer times are shown in seconds."""
LONGEST_SECONDS_MS = 99_950.0
"""Longer times are shown in minutes and seconds."""


def milliseconds(value: float, longest: float = 0.0) -> str:
    """A time given in ms: 0.0123 ms, 2.91 ms, 291 ms, 2910 ms; from ten seconds on as `duration` writes it.

    If `longest`, the longest time of a table, reaches ten seconds, shorter ones are in seconds too.
    """
    if value == math.inf:
        return "unbounded"
    if value < LONGEST_MS:
        return f"{digits(value / 1e3)} s" if longest >= LONGEST_MS else f"{digits(value)} ms"
    return duration(value / 1e3)


def between(low: float, high: float, value: float, longest: float = 0.0) -> str:
    """The ends of an interval, given in ms, in the unit that `milliseconds` chooses for `value`.

    Below 100 s the unit is left out: 26.4 .. 31.9 for 29.1 ms, 9.09 .. 16.1 for 12.3 s. From there on, each
    end has its own unit.
    """
    if value >= LONGEST_SECONDS_MS:
        return f"{milliseconds(low)} .. {milliseconds(high)}"
    factor = 1.0 if max(value, longest) < LONGEST_MS else 1e-3
    upper = milliseconds(high) if high == math.inf else digits(factor * high)
    return f"{digits(factor * low)} .. {upper}"


def quantity(value: float, unit: str = "") -> str:
    """A count with a metric prefix: 4.09 GMACs, 25.6 M, 980."""
    for factor, prefix in _PREFIXES:
        if abs(value) >= 0.9995 * factor:
            return f"{digits(value / factor)} {prefix}{unit}"
    return f"{value:.0f} {unit}".rstrip()


def percent(value: float) -> str:
    """A ratio as a percentage: 4.2 %, 20 %."""
    return f"{100 * value:.1f} %" if abs(value) < 0.0995 else f"{100 * value:.0f} %"


def deviation(ratio: float) -> float:
    """Distance of a ratio from 1: max(ratio, 1 / ratio) - 1, equal for twice as slow and twice as fast."""
    return max(ratio, 1.0 / ratio) - 1.0


def changed(ratio: float) -> str:
    """A ratio of times in words: 18 % slower, 17 % faster, 2.4 times slower."""
    way = "slower" if ratio >= 1.0 else "faster"
    times = deviation(ratio) + 1.0
    return f"{times:.1f} times {way}" if times >= 1.95 else f"{percent(abs(ratio - 1.0))} {way}"


def plain(text: str) -> str:
    """A name that was read from a file, on one line; control characters are shown as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


def as_number(text: str) -> float:
    """The number in a text of digits, a decimal point and an exponent; NaN for any other text (1_0, ١٢)."""
    return float(text) if _NUMBER.fullmatch(text) else math.nan


_APART = re.compile(r"\d{1,3}([,_]\d{3})+", re.ASCII)


def as_amount(text: str, is_count: bool = True) -> float:
    """The number in a text with thousands separators (1,281,167), or with a suffix if `is_count`; else NaN.

    The suffixes k, m, b and t multiply by 1e3 to 1e12. 5m is NaN unless `is_count`: m may be a unit.
    """
    text = text.strip().casefold()
    if _APART.fullmatch(text):
        return float(re.sub("[,_]", "", text))
    power = 1 + "kmbt".find(text[-1:]) if text and is_count else 0
    return as_number(text[:-1].rstrip()) * 1000.0**power if power else as_number(text)


_NAMES_OF_TIMES = {
    1e-3: ("us", "µs", "μs"),
    1.0: ("ms",),
    1e3: ("s", "sec", "second", "seconds"),
    6e4: ("min", "mins", "minute", "minutes"),
    3.6e6: ("h", "hr", "hrs", "hour", "hours"),
    8.64e7: ("d", "day", "days"),
}
_MS = {name: ms for ms, names in _NAMES_OF_TIMES.items() for name in names}
"""Unit of time -> milliseconds."""
_PER_S = {"rps": 1.0, "qps": 1.0, "/sec": 1.0, "rpm": 1 / 60, "/m": 1 / 60, "rph": 1 / 3600}
"""Unit of a rate -> events per second. A slash and a unit in _MS is a rate, too."""
_OWN = {
    "gib": ("gb", "gib", "g"),
    "gbps": ("g", "gb", "gb/s", "gbit", "gbit/s"),
    "hour": ("/h", "/hr", "/hour"),
    "dollars": ("usd", "dollars"),
}
"""Last word of a parameter's name -> names of the parameter's own unit."""
_THOUSANDS = re.compile(r"([kmgbt])(i?b|tok\w*|r?illion)?\b")
"""A suffix of a count that stands for thousands, millions or more: in 50MB, 50 million, 2ktok."""


def in_own_unit(text: str, parameter: str, is_count: bool) -> float:
    """The number in a text with a unit, converted to the unit of a parameter; NaN if the unit does not fit.

    Any word is accepted behind a count: 7 images.
    """
    bare = text.rstrip(f"%/µμ{ascii_letters} ")
    unit, own = text[len(bare) :].strip().casefold(), parameter.rpartition("_")[2]
    factor = 1.0
    if parameter.endswith(("_rate", "_per_s")):
        every, per = unit.rpartition("/")[1:]
        factor = _PER_S.get(unit, 1e3 / _MS[per] if every and per in _MS else math.nan)
    elif own in _MS and unit:
        minutes = _MS["min"] if unit == "m" and own == "hours" else math.nan
        factor = _MS.get(unit, minutes) / _MS[own]
    elif not is_count and unit not in ("", "%", "x", *_OWN.get(own, ())):
        factor = math.nan
    if is_count and (of := _THOUSANDS.match(unit)):
        factor = 1e9 if of[1] == "g" else as_amount(f"1{of[1]}")
    return as_number(bare) * factor


def digits(value: float) -> str:
    """Three significant digits without an exponent; five or more digits have commas."""
    size = abs(value)  # the limits are the numbers at which rounding adds a digit
    if size >= 9999.5:
        return f"{value:,.0f}"
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.01 or size == 0 else f"{value:.2g}"


def duration(seconds: float) -> str:
    """A time for people: 250 ms, 12.3 s, 4 min 10 s, 3 h 05 min, 12 days 4 h."""
    if seconds < 1.0:
        return milliseconds(1e3 * seconds)
    if 1e3 * seconds < LONGEST_SECONDS_MS:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 72:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days:,} days {hours} h"


# ---- Words for error messages of the readers: one line each, whatever was given.

LONGEST = 200
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def one_line(error: BaseException) -> str:
    """The first informative line of an exception, shortened; the next line is added if it ends in a colon.

    Keras puts "Exception encountered when calling ..." before the message, and prints it bold.
    """
    lines = [line.strip() for line in str(error).splitlines()]
    lines = [n for n in lines if n and not n.startswith("Exception encountered when calling")]
    told = lines[: 1 + lines[0].endswith(":")] if lines else [type(error).__name__]
    return shortened(" ".join(told))


def capitalized(words: str) -> str:
    """The text with its first letter in upper case."""
    return words[:1].upper() + words[1:]


def shortened(text: str) -> str:
    """`text` in one printable line of at most `LONGEST` characters."""
    text = " ".join(_ESCAPES.sub("", text).split())
    text = text if text.isprintable() else repr(text)[1:-1]
    return text if len(text) <= LONGEST else text[: LONGEST - 3] + "..."


def value_words(value: Any) -> str:
    """A given value as a message shows it: its repr if short, else its class and an array's shape."""
    if isinstance(value, (str, bytes)):
        return shortened(repr(value))
    text = str(value) if isinstance(value, Number) else repr(value)
    if len(text) <= LONGEST // 2 and "\n" not in text:
        return text
    shape = getattr(value, "shape", None)
    of = f" of shape {tuple(shape)}" if isinstance(shape, tuple) else ""
    return f"a {type(value).__name__}{of}"


ALIKE = 0.7
"""Smallest similarity (`difflib`) of two names that count as a misspelling of each other; --width and
--wait have less."""


def similar(name: str, known: Iterable[str], most: int = 3, alike: float = ALIKE) -> list[str]:
    """The known names that are similar to a misspelled name, the most similar first.

    `alike`: the smallest similarity (`difflib`).
    """
    return difflib.get_close_matches(name, list(known), most, alike)


def did_you_mean(name: str, known: Mapping[str, str], otherwise: str) -> str:
    """`did you mean ResNet50 or ResNet101?`, or `otherwise`; `known`: name -> name to show.

    A known name that lacks only the last letter or two comes first, then names that begin with `name`, then
    similar names.
    """
    short = sorted(
        (n for n in known if 1 <= len(name) - len(n) <= 2 and name.startswith(n)), key=len
    )
    begin = (other for other in known if name and other.startswith(name))
    near = [*dict.fromkeys([*short[-1:], *begin, *similar(name, known)])][:3]
    if not near:
        return otherwise
    *first, last = (known[n] for n in near)
    others = f"{', '.join(first)} or " if first else ""
    return f"did you mean {others}{last}?"


def shapes_text(shapes: Iterable[Sequence[Any]]) -> str:
    """Shapes for people: 224x224x3, with ? for an unknown size."""
    return ", ".join("x".join("?" if n is None else str(n) for n in s) for s in shapes)


def dollars(value: float, sign: str = "$") -> str:
    """US$ with cents; without cents from $1,000, in two significant digits below ten cents."""
    if value >= 999.5:
        return f"{sign}{value:,.0f}"
    return f"{sign}{value:,.2f}" if value >= 0.0995 or value == 0 else f"{sign}{value:.2g}"


def byte_size(size: float) -> str:
    """Bytes in a binary unit: 640 B, 37.5 MiB, 7.34 GiB, 120 GiB, 1.50 TiB."""
    for factor, unit in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= 0.9995 * factor:
            return f"{digits(size / factor)} {unit}"
    return f"{size:.0f} B"


def by_text(pairs: Iterable[tuple[T, str]]) -> dict[str, list[T]]:
    """Text -> the names, or other things, that have it; `pairs`: (name, text)."""
    found: dict[str, list[T]] = {}
    for name, text in pairs:
        found.setdefault(text, []).append(name)
    return found


def names_in(*texts: str) -> list[str]:
    """The names in some texts; commas separate names in a text."""
    return [name for name in map(str.strip, ",".join(texts).split(",")) if name]


def rows_of(rows: int, networks: int) -> str:
    """The number of rows in a table of networks: "5 networks", or "20 rows of 1 network"."""
    named = plural(networks, "network")
    return named if rows == networks else f"{plural(rows, 'row')} of {named}"


_IN_IES = re.compile("[^aeiou]y$")


def plural(count: int, word: str) -> str:
    """A count and its noun: 1 device, 2 devices, 3 multiplies, 4 epochs; 50,000 samples."""
    if count != 1 and _IN_IES.search(word):
        return f"{count:,} {word[:-1]}ies"
    ending = "es" if word.endswith(("s", "x", "sh")) else "s"
    return f"{count:,} {word}{ending * (count != 1)}"


INSTALLED = f"-packages{os.sep}"
"""A part of the path of each file of an installed package: site-packages, or Debian's dist-packages."""
PYTHON = os.path.dirname(os.__file__) + os.sep
"""The folder of Python's own library, with a separator at its end."""


def user_line(error: BaseException) -> str:
    """The place of the last line of the user's own code in a traceback, as " at net.py:12"; else "".

    A line in a notebook's cell is shown with its code.
    """
    others = (os.path.dirname(__file__) + os.sep, PYTHON, INSTALLED, "<frozen ")
    frames = traceback.extract_tb(error.__traceback__)
    lines = [f for f in frames if not any(part in f.filename for part in others)]
    if not lines:
        return ""
    last = lines[-1]
    if os.path.isfile(last.filename):
        return f" at {os.path.relpath(last.filename)}:{last.lineno}"
    return f" at line {last.lineno}" + (f" ({shortened(last.line or '')})" if last.line else "")
