"""The `lolat` command: thin words over the library; each command imports what it needs when it runs."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence

import click

from lolat import __version__
from lolat.cli.common import LazyGroup, run

COMMANDS = {
    "learn": ("lolat.cli.learn:learn", "Measure this device and learn a model of it."),
    "predict": ("lolat.cli.predict:predict", "How long a network takes."),
    "report": ("lolat.cli.predict:report", "The same block by block, with the bottlenecks."),
    "explain": (
        "lolat.cli.predict:explain",
        "Which term costs the time, what a change would save.",
    ),
    "budget": ("lolat.cli.predict:budget", "The widest, largest or most that stays within a time."),
    "read": ("lolat.cli.networks:read", "A network as a file, which needs no framework again."),
    "cache": ("lolat.cli.networks:cache", "Networks that were read: where they are kept."),
    "evaluate": ("lolat.cli.evaluate:evaluate", "Measure networks and compare with the model."),
    "doctor": ("lolat.cli.evaluate:doctor", "Whether a model still holds on this machine."),
    "compare": ("lolat.cli.compare:compare", "All predictors on the same points, side by side."),
    "fit": ("lolat.cli.fit:fit", "A model from points that are measured already."),
    "suggest": ("lolat.cli.fit:suggest", "Which operations to time on a GPU, the best first."),
    "mlp": ("lolat.cli.mlp:mlp", "The companion: layers by a deep network (Justus et al. 2018)."),
    "nas": ("lolat.cli.nas:nas", "Search spaces: fit from ten measurements, score, search."),
    "cost": ("lolat.cli.cost:cost", "Hours and dollars of training, on one or several devices."),
    "prices": ("lolat.cli.cost:prices", "What instances cost an hour; refresh downloads it."),
    "serve": ("lolat.cli.show:serve", "Training time and cost as a page in the browser."),
    "training": ("lolat.cli.training:training", "Time of iterations, epochs and whole trainings."),
    "show": ("lolat.cli.show:show", "What a model says of its device."),
    "models": ("lolat.cli.show:models", "The models that there are."),
}
"""Each command: where it is, and what it does in a few words."""


@click.group(
    cls=LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=False,  # a call without a command is an error, of one line
)
@click.version_option(__version__, prog_name="lolat")
def lolat() -> None:
    """How long does a neural network take on your device? Measure once, then ask.

    MODEL is a learned model: a JSON file, `local` (the one learned last on this machine) or a name
    from `lolat models`. NETWORK is keras:ResNet50 (any name of keras.applications), a .keras, .onnx or
    .pt2 file, what `lolat read` wrote, generate:vgg?layers=2,2&filters=16,32 (or resnet, inception, fc), or
    package.module:callable, which returns a Keras or PyTorch network.
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `lolat` command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal of ASCII only gets "?", not an error
            stream.reconfigure(errors="replace")
    sys.exit(run(lolat, arguments, "lolat"))


if __name__ == "__main__":
    main()
