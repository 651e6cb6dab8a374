"""A model whose formula is written down rather than fitted, so that what it answers can be worked out."""

from __future__ import annotations

from typing import Any

from tests import synthetic

COEFFICIENTS = {**synthetic.TRUE, "call": synthetic.CALL_MS}
"""Of the default predictor, ms per unit of each count."""


def document(**changes: Any) -> dict[str, Any]:
    """A profile's contents: `synthetic.document`, but with COEFFICIENTS and errors of 2 %."""
    made = synthetic.document(**changes)
    points = len(made["points"])
    made["predictors"]["extended"] = {
        "coefficients": dict(COEFFICIENTS),
        "error": made["predictors"]["extended"]["error"],
        "residuals": [0.02 * (-1) ** i for i in range(points)],
    }
    return made
