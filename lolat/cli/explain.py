"""`lolat explain`: where a prediction comes from, and what a change would save."""

from __future__ import annotations

import json

import click

from lolat.cli.common import coverage_option, network_options


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
    from lolat.graph import Graph
    from lolat.model import load
    from lolat.model.attribution import explain_block, explain_network
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


# ---- `lolat budget`: the widest network, the largest input or the largest batch that stays
# within a time.


@click.command()
@network_options
@coverage_option
@click.option("--ms", "budget_ms", type=float, required=True, metavar="T", help="Milliseconds.")
@click.option(
    "--vary",
    type=click.Choice(["width", "resolution", "batch"]),
    required=True,
    help="What may change: channel counts, pixels of the input, or samples at once.",
)
@click.option(
    "--sure", is_flag=True, help="The upper end of the interval must stay within the time."
)
def budget(
    model: str,
    network: str,
    batch_size: int,
    input_size: tuple[int, ...],
    predictor: str | None,
    as_json: bool,
    coverage: float | None,
    budget_ms: float,
    vary: str,
    sure: bool,
) -> None:
    """The widest, largest or most of NETWORK that stays within a time."""
    from lolat.graph import Graph
    from lolat.model import load
    from lolat.model.budget import Question, check_budget
    from lolat.readers import read

    check_budget(budget_ms)
    loaded = load(model)
    loaded.predictor(predictor)

    def at_size(side: int) -> Graph:
        return read(network, (side,))

    asked = Question(
        loaded, read(network, input_size), budget_ms, batch_size, predictor, coverage, sure, at_size
    )
    found = asked.answer(vary)
    if as_json:
        click.echo(json.dumps(found.to_dict()))
        return
    from lolat.report.explanation import budget_lines

    for line in budget_lines(found):
        click.echo(line)
