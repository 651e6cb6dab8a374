"""Training time: one command per job."""

from __future__ import annotations

import click

from lolat.cli.lazy import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "fit": ("lolat.cli.training.fit:fit", "A device from a table of epochs timed already."),
    "predict": (
        "lolat.cli.training.predict:predict",
        "Time of an iteration, an epoch, a training.",
    ),
    "link": ("lolat.cli.training.link:link", "What exchanging gradients costs here, measured."),
}
"""Each command: where it is, and what it does in a few words."""


@click.group(cls=LazyGroup, table=COMMANDS, no_args_is_help=False)
def training() -> None:
    """How long an iteration, an epoch and a training run take."""
