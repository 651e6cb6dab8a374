"""The layer model of Justus et al. 2018: `lolat mlp fit` and `lolat mlp predict`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lolat.cli import common
from lolat.cli.main import LazyGroup
from lolat.io.writing import check_kind
from lolat.mlp.layer_model import Errors, read_layer_model
from lolat.mlp.recipes import RECIPES
from lolat.units import digits, percent, plural

if TYPE_CHECKING:
    from lolat.mlp.answers import LayerPredict

COMMANDS: dict[str, tuple[str, str]] = {
    "fit": ("lolat.cli.mlp:fit", "Train a model on a table of measured layers."),
    "predict": ("lolat.cli.mlp:predict", "The time of the layers of a table."),
}
"""Command -> ("package.module:attribute", its purpose in a few words)."""


@click.group(cls=LazyGroup, table=COMMANDS, no_args_is_help=False)
def mlp() -> None:
    """Predict the time of a layer by a deep network (Justus et al. 2018)."""


@common.command(
    "lolat mlp fit layers.csv --output conv.json",
    "lolat mlp fit layers.csv --recipe paper --output dense.json",
    answers={"layer-fit": "lolat.mlp.answers:LayerFit"},
)
@click.argument("table", metavar="CSV", type=click.Path())
@click.option("--recipe", type=click.Choice(tuple(RECIPES)), default="best", show_default=True,
               help="How it is trained; paper: as in 2018.")  # fmt: skip
@common.output_option(required=True, more="The layer model's file.")
@common.parameter("epochs", "Instead of the recipe's.")
def fit(table: str, recipe: str, output: Path, epochs: int | None) -> None:
    """Train a model on 80 % of the rows of CSV, drawn at random; test it on another 10 %.

    CSV, gzipped or not, has a row per measured layer and GPU (columns: docs/reference/files.md).
    """
    from lolat.mlp.answers import fit_table

    common.check_file(output, "output", make_folder=True)
    check_kind(output, "output", read_layer_model)
    with common.Show() as bar:
        answer = fit_table(table, recipe, output, epochs, bar)
    common.warn(answer.warnings)
    head = f"{output}: {answer.layer} layers, recipe {recipe}, {plural(len(answer.gpus), 'GPU')}"
    common.answer(answer, [head, f"held out: {error_line(answer.errors)}"])


@common.command(
    "lolat mlp predict conv.json layers.csv --output predicted.csv",
    answers={"layer-predict": "lolat.mlp.answers:LayerPredict"},
)
@click.argument("model", metavar="LAYER_MODEL", type=click.Path())
@click.argument("table", metavar="CSV", type=click.Path())
@common.output_option(more="The table with a column predicted_ms.")
def predict(model: str, table: str, output: Path | None) -> None:
    """The time of each layer of a table, and the errors if it has times."""
    from lolat.mlp.answers import predict_table

    common.check_file(output, "output", make_folder=True)
    answer = predict_table(model, table, output)
    common.warn(answer.warnings)
    common.answer(answer, _prediction_lines(answer))


def _prediction_lines(answer: LayerPredict) -> Iterator[str]:
    """Yield lines on the errors of the predictions and the file that was written."""
    if answer.errors is not None:
        yield f"{answer.model}: {answer.layer} layers, recipe {answer.recipe}"
        yield error_line(answer.errors)
    if answer.output is not None:
        yield f"{answer.output}: {plural(answer.rows, 'row')}"


def error_line(errors: Errors) -> str:
    """The errors of a table's predictions as a line."""
    mean, median = map(percent, (errors.mean_relative_error, errors.median_relative_error))
    rows = plural(errors.rows, "row")
    return f"{rows}: RMSE {digits(errors.rmse_ms)} ms, mean error {mean}, median {median}"
