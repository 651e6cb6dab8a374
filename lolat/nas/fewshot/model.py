"""A search space's latency on one device: fitted from samples, asked for many networks, kept in a file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import msgspec
import numpy as np

from lolat.errors import ModelFileError
from lolat.io.documents import fault_of
from lolat.io.writing import AnyPath, shown_path
from lolat.model.file import lacks, put
from lolat.model.file import read as read_document
from lolat.nas.fewshot.pieces import Pieces
from lolat.nas.fewshot.samples import ENOUGH_SAMPLES, SPACES, Samples, SpaceTerms, space_terms
from lolat.units import plural

# ---- The robust fit of a space's costs: the most probable ones under each assumption, and how
# likely it is.
#
# Bayesian regression of the logarithm of the latency. The noise is Student's t with four degrees of
# freedom (Lange, Little and Taylor, JASA 1989), so an absurd reading hardly counts; its scale is not known
# and each of NOISES is tried. Every (assumption, noise) is weighed by its evidence in Laplace's
# approximation (MacKay, Neural Computation 4, 1992), and predictions are averaged with these weights.

FREEDOM = 4.0
NOISES = (0.12, 0.06, 0.03, 0.015, 0.0075, 0.00375, 0.0019)
"""Scales of the noise, relative: from a busy phone to a simulator."""
SMALLEST_WEIGHT = 0.01  # an explanation that counts for less is left out

_ROUNDS = 40
_LONGEST_STEP = 3.0  # in a logarithm; beyond it a linear step says nothing
_CLOSE = 1e-5


@dataclass(frozen=True)
class Explanation:
    """The samples explained under one assumption at one scale of the noise.

    `parameters`: (size,); `precision`: (size, size) inverse of their covariance; `log_evidence` up to a
    constant that all explanations of the same samples share.
    """

    pieces: Pieces
    noise: float
    parameters: np.ndarray
    precision: np.ndarray
    log_evidence: float


@dataclass(frozen=True)
class _Problem:
    """Samples under one assumption: counts (networks, pieces), log times, variance of rounding."""

    pieces: Pieces
    counts: np.ndarray
    log_times: np.ndarray
    rounding: float
    noise: float

    def cost(self, parameters: np.ndarray) -> float:
        """Minus the log of prior times likelihood, without constants."""
        times = self.counts @ self.pieces.costs(parameters)[0]
        variance = self.noise**2 + self.rounding / times**2
        error = self.log_times - np.log(times)
        likelihood = 0.5 * (FREEDOM + 1.0) * np.log1p(error**2 / variance / FREEDOM)
        prior = 0.5 * np.sum((parameters / self.pieces.prior_spread) ** 2)
        return float(np.sum(likelihood + 0.5 * np.log(variance)) + prior)

    def slopes(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(direction of ascent, curvature), Gauss-Newton with the weights of Student's t."""
        times, jacobian = self.pieces.latency(self.counts, parameters)
        variance = self.noise**2 + self.rounding / times**2
        error = self.log_times - np.log(times)
        weight = (FREEDOM + 1.0) / (FREEDOM + error**2 / variance) / variance
        precision = self.pieces.prior_spread**-2.0
        curvature = (jacobian.T * weight) @ jacobian + np.diag(precision)
        return jacobian.T @ (weight * error) - precision * parameters, curvature


def explain(
    assumptions: Sequence[Pieces], rows: np.ndarray, times: np.ndarray, step: float = 0.0
) -> list[tuple[float, Explanation]]:
    """Explanations of the samples with their weights, which add up to 1; the likeliest first.

    `rows`: (samples, positions) integers; `times`: (samples,) ms, above 0; `step`: ms, what the times
    were rounded to.
    """
    explanations: list[Explanation] = []
    for pieces in assumptions:
        counts = pieces.counts(rows)
        start = np.zeros(pieces.size)
        start[0] = np.median(np.log(times) - np.log(counts @ pieces.costs(start)[0]))
        for noise in NOISES:  # from the largest down: each begins where the one before ended
            problem = _Problem(pieces, counts, np.log(times), step**2 / 12.0, noise)
            start = _most_probable(problem, start)
            curvature = problem.slopes(start)[1]
            evidence = (
                pieces.log_prior
                - problem.cost(start)
                - 0.5 * np.linalg.slogdet(curvature)[1]
                - np.sum(np.log(pieces.prior_spread))
            )
            explanations.append(Explanation(pieces, noise, start, curvature, float(evidence)))
    explanations.sort(key=lambda explanation: -explanation.log_evidence)
    weights = np.exp([e.log_evidence - explanations[0].log_evidence for e in explanations])
    weights[weights < SMALLEST_WEIGHT * weights.sum()] = 0.0
    weights /= weights.sum()
    return [(float(w), e) for w, e in zip(weights, explanations, strict=True) if w > 0.0]


def _most_probable(problem: _Problem, parameters: np.ndarray) -> np.ndarray:
    """Levenberg-Marquardt from `parameters` to the nearest most probable ones."""
    cost, damping = problem.cost(parameters), 1e-3
    for _ in range(_ROUNDS):
        ascent, curvature = problem.slopes(parameters)
        better = False
        while not better and damping < 1e6:
            damped = curvature + damping * np.diag(np.diag(curvature))
            move = np.linalg.solve(damped, ascent)
            move *= min(1.0, _LONGEST_STEP / max(float(np.abs(move).max()), 1e-300))
            tried = problem.cost(parameters + move)
            better = tried <= cost
            damping = max(damping / 10.0, 1e-9) if better else max(damping * 10.0, 1e-6)
        if not better:
            break
        gain, cost, parameters = cost - tried, tried, parameters + move
        if gain < _CLOSE:
            break
    return parameters


def outlying(
    explanations: Sequence[tuple[float, Explanation]],
    rows: np.ndarray,
    times: np.ndarray,
    step: float = 0.0,
) -> np.ndarray:
    """(samples,) factors by which readings are off where the fit takes them for absurd, else 1.

    Judged by the likeliest explanation: absurd is beyond 8 of its noise scales and off by a quarter.
    """
    best = explanations[0][1]
    predicted = best.pieces.counts(rows) @ best.pieces.costs(best.parameters)[0]
    error = np.log(times) - np.log(predicted)
    scale = np.sqrt(best.noise**2 + step**2 / 12.0 / predicted**2)
    absurd = (np.abs(error) > 8.0 * scale) & (np.abs(error) > np.log(1.25))
    factors: np.ndarray = np.where(absurd, np.exp(error), 1.0)
    return factors


# ---- What became of a fit: the costs of pieces under each explanation, and how unsure they are.

_DIRECTIONS = 32  # in which costs may be off together: at most so many are kept
_KEPT = 0.99  # of their variance
CHUNK = 16384  # networks whose counts are in memory at a time
_DIGITS = 7
WIDEST = 14.0  # half an interval, as a logarithm: a factor of a million says nothing any more
TOO_MANY_FAR_OFF = 0.25  # of the samples far off: rather something wrong than a few absurd readings
_EXPECTED = "fit its samples again: lolat nas fit"


@dataclass(frozen=True)
class Costs:
    """What each piece of the space costs under one explanation of the samples.

    `assumption`: name of the `Pieces`; `weight` in the average; `noise`: relative scale of a reading's
    error; `costs_ms`: (pieces,).
    """

    assumption: str
    weight: float
    noise: float
    costs_ms: np.ndarray


@dataclass(frozen=True)
class NasModel:
    """Latency of any network of `space` on the device that was sampled.

    `archs`, `times_ms`: the samples; `step_ms`: what they were rounded to (0: not seen); `costs`: one
    for each explanation; `spreads_ms`: by assumption (directions, pieces), how unsure its costs are
    together, as standard deviations in directions that are independent of each other; `warnings`:
    what the user should know.
    """

    space: str
    archs: tuple[str, ...]
    times_ms: tuple[float, ...]
    step_ms: float
    costs: tuple[Costs, ...]
    spreads_ms: dict[str, np.ndarray]
    warnings: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Without the space's functions, which another process finds itself."""
        return {k: v for k, v in self.__dict__.items() if k != "terms"}

    @cached_property
    def terms(self) -> SpaceTerms:
        """The space's encoding and assumptions."""
        return space_terms(self.space)

    @property
    def noise(self) -> float:
        """Relative scale of a reading's error, averaged over the explanations."""
        return float(np.sqrt(sum(c.weight * c.noise**2 for c in self.costs)))

    def assumptions(self) -> list[tuple[str, float]]:
        """(words, weight) of each assumption on how the device runs networks, the likeliest first."""
        weights = [
            (pieces.words, float(sum(c.weight for c in self.costs if c.assumption == pieces.name)))
            for pieces in self.terms.assumptions
        ]
        return sorted(weights, key=lambda pair: -pair[1])

    def latency_ms(self, rows: np.ndarray) -> np.ndarray:
        """(networks,) latencies of (networks, positions) integers: the explanations' geometric mean."""
        parts = [self._logarithm(rows[i : i + CHUNK]) for i in range(0, len(rows), CHUNK)]
        return np.exp(np.concatenate(parts)) if parts else np.empty(0)

    def interval_ms(self, rows: np.ndarray, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """((networks,) low, (networks,) high) that hold a reading with probability `coverage`.

        As wide as explanations are apart, costs unsure (to first order) and readings noisy; with the
        tails of Student's t as in the fit.
        """
        from scipy.stats import t

        middle = self.latency_ms(rows)
        variance = np.zeros(len(rows))
        for begin in range(0, len(rows), CHUNK):
            some = slice(begin, begin + CHUNK)
            known = self._counts(rows[some])
            center = np.log(middle[some])
            moved = {
                name: np.sum((known[name] @ spreads.T) ** 2, axis=1)
                for name, spreads in self.spreads_ms.items()
            }
            for costs in self.costs:
                counts = known[costs.assumption]
                times = counts @ costs.costs_ms
                unsure = moved[costs.assumption] / times**2
                apart = (np.log(times) - center) ** 2
                variance[some] += costs.weight * (unsure + apart + costs.noise**2)
        variance += self.step_ms**2 / 12.0 / middle**2
        width = t.ppf(0.5 + coverage / 2.0, FREEDOM) * np.sqrt(variance)
        factor = np.exp(np.minimum(width, WIDEST))
        return middle / factor, middle * factor

    def predict(self, archs: Sequence[str]) -> np.ndarray:
        """(networks,) latencies in milliseconds of networks as text. InputError for what is none."""
        return self.latency_ms(self.terms.parse_many(archs))

    def to_section(self) -> dict[str, Any]:
        """The model as it stands in a device's file, under its space; see `_Section`."""
        samples = zip(self.archs, self.times_ms, strict=True)
        return {
            "samples": [{"arch": arch, "latency_ms": time} for arch, time in samples],
            "step_ms": self.step_ms,
            "costs": [{**vars(c), "costs_ms": _shortened(c.costs_ms)} for c in self.costs],
            "spreads_ms": {n: list(map(_shortened, s)) for n, s in self.spreads_ms.items()},
            "warnings": list(self.warnings),
        }

    def _counts(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Counts of the pieces, by assumption."""
        used = {c.assumption for c in self.costs}
        return {name: self.terms.assumption(name).counts(rows) for name in used}

    def _logarithm(self, rows: np.ndarray) -> np.ndarray:
        """(networks,) logarithms of the latencies."""
        known = self._counts(rows)
        total = np.zeros(len(rows))
        for costs in self.costs:
            total += costs.weight * np.log(known[costs.assumption] @ costs.costs_ms)
        return total


def fit(space: str, samples: Samples) -> NasModel:
    """The model of a space from samples of it; with fewer than ENOUGH_SAMPLES the prior says much of it."""
    terms = space_terms(space)
    explanations = explain(terms.assumptions, samples.rows, samples.times, samples.step)
    costs = tuple(
        Costs(e.pieces.name, weight, e.noise, e.pieces.costs(e.parameters)[0])
        for weight, e in explanations
    )
    times_ms = tuple(float(t) for t in samples.times)
    warnings = (*samples.remarks, *_warnings(samples, explanations))
    return NasModel(
        space, samples.archs, times_ms, samples.step, costs, _spreads(explanations), warnings
    )


def _spreads(explanations: Sequence[tuple[float, Explanation]]) -> dict[str, np.ndarray]:
    """How unsure the costs are, to first order: principal directions of their covariance."""
    covariance: dict[str, np.ndarray] = {}
    total: dict[str, float] = {}
    for weight, explanation in explanations:
        name = explanation.pieces.name
        _, slopes = explanation.pieces.costs(explanation.parameters)
        own = slopes @ np.linalg.inv(explanation.precision) @ slopes.T
        covariance[name] = covariance.get(name, 0.0) + weight * own
        total[name] = total.get(name, 0.0) + weight
    spreads = {}
    for name, summed in covariance.items():
        _, sizes, directions = np.linalg.svd(summed / total[name], hermitian=True)
        kept = 1 + int(np.searchsorted(np.cumsum(sizes), _KEPT * sizes.sum()))
        spreads[name] = (np.sqrt(sizes[:, None]) * directions)[: min(kept, _DIRECTIONS)]
    return spreads


def _warnings(samples: Samples, explanations: Sequence[tuple[float, Explanation]]) -> list[str]:
    """What a user should know of the samples."""
    told = []
    count = len(samples.times)
    if count < ENOUGH_SAMPLES:
        told.append(
            f"{plural(count, 'sample')}: with fewer than {ENOUGH_SAMPLES} the formula says much of the "
            "answer; measure more (`lolat nas suggest --have` names which)"
        )
    off = outlying(explanations, samples.rows, samples.times, samples.step)
    strange = int(np.sum(off != 1.0))
    if strange > TOO_MANY_FAR_OFF * count:
        told.append(
            f"{strange} of {count} samples lie far from what the others say: trust no answer before it "
            "is clear that all are milliseconds, of one device and one batch size"
        )
    for arch, time, factor in zip(samples.archs, samples.times, off, strict=True):
        if factor != 1.0:
            size, way = (factor, "longer") if factor > 1.0 else (1.0 / factor, "shorter")
            told.append(
                f"{arch}: {time:g} ms is {size:.3g} times {way} than the other samples say; it "
                "hardly counts: measure it again"
            )
    return told


def _shortened(values: np.ndarray) -> list[float]:
    """Floats with as many digits as mean something."""
    return [float(f"{value:.{_DIGITS}g}") for value in values]


# ---- The file.


MOST_MS, MOST_NOISE = 1e15, 100.0
"""Nothing takes longer, and sums are finite; a hundredth of such noise says nothing any more."""
_Cost = Annotated[float, msgspec.Meta(ge=0.0, le=MOST_MS)]
_Spread = Annotated[float, msgspec.Meta(ge=-MOST_MS, le=MOST_MS)]


class _Sample(msgspec.Struct):
    arch: str
    latency_ms: Annotated[float, msgspec.Meta(gt=0.0, le=MOST_MS)]


class _Costs(msgspec.Struct):
    assumption: str
    weight: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
    noise: Annotated[float, msgspec.Meta(ge=0.0, le=MOST_NOISE)]
    costs_ms: list[_Cost]


class _Section(msgspec.Struct):
    """What a device's file holds of a space."""

    samples: list[_Sample]
    step_ms: _Cost
    costs: Annotated[list[_Costs], msgspec.Meta(min_length=1)]
    spreads_ms: dict[str, Annotated[list[list[_Spread]], msgspec.Meta(min_length=1)]]
    warnings: list[str]


def write(path: AnyPath, model: NasModel, device: str | None = None) -> None:
    """Put the model into the device's file at `path`, which may be new; errors as of `put`."""
    put(path, "spaces", {model.space: model.to_section()}, device)


def read(path: AnyPath, space: str | None = None) -> NasModel:
    """What the device's file at `path` knows of a space; None: of the only one.

    ModelFileError names what is wrong: no such file, not JSON, no such space in it, or a field that is
    missing or of another shape.
    """
    return from_document(read_document(path), shown_path(path), space)


def from_document(document: Mapping[str, Any], source: str, space: str | None = None) -> NasModel:
    """The same of a valid file's document; `source` begins the message of a ModelFileError."""
    spaces = document.get("spaces", {})
    if space is None:
        space = next(iter(spaces)) if len(spaces) == 1 else "SPACE"
    if space not in spaces:
        raise lacks(document, source, space)
    if space not in SPACES:
        raise ModelFileError(
            f"{source}: a model of the space {space!r}; expected one of {', '.join(SPACES)}"
        )
    section = spaces[space]
    if fault := fault_of(section, _Section, f"spaces.{space}"):
        raise ModelFileError(f"{source}: {fault}")
    pieces = {p.name: len(p.terms) for p in space_terms(space).assumptions}
    if fault := _fault(section, pieces):
        raise ModelFileError(f"{source}: its `spaces.{space}` is damaged ({fault}); {_EXPECTED}")
    return NasModel(
        space,
        tuple(s["arch"] for s in section["samples"]),
        tuple(float(s["latency_ms"]) for s in section["samples"]),
        float(section["step_ms"]),
        tuple(
            Costs(c["assumption"], c["weight"], c["noise"], np.array(c["costs_ms"], float))
            for c in section["costs"]
        ),
        {
            name: np.array(section["spreads_ms"][name], float)
            for name in {c["assumption"] for c in section["costs"]}
        },
        tuple(section["warnings"]),
    )


def _fault(section: Mapping[str, Any], pieces: dict[str, int]) -> str:
    """What is wrong with a section of the right shape, "" for nothing; `pieces`: by assumption."""
    for costs in section["costs"]:
        name = costs["assumption"]
        if name not in pieces:
            return f"unknown assumption {name!r}"
        if len(costs["costs_ms"]) != pieces[name] or costs["costs_ms"][0] <= 0.0:
            return f"`costs_ms` are not {pieces[name]} numbers, the first above 0"
        spreads = section["spreads_ms"].get(name)
        if spreads is None or {len(direction) for direction in spreads} != {pieces[name]}:
            return f"`spreads_ms` has no directions of {pieces[name]} numbers for {name!r}"
    if not math.isclose(sum(c["weight"] for c in section["costs"]), 1.0, rel_tol=1e-6):
        return "the weights of `costs` do not add up to 1"
    return ""
