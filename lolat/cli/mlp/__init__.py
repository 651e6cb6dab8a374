"""The companion of Justus et al. 2018: one command per job."""

from __future__ import annotations

import click

from lolat.cli.lazy import LazyGroup

COMMANDS: dict[str, tuple[str, str]] = {
    "import": ("lolat.cli.mlp.importing:import_raw", "Tables out of the authors' raw files."),
    "fit": ("lolat.cli.mlp.fit:fit", "Train a model on a table of measured layers."),
    "predict": ("lolat.cli.mlp.predict:predict", "The time of every layer in a table."),
    "evaluate": ("lolat.cli.mlp.evaluate:evaluate", "Predicted against measured times."),
    "network": ("lolat.cli.mlp.network:network", "A whole network from its layers."),
    "learn": ("lolat.cli.mlp.learn:learn", "Measure layers on this device, and train on them."),
}
"""Each command: where it is, and what it does in a few words."""


@click.group(cls=LazyGroup, table=COMMANDS, no_args_is_help=False)
def mlp() -> None:
    """Predict the time of a layer by a deep network (Justus et al. 2018)."""
