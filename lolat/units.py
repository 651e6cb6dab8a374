"""Numbers and names as people read them: milliseconds, counts in three significant digits, text."""

from __future__ import annotations

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def milliseconds(value: float) -> str:
    """A time in ms: 0.0123, 2.91, 29.1, 291, 2910."""
    return _digits(value) + " ms"


def quantity(value: float, unit: str = "") -> str:
    """A count with a prefix: 4.09 GMACs, 25.6 M, 980."""
    for factor, prefix in _PREFIXES:
        if abs(value) >= 0.9995 * factor:
            return f"{_digits(value / factor)} {prefix}{unit}"
    return f"{value:.0f} {unit}".rstrip()


def percent(value: float) -> str:
    """A ratio as a percentage: 4.2 %, 20 %."""
    return f"{100 * value:.1f} %" if abs(value) < 0.0995 else f"{100 * value:.0f} %"


def plain(text: str) -> str:
    """A name out of a file on one line: what a terminal would act on is shown as an escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _digits(value: float) -> str:
    """Three significant digits without an exponent."""
    size = abs(value)  # limits are where rounding gains a digit
    if size >= 99.95:
        return f"{value:.0f}"
    if size >= 9.995:
        return f"{value:.1f}"
    if size >= 0.9995:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.01 or size == 0 else f"{value:.2g}"
