"""`lolat fit`: a model from points that somebody has measured already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lolat.cli.errors import say
from lolat.errors import InputError


@click.command()
@click.argument("tables", metavar="[TABLE]...", nargs=-1, type=click.Path())
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="The model file to write.",
)
@click.option("--device", metavar="NAME", help="What the device is called, and its row in --facts.")
@click.option(
    "--facts",
    type=click.Path(),
    metavar="DEVICES.csv",
    help="Data sheets: device, multiprocessors, fp32_matrix_gflops, bandwidth_gb_s.",
)
def fit(tables: tuple[str, ...], output: Path, device: str | None, facts: str | None) -> None:
    """Fit TABLE: a model file (fitted again, with what it knows of training) or CSV tables (.csv, .csv.gz).

    Blocks: acts, inp, flops, latency_ms, and where known traffic, weights, ops, batch_size, name.

    Operations timed one by one, of a GPU: op and latency_ms; linear and bmm have batch, m, n, k, conv has
    batch, in_channels, out_channels, kernel, input_size, stride, padding, all others rows, width.

    Without TABLE: from the data sheet of --device in --facts alone.
    """
    from lolat.cli.learn import check_writable
    from lolat.devices.operations import NAMES, columns_of
    from lolat.learning import model_document
    from lolat.model_file import write
    from lolat.points import is_table
    from lolat.report.text import learned

    check_writable(output)
    of_operations = [is_table(t) and bool(set(NAMES) & set(columns_of(t))) for t in tables]
    if not tables:
        document = _of_facts(output.stem, device, facts)
    elif any(of_operations):
        if not all(of_operations):
            other = tables[of_operations.index(False)]
            raise InputError(
                f"{other} is no table of operations, as the others are; fit one kind at a time"
            )
        document = _of_operations(tables, output.stem, device, facts)
    else:
        if len(tables) > 1:
            raise InputError(
                f"{len(tables)} tables of blocks; expected one, or tables of operations"
            )
        if facts is not None:
            raise InputError("--facts is for tables of operations; blocks say all that is needed")
        given, training = _points(tables[0])
        named = (given[0] if device is None else device, *given[1:])
        document = model_document(output.stem, *named) | training
    write(output, document)
    for remark in document["warnings"]:
        say(f"warning: {remark}")
    for line in learned(document, str(output)):
        click.echo(line)


def _of_facts(name: str, device: str | None, facts: str | None) -> dict[str, Any]:
    """The model file of a device of which nothing but the data sheet is known."""
    from lolat.devices.from_operations import facts_document, read_facts

    if device is None or facts is None:
        raise InputError(
            "nothing to fit: give tables, a model file, or --facts DEVICES.csv with --device NAME"
        )
    source = {"device": "unknown", "source": Path(facts).name, "framework": "torch"}
    return facts_document(name, f"{device} (data sheet)", read_facts(facts, device), source)


def _of_operations(
    tables: tuple[str, ...], name: str, device: str | None, facts: str | None
) -> dict[str, Any]:
    """The model file of a device from tables of operations."""
    from lolat.devices.from_operations import operations_document, read_facts
    from lolat.devices.operations import read_operations

    if facts is not None and device is None:
        raise InputError("--facts says what devices are like; give --device NAME, one of its rows")
    known = None if facts is None else read_facts(facts, str(device))
    rows = [row for table in tables for row in read_operations(table)]
    source = {
        "device": "unknown",
        "source": ", ".join(Path(t).name for t in tables),
        "framework": "torch",
    }
    shown = f"{device or 'unknown'} (from {len(rows)} operations)"
    return operations_document(name, shown, rows, known, source)


Given = tuple[str, list[Any], dict[str, Any], dict[str, Any], list[str]]


def _points(path: str) -> tuple[Given, dict[str, Any]]:
    """(device, points, environment, noise, warnings) of a model file or a table; {"training": ...}, if any.

    What a model file knows of training is fitted again on its own points.
    """
    from lolat.errors import ModelFileError
    from lolat.model_file import NotJsonError, read
    from lolat.places import find_model
    from lolat.points import Point, is_table, read_csv
    from lolat.training.learning import refitted

    if is_table(path):
        where = {"device": "unknown", "source": Path(path).name}
        return ("unknown (from a table)", read_csv(path), where, {}, []), {}
    found = find_model(path)
    try:
        document = read(found)
    except NotJsonError as error:
        raise ModelFileError(f"{error}, or a CSV table, which must be named *.csv") from None
    if "kernels" in document["predictors"]:
        source = document["environment"].get("source", "its table")
        raise InputError(
            f"{found} was fitted to operations; give their table again ({source}), not the model"
        )
    if not document["points"]:
        raise ModelFileError(f"{found} has no points to fit; expected a model that was measured")
    points = [Point.from_dict(p) for p in document["points"]]
    where, noise = document["environment"], document["noise"]
    given = document["device"], points, where, noise, document.get("warnings", [])
    if "training" not in document:
        return given, {}
    return given, {"training": refitted(document["training"], str(found))}
