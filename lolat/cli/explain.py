"""`lolat explain`: where a prediction comes from, and what a change would save."""

from __future__ import annotations

import json

import click

from lolat.cli.options import network_options


@click.command()
@network_options
@click.option("--block", default=None, metavar="NAME", help="One block, operation by operation.")
def explain(
    model: str,
    network: str,
    batch_size: int,
    input_size: tuple[int, ...],
    predictor: str | None,
    as_json: bool,
    block: str | None,
) -> None:
    """Which milliseconds of NETWORK come from what, and what a change would save."""
    from lolat.explain import explain_block, explain_network
    from lolat.graph import Graph
    from lolat.model import load
    from lolat.readers import read

    loaded = load(model)
    loaded.predictor(predictor)
    graph = read(network, input_size)

    def at_size(side: int) -> Graph:
        return read(network, (side,))

    if block is None:
        found = explain_network(loaded, graph, batch_size, predictor, at_size)
    else:
        found = explain_block(loaded, graph, block, batch_size, predictor)
    if as_json:
        click.echo(json.dumps(found.to_dict()))
        return
    from lolat.report.explanation import print_explanation

    print_explanation(found, model, network)
