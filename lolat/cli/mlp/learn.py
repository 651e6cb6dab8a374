"""`lolat mlp learn`: random layers measured on this device, and a layer model trained on them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from lolat.cli.errors import say
from lolat.cli.mlp.options import devices_option
from lolat.errors import InputError, MissingPackageError
from lolat.mlp.recipe import RECIPES
from lolat.mlp.table import LAYERS

BACKENDS = ("tensorflow", "torch")
USUAL = "tensorflow"  # the backend that the default name of a model file does not mention


@click.command()
@click.argument("device", type=click.Choice(["cpu", "gpu"]), metavar="{cpu|gpu}")
@click.option("--points", type=click.IntRange(min=20), default=2000, show_default=True, metavar="N",
              help="How many layers.")  # fmt: skip
@click.option("--layer", type=click.Choice(LAYERS), default="convolution", show_default=True,
              help="Of which kind.")  # fmt: skip
@click.option("--backend", type=click.Choice(BACKENDS),
              help="What runs them. If not given: tensorflow on a CPU, torch on a GPU, or what is there "
              "instead.")  # fmt: skip
@click.option("--output", type=click.Path(path_type=Path),
              help="The layer model; models/local/mlp/<device>-<layer>.json (or your data folder) if not "
              "given.")  # fmt: skip
@click.option("--csv", "table", type=click.Path(path_type=Path),
              help="The measured layers; beside the model if not given. FILE.devices.json has the device's "
              "facts and all raw times.")  # fmt: skip
@click.option("--recipe", type=click.Choice(tuple(RECIPES)), default="best", show_default=True,
              help="paper: as published in 2018.")  # fmt: skip
@click.option("--most-gmacs", type=click.FloatRange(min=0, min_open=True), metavar="G",
              help="No layer of more work than that: multiply-accumulates, 64 for each number read or "
              "written, all three times with backward. On a CPU 1 if not given.")  # fmt: skip
@devices_option
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, metavar="N")
@click.option("--restart", is_flag=True, help="Throw away what an interrupted run measured.")
@click.pass_context
def learn(
    ctx: click.Context,
    /,
    device: str,
    points: int,
    layer: str,
    backend: str | None,
    output: Path | None,
    table: Path | None,
    recipe: str,
    most_gmacs: float | None,
    devices: str | None,
    seed: int,
    restart: bool,
) -> None:
    """Measure random layers on this device, forward only and trained, and train a layer model on them.

    A run that is interrupted goes on where it was when the same command is given again.
    """
    from lolat.cli.learn import interruptible
    from lolat.cli.mlp.fit import fit
    from lolat.cli.progress import progress
    from lolat.mlp.devices import read_devices
    from microbench.device_facts import device_facts
    from microbench.learn_layers import gpu_name, measure_layers, write_csv, write_record
    from microbench.random_layers import MOST_WORK, draw

    started = time.monotonic()
    given = read_devices(devices) if devices else {}
    backend = _backend(device, backend)
    output, table = _files(device, layer, backend, output, table)
    record = table.with_name(table.name + ".devices.json")
    journal_path = output.with_name(output.name + ".journal.jsonl")
    most_work = MOST_WORK[device] if most_gmacs is None else 1e9 * most_gmacs
    layers = draw(layer, points, seed, most_work)

    def check(where: Mapping[str, Any]) -> None:
        """A GPU without facts is refused before it is measured."""
        if device != "cpu":
            device_facts(device, gpu_name(device, where), given)

    with interruptible(journal_path):
        with progress() as bar:
            measured = measure_layers(
                backend, device, layers, journal_path, time.time(), restart, bar, check=check
            )
        with contextlib.closing(measured.journal):
            facts = device_facts(device, gpu_name(device, measured.environment), given)
            how = {
                "kind": layer, "points": points, "seed": seed, "most_work_macs": most_work,
                "seconds": round(time.monotonic() - started, 1),
            }  # fmt: skip
            write_csv(table, measured.table)
            write_record(record, measured, facts, how)
            for remark in measured.warnings:
                say(f"warning: {remark}")
            say(
                f"{len(measured.table)} {layer} layers are in {table}, the facts of {facts.name} and "
                f"raw times in {record}"
            )
            ctx.invoke(
                fit, table=str(table), layer=layer, recipe=recipe, devices=str(record), output=output,
                seed=seed, restart=restart,
            )  # fmt: skip
            measured.journal.remove()


def _backend(device: str, name: str | None) -> str:
    """The backend to measure with; MissingPackageError or DeviceError where there is none that trains."""
    from microbench import backends
    from microbench.backends.choice import pick

    if name is not None:
        return name
    found, remark = pick(device, ())
    if found not in backends.LAYER_STEPS:
        raise MissingPackageError(
            f"{found} is installed, but runs no backward pass; install one that does, for example with: "
            "pip install 'lolat[tensorflow]'"
        )
    if remark:
        say(remark)
    return found


def _files(
    device: str, layer: str, backend: str, output: Path | None, table: Path | None
) -> tuple[Path, Path]:
    """(the model, the table): where they go, and that they can be written there."""
    from lolat.cli.learn import check_writable
    from lolat.places import local_folder
    from microbench import environment

    if output is None:
        label = f"cpu {environment.device_label(device)}" if device == "cpu" else device
        with_what = "" if backend == USUAL else f" {backend}"
        # In a folder of its own: what is in local/ itself are models of networks.
        output = local_folder() / "mlp" / f"{environment.slug(f'{label}{with_what} {layer}')}.json"
    check_writable(output)
    if table is None:
        return output, output.with_suffix(".csv")
    try:
        check_writable(table)
    except InputError as error:
        text = str(error).replace("--output", "--csv").replace("JSON file", "CSV file")
        raise InputError(text) from None
    if table.resolve() == output.resolve():
        raise InputError(f"--csv and --output are both {table}; expected two files")
    return output, table
