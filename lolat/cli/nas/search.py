"""`lolat nas search`: the front of latency, from a model, and of a score, from the user."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click

from lolat.cli.errors import say
from lolat.cli.options import (
    Milliseconds,
    batch_option,
    json_option,
    model_argument,
    predictor_option,
)


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
    from lolat.nas.named import find_function, find_space
    from lolat.nas.objective import FunctionObjective, Objective, TableObjective
    from lolat.nas.search import Search
    from lolat.nas.shown import Answer, answer, lines, write_csv

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
        from lolat.nas.plot import front_plot

        front_plot(found, loaded.device, plot)
        say(f"drawn: {plot}")


def is_table(objective: str) -> bool:
    """Whether scores are to be read from a file, and not from a function."""
    return objective.lower().endswith(".csv") or Path(objective).is_file()


def default_journal(output: str | None, space: str) -> str:
    """Where scores are kept when nobody says it: beside the front, or in the working directory."""
    return f"{space}.scores.csv" if output is None else str(Path(output).with_suffix(".scores.csv"))
