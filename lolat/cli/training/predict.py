"""`lolat training predict`: how long training a network takes, on one device or several."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from lolat.cli.errors import say
from lolat.cli.options import (
    coverage_option,
    json_option,
    model_argument,
    network_argument,
    size_option,
)
from lolat.training.parallel.links import LINK_GBPS
from lolat.units import milliseconds, plain

if TYPE_CHECKING:
    from lolat.training.model import TrainingPrediction


@click.command()
@model_argument
@network_argument
@click.option(
    "--batch-size",
    type=int,
    required=True,
    metavar="B",
    help="Samples of an iteration on each device.",
)
@click.option(
    "--optimizer",
    default="sgd",
    show_default=True,
    help="sgd, momentum, rmsprop, adagrad, adam or adadelta.",
)
@click.option("--samples", type=int, default=None, metavar="N", help="In the data set, for epochs.")
@click.option("--epochs", type=int, default=1, show_default=True, metavar="E")
@click.option("--devices", type=int, default=1, show_default=True, metavar="K")
@click.option(
    "--strategy",
    default="ring",
    show_default=True,
    metavar="NAME",
    help="How gradients are exchanged: ring, tree, one-to-all or mirrored.",
)
@click.option(
    "--link-gbps",
    type=float,
    default=LINK_GBPS,
    show_default=True,
    metavar="G",
    help="Gbit/s of each device's link to the others.",
)
@size_option
@coverage_option
@json_option
def predict(
    model: str,
    network: str,
    batch_size: int,
    optimizer: str,
    samples: int | None,
    epochs: int,
    devices: int,
    strategy: str,
    link_gbps: float,
    input_size: tuple[int, ...],
    coverage: float | None,
    as_json: bool,
) -> None:
    """Time of an iteration, an epoch and a whole training of NETWORK, and the memory that it needs.

    MODEL: a file that `lolat training fit` wrote. Without --samples there are only iterations.
    """
    from lolat.intervals import COVERAGE, check_coverage
    from lolat.readers import read
    from lolat.training.model import load_training
    from lolat.training.optimizers import optimizer_named
    from lolat.training.parallel.links import Link
    from lolat.training.parallel.prediction import predict_parallel
    from lolat.training.parallel.replicas import check_strategy
    from lolat.training.sizes import check_sizes

    check_sizes(batch_size, samples, epochs)
    optimizer_named(optimizer)
    check_strategy(strategy, devices)
    link = Link(link_gbps)
    wanted = COVERAGE if coverage is None else coverage
    check_coverage(wanted)
    found = load_training(model)
    graph = read(network, input_size)
    parallel = predict_parallel(
        found, graph, batch_size, samples, epochs, optimizer, wanted, devices, link, strategy
    )
    answer = parallel.training
    for warning in answer.warnings:
        say(f"warning: {warning}")
    if as_json:
        click.echo(json.dumps(parallel.to_dict()))
        return
    for line in lines(answer, found.name):
        click.echo(line)
    if devices > 1:
        waited = milliseconds(answer.parts_ms["exchange"] or 0.0)
        click.echo(
            f"{devices} devices, a batch of {batch_size} on each, gradients by {strategy} over "
            f"{link_gbps:g} Gbit/s: {waited} of an iteration"
        )


def lines(answer: TrainingPrediction, device: str) -> list[str]:
    """What a person reads."""
    memory = f"{answer.memory_bytes / 2**30:.2f} GiB of memory, estimated"
    told = [
        f"{plain(answer.network)} · batch {answer.batch_size} · {answer.optimizer} · {plain(device)}",
        f"{milliseconds(answer.iteration_ms)} an iteration · {memory}",
    ]
    if answer.epoch_s is None or answer.total_s is None:
        return [*told, "Give --samples N for the time of an epoch."]
    told.append(f"{duration(answer.epoch_s)} an epoch of {answer.iterations} iterations")
    total = f"{duration(answer.total_s)} for {answer.epochs} epoch{'s' * (answer.epochs > 1)}"
    if answer.interval_s is not None:
        low, high = map(duration, answer.interval_s)
        total += f", {100 * answer.coverage:g} % sure of {low} .. {high}"
    return [*told, total]


def duration(seconds: float) -> str:
    """A time as people say it: 12.3 s, 4 min 10 s, 3 h 05 min."""
    if seconds < 1.0:
        return milliseconds(1e3 * seconds)
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"
