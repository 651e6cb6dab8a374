"""The base class of all formulas: coefficients times counts plus a constant, for a whole and its parts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from operator import mul
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import msgspec

from lolat.arrays import np
from lolat.device.intervals import Calibration, as_dict
from lolat.device.predictors.int8 import Factors, in_int8, parts
from lolat.errors import InputError
from lolat.graph.counts import COLUMNS
from lolat.graph.quantized import SCHEMES
from lolat.io.documents import NotNegative
from lolat.units import shortened

if TYPE_CHECKING:
    from lolat.device.predictors.host import Steps
    from lolat.graph.analysis import Analysis

CONSTANT = "call"
CHUNK_ROWS = 16384  # rows of a chunk: two columns stay in a core's cache
LARGEST_COUNT = 1e100  # the latency of a larger count might overflow
NOTHING_MS = 1e-200  # times are not divided by a smaller one
Term = Literal[(*COLUMNS, CONSTANT)]  # type: ignore[valid-type]


class Formula(Calibration, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """A predictor of a profile: `t = sum of coefficient * count + constant`, in ms.

    `coefficients`: all >= 0, with the constant under the key CONSTANT; `error`: relative errors on its own
    points ("fitted"), on held-out blocks ("left_out") and on held-out networks ("networks_left_out").
    `int8`: scheme of quantized networks (`lolat.graph.quantized`) -> its factors.
    """

    name: ClassVar[str]
    coefficients: dict[Term, NotNegative]
    error: dict[str, dict[str, NotNegative | None]] = msgspec.field(default_factory=dict)
    int8: dict[str, Factors] = msgspec.field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}, {len(self.coefficients)} coefficients>"

    @classmethod
    def linear(
        cls, features: Sequence[str], slopes: Iterable[float], constant: float, **more: Any
    ) -> Self:
        """A formula with a slope for each of `features`, and a constant."""
        named = dict(zip(features, map(float, slopes), strict=True))
        return cls(coefficients={**named, CONSTANT: float(constant)}, **more)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """The names of the formula's counts, in the order of COLUMNS."""
        return tuple(c for c in COLUMNS if c in self.coefficients)

    @cached_property
    def columns(self) -> list[int]:
        """Positions of the features in COLUMNS."""
        return [COLUMNS.index(f) for f in self.features]

    @cached_property
    def slopes(self) -> tuple[float, ...]:
        """(features,) ms per unit of each count."""
        return tuple(self.coefficients[f] for f in self.features)

    @cached_property
    def constant(self) -> float:
        """Time of a call, in ms."""
        return self.coefficients.get(CONSTANT, 0.0)

    @property
    def of_six_counts(self) -> Formula:
        """The formula that answers a question with all six counts."""
        return self

    def scaled(self, factor: float) -> Self:
        """The formula of a device on which everything takes `factor` times as long."""
        cost = {name: factor * ms for name, ms in self.coefficients.items()}
        return msgspec.structs.replace(self, coefficients=cost)

    @property
    def families(self) -> Mapping[str, float] | None:
        """Family of counts -> ms per unit; None for a formula without families."""
        return None

    def bend(self, times: np.ndarray) -> np.ndarray:
        """Turn linear sums into latencies, in place; the base class leaves them unchanged."""
        return times

    def bend_one(self, time: float) -> float:
        """`bend` for one number."""
        return time

    def one(self, counts: Sequence[float]) -> float:
        """Latency in ms; `counts`: one number per feature."""
        return self.bend_one(sum(map(mul, self.slopes, counts), self.constant))

    def many(self, columns: Sequence[np.ndarray | float], out: np.ndarray) -> np.ndarray:
        """Write latencies in ms to `out` (float64, 1-D); `columns`: one array or number per feature.

        It works in chunks, so it needs no more memory than the inputs and `out`.
        """
        terms = [t for t in zip(self.slopes, columns, strict=True) if t[0] != 0.0]
        products = np.empty(min(CHUNK_ROWS, len(out)))
        for start in range(0, len(out), CHUNK_ROWS):
            part = out[start : start + CHUNK_ROWS]
            product = products[: len(part)]
            part.fill(self.constant)
            for coefficient, column in terms:
                if isinstance(column, np.ndarray):
                    # Without dtype, float32 counts would be multiplied in float32.
                    rows = column[start : start + CHUNK_ROWS]
                    part += np.multiply(rows, coefficient, out=product, dtype=np.float64)
                else:
                    part += coefficient * column
            self.bend(part)
        return out

    def latencies(self, values: Sequence[Any]) -> Any:
        """Latencies in ms, a float or a broadcast array; `values`: one number or array per feature.

        InputError for shapes that do not broadcast, and for a value that is not a number.
        """
        columns = [_column(n, v) for n, v in zip(self.features, values, strict=True)]
        try:
            shape = np.broadcast_shapes(*(c.shape for c in columns))
        except ValueError as error:
            raise InputError(
                f"predict_counts() got arrays of different shapes "
                f"({', '.join(str(c.shape) for c in columns)}); expected the same or broadcastable"
            ) from error
        if not shape:
            return self.one([float(c) for c in columns])
        flat = [float(c) if c.ndim == 0 else np.broadcast_to(c, shape).reshape(-1) for c in columns]
        return self.many(flat, np.empty(math.prod(shape))).reshape(shape)

    def rows(self, counts: np.ndarray) -> np.ndarray:
        """(rows,) latencies in ms; `counts`: (rows, features)."""
        return self.many(list(counts.T), np.empty(len(counts)))

    def units(self, counts: np.ndarray) -> np.ndarray:
        """(features,) units of each term; `counts`: (COLUMNS,)."""
        return counts[self.columns]

    def shares(self, counts: np.ndarray) -> tuple[np.ndarray, float]:
        """((parts, features) ms of each part by term, ms of the constant); they add up to the latency.

        `counts`: (parts, features).
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
        """((blocks, features) ms of each block by term, ms of the call, steps of a network or None).

        Only a roofline has steps.
        """
        if not (self.int8 and analysis.counts.quantized):
            return *self.shares(analysis.block_counts(batch_size)[:, self.columns]), None
        terms = np.zeros((len(analysis.blocks), len(self.features)))
        np.add.at(terms, analysis.owner, self.of_operations(analysis, batch_size))
        return terms, self.constant, None

    def counts_of(self, analysis: Analysis, batch_size: int) -> np.ndarray:
        """(operations, COLUMNS) counts of each operation, in the units of this formula."""
        return analysis.counts.at(batch_size)

    def of_operations(self, analysis: Analysis, batch_size: int) -> np.ndarray:
        """(operations, features) ms of each operation by term, without the call.

        In INT8, a conversion counts as time of the operation that reads or writes the converted tensor.
        """
        # Evaluated for the whole network, as a formula may bend short times.
        terms = self.shares(analysis.counts.at(batch_size)[:, self.columns])[0]
        if self.int8 and analysis.counts.quantized:
            before, after = terms.sum(axis=1), self.int8_ms(analysis, batch_size).sum(axis=1)
            terms *= (after / np.maximum(before, NOTHING_MS))[:, None]
        return terms

    def int8_parts(self, analysis: Analysis, batch_size: int) -> np.ndarray:
        """(operations, INT8_CLASSES + 1) ms in float; see `int8.parts`."""
        terms = self.shares(analysis.counts.at(batch_size)[:, self.columns])[0]
        float_ms, known = terms.sum(axis=1), self.int8 or SCHEMES
        return parts(analysis, batch_size, float_ms, self.families or {}, known)

    def int8_ms(self, analysis: Analysis, batch_size: int) -> np.ndarray:
        """(operations, INT8_CLASSES + 1) ms in INT8; see `int8.in_int8`."""
        return in_int8(self.int8, analysis, self.int8_parts(analysis, batch_size))

    def to_dict(self) -> dict[str, Any]:
        """The formula as a dict for a profile's JSON."""
        return as_dict(self)


def _column(name: str, value: Any) -> np.ndarray:
    """A number or array as a float array; InputError unless a single number is finite and not negative."""
    try:
        column = np.asarray(value)
    except ValueError:  # nested lists of different lengths
        column = np.empty(0, object)
    is_number = column.dtype.kind in "iuf"
    if not is_number or (column.ndim == 0 and not 0.0 <= float(column) < LARGEST_COUNT):
        raise InputError(
            f"{name} is {shortened(ascii(value))}: expected a number of 0 or more, or an array of them of "
            "one type"
        )
    return column
