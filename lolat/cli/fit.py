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
    """Fit POINTS: a model file (fitted again, with what it knows of training) or a CSV table, named *.csv.

    CSV columns: acts, inp, flops, latency_ms, and where known traffic, weights, ops, batch_size,
    name.
    """
    from lolat.cli.learn import check_writable
    from lolat.learning import model_document
    from lolat.model_file import write
    from lolat.report.text import learned

    check_writable(output)
    given, training = _points(points)
    document = model_document(output.stem, *given) | training
    write(output, document)
    for remark in document["warnings"]:
        say(f"warning: {remark}")
    for line in learned(document, str(output)):
        click.echo(line)


Given = tuple[str, list[Any], dict[str, Any], dict[str, Any], list[str]]


def _points(path: str) -> tuple[Given, dict[str, Any]]:
    """(device, points, environment, noise, warnings) of a model file or a table; {"training": ...}, if any.

    What a model file knows of training is fitted again on its own points.
    """
    from lolat.errors import ModelFileError
    from lolat.model_file import NotJsonError, read
    from lolat.places import find_model
    from lolat.points import Point, read_csv
    from lolat.training.learning import refitted

    if path.lower().endswith(".csv"):
        where = {"device": "unknown", "source": Path(path).name}
        return ("unknown (from a table)", read_csv(path), where, {}, []), {}
    found = find_model(path)
    try:
        document = read(found)
    except NotJsonError as error:
        raise ModelFileError(f"{error}, or a CSV table, which must be named *.csv") from None
    if not document["points"]:
        raise ModelFileError(f"{found} has no points to fit; expected a model that was measured")
    points = [Point.from_dict(p) for p in document["points"]]
    where, noise = document["environment"], document["noise"]
    given = document["device"], points, where, noise, document.get("warnings", [])
    if "training" not in document:
        return given, {}
    return given, {"training": refitted(document["training"], str(found))}
