"""What a search is asked: a space's latency from a few measured networks, the front, all scores."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lolat.io.progress import Progress, Silent
from lolat.io.tables import is_table
from lolat.io.writing import AnyPath
from lolat.model import Model, load
from lolat.nas import fewshot, scoring
from lolat.nas.fewshot import read_samples, space_terms
from lolat.nas.objective import FunctionObjective, TableObjective, find_function, find_space
from lolat.nas.pareto import Search, SearchAnswer, answer
from lolat.nas.scoring import ScoreAnswer
from lolat.nas.scoring_job import CHUNK
from lolat.nas.space import Space, scorer_for


def fit(
    space: str, samples: AnyPath, output: AnyPath | None = None, name: str | None = None
) -> fewshot.NasModel:
    """Fit a space's latency on a device to a few measured networks; ten rank a space well.

    `space`: "nasbench201", "fbnet" (224x224) or "fbnet-cifar" (32x32). `samples`: a CSV table with the
    columns arch and latency_ms. `output`: the device's model file, made or added to; None writes none.
    `name`: what the device is called where the file is new. Returns a `NasModel`, whose `warnings` say what
    is odd. Raises InputError for a table that cannot be used.
    """
    model = fewshot.fit(space, read_samples(os.fspath(samples), space_terms(space)))
    if output is not None:
        fewshot.write(output, model, name)
    return model


def search(
    space: str | Space,
    model: str | Model,
    objective: str | Callable[..., Any],
    *,
    max_ms: float | None = None,
    method: str | None = None,
    candidates: int = 200,
    generations: int = 10,
    seed: int = 0,
    lower_is_better: bool = False,
    batch_size: int = 1,
    predictor: str | None = None,
    journal: str | None = None,
    progress: Progress | None = None,
) -> SearchAnswer:
    """The fastest candidates of a space at each score, and the best at each latency, on a device.

    `space`: a `Space`, a name (nasbench201, fbnet, fbnet-cifar, ofa, mobile) or "package.module:callable".
    `model`: a `Model`, or what `lolat.load` takes. `objective`: a function that scores one candidate (its
    parameter is named arch, candidate or choices), "package.module:callable", or a CSV file (arch, score).
    `max_ms`: only candidates that take at most this. `method`: "evolutionary" or "exhaustive"; None:
    exhaustive for a table and for few candidates. `candidates`: how many an evolutionary search scores, in
    `generations`; `seed`: of its draws. `lower_is_better`: a low score is good, such as a loss.
    `journal`: a file where each score is kept as it comes, and read when the search is run again.

    Returns a `SearchAnswer`. Raises AnswerIsNo where no candidate is within the time, InputError for what
    cannot be.
    """
    shown = progress or Silent()
    searched, loaded = _given(space, model, predictor)
    if searched.decomposition is not None:
        shown.note(f"{searched.name}: {searched.decomposition}")
    scorer = scorer_for(searched, loaded, batch_size, predictor)
    limits = (math.inf if max_ms is None else max_ms, -1.0 if lower_is_better else 1.0)
    how = (method, candidates, generations, seed)
    if isinstance(objective, str) and (is_table(objective) or Path(objective).is_file()):
        wanted = Search(searched, scorer, TableObjective(searched, objective), *limits)
        return answer(wanted, wanted.run(*how), loaded)
    if isinstance(objective, str):
        function, name = find_function(objective), objective
    else:
        function = objective
        name = f"{objective.__module__}:{getattr(objective, '__qualname__', 'objective')}"
    scores = FunctionObjective(searched, function, name, journal)
    wanted = Search(searched, scorer, scores, *limits)
    if scores.reused:
        shown.note(f"{scores.reused} scores are in {scores.journal} already")
    try:
        told = replace(wanted, started=partial(shown.start, "scoring"), done=shown.step)
        return answer(wanted, told.run(*how), loaded)
    except KeyboardInterrupt:
        new = f"{scores.computed} new scores are in {scores.journal}"
        again = f"interrupted; {new}; the same command goes on from there"
        raise KeyboardInterrupt(again if scores.computed and journal else "interrupted") from None


def _given(space: str | Space, model: str | Model, predictor: str | None) -> tuple[Space, Model]:
    """What a space and a model are by name, or themselves; the model has the predictor."""
    loaded = load(model) if isinstance(model, str) else model
    if predictor is not None:
        loaded.predictor(predictor)
    return find_space(space) if isinstance(space, str) else space, loaded


def score(
    space: str | Space,
    model: str | Model,
    output: AnyPath,
    *,
    max_ms: float | None = None,
    best: int = 10,
    value: str | None = None,
    label: str = "choices",
    only_best: bool = False,
    chunk: int = CHUNK,
    limit: int | None = None,
    batch_size: int = 1,
    predictor: str | None = None,
    ranges: scoring.Ranges = scoring.here,
    progress: Progress | None = None,
) -> ScoreAnswer:
    """Score all candidates of a space on a device: latencies as Parquet files, and the best.

    `space`, `model`: as for `search`. `output`: a folder, a file for each `chunk` of candidates. `max_ms`:
    only candidates that take at most this. `best`: how many of the best to list: the fastest, or those of
    the largest `value`, "package.module:callable" from (n, positions) integers to (n,) numbers. `label`:
    beside index and latency_ms, "choices" (a column for each position), "arch" (text) or "none".
    `only_best`: write only the best of each file. `limit`: the first so many candidates only. `ranges`: how
    they are scored, `lolat.nas.scoring.here` or `on_ray`.

    Returns a `ScoreAnswer`. What an interrupted call has done stays, and the same call goes on. Raises
    InputError for what cannot be, LolatError where the disk is full.
    """
    shown = progress or Silent()
    scored, loaded = _given(space, model, predictor)
    scored.grid.countable()
    function = None if value is None else find_function(value)
    job = scoring.make_job(
        scored, loaded, os.fspath(output), batch_size, predictor, limit, value, chunk=chunk, best=best,
        max_ms=math.inf if max_ms is None else max_ms, only_best=only_best, label=label, value=function,
    )  # fmt: skip

    def begin(done: int, left: int) -> None:
        if done:
            shown.note(f"going on: {done} of {done + left} ranges are in {job.folder} already")
        if left:
            shown.start("scoring", left)

    try:
        return scoring.run(job, ranges, begin, shown.step)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; what is done is in {job.folder}, the same command goes on from there"
        ) from None
