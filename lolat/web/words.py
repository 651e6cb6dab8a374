"""Times, money and memory as the page says them."""

from __future__ import annotations

TIME_UNITS = (("s", 1.0), ("min", 60.0), ("h", 3600.0), ("days", 86400.0))


def dollars(value: float) -> str:
    """US$: cents; of a thousand none, and of less than ten cents two digits."""
    if value >= 999.5:
        return f"${value:,.0f}"
    return f"${value:,.2f}" if value >= 0.0995 or value == 0 else f"${value:.2g}"


def gibibytes(size_bytes: float) -> str:
    """Memory: 0.05 GiB, 7.34 GiB, 120 GiB."""
    gib = size_bytes / 2**30
    return f"{gib:,.0f} GiB" if gib >= 99.5 else f"{gib:.2f} GiB"


def plural(count: int, word: str) -> str:
    """1 device, 2 devices; 50,000 samples."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
