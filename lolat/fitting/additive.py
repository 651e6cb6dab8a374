"""Fits the extended formula: the cost of each kind of operation shrinks toward its family's."""

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
    """Fit to (points, names) counts, the six among them, and (points,) times in ms.

    The formula has TERMS if all are among `names`, each shrunk toward its family, else the six counts.
    `with_six` fits the form on six counts as well. `whole`: (points,) mask of whole networks, which weigh
    more.
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
    # A kind that no point has costs what its family does; an extra cost that no point has is 0.
    known = counts.any(axis=0) | np.array([t in FAMILY for t in terms])
    slopes = np.where(known, costs, 0.0)
    six = fit_additive_costs(of_six, times) if with_six and terms != FEATURES else None
    rates = family_rates(terms, slopes, counts)
    return AdditiveCosts.linear(terms, slopes, constant, families=rates, six_counts=six)


def family_rates(names: Sequence[str], slopes: np.ndarray, counts: np.ndarray) -> dict[str, float]:
    """Milliseconds a unit of each family: the time of its kinds over their number, in all points.

    `names`: (terms,); `slopes`: (terms,), ms a unit; `counts`: (points, terms).
    """
    rates = {}
    for family in MEMBERS:
        at = [i for i, name in enumerate(names) if FAMILY.get(name) == family]
        number = counts[:, at].sum()
        rates[family] = float((counts[:, at] @ slopes[at]).sum() / number) if number else 0.0
    return rates
