"""`lolat predict` and `report`, `explain` and `budget`: a network's latency from a model file.

With limits `lolat predict` is a check, of a pull request for example.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

import lolat
from lolat.cli import common
from lolat.cli.limits import Limited, coverage_of, limit_options
from lolat.cli.parsing import Names, Number
from lolat.errors import AnswerIsNo, InputError, MissingPackageError, NetworkError
from lolat.io.paths import LOCAL
from lolat.io.writing import check_file

if TYPE_CHECKING:
    from lolat.api import Model
    from lolat.api.report import Report
    from lolat.report.rows import View
    from lolat.report.several import Answer


def opened(model: str, launch: str | None) -> Model:
    """The model, launched as asked; says where it is old or its last check was off, or `local` is of
    another processor.
    """
    loaded = lolat.load(model)
    where, state = loaded.document["environment"], loaded.state
    found: Sequence[object] = ()
    if where.get("device") == "cpu" and (model == LOCAL or state is not None):
        from microbench import environment as comparable

        here = comparable.here(where, "cpu")
        found = comparable.differences_of_device(loaded.device, where, here)
        if model == LOCAL and found:
            common.say(f"warning: {model}: {found[0]}; learn again with: lolat learn cpu")
    if state is not None and state.remark is not None and not found:
        # Of another processor's model nothing can be checked here.
        check = "" if state.is_recent else f"; `lolat doctor {quote(model)}` takes 10 seconds"
        common.say(f"{model}: {state.remark}{check}")
    return loaded.launched(launch)


@dataclass(frozen=True)
class Question:
    """What `predict` and `report` are asked: each network at each batch size on each device."""

    model: str
    devices: tuple[str, ...]
    networks: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    input_size: tuple[int, ...]
    predictor: str | None
    coverage: float | None
    launch: str | None

    @property
    def all_devices(self) -> tuple[str, ...]:
        """That of MODEL first, each once."""
        return tuple(dict.fromkeys((self.model, *self.devices)))

    @property
    def is_one(self) -> bool:
        """Whether there is one answer, which then stands alone."""
        return len(self.all_devices) == len(set(self.networks)) == len(self.batch_sizes) == 1

    def reports(self) -> tuple[list[Report], dict[str, str]]:
        """The answers, by network; and why a network could not be read, where another could.

        Devices come first, because a wrong one is found out faster; a network is read once.
        """
        models = [opened(device, self.launch) for device in self.all_devices]
        for model in models:
            model.check(self.predictor, self.coverage)
        found: list[Report] = []
        failures: dict[str, str] = {}
        for network in dict.fromkeys(self.networks):
            how = self.batch_sizes[0], self.predictor, self.coverage
            try:
                first = models[0].report(network, *how, input_size=self.input_size)
            except (NetworkError, MissingPackageError) as error:
                failures[network] = common.words_of(error)
                continue
            wanted = [(model, n) for n in self.batch_sizes for model in models]
            found += [first, *(first.again(*asked) for asked in wanted[1:])]
        if not found:
            fail(failures)
        return found, failures


question_options = common.as_one(
    "asked", lambda: Question, common.several_options, common.coverage_option
)
"""MODEL NETWORK... and what goes with them, which the command gets as one `asked`; and --json."""


def fail(failures: dict[str, str]) -> None:
    """Say which networks could not be read: exit code 2, whatever was answered of the others."""
    if failures:
        *others, last = failures.values()
        for line in others:
            common.say(line)
        raise NetworkError(last)


# ---- `lolat predict`.


@common.command(
    "lolat predict epyc-2t keras:ResNet50 --batch-size 8",
    "lolat predict local mynet.onnx --max-ms 20",
)
@question_options
@limit_options
@common.csv_option(more="An answer a row.")
def predict(asked: Question, as_json: bool, limited: Limited, csv_file: Path | None) -> None:
    """Latency of NETWORK on the device of MODEL, in milliseconds: on the machine as it usually is.

    The interval holds the machine's usual ups and downs. Several networks, batch sizes and devices are
    answered in one table. With limits it is a check of each: exit code 3 where one is not kept.
    """
    asked = replace(asked, coverage=coverage_of(limited.sure, asked.coverage))
    if limited.max_ratio is not None and not asked.is_one:
        raise InputError(
            "--max-ratio is of one answer; give one NETWORK, batch size and device, or --max-ms"
        )
    limits = limited.limits(
        asked.model, asked.batch_sizes[0], asked.predictor, asked.input_size, asked.launch
    )
    reports, failures = asked.reports()
    answers = _answers(reports)
    _show_totals(asked, answers, failures, as_json)
    if csv_file is not None:
        from lolat.report.several import write_answers

        write_answers(csv_file, answers)
        if not as_json:
            common.say(f"written: {csv_file}")
    named = [answer.device for answer in answers] if asked.devices else []
    try:
        limited.check([answer.prediction for answer in answers], limits, named)
    except AnswerIsNo as no:
        if not failures:
            raise
        common.say(common.words_of(no))
    fail(failures)


def _answers(reports: Sequence[Report]) -> list[Answer]:
    from lolat.report.several import Answer

    return [Answer(r.model.given, r.network, r.prediction) for r in reports]


def _show_totals(
    asked: Question, answers: Sequence[Answer], failures: dict[str, str], as_json: bool
) -> None:
    """One answer as it is, several as a table; or as JSON."""
    from lolat.report.several import predictions, totals_table
    from lolat.report.text import summary

    first = answers[0].prediction
    if asked.is_one:
        common.answer("prediction", first, as_json, summary(first))
    else:
        found = predictions(answers, failures)
        common.answer("predictions", found, as_json, totals_table(answers))


@common.command(
    "lolat report epyc-2t keras:ResNet50",
    "lolat report local mynet.keras keras:MobileNetV2 --html report.html",
)
@question_options
@common.csv_option(more="A row for each block.")
@common.html_option(more="To explore the blocks in a browser.")
@common.option(
    "--depth", type=Number("N", whole=True, least=0), help="Fold by module, N names deep."
)
@common.option(
    "--columns",
    type=Names("column", "ms,share,macs", lower=True),
    help="Which columns, as in ms,share,macs,weights,acts (see docs/how-to/report.md).",
)
@common.option(
    "--sort",
    type=click.Choice(["order", "time", "macs", "name"]),
    help="Rows by this; as the network has them if not given.",
)
def report(
    asked: Question,
    as_json: bool,
    csv_file: Path | None,
    html_file: str | None,
    depth: int | None,
    columns: tuple[str, ...] | None,
    sort: str | None,
) -> None:
    """Latency of NETWORK block by block: time, share, what bounds it, and the bottlenecks.

    Of several networks, batch sizes and devices: a table of all, then the blocks of each network with its
    times beside each other.
    """
    from lolat.report.rows import USUAL, View

    view = View(depth, USUAL if columns is None else columns, "order" if sort is None else sort)
    if as_json and (depth, columns, sort) != (None, None, None):
        raise InputError(
            "--depth, --columns and --sort are for the table, --json has every block and all its counts; "
            "leave out one or the other"
        )
    if columns and not asked.is_one:
        raise InputError("--columns is for one answer; ask for one network, batch size and device")
    if html_file is not None:
        _check_page(asked, html_file)
    reports, failures = asked.reports()
    if html_file is not None:
        reports[0].write_html(html_file, *reports[1:])
    answers = _answers(reports)
    if csv_file is not None and asked.is_one:
        reports[0].write_csv(csv_file)
    elif csv_file is not None:
        from lolat.report.several import write_blocks

        write_blocks(csv_file, answers)
    if as_json or not asked.is_one:
        _show_totals(asked, answers, failures, as_json)
    if not as_json:
        _show_blocks(asked, reports, view)
    for file in (None if as_json else csv_file, html_file):
        if file is not None:
            common.say(f"written: {file}")
    fail(failures)


def _check_page(asked: Question, html_file: str) -> None:
    """InputError for a page that cannot be, before anything is read."""
    check_file(html_file, "html")
    sides = len(asked.all_devices) * len(set(asked.networks))
    if sides > 2 or len(asked.batch_sizes) > 1:
        raise InputError(
            "--html has at most two devices or two networks beside each other, at one batch size; give one "
            "--device or one more NETWORK, or leave --html out"
        )


def _show_blocks(asked: Question, reports: Sequence[Report], view: View) -> None:
    """The blocks of each network: as its own report, or with the times of its answers in columns."""
    from lolat.report.several import block_columns

    for _, group in groupby(reports, key=lambda report: report.network):
        of_network = list(group)
        if not asked.is_one:
            click.echo()
        if len(of_network) == 1:
            of_network[0].show(view)
            continue
        for line in block_columns(_answers(of_network), of_network[0].paths(), view):
            click.echo(line)


# ---- `lolat explain`: where a prediction comes from, and what a change would save.


@common.command("lolat explain epyc-2t keras:ResNet50 --block conv5_block2")
@common.network_options
@common.option("--block", metavar="NAME", help="One block, operation by operation.")
def explain(
    model: str,
    network: str,
    batch_size: int,
    input_size: tuple[int, ...],
    predictor: str | None,
    launch: str | None,
    as_json: bool,
    block: str | None,
) -> None:
    """Which milliseconds of NETWORK come from what, and what a change would save."""
    found = opened(model, launch).explain(
        network, batch_size, predictor, input_size=input_size, block=block
    )
    if as_json:
        common.say_json("explanation", found.to_dict())
        return
    from lolat.report.explanation import print_explanation

    print_explanation(found, model, network)


# ---- `lolat budget`: the widest network, the largest input or the largest batch that stays
# within a time.


@common.command(
    "lolat budget epyc-2t keras:MobileNetV2 --max-ms 15 --vary width",
    "lolat budget local mynet.onnx --max-ms 40 --vary batch --sure 95",
)
@common.network_options
@common.coverage_option
@common.max_ms_option(required=True)
@common.option(
    "--vary",
    type=click.Choice(["width", "resolution", "batch"]),
    required=True,
    help="What may change: channel counts, pixels of the input, or samples at once.",
)
@common.sure_option
def budget(
    model: str,
    network: str,
    batch_size: int,
    input_size: tuple[int, ...],
    predictor: str | None,
    launch: str | None,
    as_json: bool,
    coverage: float | None,
    max_ms: float,
    vary: str,
    sure: float | None,
) -> None:
    """The widest, largest or most of NETWORK that stays within a time."""
    asked = (batch_size, predictor, coverage_of(sure, coverage))
    with common.json_of_no("budget", as_json):
        found = opened(model, launch).budget(
            network, max_ms, vary, *asked, sure=sure is not None, input_size=input_size
        )
    from lolat.report.explanation import budget_lines

    common.answer("budget", found, as_json, budget_lines(found))
