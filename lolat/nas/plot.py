"""A plot of a search with matplotlib (the extra `plot`): what was scored, and the front."""

from __future__ import annotations

from lolat.errors import not_written
from lolat.nas.shown import Answer
from lolat.units import plain

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
