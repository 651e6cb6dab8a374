"""A device that runs one operation after the other: each takes as long as its product or its bytes.

A product is cut into tiles, of which the device's multiprocessors run whole waves (NVIDIA's guide to matrix
multiplication calls what is lost wave quantization):

    t = waves * tile * multiprocessors * (depth + fill) / (rate * efficiency(tile))

The library is taken to choose the tile that is fastest. Rows of a matrix that do not begin where a memory
transaction does slow it down (`unaligned`). Moving takes bytes / bandwidth; the longer of the two counts,
rounded at the corner. Operations that only move take bytes / bandwidth, and no less than a launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from lolat.kernel_terms import (
    BATCHED,
    CLASSES,
    CONVOLUTION,
    DENSE,
    ELEMENTS,
    GROUPED,
    NORM,
    PRODUCTS,
    SOFTMAX,
)  # fmt: skip
from lolat.predictors.formula import Formula, from_coefficients
from lolat.work import Work

TILES = ((256, 128), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32))
ALIGNED = 32  # elements: 128 bytes, a transaction of a GPU's memory
CORNER = 4.0  # of the norm that stands for the larger of computing and moving
FEATURES = ("flops", "traffic", "ops")
LIKE = {
    DENSE: (DENSE,),
    BATCHED: (BATCHED, DENSE),
    CONVOLUTION: (CONVOLUTION, DENSE),
    GROUPED: (GROUPED, BATCHED, CONVOLUTION, DENSE),
    ELEMENTS: (ELEMENTS,),
    SOFTMAX: (SOFTMAX, NORM, ELEMENTS),
    NORM: (NORM, ELEMENTS),
}
"""Class -> those whose terms it takes, the first that are there."""
COMPUTE, MOVE, START = range(3)


@dataclass(frozen=True)
class Kernels(Formula):
    """Per class of operations its terms; on counts alone, the rates of large operations.

    `multiprocessors`: of the device; `classes`: the terms of each (`lolat.kernel_terms`).
    """

    name: ClassVar[str] = "kernels"
    multiprocessors: float = 1.0
    classes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @classmethod
    def of(cls, multiprocessors: float, classes: Mapping[str, Mapping[str, float]]) -> Kernels:
        """From the terms of the classes; the linear coefficients are those of large operations."""
        products = [classes[c] for c in PRODUCTS if c in classes]
        moving = [t for c, t in classes.items() if c not in PRODUCTS]
        rate = max((t["rate"] for t in products), default=np.inf)
        bandwidth = max(t["bandwidth"] for t in (*moving, *products))
        launch = min(t["launch"] for t in (*moving, *products))
        slopes = (1.0 / rate, 4.0 / bandwidth, launch)
        return cls(FEATURES, slopes, 0.0, multiprocessors, classes)

    def times(self, work: Work) -> tuple[np.ndarray, np.ndarray]:
        """(operations,) ms of each in a network, and the one of FEATURES that it goes to."""
        found, mostly = np.zeros(len(work.kind)), np.zeros(len(work.kind), int)
        for number, name in enumerate(CLASSES):
            which = (work.kind == number) & (work.bytes > 0)
            if not which.any():
                continue
            part = work.take(which)
            terms = self.terms(name)
            if name in PRODUCTS:
                computing, moving = product_parts(terms, part, self.multiprocessors)
                found[which] = np.maximum(_larger(computing, moving), LEAST_MS)
                mostly[which] = np.where(computing > moving, COMPUTE, MOVE)
            else:
                found[which] = moving_time(terms, part.bytes)
                short = part.bytes < terms["launch"] * terms["bandwidth"]
                mostly[which] = np.where(short, START, MOVE)
        return found, mostly

    def terms(self, name: str) -> Mapping[str, float]:
        """The terms of a class, or of the one that is most like it."""
        return next(self.classes[c] for c in LIKE[name] if c in self.classes)

    def to_dict(self) -> dict[str, Any]:
        """The formula as it stands in a model file."""
        return super().to_dict() | {
            "multiprocessors": self.multiprocessors,
            "classes": {c: dict(t) for c, t in self.classes.items()},
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Kernels:
        """Read what `to_dict` wrote."""
        return cls(
            *from_coefficients(document),
            float(document["multiprocessors"]),
            {c: {n: float(v) for n, v in t.items()} for c, t in document["classes"].items()},
        )


LEAST_MS = 1e-4  # of an operation that does anything


def product_parts(
    terms: Mapping[str, float], work: Work, multiprocessors: float
) -> tuple[np.ndarray, np.ndarray]:
    """(operations,) ms of computing, of moving; both of products."""
    unaligned = (work.columns % ALIGNED != 0) | (work.depth % ALIGNED != 0)
    small, tiny = terms["small"], terms["tiny"]
    efficiencies = (1.0, 1.0, 1 / (1 + small / 2), 1 / (1 + small), 1 / (1 + 1.5 * small),
                    1 / (1 + small) / (1 + tiny))  # fmt: skip
    fastest = np.full(len(work.kind), np.inf)
    for (long, short), efficiency in zip(TILES, efficiencies, strict=True):
        for high, wide in {(long, short), (short, long)}:
            tiles = work.number * np.ceil(work.rows / high) * np.ceil(work.columns / wide)
            waves = np.ceil(tiles / multiprocessors)
            macs = waves * high * wide * multiprocessors * (work.depth + terms["fill"])
            fastest = np.minimum(fastest, macs / (terms["rate"] * efficiency))
    computing = fastest * (1.0 + unaligned * terms["unaligned"])
    computing = computing / (1.0 + work.direct * terms["direct"])
    again = np.maximum(work.macs * 4.0 / 64.0 - work.bytes, 0.0)  # read by tiles of 128 x 128
    moving = (work.bytes + unaligned * again / terms["spread"]) / terms["bandwidth"]
    return computing, moving


def product_time(terms: Mapping[str, float], work: Work, multiprocessors: float) -> np.ndarray:
    """(operations,) ms of products, each timed alone."""
    return terms["launch"] + _larger(*product_parts(terms, work, multiprocessors))


def moving_time(terms: Mapping[str, float], moved: np.ndarray) -> np.ndarray:
    """(operations,) ms of operations that move `moved` bytes."""
    p = terms["corner"]
    long = np.log(np.maximum(moved / terms["bandwidth"], 1e-12))
    return np.asarray(np.exp(np.logaddexp(p * np.log(terms["launch"]), p * long) / p))


def _larger(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.asarray((one**CORNER + other**CORNER) ** (1.0 / CORNER))
