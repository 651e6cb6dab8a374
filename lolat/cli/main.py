"""The `lolat` command: thin words over the library; each command imports what it needs when it runs."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence

import click

from lolat import __version__
from lolat.cli import running

COMMANDS = {
    "learn": ("lolat.cli.learn:learn", "Measure this device and fit a profile of it."),
    "predict": ("lolat.cli.predict:predict", "How long a network takes."),
    "report": ("lolat.cli.predict:report", "The same block by block, with the bottlenecks."),
    "explain": (
        "lolat.cli.predict:explain",
        "Which term costs the time, what a change would save.",
    ),
    "budget": ("lolat.cli.predict:budget", "The largest width, input or batch within a time."),
    "read": ("lolat.cli.show:read", "A network as a file, which needs no framework again."),
    "evaluate": ("lolat.cli.evaluate:evaluate", "Measure networks and compare with the profile."),
    "doctor": ("lolat.cli.evaluate:doctor", "Whether a profile still holds on this machine."),
    "fit": ("lolat.cli.fit:fit", "A profile from times that are measured already."),
    "llm": ("lolat.cli.llm:llm", "Speed and cost of serving a language model."),
    "mlp": ("lolat.cli.mlp:mlp", "Single layers, by a deep network (Justus et al. 2018)."),
    "nas": ("lolat.cli.nas:nas", "Search spaces: fit from ten measurements, score, search."),
    "cost": (
        "lolat.cli.cost:cost",
        "Time, memory and dollars of training, on one or several devices.",
    ),
    "prices": ("lolat.cli.cost:prices", "What instances cost an hour."),
    "serve": ("lolat.cli.show:serve", "Latency, training and its cost as a page in the browser."),
    "show": ("lolat.cli.show:show", "What a profile says of its device."),
    "models": ("lolat.cli.show:models", "The profiles that there are."),
}
"""Each command: where it is, and what it does in a few words."""
FIRST = """\
LoLat predicts a neural network's latency and cost on CPUs and GPUs. Try:

  lolat predict epyc-2t keras:ResNet50     an answer now, for a bundled device
  lolat learn cpu                          measure this device once: two to three minutes
  lolat report local keras:ResNet50        then ask about it: block by block, with the bottlenecks
  lolat --help                             all commands"""


@click.group(
    cls=running.LazyGroup,
    table=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"]},
    invoke_without_command=True,
)
@click.version_option(__version__, message="lolat %(version)s", help="LoLat's version.")
@click.option("-q", "--quiet", is_flag=True, expose_value=False,
              help="Only errors on stderr: no progress, no warnings. Notes of answers stay.")  # fmt: skip
@click.pass_context
def lolat(context: click.Context) -> None:
    """Predict a neural network's latency and cost on CPUs and GPUs, yours or those you don't have.

    MODEL is a device's profile: a JSON file, `local` (the one learned last on this machine) or a name
    from `lolat models`. NETWORK is keras:ResNet50 (any name of keras.applications), timm:resnet50 (any of
    timm's, or torchvision:), transformers:CONFIG.json, a .keras or .onnx file, what `lolat read` wrote,
    or a function that returns a Keras or PyTorch network: net.py:function or package.module:function.
    """
    if context.invoked_subcommand is None:
        click.echo(FIRST)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the `lolat` command."""
    gc.set_threshold(10_000)  # Python's 700 take a tenth of a short command
    sys.exit(running.run(lolat, arguments, "lolat"))


if __name__ == "__main__":
    main()
