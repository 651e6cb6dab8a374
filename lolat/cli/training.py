"""Training time: one command per job."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lolat.cli import common
from lolat.cli.parsing import Number
from lolat.units import byte_size, duration, milliseconds, plain

if TYPE_CHECKING:
    from lolat.api.training import Exchange, Run
    from lolat.graph import Graph
    from lolat.training.model import TrainingPrediction
    from lolat.training.replicas import ParallelPrediction

COMMANDS: dict[str, tuple[str, str]] = {
    "fit": ("lolat.cli.training:fit", "A device from a table of epochs timed already."),
    "predict": ("lolat.cli.training:predict", "Time of an iteration, an epoch, a whole run."),
}
"""Each command: where it is, and what it does in a few words."""


@click.group(cls=common.LazyGroup, table=COMMANDS, no_args_is_help=False)
def training() -> None:
    """How long an iteration, an epoch and a training run take."""


# ---- Options that `lolat training predict` and `lolat cost` share, each group of them as one object.


def question(name: str) -> Any:
    """A class of `lolat.api.training`, imported when it is needed."""
    from lolat.api import training as questions

    return getattr(questions, name)


def run_options(samples_required: bool) -> common.Decorator:
    """`run`: how much is trained, and how."""
    return common.as_one(
        "run",
        lambda: question("Run"),
        common.batch_option(required=True, more="On each device."),
        common.optimizer_option,
        common.samples_option(
            required=samples_required, more="" if samples_required else "Without it, no epochs."
        ),
        common.epochs_option(default=1, show_default=True),
        common.coverage_option,
    )


REPLICAS = Number("K", whole=True, least=1)
exchange_options = common.as_one(
    "exchange",
    lambda: question("Exchange"),
    common.strategy_option,
    common.link_option,
    common.option("--no-overlap", is_flag=True,
                  help="Exchange nothing during the backward pass: right for replicas that share a CPU."),
    common.option("--input-ms-per-sample", "input_ms", default=0, show_default=True,
                  type=Number("MS", "milliseconds", least=0.0, most=1e9),
                  help="What the input pipeline takes beside training; a device that is faster waits for "
                  "it."),
)  # fmt: skip


# ---- `lolat training predict`: how long training a network takes, on one device or several.


@common.command(
    "lolat training predict epyc-2t keras:MobileNetV2 --batch-size 64 --samples 50000 --epochs 20",
    "lolat training predict gpu.json mynet.onnx --batch-size 64 --replicas 4 --link-gbps 25",
)
@common.model_argument
@common.network_argument
@run_options(samples_required=False)
@common.option(
    "--validation-samples", "validation", type=common.WHOLE, help="Evaluated after each epoch."
)
@common.option("--memory-gib", type=Number("GIB", "GiB", above=0.0, most=2**30, such="16"),
               help="Of each device, to say whether a batch fits; if not given, what was free when it was "
               "learned.")  # fmt: skip
@common.replicas_option(type=REPLICAS, default=1)
@exchange_options
@common.size_option
@common.json_option
def predict(
    model: str,
    network: str,
    run: Run,
    validation: int | None,
    memory_gib: float | None,
    replicas: int,
    exchange: Exchange,
    input_size: tuple[int, ...],
    as_json: bool,
) -> None:
    """Time of an iteration, an epoch and a whole training of NETWORK, and the memory that it needs.

    By what MODEL knows best: epochs of `lolat training fit`, what `lolat learn --mode training` measured,
    or else an estimate from its latencies of inference, which says so. Without --samples there are only
    iterations.
    """
    from lolat.api.training import predict_training
    from lolat.training.file import load_training

    more = replicas, validation, memory_gib, input_size
    answer = predict_training(load_training(model), network, run, exchange, *more)
    of = answer.prediction
    common.warn(of.training.warnings)
    shown = lines(of.training, answer.device, answer.available_bytes, answer.largest_batch)
    shown += exchange_lines(of, answer.assumed) if replicas > 1 else []
    common.answer("training", answer, as_json, shown)


def lines(
    answer: TrainingPrediction, device: str, available: int | None, largest: int | None
) -> list[str]:
    """What a person reads. `available`: bytes of memory; `largest`: the largest batch in them."""
    memory = f"{byte_size(answer.memory_bytes)} of memory, estimated"
    if available is not None:
        fits = "fits" if answer.memory_bytes <= available else "does not fit"
        memory += f": {fits}, {byte_size(available)} are there, for a batch of up to {largest:,}"
    shown = [
        f"{plain(answer.network)} · batch {answer.batch_size} · {answer.optimizer} · {plain(device)}",
        f"{milliseconds(answer.iteration_ms)} an iteration · {memory}",
    ]
    parts = {k: v for k, v in answer.parts_ms.items() if v is not None and (v or k != "exchange")}
    if len(parts) > 1:
        shown.append("  " + " · ".join(f"{k} {milliseconds(v)}" for k, v in parts.items()))
    if answer.epoch_s is None or answer.total_s is None:
        return [*shown, "Give --samples N for the time of an epoch."]
    epoch = f"{duration(answer.epoch_s)} an epoch of {answer.iterations} iterations"
    if answer.evaluation_s:
        epoch += f", {duration(answer.evaluation_s)} of it for the evaluation"
    if answer.startup_s:
        epoch += f"; the first takes {duration(answer.startup_s)} more to start"
    total = f"{duration(answer.total_s)} for {answer.epochs} epoch{'s' * (answer.epochs > 1)}"
    if answer.interval_s is not None:
        low, high = map(duration, answer.interval_s)
        total += f", {100 * answer.coverage:g} % sure of {low} .. {high}"
    return [*shown, epoch, total]


def exchange_lines(answer: ParallelPrediction, assumed: bool) -> list[str]:
    """What several devices add; `assumed`: whether nobody gave the link."""
    of, training = answer.iteration, answer.training
    shown = [
        f"{of.devices} devices, a batch of {training.batch_size} on each, gradients by {of.strategy} over "
        f"{answer.link}: {milliseconds(training.parts_ms['exchange'] or 0.0)} of an iteration"
    ]
    if assumed:
        shown.append("The link is assumed: give yours with --link-gbps")
    if of.hidden_ms > 0:
        hidden = milliseconds(of.hidden_ms)
        shown.append(f"{hidden} more are hidden by the backward pass (--no-overlap: none)")
    return shown


# ---- `lolat training fit`: a device's training time from a table of epochs that somebody
# timed.


@dataclass(frozen=True)
class TrainingFit:
    """A model of epochs: how many rows, and the relative error of the half of them that is nearest."""

    output: str
    name: str
    epochs: int
    networks: int
    optimizers: tuple[str, ...]
    drop_last: bool
    left_out_error: float
    terms: tuple[str, ...]


@common.command("lolat training fit epochs.csv --output gpu.json")
@click.argument("epochs", metavar="EPOCHS.csv", type=click.Path(path_type=Path))
@common.output_option(
    required=True, more="The device's model file: made, or the epochs are added to what it knows."
)
@common.name_option(more="If not given, as in MODEL, or as the table.")
@common.option(
    "--drop-last",
    is_flag=True,
    help="The epochs left out a last batch that was not full; without it, it was run too.",
)
@common.json_option
def fit(epochs: Path, output: Path, name: str | None, drop_last: bool, as_json: bool) -> None:
    """Fit a device's training time to EPOCHS.csv: no device is needed.

    A table with the columns network (any NETWORK, such as keras:ResNet50), batch_size, samples, optimizer
    and epoch_s, a row for each timed epoch. Twenty rows of different networks and batch sizes do.
    """
    import numpy as np

    from lolat.io.tables import read_table
    from lolat.model.file import put
    from lolat.readers import read
    from lolat.training.fitting import REQUIRED, EpochTraining
    from lolat.training.fitting import fit as fit_model

    common.check_writable(output)
    table = read_table(epochs, REQUIRED, rows="timed epoch")
    networks = len({row["network"] for row in table})
    numbers = count(1)

    def read_one(network: str) -> Graph:
        if (number := next(numbers)) % 20 == 0:
            common.say(f"reading network {number} of {networks}")
        return read(network)

    fitted = fit_model(table, read_one, name or epochs.stem, drop_last).document
    called = name if output.exists() else fitted["device"]
    document = put(output, "epochs", fitted["epochs"], called, fitted["environment"])
    model = EpochTraining(document, str(output))
    error = float(np.median(np.abs(np.expm1(-np.array(model.residuals)))))
    terms = [t for t, c in document["epochs"]["coefficients_ms"].items() if c > 0]
    answer = TrainingFit(
        output=str(output), name=model.name, epochs=len(table), networks=networks,
        optimizers=model.optimizers, drop_last=drop_last, left_out_error=round(error, 6),
        terms=tuple(terms),
    )  # fmt: skip
    told = (
        f"{model.name}: {len(table)} epochs of {networks} networks",
        f"  left out of the fit, half of them are within {100 * error:.1f} %",
        f"  time goes by {', '.join(terms)}",
        f"written: {plain(str(output))}",
    )
    common.answer("training-fit", answer, as_json, told)
