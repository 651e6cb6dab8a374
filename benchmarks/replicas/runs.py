"""The formula of an iteration on one or several devices, fitted to iterations that somebody timed.

    call + variable * variables + unfused * variables (where the optimizer is not one fused kernel)
    + acts * ACTS + flops * FLOPs + weight * parameters                   one replica
    + synchronisation + byte * 2 (K-1) / K * bytes                        more than one device

ACTS and FLOPs grow with the batch of a replica; forward, backward and update are in one coefficient,
because iterations alone do not tell them apart. The last term is the ring of `collectives`: its
coefficient is a link's bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from lolat.errors import InputError
from lolat.fitting.least_squares import fit_relative, require_points
from lolat.training.link import Link

COLUMNS = ("call", "variable", "unfused", "acts", "flops", "weight", "synchronisation", "byte")
FUSED = ("sgd", "adam")
"""Optimisers whose update is one kernel per variable in TensorFlow; others start several."""
FLOAT_BYTES = 4


@dataclass(frozen=True)
class Runs:
    """Iterations that were timed: arrays of one length.

    `batch_size`: of one replica; `acts`, `flops`: of one sample; `parameters`: trainable numbers;
    `variables`: trainable tensors; `devices`; `optimizer`: names. InputError for different lengths and
    for devices or batches below 1.
    """

    batch_size: np.ndarray
    acts: np.ndarray
    flops: np.ndarray
    parameters: np.ndarray
    variables: np.ndarray
    devices: np.ndarray
    optimizer: np.ndarray

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in vars(self).items()}
        if len(set(lengths.values())) != 1:
            said = ", ".join(f"{length} {name}" for name, length in lengths.items())
            raise InputError(f"the table has {said}; expected as many of each")
        for name in ("batch_size", "devices"):
            lowest = np.min(getattr(self, name), initial=1)
            if not lowest >= 1:
                raise InputError(
                    f"the table has {name} of {lowest:g}; expected at least 1 in every row"
                )

    def select(self, rows: np.ndarray) -> Runs:
        """Some of the rows: a mask or indices."""
        return Runs(**{name: values[rows] for name, values in vars(self).items()})

    def features(self) -> np.ndarray:
        """(rows, COLUMNS): what each coefficient is multiplied by."""
        several = (self.devices > 1).astype(float)
        unfused = ~np.isin(self.optimizer, FUSED)
        ring = 2 * (self.devices - 1) / self.devices * self.parameters * FLOAT_BYTES
        columns = (
            np.ones(len(several)),
            self.variables,
            self.variables * unfused,
            self.batch_size * self.acts,
            self.batch_size * self.flops,
            self.parameters,
            several,
            ring,
        )
        return np.stack([np.asarray(c, dtype=float) for c in columns], axis=1)


@dataclass(frozen=True)
class RunsFormula:
    """Coefficients by the names of COLUMNS, ms per unit, none negative; 0 where no row told them."""

    coefficients: Mapping[str, float]

    @staticmethod
    def fit(runs: Runs, iteration_ms: np.ndarray) -> RunsFormula:
        """Robust non-negative least squares on the relative error; `iteration_ms`: (rows,), ms.

        Columns that are 0 in all rows (several devices, where all rows are of one) stay out. InputError
        with too few rows and for times that are not positive.
        """
        times = np.asarray(iteration_ms, dtype=float)
        if not (np.isfinite(times).all() and (times > 0).all()):
            raise InputError(
                "the table has iterations of 0 ms or less; expected ms above 0 in every row"
            )
        features = runs.features()
        told = features.any(axis=0)
        require_points(len(times), int(told.sum()))
        found = np.zeros(len(COLUMNS))
        found[told] = fit_relative(features[:, told], times)
        return RunsFormula(MappingProxyType(dict(zip(COLUMNS, map(float, found), strict=True))))

    def predict(self, runs: Runs) -> np.ndarray:
        """Iterations, ms: (rows,)."""
        return runs.features() @ np.array([self.coefficients[name] for name in COLUMNS])

    @property
    def link(self) -> Link:
        """The link that the rows tell of, its latency within `synchronisation`.

        InputError where no row had several devices and enough bytes to tell it.
        """
        if not self.coefficients["byte"] > 0:
            raise InputError(
                "these runs tell nothing about the link; expected some on several devices, of networks "
                "with different numbers of parameters"
            )
        return Link(8e-6 / self.coefficients["byte"], 0.0)
