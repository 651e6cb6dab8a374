"""The tables of docs/results/training-devices.md and its figure: a MirroredStrategy study.

    python benchmarks/training_devices.py DATA [--update PAGE] [--figure FIGURE.svg]

DATA is a folder with cccis2020_epochs.csv, cccis2020_layers.csv and
cccis2020_patch_camelyon_predicted.csv. Everything is computed anew in a second; nothing is trained.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.pages import update as update_page  # noqa: E402
from benchmarks.replicas import scaling, study, study_layers  # noqa: E402


@click.command()
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--update", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--figure", type=click.Path(dir_okay=False, path_type=Path))
def main(data: Path, update: Path | None, figure: Path | None) -> None:
    """Print the tables; --update puts them into a page, --figure draws the curves."""
    epochs = study.Epochs.read(data)
    tables = {
        "splits": list(study.splits_table(epochs)),
        "series": list(study.series_table(epochs)),
        "coefficients": list(study.coefficients_table(epochs)),
        "study": list(study_layers.study_table(data, epochs)),
        "layers": list(study_layers.layers_table(data, epochs)),
        "scaling": list(scaling.scaling_table(epochs)),
    }
    for name, lines in tables.items():
        click.echo("\n".join([f"{name}:", *lines, ""]))
    if update is not None:
        update_page(update, tables)
    if figure is not None:
        scaling.draw(epochs, figure)
        click.echo(f"drawn: {figure}")


if __name__ == "__main__":
    main()
