"""`lolat mlp evaluate`: predicted against measured times of layers."""

from __future__ import annotations

import hashlib
import json

import click

from lolat.cli.errors import say
from lolat.cli.mlp.options import devices_option, model_argument, table_argument
from lolat.cli.options import json_option


@click.command()
@model_argument
@table_argument
@devices_option
@json_option
def evaluate(model: str, table: str, devices: str | None, as_json: bool) -> None:
    """Compare what MODEL predicts with the times in CSV: by GPU, by optimizer, beside their spread."""
    from lolat.mlp.devices import read_devices
    from lolat.mlp.evaluation import evaluate as errors
    from lolat.mlp.layer_model import read_layer_model
    from lolat.mlp.table import parse
    from lolat.mlp.text_table import read_text

    given = read_devices(devices) if devices else None
    loaded = read_layer_model(model)
    text = read_text(table)
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
