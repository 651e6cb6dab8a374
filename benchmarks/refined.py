"""A known GPU and twelve own rows: the bundled way alone, then with the level of the rows.

DATA holds timm's tables. Each is predicted with a fifth of the families left out in turn. Of each such
fifth, twelve rows are drawn at random twenty times; they set the level as `lolat fit FILE ROWS` does, and
the other rows of that fifth are judged. `fitted on them alone`: the same formula fitted to the twelve rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.networks import read_timed
from benchmarks.runner import Tables, benchmark, percent
from lolat.fitting.from_tables import FOLDS, held_out_of_folds
from lolat.fitting.roofline import common_ratio, fit_roofline, predicted
from lolat.fitting.times import seen_specs
from lolat.hardware.card_names import find_gpu

ROWS, DRAWS, ALONE = 12, 20, 3
TABLES = (
    "infer-amp-nchw-pt240-cu124-rtx3090", "infer-amp-nchw-pt291-cu128-4090",
    "infer-amp-nchw-pt291-cu130-5090-dynamo", "train-amp-nchw-pt112-cu113-rtx3090",
)  # fmt: skip
HEADER = (
    "table",
    "left out",
    "with twelve rows",
    "worst draw over left out",
    "fitted on them alone",
)


def row(path: Path) -> list[str]:
    """The row of a table: medians of the errors over draws."""
    timed, _ = read_timed(path)
    times, fold = timed.times, timed.folds()
    gpu = find_gpu(path.name)
    log_ratio = np.log(
        times.latency_ms / held_out_of_folds(times, fold, seen_specs(times, gpu), timed.mode)
    )
    rng, found = np.random.default_rng(0), []
    for draw in range(DRAWS):
        for one in range(FOLDS):
            here = rng.permutation(np.flatnonzero(fold == one))
            own, others = here[:ROWS], here[ROWS:]
            left = log_ratio[others]
            after = left - np.log(common_ratio(log_ratio[own]))
            errors = [float(np.median(np.abs(np.expm1(-off)))) for off in (left, after)]
            if draw < ALONE:
                part, rest = (
                    times.take(np.isin(np.arange(len(fold)), some)) for some in (own, others)
                )
                formula = fit_roofline(part, seen_specs(part, gpu), timed.mode)
                off = predicted(formula, rest) / rest.latency_ms - 1.0
                errors.append(float(np.median(np.abs(off))))
            found.append(errors)
    before, after, *_ = zip(*(errors[:2] for errors in found), strict=True)
    alone = np.median([errors[2] for errors in found if len(errors) > 2])
    worst = max(b - a for a, b in zip(before, after, strict=True))
    medians = [percent(float(np.median(errors))) for errors in (before, after)]
    return [
        path.name.removesuffix(".csv.gz"), *medians, f"{100 * worst:+.1f} points", percent(float(alone))
    ]  # fmt: skip


@benchmark("refined", "gpus", "kernels", data="timm's tables")
def refined(data: Path) -> Tables:
    """Twelve own networks or training steps of a known GPU, families left out."""
    return {"refined": (HEADER, [row(data / f"{table}.csv.gz") for table in TABLES])}
