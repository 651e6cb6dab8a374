"""The tables of docs/results/index.md: `lolat mlp` beside Justus et al. 2018, on the authors' data.

    python benchmarks/justus2018.py DATA --table NAME [--update docs/results/index.md]

DATA is a folder with justus2018_convolution.csv.gz, justus2018_dense.csv.gz and
justus2018_vgg16_v100.csv. Every training that a table needs is done once and what it came to is kept in
--results FILE; a run that is killed goes on where it was. `--no-train` shows what is known.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
# The networks are so small that a second thread costs more than it brings.
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")

from benchmarks.justus.tables import RECIPES, TABLES
from benchmarks.justus.trainings import Data, Results
from benchmarks.pages import update as update_page
from lolat.cli.common import progress


@click.command()
@click.argument("data", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--table", "name", type=click.Choice(tuple(TABLES)), required=True)
@click.option("--recipe", "recipes", type=click.Choice(RECIPES), multiple=True, default=RECIPES)
@click.option("--seeds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option(
    "--results",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("justus2018-results.json"),
    show_default=True,
    help="What trainings came to.",
)
@click.option("--update", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--no-train", is_flag=True, help="Only what is known already.")
def main(
    data: Path,
    name: str,
    recipes: tuple[str, ...],
    seeds: int,
    results: Path,
    update: Path | None,
    no_train: bool,
) -> None:
    """Print a table, and with --update put it between its marks in that page."""
    table, shared, known = TABLES[name], Data(data), Results(results)
    if not no_train:
        with progress() as shown:
            for recipe in recipes:
                for task in table.tasks:
                    known.train(task, recipe, seeds, shared, shown)
    lines = list(table.lines(known, shared))
    for line in lines:
        click.echo(line)
    if update is not None:
        update_page(update, {name: lines})


if __name__ == "__main__":
    main()
