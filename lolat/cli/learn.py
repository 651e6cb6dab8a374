"""`lolat learn` and `learn_model.py`: measure this device, fit, write the profile."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from lolat.cli import common
from lolat.cli.main import run
from lolat.parameters import Parameter

DEVICE = common.Word(Parameter("device", "", str, choices=("cpu", "gpu"), others={"cuda": "gpu"}))


@common.command(
    "lolat learn cpu",
    "lolat learn gpu --backend torch --mode training",
    answers={"model-summary": "lolat.device.summary:ModelSummary"},
)
@click.argument("device", type=DEVICE, metavar="{cpu|gpu}")
@common.output_option(
    more="The profile; models/local/<device>.json (or your data folder) if not given."
)
@common.parameter(
    "backend",
    "Also pytorch, tf, keras, onnx. If not given: tensorflow on a CPU, torch on a GPU, or what is there "
    "instead.",
)
@click.option("--jit", is_flag=True, help="tensorflow: compiled by XLA.")
@click.option("--compile", is_flag=True, help="torch: compiled by torch.compile.")
@common.parameter("channels_last", "For the backend torch.")
@click.option("--half", is_flag=True, help="torch: in float16 instead of float32.")
@common.parameter("threads", "As many as there are processors if not given.")
@click.option(
    "--mode",
    type=click.Choice(["inference", "training"]),
    default="inference",
    show_default=True,
    help="training: measure forward, backward and update too.",
)
@common.parameter("wait")
@common.parameter("restart")
def learn(
    device: str, output: Path | None, backend: str | None, threads: int | None, mode: str,
    restart: bool, wait: bool, **options: bool,
) -> None:  # fmt: skip
    """Measure 80 blocks and 13 networks on this device and fit a profile: two to three minutes.

    With --mode training also how long training takes (`lolat cost`): four to six minutes more. It is added
    to the profile that this device has already. The same command resumes an interrupted run.
    """
    from lolat.api import learning
    from lolat.device.lookup import shortest_name
    from lolat.io.paths import relative_path
    from lolat.report.device import learned

    chosen = [name for name, is_given in options.items() if is_given]
    chosen += [f"threads={threads}"] if threads is not None else []
    training = mode == "training"
    more = ", and four to six more for training" if training else ""
    takes = f"two to three minutes{more} on an idle machine; after Ctrl-C the same command goes on"
    slow = "after Ctrl-C, --wait waits for other programs, and --threads 1 leaves them processors"
    with common.Show(takes, slow) as bar:
        made = learning.learn(
            device, output, backend=backend, options=chosen, training=training, restart=restart,
            wait=wait, progress=bar,
        )  # fmt: skip
    common.answer(made, learned(made, relative_path(made.source), shortest_name(made.source)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `learn_model.py`."""
    return run(learn, arguments, "learn_model.py")
