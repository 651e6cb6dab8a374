"""LoLat's own formula for single layers: one fit for each GPU and optimizer, from few rows.

With it the deep network is compared: how many measured layers does a deep network need before it beats six
coefficients and a constant?
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lolat.errors import InputError
from lolat.fitting.least_squares import fit_relative
from lolat.fitting.predictors.extended import Extended
from lolat.graph.counts import FEATURES
from lolat.mlp.table import LayerTable, layer_counts

LEAST = (
    8  # rows of a GPU and optimizer from which its coefficients are tried: one more than there are
)
SURE = 50  # from which they are taken without a trial
ROUNDS = 5  # of formula and factors in turns
SHARED_ROWS = 3000  # at most, for the shared formula
MOST_AT_ONCE = 0.7  # of a logarithm: a factor of two
SHRINKAGE = 1.0  # a factor is drawn to 1 as by so many rows that say 1

Group = tuple[str, str]  # GPU, optimizer


@dataclass(frozen=True)
class LayerFormulas:
    """The extended formula of six counts for each GPU and optimizer of a kind of layer.

    `own`: the formulas of the groups with rows enough. The others share `base`, whose answer is
    multiplied by the group's factors, of its GPU and of its optimizer (1 for one that no row had).
    """

    layer: str
    base: Extended
    factors: Mapping[str, float]
    own: Mapping[Group, Extended]

    def predict(self, table: LayerTable) -> np.ndarray:
        """(n,) ms of each row; InputError for a table of the other kind of layer."""
        if table.layer != self.layer:
            raise InputError(
                f"a table of {table.layer} layers; expected {self.layer} layers, which these "
                "formulas were fitted on"
            )
        counts = layer_counts(table)
        found = np.empty(len(table))
        for group, rows in _groups(table).items():
            found[rows] = self._answers(group, counts[rows])
        return found

    def _answers(self, group: Group, counts: np.ndarray) -> np.ndarray:
        """(rows,) ms of (rows, 6) counts of layers of one GPU and optimizer."""
        formula = self.own.get(group, self.base)
        answers = formula.many(list(counts.T), np.empty(len(counts)))
        if group in self.own:
            return answers
        gpu, optimizer = group
        return answers * self.factors.get(gpu, 1.0) * self.factors.get(optimizer, 1.0)

    @classmethod
    def fit(cls, table: LayerTable) -> LayerFormulas:
        """Fit on measured layers.

        A few rows cannot tell seven coefficients apart, but how much slower a GPU or a backward pass is
        shows in one. So a group of fewer than LEAST rows has the shared formula, and one of fewer than
        SURE has it where each row, left out, is predicted better by it than by the group's own.
        InputError for a table without rows or times.
        """
        times = table.times_ms
        if not len(table):
            raise InputError("no rows to fit; expected one measured layer at least")
        counts = layer_counts(table)
        step = -(-len(table) // SHARED_ROWS)
        base, factors = _shared(counts, times, table, np.arange(0, len(table), step))
        found = cls(table.layer, base, factors, {})
        own = {}
        for group, rows in _groups(table).items():
            features, measured = counts[rows], times[rows]
            if len(rows) < LEAST:
                continue
            if len(rows) < SURE:
                shared = found._answers(group, features)
                if _error(shared, measured) <= _error(_left_out(features, measured), measured):
                    continue
            own[group] = Extended.fit(features, measured, FEATURES)
        return cls(table.layer, base, factors, own)


def _left_out(features: np.ndarray, times: np.ndarray) -> np.ndarray:
    """(rows,) ms: each row predicted by the formula fitted on the others."""
    found = np.empty(len(times))
    for row in range(len(times)):
        others = np.arange(len(times)) != row
        found[row] = Extended.fit(features[others], times[others], FEATURES).one(features[row])
    return found


def _error(predicted: np.ndarray, measured: np.ndarray) -> float:
    """Mean size of log(predicted / measured), each at most 2: a row that is far off is no vote for ten."""
    ratio = np.log(np.maximum(predicted, 1e-9) / measured)
    return float(np.minimum(np.abs(ratio), 2.0).mean())


def _groups(table: LayerTable) -> dict[Group, np.ndarray]:
    """Positions of the rows of each GPU and optimizer."""
    pairs = np.column_stack([table["gpu"], table["optimizer"]])
    distinct, inverse = np.unique(pairs, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)  # numpy 2.0.0 gave it another shape
    return {
        (str(gpu), str(optimizer)): np.flatnonzero(inverse == i)
        for i, (gpu, optimizer) in enumerate(distinct)
    }


def _shared(
    counts: np.ndarray, times: np.ndarray, table: LayerTable, rows: np.ndarray
) -> tuple[Extended, dict[str, float]]:
    """One formula for `rows` of the table and a factor for each GPU and each optimizer, found in turns.

    The factors are the ridge regression of what the formula leaves, as logarithms, on which GPU and
    which optimizer a row is of; after the first round a row says no more than MOST_AT_ONCE, so that a
    disturbed one does not move its group.
    """
    counts, times = counts[rows], times[rows]
    columns = [table["gpu"][rows], table["optimizer"][rows]]
    names = np.unique(np.concatenate(columns))
    members = sum((column[:, None] == names).astype(float) for column in columns)
    logarithms = np.zeros(len(names))
    design = np.column_stack([counts, np.ones(len(times))])
    penalty = SHRINKAGE * np.eye(len(names))
    for turn in range(ROUNDS):
        scale = np.exp(members @ logarithms)
        coefficients = fit_relative(design * scale[:, None], times)
        left = np.log(times / np.maximum(design @ coefficients, 1e-9))
        rest = left - members @ logarithms
        most = MOST_AT_ONCE if turn else np.inf
        goal = members @ logarithms + np.clip(rest, -most, most)
        logarithms = np.linalg.solve(members.T @ members + penalty, members.T @ goal)
    *linear, constant = map(float, coefficients)
    base = Extended.linear(FEATURES, linear, constant)
    return base, {
        str(name): float(np.exp(found)) for name, found in zip(names, logarithms, strict=True)
    }
