"""`lolat nas suggest`: which networks of a space to measure next."""

from __future__ import annotations

import json
from pathlib import Path

import click

from lolat.cli.errors import say
from lolat.cli.nas.fit import space_option
from lolat.cli.options import json_option


@click.command()
@space_option
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="How many networks.",
)
@click.option(
    "--have",
    type=click.Path(path_type=Path),
    metavar="SAMPLES",
    help="What is measured already (columns arch, latency_ms): which come next.",
)
@click.option(
    "--among",
    type=click.Path(path_type=Path),
    metavar="ARCHS",
    help="Choose from this table only (column arch).",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Another one, other networks.",
)
@click.option(
    "--output", type=click.Path(path_type=Path), help="Also write them to this CSV (column arch)."
)
@json_option
def suggest(
    space: str,
    count: int,
    have: Path | None,
    among: Path | None,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Name the networks whose latencies would tell most about all the others, one a line.

    Measure them, write the latencies beside them, and give the table to `lolat nas fit`. The first of
    them tell most, so a part of them is a good start too.
    """
    from lolat.nas.few.named import space_terms
    from lolat.nas.few.nas_file import write_text
    from lolat.nas.few.samples import read_archs, read_samples
    from lolat.nas.few.suggest import suggest as choose

    terms = space_terms(space)
    samples = None if have is None else read_samples(have, terms, one_network=True)
    given = None if among is None else read_archs(among, terms)[1]
    for remark in samples.remarks if samples is not None else ():
        say(f"warning: {remark}")
    archs = [terms.write(row) for row in choose(terms, count, samples, given, seed)]
    if output is not None:
        write_text(output, "".join(f"{line}\n" for line in ["arch", *archs]))
    if as_json:
        click.echo(json.dumps({"space": space, "archs": archs}))
    else:
        for arch in archs:
            click.echo(arch)
