"""`lolat nas predict`: the latencies of many networks of a space."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import click

from lolat.cli.options import json_option
from lolat.errors import InputError


@click.command()
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("archs", metavar="ARCHS", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="The CSV table to write."
)
@click.option(
    "--coverage",
    type=float,
    default=None,
    metavar="C",
    help="Also the columns latency_low_ms and latency_high_ms, between which a reading is so often, "
    "such as 0.9.",
)
@json_option
def predict(model: Path, archs: Path, output: Path, coverage: float | None, as_json: bool) -> None:
    """Predict the networks in ARCHS by MODEL, which `lolat nas fit` wrote.

    ARCHS: a CSV table (or .csv.gz) with the column arch. The table that is written has the columns
    arch and latency_ms, a row for each of ARCHS in the same order.
    """
    from lolat.nas.few.nas_file import read, write_text
    from lolat.nas.few.samples import read_archs

    if coverage is not None and not 0.0 < coverage < 1.0:
        raise InputError(
            f"--coverage {coverage:g}: expected a number above 0 and below 1, such as 0.9"
        )
    found = read(model)
    try:
        texts, rows = read_archs(archs, found.terms)
    except InputError as error:
        raise InputError(f"{error} ({model} is a model of the space {found.space})") from error
    columns = {"latency_ms": found.latency_ms(rows)}
    if coverage is not None:
        low, high = found.interval_ms(rows, coverage)
        columns |= {"latency_low_ms": low, "latency_high_ms": high}
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["arch", *columns])
    for arch, *values in zip(texts, *(c.tolist() for c in columns.values()), strict=True):
        writer.writerow([arch, *(f"{value:.7g}" for value in values)])
    write_text(output, text.getvalue())
    if as_json:
        told = {"output": str(output), "space": found.space, "networks": len(texts)}
        click.echo(json.dumps(told))
    else:
        click.echo(f"written: {output}, {len(texts)} networks of {found.space}")
