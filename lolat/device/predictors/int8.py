"""The time of a network in INT8: factors on the times in float, by class of work.

A product in 8 bits takes its time in float times the factor of its class. The time of an operation that
only moves data is computed from its elements, because in 8 bits it is never fused into a product.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from lolat.arrays import np
from lolat.device.intervals import t_quantile
from lolat.graph.counts import share_of_macs
from lolat.graph.quantized import (
    CONVERSION,
    DYNAMIC,
    INT8,
    INT8_CLASSES,
    ISLANDS,
    NOTHING,
    int8_steps,
)
from lolat.io.documents import NotNegative, Positive
from lolat.io.results import Figure, Remark
from lolat.units import percent

if TYPE_CHECKING:
    from lolat.graph import Graph
    from lolat.graph.analysis import Analysis

BY_ELEMENTS = ("pair", "curve")
"""Classes that ONNX Runtime fuses in float, so that their time in INT8 cannot be derived from the float
formula."""
_CONVERSION = INT8_CLASSES.index(CONVERSION)


class Factors(msgspec.Struct, frozen=True):
    """Factors of a quantization scheme in a profile: class of work -> time in INT8 / time by `parts`.

    `spread`: standard deviation of the log error on blocks held out of the fit; `points`: number of these
    blocks.
    """

    factors: dict[str, Positive]
    spread: NotNegative
    points: int


def parts(
    analysis: Analysis,
    batch_size: int,
    float_ms: np.ndarray,
    rates: Mapping[str, float],
    known: Collection[str],
) -> np.ndarray:
    """(operations, INT8_CLASSES + 1) ms in float, split by class; the last column runs in float.

    `float_ms`: (operations,) ms; `rates`: ms per element and per operation in float; `known`: the schemes
    that have factors. An operation of another scheme runs as in float.
    """
    graph = analysis.graph
    sizes = np.array([tensor.elements(batch_size) for tensor in graph.tensors], float)
    found = np.zeros((len(float_ms), len(INT8_CLASSES) + 1))
    for row, step, ms in zip(found, int8_steps(graph), float_ms, strict=True):
        if step.scheme not in known:
            row[-1] = ms
            continue
        if step.name in BY_ELEMENTS:
            ms = rates["elements"] * sizes[list(step.moved)].sum() + rates["ops"]
        if step.name != NOTHING:
            row[INT8_CLASSES.index(step.name) if step.name else -1] = ms
        if step.converted:
            converted = sizes[list(step.converted)].sum()
            row[_CONVERSION] += rates["elements"] * converted + rates["ops"]
    return found


def in_int8(known: Mapping[str, Factors], analysis: Analysis, of_parts: np.ndarray) -> np.ndarray:
    """(operations, INT8_CLASSES + 1) ms in INT8; `of_parts`: the result of `parts`."""
    every = {
        scheme: np.array([of.factors.get(name, 1.0) for name in (*INT8_CLASSES, "")])
        for scheme, of in known.items()
    }
    in_float = np.ones(len(INT8_CLASSES) + 1)
    return of_parts * np.array([every.get(s.scheme, in_float) for s in int8_steps(analysis.graph)])


def untimed_in_int8(known: Mapping[str, Factors], analysis: Analysis) -> float:
    """The share of the multiply-accumulates that are quantized by a scheme that is not `known`."""
    steps = int8_steps(analysis.graph)
    is_untimed = [
        "bits" in o.attributes
        and not (o.attributes.get(INT8) in known and (step.name or step.scheme != DYNAMIC))
        for o, step in zip(analysis.graph.operations, steps, strict=True)
    ]
    return share_of_macs(analysis.counts.at(1), is_untimed)


def int8_half_width(known: Mapping[str, Factors], graph: Graph, coverage: float) -> float:
    """Half width that INT8 adds to a log interval: the largest one of the schemes in the graph."""
    used = {o.attributes.get(INT8) for o in graph.operations}
    return max(
        (t_quantile(coverage, of.points - 1) * of.spread for n, of in known.items() if n in used),
        default=0.0,
    )


def int8_remark(analysis: Analysis, ms: np.ndarray) -> str:
    """The remark on how much of a network runs in INT8; `ms`: the result of `in_int8`."""
    total = float(ms.sum()) or 1.0
    island = float(ms[:, [INT8_CLASSES.index(name) for name in {*ISLANDS.values()}]].sum())
    converted = float(ms[:, _CONVERSION].sum())
    within = total - island - converted - float(ms[:, -1].sum())
    words = "{within} of the time in integers, {converted} in conversions from and to 8 bits"
    if island > 0.05 * total:
        words += (
            ", {island} in products in float: on x86, ONNX Runtime computes so between "
            "signed tensors that several operations read (activation_type=QuantType.QUInt8 avoids it)"
        )
    return Remark(
        f"quantized, {percent(analysis.counts.quantized)} of its multiply-accumulates",
        words,
        within=Figure(percent, within / total),
        converted=Figure(percent, converted / total),
        island=Figure(percent, island / total),
    )
