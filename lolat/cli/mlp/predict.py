"""`lolat mlp predict`: the time of every layer in a table."""

from __future__ import annotations

import gzip
from pathlib import Path

import click

from lolat.cli.errors import say
from lolat.cli.mlp.options import devices_option, model_argument, table_argument

COLUMN = "predicted_ms"


@click.command()
@model_argument
@table_argument
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The CSV to write, gzipped where it is named *.gz.",
)
@devices_option
def predict(model: str, table: str, output: Path, devices: str | None) -> None:
    """Predict the rows of CSV: the same rows in order, with a column predicted_ms (milliseconds)."""
    from lolat.cli.learn import check_writable
    from lolat.mlp.devices import read_devices
    from lolat.mlp.layer_model import read_layer_model
    from lolat.mlp.table import parse
    from lolat.mlp.text_table import read_text
    from lolat.model_file import write_bytes

    check_writable(output)
    given = read_devices(devices) if devices else None
    loaded = read_layer_model(model)
    text = read_text(table)
    rows = parse(text, loaded.layer, times=False)
    times = loaded.predict(rows, given)
    outside = loaded.outside(rows)
    if outside:
        say(f"warning: {outside}")
    if COLUMN in text.names:
        say(
            f"warning: {text.source} has a column {COLUMN} already; {output} has the new one instead"
        )
    content = text.with_column(COLUMN, (f"{t:.6g}" for t in times.tolist())).encode()
    write_bytes(output, gzip.compress(content, mtime=0) if output.suffix == ".gz" else content)
    click.echo(f"{output}: {len(rows):,} row{'s' * (len(rows) != 1)}")
