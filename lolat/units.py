"""Numbers as people read them: milliseconds, counts and bytes in three significant digits."""

from __future__ import annotations

_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def milliseconds(value: float) -> str:
    """A time in ms: 0.0123, 2.91, 29.1, 291, 2910."""
    return _digits(value) + " ms"


def quantity(value: float, unit: str = "") -> str:
    """A count with a prefix: 4.09 GMACs, 25.6 M, 980."""
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{_digits(value / factor)} {prefix}{unit}"
    return f"{value:.0f} {unit}".rstrip()


def percent(value: float) -> str:
    """A ratio as a percentage: 4.2 %, 20 %."""
    return f"{100 * value:.1f} %" if abs(value) < 0.1 else f"{100 * value:.0f} %"


def _digits(value: float) -> str:
    """Three significant digits without an exponent."""
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}" if size >= 0.01 or size == 0 else f"{value:.2g}"
