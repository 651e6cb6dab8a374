"""What the formulas have in common: coefficients times counts plus a constant, and how it is shared out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from operator import mul
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import msgspec

from lolat.arrays import np
from lolat.device.intervals import Calibration, as_dict
from lolat.graph.counts import COLUMNS
from lolat.io.documents import NotNegative

if TYPE_CHECKING:
    from lolat.device.predictors.host import Steps
    from lolat.graph.analysis import Analysis

CONSTANT = "call"
CHUNK = 16384  # rows worked on at a time: two columns of a chunk stay in a core's cache
NOTHING_MS = 1e-200  # a time below it cannot be divided by
Term = Literal[(*COLUMNS, CONSTANT)]  # type: ignore[valid-type]


class Formula(Calibration, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """`t = sum of coefficient * count + constant`, milliseconds; a predictor of the model file.

    `coefficients`: all >= 0, the constant as CONSTANT; `error`: relative errors on its own points (fitted),
    on blocks left out of the fit (left_out), on whole networks left out (networks_left_out).
    """

    name: ClassVar[str]
    by_operation: ClassVar[bool] = False
    coefficients: dict[Term, NotNegative]
    error: dict[str, dict[str, NotNegative | None]] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}, {len(self.coefficients)} coefficients>"

    @classmethod
    def linear(
        cls, features: Sequence[str], slopes: Iterable[float], constant: float, **more: Any
    ) -> Self:
        """From a coefficient for each of `features`, and the constant."""
        named = dict(zip(features, map(float, slopes), strict=True))
        return cls(coefficients={**named, CONSTANT: float(constant)}, **more)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The counts of the formula, in the order of COLUMNS."""
        return tuple(c for c in COLUMNS if c in self.coefficients)

    @cached_property
    def columns(self) -> list[int]:
        """Where the features stand among COLUMNS."""
        return [COLUMNS.index(f) for f in self.features]

    @cached_property
    def slopes(self) -> tuple[float, ...]:
        """(features,) ms for each unit."""
        return tuple(self.coefficients[f] for f in self.features)

    @cached_property
    def constant(self) -> float:
        """Ms of a call."""
        return self.coefficients.get(CONSTANT, 0.0)

    @property
    def of_six_counts(self) -> Formula:
        """The formula that answers where the six counts alone are known."""
        return self

    def bend(self, times: np.ndarray) -> np.ndarray:
        """The answers of the formula from the linear sums (in place if it likes); here the same."""
        return times

    def bend_one(self, time: float) -> float:
        """`bend` for one number."""
        return time

    def one(self, counts: Sequence[float]) -> float:
        """Latency in ms from one number per feature."""
        return self.bend_one(sum(map(mul, self.slopes, counts), self.constant))

    def many(self, columns: Sequence[np.ndarray | float], out: np.ndarray) -> np.ndarray:
        """Latencies in ms into `out` (float64, 1-D) from one column (or number) per feature.

        Works chunk by chunk, so that besides the inputs and `out` no memory is needed.
        """
        terms = [t for t in zip(self.slopes, columns, strict=True) if t[0] != 0.0]
        products = np.empty(min(CHUNK, len(out)))
        for start in range(0, len(out), CHUNK):
            part = out[start : start + CHUNK]
            product = products[: len(part)]
            part.fill(self.constant)
            for coefficient, column in terms:
                if isinstance(column, np.ndarray):
                    # With the type, for float32 counts would be multiplied in float32.
                    rows = column[start : start + CHUNK]
                    part += np.multiply(rows, coefficient, out=product, dtype=np.float64)
                else:
                    part += coefficient * column
            self.bend(part)
        return out

    def rows(self, counts: np.ndarray) -> np.ndarray:
        """(rows,) latencies in ms of (rows, features) counts."""
        return self.many(list(counts.T), np.empty(len(counts)))

    def shares(self, counts: np.ndarray) -> tuple[np.ndarray, float]:
        """How the time of a whole made of parts comes about: `counts` is (parts, features).

        Returns the milliseconds of each part by term, (parts, features), and those of the constant;
        together they are the latency of the whole.
        """
        terms = counts * np.asarray(self.slopes)
        linear = float(terms.sum()) + self.constant
        if linear < NOTHING_MS:
            return terms, self.bend_one(linear)
        ratio = self.bend_one(linear) / linear
        return terms * ratio, self.constant * ratio

    def of_blocks(
        self, analysis: Analysis, batch_size: int
    ) -> tuple[np.ndarray, float, Steps | None]:
        """(blocks, features) ms of each block of a network by term; ms of the call; the steps of a formula
        by operation.
        """
        return *self.shares(analysis.block_counts(batch_size)[:, self.columns]), None

    def of_operations(self, analysis: Analysis, batch_size: int) -> np.ndarray:
        """(operations, features) ms of each operation of a network by term, without the call's."""
        # All of the network at once, because a formula may bend for what is small.
        return self.shares(analysis.counts.at(batch_size)[:, self.columns])[0]

    def to_dict(self) -> dict[str, Any]:
        """The formula as a model file holds it."""
        return as_dict(self)
