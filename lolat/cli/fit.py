"""`lolat fit`: a model from points that somebody has measured already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lolat.cli.errors import say


@click.command()
@click.argument("points", metavar="POINTS", type=click.Path())
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The model file to write.",
)
def fit(points: str, output: Path) -> None:
    """Fit POINTS: a model file (fitted again) or a CSV table, named *.csv.

    CSV columns: acts, inp, flops, latency_ms, and where known traffic, weights, ops, batch_size,
    name.
    """
    from lolat.cli.learn import check_writable
    from lolat.learning import model_document
    from lolat.model_file import write
    from lolat.report.text import learned

    check_writable(output)
    document = model_document(output.stem, *_points(points))
    write(output, document)
    for remark in document["warnings"]:
        say(f"warning: {remark}")
    for line in learned(document, str(output)):
        click.echo(line)


def _points(path: str) -> tuple[str, list[Any], dict[str, Any], dict[str, Any], list[str]]:
    """(device, points, environment, noise, warnings) of a model file or a table."""
    from lolat.errors import ModelFileError
    from lolat.model_file import NotJsonError, read
    from lolat.places import find_model
    from lolat.points import Point, read_csv

    if path.lower().endswith(".csv"):
        where = {"device": "unknown", "source": Path(path).name}
        return "unknown (from a table)", read_csv(path), where, {}, []
    found = find_model(path)
    try:
        document = read(found)
    except NotJsonError as error:
        raise ModelFileError(f"{error}, or a CSV table, which must be named *.csv") from None
    if not document["points"]:
        raise ModelFileError(f"{found} has no points to fit; expected a model that was measured")
    points = [Point.from_dict(p) for p in document["points"]]
    where, noise = document["environment"], document["noise"]
    return document["device"], points, where, noise, document.get("warnings", [])
