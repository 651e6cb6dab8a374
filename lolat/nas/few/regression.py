"""The robust fit of a space's costs: the most probable ones under each assumption, and how likely it is.

Bayesian regression of the logarithm of the latency. The noise is Student's t with four degrees of
freedom (Lange, Little and Taylor, JASA 1989), so an absurd reading hardly counts; its scale is not known
and each of NOISES is tried. Every (assumption, noise) is weighed by its evidence in Laplace's
approximation (MacKay, Neural Computation 4, 1992), and predictions are averaged with these weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lolat.nas.few.terms import Pieces

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
    found = []
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
            found.append(Explanation(pieces, noise, start, curvature, float(evidence)))
    found.sort(key=lambda explanation: -explanation.log_evidence)
    weights = np.exp([e.log_evidence - found[0].log_evidence for e in found])
    weights[weights < SMALLEST_WEIGHT * weights.sum()] = 0.0
    weights /= weights.sum()
    return [(float(w), e) for w, e in zip(weights, found, strict=True) if w > 0.0]


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
