"""What the formulas have in common: coefficients times counts plus a constant, and how it is shared out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import mul
from typing import Any, ClassVar

from lolat.arrays import np
from lolat.errors import ModelFileError
from lolat.graph.counts import COLUMNS

CONSTANT = "call"
CHUNK = 16384  # rows worked on at a time: two columns of a chunk stay in a core's cache
NOTHING_MS = 1e-200  # a time below it cannot be divided by


@dataclass(frozen=True)
class Formula:
    """`t = sum of coefficient * count + constant`, milliseconds; all coefficients >= 0."""

    name: ClassVar[str]
    features: tuple[str, ...]
    coefficients: tuple[float, ...]
    constant: float

    def bend(self, times: np.ndarray) -> np.ndarray:
        """What the formula makes of the linear sum (in place if it likes); here nothing."""
        return times

    def bend_one(self, time: float) -> float:
        """`bend` for one number."""
        return time

    def one(self, counts: Sequence[float]) -> float:
        """Latency in ms from one number per feature."""
        return self.bend_one(sum(map(mul, self.coefficients, counts), self.constant))

    def many(self, columns: Sequence[np.ndarray | float], out: np.ndarray) -> np.ndarray:
        """Latencies in ms into `out` (float64, 1-D) from one column (or number) per feature.

        Works chunk by chunk, so that besides the inputs and `out` no memory is needed.
        """
        terms = [t for t in zip(self.coefficients, columns, strict=True) if t[0] != 0.0]
        products = np.empty(min(CHUNK, len(out)))
        for start in range(0, len(out), CHUNK):
            part = out[start : start + CHUNK]
            product = products[: len(part)]
            part.fill(self.constant)
            for coefficient, column in terms:
                if isinstance(column, np.ndarray):
                    # The type is said, for float32 counts would be multiplied in float32.
                    some = column[start : start + CHUNK]
                    part += np.multiply(some, coefficient, out=product, dtype=np.float64)
                else:
                    part += coefficient * column
            self.bend(part)
        return out

    def shares(self, counts: np.ndarray) -> tuple[np.ndarray, float]:
        """How a whole made of parts comes about: `counts` is (parts, features).

        Returns the milliseconds of each part by term, (parts, features), and those of the constant;
        together they are the latency of the whole. ModelFileError where that is not finite.
        """
        terms = counts * np.asarray(self.coefficients)
        linear = float(terms.sum()) + self.constant
        if not math.isfinite(linear):
            raise self.not_finite()
        if linear < NOTHING_MS:
            return terms, self.bend_one(linear)
        ratio = self.bend_one(linear) / linear
        return terms * ratio, self.constant * ratio

    def not_finite(self) -> ModelFileError:
        """What to raise where the formula gives a time that is not finite."""
        return ModelFileError(
            f"the model's predictor {self.name!r} gives a time that is not finite; expected the numbers "
            "of a device in its file: fit or learn the model again"
        )

    def to_dict(self) -> dict[str, Any]:
        """The formula as it stands in a model file."""
        named = dict(zip(self.features, self.coefficients, strict=True))
        return {"coefficients": {**named, CONSTANT: self.constant}}


def from_coefficients(
    document: Mapping[str, Any],
) -> tuple[tuple[str, ...], tuple[float, ...], float]:
    """(features, coefficients, constant) of a predictor's entry in a model file, in COLUMNS' order."""
    named = dict(document["coefficients"])
    constant = float(named.pop(CONSTANT, 0.0))
    features = sorted(named, key=lambda f: COLUMNS.index(f) if f in COLUMNS else len(COLUMNS))
    return tuple(features), tuple(float(named[f]) for f in features), constant
