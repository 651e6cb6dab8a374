"""`lolat evaluate`: measure whole networks, then compare with the prediction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from lolat.cli.common import Size, json_option, model_argument, say
from lolat.errors import AnswerIsNo, InputError

if TYPE_CHECKING:
    from lolat.model import Model
    from microbench.doctor import Examination

EXAMPLES = {
    "torch": (" of torchvision", "torchvision.models:resnet50 --input-size 224"),
    "onnxruntime": ("", "network.onnx"),
}
"""Backend without networks of its own -> whose they may be, and how one is given."""


@click.command()
@model_argument
@click.argument("networks", metavar="[NETWORK]...", nargs=-1)
@click.option(
    "--batch-size",
    "batch_sizes",
    type=click.IntRange(min=1),
    multiple=True,
    metavar="N",
    help="May be given several times; 1 and 4 if not given.",
)
@click.option("--input-size", type=Size(), default=(), help="Input size of all networks.")
@click.option(
    "--plot", type=click.Path(dir_okay=False), help="Draw measured against predicted: .svg or .png."
)
@click.option(
    "--table",
    type=click.Path(),
    metavar="NETWORKS.csv",
    help="Measure nothing: compare with the times in this table.",
)
@click.option("--device", metavar="NAME", help="Of --table: the rows of this device alone.")
@click.option(
    "--predictions",
    type=click.Path(dir_okay=False),
    metavar="OUT.csv",
    help="Of --table: write its rows with predicted_ms, low_ms, high_ms.",
)
@click.option(
    "--training", is_flag=True, help="Of --table: its training steps, by a model of tables."
)
@click.option(
    "--predictor", metavar="NAME", help="Of --table: another formula of the model, as two-regime."
)
@json_option
def evaluate(
    model: str,
    networks: tuple[str, ...],
    batch_sizes: tuple[int, ...],
    input_size: tuple[int, ...],
    plot: str | None,
    table: str | None,
    device: str | None,
    predictions: str | None,
    predictor: str | None,
    training: bool,
    as_json: bool,
) -> None:
    """Measure NETWORKs on this machine and compare them with what MODEL predicts.

    Each is timed in a loop of its own, in rounds with some of MODEL's own networks, which tell how fast the
    machine is meanwhile: predictions are compared for that state, and for the machine as it usually is.

    They are run with the backend that MODEL was learned with, and its options: Keras networks by
    tensorflow, PyTorch modules by torch, .onnx files by onnxruntime. With --table nothing is run.
    Without NETWORK, and of tensorflow only: ten of keras.applications; a few minutes.
    """
    if table is not None:
        if networks or batch_sizes or input_size or plot:
            raise InputError(
                "--table has its networks and sizes itself; give it alone, or NETWORKs to measure"
            )
        _with_table(model, table, device, (predictor, training), predictions, as_json)
        return
    if device is not None or predictions is not None or predictor is not None or training:
        raise InputError(
            "--device, --predictor, --training and --predictions are for --table; give one of networks"
        )
    from lolat.cli.progress import progress
    from lolat.fitting.points import Point
    from lolat.model import load
    from lolat.report.evaluation import compare, lines
    from microbench import backends
    from microbench import environment as comparable
    from microbench.doctor import state_now
    from microbench.evaluate import DEFAULT_BATCH_SIZES, DEFAULT_NETWORKS, cases, measure_cases

    if plot is not None:
        from lolat.report.plots import check_plot

        check_plot(plot)  # now rather than after minutes of measuring
    loaded = load(model)
    where = loaded.document["environment"]
    backend = backends.of_model(where)
    check_networks(networks, backend, model)
    device = where["device"] if where.get("device") in ("cpu", "gpu") else "cpu"

    here = comparable.here(where, device)
    known: tuple[comparable.Difference, ...] = ()
    if device == "cpu":  # known before measuring; what a GPU is called, the backend says
        known = comparable.differences_of_device(loaded.device, where, here)
        warn_of_differences(known, "" if known else comparable.unsaid(where))
    with progress() as bar:
        found = measure_cases(
            backend,
            device,
            cases(networks or DEFAULT_NETWORKS, batch_sizes or DEFAULT_BATCH_SIZES, input_size),
            [Point.from_dict(p) for p in loaded.document["points"]],
            bar,
        )
    now = comparable.differences(loaded.device, where, here | found.environment)
    warn_of_differences([d for d in now if d not in known])
    result = compare(loaded, found.measured, found.failures, state_now(loaded, found.again))
    result["noise"] = found.noise
    if as_json:
        click.echo(json.dumps(result))
    else:
        for line in lines(result):
            click.echo(line)
    if plot is not None:  # last: what was measured is on the screen whatever happens to the plot
        from lolat.report.plots import evaluation_plot

        title = f"{len(result['networks'])} networks on {loaded.device}"
        evaluation_plot(result["networks"], result["predictors"], title, plot)
        say(f"drawn: {plot}")


def _with_table(
    model: str,
    table: str,
    device: str | None,
    asked: tuple[str | None, bool],
    out: str | None,
    as_json: bool,
) -> None:
    """Compare with a table's times. `asked`: predictor, whether for training steps."""
    from lolat.cli.progress import counting, progress
    from lolat.devices.compare import (
        by_operation,
        compare_operations,
        compare_table,
        mode_of,
        predictions,
        summary,
    )
    from lolat.devices.tables import columns_of, is_of_operations, read_networks, read_operations
    from lolat.model import load
    from lolat.model.file import write_bytes

    loaded = load(model)
    columns, skipped = columns_of(table), dict[str, int]()
    what = "operations" if is_of_operations(columns) else "networks"
    if what == "operations":
        rows = compare_operations(loaded, read_operations(table), asked[0])
    else:
        read = read_networks(table, device, mode=mode_of(loaded))
        with progress() as bar:
            rows = compare_table(loaded, read, asked[0], asked[1] or None, said=counting(bar))
        skipped = read.skipped
    if out is not None:
        write_bytes(out, predictions(rows, columns).encode())
    found = summary(rows, what)
    if as_json:
        result = [
            {
                **r.row,
                "latency_ms": r.latency_ms,
                "predicted_ms": r.predicted_ms,
                "interval_ms": None if r.interval_ms is None else list(r.interval_ms),
            }
            for r in rows
        ]
        click.echo(json.dumps({what: result, "summary": found, "skipped": skipped}))
        return
    for r in rows if what == "networks" else ():
        name = r.row.get("network") or r.row.get("model")
        off = 100 * (r.predicted_ms / r.latency_ms - 1)
        click.echo(
            f"{name} · batch {r.batch_size}: {r.latency_ms:.4g} ms measured, "
            f"{r.predicted_ms:.4g} predicted, {off:+.1f} %"
        )
    for name, some in by_operation(rows).items() if what == "operations" else ():
        own = summary(some)
        click.echo(f"{name}: {len(some)} timed, median error {100 * own['median']:.1f} %")
    for reason, number in skipped.items():
        say(f"{number} left out: {reason}")
    click.echo(
        f"{found[what]} {what}: median error {100 * found['median']:.1f} %, mean "
        f"{100 * found['mean']:.1f} %, {100 * found['within_10']:.0f} % within 10 %, "
        f"{found['inside']} of {found['intervals']} inside the 90 % interval"
    )


def check_networks(networks: Sequence[str], backend: str, model: str) -> None:
    """InputError where none is given, and there are none for the backend of the model."""
    name = backend.partition("+")[0]
    if not networks and name in EXAMPLES:
        whose, given = EXAMPLES[name]
        raise InputError(
            f"{model} was learned with {name}, for which no networks come with LoLat; give some, for "
            f"example{whose}: lolat evaluate {model} {given}"
        )


def warn_of_differences(found: Iterable[object], unsaid: str = "") -> None:
    """Say where the device, versions, threads or flags are not those of the model, or not known."""
    for remark in [*map(str, found), *[unsaid] * bool(unsaid)]:
        say(f"warning: {remark}")


# ---- `lolat doctor`: measure a few blocks again and say whether the model still holds.


@click.command()
@model_argument
@json_option
def doctor(model: str, as_json: bool) -> None:
    """Measure five networks of MODEL again, within 20 seconds: does it still hold on this machine?

    Exit code 0: it does. 3: it does not (drifted, another machine), or that cannot be told now (the
    machine is busy or in another state). Nothing is written.
    """
    from lolat.model import load
    from lolat.report.diagnosis import lines
    from microbench.doctor import OK, diagnose

    loaded = load(model)
    result = diagnose(loaded, examined(loaded))
    if as_json:
        click.echo(json.dumps(result))
    else:
        for line in lines(loaded, model, result):
            click.echo(line)
    if result["verdict"] != OK:
        raise click.exceptions.Exit(AnswerIsNo.exit_code)


def examined(loaded: Model) -> Examination:
    """What measuring networks of a model again finds; LolatError where that cannot be done."""
    from lolat.cli.progress import progress
    from lolat.fitting.points import Point
    from microbench import backends
    from microbench.doctor import examine

    where = loaded.document["environment"]
    backend = backends.of_model(where)
    backends.check(backend)
    with progress() as bar:
        return examine(
            [Point.from_dict(p) for p in loaded.document["points"]],
            loaded.device,
            where,
            backend,
            where["device"] if where.get("device") in ("cpu", "gpu") else "cpu",
            bar,
        )
