"""How sure a prediction is: conformal intervals from left-out points."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from lolat.errors import InputError

COVERAGE = 0.9  # of an interval, where nobody asks for another


def conformal_quantile(residuals: Sequence[float], coverage: float) -> float:
    """The conformal quantile of |residuals|: the ceil((n + 1) * coverage)-th smallest of n.

    `residuals` are log(measured / predicted) of points left out of the fit. With it, exchangeable
    new points fall inside with probability >= coverage (Vovk et al. 2005). Raises InputError when n
    points cannot give that coverage.
    """
    check_coverage(coverage)
    n = len(residuals)
    rank = math.ceil((n + 1) * coverage - 1e-9)  # 100 * 0.55 is a little more than 55
    if rank > n:
        raise InputError(
            f"coverage {coverage}: expected at most {math.floor(1000 * n / (n + 1)) / 1000}, which "
            f"is all that {n} left-out points can tell"
        )
    return float(np.partition(np.abs(residuals), rank - 1)[rank - 1])


def check_coverage(coverage: float) -> None:
    """InputError unless `coverage` is a number between 0 and 1."""
    if not isinstance(coverage, (int, float)) or not 0.0 < coverage < 1.0:
        raise InputError(
            f"coverage {coverage!r}: expected a number above 0 and below 1, such as 0.9"
        )
