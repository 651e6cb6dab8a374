"""`lolat learn` and `learn_model.py`: measure this device, fit, write the model file."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import click

from lolat.cli.errors import INTERRUPTED, run, say
from lolat.errors import InputError


@click.command()
@click.argument("device", type=click.Choice(["cpu", "gpu"]))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="The model file; models/local/<device>.json (or your data folder) if not given.",
)
@click.option("--backend", default="tensorflow", show_default=True, help="What runs the blocks.")
@click.option("--restart", is_flag=True, help="Throw away what an interrupted run measured.")
def learn(device: str, output: Path | None, backend: str, restart: bool) -> None:
    """Measure about a hundred predefined blocks on this device and fit a model: a few minutes.

    A run that is interrupted goes on where it was when the same command is given again.
    """
    from lolat.cli.progress import progress
    from lolat.learning import model_document
    from lolat.model_file import write
    from lolat.places import local_folder
    from microbench import backends, environment
    from microbench.learn import measure_blocks

    backends.check(backend)
    started = time.monotonic()
    if output is None:  # what a GPU is called is not known before the backend has started
        name = f"cpu {environment.device_label(device)}" if device == "cpu" else device
        output = local_folder() / f"{environment.slug(name)}.json"
    check_writable(output)
    journal_path = output.with_name(output.name + ".journal.jsonl")
    try:
        with progress() as bar:
            points, where, noise, warnings, journal = measure_blocks(
                backend, device, journal_path, time.time(), restart, bar
            )
        where["seconds"] = round(time.monotonic() - started, 1)
        label = environment.device_label(device, where.get("device_name"))
        document = model_document(output.stem, label, points, where, noise, warnings)
        write(output, document)
    except KeyboardInterrupt:
        say(
            f"interrupted; what was measured is in {journal_path}, give the same command again to "
            "go on"
            if journal_path.exists()
            else "interrupted before anything was measured; give the same command again"
        )
        raise click.exceptions.Exit(INTERRUPTED) from None
    journal.remove()
    for remark in warnings:
        say(f"warning: {remark}")
    from lolat.report.text import learned

    for line in learned(document, str(output)):
        click.echo(line)


def check_writable(output: Path) -> None:
    """InputError now rather than after minutes of measuring, if `output` cannot be written."""
    folder = output.parent
    try:
        if output.is_dir():
            raise InputError(f"--output {output} is a folder; expected the name of a JSON file")
        if output.exists() and not output.is_file():
            raise InputError(
                f"--output {output} is not a regular file; expected the name of a JSON file"
            )
        if output.exists() and not os.access(output, os.W_OK):
            raise InputError(f"no permission to write {output}; give --output elsewhere")
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"cannot write {output}: {error.strerror}; give --output elsewhere"
        ) from error
    if not os.access(folder, os.W_OK):
        raise InputError(f"no permission to write in {folder}; give --output elsewhere")


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point of `learn_model.py`."""
    return run(learn, arguments, "learn_model.py")
