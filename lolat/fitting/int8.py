"""Fitting the factors of INT8 to blocks that were timed both quantized and in float.

A factor is relative to the block's measured time in float, so that errors of the formula in float do not
enter it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from lolat.arrays import np
from lolat.device.file import DeviceFile
from lolat.device.predictors.additive import AdditiveCosts
from lolat.fitting.cross_validation import cross_validate, folds_of
from lolat.fitting.least_squares import minimum, point_weights
from lolat.graph import Graph
from lolat.graph.analysis import analyze
from lolat.graph.quantized import DYNAMIC, INT8_CLASSES
from lolat.tables.blocks import Point, times

START_FACTORS = {"convolution": 0.5, "product": 0.5}
"""Class of work -> the factor that a fit starts from; other classes start from 1."""
CLASS_SPREAD, SCHEME_SPREAD = 0.7, 0.4
"""Prior widths of logarithms: of a class's factor around its start factor, and of a scheme's factor around
its class's factor. Static and signed networks run the same kernels and share the factor of a class; dynamic
networks have another one."""
LEAST_OF_SCHEME = 4  # fewer points of a scheme give no factors
MEAN_OF_NORMAL = 1.2533  # a normal distribution's standard deviation / its mean absolute value


@dataclass(frozen=True)
class _Measured:
    """Quantized points as arrays, (points,) each; `parts`: (points, INT8_CLASSES + 1) ms in float."""

    parts: np.ndarray
    schemes: np.ndarray
    latency_ms: np.ndarray
    whole: np.ndarray

    def take(self, which: np.ndarray) -> _Measured:
        """The points that a mask selects."""
        return _Measured(*(getattr(self, name)[which] for name in self.__dataclass_fields__))


def with_int8(
    file: DeviceFile, quantized: Sequence[Point], graphs: Mapping[str, Graph]
) -> DeviceFile:
    """Add quantized points and their factors to a device's file; `graphs`: name of a point -> its graph.

    A scheme with fewer than LEAST_OF_SCHEME points gets no factors. A file whose formula has no kinds of
    operations gets none either.
    """
    predictors = file.document["predictors"]
    entry = predictors.get(AdditiveCosts.name, {})
    if not quantized:
        return file
    added = file.but(quantized=[p.to_dict() for p in quantized])
    number = {s: sum(p.scheme == s for p in quantized) for s in {p.scheme for p in quantized}}
    enough = [p for p in quantized if number[p.scheme] >= LEAST_OF_SCHEME and p.name in graphs]
    if not enough or not entry.get("families"):
        return added
    formula = msgspec.convert({**entry, "int8": {}}, AdditiveCosts)
    in_float = {(p.name, p.batch_size): p.latency_ms for p in file.points}
    measured = _Measured(
        np.array([_parts(formula, p, graphs[p.name], in_float) for p in enough]),
        np.array([p.scheme for p in enough]),
        times(enough),
        np.array([p.whole for p in enough]),
    )
    factors = fit_factors(measured)
    residuals = cross_validate(
        folds_of([_block(p) for p in enough]),
        lambda kept, out: _errors(fit_factors(measured.take(kept)), measured.take(out)),
    )
    found = {}
    for scheme, of in factors.items():
        own = np.abs(residuals[measured.schemes == scheme])
        spread = round(MEAN_OF_NORMAL * float(own.mean()), 5)
        named = dict(zip(INT8_CLASSES, np.round(of, 5).tolist(), strict=True))
        found[scheme] = {"factors": named, "spread": spread, "points": len(own)}
    return added.but(predictors={**predictors, AdditiveCosts.name: {**entry, "int8": found}})


def _block(point: Point) -> str:
    """The name of a quantized point's block in float, without the scheme."""
    return point.name.removesuffix(f" {point.scheme}")


def _parts(
    formula: AdditiveCosts, point: Point, graph: Graph, in_float: Mapping[tuple[str, int], float]
) -> np.ndarray:
    """(INT8_CLASSES + 1,) ms of a point in float, by class; the last is the part that INT8 leaves in float.

    The times are scaled so that they add up to the block's measured time in float.
    """
    analysis, size = analyze(graph), point.batch_size
    parts = formula.int8_parts(analysis, size).sum(axis=0)
    parts[-1] += formula.constant
    float_ms = float(formula.rows(analysis.counts.at(size).sum(axis=0)[None, formula.columns])[0])
    return np.asarray(parts * in_float.get((_block(point), size), float_ms) / float_ms)


def fit_factors(measured: _Measured) -> dict[str, np.ndarray]:
    """Fit the factors of each scheme: scheme -> (INT8_CLASSES,).

    A scheme's factor shrinks toward its class's factor, which shrinks toward START_FACTORS, as in
    `least_squares.fit_families`.
    """
    schemes = sorted({*measured.schemes.tolist()})
    families = sorted({scheme == DYNAMIC for scheme in schemes})
    n = len(INT8_CLASSES)
    # Columns: the classes of each scheme, then the part in float, whose factor is 1.
    columns = np.zeros((len(measured.latency_ms), n * len(schemes) + 1))
    mapping = np.zeros((n * len(schemes) + 1, n * (len(families) + len(schemes))))
    for i, scheme in enumerate(schemes):
        rows, at = measured.schemes == scheme, slice(n * i, n * (i + 1))
        columns[rows, at] = measured.parts[rows, :-1]
        of_class = n * families.index(scheme == DYNAMIC)
        mapping[at, of_class : of_class + n] = np.eye(n)
        own = n * (len(families) + i)
        mapping[at, own : own + n] = np.eye(n)
    columns[:, -1] = measured.parts[:, -1]
    usual = np.log([START_FACTORS.get(name, 1.0) for name in INT8_CLASSES])
    start = np.append(np.tile(usual, len(schemes)), 0.0)
    prior_sds = np.repeat([CLASS_SPREAD, SCHEME_SPREAD], [n * len(families), n * len(schemes)])
    weights = point_weights(measured.whole)
    found = minimum(columns, measured.latency_ms, mapping, prior_sds, weights, start)
    return dict(zip(schemes, found[:-1].reshape(len(schemes), n), strict=True))


def _errors(factors: Mapping[str, np.ndarray], measured: _Measured) -> np.ndarray:
    """(points,) log(measured / predicted) with these factors."""
    usual = np.array([START_FACTORS.get(name, 1.0) for name in INT8_CLASSES])
    own = np.array([np.append(factors.get(s, usual), 1.0) for s in measured.schemes])
    return np.asarray(np.log(measured.latency_ms / (measured.parts * own).sum(axis=1)))
