"""`lolat training predict`: how long training a network takes, on one device or several."""

from __future__ import annotations

import json
from dataclasses import replace
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
from lolat.cli.training.options import device_options
from lolat.errors import InputError
from lolat.units import duration, milliseconds, plain

if TYPE_CHECKING:
    from lolat.training.model import Training, TrainingPrediction


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
@click.option(
    "--validation-samples",
    "validation",
    type=int,
    default=None,
    metavar="V",
    help="Evaluated after each epoch.",
)
@click.option(
    "--memory-gib",
    type=float,
    default=None,
    metavar="M",
    help="Of each device, to say whether a batch fits; if not given, what was free when it was learned.",
)
@click.option("--devices", type=int, default=1, show_default=True, metavar="K")
@device_options
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
    validation: int | None,
    input_ms: float,
    memory_gib: float | None,
    devices: int,
    strategy: str,
    link_gbps: float | None,
    no_overlap: bool,
    input_size: tuple[int, ...],
    coverage: float | None,
    as_json: bool,
) -> None:
    """Time of an iteration, an epoch and a whole training of NETWORK, and the memory that it needs.

    MODEL: learned with `lolat learn --mode training` (a file, `local`, or a name), or written by `lolat
    training fit`, or by `lolat fit` from tables of operations or of networks. Without --samples there are
    only iterations.
    """
    from lolat.intervals import COVERAGE, check_coverage
    from lolat.readers import read
    from lolat.training.cost.renting import device_of
    from lolat.training.memory import largest_batch
    from lolat.training.model import load_training
    from lolat.training.optimizers import optimizer_named
    from lolat.training.parallel.links import Link
    from lolat.training.parallel.machines import assumed_link
    from lolat.training.parallel.prediction import predict_parallel
    from lolat.training.parallel.replicas import check_strategy
    from lolat.training.pipeline import with_input
    from lolat.training.sizes import check_sizes

    check_sizes(batch_size, samples, epochs, validation)
    optimizer_named(optimizer)
    check_strategy(strategy, devices)
    given = None if link_gbps is None else Link(link_gbps)
    wanted = COVERAGE if coverage is None else coverage
    check_coverage(wanted)
    found = load_training(model)
    link = given or assumed_link(device_of(found), devices)
    graph = read(network, input_size)
    parallel = predict_parallel(
        found, graph, batch_size, samples, epochs, optimizer, wanted, devices, link, strategy,
        overlap=not no_overlap, validation=validation,
    )  # fmt: skip
    parallel = replace(parallel, training=with_input(parallel.training, input_ms, devices))
    answer = parallel.training
    available = _available_bytes(found, memory_gib)
    fit = None if available is None else largest_batch(graph, optimizer_named(optimizer), available)
    for warning in answer.warnings:
        say(f"warning: {warning}")
    if as_json:
        told = {"available_bytes": available, "largest_batch": fit}
        click.echo(json.dumps({**parallel.to_dict(), **told}))
        return
    for line in lines(answer, found.name, available, fit):
        click.echo(line)
    if devices > 1:
        waited = milliseconds(answer.parts_ms["exchange"] or 0.0)
        click.echo(
            f"{devices} devices, a batch of {batch_size} on each, gradients by {strategy} over {link}: "
            f"{waited} of an iteration"
        )
        if given is None:
            click.echo("The link is assumed: give yours with --link-gbps")
        if parallel.iteration.hidden_ms > 0:
            hidden = milliseconds(parallel.iteration.hidden_ms)
            click.echo(f"{hidden} more are hidden by the backward pass (--no-overlap: none)")


def _available_bytes(model: Training, memory_gib: float | None) -> int | None:
    """Memory of a device: as said, or what the model's file has of it; None where nobody knows."""
    if memory_gib is not None:
        if not 0.0 < memory_gib < 2**30:
            raise InputError(f"--memory-gib {memory_gib:g}: expected more than 0 GiB, such as 16")
        return int(memory_gib * 2**30)
    environment = model.document.get("environment") or {}
    own = environment.get("available_bytes") if environment.get("device") == "cpu" else None
    return own if isinstance(own, int) and own > 0 else None


def lines(
    answer: TrainingPrediction, device: str, available: int | None, fit: int | None
) -> list[str]:
    """What a person reads. `available`: bytes of a device's memory; `fit`: the largest batch in them."""
    memory = f"{gib(answer.memory_bytes)} of memory, estimated"
    if available is not None:
        room = f"{gib(available)} are there"
        fits = answer.memory_bytes <= available
        memory += f": {'fits, ' if fits else 'does not fit, '}{room}, for a batch of up to {fit:,}"
    told = [
        f"{plain(answer.network)} · batch {answer.batch_size} · {answer.optimizer} · {plain(device)}",
        f"{milliseconds(answer.iteration_ms)} an iteration · {memory}",
    ]
    parts = {k: v for k, v in answer.parts_ms.items() if v is not None and (v or k != "exchange")}
    if len(parts) > 1:
        told.append("  " + " · ".join(f"{k} {milliseconds(v)}" for k, v in parts.items()))
    if answer.epoch_s is None or answer.total_s is None:
        return [*told, "Give --samples N for the time of an epoch."]
    epoch = f"{duration(answer.epoch_s)} an epoch of {answer.iterations} iterations"
    if answer.evaluation_s:
        epoch += f", {duration(answer.evaluation_s)} of it for the evaluation"
    if answer.startup_s:
        epoch += f"; the first takes {duration(answer.startup_s)} more to start"
    total = f"{duration(answer.total_s)} for {answer.epochs} epoch{'s' * (answer.epochs > 1)}"
    if answer.interval_s is not None:
        low, high = map(duration, answer.interval_s)
        total += f", {100 * answer.coverage:g} % sure of {low} .. {high}"
    return [*told, epoch, total]


def gib(size: int) -> str:
    """Bytes as people say them."""
    return f"{size / 2**30:.2f} GiB" if size < 10 * 2**30 else f"{size / 2**30:.0f} GiB"
