"""`lolat suggest`: which operations to time on a device of which little is known."""

from __future__ import annotations

from pathlib import Path

import click


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
def suggest(
    output: str, rows: int, device: str | None, facts: str | None, pool: str | None
) -> None:
    """Suggest which operations to time: those that tell most about a GPU, the most telling first.

    \b
    lolat suggest --facts DEVICES.csv --device l4 --output todo.csv
    python examples/time_operations.py operations.csv --table todo.csv
    lolat fit operations.csv --facts DEVICES.csv --device l4 --output l4.json
    """
    from lolat.cli.learn import check_writable
    from lolat.devices.from_tables import read_facts
    from lolat.devices.operations import read_operations
    from lolat.devices.suggest import MIDDLING, drawn, suggested, table
    from lolat.errors import InputError
    from lolat.model_file import write_bytes

    check_writable(Path(output))
    if (facts is None) != (device is None):
        raise InputError("--facts and --device go together: a table of data sheets, and its row")
    known = MIDDLING if facts is None or device is None else read_facts(facts, device)
    candidates = drawn() if pool is None else read_operations(pool)
    chosen = [candidates[i].row for i in suggested(candidates, rows, known)]
    write_bytes(output, table(chosen).encode())
    click.echo(
        f"written: {output}, {len(chosen)} operations\n"
        f"Next: python examples/time_operations.py operations.csv --table {output}"
    )
