"""`lolat mlp import`: tables out of the raw files behind Justus et al. 2018."""

from __future__ import annotations

from pathlib import Path

import click

from lolat.cli.errors import say


@click.command("import")
@click.argument("folder", metavar="RAW_DIR", type=click.Path())
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="Where to write convolution.csv and dense.csv.",
)
def import_raw(folder: str, output: Path) -> None:
    """Read RAW_DIR/GPU/run/benchmark_*.pkl and write one CSV per kind of layer into DIR.

    The files are old pandas pickles. Only the few types of a data frame are read out of them; a file
    that asks for anything else is refused, and nothing is written.
    """
    from lolat.cli.progress import progress
    from lolat.errors import InputError
    from lolat.mlp import importing
    from lolat.model_file import write_bytes

    if output.exists() and not output.is_dir():
        raise InputError(
            f"--output {output} is a file; expected a folder, made where it is not there"
        )
    with progress() as shown:
        shown.start("files", importing.raw_files(folder))
        found = importing.import_raw(folder, shown.step)
    for table in found:
        path = output / f"{table.layer}.csv"
        write_bytes(path, table.to_csv().encode())
        click.echo(
            f"{path}: {len(table.rows):,} of {table.read:,} rows, from {table.files} "
            f"file{'s' * (table.files != 1)}"
        )
        for reason, count in table.dropped.items():
            say(f"{table.layer}: {count:,} row{'s' * (count != 1)} left out: {reason}")
        if not table.dropped:
            click.echo("  no row there twice, none impossible")
