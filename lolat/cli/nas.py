"""Architecture search: one command per job."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from lolat.cli.common import (
    LazyGroup,
    Milliseconds,
    batch_option,
    json_option,
    model_argument,
    predictor_option,
    say,
)
from lolat.errors import InputError

if TYPE_CHECKING:
    from lolat.nas.fewshot.model import NasModel

COMMANDS: dict[str, tuple[str, str]] = {
    "suggest": ("lolat.cli.nas:suggest", "Which networks of a space to measure."),
    "fit": ("lolat.cli.nas:fit", "A space's latency from ten measured networks."),
    "predict": ("lolat.cli.nas:predict", "The latencies of many networks of it."),
    "search": ("lolat.cli.nas:search", "The front of latency and of your score."),
    "score": ("lolat.cli.nas_score:score", "A whole space into Parquet, on a cluster too."),
}
"""Each command: where it is, and what it does in a few words."""


@click.group(cls=LazyGroup, table=COMMANDS, no_args_is_help=False)
def nas() -> None:
    """Latency for searches: spaces, few measurements, many candidates."""


# ---- `lolat nas fit`: a search space's latency on a new device from a few measured networks.

SPACE_NAMES = ("nasbench201", "fbnet")
space_option = click.option(
    "--space",
    type=click.Choice(SPACE_NAMES),
    required=True,
    help="The search space that the networks are of.",
)


@click.command()
@space_option
@click.argument("samples", metavar="SAMPLES", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="The model file to write."
)
@json_option
def fit(space: str, samples: Path, output: Path, as_json: bool) -> None:
    """Fit a space's latency to SAMPLES: a CSV table (or .csv.gz) with columns arch and latency_ms.

    Ten samples are enough to rank a space well; `lolat nas suggest` says which. Fewer work too: the
    formula then says what they do not.
    """
    from lolat.nas.fewshot.file import write
    from lolat.nas.fewshot.model import fit as fit_model
    from lolat.nas.fewshot.samples import ENOUGH, read_samples, space_terms

    model = fit_model(space, read_samples(samples, space_terms(space)))
    write(output, model)
    for remark in model.warnings:
        say(f"warning: {remark}")
    error = typical_error(model)
    if as_json:
        click.echo(
            json.dumps(
                {
                    "output": str(output),
                    "space": space,
                    "samples": len(model.times_ms),
                    "noise": round(model.noise, 6),
                    "typical_error": round(error, 6),
                    "assumptions": [
                        {"words": words, "weight": round(w, 6)} for words, w in model.assumptions()
                    ],
                    "warnings": list(model.warnings),
                }
            )
        )
        return
    count = len(model.times_ms)
    noise = f" · noise {100 * model.noise:.1f} %" if count >= ENOUGH else ""  # else mostly a guess
    click.echo(f"{space} from {count} sample{'s' * (count > 1)}{noise}")
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
    from lolat.nas.fewshot.file import write_text
    from lolat.nas.fewshot.samples import read_archs, read_samples, space_terms
    from lolat.nas.fewshot.suggest import suggest as choose

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


# ---- `lolat nas predict`: the latencies of many networks of a space.


@click.command()
@click.argument("model", metavar="MODEL", type=click.Path(path_type=Path))
@click.argument("archs", metavar="ARCHS", type=click.Path(path_type=Path))
@click.option(
    "--output", type=click.Path(path_type=Path), required=True, help="The CSV table to write."
)
@click.option(
    "--coverage",
    type=float,
    default=None,
    metavar="C",
    help="Also the columns latency_low_ms and latency_high_ms, between which a reading is so often, "
    "such as 0.9.",
)
@json_option
def predict(model: Path, archs: Path, output: Path, coverage: float | None, as_json: bool) -> None:
    """Predict the networks in ARCHS by MODEL, which `lolat nas fit` wrote.

    ARCHS: a CSV table (or .csv.gz) with the column arch. The table that is written has the columns
    arch and latency_ms, a row for each of ARCHS in the same order.
    """
    from lolat.nas.fewshot.file import read, write_text
    from lolat.nas.fewshot.samples import read_archs

    if coverage is not None and not 0.0 < coverage < 1.0:
        raise InputError(
            f"--coverage {coverage:g}: expected a number above 0 and below 1, such as 0.9"
        )
    found = read(model)
    try:
        texts, rows = read_archs(archs, found.terms)
    except InputError as error:
        raise InputError(f"{error} ({model} is a model of the space {found.space})") from error
    columns = {"latency_ms": found.latency_ms(rows)}
    if coverage is not None:
        low, high = found.interval_ms(rows, coverage)
        columns |= {"latency_low_ms": low, "latency_high_ms": high}
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["arch", *columns])
    for arch, *values in zip(texts, *(c.tolist() for c in columns.values()), strict=True):
        writer.writerow([arch, *(f"{value:.7g}" for value in values)])
    write_text(output, text.getvalue())
    if as_json:
        told = {"output": str(output), "space": found.space, "networks": len(texts)}
        click.echo(json.dumps(told))
    else:
        click.echo(f"written: {output}, {len(texts)} networks of {found.space}")


# ---- `lolat nas search`: the front of latency, from a model, and of a score, from the user.


@click.command()
@click.argument("space", metavar="SPACE")
@model_argument
@click.option(
    "--objective",
    required=True,
    metavar="SCORE",
    help="package.module:callable that scores one candidate (its parameter is named arch, candidate or "
    "choices), or a CSV file with the columns arch,score.",
)
@click.option(
    "--max-ms", type=Milliseconds(), default=None, help="Only candidates that take at most this."
)
@click.option(
    "--method",
    type=click.Choice(["evolutionary", "exhaustive"]),
    default=None,
    help="exhaustive for a table and for few candidates, else evolutionary, if not given.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    metavar="N",
    help="Candidates that an evolutionary search scores.",
)
@click.option(
    "--generations", type=click.IntRange(min=1), default=10, show_default=True, metavar="N",
    help="In how many generations.",
)  # fmt: skip
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
    space: str,
    model: str,
    objective: str,
    max_ms: float | None,
    method: str | None,
    samples: int,
    generations: int,
    seed: int,
    lower_is_better: bool,
    batch_size: int,
    predictor: str | None,
    output: str | None,
    journal: str | None,
    plot: str | None,
    as_json: bool,
) -> None:
    """The fastest candidates of SPACE at each score, and the best at each latency, on MODEL's device.

    SPACE: nasbench201, fbnet, ofa, mobile, or package.module:callable that returns a lolat.nas.Space.
    """
    from lolat.cli.compare import check_writable
    from lolat.cli.progress import progress
    from lolat.model import load
    from lolat.nas.objective import (
        FunctionObjective,
        Objective,
        TableObjective,
        find_function,
        find_space,
    )
    from lolat.nas.results import Answer, answer, lines, write_csv
    from lolat.nas.search import Search

    for path, option in ((output, "--output"), (journal, "--journal")):
        if path is not None:
            check_writable(path, option)
    if plot is not None:
        from lolat.report.plots import check_plot

        check_plot(plot)
    loaded = load(model)
    loaded.predictor(predictor)
    found_space = find_space(space)
    decomposition = getattr(found_space, "decomposition", None)
    if decomposition is not None:
        say(f"{found_space.name}: {decomposition}")
    scorer = found_space.scorer(loaded, batch_size, predictor)

    def run(scores: Objective, bar: Any) -> Answer:
        wanted = Search(
            found_space,
            scorer,
            scores,
            math.inf if max_ms is None else max_ms,
            -1.0 if lower_is_better else 1.0,
            *(() if bar is None else (lambda total: bar.start("scoring", total), bar.step)),
        )
        return answer(wanted, wanted.run(method, samples, generations, seed), loaded)

    if is_table(objective):
        found = run(TableObjective(found_space, objective), None)
    else:
        name = journal or default_journal(output, found_space.name)
        check_writable(name, "--journal")
        scores = FunctionObjective(found_space, find_function(objective), objective, name)
        if scores.reused:
            say(f"{scores.reused} scores are in {name} already")
        try:
            with progress() as bar:
                found = run(scores, bar)
        except KeyboardInterrupt:
            if scores.computed:
                say(
                    f"{scores.computed} new scores are in {name}; the same command goes on from there"
                )
            raise
    if as_json:
        click.echo(json.dumps(found.to_dict()))
    else:
        for line in lines(found):
            click.echo(line)
    if output is not None:
        write_csv(output, found)
        say(f"written: {output}")
    if plot is not None:
        from lolat.nas.results import front_plot

        front_plot(found, loaded.device, plot)
        say(f"drawn: {plot}")


def is_table(objective: str) -> bool:
    """Whether scores are to be read from a file, and not from a function."""
    return objective.lower().endswith(".csv") or Path(objective).is_file()


def default_journal(output: str | None, space: str) -> str:
    """Where scores are kept when nobody says it: beside the front, or in the working directory."""
    return f"{space}.scores.csv" if output is None else str(Path(output).with_suffix(".scores.csv"))
