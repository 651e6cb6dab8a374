"""The companion of Justus et al. 2018: one command per job."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lolat.cli.common import LazyGroup, json_option, network_argument, say, size_option
from lolat.mlp.table import LAYERS, OPTIMIZERS

if TYPE_CHECKING:
    from lolat.mlp.devices import Device
    from lolat.mlp.layer_model import LayerModel
    from lolat.mlp.networks import Alone, NetworkTime
    from lolat.model import Model

COMMANDS: dict[str, tuple[str, str]] = {
    "fit": ("lolat.cli.mlp_fit:fit", "Train a model on a table of measured layers."),
    "predict": ("lolat.cli.mlp:predict", "The time of every layer in a table."),
    "evaluate": ("lolat.cli.mlp:evaluate", "Predicted against measured times."),
    "network": ("lolat.cli.mlp:network", "A whole network from its layers."),
    "learn": ("lolat.cli.mlp_fit:learn", "Measure layers on this device, and train on them."),
}
"""Each command: where it is, and what it does in a few words."""


@click.group(cls=LazyGroup, table=COMMANDS, no_args_is_help=False)
def mlp() -> None:
    """Predict the time of a layer by a deep network (Justus et al. 2018)."""


# ---- Arguments and options of the companion's commands.

table_argument = click.argument("table", metavar="CSV", type=click.Path())
model_argument = click.argument("model", metavar="MODEL", type=click.Path())
devices_option = click.option(
    "--devices",
    type=click.Path(),
    metavar="FILE",
    help="Facts of GPUs: CSV (name,bandwidth,cores,clock in GB/s, number, MHz) or JSON.",
)

# ---- `lolat mlp predict`: the time of every layer in a table.

COLUMN = "predicted_ms"


@click.command()
@model_argument
@table_argument
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The CSV to write, gzipped where it is named *.gz.",
)
@devices_option
def predict(model: str, table: str, output: Path, devices: str | None) -> None:
    """Predict the rows of CSV: the same rows in order, with a column predicted_ms (milliseconds)."""
    from lolat.cli.common import check_writable
    from lolat.io.tables import read_table
    from lolat.mlp.devices import read_devices
    from lolat.mlp.layer_model import read_layer_model
    from lolat.mlp.table import parse
    from lolat.model.file import write_bytes

    check_writable(output)
    given = read_devices(devices) if devices else None
    loaded = read_layer_model(model)
    text = read_table(table, expected="expected a CSV table of layers, gzipped or not")
    rows = parse(text, loaded.layer, times=False)
    times = loaded.predict(rows, given)
    outside = loaded.outside(rows)
    if outside:
        say(f"warning: {outside}")
    if COLUMN in text.names:
        say(
            f"warning: {text.source} has a column {COLUMN} already; {output} has the new one instead"
        )
    content = text.with_column(COLUMN, (f"{t:.6g}" for t in times.tolist())).encode()
    write_bytes(output, gzip.compress(content, mtime=0) if output.suffix == ".gz" else content)
    click.echo(f"{output}: {len(rows):,} row{'s' * (len(rows) != 1)}")


# ---- `lolat mlp evaluate`: predicted against measured times of layers.


@click.command()
@model_argument
@table_argument
@devices_option
@json_option
def evaluate(model: str, table: str, devices: str | None, as_json: bool) -> None:
    """Compare what MODEL predicts with the times in CSV: by GPU, by optimizer, beside their spread."""
    from lolat.io.tables import read_table
    from lolat.mlp.devices import read_devices
    from lolat.mlp.evaluation import evaluate as errors
    from lolat.mlp.layer_model import read_layer_model
    from lolat.mlp.table import parse

    given = read_devices(devices) if devices else None
    loaded = read_layer_model(model)
    text = read_table(table, expected="expected a CSV table of layers, gzipped or not")
    rows = parse(text, loaded.layer)
    found = errors(loaded, rows, given)
    warnings = [w for w in (loaded.outside(rows),) if w]
    trained_on = loaded.training.get("table")
    if isinstance(trained_on, dict) and trained_on.get("sha256") == _hash(text.content):
        warnings.append(
            "the model was trained on most of these rows, so it looks better here than it is; its "
            f"errors on rows left out: {_left_out(loaded.errors)}"
        )
    for warning in warnings:
        say(f"warning: {warning}")
    if as_json:
        about = {"model": model, "table": table, "layer": loaded.layer, "recipe": loaded.recipe}
        click.echo(json.dumps({**about, **found.to_dict(), "warnings": warnings}))
        return
    click.echo(f"{model}: {loaded.layer} layers, recipe {loaded.recipe}")
    for line in found.lines():
        click.echo(line)


def _hash(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()


def _left_out(errors: object) -> str:
    """`RMSE 2.8 ms, mean 5.9 %` of what a model file says, which may say nothing."""
    found = errors if isinstance(errors, dict) else {}
    rmse, mean = found.get("rmse_ms"), found.get("mean_relative_error")
    if not isinstance(rmse, int | float) or not isinstance(mean, int | float):
        return "not known"
    return f"RMSE {rmse:.3g} ms, mean error {100 * mean:.1f} %"


# ---- `lolat mlp network`: a whole network from its layers, as the paper predicts it.

MOST_NAMES = 3


@click.command()
@click.argument("conv_model", metavar="CONV_MODEL", type=click.Path())
@click.argument("dense_model", metavar="DENSE_MODEL", type=click.Path())
@network_argument
@click.option("--gpu", required=True, metavar="NAME", help="The GPU to predict for, such as V100.")
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Samples in one batch.",
)
@click.option(
    "--optimizer",
    type=click.Choice(OPTIMIZERS),
    default="none",
    show_default=True,
    help="Forward, backward and update of this one; none: forward only.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    metavar="N",
    help="In the data set, for the time of an epoch (a last, smaller batch counts as a whole one).",
)
@click.option(
    "--alone",
    "timed",
    type=click.Path(),
    metavar="TABLE",
    help="Convolutions timed alone on the GPU: what each pays for that is told from them and left out.",
)
@size_option
@devices_option
@json_option
def network(
    conv_model: str,
    dense_model: str,
    network: str,
    gpu: str,
    batch_size: int,
    optimizer: str,
    samples: int | None,
    timed: str | None,
    input_size: tuple[int, ...],
    devices: str | None,
    as_json: bool,
) -> None:
    """Predict NETWORK on a GPU: the sum of its convolutions and dense layers.

    CONV_MODEL and DENSE_MODEL are files of `lolat mlp fit`. What they do not know (pooling, normalisation
    ...) is listed and not in the sum. NETWORK: as for `lolat predict`.

    With --alone, a table as for `lolat mlp fit`, convolutions take what they take inside a network of
    TensorFlow 1 on a GPU: no call each, no tensors turned.
    """
    from lolat.mlp.devices import read_devices
    from lolat.mlp.networks import network_time
    from lolat.readers import open_network

    given = read_devices(devices) if devices else None
    models = load_models(conv_model, dense_model)
    formula = formula_model(gpu)
    graph = open_network(network, input_size).graph()
    alone = None if timed is None else alone_formula(timed, gpu, optimizer, given)
    found = network_time(graph, models, gpu, batch_size, optimizer, samples, given, formula, alone)
    name = None if formula is None else formula.name
    if as_json:
        click.echo(json.dumps({**found.to_dict(), "formula_model": name}))
    for warning in found.warnings:
        say(f"warning: {warning}")
    if not as_json:
        for line in lines(found, name):
            click.echo(line)


def load_models(conv_model: str, dense_model: str) -> dict[str, LayerModel]:
    """The two models by kind of layer; InputError where one is of the other kind."""
    from lolat.errors import InputError
    from lolat.mlp.layer_model import read_layer_model

    found = {}
    for word, kind, path in zip(
        ("CONV_MODEL", "DENSE_MODEL"), LAYERS, (conv_model, dense_model), strict=True
    ):
        model = read_layer_model(path)
        if model.layer != kind:
            raise InputError(
                f"{word} {path} is a model of {model.layer} layers; expected one of {kind} layers: first "
                "the convolution model, then the dense one"
            )
        found[kind] = model
    return found


def alone_formula(path: str, gpu: str, optimizer: str, given: Mapping[str, Device] | None) -> Alone:
    """What convolutions of a GPU pay alone, from the rows of a table; InputError."""
    from lolat.errors import InputError
    from lolat.mlp.devices import DEVICES, known, merged
    from lolat.mlp.networks import fit
    from lolat.mlp.table import read_table

    if optimizer != "none":
        raise InputError(
            f"--alone knows forward passes only and --optimizer is {optimizer}; expected none, or no "
            "--alone"
        )
    (device,) = known([gpu], merged(DEVICES, given or {})).values()
    return fit(read_table(path, "convolution"), device)


def formula_model(gpu: str) -> Model | None:
    """LoLat's shipped model of a GPU, where there is one."""
    from lolat.errors import ModelFileError
    from lolat.mlp.devices import key
    from lolat.model import load

    try:
        return load(f"justus2018-{key(gpu)}")
    except ModelFileError:
        return None


def lines(found: NetworkTime, formula: str | None) -> Iterator[str]:
    """What the terminal shows."""
    from lolat.mlp.layers import NEITHER
    from lolat.units import milliseconds, plain

    mode = "forward only" if found.optimizer == "none" else f"training with {found.optimizer}"
    yield f"{plain(found.network)} · batch {found.batch_size} · {plain(found.gpu)} · {mode}"
    kinds = Counter(layer.kind for layer in found.layers)
    how = "each as if alone"
    if found.call_ms is not None:
        how = f"convolutions as inside a network, and one call, {milliseconds(found.call_ms)}"
    yield (
        f"{milliseconds(found.batch_ms)} a batch: {_counted(kinds['convolution'], 'convolution')} and "
        f"{_counted(kinds['dense'], 'dense layer')}, {how}"
    )
    if found.samples is not None and found.epoch_s is not None:
        yield (
            f"{found.epoch_s:.4g} s an epoch of {found.samples:,} samples: {found.batches:,} batches, the "
            "last one counted as a whole one"
        )
    yield ""
    width = max((len(plain(layer.name)) for layer in found.layers), default=0)
    width = min(width, 32)
    for layer in found.layers:
        yield (
            f"  {plain(layer.name)[-32:]:{width}}  {milliseconds(layer.predicted_ms):>10}  "
            f"{100 * layer.share:5.1f} %  {layer.what}"
        )
    if not found.others:
        return
    yield ""
    yield f"Not in the sum: {_counted(len(found.others), 'operation')}{_estimate(found, formula)}"
    groups: dict[tuple[str, str], list[int]] = {}
    for i, other in enumerate(found.others):
        groups.setdefault((other.kind, other.reason), []).append(i)
    for (kind, reason), members in groups.items():
        names = ", ".join(plain(found.others[i].name) for i in members[:MOST_NAMES])
        more = f" and {len(members) - MOST_NAMES} more" if len(members) > MOST_NAMES else ""
        times = [t for i in members if (t := found.others[i].formula_ms) is not None]
        time = f"{milliseconds(sum(times)):>10}  " if times else ""
        why = "" if reason == NEITHER else f" ({reason})"
        yield f"  {time}{kind}{why}: {names}{more}"


def _estimate(found: NetworkTime, formula: str | None) -> str:
    """What is said of the formula's estimate of what is not in the sum."""
    from lolat.units import milliseconds

    if found.others_ms is not None:
        return (
            f"; by LoLat's formula ({formula}) some {milliseconds(found.others_ms)} more, not added"
        )
    if formula is None:
        return f" (no LoLat model of {found.gpu} to estimate them by)"
    return f" (LoLat's model {formula} knows forward passes only, so it cannot estimate them)"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"
