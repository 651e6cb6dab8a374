"""`lolat predict` and `report`, `explain` and `budget`: a network's latency from a model file."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any, NoReturn

import click

from lolat.cli import common
from lolat.errors import AnswerIsNo, InputError, LolatError, arg
from lolat.io.paths import LOCAL
from lolat.io.writing import check_file

if TYPE_CHECKING:
    from lolat.api.model import Model
    from lolat.api.predicting import Predictions
    from lolat.device.prediction import LatencyPrediction as OfDevice
    from lolat.device.question import Question


def opened(
    model: str, precision: str | None = None, launch: str | None = None, host_us: float | None = None,
    now: bool = False, as_learned: bool | None = None,
) -> Model:  # fmt: skip
    """The model, run so, by its name or that of its GPU; remarks where it is old, or `local` is of another
    processor. BEST is for who compares. `now`: the machine as it is now, measured; `as_learned`: not
    probed, and nor if None.
    """
    from lolat.api.choosing import open_device

    loaded = open_device(model)
    model = loaded.label
    environment, state = loaded.document["environment"], loaded.state
    differences: Sequence[object] = ()
    if environment.get("device") == "cpu" and (model == LOCAL or state is not None):
        from lolat.microbench import environment as machine

        here = machine.here(environment, "cpu")
        differences = machine.differences_of_device(loaded.device, environment, here)
        if model == LOCAL and differences:
            common.say(f"warning: {model}: {differences[0]}; learn again with: lolat learn cpu")
    if as_learned and now:
        raise InputError(
            f"{arg('as_learned')} and {arg('now')}: expected one of them", code="two-speeds"
        )
    if as_learned and "probe" not in loaded.document.get("noise", {}):
        raise InputError(
            f"{arg('as_learned')}: {model} has no probe, so it always answers as learned; expected a CPU "
            "that was learned here, or leave it out",
            code="no-probe",
        )
    if now:
        with common.progress("some ten seconds") as bar:
            loaded = loaded.as_now(progress=bar)
    elif (
        state is not None and not differences
    ):  # of another processor's model nothing can be checked here
        if state.remark is not None:
            common.say(f"{model}: {state.remark}; `lolat doctor {quote(model)}` takes 10 seconds")
        if as_learned is False:
            from lolat.api.measuring import as_probed

            loaded = as_probed(loaded)
    return loaded.run_as(None if precision == common.BEST else precision, launch, host_us)


def fail(errors: Mapping[str, LolatError]) -> NoReturn:
    """Say which networks could not be read: exit code 2, though others were answered."""
    *others, last = errors.values()
    for error in others:
        common.say(common.words_of(error))
    raise last


def each(answer: Any) -> Sequence[Any]:
    """The answers of several batch sizes, or the only one."""
    return getattr(answer, "answers", (answer,))


def check_room(predictions: Sequence[OfDevice]) -> None:
    """AnswerIsNo if the network does not fit into the device's memory."""
    from lolat.api.predicting import exceeded
    from lolat.device.question import Question

    for line in exceeded(predictions, Question()):
        raise AnswerIsNo(line, code="no-room")


as_learned_option = click.option(
    "--as-learned",
    is_flag=True,
    help="Without the probe of a machine that may have changed since MODEL was learned.",
)
now_option = click.option(
    "--now",
    is_flag=True,
    help="As the machine is now: measures some networks of MODEL again, ten seconds.",
)


# ---- `lolat predict`


@common.command(
    "lolat predict epyc-2t keras:ResNet50 --batch-size 8",
    "lolat predict local mynet.onnx --max-ms 20",
    answers={
        "prediction": "lolat.device.prediction:LatencyPrediction",
        "predictions": "lolat.api.predicting:Predictions",
    },
)
@click.argument("arguments", metavar="[MODEL] NETWORK...", nargs=-1, required=True)
@common.on_option()
@common.parameter(
    "batch_size", "auto: the most that fit in memory, and keep --max-ms if given.",
    type=common.BATCHES, default="1", show_default=True,
)  # fmt: skip
@common.parameter("input_size")
@common.parameter("predictor")
@common.parameter("precision", "best: each device's fastest.", type=common.PRECISIONS)
@common.parameter("launch")
@common.parameter("host_us")
@common.parameter("coverage")
@now_option
@as_learned_option
@common.parameter("max_ms", "Exit code 3 where it takes longer.")
@common.parameter("sure", is_flag=False, flag_value=90.0)
@common.csv_option(more="An answer a row.")
@common.prices_option
def predict(
    arguments: tuple[str, ...], on: tuple[str, ...], batch_size: tuple[int | str, ...],
    input_size: tuple[int, ...], predictor: str | None, precision: str | None, launch: str | None,
    host_us: float | None, now: bool, as_learned: bool, coverage: float | None, max_ms: float | None,
    sure: float | None, csv: Path | None, prices: str | None,
) -> None:  # fmt: skip
    """Latency of NETWORK on the device of MODEL, in milliseconds: on the machine as it usually is.

    The interval holds the machine's usual ups and downs. Several networks, batch sizes and devices are
    answered in one table; MODEL may be left out where --on has the devices. With --max-ms it is a check:
    exit code 3 where the limit is exceeded, and where no network fits.
    """
    from lolat.api.choosing import devices
    from lolat.api.predicting import exceeded, predict_all
    from lolat.device.question import Question

    if sure is not None and (max_ms is None or coverage is not None):
        raise InputError(f"{arg('sure')} goes with {arg('max_ms')}, and without {arg('coverage')}")
    model, networks = common.model_and_networks(arguments, on)
    asked = functools.partial(
        opened, precision=precision, launch=launch, host_us=host_us, now=now, as_learned=as_learned
    )
    models, left_out = devices((*filter(None, [model]), *on), asked)
    coverage = coverage if sure is None else sure / 100
    question = Question(1, predictor, coverage, input_size, max_ms, sure is not None, prices)
    best = precision == common.BEST
    predictions = predict_all(models, networks, batch_size, question, left_out, best)
    _answer(predictions, question)
    if csv is not None:
        from lolat.report.tables import write_csv

        write_csv(csv, predictions.rows())
        common.say(f"written: {csv}")
    if lines := exceeded(predictions.answers, question):
        several = f"{len(lines)} of {len(predictions)} answers are beyond the limit; the first: "
        no = AnswerIsNo(several * (len(lines) > 1) + lines[0])
        if not predictions.errors:
            raise no
        common.say(common.words_of(no))
    if predictions.errors:
        fail(predictions.errors)


def _answer(predictions: Predictions, question: Question) -> None:
    """One prediction as it is, several as a table; or as JSON."""
    if not predictions.answers:
        fail(predictions.errors)
    from lolat.report.prediction import summary, table_of_predictions
    from lolat.report.ranked import left_out_lines

    if len(predictions.answers) == 1 and not (predictions.errors or predictions.left_out):
        (prediction,) = predictions.answers
        common.answer(prediction, summary(prediction))
    else:
        table = table_of_predictions(predictions.answers, question.max_ms, question.sure)
        lines = [*table, *left_out_lines(predictions.left_out)]
        common.answer(predictions, lines)


# ---- Commands of one network on one device: `lolat report`, `explain`, `budget`


def of_one(function: Callable[..., None]) -> Callable[..., None]:
    """Arguments and options of a network on a device; `function` gets the opened model, and the others.

    One batch size is a number, several are a tuple.
    """

    @functools.wraps(function)
    def command(
        model: str, precision: str | None, launch: str | None, host_us: float | None, now: bool,
        as_learned: bool, batch_size: tuple[int, ...], **question: Any,
    ) -> None:  # fmt: skip
        question["batch_size"] = batch_size if len(batch_size) > 1 else batch_size[0]
        function(opened(model, precision, launch, host_us, now, as_learned), **question)

    for decorate in (
        as_learned_option,
        now_option,
        common.parameter("host_us"),
        common.parameter("launch"),
        common.parameter("precision"),
        common.parameter("input_size"),
        common.parameter("batch_size", default="1", show_default=True),
        common.network_argument,
        common.model_argument,
    ):
        command = decorate(command)
    return command


@common.command(
    "lolat report epyc-2t keras:ResNet50",
    "lolat report local mynet.keras --html report.html",
    answers={
        "prediction": "lolat.device.prediction:LatencyPrediction",
        "predictions": "lolat.api.predicting:Predictions",
    },
)
@of_one
@common.parameter("predictor")
@common.csv_option(more="A row for each block.")
@click.option("--html", type=click.Path(), metavar="FILE",
               help="Write a page to explore the blocks in a browser.")  # fmt: skip
@click.option("--depth", type=click.IntRange(0), metavar="N", help="Fold by module, N names deep.")
def report(
    model: Model, network: str, csv: Path | None, html: str | None, depth: int | None, **question: Any
) -> None:  # fmt: skip
    """Latency of NETWORK block by block: time, share, what bounds it, and the bottlenecks.

    Exit code 3 if it does not fit into the device's memory.
    """
    from lolat.report.prediction import report_lines
    from lolat.report.tables import one_by_one, write_csv

    if html is not None:
        check_file(html, "html")
    found = model.predict(network, **question)
    several = each(found)
    if html is not None and len(several) > 1:
        raise InputError(f"{arg('html')}: the page is of one batch size; expected one")
    folded = [p if depth is None else p.folded(depth) for p in several]
    if html is not None:
        several[0].write_html(html, depth)
    if csv is not None:
        sizes = [{"batch_size": p.batch_size} if len(folded) > 1 else {} for p in folded]
        write_csv(
            csv, [of | row for of, p in zip(sizes, folded, strict=True) for row in p.block_rows()]
        )
    printed = folded[0] if len(folded) == 1 else replace(found, answers=tuple(folded))
    common.answer(printed, one_by_one(several, lambda p: report_lines(p, depth)))
    for file in (csv, html):
        if file is not None:
            common.say(f"written: {file}")
    check_room(several)


@common.command(
    "lolat explain epyc-2t keras:ResNet50 --block conv5_block2",
    answers={
        "explanation": "lolat.device.attribution:Explanation",
        "explanations": "lolat.device.attribution:Explanations",
    },
)
@of_one
@click.option("--block", metavar="NAME", help="One block, operation by operation.")
def explain(model: Model, network: str, **question: Any) -> None:
    """Explain where the milliseconds of NETWORK go, and what a change would save.

    Exit code 3 if it does not fit into the device's memory.
    """
    from lolat.report.explanation import explanation_lines
    from lolat.report.tables import one_by_one

    answer = model.explain(network, **question)
    common.answer(answer, one_by_one(each(answer), explanation_lines))
    check_room([one.prediction for one in each(answer)])


@common.command(
    "lolat budget epyc-2t keras:MobileNetV2 --max-ms 15 --vary width",
    "lolat budget local mynet.onnx --max-ms 40 --vary batch --sure 95",
    answers={
        "budget": "lolat.device.budget:BudgetAnswer",
        "budgets": "lolat.device.budget:BudgetAnswers",
    },
)
@of_one
@common.parameter("max_ms", required=True)
@common.parameter("vary", required=True)
@common.parameter("sure", is_flag=False, flag_value=90.0)
def budget(model: Model, network: str, sure: float | None, **question: Any) -> None:
    """The widest, largest or most of NETWORK that stays within a time."""
    from lolat.report.explanation import budget_lines
    from lolat.report.tables import one_by_one

    coverage = None if sure is None else sure / 100
    answer = model.budget(network, sure=sure is not None, coverage=coverage, **question)
    common.answer(answer, one_by_one(each(answer), budget_lines))
