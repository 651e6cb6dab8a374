"""The commands of architecture search: `lolat nas fit`, `search` and `score`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lolat.cli import common
from lolat.cli.main import LazyGroup
from lolat.device.question import RunAs
from lolat.errors import LolatError
from lolat.io.writing import check_file
from lolat.parameters import CANDIDATES, COVERAGE, parameters_of
from lolat.report.search import best_lines, front_lines
from lolat.report.tables import one_by_one, write_csv
from lolat.units import milliseconds, plain, plural

if TYPE_CHECKING:
    from lolat.api.model import Model

COMMANDS: dict[str, tuple[str, str]] = {
    "fit": ("lolat.cli.nas:fit", "A space's latency from ten measured networks."),
    "search": ("lolat.cli.nas:search", "The Pareto front of latency and of your score."),
    "score": ("lolat.cli.nas:score", "The latencies of a whole space, or of a table."),
}
"""Command -> ("package.module:attribute", its purpose in a few words)."""


@click.group(cls=LazyGroup, table=COMMANDS, no_args_is_help=False)
def nas() -> None:
    """Latency for searches: spaces, few measurements, many candidates.

    SPACE: nasbench201, fbnet (224x224), fbnet-cifar (32x32, as HW-NAS-Bench has it), or
    package.module:callable that returns a lolat.nas.Space.
    """


@dataclass(frozen=True)
class NasFit:
    """The result of `lolat nas fit`: relative errors within which 50 % and 90 % of networks should be."""

    output: str
    space: str
    samples: int
    noise: float
    typical_error: float
    error_of_90_percent: float
    warnings: tuple[str, ...]


@common.command(
    "lolat nas fit nasbench201 samples.csv --output space.json",
    answers={"nas-fit": "lolat.cli.nas:NasFit"},
)
@common.space_argument
@click.argument("samples", metavar="SAMPLES", type=click.Path())
@common.output_option(
    required=True, more="The device's profile: made, or the space is added to its knowledge."
)
@click.option("--name", metavar="NAME", help="What the device is called.")
def fit(space: str, samples: str, output: Path, name: str | None) -> None:
    """Fit SPACE's latency to SAMPLES: a CSV table (or .csv.gz) with columns arch and latency_ms.

    Ten random samples are enough to rank a space well.
    """
    from lolat.nas.fewshot import fit as fit_space

    with common.Show() as bar:
        model = fit_space(space, samples, output, name, bar)
    common.warn(model.warnings)
    count, errors = len(model.section.samples), [model.error_of(share) for share in (0.5, COVERAGE)]
    answer = NasFit(
        output=str(output), space=model.space.label, samples=count, noise=round(model.noise, 6),
        typical_error=round(errors[0], 6), error_of_90_percent=round(errors[1], 6),
        warnings=tuple(model.warnings),
    )  # fmt: skip
    taken = [sample.latency_ms for sample in model.section.samples]
    times = f"{milliseconds(min(taken))} .. {milliseconds(max(taken))}"
    half, most = (f"{100 * e:.1f} %" if e < 1.0 else f"a factor of {1 + e:.2g}" for e in errors)
    lines = (
        f"{answer.space} from {plural(count, 'sample')}, {times} · noise {100 * model.noise:.1f} %",
        f"Half of the space's networks should be within {half}, {100 * COVERAGE:g} % within {most}.",
        f"written: {plain(str(output))}",
    )  # fmt: skip
    common.answer(answer, lines)


class Score(click.ParamType):
    """A table of scores, or the name of a function that scores one candidate."""

    name = "score"

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """The text after click's message on a missing score: the expected values, with examples."""
        return "Expected a table, such as scores.csv, or your function, such as mytraining:score"


@common.command(
    "lolat nas search nasbench201 epyc-2t --objective scores.csv --max-ms 15",
    "lolat nas search fbnet local --objective package.module:score --output front.csv",
    "lolat nas search nasbench201 epyc-2t,rtx-4090 --objective scores.csv --max-ms 14,6 --batch-size 1,64",
    answers={"nas-search": "lolat.nas.search_result:SearchResult"},
)
@common.space_argument
@common.model_argument
@click.option(
    "--objective", required=True, metavar="SCORE", type=Score(),
    help="package.module:callable that scores one candidate (its parameter is named arch, candidate or "
    "choices; nan skips one, such as one that is too large), or a CSV file with the columns arch,score, or "
    "with the choices in place of arch.",
)  # fmt: skip
@common.parameter(
    "max_ms", "Only candidates within it; of several devices one for all, or for each.",
    type=common.List(common.Number(0, min_open=True), "MS[,MS]", "15 or 14,6"), metavar="MS[,MS]",
)  # fmt: skip
@common.parameter("sure", **common.SURE)
@click.option("--candidates", type=common.WHOLE, metavar="N",
               help=f"How many the callable scores, {CANDIDATES} if not given; in a larger space the "
               "search is evolutionary.")  # fmt: skip
@common.parameter(
    "seed",
    "An evolutionary search draws candidates by them; where all are scored they change nothing.",
)
@common.parameter("lower_is_better")
@common.parameter("batch_size", "Of several devices one for all, or for each.", default="1",
                  show_default=True)  # fmt: skip
@common.question(RunAs)
@common.output_option(more="The front as CSV.")
@click.option(
    "--accuracy", type=click.Path(), metavar="FILE",
    help="A CSV file (arch, score and what they are from) to which each score of the callable is added at "
    "once; a later search reads it. "
    "If not given: FRONT.scores.csv beside --output, or SPACE.scores.csv here.",
)  # fmt: skip
def search(
    space: str,
    model: str,
    objective: str,
    output: Path | None,
    accuracy: str | None,
    **question: Any,
) -> None:
    """Find the fastest candidates of SPACE at each score, the best at each latency, on MODEL's device.

    Of several devices (MODEL,MODEL) a candidate keeps the limit of each; the front is by the first one's
    latency. docs/reference/tables.md explains the columns.
    """
    from lolat.io.tables import is_table
    from lolat.nas.limits import devices_of
    from lolat.nas.search import search as search_space
    from lolat.nas.user_code import find_space

    check_file(output, "output")
    with common.Show() as bar:
        loaded = _opened(space, devices_of(model), question)
        of_space = find_space(space)
        if not is_table(objective) and not Path(objective).is_file():
            beside = None if output is None else str(output.with_suffix(".scores.csv"))
            here = Path(of_space.label).name.replace(":", ".")
            accuracy = accuracy or beside or f"{here}.scores.csv"
        result = search_space(
            of_space, loaded, objective, accuracy=accuracy, progress=bar,
            **question,
        )  # fmt: skip
    common.answer(result, front_lines(result))
    if output is not None:
        earlier = output.read_bytes() if output.is_file() else b""
        write_csv(output, result.rows())
        is_other = earlier and earlier != output.read_bytes()
        common.say(f"written: {output}{', in place of another front' if is_other else ''}")
    if accuracy is not None:
        common.say(f"scores kept in {accuracy}: the same command reuses them")


def _opened(space: str, names: Sequence[str], question: dict[str, Any]) -> list[Model]:
    """The profiles in the execution mode, which is taken out of `question`.

    Of several profiles, one that cannot run with an option ignores it, unless none of them can. InputError
    for a profile that has only samples of the space.
    """
    from lolat.api.choosing import in_mode_if_possible
    from lolat.nas.latency import samples_only
    from lolat.nas.user_code import check_order

    given = {name: question.pop(name) for name in parameters_of(RunAs)}
    models: list[Model] = []
    without: dict[str, LolatError] = {}
    for model in names:
        check_order(space, model)
        loaded = common.open_profile(model)
        for name in filter(given.get, given):
            if loaded.file.spaces and not loaded.predictors:
                raise samples_only(name, loaded)
        is_one = len(names) == 1
        models.append(
            loaded.run_as(**given)
            if is_one
            else in_mode_if_possible(loaded, RunAs(**given), without)
        )
    if without and len(without) == len({*names}):
        raise next(iter(without.values()))
    return models


@common.command(
    "lolat nas score nasbench201 epyc-2t --output best.csv --best 100",
    "lolat nas score fbnet phone.json --among archs.csv --output latencies.csv",
    answers={"nas-score": "lolat.nas.ranking:Ranking", "nas-scores": "lolat.nas.ranking:Rankings"},
)
@common.space_argument
@common.model_argument
@common.output_option(more="A CSV table with the latencies of all candidates.")
@click.option(
    "--among", metavar="ARCHS", type=click.Path(),
    help="Only the networks of a CSV table (or .csv.gz) with the column arch, or a column for each choice.",
)  # fmt: skip
@common.parameter("max_ms", "Only candidates within it.")
@click.option(
    "--best", type=click.IntRange(1, 100_000), metavar="N",
    help="Only the N fastest, the fastest first.",
)  # fmt: skip
@common.parameter("batch_size", default="1", show_default=True)
@common.question(RunAs)
def score(
    space: str, model: str, output: Path | None, batch_size: tuple[int, ...], **question: Any
) -> None:
    """List the fastest candidates of SPACE, or of ARCHS, on MODEL's device; write the latencies of all."""
    from lolat.nas.ranking import rank

    with common.Show() as bar:
        (loaded,) = _opened(space, [model], question)
        size = batch_size if len(batch_size) > 1 else batch_size[0]
        found = rank(space, loaded, output, batch_size=size, progress=bar, **question)
    common.answer(found, one_by_one(found, best_lines))
