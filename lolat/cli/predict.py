"""`lolat predict` and `lolat report`: a network's latency from a model file."""

from __future__ import annotations

import json
from dataclasses import replace
from shlex import quote
from typing import Any

import click

from lolat.cli.common import Columns, Milliseconds, coverage_option, network_options, say
from lolat.errors import AnswerIsNo, InputError, ModelFileError, NetworkError
from lolat.fitting.domain import FOR_NETWORK
from lolat.io.paths import LOCAL
from lolat.model.prediction import Prediction


def answer(
    model: str,
    network: str,
    batch_size: int,
    input_size: tuple[int, ...],
    predictor: str | None,
    coverage: float | None = None,
) -> tuple[Any, Any, Prediction]:
    """(model, graph, prediction); the model is loaded first, because a wrong one is found out faster."""
    from lolat.fitting.intervals import interval_width
    from lolat.model import load
    from lolat.readers import read

    loaded = load(model)
    warn_of_processor(model, loaded)
    formula = loaded.predictor(predictor)
    if coverage is not None:
        interval_width(loaded.document["predictors"][formula.name], coverage)
    graph = read(network, input_size)
    found = loaded.predict(graph, batch_size, predictor, coverage)
    named = tuple(w.replace(FOR_NETWORK, _for(network, input_size)) for w in found.warnings)
    return loaded, graph, replace(found, warnings=named)


def warn_of_processor(model: str, loaded: Any) -> None:
    """Say where the model called `local` is of another processor than this one, or does not say."""
    where = loaded.document["environment"]
    if model != LOCAL or where.get("device") != "cpu":
        return
    from microbench import environment as comparable

    here = comparable.here(where, "cpu")
    found = comparable.differences_of_device(loaded.device, where, here)
    if found:
        said = "; ".join(map(str, found))
        say(f"warning: {loaded.source}: {said}; learn again with: python learn_model.py cpu")
    elif unsaid := comparable.unsaid(where):
        say(f"warning: {loaded.source}: {unsaid}")


def _for(network: str, input_size: tuple[int, ...]) -> str:
    """How the advice to measure names the network."""
    size = f" --input-size {','.join(map(str, input_size))}" if input_size else ""
    return f"--for {quote(network)}{size}"


@click.command()
@network_options
@coverage_option
@click.option(
    "--max-ms",
    type=Milliseconds(),
    default=None,
    help="Exit code 3 where it takes longer than this.",
)
@click.option(
    "--state",
    default=None,
    metavar="FILE|now",
    help="In this state of the machine: what `lolat doctor MODEL --json` wrote, or now (measured, 20 s).",
)
def predict(
    model: str,
    network: str,
    batch_size: int,
    input_size: tuple[int, ...],
    predictor: str | None,
    coverage: float | None,
    as_json: bool,
    max_ms: float | None,
    state: str | None,
) -> None:
    """Latency of NETWORK on the device of MODEL, in milliseconds: on the machine as it usually is.

    The interval holds the machine's usual ups and downs. With --state it is for a machine that is known to
    be so busy, and narrower.
    """
    if state is not None and state != "now":
        from lolat.model.state import read_state

        read_state(state)  # a wrong file is found out before a framework starts
    loaded, _, prediction = answer(model, network, batch_size, input_size, predictor, coverage)
    if state is not None:
        prediction = prediction.under(_state(state, loaded, model))
    if as_json:
        click.echo(json.dumps(prediction.to_dict()))
    else:
        from lolat.report.text import summary

        for line in summary(prediction):
            click.echo(line)
    if max_ms is not None and prediction.latency_ms > max_ms:
        from lolat.report.text import over_budget

        raise AnswerIsNo(over_budget(prediction, max_ms))


def _state(given: str, loaded: Any, model: str) -> Any:
    """The state that --state names: a file's, or that of this machine now."""
    from lolat.model.state import read_state

    if given != "now":
        return read_state(given)
    from lolat.cli.evaluate import examined
    from microbench.doctor import state_now

    found = examined(loaded)
    state = state_now(loaded, found.again, found.loaded)
    if state is None or found.differences:
        raise InputError(
            f"--state now: {model} is not of this machine or its framework (lolat doctor {model} says how "
            "they differ); expected a model that was learned here, or --state FILE"
        )
    return state


@click.command()
@network_options
@coverage_option
@click.option(
    "--csv", "csv_file", type=click.Path(dir_okay=False), help="Write the blocks to this table."
)
@click.option(
    "--html", "html_file", type=click.Path(), metavar="FILE", help="Write a page to explore them."
)
@click.option(
    "--against",
    default=None,
    metavar="MODEL_OR_NETWORK",
    help="A second device or network beside it in the page.",
)
@click.option("--depth", type=int, default=None, metavar="N", help="Fold by module, N names deep.")
@click.option(
    "--columns",
    type=Columns(),
    default=None,
    help="Which, as in ms,share,macs,weights,acts (see docs/report.md).",
)
@click.option("--sort", default=None, metavar="BY", help="order, time, macs or name.")
def report(
    model: str,
    network: str,
    batch_size: int,
    input_size: tuple[int, ...],
    predictor: str | None,
    coverage: float | None,
    as_json: bool,
    csv_file: str | None,
    html_file: str | None,
    against: str | None,
    depth: int | None,
    columns: tuple[str, ...] | None,
    sort: str | None,
) -> None:
    """Latency of NETWORK block by block: time, share, what bounds it, and the bottlenecks."""
    from lolat.report.rows import USUAL, View

    if against is not None and html_file is None:
        raise InputError("--against is for the page; give --html FILE too")
    view = View(depth, USUAL if columns is None else columns, "order" if sort is None else sort)
    if as_json and (depth, columns, sort) != (None, None, None):
        raise InputError(
            "--depth, --columns and --sort are for the table, --json has every block and all its counts; "
            "leave out one or the other"
        )
    if html_file is not None:
        from lolat.cli.compare import check_writable

        check_writable(html_file, "--html")
    asked = (batch_size, input_size, predictor, coverage)
    loaded, graph, prediction = answer(model, network, *asked)
    if html_file is not None:
        _write_page(html_file, (model, network), (loaded, graph), asked, against)
    if csv_file is not None:
        from lolat.report.text import write_csv

        write_csv(csv_file, prediction)
    if as_json:
        click.echo(json.dumps(prediction.to_dict()))
    else:
        _print(loaded, graph, prediction, (model, network, input_size), view)
    if html_file is not None:
        say(f"written: {html_file}")


def _print(
    loaded: Any,
    graph: Any,
    prediction: Prediction,
    asked: tuple[str, str, tuple[int, ...]],
    view: Any,
) -> None:
    """The report; with module paths and the familiar figures where it is not the usual one."""
    from lolat.report.text import print_report

    if view.is_usual:
        print_report(loaded, prediction, *asked)
        return
    from lolat.graph.blocks import cut
    from lolat.report.rows import module_paths
    from lolat.report.words import familiar

    paths = module_paths(graph, cut(graph))
    print_report(loaded, prediction, *asked, view, paths, familiar(graph))


def _write_page(
    path: str,
    names: tuple[str, str],
    read: tuple[Any, Any],
    asked: tuple[Any, ...],
    against: str | None,
) -> None:
    """Write the page of a report, alone or beside what it is compared with."""
    from lolat.graph.blocks import cut
    from lolat.readers import read as read_network
    from lolat.report.bottlenecks import Side, write_page
    from lolat.report.rows import module_paths

    batch_size, input_size, predictor, coverage = asked
    pairs = [(*names, *read)]
    if against is not None:
        pairs.append(other_side(against, *names, *read, asked))
    sides = [
        Side(
            loaded,
            graph,
            module_paths(graph, cut(graph)),
            model,
            network,
            _for(network, input_size),
            lambda side, network=network: read_network(network, (side,)),
        )
        for model, network, loaded, graph in pairs
    ]
    write_page(path, sides, batch_size, predictor, coverage)


def other_side(
    against: str, model: str, network: str, loaded: Any, graph: Any, asked: tuple[Any, ...]
) -> tuple[str, str, Any, Any]:
    """What `--against` names: (model, network) as given, and both read; a model where there is one.

    InputError where it names neither.
    """
    from lolat.model import load
    from lolat.readers import read

    _, input_size, predictor, _ = asked
    of_network = against.lower().endswith((".keras", ".onnx", ".pt2"))
    if not of_network:
        try:
            other = load(against)
        except ModelFileError as error:
            from pathlib import Path

            if against == LOCAL or Path(against).is_file():
                raise
            known = str(error).partition("expected ")[2]
        else:
            other.predictor(predictor)
            return against, network, other, graph
    try:
        return model, against, loaded, read(against, input_size)
    except NetworkError as error:
        if of_network or against.startswith(("keras:", "generate:")):
            raise
        raise InputError(
            f"--against {against}: neither a model nor a network; expected {known}; or a network: {error}"
        ) from error


# ---- `lolat explain`: where a prediction comes from, and what a change would save.


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
