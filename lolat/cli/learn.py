"""`lolat learn` and `learn_model.py`: measure this device, fit, write the model file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import Any

import click

from lolat.cli import common
from lolat.units import plain


@common.command(
    "lolat learn cpu",
    "lolat learn gpu --backend torch --mode training",
)
@common.device_argument()
@common.output_option(
    more="The model file; models/local/<device>.json (or your data folder) if not given."
)
@common.backend_option(
    more="If not given: tensorflow on a CPU, torch on a GPU, or what is there instead."
)
@common.option("--jit", is_flag=True, help="tensorflow: compiled by XLA.")
@common.option("--compile", is_flag=True, help="torch: compiled by torch.compile.")
@common.option("--channels-last", is_flag=True, help="torch: images lie channels last in memory.")
@common.option("--half", is_flag=True, help="torch: in float16 instead of float32.")
@common.threads_option(more="As many as there are processors if not given.")
@common.option(
    "--mode",
    type=click.Choice(["inference", "training"]),
    default="inference",
    show_default=True,
    help="training: measure forward, backward and update too, and add them to the model file.",
)
@common.restart_option
@common.json_option
def learn(
    device: str,
    output: Path | None,
    backend: str | None,
    threads: int | None,
    mode: str,
    restart: bool,
    as_json: bool,
    **options: bool,
) -> None:
    """Measure about a hundred predefined blocks on this device and fit a model: a few minutes.

    With --mode training the model also tells how long training takes (`lolat cost`): some
    minutes more. A model file of this device that is there already is kept, and training added to it.

    A run that is interrupted goes on where it was when the same command is given again.
    """
    chosen = [name for name, is_given in options.items() if is_given]
    chosen += [f"threads={threads}"] * (threads is not None)
    _learn(device, output, backend, chosen, restart, mode == "training", as_json)


def _learn(
    device: str,
    output: Path | None,
    name: str | None,
    options: Sequence[str],
    restart: bool,
    training: bool,
    as_json: bool,
) -> None:
    """Learn a new model; with the backend `name`, or the one that is there."""
    from lolat.api.learning import learn_device
    from lolat.io.paths import called, near
    from lolat.report.device import learned

    more = ", and four to six more for training" if training else ""
    with common.progress(
        f"two to three minutes{more}; after Ctrl-C the same command goes on"
    ) as bar:
        made, is_new = learn_device(device, output, name, options, training, restart, bar)
    document: Mapping[str, Any] = made.document
    section = document.get("training")
    path, model = near(made.source), called(made.source)
    lines = [*learned(made, path, model)] if is_new else []
    if training and section:
        lines += learned_training(section, path, model)
    elif section:
        lines += ["training: kept as it was measured before (--mode training --restart: all anew)"]
    if as_json and is_new:  # else they are among the lines
        common.warn(document["warnings"])
    common.answer("model-summary", made, as_json, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `learn_model.py`."""
    return common.run_apart(learn, arguments, "learn_model.py")


# ---- What `lolat learn --mode training` says.


def learned_training(section: Mapping[str, Any], path: str, model: str) -> list[str]:
    """What a person reads after it; `model`: how commands name it."""
    blocks = {p["name"] for p in section["points"]}
    both = section["error"]["left_out_median"]
    noise = section["noise"]
    return [
        f"training: {len(section['points'])} passes of {len(blocks)} blocks, "
        f"{len(section['update_points'])} updates by {len(section['update_ms'])} optimizers "
        f"in {section['environment']['seconds']:.0f} s",
        f"  forward and backward of blocks left out: median error {100 * both:.1f} %; noise "
        f"{100 * noise['floor']:.1f} %, {noise['busy'] / noise['quiet']:.1f} times as long in the busiest "
        "tenth of the run as in the calmest",
        f"written: {plain(path)}",
        f"Next: lolat cost {quote(model)} keras:ResNet50 --batch-size 32 --samples 50000",
    ]
