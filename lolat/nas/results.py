"""A plot of a search with matplotlib (the extra `plot`): what was scored, and the front."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.errors import not_written
from lolat.model import Model
from lolat.model.prediction import Prediction
from lolat.nas.search import Found, Search
from lolat.units import milliseconds, plain

# ---- The front of a search as people and other programs read it: a table, CSV, JSON, a plot.

MOST_ROWS = 20
OUTSIDE = "*"


@dataclass(frozen=True)
class Answer:
    """What a search found, with the whole networks of its front as the model predicts them."""

    search: Search
    found: Found
    predictions: tuple[Prediction, ...]

    @property
    def outside(self) -> int:
        """How many networks of the front lie outside the measured domain."""
        return sum(p.in_domain is False for p in self.predictions)

    def to_dict(self) -> dict[str, Any]:
        """The answer of `nas search --json`."""
        scorer = self.search.scorer
        return {
            "space": self.search.space.name,
            "size": self.search.space.size,
            "batch_size": scorer.batch_size,
            "predictor": scorer.formula.name,
            "method": self.found.method,
            "max_ms": None if math.isinf(self.search.max_ms) else self.search.max_ms,
            "scored": len(self.found.scored),
            "unscored": self.found.unscored,
            "front": [
                {
                    **candidate.to_dict(),
                    "interval_ms": None if p.interval_ms is None else list(p.interval_ms),
                    "coverage": p.coverage,
                    "in_domain": p.in_domain,
                }
                for candidate, p in zip(self.found.front, self.predictions, strict=True)
            ],
        }


def answer(search: Search, found: Found, model: Model) -> Answer:
    """The whole networks of a front, predicted: their intervals, whether they are inside the domain."""
    space, scorer = search.space, search.scorer
    predictions = tuple(
        model.predict(space.network(c.choices), scorer.batch_size, scorer.formula.name)
        for c in found.front
    )
    return Answer(search, found, predictions)


def lines(answer: Answer) -> Iterator[str]:
    """The front as a table of text."""
    found, search = answer.found, answer.search
    size = search.space.size
    budget = "" if math.isinf(search.max_ms) else f" within {search.max_ms:g} ms"
    without = f" ({found.unscored} more have no score)" if found.unscored else ""
    yield (
        f"{search.space.name}: {f'{size:,}' if size < 10**7 else f'{size:.2g}'} candidates, "
        f"{found.method} search: {len(found.scored):,} scored{budget}{without}, "
        f"{len(found.front)} on the front"
    )
    if not found.front:
        return
    coverage = next((p.coverage for p in answer.predictions if p.coverage is not None), None)
    sure = "" if coverage is None else f"{100 * coverage:g} % sure of"
    yield ""
    yield f"{'latency':>10}  {sure:<16}{'score':>10}   candidate"
    shown = _chosen(len(found.front))
    for number in shown:
        candidate, prediction = found.front[number], answer.predictions[number]
        interval = ""
        if prediction.interval_ms is not None:
            interval = " .. ".join(
                milliseconds(t).removesuffix(" ms") for t in prediction.interval_ms
            )
        mark = OUTSIDE if prediction.in_domain is False else " "
        time = milliseconds(candidate.latency_ms)
        yield f"{time:>10}{mark} {interval:<16}{candidate.score:>10.6g}   {candidate.arch}"
    if len(shown) < len(found.front):
        yield f"{len(shown)} of the {len(found.front)} are shown; --output writes them all"
    if answer.outside:
        yield f"{OUTSIDE} outside what was measured (docs/domain.md): the interval is wider"


def _chosen(count: int) -> Sequence[int]:
    """Rows that are shown of so many: all, or some spread evenly, with both ends."""
    if count <= MOST_ROWS:
        return range(count)
    return [int(i) for i in np.linspace(0, count - 1, MOST_ROWS).round()]


def write_csv(path: str, answer: Answer) -> None:
    """One row per network of the front, by latency. InputError if not writable."""
    try:
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["arch", "latency_ms", "low_ms", "high_ms", "in_domain", "score"])
            for candidate, p in zip(answer.found.front, answer.predictions, strict=True):
                low, high = (
                    ("", "") if p.interval_ms is None else (f"{t:.6g}" for t in p.interval_ms)
                )
                inside = "" if p.in_domain is None else str(p.in_domain).lower()
                time = f"{candidate.latency_ms:.6g}"
                writer.writerow([candidate.arch, time, low, high, inside, repr(candidate.score)])
    except OSError as error:
        raise not_written(path, error, "--output") from error


# ---- plot ----------------------------------------

STYLE = {"font.size": 10, "svg.fonttype": "none", "svg.hashsalt": "lolat", "text.parse_math": False}


def front_plot(answer: Answer, device: str, path: str) -> None:
    """Latency against score of all that was scored, the front as a line; `path` ends in .svg or .png.

    InputError where it cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    found, search = answer.found, answer.search
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(6.4, 4.4), layout="constrained")
        axes = figure.subplots()
        axes.plot(
            [c.latency_ms for c in found.scored], [c.score for c in found.scored],
            "o", ms=4, alpha=0.5, color="0.6", label=f"{len(found.scored)} scored",
        )  # fmt: skip
        axes.plot(
            [c.latency_ms for c in found.front], [c.score for c in found.front],
            "o-", ms=5, lw=1.2, color="#0b6e99", label=f"{len(found.front)} on the front",
        )  # fmt: skip
        if search.max_ms < float("inf"):
            axes.axvline(search.max_ms, color="0.7", lw=1, ls=":")
        axes.set(
            xlabel=f"predicted latency, ms, batch {search.scorer.batch_size}",
            ylabel="score",
            title=plain(f"{search.space.name} on {device}"),
        )
        axes.legend(frameon=False, loc="lower right" if search.sign > 0 else "upper right")
        svg = path.lower().endswith(".svg")
        try:
            figure.savefig(path, dpi=130, metadata={"Date": None} if svg else None)
        except OSError as error:
            raise not_written(path, error, "--plot") from error
