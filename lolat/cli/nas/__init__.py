"""Architecture search: one command per job."""

from __future__ import annotations

import click

from lolat.cli.lazy import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "suggest": ("lolat.cli.nas.suggest:suggest", "Which networks of a space to measure."),
    "fit": ("lolat.cli.nas.fit:fit", "A space's latency from ten measured networks."),
    "predict": ("lolat.cli.nas.predict:predict", "The latencies of many networks of it."),
    "search": ("lolat.cli.nas.search:search", "The front of latency and of your score."),
    "score": ("lolat.cli.nas.score:score", "A whole space into Parquet, on a cluster too."),
}
"""Each command: where it is, and what it does in a few words."""


@click.group(cls=LazyGroup, table=COMMANDS, no_args_is_help=False)
def nas() -> None:
    """Latency for searches: spaces, few measurements, many candidates."""
