"""`lolat fit`: a model from points that somebody has measured already."""

from __future__ import annotations

from pathlib import Path

import click

import lolat
from lolat.cli import common
from lolat.cli.parsing import Number
from lolat.units import plain


@common.command(
    "lolat fit points.csv --output model.json",
    "lolat fit local timed.csv --output mine.json",
    "lolat fit operations.csv --facts devices.csv --name l4 --output l4.json",
)
@click.argument("tables", metavar="[POINTS]...", nargs=-1, type=click.Path())
@common.output_option(
    required=True, more="The device's model file: made, or its latencies are added or replaced."
)
@common.name_option(
    was="--device", more="Also its row in --facts, and in tables of several devices."
)
@common.facts_option(more="Columns: device, multiprocessors, fp32_matrix_gflops, bandwidth_gb_s.")
@common.option(
    "--skip",
    is_flag=True,
    help="Leave out rows that cannot be used; else the first one is an error.",
)
@common.reading_options
@common.json_option
def fit(
    tables: tuple[str, ...],
    output: Path,
    name: str | None,
    facts: str | None,
    skip: bool,
    as_json: bool,
) -> None:
    """Fit POINTS: a model file (again, with what it knows of training), or CSV tables (.csv, .csv.gz).

    A model file and tables of networks or blocks that you timed on its device: all together.

    Blocks: acts, inp, flops, latency_ms, and where known traffic, weights, ops, batch_size, name.

    Operations timed one by one: op and latency_ms; linear and bmm have batch, m, n, k, conv has
    batch, in_channels, out_channels, kernel, input_size, stride, padding, all others rows, width.

    Whole networks: network, batch_size, latency_ms, and where known input_size or sequence_length, dtype,
    channels_last, compiled; also as timm's benchmark.py writes them. Several tables make one device.

    Without POINTS: from the data sheet of --name in --facts alone.
    """
    from lolat.report.text import learned

    common.check_writable(output)
    with common.progress() as bar:
        made = lolat.fit(
            tables, output, name=name, facts=facts, skip=skip, said=common.counting(bar), warn=common.say,
            progress=bar,
        )  # fmt: skip
    common.warn(made.document["warnings"])
    common.answer("model-summary", made, as_json, learned(made.document, str(output)))


# ---- `lolat suggest`: which operations to time on a device of which little is known.


@common.command(
    "lolat suggest --output todo.csv",
    "lolat suggest --facts devices.csv --name l4 --count 30 --output todo.csv",
)
@common.output_option(
    required=True, more="A table of operations, for examples/time_operations.py --table."
)
@common.count_option(
    was="--rows", type=Number("N", whole=True, least=1, most=200), default=20, more="Operations."
)
@common.name_option(was="--device", more="Its row in --facts.")
@common.facts_option(more="As of `lolat fit`.")
@common.among_option(was="--from", more="From sizes as networks have them, if not given.")
@common.json_option
def suggest(
    output: Path, count: int, name: str | None, facts: str | None, among: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Suggest which operations to time: those that tell most about a GPU, the most telling first.

    \b
    lolat suggest --facts DEVICES.csv --name l4 --output todo.csv
    python examples/time_operations.py operations.csv --table todo.csv
    lolat fit operations.csv --facts DEVICES.csv --name l4 --output l4.json
    """
    common.check_writable(output)
    found = lolat.suggest(output, count=count, name=name, facts=facts, among=among)
    named = plain(str(output))
    lines = (
        f"written: {named}, {len(found.operations)} operations",
        f"Next: python examples/time_operations.py operations.csv --table {named}",
    )
    common.answer("suggestion", found, as_json, lines)
