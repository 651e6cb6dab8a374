"""The rows of a table that cannot be used, with the reasons in at most three lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from lolat.errors import LolatError
from lolat.io.forms import BY_NAME, is_file
from lolat.units import plural, shortened

MOST_LINES = MOST_NAMES = 3
UNKNOWN_NETWORK_CODE = "unknown-network"


@dataclass
class LeftOut:
    """The rows that are left out, by reason.

    `reasons`: reason -> number of rows; `causes`: reason -> a cause that several reasons share; `places`:
    reason -> lines or names of its rows.
    """

    reasons: Counter[str] = field(default_factory=Counter)
    causes: dict[str, str] = field(default_factory=dict)
    places: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, cause: str = "", rows: int = 1, place: str = "") -> None:
        """Leave out rows; reasons with the same `cause` share a line; `place`: the rows' line or name."""
        self.reasons[reason] += rows
        if cause:
            self.causes[reason] = cause
        if place:
            self.places.setdefault(reason, []).append(place)

    def network(self, name: str, spec: str, error: LolatError) -> None:
        """Leave out a network that cannot be read.

        `spec`: the network as NETWORK; `name`: its name in the row.
        """
        is_bare = ":" not in spec and not is_file(spec)
        if is_bare and error.code == UNKNOWN_NETWORK_CODE:
            shown, package = shortened(spec), BY_NAME[-1]
            expected = f"the package before it ({package}:{shown}), or a file"
            self.add(f"no network {shown!r}; expected {expected}", "bare name", place=name)
        else:
            self.add(f"{name}: {error}", error.code, place=name)

    def lines(self, file: str = "") -> Iterator[str]:
        """Yield at most MOST_LINES lines with numbers of rows and reasons; `file`: the file of the rows."""
        grouped = self._grouped()
        whole = grouped if len(grouped) <= MOST_LINES else grouped[: MOST_LINES - 1]
        for number, text in whole:
            yield f"{_rows(number, file)} left out: {text}"
        if others := grouped[len(whole) :]:
            rows = sum(number for number, _ in others)
            yield f"{_rows(rows, file)} left out for {len(others)} other reasons, such as: {others[0][1]}"

    def __str__(self) -> str:
        """All reasons in one line, for the error of a table without a usable row."""
        grouped = self._grouped()
        first = "; ".join(f"{n} x {text}" if n > 1 else text for n, text in grouped[:MOST_LINES])
        more = len(grouped) - MOST_LINES
        return f"{first}; and {more} other reasons" if more > 0 else first

    def _grouped(self) -> list[tuple[int, str]]:
        """(number of rows, first reason as an example) of each cause; the most rows come first."""
        groups: dict[str, list[str]] = {}
        for reason in self.reasons:
            groups.setdefault(self.causes.get(reason, reason), []).append(reason)
        found = []
        for first, *more in groups.values():
            rows = sum(self.reasons[reason] for reason in (first, *more))
            places = dict.fromkeys(p for r in (first, *more) for p in self.places.get(r, ()))
            place, *others = places or [""]
            text = f"{place}: {first}" if place not in first else first
            if number := max(len(others), len(more)):
                names = ", ".join(others[:MOST_NAMES])
                text += f" (and {number} more like it{names and ': '}{names})"
            found.append((rows, text))
        return sorted(found, key=lambda one: -one[0])


def _rows(number: int, file: str) -> str:
    return f"{plural(number, 'row')} of {file}" if file else str(number)
