"""`lolat fit`: a model from points that somebody has measured already."""

from __future__ import annotations

from pathlib import Path

import click

import lolat
from lolat.cli.common import check_writable, counting, json_option, progress, say, say_json


@click.command()
@click.argument("tables", metavar="[TABLE]...", nargs=-1, type=click.Path())
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="MODEL",
    help="The device's model file: made, or its latencies of inference are added or replaced.",
)
@click.option("--device", metavar="NAME", help="What the device is called, and its row in --facts.")
@click.option(
    "--facts",
    type=click.Path(),
    metavar="DEVICES.csv",
    help="Data sheets: device, multiprocessors, fp32_matrix_gflops, bandwidth_gb_s.",
)
@click.option(
    "--skip",
    is_flag=True,
    help="Leave out rows that cannot be used; else the first one is an error.",
)
@json_option
def fit(
    tables: tuple[str, ...],
    output: Path,
    device: str | None,
    facts: str | None,
    skip: bool,
    as_json: bool,
) -> None:
    """Fit TABLE: a model file (fitted again, with what it knows of training) or CSV tables (.csv, .csv.gz).

    Blocks: acts, inp, flops, latency_ms, and where known traffic, weights, ops, batch_size, name.

    Operations timed one by one: op and latency_ms; linear and bmm have batch, m, n, k, conv has
    batch, in_channels, out_channels, kernel, input_size, stride, padding, all others rows, width.

    Whole networks: network, batch_size, latency_ms, and where known input_size or sequence_length, dtype,
    channels_last, compiled; also as timm's benchmark.py writes them. Several tables make one device.

    Without TABLE: from the data sheet of --device in --facts alone.
    """
<<<<<<< HEAD
    from lolat.cli.common import check_writable
    from lolat.io.tables import is_table
    from lolat.model.file import write
    from lolat.model.learning import model_document
    from lolat.model.sections import with_sections
    from lolat.report.text import learned

    check_writable(output)
    kinds = {t: _kind(t) if is_table(t) else MODEL for t in tables}
    if not tables:
        document = _of_facts(output.stem, device, facts)
    elif {OPERATIONS, NETWORKS} & set(kinds.values()):
        document = _of_tables(kinds, output.stem, device, facts, skip)
    else:
        if len(tables) > 1:
            raise InputError(
                f"{len(tables)} tables of blocks; expected one, or tables of operations or networks"
            )
        if facts is not None:
            raise InputError(
                "--facts is for tables of operations and networks; blocks say all that is needed"
            )
        given, sections = _points(tables[0])
        named = (given[0] if device is None else device, *given[1:])
        document = model_document(output.stem, *named) | sections
    document = with_sections(output, document)
    write(output, document)
    for remark in document["warnings"]:
        say(f"warning: {remark}")
    for line in learned(document, str(output)):
        click.echo(line)


MODEL, BLOCKS, OPERATIONS, NETWORKS = "model", "blocks", "operations", "networks"


def _kind(path: str) -> str:
    """What a table is of."""
    from lolat.devices.tables import columns_of, is_of_networks, is_of_operations

    columns = columns_of(path)
    if is_of_operations(columns):
        return OPERATIONS
    return NETWORKS if is_of_networks(columns) else BLOCKS


def _of_facts(name: str, device: str | None, facts: str | None) -> dict[str, Any]:
    """The model file of a device of which nothing but the data sheet is known."""
    from lolat.devices.from_tables import facts_document, read_facts

    if device is None or facts is None:
        raise InputError(
            "nothing to fit: give tables, a model file, or --facts DEVICES.csv with --device NAME"
        )
    source = {"device": "unknown", "source": Path(facts).name, "framework": "torch"}
    return facts_document(name, f"{device} (data sheet)", read_facts(facts, device), source)


def _of_tables(
    kinds: dict[str, str], name: str, device: str | None, facts: str | None, skip: bool
) -> dict[str, Any]:
    """The model file of a device from tables of operations, networks, and blocks beside them."""
    from lolat.devices.from_tables import Timed, read_facts, tables_document
    from lolat.devices.tables import read_operations
    from lolat.fitting.points import read_csv

    if facts is not None and device is None:
        raise InputError("--facts says what devices are like; give --device NAME, one of its rows")
    if odd := [path for path, kind in kinds.items() if kind == MODEL]:
        raise InputError(f"{odd[0]} is no table, as the others are; expected a model file alone")
    known = None if facts is None else read_facts(facts, str(device))
    of = {kind: [p for p, k in kinds.items() if k == kind] for kind in kinds.values()}
    operations = [row for path in of.get(OPERATIONS, ()) for row in read_operations(path)]
    networks, mode = _networks(of.get(NETWORKS, []), device, skip)
    blocks = [point for path in of.get(BLOCKS, ()) for point in read_csv(path)]
    counted = [f"{len(operations)} operations"] * bool(operations)
    counted += [f"{len(networks)} networks"] * bool(networks)
    source = {
        "device": "unknown",
        "source": ", ".join(Path(t).name for t in kinds),
        "framework": "torch",
        "half": mode.product_bytes < 4,
        "mode": str(mode),
    }
    shown = f"{device or 'unknown'} (from {' and '.join(counted)}, {mode})"
    timed = Timed(operations, networks, mode)
    return tables_document(name, shown, timed, known, source, blocks)


def _networks(paths: list[str], device: str | None, skip: bool) -> tuple[list[Any], Any]:
    """([(row, its counts)], how they were run) of tables of networks; what is left out is said."""
    from lolat.cli.common import counting, progress
    from lolat.devices.from_tables import refuse_contradictions, usual_mode
    from lolat.devices.tables import counts_of, read_networks
    from lolat.errors import LolatError

    tables = [read_networks(path, device, skip) for path in paths]
    mode = usual_mode([row for table in tables for row in table.rows])
    found = []
    for table in tables:
        rows = [row for row in table.rows if row.mode.inference == mode]
        for row in table.rows:
            if row.mode.inference != mode:
                table.skip(f"run in another way than most ({row.mode}; most: {mode})")
        if not skip:
            refuse_contradictions(rows)
        with progress() as bar:
            known = counts_of(rows, counting(bar))
        for row, counts in zip(rows, known, strict=True):
            if not isinstance(counts, LolatError):
                found.append((row, counts))
            elif skip:
                table.skip(f"{row.name}: {counts}")
            else:
                raise InputError(f"{row.where}: {counts}; --skip leaves such rows out")
        if not rows:
            raise table.nothing()
        for reason, number in table.skipped.items():
            say(f"{number} rows of {table.path} left out: {reason}")
    return found, mode


Given = tuple[str, list[Any], dict[str, Any], dict[str, Any], list[str]]


def _points(path: str) -> tuple[Given, dict[str, Any]]:
    """(device, points, environment, noise, warnings) of a model file or a table; its other sections.

    What a model file knows of training is fitted again on its own points.
    """
    from lolat.errors import ModelFileError
    from lolat.fitting.points import Point, read_csv
    from lolat.io.paths import find_model
    from lolat.io.tables import is_table
    from lolat.model.file import SECTIONS, NotJsonError, read
    from lolat.model.sections import OF_INFERENCE, lacks
    from lolat.training.learning import refitted

    if is_table(path):
        where = {"device": "unknown", "source": Path(path).name}
        return ("unknown (from a table)", read_csv(path), where, {}, []), {}
    found = find_model(path)
    try:
        document = read(found)
    except NotJsonError as error:
        raise ModelFileError(f"{error}, or a CSV table, which must be named *.csv") from None
    if "predictors" not in document:
        raise lacks(document, str(found), OF_INFERENCE)
    if "kernels" in document["predictors"]:
        source = document["environment"].get("source", "its table")
        raise InputError(f"{found} was fitted to tables; give them again ({source}), not the model")
    if not document["points"]:
        raise ModelFileError(f"{found} has no points to fit; expected a model that was measured")
    points = [Point.from_dict(p) for p in document["points"]]
    where, noise = document["environment"], document["noise"]
    given = document["device"], points, where, noise, document.get("warnings", [])
    sections = {section: document[section] for section in SECTIONS if section in document}
    if "training" in document:
        sections["training"] = refitted(document["training"], str(found))
    return given, sections
=======
    from lolat.report.text import learned

    check_writable(output)
    with progress() as bar:
        made = lolat.fit(
            tables, output, name=device, facts=facts, skip=skip, said=counting(bar), warn=say
        )
    for remark in made.document["warnings"]:
        say(f"warning: {remark}")
    if as_json:
        say_json("model-summary", made.to_dict())
        return
    for line in learned(made.document, str(output)):
        click.echo(line)
>>>>>>> main


# ---- `lolat suggest`: which operations to time on a device of which little is known.


@click.command()
@click.option(
    "--output",
    type=click.Path(dir_okay=False),
    required=True,
    metavar="TODO.csv",
    help="The table of operations to write, for examples/time_operations.py --table.",
)
@click.option(
    "--rows",
    type=click.IntRange(min=1, max=200),
    default=20,
    show_default=True,
    metavar="N",
    help="How many operations.",
)
@click.option("--device", metavar="NAME", help="The device's row in --facts.")
@click.option("--facts", type=click.Path(), metavar="DEVICES.csv", help="Data sheets, as of `fit`.")
@click.option(
    "--from",
    "pool",
    type=click.Path(),
    metavar="OPERATIONS.csv",
    help="Choose from the rows of this table; if not given, from sizes as networks have them.",
)
@json_option
def suggest(
    output: str, rows: int, device: str | None, facts: str | None, pool: str | None, as_json: bool
) -> None:
    """Suggest which operations to time: those that tell most about a GPU, the most telling first.

    \b
    lolat suggest --facts DEVICES.csv --device l4 --output todo.csv
    python examples/time_operations.py operations.csv --table todo.csv
    lolat fit operations.csv --facts DEVICES.csv --device l4 --output l4.json
    """
    check_writable(Path(output))
    found = lolat.suggest(output, count=rows, name=device, facts=facts, among=pool)
    if as_json:
        say_json("suggestion", found.to_dict())
        return
    click.echo(
        f"written: {output}, {len(found.operations)} operations\n"
        f"Next: python examples/time_operations.py operations.csv --table {output}"
    )
