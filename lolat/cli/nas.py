"""Architecture search: one command per job."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from lolat.cli.cluster import NO_ADDRESS, Address
from lolat.cli.common import (
    INTERRUPTED,
    LazyGroup,
    Milliseconds,
    batch_option,
    json_option,
    model_argument,
    predictor_option,
    say,
    say_json,
)
from lolat.errors import InputError
from lolat.io.tables import is_table, to_csv
from lolat.io.writing import write_bytes
from lolat.units import milliseconds, plural

if TYPE_CHECKING:
    from lolat.nas.fewshot.model import NasModel
    from lolat.nas.objective import FunctionObjective
    from lolat.nas.search import Search

COMMANDS: dict[str, tuple[str, str]] = {
    "suggest": ("lolat.cli.nas:suggest", "Which networks of a space to measure."),
    "fit": ("lolat.cli.nas:fit", "A space's latency from ten measured networks."),
    "predict": ("lolat.cli.nas:predict", "The latencies of many networks of it."),
    "search": ("lolat.cli.nas:search", "The front of latency and of your score."),
    "score": ("lolat.cli.nas:score", "A whole space into Parquet, on a cluster too."),
}
"""Each command: where it is, and what it does in a few words."""


@click.group(cls=LazyGroup, table=COMMANDS, no_args_is_help=False)
def nas() -> None:
    """Latency for searches: spaces, few measurements, many candidates."""


def path_option(*names: str, **options: Any) -> Any:
    """An option whose value is a path."""
    return click.option(*names, type=click.Path(path_type=Path), **options)


def whole_option(
    name: str, text: str, default: int | None = None, metavar: str = "N", **limits: Any
) -> Any:
    """An option whose value is a whole number, from 1 unless `limits` say otherwise."""
    allowed = click.IntRange(**{"min": 1, **limits})
    shown = default is not None
    return click.option(
        name, type=allowed, default=default, show_default=shown, metavar=metavar, help=text
    )


searched_argument = click.argument("space", metavar="SPACE")
max_ms_option = click.option(
    "--max-ms", type=Milliseconds(), help="Only candidates that take at most this."
)

# ---- `lolat nas fit`: a search space's latency on a new device from a few measured networks.

SPACE_NAMES = ("nasbench201", "fbnet")
space_option = click.option(
    "--space", type=click.Choice(SPACE_NAMES), required=True,
    help="The search space that the networks are of.",
)  # fmt: skip


@click.command()
@space_option
@click.argument("samples", metavar="SAMPLES", type=click.Path(path_type=Path))
@path_option("--output", required=True, help="The model file to write.")
@json_option
def fit(space: str, samples: Path, output: Path, as_json: bool) -> None:
    """Fit a space's latency to SAMPLES: a CSV table (or .csv.gz) with columns arch and latency_ms.

    Ten samples are enough to rank a space well; `lolat nas suggest` says which. Fewer work too: the
    formula then says what they do not.
    """
    from lolat.nas.fewshot.model import fit as fit_model
    from lolat.nas.fewshot.model import write
    from lolat.nas.fewshot.samples import ENOUGH_SAMPLES, read_samples, space_terms

    model = fit_model(space, read_samples(samples, space_terms(space)))
    write(output, model)
    for remark in model.warnings:
        say(f"warning: {remark}")
    count, error = len(model.times_ms), typical_error(model)
    if as_json:
        answer = {
            "output": str(output),
            "space": space,
            "samples": count,
            "noise": round(model.noise, 6),
            "typical_error": round(error, 6),
            "assumptions": [{"words": t, "weight": round(w, 6)} for t, w in model.assumptions()],
            "warnings": list(model.warnings),
        }
        say_json("nas-fit", answer)
        return
    noise = (
        f" · noise {100 * model.noise:.1f} %" if count >= ENOUGH_SAMPLES else ""
    )  # else mostly a guess
    click.echo(f"{space} from {plural(count, 'sample')}{noise}")
    for words, weight in model.assumptions():
        if weight >= 0.005:
            click.echo(f"  {words}: {100 * weight:.0f} % sure")
    if error < 1.0:
        click.echo(f"Half of all networks of the space should be within {100 * error:.1f} %.")
    else:
        click.echo(f"Half of all networks of the space may be off by a factor of {1 + error:.2g}.")
    click.echo(f"written: {output}")


def typical_error(model: NasModel) -> float:
    """What half of the space's networks should stay within, relative, by the model's own intervals."""
    rows = model.terms.candidates(np.random.default_rng(0))[:: 1 if model.space == "fbnet" else 7]
    low, high = model.interval_ms(rows, 0.5)
    return float(np.median(np.sqrt(high / low)) - 1.0)


# ---- `lolat nas suggest`: which networks of a space to measure next.


@click.command()
@space_option
@whole_option("--count", "How many networks.", 10)
@path_option(
    "--have", metavar="SAMPLES",
    help="What is measured already (columns arch, latency_ms): which come next.",
)  # fmt: skip
@path_option("--among", metavar="ARCHS", help="Choose from this table only (column arch).")
@whole_option("--seed", "Another one, other networks.", 0, min=0)
@path_option("--output", help="Also write them to this CSV (column arch).")
@json_option
def suggest(
    space: str, count: int, have: Path | None, among: Path | None, seed: int, output: Path | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Name the networks whose latencies would tell most about all the others, one a line.

    Measure them, write the latencies beside them, and give the table to `lolat nas fit`. The first of
    them tell most, so a part of them is a good start too.
    """
    from lolat.nas.fewshot.samples import read_archs, read_samples, space_terms
    from lolat.nas.fewshot.suggest import suggest as choose

    terms = space_terms(space)
    samples = None if have is None else read_samples(have, terms, one_network=True)
    given = None if among is None else read_archs(among, terms)[1]
    for remark in samples.remarks if samples is not None else ():
        say(f"warning: {remark}")
    archs = [terms.write(row) for row in choose(terms, count, samples, given, seed)]
    if output is not None:
        write_bytes(output, to_csv(["arch"], [[arch] for arch in archs]).encode())
    if as_json:
        say_json("nas-suggest", {"space": space, "archs": archs})
    else:
        for arch in archs:
            click.echo(arch)


# ---- `lolat nas predict`: the latencies of many networks of a space.


@click.command()
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("archs", metavar="ARCHS", type=click.Path(path_type=Path))
@path_option("--output", required=True, help="The CSV table to write.")
@click.option(
    "--coverage", type=float, metavar="C",
    help="Also the columns latency_low_ms and latency_high_ms, between which a reading is so often, "
    "such as 0.9.",
)  # fmt: skip
@json_option
def predict(model: Path, archs: Path, output: Path, coverage: float | None, as_json: bool) -> None:
    """Predict the networks in ARCHS by MODEL, which `lolat nas fit` wrote.

    ARCHS: a CSV table (or .csv.gz) with the column arch. The table that is written has the columns
    arch and latency_ms, a row for each of ARCHS in the same order.
    """
    from lolat.nas.fewshot.model import read
    from lolat.nas.fewshot.samples import read_archs

    if coverage is not None and not 0.0 < coverage < 1.0:
        raise InputError(
            f"--coverage {coverage:g}: expected a number above 0 and below 1, such as 0.9"
        )
    fitted = read(model)
    try:
        texts, rows = read_archs(archs, fitted.terms)
    except InputError as error:
        raise InputError(f"{error} ({model} is a model of the space {fitted.space})") from error
    columns = {"latency_ms": fitted.latency_ms(rows)}
    if coverage is not None:
        columns["latency_low_ms"], columns["latency_high_ms"] = fitted.interval_ms(rows, coverage)
    cells = ([f"{value:.7g}" for value in column.tolist()] for column in columns.values())
    table = to_csv(["arch", *columns], zip(texts, *cells, strict=True))
    write_bytes(output, table.encode())
    if as_json:
        told = {"output": str(output), "space": fitted.space, "networks": len(texts)}
        say_json("nas-predict", told)
    else:
        click.echo(f"written: {output}, {len(texts)} networks of {fitted.space}")


# ---- `lolat nas search`: the front of latency, from a model, and of a score, from the user.


@click.command()
@searched_argument
@model_argument
@click.option(
    "--objective", required=True, metavar="SCORE",
    help="package.module:callable that scores one candidate (its parameter is named arch, candidate or "
    "choices), or a CSV file with the columns arch,score.",
)  # fmt: skip
@max_ms_option
@click.option(
    "--method", type=click.Choice(["evolutionary", "exhaustive"]),
    help="exhaustive for a table and for few candidates, else evolutionary, if not given.",
)  # fmt: skip
@whole_option("--samples", "Candidates that an evolutionary search scores.", 200)
@whole_option("--generations", "In how many generations.", 10)
@click.option("--seed", type=int, default=0, show_default=True, metavar="N", help="Of the draws.")
@click.option("--lower-is-better", is_flag=True, help="A low score is good, such as a loss.")
@batch_option
@predictor_option
@click.option("--output", type=click.Path(), metavar="FILE", help="Write the front as CSV.")
@click.option(
    "--journal",
    type=click.Path(),
    metavar="FILE",
    help="Where each score is kept as it comes; it is read when the search is run again. Beside --output "
    "(FRONT.scores.csv), or SPACE.scores.csv here, if not given.",
)
@click.option("--plot", type=click.Path(), metavar="FILE", help="Draw it (.svg or .png).")
@json_option
def search(
    space: str, model: str, objective: str, max_ms: float | None, method: str | None, samples: int,
    generations: int, seed: int, lower_is_better: bool, batch_size: int, predictor: str | None,
    output: str | None, journal: str | None, plot: str | None, as_json: bool,
) -> None:  # fmt: skip
    """The fastest candidates of SPACE at each score, and the best at each latency, on MODEL's device.

    SPACE: nasbench201, fbnet, ofa, mobile, or package.module:callable that returns a lolat.nas.Space.
    """
    from lolat.cli.compare import check_writable
    from lolat.model import load
    from lolat.nas.objective import FunctionObjective, TableObjective, find_function, find_space
    from lolat.nas.search import Search, answer, lines, write_csv

    for path, option in ((output, "--output"), (journal, "--journal")):
        if path is not None:
            check_writable(path, option)
    if plot is not None:
        from lolat.report.plots import check_plot

        check_plot(plot)
    loaded = load(model)
    loaded.predictor(predictor)
    searched = find_space(space)
    if searched.decomposition is not None:
        say(f"{searched.name}: {searched.decomposition}")
    scorer = searched.scorer(loaded, batch_size, predictor)
    limits = (math.inf if max_ms is None else max_ms, -1.0 if lower_is_better else 1.0)
    how = (method, samples, generations, seed)
    if is_table(objective) or Path(objective).is_file():
        wanted = Search(searched, scorer, TableObjective(searched, objective), *limits)
        result = wanted.run(*how)
    else:
        beside = None if output is None else str(Path(output).with_suffix(".scores.csv"))
        name = journal or beside or f"{searched.name}.scores.csv"
        check_writable(name, "--journal")
        scores = FunctionObjective(searched, find_function(objective), objective, name)
        wanted = Search(searched, scorer, scores, *limits)
        result = _search(wanted, scores, how)
    told = answer(wanted, result, loaded)
    if as_json:
        say_json("nas-search", told.to_dict())
    else:
        click.echo("\n".join(lines(told)))
    if output is not None:
        write_csv(output, told)
        say(f"written: {output}")
    if plot is not None:
        from lolat.report.plots import front_plot

        front_plot(told, loaded.device, plot)
        say(f"drawn: {plot}")


def _search(wanted: Search, scores: FunctionObjective, how: tuple[Any, ...]) -> Any:
    """Search with a user's function, under a progress bar."""
    from lolat.cli.common import progress

    if scores.reused:
        say(f"{scores.reused} scores are in {scores.journal} already")
    try:
        with progress() as bar:
            shown = replace(wanted, started=partial(bar.start, "scoring"), done=bar.step)
            return shown.run(*how)
    except KeyboardInterrupt:
        if scores.computed:
            new = f"{scores.computed} new scores are in {scores.journal}"
            say(f"{new}; the same command goes on from there")
        raise


# ---- `lolat nas score`: all candidates of a space into Parquet files, on a cluster if need be.

MOST_ROWS = 20


@click.command()
@searched_argument
@model_argument
@path_option(
    "--output", required=True, metavar="DIR",
    help="A folder: a Parquet file for each range of candidates, and _best.csv. With --ray on several "
    "machines, one that they share.",
)  # fmt: skip
@click.option(
    "--ray", "address", type=Address(), is_flag=False, flag_value=NO_ADDRESS, default=None,
    metavar="[ADDRESS]",
    help="With Ray Data on the cluster at host:port, or auto; without ADDRESS on that of RAY_ADDRESS, or "
    "on all CPUs of this machine.",
)  # fmt: skip
@max_ms_option
@whole_option(
    "--best",
    "How many of the best to list: the fastest, or those of the largest --value.",
    10,
    "K",
    max=100_000,
)
@click.option(
    "--value", metavar="FUNCTION",
    help="package.module:callable, from (n, positions) integers to (n,) numbers: what is to be large.",
)  # fmt: skip
@click.option(
    "--columns", type=click.Choice(["choices", "arch", "none"]), default="choices", show_default=True,
    help="Beside index and latency_ms: a column of integers for each position, or the arch as text.",
)  # fmt: skip
@click.option(
    "--only-best", is_flag=True, help="Write only the best K of each range, not all that are kept."
)
@whole_option(
    "--chunk",
    "Candidates in a range, which is a file, and what a killed worker does again.",
    1_000_000,
)
@whole_option("--limit", "Score the first N candidates only.")
@batch_option
@predictor_option
@json_option
def score(
    space: str, model: str, output: Path, address: str | None, max_ms: float | None, best: int,
    value: str | None, columns: str, only_best: bool, chunk: int, limit: int | None, batch_size: int,
    predictor: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Score all candidates of SPACE on MODEL's device: latencies as Parquet, and the best.

    SPACE: nasbench201, fbnet, ofa, mobile, or package.module:callable that returns a lolat.nas.Space. A
    run that was interrupted goes on when the same command is given again.
    """
    from lolat.cli.cluster import connected, import_ray
    from lolat.model import load
    from lolat.nas.objective import find_function, find_space
    from lolat.nas.scoring import here, make_job, on_ray

    started = time.monotonic()
    loaded = load(model)
    loaded.predictor(predictor)
    scored = find_space(space)
    scored.grid.countable()
    function = None if value is None else find_function(value)
    if address is not None:
        import_ray()
    budget = math.inf if max_ms is None else max_ms
    job = make_job(
        scored, loaded, output, batch_size, predictor, budget, best, chunk, limit, only_best, columns,
        function, value,
    )  # fmt: skip
    if address is None:
        scores = _run(job, here)
    else:
        with connected(address):
            scores = _run(job, on_ray)
    told = {
        "space": scored.name,
        "size": scored.size,
        "batch_size": batch_size,
        "predictor": job.scorer.formula.name,
        **scores.to_dict(),
    }
    seconds = time.monotonic() - started
    if as_json:
        say_json("nas-score", told)
    else:
        click.echo("\n".join(_score_lines(told, scores.reused, seconds)))


def _run(job: Any, ranges: Any) -> Any:
    """Run a job under a progress bar."""
    from lolat.cli.common import progress
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
            there = f"what is done is in {job.folder}"
            say(f"interrupted; {there}, the same command goes on from there")
            raise click.exceptions.Exit(INTERRUPTED) from None


def _score_lines(told: dict[str, Any], reused: int, seconds: float) -> list[str]:
    """The answer as a person reads it."""
    budget = "" if told["max_ms"] is None else f", {told['kept']:,} within {told['max_ms']:g} ms"
    part = "" if told["scored"] == told["size"] else f" of {_candidates(told['size'])}"
    again = f" ({reused} of {told['files']} files were there already)" if reused else ""
    scored = f"{_candidates(told['scored'])}{part} candidates scored in {seconds:.1f} s"
    lines = [f"{told['space']}: {scored}{budget}{again}"]
    best = told["best"]
    if best:
        amount = f"  {'value':>10}" if "value" in best[0] else ""
        lines += ["", f"{'latency':>10}{amount}   candidate"]
    for row in best[:MOST_ROWS]:
        amount = f"  {row['value']:>10.6g}" if "value" in row else ""
        lines.append(f"{milliseconds(row['latency_ms']):>10}{amount}   {row['arch']}")
    if len(best) > MOST_ROWS:
        lines.append(f"{MOST_ROWS} of the best {len(best)} are shown; _best.csv has them all")
    files = plural(told["files"], "Parquet file")
    return [*lines, "", f"written: {told['output']}, {files} and _best.csv"]


def _candidates(number: int) -> str:
    """A whole number, in powers of ten where it is long."""
    return f"{number:,}" if number < 10**12 else f"{number:.3g}"
