"""A search space's latency on a new device, fitted to a few measured networks.

`fit` makes a `NasModel` (`lolat.nas.sampled`) from a table of measured networks.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lolat.device.file import read
from lolat.errors import InputError, arg
from lolat.io.progress import Progress
from lolat.io.tables import Table, read_table
from lolat.io.writing import AnyPath, check_file
from lolat.nas.pieces import Explanation, explain, outlying, spreads
from lolat.nas.sampled import Costs, NasModel, Sample, Section
from lolat.nas.space import Space
from lolat.nas.user_code import find_space
from lolat.units import plural

ENOUGH_SAMPLES = 10  # with fewer samples a warning says that the prior decides too

# ---- Tables of measured networks.


@dataclass(frozen=True)
class Samples:
    """Measured networks: `rows` (samples, positions) integers, `times` (samples,) ms, all above 0.

    `archs`: their texts; `step`: to which the times were rounded (ms, 0 where it is too fine to see).
    """

    archs: tuple[str, ...]
    rows: np.ndarray
    times: np.ndarray
    step: float


def read_archs(table: Table, space: Space) -> tuple[list[str], np.ndarray]:
    """(texts, (networks, positions) integers) of the column arch of a table, in its order.

    InputError names the line whose text is no network of the space.
    """
    archs = [row["arch"] for row in table]
    return archs, space.parse(archs, lambda i: f"{table.source}, line {table.lines[i]}")


def read_samples(path: AnyPath, space: Space) -> Samples:
    """Samples from a CSV table with the columns arch and latency_ms; others are ignored.

    InputError names the line of a wrong cell.
    """
    table = read_table(os.fspath(path), ("arch", "latency_ms"), rows="measured network")
    archs, rows = read_archs(table, space)
    times = np.array([row.milliseconds() for row in table])
    return Samples(tuple(archs), rows, times, rounding([row["latency_ms"] for row in table]))


def rounding(texts: Sequence[str]) -> float:
    """The step to which times were rounded, ms: 1, 0.1 or 0.01 where all have so few digits, else 0."""
    times = [float(t) for t in texts]
    for digits in (0, 1, 2):
        step = 10.0**-digits
        if all(t > step / 2 and math.isclose(t, round(t, digits), rel_tol=1e-9) for t in times):
            return step
    return 0.0


# ---- Fitting.


def fit(
    space: str | Space,
    samples: AnyPath | Samples,
    output: AnyPath | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> NasModel:
    """Fit a space's latency on a device to a few measured networks; ten rank a space well.

    `space`: a `Space`, "nasbench201", "fbnet" (224x224), "fbnet-cifar" (32x32) or
    "package.module:callable". `samples`: a CSV table with the columns arch and latency_ms. `output`: the
    device's model file, made or added to; None writes none. `name`: of the device, where the file is new.
    Returns a `NasModel`, with its `warnings`. Raises InputError for a table that cannot be used.
    """  # fmt: skip
    check_file(output, "output")
    if name is not None and output is None:
        raise InputError(f"{arg('name')} {name}: it is for the file; expected {arg('output')} too")
    if output is not None and os.path.exists(output):
        read(output)  # a file that is no model is refused before the work
    of_space = find_space(space, progress)
    measured = samples if isinstance(samples, Samples) else read_samples(samples, of_space)
    of_space.prepare(progress)
    explanations = explain(of_space.assumptions(), measured.rows, measured.times, measured.step)
    section = Section(
        samples=[
            Sample(a, t) for a, t in zip(measured.archs, measured.times.tolist(), strict=True)
        ],
        step_ms=measured.step,
        costs=[
            Costs(e.pieces.name, e.weight, e.noise, _shortened(e.pieces.costs(e.parameters)[0]))
            for e in explanations
        ],
        spreads_ms={n: list(map(_shortened, s)) for n, s in spreads(explanations).items()},
        warnings=_warnings(measured, explanations[0]),
        choices=of_space.fingerprint,
    )
    model = NasModel.of(of_space, section)
    if output is not None:
        model.write(output, name)
    return model


def _shortened(values: np.ndarray) -> list[float]:
    """Floats with the digits that are significant."""
    return [float(f"{value:.7g}") for value in values]


def _warnings(samples: Samples, best: Explanation) -> list[str]:
    """What a user should know of the samples, by the likeliest explanation."""
    warnings = []
    count = len(samples.times)
    if count < ENOUGH_SAMPLES:
        warnings.append(
            f"{plural(count, 'sample')}: with fewer than {ENOUGH_SAMPLES} the formula decides much of the "
            "answer; measure more"
        )
    off = outlying(best, samples.rows, samples.times, samples.step)
    for arch, time, factor in zip(samples.archs, samples.times, off, strict=True):
        if factor != 1.0:
            size, way = (factor, "longer") if factor > 1.0 else (1.0 / factor, "shorter")
            warnings.append(
                f"{arch}: {time:g} ms is {size:.3g} times {way} than the other samples say; it "
                "hardly counts: measure it again"
            )
    return warnings
