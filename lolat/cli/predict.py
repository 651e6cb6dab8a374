"""`lolat predict` and `lolat report`: a network's latency from a model file."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

import click

from lolat.cli.common import (
    Columns,
    Milliseconds,
    coverage_option,
    network_options,
    say,
    several_options,
)
from lolat.errors import AnswerIsNo, InputError, ModelFileError, NetworkError
from lolat.fitting.domain import FOR_NETWORK
from lolat.io.paths import LOCAL

if TYPE_CHECKING:
    from lolat.report.several import Answer


@dataclass(frozen=True)
class Question:
    """What `predict` and `report` are asked: each network at each batch size on each device."""

    devices: tuple[str, ...]
    networks: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    input_size: tuple[int, ...]
    predictor: str | None
    coverage: float | None

    @staticmethod
    def of(devices: tuple[str, ...], networks: tuple[str, ...], *more: Any, **how: Any) -> Question:
        """The question, each device and network once."""
        return Question(tuple(dict.fromkeys(devices)), tuple(dict.fromkeys(networks)), *more, **how)

    @property
    def is_one(self) -> bool:
        """Whether there is one answer, which then stands alone."""
        return len(self.devices) == len(self.networks) == len(self.batch_sizes) == 1

    def answers(self) -> tuple[list[Answer], dict[str, str]]:
        """The answers, and why a network could not be read where another could.

        Devices come first, because a wrong one is found out faster; a network is read once.
        """
        from lolat.readers import read

        loaded = [self._opened(device) for device in self.devices]
        found, failures = [], {}
        for network in self.networks:
            try:
                graph = read(network, self.input_size)
            except InputError as error:
                failures[network] = str(error)
                continue
            found += [
                self._found(device, one, network, graph, n)
                for n in self.batch_sizes
                for device, one in zip(self.devices, loaded, strict=True)
            ]
        if not found:
            fail(failures)
        return found, failures

    def _opened(self, device: str) -> Any:
        from lolat.fitting.intervals import interval_width
        from lolat.model import load

        loaded = load(device)
        warn_of_processor(device, loaded)
        formula = loaded.predictor(self.predictor)
        if self.coverage is not None:
            interval_width(loaded.document["predictors"][formula.name], self.coverage)
        return loaded

    def _found(self, device: str, loaded: Any, network: str, graph: Any, batch_size: int) -> Answer:
        from lolat.report.several import Answer

        made = loaded.predict(graph, batch_size, self.predictor, self.coverage)
        named = (w.replace(FOR_NETWORK, _for(network, self.input_size)) for w in made.warnings)
        prediction = replace(made, warnings=tuple(named))
        return Answer(device, network, prediction, loaded, graph)


def fail(failures: dict[str, str]) -> None:
    """Say which networks could not be read: exit code 2, whatever was answered of the others."""
    if failures:
        *others, last = failures.values()
        for line in others:
            say(line)
        raise NetworkError(last)


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
@several_options
@coverage_option
@click.option(
    "--max-ms",
    type=Milliseconds(),
    default=None,
    help="Exit code 3 where one takes longer than this.",
)
@click.option(
    "--state",
    default=None,
    metavar="FILE|now",
    help="In this state of the machine: what `lolat doctor MODEL --json` wrote, or now (measured, 20 s).",
)
@click.option(
    "--csv", "csv_file", type=click.Path(), metavar="FILE", help="Write a table, an answer a row."
)
def predict(
    model: str,
    networks: tuple[str, ...],
    batch_sizes: tuple[int, ...],
    devices: tuple[str, ...],
    as_json: bool,
    max_ms: float | None,
    state: str | None,
    csv_file: str | None,
    **how: Any,
) -> None:
    """Latency of NETWORK on the device of MODEL, in milliseconds: on the machine as it usually is.

    The interval holds the machine's usual ups and downs. With --state it is for a machine that is known to
    be so busy, and narrower. Several networks, batch sizes and devices are answered in one table.
    """
    if state is not None and devices:
        raise InputError("--state is of one machine; leave --device out, or ask for each device")
    if state is not None and state != "now":
        from lolat.model.state import read_state

        read_state(state)  # a wrong file is found out before a framework starts
    asked = Question.of((model, *devices), networks, batch_sizes, **how)
    answers, failures = asked.answers()
    if state is not None:
        found = _state(state, answers[0].model, model)
        answers = [replace(a, prediction=a.prediction.under(found)) for a in answers]
    _show_totals(asked, answers, failures, as_json)
    if csv_file is not None:
        from lolat.report.several import write_answers

        write_answers(csv_file, answers)
    fail(failures)
    if max_ms is not None and any(a.prediction.latency_ms > max_ms for a in answers):
        from lolat.report import several, text

        if asked.is_one:
            raise AnswerIsNo(text.over_budget(answers[0].prediction, max_ms))
        raise AnswerIsNo(several.over_budget(answers, max_ms))


def _show_totals(
    asked: Question, answers: list[Answer], failures: dict[str, str], as_json: bool
) -> None:
    """One answer as it is, several as a table; or as JSON."""
    from lolat.report.several import document, totals_table
    from lolat.report.text import summary

    first = answers[0].prediction
    if as_json:
        click.echo(json.dumps(first.to_dict() if asked.is_one else document(answers, failures)))
        return
    for line in summary(first) if asked.is_one else totals_table(answers):
        click.echo(line)


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
@several_options
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
    networks: tuple[str, ...],
    batch_sizes: tuple[int, ...],
    devices: tuple[str, ...],
    as_json: bool,
    csv_file: str | None,
    html_file: str | None,
    against: str | None,
    depth: int | None,
    columns: tuple[str, ...] | None,
    sort: str | None,
    **how: Any,
) -> None:
    """Latency of NETWORK block by block: time, share, what bounds it, and the bottlenecks.

    Of several networks, batch sizes and devices: a table of all, then the blocks of each network, its
    times beside each other.
    """
    from lolat.report.rows import USUAL, View

    view = View(depth, USUAL if columns is None else columns, "order" if sort is None else sort)
    if as_json and (depth, columns, sort) != (None, None, None):
        raise InputError(
            "--depth, --columns and --sort are for the table, --json has every block and all its counts; "
            "leave out one or the other"
        )
    asked = Question.of((model, *devices), networks, batch_sizes, **how)
    if columns and not asked.is_one:
        raise InputError("--columns is for one answer; ask for one network, batch size and device")
    against = _page_against(asked, against, html_file)
    answers, failures = asked.answers()
    if html_file is not None:
        _write_page(html_file, answers[0], asked, against)
    if csv_file is not None:
        from lolat.report.several import write_blocks
        from lolat.report.text import write_csv

        if asked.is_one:
            write_csv(csv_file, answers[0].prediction)
        else:
            write_blocks(csv_file, answers)
    if as_json or not asked.is_one:
        _show_totals(asked, answers, failures, as_json)
    if not as_json:
        _show_blocks(asked, answers, view)
    if html_file is not None:
        say(f"written: {html_file}")
    fail(failures)


def _page_against(asked: Question, against: str | None, html_file: str | None) -> str | None:
    """What a page shows beside the first answer; InputError where that cannot be."""
    if html_file is None:
        if against is not None:
            raise InputError("--against is for the page; give --html FILE too")
        return None
    from lolat.cli.compare import check_writable

    check_writable(html_file, "--html")
    if asked.is_one:
        return against
    others = [*asked.devices[1:], *asked.networks[1:]]
    if against is not None or len(others) != 1 or len(asked.batch_sizes) != 1:
        raise InputError(
            "--html has two devices or two networks beside each other, at one batch size; give one "
            "--device or one more NETWORK, or leave --html out"
        )
    return others[0]


def _show_blocks(asked: Question, answers: list[Answer], view: Any) -> None:
    """The blocks of each network: as its own report, or with the times of its answers in columns."""
    from itertools import groupby

    from lolat.report.several import block_columns

    for _, group in groupby(answers, key=lambda answer: answer.network):
        of_network = list(group)
        if not asked.is_one:
            click.echo()
        if len(of_network) == 1:
            _print(of_network[0], asked.input_size, view)
            continue
        for line in block_columns(of_network, _paths(of_network[0].graph), view):
            click.echo(line)


def _paths(graph: Any) -> list[tuple[str, ...]]:
    from lolat.graph.blocks import cut
    from lolat.report.rows import module_paths

    return module_paths(graph, cut(graph))


def _print(answer: Answer, input_size: tuple[int, ...], view: Any) -> None:
    """The report; with module paths and the familiar figures where it is not the usual one."""
    from lolat.report.text import print_report

    asked = (answer.device, answer.network, input_size)
    if view.is_usual:
        print_report(answer.model, answer.prediction, *asked)
        return
    from lolat.report.words import familiar

    more = (view, _paths(answer.graph), familiar(answer.graph))
    print_report(answer.model, answer.prediction, *asked, *more)


def _write_page(path: str, answer: Answer, asked: Question, against: str | None) -> None:
    """Write the page of a report, alone or beside what it is compared with."""
    from lolat.report.bottlenecks import Side, write_page

    first = (answer.device, answer.network, answer.model, answer.graph)
    batch_size, how = asked.batch_sizes[0], (asked.input_size, asked.predictor, asked.coverage)
    pairs = [first]
    if against is not None:
        pairs.append(other_side(against, *first, (batch_size, *how)))
    sides = [
        Side(loaded, graph, _paths(graph), model, network, _for(network, asked.input_size))
        for model, network, loaded, graph in pairs
    ]
    write_page(path, sides, batch_size, asked.predictor, asked.coverage)


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
