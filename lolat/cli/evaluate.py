"""`lolat evaluate`: measure whole networks, then compare with the prediction."""

from __future__ import annotations

from pathlib import Path

import click

import lolat
from lolat.cli import common
from lolat.errors import AnswerIsNo, InputError, arg
from lolat.parameters import EVALUATED_BATCHES


@common.command(
    "lolat evaluate local keras:ResNet50 keras:MobileNetV2 --batch-size 1,4",
    "lolat evaluate gpu.json --table networks.csv --predictions out.csv",
    answers={
        "evaluation": "lolat.api.measuring:Evaluation",
        "table-evaluation": "lolat.api.table_evaluation:TableEvaluation",
    },
)
@common.model_argument
@click.argument("networks", metavar="[NETWORK]...", nargs=-1)
@common.parameter("batch_size", f"{' and '.join(map(str, EVALUATED_BATCHES))} if not given.")
@common.parameter("input_size")
@common.parameter("wait")
@click.option("--table", type=click.Path(), multiple=True, metavar="FILE",
               help="Measure nothing: compare with the times in this table; maybe several.")  # fmt: skip
@click.option("--only", type=common.List(click.STRING, "NAME[,NAME]", "v100,p100"),
               help="Compare only these devices' rows of --table.")  # fmt: skip
@click.option("--predictions", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
               help="Write the rows of --table with predicted_ms, low_ms, high_ms.")  # fmt: skip
@common.parameter("training")
@click.option("--tensor-parallel", type=common.WHOLE, metavar="N",
               help="GPUs that share the model. With --table: of rows that do not say it.")  # fmt: skip
@common.parameter("served_model")
@common.parameter("predictor", "With --table.")
@common.parameter("precision", "With --table.")
def evaluate(
    model: str, networks: tuple[str, ...], batch_size: tuple[int, ...],
    input_size: tuple[int, ...], wait: bool, table: tuple[str, ...], only: tuple[str, ...] | None,
    predictions: Path | None, predictor: str | None, precision: str | None, training: bool,
    tensor_parallel: int | None, served_model: str | None,
) -> None:  # fmt: skip
    """Measure NETWORKs on this machine and compare them with what MODEL predicts.

    Each runs in a loop of its own, with the backend and the options of MODEL. Some of MODEL's own networks
    run in between: they tell how fast the machine is now, and a second line has errors corrected for this.

    With --table nothing is run: its times are compared, as `lolat fit` takes them. Without NETWORK, a
    profile of TensorFlow runs ten of keras.applications, in a few minutes.

    Exit code 3 if the machine is too busy to judge MODEL.
    """
    from lolat.api.measuring import UNSETTLED
    from lolat.io.writing import write_text
    from lolat.report.device import FREED_MEMORY
    from lolat.report.evaluation import evaluation_lines, table_lines

    loaded = lolat.load(model)
    if not table:
        of_table = "only", "predictions", "predictor", "precision", "training", "tensor_parallel"
        common.refuse_given(arg("table"), *of_table, "served_model")
        takes = "minutes: each network is timed in several rounds, at each batch size"
        with common.Show(takes) as bar:
            result = loaded.evaluate(
                networks, batch_size, input_size=input_size, wait=wait, progress=bar
            )
        freed = [FREED_MEMORY] if loaded.file.environment.keeps_freed_memory else []
        common.answer(result, [*evaluation_lines(result), *freed])
        if result.verdict == UNSETTLED:
            raise click.exceptions.Exit(AnswerIsNo.exit_code)
        return
    if networks:
        raise InputError(
            f"{arg('networks')} beside {arg('table')}; expected one of them", code="networks"
        )
    common.refuse_given(arg("networks"), "batch_size", "input_size", "sequence_length", "wait")
    with common.Show() as bar:
        answer = loaded.evaluate_table(
            table, only=only, predictor=predictor, precision=precision, training=training,
            tensor_parallel=tensor_parallel, served_model=served_model, on_progress=common.counting(bar),
        )  # fmt: skip
    if predictions is not None:
        write_text(predictions, answer.to_csv())
    for line in (*answer.warnings, *answer.left_out.lines()):
        common.say(line)
    common.answer(answer, table_lines(answer))


# ---- `lolat doctor`: measure a few networks again and say whether the profile still holds.


@common.command("lolat doctor local", answers={"diagnosis": "lolat.api.doctor:Diagnosis"})
@click.argument("model", metavar="[MODEL]", default="local")
def doctor(model: str) -> None:
    """Measure five networks of MODEL again (20 s on a quiet machine): does it still hold on this machine?

    Without MODEL: `local`, the profile learned last on this machine.

    Exit code 0: it does. The networks' median time differs by at most 10 % from learning, or by at most
    MODEL's own noise if that is larger, up to 20 %. 3: it does not, or one cannot tell, as the machine is
    or was too busy.
    """
    from lolat.report.evaluation import doctor_lines

    loaded = lolat.load(model)
    with common.Show() as bar:
        result = loaded.doctor(progress=bar)
    common.answer(result, doctor_lines(loaded, model, result))
    if not result.holds:
        raise click.exceptions.Exit(AnswerIsNo.exit_code)
