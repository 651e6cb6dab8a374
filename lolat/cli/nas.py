"""Architecture search: one command per job."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

import lolat
from lolat import nas as questions
from lolat.cli import common
from lolat.cli.parsing import Number
from lolat.errors import InputError
from lolat.io.tables import is_table, to_csv
from lolat.io.writing import check_file, write_bytes
from lolat.units import milliseconds, plain, plural

if TYPE_CHECKING:
    from lolat.nas.fewshot import NasModel

COMMANDS: dict[str, tuple[str, str]] = {
    "fit": ("lolat.cli.nas:fit", "A space's latency from ten measured networks."),
    "predict": ("lolat.cli.nas:predict", "The latencies of many networks of it."),
    "search": ("lolat.cli.nas:search", "The front of latency and of your score."),
    "score": ("lolat.cli.nas:score", "A whole space into Parquet, on a cluster too."),
}
"""Each command: where it is, and what it does in a few words."""


@click.group(cls=common.LazyGroup, table=COMMANDS, no_args_is_help=False)
def nas() -> None:
    """Latency for searches: spaces, few measurements, many candidates."""


# ---- `lolat nas fit`: a search space's latency on a new device from a few measured networks.


@dataclass(frozen=True)
class Assumption:
    """An assumption on a space's latencies, and how sure it is."""

    words: str
    weight: float


@dataclass(frozen=True)
class NasFit:
    """A space's model; `typical_error`: half of all its networks should be within it, relative."""

    output: str
    space: str
    samples: int
    noise: float
    typical_error: float
    assumptions: tuple[Assumption, ...]
    warnings: tuple[str, ...]


@common.command("lolat nas fit nasbench201 samples.csv --output space.json")
@common.space_argument
@click.argument("samples", metavar="SAMPLES", type=click.Path(path_type=Path))
@common.output_option(
    required=True, more="The device's model file: made, or the space is added to what it knows."
)
@common.name_option()
@common.json_option
def fit(space: str, samples: Path, output: Path, name: str | None, as_json: bool) -> None:
    """Fit a space's latency to SAMPLES: a CSV table (or .csv.gz) with columns arch and latency_ms.

    SPACE: nasbench201, fbnet (224x224) or fbnet-cifar (32x32, as HW-NAS-Bench has it).

    Ten random samples are enough to rank a space well. Fewer work too: the formula then says what they
    do not.
    """
    from lolat.nas.fewshot import ENOUGH_SAMPLES

    model = questions.fit(space, samples, output, name)
    common.warn(model.warnings)
    count, error = len(model.times_ms), typical_error(model)
    assumed = model.assumptions()
    answer = NasFit(
        output=str(output), space=space, samples=count, noise=round(model.noise, 6),
        typical_error=round(error, 6),
        assumptions=tuple(Assumption(words, round(w, 6)) for words, w in assumed),
        warnings=model.warnings,
    )  # fmt: skip
    # Of fewer samples it is mostly a guess.
    noise = f" · noise {100 * model.noise:.1f} %" if count >= ENOUGH_SAMPLES else ""
    half = f"should be within {100 * error:.1f} %"
    half = half if error < 1.0 else f"may be off by a factor of {1 + error:.2g}"
    told = (
        f"{space} from {plural(count, 'sample')}{noise}",
        *(f"  {words}: {100 * w:.0f} % sure" for words, w in assumed if w >= 0.005),
        f"Half of all networks of the space {half}.",
        f"written: {plain(str(output))}",
    )
    common.answer("nas-fit", answer, as_json, told)


def typical_error(model: NasModel) -> float:
    """What half of the space's networks should stay within, relative, by the model's own intervals."""
    rows = model.terms.candidates(np.random.default_rng(0))[
        :: 7 if model.space == "nasbench201" else 1
    ]
    low, high = model.interval_ms(rows, 0.5)
    return float(np.median(np.sqrt(high / low)) - 1.0)


# ---- `lolat nas predict`: the latencies of many networks of a space.


@dataclass(frozen=True)
class NasPredict:
    """A table of predicted latencies was written; `predictor`: "samples" or a formula of inference."""

    output: str
    space: str
    networks: int
    predictor: str


@common.command("lolat nas predict space.json archs.csv --output latencies.csv")
@common.model_argument
@click.argument("archs", metavar="ARCHS", type=click.Path(path_type=Path))
@common.output_option(required=True, more="A CSV table.")
@common.coverage_option(more="Only with it: the columns latency_low_ms and latency_high_ms.")
@common.json_option
def predict(model: str, archs: Path, output: Path, coverage: float | None, as_json: bool) -> None:
    """Predict the networks in ARCHS, by MODEL's samples of their space or else by its inference.

    ARCHS: a CSV table (or .csv.gz) with the column arch. The table that is written has the columns
    arch and latency_ms, a row for each of ARCHS in the same order.
    """
    from lolat.model import load
    from lolat.nas.fewshot import read_archs, space_of
    from lolat.nas.objective import find_space
    from lolat.nas.space import bounds_of, scorer_for

    loaded = load(model)
    terms = space_of(archs, loaded.document.get("spaces", {}), bool(loaded.predictors))
    try:
        texts, rows = read_archs(archs, terms)
    except InputError as error:
        raise InputError(
            f"{error.message} ({model} is a model of the space {terms.name})"
        ) from error
    space = find_space(terms.name)
    scorer = scorer_for(space, loaded)
    columns = {"latency_ms": scorer.latency(rows)}
    if coverage is not None:
        ends = np.array([b.interval_ms for b in bounds_of(scorer, space, loaded, rows, coverage)])
        columns["latency_low_ms"], columns["latency_high_ms"] = ends.reshape(-1, 2).T
    cells = ([f"{value:.7g}" for value in column.tolist()] for column in columns.values())
    table = to_csv(["arch", *columns], zip(texts, *cells, strict=True))
    write_bytes(output, table.encode())
    told = NasPredict(str(output), terms.name, len(texts), scorer.predictor)
    written = f"written: {plain(str(output))}, {len(texts)} networks of {terms.name}; latencies by "
    common.answer("nas-predict", told, as_json, [written + scorer.source])


# ---- `lolat nas search`: the front of latency, from a model, and of a score, from the user.


@common.command(
    "lolat nas search nasbench201 epyc-2t --objective scores.csv --max-ms 15",
    "lolat nas search fbnet local --objective package.module:score --plot front.svg",
)
@common.space_argument
@common.model_argument
@common.option(
    "--objective", required=True, metavar="SCORE",
    help="package.module:callable that scores one candidate (its parameter is named arch, candidate or "
    "choices), or a CSV file with the columns arch,score.",
)  # fmt: skip
@common.max_ms_option(more="Only candidates within it.")
@common.option(
    "--method", type=click.Choice(["evolutionary", "exhaustive"]),
    help="exhaustive for a table and for few candidates, else evolutionary, if not given.",
)  # fmt: skip
@common.option("--candidates", type=common.WHOLE, default=200, show_default=True,
               help="How many an evolutionary search scores.")  # fmt: skip
@common.option("--generations", type=common.WHOLE, default=10, show_default=True,
               help="In how many generations it does.")  # fmt: skip
@common.seed_option
@common.option("--lower-is-better", is_flag=True, help="A low score is good, such as a loss.")
@common.batch_option(default=(1,), show_default=True)
@common.predictor_option
@common.output_option(more="The front as CSV.")
@common.option(
    "--journal",
    type=click.Path(),
    metavar="FILE",
    help="Where each score is kept as it comes; it is read when the search is run again. Beside --output "
    "(FRONT.scores.csv), or SPACE.scores.csv here, if not given.",
)
@common.plot_option
@common.json_option
def search(
    space: str, model: str, objective: str, max_ms: float | None, method: str | None, candidates: int,
    generations: int, seed: int, lower_is_better: bool, batch_size: int, predictor: str | None,
    output: Path | None, journal: str | None, plot: str | None, as_json: bool,
) -> None:  # fmt: skip
    """The fastest candidates of SPACE at each score, and the best at each latency, on MODEL's device.

    SPACE: nasbench201, fbnet (224x224), fbnet-cifar (32x32), ofa, mobile, or package.module:callable that
    returns a lolat.nas.Space.
    """
    from lolat.nas.objective import find_space
    from lolat.nas.pareto import lines, write_csv

    check_file(output, "output")
    check_file(journal, "journal")
    loaded = lolat.load(model)
    if predictor is not None:
        loaded.predictor(predictor)
    searched = find_space(space)
    if not is_table(objective) and not Path(objective).is_file():
        beside = None if output is None else str(output.with_suffix(".scores.csv"))
        journal = journal or beside or f"{searched.name}.scores.csv"
        check_file(journal, "journal")
    with common.json_of_no("nas-search", as_json), common.progress() as bar:
        told = questions.search(
            searched, loaded, objective, max_ms=max_ms, method=method, candidates=candidates,
            generations=generations, seed=seed, lower_is_better=lower_is_better,
            batch_size=batch_size, predictor=predictor, journal=journal, progress=bar,
        )  # fmt: skip
    common.answer("nas-search", told, as_json, lines(told))
    if output is not None:
        write_csv(output, told)
        common.say(f"written: {output}")
    if plot is not None:
        from lolat.report.plots import front_plot

        front_plot(told, loaded.device, plot)
        common.say(f"drawn: {plot}")


# ---- `lolat nas score`: all candidates of a space into Parquet files, on a cluster if need be.

MOST_ROWS = 20


@common.command("lolat nas score nasbench201 epyc-2t --output scores --only-best")
@common.space_argument
@common.model_argument
@common.output_option(
    required=True, more="A folder: a Parquet file for each range of candidates, and _best.csv. With "
    "--ray on several machines, one that they share.",
)  # fmt: skip
@common.option(
    "--ray", "address", is_flag=False, flag_value="", default=None, metavar="[ADDRESS]",
    help="With Ray Data on the cluster at host:port, or auto; without ADDRESS on that of RAY_ADDRESS, or "
    "on all CPUs of this machine.",
)  # fmt: skip
@common.max_ms_option(more="Only candidates within it.")
@common.option(
    "--best", type=Number("N", whole=True, least=1, most=100_000), default=10, show_default=True,
    help="How many of the best to list: the fastest, or those of the largest --value.",
)  # fmt: skip
@common.option(
    "--value", metavar="FUNCTION",
    help="package.module:callable, from (n, positions) integers to (n,) numbers: what is to be large.",
)  # fmt: skip
@common.option(
    "--label", type=click.Choice(["choices", "arch", "none"]), default="choices",
    show_default=True,
    help="Beside index and latency_ms: a column of integers for each position, or the arch as text.",
)  # fmt: skip
@common.option(
    "--only-best", is_flag=True, help="Write only the best of each range, not all that are kept."
)
@common.option(
    "--chunk", type=common.WHOLE, default=1_000_000, show_default=True,
    help="Candidates in a range, which is a file, and what a killed worker does again.",
)  # fmt: skip
@common.option("--limit", type=common.WHOLE, help="Score the first N candidates only.")
@common.batch_option(default=(1,), show_default=True)
@common.predictor_option
@common.json_option
def score(
    space: str, model: str, output: Path, address: str | None, max_ms: float | None, best: int,
    value: str | None, label: str, only_best: bool, chunk: int, limit: int | None, batch_size: int,
    predictor: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Score all candidates of SPACE on MODEL's device: latencies as Parquet, and the best.

    SPACE: nasbench201, fbnet (224x224), fbnet-cifar (32x32), ofa, mobile, or package.module:callable that
    returns a lolat.nas.Space. A run that was interrupted goes on when the same command is given again.
    """
    from lolat.nas.scoring import here, on_ray

    started = time.monotonic()
    loaded = lolat.load(model)

    def scored(ranges: Any) -> Any:
        with common.progress() as bar:
            return questions.score(
                space, loaded, output, max_ms=max_ms, best=best, value=value, label=label,
                only_best=only_best, chunk=chunk, limit=limit, batch_size=batch_size,
                predictor=predictor, ranges=ranges, progress=bar,
            )  # fmt: skip

    if address is None:
        scores = scored(here)
    else:
        with _connected(address):
            scores = scored(on_ray)
    told = scores.to_dict()
    seconds = time.monotonic() - started
    lines = _score_lines(told, scores.source, scores.reused, seconds)
    common.answer("nas-score", told, as_json, lines)


@contextlib.contextmanager
def _connected(address: str) -> Iterator[None]:
    """Connected to the Ray at `address`; "": that of RAY_ADDRESS, else one that is started on this machine.

    InputError where there is none, MissingPackageError without Ray. When a worker dies Ray prints pages on
    stdout, which is for the answer: they go to stderr.
    """
    import logging
    import socket

    from lolat.nas.adapters import needed
    from lolat.nas.objective import brief

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would send statistics home
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # or it warns of GPUs
    ray = needed("ray", "Ray", "ray")
    address = address or os.environ.get("RAY_ADDRESS", "local")
    host, _, port = address.rpartition(":")
    with contextlib.redirect_stdout(sys.stderr):
        try:
            if host:  # where nothing answers, Ray itself gives up after many minutes
                socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
            ray.init(
                address, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR
            )
        except Exception as error:  # Ray's are of many types
            raise InputError(
                f"no Ray at {address!r} ({brief(error)}); expected host:port of the head of a cluster that "
                "this machine is part of, or auto, or --ray alone as the last argument"
            ) from error
        try:
            yield
        finally:
            ray.shutdown()


def _score_lines(told: dict[str, Any], source: str, reused: int, seconds: float) -> list[str]:
    """The answer as a person reads it."""
    budget = "" if told["max_ms"] is None else f", {told['kept']:,} within {told['max_ms']:g} ms"
    part = "" if told["scored"] == told["size"] else f" of {_candidates(told['size'])}"
    again = f" ({reused} of {told['files']} files were there already)" if reused else ""
    scored = f"{_candidates(told['scored'])}{part} candidates scored in {seconds:.1f} s"
    lines = [f"{told['space']}: {scored}{budget}{again}", f"latencies by {source}"]
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
    return [*lines, "", f"written: {plain(told['output'])}, {files} and _best.csv"]


def _candidates(number: int) -> str:
    """A whole number, in powers of ten where it is long."""
    return f"{number:,}" if number < 10**12 else f"{number:.3g}"
