"""The layer model of Justus et al. 2018: `lolat mlp fit` and `lolat mlp predict`."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from msgspec.structs import replace

from lolat.cli import common
from lolat.cli.main import LazyGroup
from lolat.errors import InputError, arg
from lolat.io.tables import COPIES, read_table
from lolat.io.writing import check_kind, write_text
from lolat.mlp.layer_model import Errors, evaluate, read_layer_model, write_layer_model
from lolat.mlp.recipes import RECIPES, data_sheets
from lolat.mlp.table import TIME, parse
from lolat.units import digits, percent, plural

SEED = 0  # of random numbers: the held-out rows, the first weights
COMMANDS: dict[str, tuple[str, str]] = {
    "fit": ("lolat.cli.mlp:fit", "Train a model on a table of measured layers."),
    "predict": ("lolat.cli.mlp:predict", "The time of the layers of a table."),
}
"""Each command: its place, and a few words about it."""


@click.group(cls=LazyGroup, table=COMMANDS, no_args_is_help=False)
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
    warnings: tuple[str, ...]


@common.command(
    "lolat mlp fit layers.csv --output conv.json",
    "lolat mlp fit layers.csv --recipe paper --output dense.json",
    answers={"layer-fit": "lolat.cli.mlp:LayerFit"},
)
@click.argument("table", metavar="CSV", type=click.Path())
@click.option("--recipe", type=click.Choice(tuple(RECIPES)), default="best", show_default=True,
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
    check_kind(output, "output", read_layer_model)
    text = read_table(table)
    rows = parse(text).once()
    remarks: list[str] = []
    if copies := len(text) - len(rows):
        remarks.append(COPIES.format(copies, len(text)))
    text.say_unread(remarks.append)
    common.warn(remarks)
    devices = data_sheets(dict.fromkeys(rows["gpu"].tolist()))
    train, test = split(len(rows), SEED)
    with common.Show() as bar:
        model = learn(rows.select(train), RECIPES[recipe], devices, SEED, epochs, bar)
    errors = evaluate(model, rows.select(test))
    today = datetime.date.today().isoformat()
    about = {**model.training, "table": Path(table).name, "lolat": __version__, "date": today}
    write_layer_model(output, replace(model, training=about, errors=asdict(errors)))
    gpus = tuple(device.name for device in devices.values())
    answer = LayerFit(str(output), rows.layer, recipe, gpus, errors, tuple(remarks))
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
    answers={"layer-predict": "lolat.cli.mlp:LayerPredict"},
)
@click.argument("model", metavar="LAYER_MODEL", type=click.Path())
@click.argument("table", metavar="CSV", type=click.Path())
@common.output_option(more="The table with a column predicted_ms.")
def predict(model: str, table: str, output: Path | None) -> None:
    """The time of each layer of a table, and the errors if it has times."""
    common.check_file(output, "output", make_folder=True)
    known, text = read_layer_model(model), read_table(table)
    timed = TIME in text.names and len(text) > 0
    rows = parse(text, known.layer, times=timed)
    times, errors = known.predict(rows), evaluate(known, rows) if timed else None
    if output is None and errors is None:
        raise InputError(f"{table} has no times to compare with: give {arg('output')}")
    lines = []
    if errors is not None:
        head = f"{model}: {known.layer} layers, recipe {known.recipe}"
        lines += [head, error_line(errors)]
    if output is not None:
        write_text(output, text.with_column("predicted_ms", (f"{t:.6g}" for t in times.tolist())))
        lines.append(f"{output}: {plural(len(rows), 'row')}")
    remarks: list[str] = []
    text.say_unread(remarks.append)
    if outside := known.outside(rows):
        remarks.append(outside)
    answer = LayerPredict(
        model, table, known.layer, known.recipe, len(rows), str(output) if output else None, errors,
        tuple(remarks),
    )  # fmt: skip
    common.warn(answer.warnings)
    common.answer(answer, lines)


def error_line(errors: Errors) -> str:
    """The errors of a table's rows."""
    mean, median = map(percent, (errors.mean_relative_error, errors.median_relative_error))
    rows = plural(errors.rows, "row")
    return f"{rows}: RMSE {digits(errors.rmse_ms)} ms, mean error {mean}, median {median}"
