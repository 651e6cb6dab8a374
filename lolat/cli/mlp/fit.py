"""`lolat mlp fit`: a layer model from measured layers."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lolat.cli.errors import say
from lolat.cli.mlp.options import devices_option, table_argument
from lolat.mlp.recipe import RECIPES
from lolat.mlp.table import LAYERS

if TYPE_CHECKING:
    from lolat.mlp.layer_model import LayerModel
    from lolat.mlp.table import LayerTable


@click.command()
@table_argument
@click.option("--layer", type=click.Choice(LAYERS), required=True, help="What the rows are.")
@click.option(
    "--recipe",
    type=click.Choice(tuple(RECIPES)),
    default="best",
    show_default=True,
    help="paper: as published in 2018.",
)
@click.option(
    "--gpus", default="all", show_default=True, metavar="all|NAME,...", help="Rows of these."
)
@devices_option
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="The model file to write."
)
@click.option(
    "--max-batch-size",
    type=click.IntRange(min=1),
    metavar="N",
    help="Only rows of at most this batch size (the paper's model of all GPUs: 32).",
)
@click.option("--epochs", type=click.IntRange(min=1), metavar="N", help="Instead of the recipe's.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N")
@click.option("--restart", is_flag=True, help="Throw away what a killed run left.")
def fit(
    table: str,
    layer: str,
    recipe: str,
    gpus: str,
    devices: str | None,
    output: Path,
    max_batch_size: int | None,
    epochs: int | None,
    seed: int,
    restart: bool,
) -> None:
    """Train a model on CSV: 80 % of its rows, drawn at random; its errors are of the other rows.

    CSV, gzipped or not, has a row per measured layer and GPU (docs/mlp.md lists the columns). A run
    that is killed goes on where it was when the same command is given again.
    """
    from lolat.cli.learn import check_writable
    from lolat.cli.progress import progress
    from lolat.mlp.devices import DEVICES, known, merged, read_devices
    from lolat.mlp.layer_model import write_layer_model
    from lolat.mlp.recipe import find_recipe
    from lolat.mlp.table import parse
    from lolat.mlp.text_table import read_text
    from lolat.mlp.training import learn, split

    check_writable(output)
    given = merged(DEVICES, read_devices(devices) if devices else {})
    text = read_text(table)
    rows = chosen(parse(text, layer), gpus, max_batch_size)
    facts = known(rows["gpu"].tolist(), given)
    checkpoint = output.with_name(output.name + ".checkpoint.npz")
    if restart:
        checkpoint.unlink(missing_ok=True)
    elif checkpoint.exists():
        say(f"{checkpoint} is there: a training of the same rows and options goes on from it")
    parts = split(len(rows), seed)
    with progress() as shown:
        model = learn(
            rows.select(parts.train),
            find_recipe(recipe),
            facts,
            seed=seed,
            epochs=epochs,
            checkpoint=checkpoint,
            progress=shown,
        )
    about = {
        "table": {
            "name": Path(table).name,
            "sha256": hashlib.sha256(text.content.encode()).hexdigest(),
        },
        "gpus": gpus,
        "max_batch_size": max_batch_size,
    }
    model, lines = judged(model, rows, {"validation": parts.validation, "test": parts.test}, about)
    write_layer_model(output, model)
    gpus = f"{len(facts)} GPU{'s' * (len(facts) > 1)}: {', '.join(facts)}"
    click.echo(f"{output}: {layer} layers, recipe {recipe}, {gpus}")
    for line in lines:
        click.echo(line)


def chosen(table: LayerTable, gpus: str, max_batch_size: int | None) -> LayerTable:
    """The rows of the GPUs named and up to a batch size; InputError where a GPU has no rows."""
    import numpy as np

    from lolat.errors import InputError
    from lolat.mlp.devices import key
    from lolat.units import plain

    keep = np.ones(len(table), bool)
    names = dict.fromkeys(table["gpu"].tolist())
    if gpus.strip().lower() != "all":
        wanted = [name.strip() for name in gpus.split(",") if name.strip()]
        there = {key(name) for name in names}
        missing = [name for name in wanted if key(name) not in there]
        if missing or not wanted:
            raise InputError(
                f"--gpus {plain(gpus)}: no rows of {plain(', '.join(missing)) or 'no GPU'}; the table has "
                f"{', '.join(map(plain, names))}: name some of them, or all"
            )
        kept = {key(name) for name in wanted}
        of_gpu = {name: key(name) in kept for name in names}
        keep &= np.array([of_gpu[name] for name in table["gpu"].tolist()])
    if max_batch_size is not None:
        keep &= table["batch_size"] <= max_batch_size
    if not keep.any():
        raise InputError(
            f"no rows with a batch size of at most {max_batch_size}; give a larger --max-batch-size"
        )
    return table.select(keep)


def judged(
    model: LayerModel, rows: LayerTable, parts: Mapping[str, Any], about: Mapping[str, Any]
) -> tuple[LayerModel, list[str]]:
    """The model with its errors on rows left out and where it is from, and the table that shows them."""
    import datetime
    import importlib.metadata
    import platform

    from lolat import __version__
    from lolat.mlp.evaluation import evaluate

    found = {name: evaluate(model, rows.select(part)) for name, part in parts.items()}
    versions = {"lolat": __version__, "python": platform.python_version()}
    for package in ("numpy", "keras", "tensorflow"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    training = {
        **model.training,
        **about,
        "versions": versions,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "validation": found["validation"].all.to_dict(),
    }
    errors = found["test"].to_dict()
    return replace(model, training=training, errors=errors), [
        "",
        "Errors on rows left out of training:",
        *found["test"].lines(),
    ]
