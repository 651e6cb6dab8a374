"""`lolat predict` and `lolat report`: a network's latency from a model file."""

from __future__ import annotations

import json
from typing import Any

import click

from lolat.cli.options import network_options
from lolat.prediction import Prediction


def answer(
    model: str, network: str, batch_size: int, input_size: tuple[int, ...], predictor: str | None
) -> tuple[Any, Prediction]:
    """(model, prediction); the model is loaded first, because a wrong one is found out faster."""
    from lolat.model import load
    from lolat.readers import read

    loaded = load(model)
    loaded.predictor(predictor)
    graph = read(network, input_size)
    return loaded, loaded.predict(graph, batch_size, predictor)


@click.command()
@network_options
def predict(
    model: str,
    network: str,
    batch_size: int,
    input_size: tuple[int, ...],
    predictor: str | None,
    as_json: bool,
) -> None:
    """Latency of NETWORK on the device of MODEL, in milliseconds."""
    _, prediction = answer(model, network, batch_size, input_size, predictor)
    if as_json:
        click.echo(json.dumps(prediction.to_dict()))
        return
    from lolat.report.text import summary

    for line in summary(prediction):
        click.echo(line)


@click.command()
@network_options
@click.option(
    "--csv", "csv_file", type=click.Path(dir_okay=False), help="Write the blocks to this table."
)
def report(
    model: str,
    network: str,
    batch_size: int,
    input_size: tuple[int, ...],
    predictor: str | None,
    as_json: bool,
    csv_file: str | None,
) -> None:
    """Latency of NETWORK block by block: time, share, what bounds it, and the bottlenecks."""
    loaded, prediction = answer(model, network, batch_size, input_size, predictor)
    if csv_file is not None:
        from lolat.report.table import write_csv

        write_csv(csv_file, prediction)
    if as_json:
        click.echo(json.dumps(prediction.to_dict()))
        return
    from lolat.report.text import print_report

    print_report(loaded, prediction, model, network)
