"""`lolat nas score`: all candidates of a space into Parquet files, on a cluster if need be."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

import click

from lolat.cli.cluster import HERE, Address
from lolat.cli.common import (
    INTERRUPTED,
    Milliseconds,
    batch_option,
    json_option,
    model_argument,
    predictor_option,
    say,
)
from lolat.units import milliseconds

MOST_ROWS = 20


@click.command()
@click.argument("space", metavar="SPACE")
@model_argument
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="DIR",
    help="A folder: a Parquet file for each range of candidates, and _best.csv. With --ray on several "
    "machines, one that they share.",
)
@click.option(
    "--ray", "address", type=Address(), is_flag=False, flag_value=HERE, default=None, metavar="[ADDRESS]",
    help="With Ray Data on the cluster at host:port, or auto; without ADDRESS on that of RAY_ADDRESS, or "
    "on all CPUs of this machine.",
)  # fmt: skip
@click.option(
    "--max-ms", type=Milliseconds(), default=None, help="Keep candidates that take at most this."
)
@click.option(
    "--best",
    type=click.IntRange(min=1, max=100_000),
    default=10,
    show_default=True,
    metavar="K",
    help="How many of the best to list: the fastest, or those of the largest --value.",
)
@click.option(
    "--value",
    metavar="FUNCTION",
    help="package.module:callable, from (n, positions) integers to (n,) numbers: what is to be large.",
)
@click.option(
    "--columns",
    type=click.Choice(["choices", "arch", "none"]),
    default="choices",
    show_default=True,
    help="Beside index and latency_ms: a column of integers for each position, or the arch as text.",
)
@click.option(
    "--only-best", is_flag=True, help="Write only the best K of each range, not all that are kept."
)
@click.option(
    "--chunk",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    metavar="N",
    help="Candidates in a range, which is a file, and what a killed worker does again.",
)
@click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="Score the first N candidates only."
)
@batch_option
@predictor_option
@json_option
def score(
    space: str,
    model: str,
    output: Path,
    address: str | None,
    max_ms: float | None,
    best: int,
    value: str | None,
    columns: str,
    only_best: bool,
    chunk: int,
    limit: int | None,
    batch_size: int,
    predictor: str | None,
    as_json: bool,
) -> None:
    """Score all candidates of SPACE on MODEL's device: latencies as Parquet, and the best.

    SPACE: nasbench201, fbnet, ofa, mobile, or package.module:callable that returns a lolat.nas.Space. A
    run that was interrupted goes on when the same command is given again.
    """
    from lolat.model import load
    from lolat.nas.objective import find_function, find_space
    from lolat.nas.scoring import here, make_job

    started = time.monotonic()
    loaded = load(model)
    loaded.predictor(predictor)
    found_space = find_space(space)
    found_space.grid.countable()
    function = None if value is None else find_function(value)
    if address is not None:
        from lolat.cli.cluster import import_ray

        import_ray()
    budget = math.inf if max_ms is None else max_ms
    job = make_job(
        found_space, loaded, output, batch_size, predictor, budget, best, chunk, limit, only_best, columns,
        function, value,
    )  # fmt: skip
    if address is None:
        found = _run(job, here)
    else:
        from lolat.cli.cluster import connected
        from lolat.nas.scoring import on_ray

        with connected(address):
            found = _run(job, on_ray)
    told = {
        "space": found_space.name,
        "size": found_space.size,
        "batch_size": batch_size,
        "predictor": job.scorer.formula.name,
        **found.to_dict(),
    }
    if as_json:
        click.echo(json.dumps(told))
    else:
        for line in lines(told, found.reused, time.monotonic() - started):
            click.echo(line)


def _run(job: Any, ranges: Any) -> Any:
    """Run a job under a progress bar."""
    from lolat.cli.progress import progress
    from lolat.nas.scoring import run

    with progress() as bar:

        def begin(done: int, left: int) -> None:
            if done:
                bar.note(f"going on: {done} of {done + left} ranges are in {job.folder} already")
            if left:
                bar.start("scoring", left)

        try:
            return run(job, ranges, begin, bar.step)
        except KeyboardInterrupt:
            say(
                f"interrupted; what is done is in {job.folder}, the same command goes on from there"
            )
            raise click.exceptions.Exit(INTERRUPTED) from None


def lines(told: dict[str, Any], reused: int, seconds: float) -> list[str]:
    """The answer as a person reads it."""
    budget = "" if told["max_ms"] is None else f", {told['kept']:,} within {told['max_ms']:g} ms"
    part = "" if told["scored"] == told["size"] else f" of {count(told['size'])}"
    again = f" ({reused} of {told['files']} files were there already)" if reused else ""
    scored = f"{count(told['scored'])}{part} candidates scored in {seconds:.1f} s"
    found = [f"{told['space']}: {scored}{budget}{again}"]
    best = told["best"]
    if best:
        amount = f"  {'value':>10}" if "value" in best[0] else ""
        found += ["", f"{'latency':>10}{amount}   candidate"]
    for row in best[:MOST_ROWS]:
        amount = f"  {row['value']:>10.6g}" if "value" in row else ""
        found.append(f"{milliseconds(row['latency_ms']):>10}{amount}   {row['arch']}")
    if len(best) > MOST_ROWS:
        found.append(f"{MOST_ROWS} of the best {len(best)} are shown; _best.csv has them all")
    files = f"{told['files']} Parquet file{'s' * (told['files'] > 1)}"
    return [*found, "", f"written: {told['output']}, {files} and _best.csv"]


def count(number: int) -> str:
    """A whole number, in powers of ten where it is long."""
    return f"{number:,}" if number < 10**12 else f"{number:.3g}"
