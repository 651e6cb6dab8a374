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


def duration(seconds: float) -> str:
    """A time as people say it: 250 ms, 12.3 s, 4 min 10 s, 3 h 05 min, 12 days 4 h."""
    if seconds < 1.0:
        return milliseconds(1e3 * seconds)
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if hours < 72:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(round(seconds / 3600), 24)
    return f"{days:,} days {hours} h"
