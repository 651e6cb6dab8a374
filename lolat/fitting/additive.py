"""Fits the extended formula: each kind of operation drawn to its family."""

from __future__ import annotations

from collections.abc import Sequence

from lolat.arrays import np
from lolat.device.predictors.additive import APART, FAMILY, TERMS, AdditiveCosts
from lolat.fitting.least_squares import fit_families, fit_relative, point_weights
from lolat.graph.counts import FEATURES, MEMBERS


def fit_additive_costs(
    features: np.ndarray,
    times: np.ndarray,
    names: Sequence[str] = FEATURES,
    whole: np.ndarray | None = None,
    with_six: bool = False,
) -> AdditiveCosts:
    """Fit on (points, names) counts, the six among them, and (points,) times in ms.

    Where `names` has all TERMS, these are the formula's, each drawn to its family, and `with_six` fits
    `six_counts` too; else the six counts. `whole`: (points,), which points are whole networks, which
    count for more.
    """
    terms = TERMS if set(TERMS) <= set(names) else FEATURES
    counts, of_six = (features[:, [list(names).index(t) for t in x]] for x in (terms, FEATURES))
    design = np.column_stack([counts, np.ones(len(times))])
    if terms == FEATURES:
        *costs, constant = fit_relative(design, times)
    else:
        weights = point_weights(np.zeros(len(times), bool) if whole is None else whole)
        families = [FAMILY.get(t) or APART[t] for t in terms]
        *costs, constant = fit_families(design, times, [*families, "call"], weights)
    # A kind that no point has costs what its family does; what comes on top of that is not known.
    known = counts.any(axis=0) | np.array([t in FAMILY for t in terms])
    slopes = np.where(known, costs, 0.0)
    six = fit_additive_costs(of_six, times) if with_six and terms != FEATURES else None
    rates = family_rates(terms, slopes, counts)
    return AdditiveCosts.linear(terms, slopes, constant, families=rates, six_counts=six)


def family_rates(names: Sequence[str], slopes: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Milliseconds per unit of each family: the time of its kinds over their number, in all points.

    `names`: (terms,); `slopes`: (terms,), ms; `counts`: (points, terms).
    """
    rates = {}
    for family in MEMBERS:
        at = [i for i, name in enumerate(names) if FAMILY.get(name) == family]
        number = counts[:, at].sum()
        rates[family] = float((counts[:, at] @ slopes[at]).sum() / number) if number else 0.0
    return rates
