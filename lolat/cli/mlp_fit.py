"""`lolat mlp fit`: training a layer model."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lolat.cli import common
from lolat.cli.mlp import facts_of_gpus_option, sha256, table_argument
from lolat.errors import InputError
from lolat.io.results import dict_of, of
from lolat.mlp.layer_model import Evaluation
from lolat.mlp.recipes import RECIPES
from lolat.mlp.table import LAYERS
from lolat.units import plain, plural

if TYPE_CHECKING:
    from lolat.mlp.layer_model import LayerModel
    from lolat.mlp.table import LayerTable
    from lolat.mlp.training import Split

# ---- `lolat mlp fit`: a layer model from measured layers.


layer_option = common.option("--layer", type=click.Choice(LAYERS), help="The kind of the layers.")
recipe_option = common.option("--recipe", type=click.Choice(tuple(RECIPES)), default="best",
                       show_default=True, help="How it is trained; paper: as in 2018.")  # fmt: skip


@dataclass(frozen=True)
class LayerFit:
    """A layer model that was trained: its errors on rows left out, by GPU and by optimizer."""

    KEYS = ("output", "layer", "recipe", *of("errors", *Evaluation.KEYS))

    output: str
    layer: str
    recipe: str
    errors: Evaluation


@common.command(
    "lolat mlp fit layers.csv --layer convolution --output conv.json",
    "lolat mlp fit layers.csv --layer dense --only V100,P100 --output dense.json",
)
@table_argument
@layer_option(required=True)
@recipe_option
@common.only_option(more="All if not given.")
@facts_of_gpus_option
@common.output_option(required=True, more="The layer model's file.")
@common.option(
    "--max-batch-size",
    type=common.WHOLE,
    help="Only rows of at most this batch size (the paper's model of all GPUs: 32).",
)
@common.epochs_option(more="Instead of the recipe's.")
@common.seed_option
@common.restart_option
@common.json_option
def fit(
    table: str,
    layer: str,
    recipe: str,
    only: tuple[str, ...] | None,
    facts: str | None,
    output: Path,
    max_batch_size: int | None,
    epochs: int | None,
    seed: int,
    restart: bool,
    as_json: bool,
) -> None:
    """Train a model on CSV: 80 % of its rows, drawn at random; its errors are of the other rows.

    CSV, gzipped or not, has a row per measured layer and GPU (columns: docs/reference/files.md).
    A run that is killed goes on where it was when the same command is given again.
    """
    from lolat.mlp.devices import DEVICES, known, merged, read_devices
    from lolat.mlp.layer_model import write_layer_model
    from lolat.mlp.recipes import find_recipe
    from lolat.mlp.table import parse, read_text
    from lolat.mlp.training import learn, split

    common.check_writable(output)
    given = merged(DEVICES, read_devices(facts) if facts else {})
    text = read_text(table)
    rows = chosen(parse(text, layer), only, max_batch_size)
    devices = known(rows["gpu"].tolist(), given)
    checkpoint = output.with_name(output.name + ".checkpoint.npz")
    if restart:
        checkpoint.unlink(missing_ok=True)
    elif checkpoint.exists():
        common.say(
            f"{checkpoint} is there: a run on the same rows with the same options goes on from it"
        )
    parts = split(len(rows), seed)
    with common.progress() as shown:
        model = learn(
            rows.select(parts.train),
            find_recipe(recipe),
            devices,
            seed=seed,
            epochs=epochs,
            checkpoint=checkpoint,
            progress=shown,
        )
    about = {
        "table": {"name": Path(table).name, "sha256": sha256(text.content)},
        "gpus": ",".join(only) if only else "all",
        "max_batch_size": max_batch_size,
    }
    model, errors = judged(model, rows, parts, about)
    write_layer_model(output, model)
    checkpoint.unlink(missing_ok=True)
    told = LayerFit(str(output), layer, recipe, errors)
    names = f"{plural(len(devices), 'GPU')}: {', '.join(devices)}"
    head = (f"{output}: {layer} layers, recipe {recipe}, {names}", "")
    lines = (*head, "Errors on rows left out of training:", *errors.lines())
    common.answer("layer-fit", told, as_json, lines)


def chosen(table: LayerTable, only: Sequence[str] | None, max_batch_size: int | None) -> LayerTable:
    """The rows of the GPUs named and up to a batch size; InputError where a GPU has no rows."""
    import numpy as np

    from lolat.mlp.devices import key

    keep = np.ones(len(table), bool)
    names = dict.fromkeys(table["gpu"].tolist())
    if only is not None and only != ("all",):
        there = {key(name) for name in names}
        if missing := [name for name in only if key(name) not in there]:
            raise InputError(
                f"--only {plain(','.join(only))}: no rows of {plain(', '.join(missing))}; the table has "
                f"{', '.join(map(plain, names))}: name some of them, or leave it out"
            )
        kept = {key(name) for name in only}
        keep &= np.isin(table["gpu"], [name for name in names if key(name) in kept])
    if max_batch_size is not None:
        keep &= table["batch_size"] <= max_batch_size
    if not keep.any():
        raise InputError(
            f"no rows with a batch size of at most {max_batch_size}; give a larger --max-batch-size"
        )
    return table.select(keep)


def judged(
    model: LayerModel, rows: LayerTable, parts: Split, about: Mapping[str, Any]
) -> tuple[LayerModel, Evaluation]:
    """The model with its errors on rows left out and where it is from, and the errors themselves."""
    import datetime
    import importlib.metadata
    import platform

    from lolat import __version__
    from lolat.mlp.layer_model import evaluate

    validation, test = (evaluate(model, rows.select(p)) for p in (parts.validation, parts.test))
    versions = {"lolat": __version__, "python": platform.python_version()}
    for package in ("numpy", "keras", "tensorflow"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    training = {
        **model.training,
        **about,
        "versions": versions,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "validation": asdict(validation.all),
    }
    return replace(model, training=training, errors=dict_of(test)), test
