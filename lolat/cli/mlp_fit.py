"""`lolat mlp fit`, and `lolat mlp learn`, which measures layers first: training a layer model."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lolat.cli import common
from lolat.cli.mlp import facts_of_gpus_option, sha256, table_argument
from lolat.cli.parsing import Number
from lolat.errors import InputError, MissingPackageError
from lolat.mlp.recipes import RECIPES
from lolat.mlp.table import LAYERS
from lolat.units import plain, plural

if TYPE_CHECKING:
    from lolat.mlp.devices import Device
    from lolat.mlp.layer_model import Evaluation, LayerModel
    from lolat.mlp.table import LayerTable
    from lolat.mlp.training import Split
    from microbench.learn_layers import MeasuredLayers

# ---- `lolat mlp fit`: a layer model from measured layers.


layer_option = common.option("--layer", type=click.Choice(LAYERS), help="The kind of the layers.")
recipe_option = common.option("--recipe", type=click.Choice(tuple(RECIPES)), default="best",
                       show_default=True, help="How it is trained; paper: as in 2018.")  # fmt: skip


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

    CSV, gzipped or not, has a row per measured layer and GPU (columns: docs/reference/tables.md).
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
    told = {"output": str(output), "layer": layer, "recipe": recipe, **errors.to_dict()}
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
    return replace(model, training=training, errors=test.to_dict()), test


# ---- `lolat mlp learn`: random layers measured on this device, and a layer model trained on them.

BACKENDS = ("tensorflow", "torch")
USUAL = "tensorflow"  # the backend that the default name of a model file does not mention


@common.command("lolat mlp learn cpu --count 300 --output layers.json")
@common.device_argument()
@common.count_option(
    type=Number("N", whole=True, least=20), default=2000, more="Layers to measure."
)
@layer_option(default="convolution", show_default=True)
@common.backend_option(
    type=click.Choice(BACKENDS),
    more="If not given: tensorflow on a CPU, torch on a GPU, or what is there instead.",
)
@common.output_option(
    more="The layer model; models/local/mlp/<device>-<layer>.json (or your data folder) if not given."
)
@common.csv_option(
    more="The measured layers; beside the model if not given. FILE.devices.json has the device's facts and "
    "all raw times."
)
@recipe_option
@common.option(
    "--max-gmacs", type=Number("GMACS", "10^9 multiply-accumulates", above=0.0),
    help="No layer of more work than that: multiply-accumulates, 64 for each number read or "
    "written, all three times with backward. On a CPU 1 if not given.",
)  # fmt: skip
@facts_of_gpus_option
@common.epochs_option(more="Instead of the recipe's.")
@common.seed_option
@common.restart_option
@common.json_option
@click.pass_context
def learn(
    ctx: click.Context,
    /,
    device: str,
    count: int,
    layer: str,
    backend: str | None,
    output: Path | None,
    csv_file: Path | None,
    recipe: str,
    max_gmacs: float | None,
    facts: str | None,
    epochs: int | None,
    seed: int,
    restart: bool,
    as_json: bool,
) -> None:
    """Measure random layers on this device, forward only and trained, and train a layer model on them.

    A run that is interrupted goes on where it was when the same command is given again.
    """
    from lolat.mlp.devices import read_devices
    from microbench.journal import interruptible
    from microbench.learn_layers import MOST_WORK, device_facts, draw, gpu_name, measure_layers

    started = time.monotonic()
    given = read_devices(facts) if facts else {}
    backend = _backend(device, backend)
    output, table = _files(device, layer, backend, output, csv_file)
    record = table.with_name(table.name + ".devices.json")
    journal_path = output.with_name(output.name + ".journal.jsonl")
    most_work = MOST_WORK[device] if max_gmacs is None else 1e9 * max_gmacs
    layers = draw(layer, count, seed, most_work)

    def check(where: Mapping[str, Any]) -> None:
        """A GPU without facts is refused before it is measured."""
        if device != "cpu":
            device_facts(device, gpu_name(device, where), given)

    with interruptible(journal_path):
        with common.progress() as bar:
            measured = measure_layers(
                backend, device, layers, journal_path, time.time(), restart, bar, check=check
            )
        with contextlib.closing(measured.journal):
            own = device_facts(device, gpu_name(device, measured.environment), given)
            how = {
                "kind": layer, "points": count, "seed": seed, "most_work_macs": most_work,
                "seconds": round(time.monotonic() - started, 1),
            }  # fmt: skip
            _keep(measured, table, record, own, how)
            ctx.invoke(
                fit, table=str(table), layer=layer, recipe=recipe, facts=str(record), output=output,
                epochs=epochs, seed=seed, restart=restart, as_json=as_json,
            )  # fmt: skip
            measured.journal.remove()


def _keep(
    measured: MeasuredLayers, table: Path, record: Path, facts: Device, how: Mapping[str, Any]
) -> None:
    """Write what was measured, and say so."""
    from microbench.learn_layers import write_csv, write_record

    write_csv(table, measured.table)
    write_record(record, measured, facts, how)
    common.warn(measured.warnings)
    common.say(
        f"{len(measured.table)} {how['kind']} layers are in {table}, the facts of {facts.name} and raw "
        f"times in {record}"
    )


def _backend(device: str, name: str | None) -> str:
    """The backend to measure with; MissingPackageError or DeviceError where there is none that trains."""
    from microbench import backends
    from microbench.worker import pick

    if name is not None:
        return name
    picked, remark = pick(device, ())
    if picked not in backends.TRAINING:
        raise MissingPackageError(
            f"{picked} is installed, but runs no backward pass, which TensorFlow, for example, does",
            "tensorflow",
        )
    if remark:
        common.say(remark)
    return picked


def _files(
    device: str, layer: str, backend: str, output: Path | None, table: Path | None
) -> tuple[Path, Path]:
    """(the model, the table): where they go, and that they can be written there."""
    from lolat.io.paths import local_folder
    from microbench import environment

    if output is None:
        label = f"cpu {environment.device_label(device)}" if device == "cpu" else device
        with_what = "" if backend == USUAL else f" {backend}"
        # In a folder of its own: what is in local/ itself are models of networks.
        output = local_folder() / "mlp" / f"{environment.slug(f'{label}{with_what} {layer}')}.json"
    common.check_writable(output)
    if table is None:
        return output, output.with_suffix(".csv")
    try:
        common.check_writable(table)
    except InputError as error:
        text = str(error).replace("--output", "--csv").replace("JSON file", "CSV file")
        raise InputError(text) from None
    if os.path.realpath(table) == os.path.realpath(output):
        raise InputError(f"--csv and --output are both {table}; expected two files")
    return output, table
