"""Which networks to measure next: those that leave the least doubt about all the others.

Bayesian experimental design (Chaloner and Verdinelli, Statistical Science 10, 1995, section 2): of all
candidates the one is taken whose measurement lowers the mean variance of log latency over all of them the
most, then the next given that one, and so on. The latency is not linear in what is not known, so the
variance is a mean over several devices: drawn from the prior, or, with measurements at hand, those that
explain them. That it is not known whether operations without effect are executed is one more direction.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lolat.errors import InputError
from lolat.nas.fewshot.model import Explanation, explain
from lolat.nas.fewshot.pieces import Pieces
from lolat.nas.fewshot.samples import Samples, SpaceTerms

DEVICES = 8  # drawn from the prior, for each assumption
NOISE = 0.03  # of a measurement, where nothing is measured yet
KNOWN_SCALE = 10.0  # spread of the scale before the first measurement: any, yet well-conditioned


class Device:
    """One possible device, and what is not known of it.

    `slopes`: (candidates, parameters) of log latency; `covariance` of the parameters; `variance` of the
    noise. Kept up to date with each measurement, in time linear in the parameters: `moved`, slopes
    times covariance; `own`, each candidate's variance; `shared`, its covariances with all candidates,
    squared and averaged; `total`, the mean variance.
    """

    def __init__(self, slopes: np.ndarray, covariance: np.ndarray, variance: float) -> None:
        self.slopes, self.variance = slopes, variance
        self.average = slopes.T @ slopes / len(slopes)
        self.moved = slopes @ covariance
        self.own = np.einsum("ij,ij->i", self.moved, slopes)
        self.shared = np.einsum("ij,ij->i", self.moved @ self.average, self.moved)
        self.total = float(np.mean(self.own))

    def gain(self) -> np.ndarray:
        """(candidates,) share of the mean variance that measuring each would take away."""
        return self.shared / (self.own + self.variance) / max(self.total, 1e-300)

    def measured(self, index: int) -> None:
        """Take the measurement of a candidate into account: a rank-one change of the covariance."""
        column = self.moved[index].copy()
        own = float(self.own[index]) + self.variance
        across = self.slopes @ column
        weighed = self.average @ column
        share = across / own
        square = float(column @ weighed)
        self.shared += share * (share * square - 2.0 * (self.moved @ weighed))
        self.moved -= np.outer(share, column)
        self.own -= share * across
        self.total -= square / own


def suggest(
    space: SpaceTerms,
    count: int,
    have: Samples | None = None,
    among: np.ndarray | None = None,
    seed: int = 0,
) -> np.ndarray:
    """(count, positions) integers of the networks to measure next, the most telling first.

    `have`: what is measured already; those are not suggested again. `among`: (networks, positions) to
    choose from and to be sure of; by default the space's own candidates. `seed`: the same seed, the
    same networks. InputError where fewer than `count` are left to choose from.
    """
    generator = np.random.default_rng(seed)
    candidates = space.candidates(generator) if among is None else among
    candidates = np.unique(candidates, axis=0)
    if have is not None:
        known = {row.tobytes() for row in have.rows.astype(np.int8)}
        new = [row.tobytes() not in known for row in candidates.astype(np.int8)]
        candidates = candidates[np.array(new, dtype=bool)]
    if len(candidates) < count:
        raise InputError(
            f"--count {count}: only {len(candidates)} networks are left to choose from; expected at most "
            "so many"
        )
    devices = (
        _before(space.assumptions, candidates, generator)
        if have is None
        else _after(explain(space.assumptions, have.rows, have.times, have.step), candidates)
    )
    chosen: list[int] = []
    for _ in range(count):
        gain = np.sum([device.gain() for device in devices], axis=0)
        gain[chosen] = -np.inf
        best = int(np.argmax(gain))
        chosen.append(best)
        for device in devices:
            device.measured(best)
    return candidates[chosen]


def _before(
    assumptions: Sequence[Pieces], candidates: np.ndarray, generator: np.random.Generator
) -> list[Device]:
    """Devices drawn from the prior."""
    counts = [pieces.counts(candidates) for pieces in assumptions]
    devices = []
    for _ in range(DEVICES):
        draws = [generator.standard_normal(p.size) * p.prior_spread for p in assumptions]
        latencies = []
        for pieces, occurs, draw in zip(assumptions, counts, draws, strict=True):
            draw[0] = 0.0
            latencies.append(pieces.latency(occurs, draw))
        for i, pieces in enumerate(assumptions):
            spread = pieces.prior_spread.copy()
            spread[0] = KNOWN_SCALE
            doubt = float(np.exp(pieces.log_prior))
            (times, slopes), (other, _) = latencies[i], latencies[(i + 1) % len(latencies)]
            devices.append(_with_doubt(slopes, np.diag(spread**2), times, other, doubt, NOISE**2))
    return devices


def _after(
    explanations: Sequence[tuple[float, Explanation]], candidates: np.ndarray
) -> list[Device]:
    """The devices that explain what is measured: the likeliest of each assumption."""
    best: dict[str, tuple[float, Explanation]] = {}
    for weight, explanation in explanations:
        name = explanation.pieces.name
        total, first = best.get(name, (0.0, explanation))
        best[name] = (total + weight, first)
    latencies = [
        e.pieces.latency(e.pieces.counts(candidates), e.parameters) for _, e in best.values()
    ]
    devices = []
    for i, (weight, e) in enumerate(best.values()):
        (times, slopes), (other, _) = latencies[i], latencies[(i + 1) % len(latencies)]
        covariance = np.linalg.inv(e.precision)
        devices.append(_with_doubt(slopes, covariance, times, other, weight, e.noise**2))
    return devices


def _with_doubt(
    slopes: np.ndarray,
    covariance: np.ndarray,
    times: np.ndarray,
    other: np.ndarray,
    sure: float,
    variance: float,
) -> Device:
    """A device with one more direction: towards the latencies under the other assumption."""
    apart = np.log(other / times)
    wider = np.pad(covariance, (0, 1))
    wider[-1, -1] = sure * (1.0 - sure)
    return Device(np.column_stack([slopes, apart - apart.mean()]), wider, variance)
