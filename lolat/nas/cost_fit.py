"""Fits the costs of `lolat.nas.cost_prior` to a few measured networks, robustly.

Bayesian regression of the logarithm of latency. The noise is Student's t with four degrees of freedom
(Lange, Little and Taylor, JASA 1989), so that outliers hardly count; its scale is unknown, and each of
NOISES is tried. The average over all fits weights each (assumption, noise scale) by its evidence in
Laplace's approximation (MacKay, Neural Computation 4, 1992).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lolat.nas.cost_prior import Pieces

FREEDOM = 4.0
NOISES = (0.12, 0.06, 0.03, 0.015, 0.0075, 0.00375, 0.0019)
"""Relative scales of the noise, from a busy phone to a simulator."""
SMALLEST_WEIGHT = 0.01  # fits with a smaller weight are dropped

_ROUNDS = 40
_LONGEST_STEP = 3.0  # limit on a step of a logarithm: the linear model does not hold further
_CLOSE = 1e-5
_MOST_DIRECTIONS = 32  # principal directions that are kept of the costs' covariance
_VARIANCE = 0.99  # share of the variance that the kept directions must explain


@dataclass(frozen=True)
class WeightedFit:
    """A fit under one assumption and one noise scale; the weights of all fits add up to 1."""

    pieces: Pieces
    noise: float
    parameters: np.ndarray
    precision: np.ndarray
    weight: float


@dataclass(frozen=True)
class _Problem:
    """Samples under one assumption: (networks, pieces) counts, log times, variance by rounding."""

    pieces: Pieces
    counts: np.ndarray
    log_times: np.ndarray
    rounding: float
    noise: float

    def cost(self, parameters: np.ndarray) -> float:
        """The negative log posterior, -log(prior * likelihood), without constants."""
        times = self.counts @ self.pieces.costs(parameters)[0]
        variance = self.noise**2 + self.rounding / times**2
        error = self.log_times - np.log(times)
        likelihood = 0.5 * (FREEDOM + 1.0) * np.log1p(error**2 / variance / FREEDOM)
        prior = 0.5 * np.sum((parameters / self.pieces.prior_spread) ** 2)
        return float(np.sum(likelihood + 0.5 * np.log(variance)) + prior)

    def slopes(self, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(gradient, Gauss-Newton curvature) of `cost`, with the weights of Student's t."""
        times, jacobian = self.pieces.latency(self.counts, parameters)
        variance = self.noise**2 + self.rounding / times**2
        error = self.log_times - np.log(times)
        weight = (FREEDOM + 1.0) / (FREEDOM + error**2 / variance) / variance
        precision = self.pieces.prior_spread**-2.0
        curvature = (jacobian.T * weight) @ jacobian + np.diag(precision)
        return jacobian.T @ (weight * error) - precision * parameters, curvature

    def most_probable(self, parameters: np.ndarray) -> np.ndarray:
        """The local maximum of the posterior, by Levenberg-Marquardt from `parameters`."""
        cost, damping = self.cost(parameters), 1e-3
        for _ in range(_ROUNDS):
            ascent, curvature = self.slopes(parameters)
            better = False
            while not better and damping < 1e6:
                damped = curvature + damping * np.diag(np.diag(curvature))
                move = np.linalg.solve(damped, ascent)
                move *= min(1.0, _LONGEST_STEP / max(float(np.abs(move).max()), 1e-300))
                tried = self.cost(parameters + move)
                better = tried <= cost
                damping = max(damping / 10.0, 1e-9) if better else max(damping * 10.0, 1e-6)
            if not better:
                break
            gain, cost, parameters = cost - tried, tried, parameters + move
            if gain < _CLOSE:
                break
        return parameters


def weighted_fits(
    assumptions: Sequence[Pieces], rows: np.ndarray, times: np.ndarray, step: float = 0.0
) -> list[WeightedFit]:
    """Fit samples under each assumption and noise scale; the likeliest fit comes first.

    `rows`: (samples, positions); `times`: (samples,) ms; `step`: the unit in ms to which times are rounded.
    """
    fits: list[tuple[Pieces, float, np.ndarray, np.ndarray]] = []
    log_evidence: list[float] = []  # up to a constant
    for pieces in assumptions:
        counts = pieces.counts(rows)
        start = np.zeros(pieces.size)
        start[0] = np.median(np.log(times) - np.log(counts @ pieces.costs(start)[0]))
        for noise in NOISES:  # the largest first: each fit begins at the result of the one before
            problem = _Problem(pieces, counts, np.log(times), step**2 / 12.0, noise)
            start = problem.most_probable(start)
            curvature = problem.slopes(start)[1]
            fits.append((pieces, noise, start, curvature))
            volume = 0.5 * np.linalg.slogdet(curvature)[1] + np.sum(np.log(pieces.prior_spread))
            log_evidence.append(pieces.log_prior - problem.cost(start) - volume)
    order = sorted(range(len(fits)), key=lambda i: -log_evidence[i])
    weights = np.exp([log_evidence[i] - log_evidence[order[0]] for i in order])
    weights[weights < SMALLEST_WEIGHT * weights.sum()] = 0.0
    weights /= weights.sum()
    return [WeightedFit(*fits[i], float(w)) for i, w in zip(order, weights, strict=True) if w > 0]


def outlying(
    best: WeightedFit, rows: np.ndarray, times: np.ndarray, step: float = 0.0
) -> np.ndarray:
    """(samples,) measured / predicted for outliers (off by a quarter and 8 noise scales); 1 for others."""
    predicted = best.pieces.counts(rows) @ best.pieces.costs(best.parameters)[0]
    error = np.log(times) - np.log(predicted)
    scale = np.sqrt(best.noise**2 + step**2 / 12.0 / predicted**2)
    absurd = (np.abs(error) > 8.0 * scale) & (np.abs(error) > np.log(1.25))
    return np.where(absurd, np.exp(error), 1.0)


def spreads(fits: Sequence[WeightedFit]) -> dict[str, np.ndarray]:
    """Assumption -> (directions, pieces) principal directions of the costs' covariance."""
    directions_of = {}
    for name in dict.fromkeys(e.pieces.name for e in fits):
        same = [e for e in fits if e.pieces.name == name]
        slopes = [e.pieces.costs(e.parameters)[1] for e in same]
        each = [s @ np.linalg.inv(e.precision) @ s.T for s, e in zip(slopes, same, strict=True)]
        summed = sum(e.weight * spread for e, spread in zip(same, each, strict=True))
        mean = summed / sum(e.weight for e in same)
        _, sizes, directions = np.linalg.svd(mean, hermitian=True)
        count = 1 + int(np.searchsorted(np.cumsum(sizes), _VARIANCE * sizes.sum()))
        scaled = np.sqrt(sizes[:, None]) * directions
        directions_of[name] = scaled[: min(count, _MOST_DIRECTIONS)]
    return directions_of
