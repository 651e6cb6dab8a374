"""`lolat predict` and `report`, `explain` and `budget`: a network's latency from a profile."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from lolat.cli import common
from lolat.cli.main import words_of
from lolat.device.question import AUTO, BudgetQuestion, ExplainQuestion, LatencyQuestion
from lolat.errors import AnswerIsNo, InputError, LolatError, arg
from lolat.io.results import answers_of
from lolat.io.writing import write_text
from lolat.units import names_in

if TYPE_CHECKING:
    from lolat.api.model import Model
    from lolat.api.predicting import Predictions
    from lolat.device.limits import Limits
    from lolat.device.prediction import Prediction


def fail(errors: Mapping[str, LolatError]) -> NoReturn:
    """Report networks that could not be read, with exit code 2, even if others were answered."""
    *others, last = errors.values()
    for error in others:
        common.say(words_of(error))
    raise last


def check_room(predictions: Sequence[Prediction]) -> None:
    """Raise AnswerIsNo if the network does not fit into the device's memory."""
    from lolat.api.predicting import exceeded

    for line in exceeded(predictions):
        raise AnswerIsNo(line, code="no-room")


as_learned_option = click.option(
    "--as-learned",
    is_flag=True,
    help="Do not probe whether the machine has changed since MODEL was learned.",
)
now_option = click.option(
    "--now",
    is_flag=True,
    help="As the machine is now: measures some networks of MODEL again, 20 seconds.",
)
PREDICTIONS = {
    "prediction": "lolat.device.prediction:Prediction",
    "predictions": "lolat.api.predicting:Predictions",
}
REQUIRED = {"required": True}
OR_BEST = {"more": "best: the fastest, in the layout asked for.", "type": common.PRECISION}


# ---- `lolat predict`


@common.command(
    "lolat predict epyc-2t keras:ResNet50 --batch-size 8",
    "lolat predict local mynet.onnx --max-ms 20",
    answers=PREDICTIONS,
)
@click.argument("arguments", metavar="[MODEL] NETWORK...", nargs=-1, required=True)
@common.on_option(
    more="With --on all, rows are those of `lolat models`, sorted by time; other cards answer by name. "
    "Several cards run in their fastest precisions if none is given."
)
@common.question(
    LatencyQuestion,
    batch_size={
        "more": "auto: the most that fit in memory, and keep --max-ms if given.",
        "type": common.BATCHES,
    },
    precision={
        "more": "best: each device's fastest, in the layout asked for. Several compare them.",
        "type": common.PRECISIONS,
    },
    launch={"more": "Several compare them.", "type": common.LAUNCHES},
    max_ms={"more": "Exit code 3 where it takes longer on all devices."},
    sure=common.SURE,
)
@common.parameter("min_samples_per_s", more="Exit code 3 where it computes fewer on all devices.")
@now_option
@as_learned_option
@common.csv_option(more="An answer a row.")
@common.html_option(more="The table and a chart; for one answer, the page of lolat report.")
def predict(
    arguments: tuple[str, ...], on: tuple[str, ...], now: bool, as_learned: bool, csv: Path | None,
    html: Path | None, min_samples_per_s: float | None, **asked: Any,
) -> None:  # fmt: skip
    """Latency of NETWORK on the device of MODEL, in milliseconds, at the machine's usual speed.

    The interval contains the machine's usual ups and downs. Several networks, batch sizes and devices give
    one table (docs/reference/tables.md); leave MODEL out if --on names the devices. Exit code 3 if no
    device keeps a limit, or no network fits.
    """
    from lolat.api.choosing import devices
    from lolat.api.predicting import exceeded, kept_by_none, predict_all
    from lolat.api.profile_names import ALL
    from lolat.device.limits import Limits
    from lolat.report.prediction import smaller_batch_lines, summary, table_of_predictions
    from lolat.report.ranked import left_out_lines

    question = LatencyQuestion(**asked)
    limits = Limits(asked["max_ms"], min_samples_per_s, bool(asked["sure"]))
    if limits.sure and not limits:
        raise InputError(
            f"{arg('sure')} goes with {arg('max_ms')} or {arg('min_samples_per_s')}", code="sure"
        )
    model, networks = common.model_and_networks(arguments, on)
    if model is None and not on:
        meant = common.device_first(networks)
        raise InputError(
            "no device is given; expected one in front of the networks, such as rtx-4090 (`lolat models` "
            f"lists them), or {arg('on')}{meant}",
            code="no-device",
        )
    opened = functools.partial(common.open_profile, now=now, as_learned=as_learned)
    named = (*filter(None, [model]), *on)
    models, left_out = devices(named, question, opened)
    has_all = ALL in (names := {*names_in(*named)})
    if len(question.modes) == 1 and not has_all and len(models) + len(left_out) < len(names):
        common.say("note: some devices are the same in this precision and launch: one row each")
    predictions = predict_all(models, networks, asked["batch_size"], question, left_out, has_all)
    answers = predictions.answers
    if not answers:
        fail(predictions.errors)
    if len(answers) == 1 and not (predictions.errors or predictions.left_out):
        smaller = smaller_batch_lines(answers[0]) if AUTO in asked["batch_size"] else ()
        common.answer(answers[0], [*summary(answers[0]), *smaller])
    else:
        table = table_of_predictions(answers, limits)
        common.answer(predictions, [*table, *left_out_lines(predictions.left_out)])
    if csv is not None or html is not None:
        _write(predictions, csv, html, limits)
    beyond = kept_by_none(answers, limits, AUTO not in asked["batch_size"]) if limits else answers
    if lines := exceeded(beyond, limits):
        several = f"{len(lines)} of {len(answers)} answers are beyond the limit; the nearest: "
        no = AnswerIsNo(several * (len(lines) > 1) + lines[0])
        if not predictions.errors:
            raise no
        common.say(words_of(no))
    if predictions.errors:
        fail(predictions.errors)
    if predictions.left_out:
        common.check_named(named, predictions.left_out)


def _write(predictions: Predictions, csv: Path | None, html: Path | None, limits: Limits) -> None:
    """Write the CSV table and the HTML page; for one prediction it is the page of `lolat report`."""
    from lolat.report.comparison import page
    from lolat.report.tables import write_csv

    if csv is not None:
        write_csv(csv, predictions.rows())
    if html is not None and len(predictions) == 1:
        predictions[0].write_html(html)
    elif html is not None:
        write_text(html, page(predictions, limits, common.called()))
    common.say_written(csv, html)


# ---- Commands of one network on one device: `lolat report`, `explain`, `budget`


def of_one(asked: type, *without: str, **changes: Mapping[str, Any]) -> Any:
    """Arguments and options of a command that asks about one network on one device.

    `asked`, `without`, `changes`: as in `common.question`. The function receives the opened profile and the
    other options. One batch size is a number, several are a tuple.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(
            model: str, now: bool, as_learned: bool, batch_size: tuple[int, ...], **question: Any
        ) -> None:
            question["batch_size"] = batch_size if len(batch_size) > 1 else batch_size[0]
            loaded = common.open_profile(model, now, as_learned)
            function(loaded, **question)

        for option in (
            as_learned_option,
            now_option,
            common.question(asked, *without, **changes),
            common.network_argument,
            common.model_argument,
        ):
            command = option(command)
        return command

    return decorate


@common.command(
    "lolat report epyc-2t keras:ResNet50",
    "lolat report local mynet.keras --html report.html",
    answers=PREDICTIONS,
)
@of_one(LatencyQuestion, "coverage", "max_ms", "sure", "prices", precision=OR_BEST)
@common.csv_option(more="A row for each block.")
@common.html_option(more="Blocks open there.")
@click.option("--depth", type=click.IntRange(0), metavar="N", help="Fold by module, N names deep.")
def report(
    model: Model, network: str, csv: Path | None, html: Path | None, depth: int | None, **question: Any
) -> None:  # fmt: skip
    """Latency of NETWORK block by block: time, share, what bounds it, and the bottlenecks.

    Exit code 3 if it does not fit into the device's memory.
    """
    from lolat.report.prediction import report_lines
    from lolat.report.tables import one_by_one, write_csv

    found = model.predict(network, **question)
    several = answers_of(found)
    if html is not None and len(several) > 1:
        raise InputError(
            f"{arg('html')}: the page is of one batch size; expected one, or `lolat predict`, whose page "
            "compares batch sizes and devices",
            code="html",
        )
    folded = [p if depth is None else p.folded(depth) for p in several]
    if html is not None:
        several[0].write_html(html, depth)
    if csv is not None:
        sizes = [{"batch_size": p.batch_size} if len(folded) > 1 else {} for p in folded]
        write_csv(
            csv, [of | row for of, p in zip(sizes, folded, strict=True) for row in p.block_rows()]
        )
    printed = folded[0] if len(folded) == 1 else replace(found, answers=tuple(folded))
    common.answer(printed, one_by_one(found, lambda p: report_lines(p, depth, html is not None)))
    common.say_written(csv, html)
    check_room(several)


@common.command(
    "lolat explain epyc-2t keras:ResNet50 --block conv5_block2",
    answers={
        "explanation": "lolat.device.attribution:Explanation",
        "explanations": "lolat.device.attribution:Explanations",
    },
)
@of_one(ExplainQuestion, "predictor", precision=OR_BEST)
def explain(model: Model, network: str, **question: Any) -> None:
    """Explain where the milliseconds of NETWORK go, and what a change would save.

    Exit code 3 if it does not fit into the device's memory.
    """
    from lolat.report.explanation import explanation_lines
    from lolat.report.tables import one_by_one

    answer = model.explain(network, **question)
    common.answer(answer, one_by_one(answer, explanation_lines))
    check_room([one.prediction for one in answers_of(answer)])


@common.command(
    "lolat budget epyc-2t keras:MobileNetV2 --max-ms 15 --vary width",
    "lolat budget local mynet.onnx --max-ms 40 --vary batch --sure 95",
    answers={
        "budget": "lolat.device.budget:BudgetAnswer",
        "budgets": "lolat.device.budget:BudgetAnswers",
    },
)
@of_one(
    BudgetQuestion,
    "predictor",
    "coverage",
    max_ms=REQUIRED,
    vary=REQUIRED,
    sure=common.SURE,
    precision=OR_BEST | {"more": "best: the one with the largest answer."},
)
def budget(model: Model, network: str, **question: Any) -> None:
    """The largest width, input or batch of NETWORK that keeps a time limit."""
    from lolat.report.explanation import budget_lines
    from lolat.report.tables import one_by_one

    answer = model.budget(network, **question)
    common.answer(answer, one_by_one(answer, budget_lines))
