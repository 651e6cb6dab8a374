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
    help="The model file to write.",
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
