"""Trains a layer model on a table, and predicts the layers of a table."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from pathlib import Path

from msgspec.structs import replace

from lolat import __version__
from lolat.errors import InputError, arg
from lolat.io.progress import Progress
from lolat.io.tables import read_table
from lolat.io.writing import write_text
from lolat.mlp.layer_model import Errors, evaluate, read_layer_model, write_layer_model
from lolat.mlp.recipes import RECIPES, data_sheets
from lolat.mlp.table import TIME, layers_of

SEED = 0
"""The seed of random numbers: it decides the held-out rows and the initial weights."""


@dataclass(frozen=True)
class LayerFit:
    """The result of training a layer model: its errors on held-out rows."""

    output: str
    layer: str
    recipe: str
    gpus: tuple[str, ...]
    errors: Errors
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class LayerPredict:
    """The result of predicting a table of layers: the output file, and errors if the table has times."""

    model: str
    table: str
    layer: str
    recipe: str
    rows: int
    output: str | None
    errors: Errors | None
    warnings: tuple[str, ...]


def fit_table(
    table: str, recipe: str, output: Path, epochs: int | None, progress: Progress
) -> LayerFit:
    """Train a recipe on 80 % of the rows of a table, evaluate on 10 %, and write the model to `output`.

    `epochs`: None for the number in the recipe. InputError for a table without times of layers.
    """
    from lolat.mlp.training import learn, split

    text = read_table(table)
    remarks: list[str] = []
    rows = layers_of(text).unique(remarks.append)
    text.say_unread(remarks.append)
    devices = data_sheets(dict.fromkeys(rows["gpu"].tolist()))
    train, test = split(len(rows), SEED)
    model = learn(rows.select(train), RECIPES[recipe], devices, SEED, epochs, progress)
    errors = evaluate(model, rows.select(test))
    today = datetime.date.today().isoformat()
    about = {**model.training, "table": Path(table).name, "lolat": __version__, "date": today}
    write_layer_model(output, replace(model, training=about, errors=asdict(errors)))
    gpus = tuple(device.name for device in devices.values())
    return LayerFit(str(output), rows.layer, recipe, gpus, errors, tuple(remarks))


def predict_table(model: str, table: str, output: Path | None) -> LayerPredict:
    """Predict the layers of a table; with `output` write it with a column predicted_ms.

    InputError if the table has no times, and there is no `output`.
    """
    known, text = read_layer_model(model), read_table(table)
    is_timed = TIME in text.names and len(text) > 0
    rows = layers_of(text, known.layer, times=is_timed)
    times, errors = known.predict(rows), evaluate(known, rows) if is_timed else None
    if output is None and errors is None:
        raise InputError(
            f"{table} has no times to compare with: give {arg('output')}", code="output"
        )
    if output is not None:
        write_text(output, text.with_column("predicted_ms", (f"{t:.6g}" for t in times.tolist())))
    remarks: list[str] = []
    text.say_unread(remarks.append)
    if outside := known.outside(rows):
        remarks.append(outside)
    written = None if output is None else str(output)
    return LayerPredict(
        model, table, known.layer, known.recipe, len(rows), written, errors, tuple(remarks)
    )
