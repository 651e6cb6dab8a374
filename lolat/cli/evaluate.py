"""`lolat evaluate`: measure whole networks, then compare with the prediction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

import click

from lolat.cli.errors import say
from lolat.cli.options import Size, json_option, model_argument
from lolat.errors import InputError

STATE_CHANGED = 0.15
EXAMPLES = {
    "torch": (" of torchvision", "torchvision.models:resnet50 --input-size 224"),
    "onnxruntime": ("", "network.onnx"),
}
"""Backend without networks of its own -> whose they may be, and how one is given."""


@click.command()
@model_argument
@click.argument("networks", metavar="[NETWORK]...", nargs=-1)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="May be given several times; 1 and 4 if not given.",
)
@click.option("--input-size", type=Size(), default=(), help="Input size of all networks.")
@click.option(
    "--plot", type=click.Path(dir_okay=False), help="Draw measured against predicted: .svg or .png."
)
@json_option
def evaluate(
    model: str,
    networks: tuple[str, ...],
    batch_sizes: tuple[int, ...],
    input_size: tuple[int, ...],
    plot: str | None,
    as_json: bool,
) -> None:
    """Measure NETWORKs on this machine and compare them with what MODEL predicts.

    They are run with the backend that MODEL was learned with, and its options: Keras networks by
    tensorflow, PyTorch modules by torch, .onnx files by onnxruntime.
    Without NETWORK, and of tensorflow only: ten of keras.applications; a few minutes.
    """
    from lolat.cli.progress import progress
    from lolat.model import load
    from lolat.report.evaluation import compare, lines
    from microbench import backends, comparable
    from microbench.evaluate import DEFAULT_BATCH_SIZES, DEFAULT_NETWORKS, measure_networks

    if plot is not None:
        from lolat.report.plots import check_plot

        check_plot(plot)  # now rather than after minutes of measuring
    loaded = load(model)
    where = loaded.document["environment"]
    then = {k: v for k, v in loaded.document["noise"].items() if isinstance(v, (int, float))}
    backend = backends.of_model(where)
    check_networks(networks, backend, model)
    device = where.get("device") if where.get("device") in ("cpu", "gpu") else "cpu"

    here = comparable.here(where, device)
    known: tuple[comparable.Difference, ...] = ()
    if device == "cpu":  # known before measuring; what a GPU is called, the backend says
        known = comparable.differences_of_device(loaded.device, where, here)
        warn_of_differences(known, "" if known else comparable.unsaid(where))
    with progress() as bar:
        measured, failures, versions, noise = measure_networks(
            backend,
            device,
            networks or DEFAULT_NETWORKS,
            batch_sizes or DEFAULT_BATCH_SIZES,
            input_size,
            bar,
            then.get("calm_ms"),
        )
    found = comparable.differences(loaded.device, where, here | versions)
    warn_of_differences([d for d in found if d not in known])
    warn_of_state(then.get("reference_ms"), noise["reference_ms"])
    warn_of_restless([f"{m.spec} x{m.batch_size}" for m in measured if not m.calm])
    result = compare(loaded, measured, failures)
    result["noise"] = noise
    if as_json:
        click.echo(json.dumps(result))
    else:
        for line in lines(result):
            click.echo(line)
    if plot is not None:  # last: what was measured is on the screen whatever happens to the plot
        from lolat.report.plots import evaluation_plot

        title = f"{len(result['networks'])} networks on {loaded.device}"
        evaluation_plot(result["networks"], result["predictors"], title, plot)
        say(f"drawn: {plot}")


def check_networks(networks: Sequence[str], backend: str, model: str) -> None:
    """InputError where none is given, and there are none for the backend of the model."""
    name = backend.partition("+")[0]
    if not networks and name in EXAMPLES:
        whose, given = EXAMPLES[name]
        raise InputError(
            f"{model} was learned with {name}, for which no networks come with LoLat; give some, for "
            f"example{whose}: lolat evaluate {model} {given}"
        )


def warn_of_differences(found: Iterable[object], unsaid: str = "") -> None:
    """Say where the device, versions, threads or flags are not those of the model, or not known."""
    for remark in [*map(str, found), *[unsaid] * bool(unsaid)]:
        say(f"warning: {remark}")


def warn_of_state(learned_ms: float | None, now_ms: float) -> None:
    """Say where the reference block's time is not that of learning."""
    if learned_ms and abs(now_ms / learned_ms - 1) > STATE_CHANGED:
        say(
            f"warning: the reference block takes {now_ms:.2f} ms now and took {learned_ms:.2f} ms when "
            "the model was learned: the machine is in another state; measure again later, or learn again"
        )


def warn_of_restless(restless: Sequence[str]) -> None:
    """Name the networks that saw no calm moment."""
    if restless:
        say(
            f"warning: no calm moment for {', '.join(restless)}: the time is the fastest of disturbed "
            "ones; measure again when the machine is quieter"
        )
