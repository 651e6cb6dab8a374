"""`lolat evaluate`: measure whole networks, then compare with the prediction."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from lolat.cli.common import Size, json_option, model_argument, say
from lolat.errors import AnswerIsNo, InputError

if TYPE_CHECKING:
    from lolat.devices.compare import Compared
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
    measured_only = (networks, batch_sizes, input_size, plot)
    table_only = (device, predictions, predictor, training)
    if table is None:
        if any(table_only):
            raise InputError(
                "--device, --predictor, --training and --predictions are for --table; give one of networks"
            )
        _measured(model, *measured_only, as_json)
    elif any(measured_only):
        raise InputError(
            "--table has its networks and sizes itself; give it alone, or NETWORKs to measure"
        )
    else:
        _of_table(model, table, *table_only, as_json)


def _measured(
    model: str,
    networks: tuple[str, ...],
    batch_sizes: tuple[int, ...],
    input_size: tuple[int, ...],
    plot: str | None,
    as_json: bool,
) -> None:
    """Measure networks, and compare."""
    from lolat.cli.common import progress
    from lolat.fitting.points import Point
    from lolat.model import load
    from lolat.report.evaluation import lines
    from microbench import backends, environment
    from microbench.doctor import state_now
    from microbench.evaluate import (
        DEFAULT_BATCH_SIZES,
        DEFAULT_NETWORKS,
        cases,
        compare,
        measure_cases,
    )

    if plot is not None:
        from lolat.report.plots import check_plot

        check_plot(plot)  # now rather than after minutes of measuring
    loaded = load(model)
    where = loaded.inference["environment"]
    backend, device = backends.of_model(where), device_of(where)
    check_networks(networks, backend, model)
    here = environment.here(where, device)
    known: tuple[environment.Difference, ...] = ()
    if device == "cpu":  # known before measuring; what a GPU is called, the backend says
        known = environment.differences_of_device(loaded.device, where, here)
        warn_of_differences(known, "" if known else environment.unsaid(where))
    sizes = batch_sizes or DEFAULT_BATCH_SIZES
    points = [Point.from_dict(p) for p in loaded.inference["points"]]
    with progress() as bar:
        run = measure_cases(
            backend, device, cases(networks or DEFAULT_NETWORKS, sizes, input_size), points, bar
        )
    now = environment.differences(loaded.device, where, here | run.environment)
    warn_of_differences([d for d in now if d not in known])
    result = compare(loaded, run.measured, run.failures, state_now(loaded, run.again))
    result["noise"] = run.noise
    for line in [json.dumps(result)] if as_json else lines(result):
        click.echo(line)
    if plot is not None:  # last: what was measured is on the screen whatever happens to the plot
        from lolat.report.plots import evaluation_plot

        title = f"{len(result['networks'])} networks on {loaded.device}"
        evaluation_plot(result["networks"], result["predictors"], title, plot)
        say(f"drawn: {plot}")


def _of_table(
    model: str,
    table: str,
    device: str | None,
    out: str | None,
    predictor: str | None,
    training: bool,
    as_json: bool,
) -> None:
    """Compare with a table's times; `out`: where its rows go, with the predictions."""
    from lolat.cli.common import counting, progress
    from lolat.devices.compare import (
        compare_operations,
        compare_table,
        mode_of,
        predictions,
        summary,
    )
    from lolat.devices.tables import columns_of, is_of_operations, read_networks, read_operations
    from lolat.io.writing import write_bytes
    from lolat.model import load

    loaded = load(model)
    columns, skipped = columns_of(table), dict[str, int]()
    if is_of_operations(columns):
        what, rows = "operations", compare_operations(loaded, read_operations(table), predictor)
    else:
        networks = read_networks(table, device, mode=mode_of(loaded))
        with progress() as bar:
            rows = compare_table(loaded, networks, predictor, training or None, said=counting(bar))
        what, skipped = "networks", networks.skipped
    if out is not None:
        write_bytes(out, predictions(rows, columns).encode())
    if as_json:
        answer = {what: [_row(r) for r in rows], "summary": summary(rows, what), "skipped": skipped}
        click.echo(json.dumps(answer))
        return
    for reason, number in skipped.items():
        say(f"{number} left out: {reason}")
    for line in _table_lines(rows, what):
        click.echo(line)


def _row(row: Compared) -> dict[str, Any]:
    """A row of a table in JSON: as it stands there, and what is predicted."""
    interval = None if row.interval_ms is None else list(row.interval_ms)
    times = {
        "latency_ms": row.latency_ms,
        "predicted_ms": row.predicted_ms,
        "interval_ms": interval,
    }
    return {**row.row, **times}


def _table_lines(rows: Sequence[Compared], what: str) -> Iterator[str]:
    """What a person reads: each network, or each kind of operations, then all together."""
    from lolat.devices.compare import by_operation, summary

    for row in rows if what == "networks" else ():
        name = row.row.get("network") or row.row.get("model")
        off = 100 * (row.predicted_ms / row.latency_ms - 1)
        yield (
            f"{name} · batch {row.batch_size}: {row.latency_ms:.4g} ms measured, "
            f"{row.predicted_ms:.4g} predicted, {off:+.1f} %"
        )
    for name, some in by_operation(rows).items() if what == "operations" else ():
        yield f"{name}: {len(some)} timed, median error {100 * summary(some)['median']:.1f} %"
    overall = summary(rows, what)
    yield (
        f"{overall[what]} {what}: median error {100 * overall['median']:.1f} %, mean "
        f"{100 * overall['mean']:.1f} %, {100 * overall['within_10']:.0f} % within 10 %, "
        f"{overall['inside']} of {overall['intervals']} inside the 90 % interval"
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


def device_of(environment: Mapping[str, Any]) -> str:
    """cpu or gpu: what a model was measured on; cpu where it does not say."""
    return "gpu" if environment.get("device") == "gpu" else "cpu"


def examined(loaded: Model) -> Examination:
    """What measuring networks of a model again finds; LolatError where that cannot be done."""
    from lolat.cli.common import progress
    from lolat.fitting.points import Point
    from microbench import backends
    from microbench.doctor import examine

    where = loaded.inference["environment"]
    backend = backends.of_model(where)
    backends.check(backend)
    with progress() as bar:
        return examine(
            [Point.from_dict(p) for p in loaded.inference["points"]],
            loaded.device,
            where,
            backend,
            device_of(where),
            bar,
        )
