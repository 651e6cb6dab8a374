"""Latency of a search space's networks on a device, fitted to a few measured networks.

`fit` makes a `FewShotModel` from a table of measured networks; a device file stores it under `spaces`.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import msgspec
import numpy as np

from lolat.device.device import Device
from lolat.device.file import add_sections, read
from lolat.errors import InputError, ModelFileError, arg
from lolat.graph.counts import COLUMNS
from lolat.io.documents import converted
from lolat.io.paths import AnyPath
from lolat.io.progress import Progress
from lolat.io.writing import check_file
from lolat.nas.cost_fit import FREEDOM, WeightedFit, outlying, spreads, weighted_fits
from lolat.nas.cost_prior import Pieces
from lolat.nas.estimators import LatencyEstimator
from lolat.nas.space import Space
from lolat.nas.user_code import find_space
from lolat.tables.copies import unique
from lolat.tables.devices import rows_of_devices
from lolat.tables.networks import IN_MS, milliseconds
from lolat.units import plural

SAMPLES = "samples"
SHORTEST_OPERATION_US = 0.3  # average over a network's operations; a GPU takes 1 or more
ENOUGH_SAMPLES = 10  # with fewer samples a warning says that the prior decides too

# ---- The model, and its section of a device's file.


class Sample(msgspec.Struct, frozen=True):
    """A measured network and its latency."""

    arch: str
    latency_ms: float


class PieceCosts(msgspec.Struct, frozen=True):
    """The costs of all pieces by one fit, its weight, and the relative noise of measured times."""

    assumption: str
    weight: float
    noise: float
    costs_ms: list[Annotated[float, msgspec.Meta(ge=0.0)]]


class SpaceSection(msgspec.Struct, frozen=True):
    """The samples of a space on a device, and their fits.

    `step_ms`: the unit to which times were rounded (0: no rounding seen). `spreads_ms`: assumption ->
    (directions, pieces) standard deviations of the costs in independent directions. `choices`: the space's
    `fingerprint`; `label`: its name in messages.
    """

    samples: list[Sample]
    step_ms: float
    costs: Annotated[list[PieceCosts], msgspec.Meta(min_length=1)]
    spreads_ms: dict[str, Annotated[list[list[float]], msgspec.Meta(min_length=1)]]
    warnings: list[str]
    choices: str
    label: str = ""


PREDICTED_AT_ONCE = 16384  # networks whose counts are in memory at a time
SLACK = 1.1  # times faster or slower than all samples, and still like them
WIDEST = 14.0  # half an interval, as a logarithm: a factor of a million is no information


@dataclass(frozen=True, kw_only=True, repr=False)
class FewShotModel(LatencyEstimator):
    """Predicts any network of `space`, on the device and at the batch size of the samples."""

    space: Space
    section: SpaceSection

    @classmethod
    def from_section(cls, space: Space, section: SpaceSection) -> FewShotModel:
        """Make a model from the section of a device file."""
        return cls(
            grid=space.grid, batch_size=1, predictor=SAMPLES, space=space, section=section,
            source=f"{plural(len(section.samples), 'measured network')} of {space.label}",
        )  # fmt: skip

    @cached_property
    def pieces(self) -> dict[str, Pieces]:
        """Assumption -> pieces of the space."""
        return {pieces.name: pieces for pieces in self.space.assumptions()}

    def latency(self, candidates: Any) -> np.ndarray:
        """See `LatencyEstimator`: the median over all fits, weighted by their probability."""
        rows = self.grid.checked(candidates)
        return np.exp(self._logarithms(rows, None if len(self._costs) == 1 else 0.5))

    def interval(self, candidates: Any, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        """((n,) lower ends, (n,) upper ends) in ms; `coverage`: probability of a time between them."""
        rows, middle = np.asarray(candidates), np.log(self.latency(candidates))
        ends = (self._logarithms(rows, 0.5 + side * coverage / 2.0) for side in (-1.0, 1.0))
        low, high = (np.exp(middle + np.clip(end - middle, -WIDEST, WIDEST)) for end in ends)
        return low, high

    @cached_property
    def _costs(self) -> dict[str, list[PieceCosts]]:
        """Assumption -> fits under it."""
        names = dict.fromkeys(costs.assumption for costs in self.section.costs)
        return {n: [c for c in self.section.costs if c.assumption == n] for n in names}

    def _logarithms(self, rows: np.ndarray, chance: float | np.ndarray | None) -> np.ndarray:
        """(n,) logarithms of ms below which a measured time is with probability `chance`.

        `chance` None: the mean under the first assumption. Assumptions may disagree widely, for example on
        an operation whose result nothing reads: a mean over all would be a time that none of them expects.
        """
        found = np.zeros(len(rows))
        for begin in range(0, len(rows), PREDICTED_AT_ONCE):
            some = slice(begin, begin + PREDICTED_AT_ONCE)
            each = [self._assumed(name, rows[some], chance is None) for name in self._costs]
            weights, middles, spreads = map(np.array, zip(*each, strict=True))
            part = chance[some] if isinstance(chance, np.ndarray) else chance
            found[some] = (
                middles[0] if part is None else mixed_quantile(weights, middles, spreads, part)
            )
        return found

    def _assumed(
        self, name: str, rows: np.ndarray, middle_only: bool
    ) -> tuple[float, np.ndarray, np.ndarray]:
        """(weight of an assumption, (n,) means, (n,) deviations) of the logarithm of latency.

        The variance is the sum of three: between fits, of uncertain costs, of noisy and rounded times.
        """
        counts, fits, section = self.pieces[name].counts(rows), self._costs[name], self.section
        weights = np.array([fit.weight for fit in fits])
        logs = np.log([counts @ np.array(fit.costs_ms) for fit in fits])
        middle = weights @ logs / weights.sum()
        if middle_only:
            return float(weights.sum()), middle, middle
        of_costs = np.sum((counts @ np.transpose(section.spreads_ms[name])) ** 2, axis=1)
        noise = np.array([[fit.noise**2] for fit in fits])
        each = of_costs * np.exp(-2.0 * logs) + (logs - middle) ** 2 + noise
        rounded = section.step_ms**2 / 12.0 * np.exp(-2.0 * middle)
        variance = weights @ each / weights.sum() + rounded
        return float(weights.sum()), middle, np.sqrt(variance)

    def inside(self, latencies: np.ndarray) -> np.ndarray:
        """(n,) True for latencies between the fastest and slowest sample, with SLACK on both sides."""
        measured = [sample.latency_ms for sample in self.section.samples]
        return (latencies >= min(measured) / SLACK) & (latencies <= max(measured) * SLACK)

    def predict(self, archs: Sequence[str]) -> np.ndarray:
        """(n,) ms of networks given as text; InputError for text that is not a network."""
        return self.latency(self.space.parse(archs))

    @property
    def warnings(self) -> list[str]:
        """Remarks on the samples."""
        return self.section.warnings

    @property
    def noise(self) -> float:
        """Relative noise of a measured time, averaged over the fits."""
        return math.sqrt(sum(c.weight * c.noise**2 for c in self.section.costs))

    def error_of(self, share: float) -> float:
        """The expected relative error that this share of the space's networks does not exceed."""
        rows = self.space.sample(2000)
        chances = (np.random.default_rng(0).permutation(len(rows)) + 0.5) / len(rows)
        errors = np.abs(self._logarithms(rows, chances) - np.log(self.latency(rows)))
        return float(np.expm1(np.quantile(errors, share)))

    def write(self, path: AnyPath, device: str | None = None) -> None:
        """Write the model into the device file at `path`, which may be new; errors as in `add_sections`."""
        add_sections(path, {"spaces": {self.space.name: msgspec.to_builtins(self.section)}}, device)


HALVINGS = 30  # of the interval between the quantiles of all parts; it is 28 wide at most


def mixed_quantile(
    weights: np.ndarray, middles: np.ndarray, spreads: np.ndarray, chance: float | np.ndarray
) -> np.ndarray:
    """(n,) quantiles of mixtures of Student's t distributions with FREEDOM degrees of freedom.

    `weights`: (parts,) weights with sum 1; `middles`, `spreads`: (parts, n) medians and scales.
    """
    from scipy.special import stdtr, stdtrit

    parts = middles + stdtrit(FREEDOM, chance) * spreads
    low, high = parts.min(axis=0), parts.max(axis=0)
    for _ in range(HALVINGS if len(parts) > 1 else 0):
        middle = (low + high) / 2.0
        below = weights @ stdtr(FREEDOM, (middle - middles) / spreads) < chance
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return np.asarray((low + high) / 2.0)


def from_model(device: Device, space: Space) -> FewShotModel:
    """Read the fitted model of `space` from a device file; ModelFileError if it is damaged."""
    place = f"$.spaces.{space.name}"
    found = device.file.spaces[space.name]
    section: SpaceSection = converted(found, SpaceSection, device.source, place)
    if section.choices != space.fingerprint:
        raise ModelFileError(
            f"{device.source}: its samples of {space.name} were measured before its choices or networks "
            "changed; expected the space as it was, or samples of this one: lolat nas fit",
            code="other-choices",
        )
    fitted = FewShotModel.from_section(space, section)
    for costs in section.costs:
        pieces = fitted.pieces.get(costs.assumption)
        if pieces is None or len(costs.costs_ms) != len(pieces.terms):
            raise ModelFileError(
                f"{device.source}: its `spaces.{space.name}` has costs of another space; fit its samples "
                "again: lolat nas fit"
            )
    return fitted


# ---- Fitting.


@dataclass(frozen=True)
class Samples:
    """Measured networks: texts, (samples, positions) integers, (samples,) times in ms, rounding in ms.

    `remarks`: remarks on the table; `device`: the name in its column device, "" without this column.
    """

    archs: tuple[str, ...]
    rows: np.ndarray
    times: np.ndarray
    step: float
    remarks: tuple[str, ...] = ()
    device: str = ""


def read_samples(path: AnyPath, space: Space, device: str | None = None) -> Samples:
    """Read samples from a CSV table with columns arch and latency_ms; InputError names a wrong line.

    Times may also be in columns latency_s or latency_us. `device`: the device whose rows are read, if the
    table has a column device. Duplicate rows count once.
    """
    table = space.read_table(path, named="arch,latency_ms (or latency_s, latency_us)")
    column = next((c for c in ("latency_ms", *IN_MS) if c in table.names), "latency_ms")
    table.require([column], "measured network")
    table = rows_of_devices(table, [device] if device else ())
    remarks: list[str] = []
    for row in table:
        row.whole("batch_size", 1, 1, "1, the batch size of a space's samples", default=1)
    rows = space.parse_table(table)
    times = [milliseconds(row, column) for row in table]
    keyed = [((row["arch"], ms), at) for at, (row, ms) in enumerate(zip(table, times, strict=True))]
    places = unique(keyed, remarks.append)
    table.say_unread(remarks.append)
    kept = [table.row(at) for at in places]
    return Samples(
        tuple(row["arch"] for row in kept),
        rows[places],
        np.array([times[at] for at in places]),
        rounding([f"{times[at]:.12g}" for at in places]),
        tuple(remarks),
        next((row.get("device", "") for row in kept), ""),
    )


def rounding(texts: Sequence[str]) -> float:
    """The unit in ms to which times are rounded: 1, 0.1 or 0.01, or 0 if they have more decimals."""
    times = [float(t) for t in texts]
    for digits in (0, 1, 2):
        step = 10.0**-digits
        if all(t > step / 2 and math.isclose(t, round(t, digits), rel_tol=1e-9) for t in times):
            return step
    return 0.0


def fit(
    space: str | Space,
    samples: AnyPath | Samples,
    output: AnyPath | None = None,
    name: str | None = None,
    progress: Progress | None = None,
) -> FewShotModel:
    """Fit a space's latency on a device to a few measured networks; ten are enough to rank a space well.

    `space`: as for `search`. `samples`: a CSV table with the columns arch and latency_ms (or latency_s,
    latency_us). `output`: the device's profile, new or extended; None: no file is written. `name`: the
    device's name, if the file is new. Returns a `FewShotModel`, with its `warnings`. Raises InputError for
    a table that cannot be used.
    """
    check_file(output, "output")
    if name is not None and output is None:
        raise InputError(
            f"{arg('name')} {name}: a name for the file; expected {arg('output')} too", code="name"
        )
    # A file that is no profile is refused before the work.
    device = read(output).device if output is not None and os.path.exists(output) else ""
    of_space = find_space(space)
    measured = samples if isinstance(samples, Samples) else read_samples(samples, of_space, name)
    of_space.prepare(progress)
    found = weighted_fits(of_space.assumptions(), measured.rows, measured.times, measured.step)
    section = SpaceSection(
        samples=list(map(Sample, measured.archs, measured.times.tolist())),
        step_ms=measured.step,
        costs=[
            PieceCosts(
                e.pieces.name, e.weight, e.noise, _shortened(e.pieces.costs(e.parameters)[0])
            )
            for e in found
        ],
        spreads_ms={n: list(map(_shortened, s)) for n, s in spreads(found).items()},
        warnings=_warnings(measured, found[0], of_space),
        choices=of_space.fingerprint,
        label=of_space.label,
    )
    if device and measured.device not in device:
        section.warnings.append(f"the samples are of {measured.device}, the file is of {device}")
    model = FewShotModel.from_section(of_space, section)
    if output is not None:
        model.write(output, name)
    return model


def _shortened(values: np.ndarray) -> list[float]:
    """Round floats to the digits that a file stores."""
    return [float(f"{value:.7g}") for value in values]


def _warnings(samples: Samples, best: WeightedFit, space: Space) -> list[str]:
    """Remarks on the samples, judged by the likeliest fit."""
    warnings = [*samples.remarks]
    count = len(samples.times)
    ops = space.counts(samples.rows)[:, COLUMNS.index("ops")]
    each_us = float(np.median(1000.0 * samples.times / ops))
    if each_us < SHORTEST_OPERATION_US:
        warnings.append(
            f"the latencies are {each_us:.2g} µs for each operation, shorter than on any known device; "
            "expected milliseconds: are these seconds?"
        )
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
