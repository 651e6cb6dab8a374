"""`lolat learn` and `learn_model.py`: measure this device, fit, write the model file; or extend one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from shlex import quote
from typing import Any

import click

import lolat
from lolat.cli import common
from lolat.cli.cluster import NO_ADDRESS, Address, learn_fleet
from lolat.errors import InputError
from lolat.units import plain


@common.command(
    "lolat learn cpu",
    "lolat learn gpu --backend torch --mode training",
    "lolat learn --extend local --for mynet.onnx",
)
@common.device_argument(required=False)
@common.output_option(
    more="The model file; models/local/<device>.json (or your data folder) if not given. With --fleet a "
    "folder."
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
@common.restart_option(more="With --extend, what NETWORK was extended with too.")
@common.option("--extend", metavar="MODEL", help="Add to this model instead of learning a new one.")
@common.option(
    "--for", "network", metavar="NETWORK", help="With --extend: the network to bring inside."
)
@common.batches_option(more="With --extend: of NETWORK; 1 if not given.")
@common.size_option(more="With --extend: of NETWORK.")
@common.reading_options
@common.option(
    "--fleet", type=Address(), is_flag=False, flag_value=NO_ADDRESS, default=None, metavar="[ADDRESS]",
    help="Every node of the Ray cluster at host:port, or auto (without ADDRESS: that of RAY_ADDRESS, else "
    "this machine), a model for each.",
)  # fmt: skip
@common.json_option
@click.pass_context
def learn(
    ctx: click.Context,
    /,
    device: str | None,
    output: Path | None,
    backend: str | None,
    threads: int | None,
    mode: str,
    restart: bool,
    extend: str | None,
    network: str | None,
    batch_sizes: tuple[int, ...],
    input_size: tuple[int, ...],
    fleet: str | None,
    as_json: bool,
    **options: bool,
) -> None:
    """Measure about a hundred predefined blocks on this device and fit a model: a few minutes.

    With --mode training the model also tells how long training takes (`lolat training predict`): some
    minutes more. A model file of this device that is there already is kept, and training added to it.

    A run that is interrupted goes on where it was when the same command is given again.

    With --extend MODEL --for NETWORK: measure the few blocks of NETWORK that bring it inside what
    MODEL was measured on, on the device of MODEL, and fit MODEL again with them. It is written to MODEL,
    or for a model that is shipped with LoLat to your own, unless --output says where.

    With --fleet: measure every node of a Ray cluster once. Those whose model is there are left out.
    """
    chosen = [name for name, is_given in options.items() if is_given]
    chosen += [f"threads={threads}"] * (threads is not None)
    training = mode == "training"
    if extend is not None:
        unfit = ["backend"] * (backend is not None) + chosen
        _check_extend(extend, network, unfit, training, fleet)
        sizes = batch_sizes or (1,)
        _extend(extend, network or "", sizes, input_size, device, output, restart, as_json)
        return
    given = {"--for": network, "--batch-size": batch_sizes, "--input-size": input_size}
    if name := next(filter(given.get, given), None):
        raise InputError(
            f"{name} goes with --extend MODEL only: a new model is learned from predefined blocks"
        )
    if fleet is not None and training:
        raise InputError(
            "--mode training does not go with --fleet: log in to each node and give the command "
            "there; leave one out"
        )
    if fleet is None and device is None:
        raise click.MissingParameter(ctx=ctx, param=ctx.command.params[0])
    device = device or "cpu"
    if threads is not None:  # before anything is started; how many nodes have, they say
        from microbench.backends import check_threads

        check_threads(threads, device, here=fleet is None)
    if fleet is not None:
        learn_fleet(fleet, device, output, backend, chosen, restart, as_json=as_json)
        return
    _learn(device, output, backend, chosen, restart, training, as_json)


def _check_extend(
    model: str, network: str | None, options: Sequence[str], training: bool, fleet: str | None
) -> None:
    """InputError where --extend lacks its network, or is given with what does not go with it."""
    if training:
        raise InputError(
            "--mode training does not go with --extend MODEL: training is learned from the predefined "
            "blocks; leave one out"
        )
    if network is None:
        raise InputError(
            "--extend lacks --for NETWORK: expected the network whose blocks are to be measured, as "
            f"in: lolat learn --extend {model} --for keras:ResNet50"
        )
    if fleet is not None:
        raise InputError(
            "--fleet does not go with --extend MODEL: every node gets a model of its own; leave one out"
        )
    if options:
        first = options[0].partition("=")[0].replace("_", "-")
        raise InputError(
            f"--{first} does not go with --extend MODEL: blocks are added with the "
            "backend and the options that the model was learned with; leave it out"
        )


def _extend(
    model: str,
    network: str,
    batch_sizes: Sequence[int],
    input_size: tuple[int, ...],
    device: str | None,
    output: Path | None,
    restart: bool,
    as_json: bool,
) -> None:
    """Extend the model, and say what came of it."""
    from lolat.api.learning import extend_model, standing
    from lolat.report.text import learned

    asked = model, network, batch_sizes, input_size, device, output, restart
    with common.progress() as bar:
        found = extend_model(lolat.load(model), *asked, bar)
    made = found.model
    lines = learned(made.document, made.source) if found.measured else ()
    now = standing(made, found.graph, batch_sizes, found.measured)
    common.answer("model-summary", made, as_json, chain(lines, now))


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
    from lolat.report.text import learned

    more = ", and four to six more for training" if training else ""
    with common.progress(
        f"two to three minutes{more}; after Ctrl-C the same command goes on"
    ) as bar:
        made, is_new = learn_device(device, output, name, options, training, restart, bar)
    document: Mapping[str, Any] = made.document
    section = document.get("training")
    lines = [*learned(document, made.source)] if is_new else []
    if training and section:
        lines += learned_training(section, Path(made.source))
    elif section:
        lines += ["training: kept as it was measured before (--mode training --restart: all anew)"]
    common.answer("model-summary", made, as_json, lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `learn_model.py`."""
    return common.run_apart(learn, arguments, "learn_model.py")


# ---- What `lolat learn --mode training` says.


def learned_training(section: Mapping[str, Any], output: Path) -> list[str]:
    """What a person reads after it."""
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
        f"written: {plain(str(output))}",
        f"Next: lolat training predict {quote(str(output))} keras:ResNet50 --batch-size 32 --samples 50000",
    ]
