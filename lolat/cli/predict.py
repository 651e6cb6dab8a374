"""`lolat predict` and `lolat report`: a network's latency from a model file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

import lolat
from lolat.cli.common import (
    command,
    coverage_option,
    csv_option,
    html_option,
    max_ms_option,
    network_options,
    option,
    progress,
    say,
    say_json,
    sure_option,
)
from lolat.cli.limits import Limited, limit_options
from lolat.cli.parsing import Names, Number
from lolat.errors import InputError, ModelFileError, NetworkError
from lolat.io.paths import LOCAL

if TYPE_CHECKING:
    from lolat.api import Model
    from lolat.api.report import Report
    from lolat.model.state import State


def opened(model: str) -> Model:
    """The model, with a warning where `local` is of another processor than this one."""
    loaded = lolat.load(model)
    warn_of_processor(model, loaded)
    return loaded


def warn_of_processor(model: str, loaded: Model) -> None:
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


@command()
@network_options
@coverage_option
@limit_options
@option(
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
    limited: Limited,
    state: str | None,
) -> None:
    """Latency of NETWORK on the device of MODEL, in milliseconds: on the machine as it usually is.

    The interval holds the machine's usual ups and downs. With --state it is for a machine that is known to
    be so busy, and narrower. With limits it is a check: exit code 3 where one is not kept.
    """
    if state is not None and state != "now":
        from lolat.model.state import read_state

        read_state(state)  # a wrong file is found out before a framework starts
    coverage = limited.coverage(coverage)
    loaded = opened(model)
    limits = limited.limits(loaded, batch_size, predictor, input_size)
    prediction = loaded.predict(network, batch_size, predictor, coverage, input_size=input_size)
    if state is not None:
        prediction = prediction.under(_state(state, loaded))
    if as_json:
        say_json("prediction", prediction.to_dict())
    else:
        from lolat.report.text import summary

        for line in summary(prediction):
            click.echo(line)
    limited.check([prediction], limits)


def _state(given: str, loaded: Model) -> State:
    """The state that --state names: a file's, or that of this machine now."""
    from lolat.model.state import read_state

    if given != "now":
        return read_state(given)
    from lolat.api.measuring import state_of_now

    with progress() as bar:
        return state_of_now(loaded, loaded.given, bar)


@command()
@network_options
@coverage_option
@csv_option(more="A row for each block.")
@html_option(more="To explore the blocks in a browser.")
@option(
    "--against",
    default=None,
    metavar="MODEL_OR_NETWORK",
    help="A second device or network beside it in the page.",
)
@option("--depth", type=Number("N", whole=True, least=0), help="Fold by module, N names deep.")
@option(
    "--columns",
    type=Names("column", "ms,share,macs", lower=True),
    help="Which columns, as in ms,share,macs,weights,acts (see docs/how-to/report.md).",
)
@option(
    "--sort",
    type=click.Choice(["order", "time", "macs", "name"]),
    help="Rows by this; as the network has them if not given.",
)
def report(
    model: str,
    network: str,
    batch_size: int,
    input_size: tuple[int, ...],
    predictor: str | None,
    coverage: float | None,
    as_json: bool,
    csv_file: Path | None,
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
    asked = (batch_size, predictor, coverage)
    found = opened(model).report(network, *asked, input_size=input_size)
    if html_file is not None:
        other = None if against is None else _other_report(against, found)
        found.write_html(html_file, other)
    if csv_file is not None:
        found.write_csv(csv_file)
    if as_json:
        say_json("prediction", found.to_dict())
    else:
        found.show(view)
    if html_file is not None:
        say(f"written: {html_file}")


def _other_report(against: str, found: Report) -> Report:
    """The report of what `--against` names, a model where there is one, else a network.

    InputError where it names neither.
    """
    asked = found.prediction.batch_size, found.predictor, found.coverage
    of_network = against.lower().endswith((".keras", ".onnx", ".pt2"))
    if not of_network:
        try:
            other = lolat.load(against)
        except ModelFileError as error:
            if against == LOCAL or Path(against).is_file():
                raise
            known = str(error).partition("expected ")[2]
        else:
            on_other = other.report(found.graph, *asked)
            return replace(on_other, network=found.network, input_size=found.input_size)
    try:
        return found.model.report(against, *asked, input_size=found.input_size)
    except NetworkError as error:
        if of_network or against.startswith(("keras:", "generate:")):
            raise
        raise InputError(
            f"--against {against}: neither a model nor a network; expected {known}; or a network: {error}"
        ) from error


# ---- `lolat explain`: where a prediction comes from, and what a change would save.


@command()
@network_options
@option("--block", metavar="NAME", help="One block, operation by operation.")
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
    found = lolat.load(model).explain(
        network, batch_size, predictor, input_size=input_size, block=block
    )
    if as_json:
        say_json("explanation", found.to_dict())
        return
    from lolat.report.explanation import print_explanation

    print_explanation(found, model, network)


# ---- `lolat budget`: the widest network, the largest input or the largest batch that stays
# within a time.


@command()
@network_options
@coverage_option
@max_ms_option(required=True, was="--ms")
@option(
    "--vary",
    type=click.Choice(["width", "resolution", "batch"]),
    required=True,
    help="What may change: channel counts, pixels of the input, or samples at once.",
)
@sure_option
def budget(
    model: str,
    network: str,
    batch_size: int,
    input_size: tuple[int, ...],
    predictor: str | None,
    as_json: bool,
    coverage: float | None,
    max_ms: float,
    vary: str,
    sure: float | None,
) -> None:
    """The widest, largest or most of NETWORK that stays within a time."""
    if sure is not None and coverage not in (None, sure):
        raise InputError(
            f"--sure and --coverage are two answers; give --sure {100 * coverage:g} alone"
        )
    asked = (batch_size, predictor, coverage if sure is None else sure)
    found = lolat.load(model).budget(
        network, max_ms, vary, *asked, sure=sure is not None, input_size=input_size
    )
    if as_json:
        say_json("budget", found.to_dict())
        return
    from lolat.report.explanation import budget_lines

    for line in budget_lines(found):
        click.echo(line)
