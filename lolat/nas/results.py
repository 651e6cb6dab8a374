"""The front of a search as people and other programs read it: a table, CSV, JSON, a plot (matplotlib)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.errors import not_written
from lolat.io.tables import to_csv
from lolat.io.writing import write_bytes
from lolat.model import Model
from lolat.model.prediction import Prediction
from lolat.nas.search import Search, SearchResult
from lolat.units import milliseconds, plain

MOST_ROWS = 20
OUTSIDE = "*"


@dataclass(frozen=True)
class Answer:
    """What a search found, with the whole networks of its front as the model predicts them."""

    search: Search
    result: SearchResult
    predictions: tuple[Prediction, ...]

    def to_dict(self) -> dict[str, Any]:
        """The answer of `nas search --json`."""
        search, scorer = self.search, self.search.scorer
        front = [
            {
                **candidate.to_dict(),
                "interval_ms": None if p.interval_ms is None else list(p.interval_ms),
                "coverage": p.coverage,
                "in_domain": p.in_domain,
            }
            for candidate, p in zip(self.result.front, self.predictions, strict=True)
        ]
        return {
            "space": search.space.name,
            "size": search.space.size,
            "batch_size": scorer.batch_size,
            "predictor": scorer.formula.name,
            "method": self.result.method,
            "max_ms": None if math.isinf(search.max_ms) else search.max_ms,
            "scored": len(self.result.scored),
            "unscored": self.result.unscored,
            "front": front,
        }


def answer(search: Search, result: SearchResult, model: Model) -> Answer:
    """The whole networks of a front, predicted: their intervals, whether they are inside the domain."""
    space, scorer = search.space, search.scorer
    predictions = tuple(
        model.predict(space.network(c.choices), scorer.batch_size, scorer.formula.name)
        for c in result.front
    )
    return Answer(search, result, predictions)


def lines(answer: Answer) -> Iterator[str]:
    """The front as a table of text: all of it, or MOST_ROWS spread evenly, with both ends."""
    result, search = answer.result, answer.search
    size, count = search.space.size, len(result.front)
    budget = "" if math.isinf(search.max_ms) else f" within {search.max_ms:g} ms"
    without = f" ({result.unscored} more have no score)" if result.unscored else ""
    yield (
        f"{search.space.name}: {f'{size:,}' if size < 10**7 else f'{size:.2g}'} candidates, "
        f"{result.method} search: {len(result.scored):,} scored{budget}{without}, {count} on the front"
    )
    if not result.front:
        return
    coverage = next((p.coverage for p in answer.predictions if p.coverage is not None), None)
    sure = "" if coverage is None else f"{100 * coverage:g} % sure of"
    yield ""
    yield f"{'latency':>10}  {sure:<16}{'score':>10}   candidate"
    for number in np.linspace(0, count - 1, min(count, MOST_ROWS)).round().astype(int):
        candidate, prediction = result.front[number], answer.predictions[number]
        bounds = prediction.interval_ms or ()
        interval = " .. ".join(milliseconds(t).removesuffix(" ms") for t in bounds)
        mark = OUTSIDE if prediction.in_domain is False else " "
        time = milliseconds(candidate.latency_ms)
        yield f"{time:>10}{mark} {interval:<16}{candidate.score:>10.6g}   {candidate.arch}"
    if count > MOST_ROWS:
        yield f"{MOST_ROWS} of the {count} are shown; --output writes them all"
    if any(p.in_domain is False for p in answer.predictions):
        yield f"{OUTSIDE} outside what was measured (docs/domain.md): the interval is wider"


def write_csv(path: str, answer: Answer) -> None:
    """One row per network of the front, by latency. InputError if not writable."""
    header = ["arch", "latency_ms", "low_ms", "high_ms", "in_domain", "score"]
    rows = []
    for candidate, p in zip(answer.result.front, answer.predictions, strict=True):
        interval = ["", ""] if p.interval_ms is None else [f"{t:.6g}" for t in p.interval_ms]
        inside = "" if p.in_domain is None else str(p.in_domain).lower()
        time = f"{candidate.latency_ms:.6g}"
        rows.append([candidate.arch, time, *interval, inside, repr(candidate.score)])
    write_bytes(path, to_csv(header, rows).encode())


STYLE = {"font.size": 10, "svg.fonttype": "none", "svg.hashsalt": "lolat", "text.parse_math": False}


def front_plot(answer: Answer, device: str, path: str) -> None:
    """Latency against score of all that was scored, the front as a line; `path` ends in .svg or .png.

    InputError where it cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    result, search = answer.result, answer.search
    with rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(6.4, 4.4), layout="constrained")
        axes = figure.subplots()
        gray: dict[str, Any] = {"ls": "", "ms": 4, "alpha": 0.5, "color": "0.6"}
        line: dict[str, Any] = {"ms": 5, "lw": 1.2, "color": "#0b6e99"}
        drawn = ((result.scored, "scored", gray), (result.front, "on the front", line))
        for candidates, what, style in drawn:
            times, scores = [c.latency_ms for c in candidates], [c.score for c in candidates]
            axes.plot(times, scores, marker="o", label=f"{len(candidates)} {what}", **style)
        if math.isfinite(search.max_ms):
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
