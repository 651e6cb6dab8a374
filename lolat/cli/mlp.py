"""The layer model of Justus et al. 2018: `lolat mlp fit` and `lolat mlp predict`."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from msgspec.structs import replace

from lolat.cli import common
from lolat.errors import InputError, arg
from lolat.io.tables import is_table, read_table
from lolat.io.writing import write_text
from lolat.mlp.layer_model import Errors, evaluate, read_layer_model, write_layer_model
from lolat.mlp.recipes import RECIPES, data_sheets
from lolat.mlp.table import OPTIMIZERS, TIME, parse
from lolat.report.layers import error_line, network_lines
from lolat.units import plural

if TYPE_CHECKING:
    from lolat.mlp.layer_model import LayerModel

SEED = 0  # of random numbers: the held-out rows, the first weights
COMMANDS: dict[str, tuple[str, str]] = {
    "fit": ("lolat.cli.mlp:fit", "Train a model on a table of measured layers."),
    "predict": ("lolat.cli.mlp:predict", "The time of the layers of a table or a network."),
}
"""Each command: its place, and a few words about it."""


@click.group(cls=common.LazyGroup, table=COMMANDS, no_args_is_help=False)
def mlp() -> None:
    """Predict the time of a layer by a deep network (Justus et al. 2018)."""


@dataclass(frozen=True)
class LayerFit:
    """A layer model that was trained: its errors on held-out rows."""

    output: str
    layer: str
    recipe: str
    gpus: tuple[str, ...]
    errors: Errors


@common.command(
    "lolat mlp fit layers.csv --output conv.json",
    "lolat mlp fit layers.csv --recipe paper --output dense.json",
    answers={"layer-fit": "lolat.cli.mlp:LayerFit"},
)
@click.argument("table", metavar="CSV", type=click.Path())
@common.option("--recipe", type=click.Choice(tuple(RECIPES)), default="best", show_default=True,
               help="How it is trained; paper: as in 2018.")  # fmt: skip
@common.output_option(required=True, more="The layer model's file.")
@common.parameter("epochs", "Instead of the recipe's.")
def fit(table: str, recipe: str, output: Path, epochs: int | None) -> None:
    """Train a model on 80 % of the rows of CSV, drawn at random; its errors are of 10 % of the others.

    CSV, gzipped or not, has a row per measured layer and GPU (columns: docs/reference/files.md).
    """
    from lolat import __version__
    from lolat.mlp.training import learn, split

    common.check_file(output, "output", make_folder=True)
    text = read_table(table)
    rows = parse(text)
    text.say_unread(lambda remark: common.warn([remark]))
    devices = data_sheets(dict.fromkeys(rows["gpu"].tolist()))
    train, test = split(len(rows), SEED)
    with common.progress() as bar:
        model = learn(rows.select(train), RECIPES[recipe], devices, SEED, epochs, bar)
    errors = evaluate(model, rows.select(test))
    today = datetime.date.today().isoformat()
    about = {**model.training, "table": Path(table).name, "lolat": __version__, "date": today}
    write_layer_model(output, replace(model, training=about, errors=asdict(errors)))
    gpus = tuple(device.name for device in devices.values())
    answer = LayerFit(str(output), rows.layer, recipe, gpus, errors)
    head = f"{output}: {rows.layer} layers, recipe {recipe}, {plural(len(devices), 'GPU')}"
    common.answer(answer, [head, f"held out: {error_line(errors)}"])


@dataclass(frozen=True)
class LayerPredict:
    """The layers of a table: the file with the predictions, and their errors if the table has times."""

    model: str
    table: str
    layer: str
    recipe: str
    rows: int
    output: str | None
    errors: Errors | None
    warnings: tuple[str, ...]


@common.command(
    "lolat mlp predict conv.json layers.csv --output predicted.csv",
    "lolat mlp predict conv.json dense.json keras:VGG16 --gpu V100 --batch-size 32",
    answers={
        "layer-predict": "lolat.cli.mlp:LayerPredict",
        "layer-network": "lolat.mlp.networks:NetworkTime",
    },
)
@click.argument("models", metavar="LAYER_MODEL...", nargs=-1, required=True, type=click.Path())
@click.argument("layers", metavar="CSV|NETWORK")
@common.output_option(more="Of a table: with a column predicted_ms.")
@common.option("--gpu", metavar="NAME", help="Of a network: the GPU, such as V100.")
@common.parameter("batch_size", several=False, default=1, show_default=True)
@common.parameter(
    "optimizer", "none: forward only.", type=click.Choice(OPTIMIZERS, case_sensitive=False),
    default="none", show_default=True,
)  # fmt: skip
@common.parameter("input_size", with_length=False)
def predict(
    models: tuple[str, ...], layers: str, output: Path | None, gpu: str | None, batch_size: int,
    optimizer: str, input_size: Any,
) -> None:  # fmt: skip
    """The time of each layer of a table, or of NETWORK: the sum of its convolutions and dense layers.

    A table with times gets errors too. A network needs --gpu, and a model of
    convolutions and one of dense layers (or the one that it has); what they do not know (pooling,
    normalization ...) is listed and not in the sum.
    """
    from lolat.mlp.networks import network_time
    from lolat.readers import read

    loaded = [read_layer_model(model) for model in models]
    if is_table(layers):
        if len(models) > 1:
            raise InputError(f"{len(models)} layer models for a table; expected one")
        common.refuse_given("a network", "gpu", "batch_size", "optimizer", "input_size")
        _predict_table(loaded[0], models[0], layers, output)
        return
    if gpu is None:
        raise InputError(f"a network needs {arg('gpu')}; a table must be named *.csv or *.csv.gz")
    common.refuse_given("a table", "output")
    by_layer: dict[str, LayerModel] = {model.layer: model for model in loaded}
    if len(by_layer) < len(loaded):
        kinds = ", ".join(model.layer for model in loaded)
        raise InputError(
            f"{len(loaded)} layer models, of {kinds}; expected one of each kind of layer"
        )
    network = network_time(read(layers, input_size), by_layer, gpu, batch_size, optimizer)
    common.warn(network.warnings)
    common.answer(network, network_lines(network))


def _predict_table(model: LayerModel, name: str, table: str, output: Path | None) -> None:
    """Predict the layers of a table, write the file, and answer with the errors."""
    if output is not None:
        common.check_file(output, "output", make_folder=True)
    text = read_table(table)
    timed = TIME in text.names and len(text) > 0
    rows = parse(text, model.layer, times=timed)
    times, errors = model.predict(rows), evaluate(model, rows) if timed else None
    if output is None and errors is None:
        raise InputError(f"{table} has no times to compare with: give {arg('output')}")
    lines: list[str] = []
    if errors is not None:
        head = f"{name}: {model.layer} layers, recipe {model.recipe}"
        lines += [head, error_line(errors)]
    if output is not None:
        write_text(output, text.with_column("predicted_ms", (f"{t:.6g}" for t in times.tolist())))
        lines.append(f"{output}: {plural(len(rows), 'row')}")
    remarks: list[str] = []
    text.say_unread(remarks.append)
    if outside := model.outside(rows):
        remarks.append(outside)
    answer = LayerPredict(
        name, table, model.layer, model.recipe, len(rows), str(output) if output else None, errors,
        tuple(remarks),
    )  # fmt: skip
    common.warn(answer.warnings)
    common.answer(answer, lines)
