"""A device that runs one operation after the other: each takes as long as its product or its bytes.

A product is cut into tiles, of which the device's multiprocessors run whole waves (NVIDIA's guide to matrix
multiplication calls what is lost wave quantization):

    t = waves * tile * multiprocessors * (depth + fill) / (rate * efficiency(tile))

The library is taken to choose the tile that is fastest. Rows of a matrix that do not begin where a memory
transaction does slow it down (`unaligned`). Moving takes bytes / bandwidth; the longer of the two counts,
rounded at the corner. Operations that only move take bytes / bandwidth, and no less than a launch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import msgspec

from lolat.arrays import np
from lolat.fitting.predictors.formula import Formula, from_coefficients
from lolat.fitting.predictors.host import Host
from lolat.graph import work as c
from lolat.graph.modes import FLOAT32, Mode
from lolat.graph.work import CALLED, CLASSES, NEEDED, OPTIONAL_TERMS, PRODUCTS, SHAPE, Work

# ---- What operations of nearly the same shape took more, or less, than the formula says.
#
# Which of its kernels a library takes for a shape no formula of a few terms tells. The mean of a Gaussian
# process on the logarithms of the shapes, with operations that were timed alone (Rasmussen and Williams
# 2006, 8.3.1: subset of regressors) is added to the logarithm of the formula; far from all of them it is
# nothing.

REACH = 2.0  # logarithms of a size over which operations have much in common
ERROR_SPREAD = 0.3  # standard deviation of what is corrected, as a logarithm
TIME_VARIANCE = 0.02  # of one time, as a logarithm
OUTLIER = 0.15  # residuals beyond it count less
MOST_SHAPES = 200  # shapes kept
LEAST_OPERATIONS = 20  # operations of a class
ALIGNED_SIZE = 32  # sizes that this divides are unlike others
WEIGHING_ROUNDS = 4  # of weighing


@dataclass(frozen=True)
class Nearby:
    """`rows`: of products, SHAPE and a weight."""

    rows: Sequence[Sequence[float]]

    @cached_property
    def table(self) -> np.ndarray:
        """(shapes, SHAPE and a weight)."""
        return np.array(self.rows, float).reshape(-1, len(SHAPE) + 1)

    @classmethod
    def of(cls, work: Work, residuals: np.ndarray) -> Nearby:
        """Of products timed alone, with (steps,) log(measured / predicted)."""
        shapes = _shapes(work)
        some = shapes
        if len(shapes) > MOST_SHAPES:
            some = shapes[np.random.default_rng(0).permutation(len(shapes))[:MOST_SHAPES]]
        some = np.unique(some, axis=0)
        between, own = _alike(some, shapes), _alike(some, some)
        own += 1e-6 * np.eye(len(some))  # equal up to rounding
        counting = np.ones(len(residuals))
        for _ in range(WEIGHING_ROUNDS):
            counted = between * counting
            weights = np.linalg.solve(
                counted @ between.T + TIME_VARIANCE * own, counted @ residuals
            )
            counting = 1.0 / np.sqrt(1.0 + ((residuals - between.T @ weights) / OUTLIER) ** 2)
        return cls(np.column_stack([some, np.round(weights, 4)]).tolist())

    def factors(self, work: Work) -> np.ndarray:
        """(steps,) what the formula's times of products are to be multiplied by."""
        return np.asarray(np.exp(_alike(_shapes(work), self.table[:, :-1]) @ self.table[:, -1]))

    def to_list(self) -> list[list[float]]:
        """A row for each shape: SHAPE, weight."""
        return [[round(float(n), 4) for n in row] for row in self.rows]


def _shapes(work: Work) -> np.ndarray:
    return np.column_stack([getattr(work, size) for size in SHAPE])


def _alike(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """(one, other) how much shapes have in common, up to ERROR_SPREAD**2."""
    a, b = (
        np.column_stack([np.log(s) / REACH, s[:, 2:] % ALIGNED_SIZE == 0]) for s in (one, other)
    )
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1) - 2.0 * a @ b.T
    return np.asarray(ERROR_SPREAD**2 * np.exp(-0.5 * np.maximum(squares, 0.0)))


# ---- The formula: classes of operations and their terms.

TILES = ((256, 128), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32))
ALIGNED, ALIGNED_NARROW = 32, 8
"""Elements: 128 bytes, a transaction of a GPU's memory; in half precision 16, as matrix units take."""
FEATURES = ("flops", "traffic", "ops")
_CONVOLUTION = (c.CONVOLUTION, c.POINTWISE, c.DENSE)
LIKE = {
    c.DENSE: (c.DENSE,),
    c.BATCHED: (c.BATCHED, c.DENSE),
    c.POINTWISE: (c.POINTWISE, c.DENSE),
    c.CONVOLUTION: _CONVOLUTION,
    c.STEM: (c.STEM, *_CONVOLUTION),
    c.GROUPED: (c.GROUPED, c.BATCHED, *_CONVOLUTION),
    c.DEPTHWISE: (c.DEPTHWISE, c.DEPTHWISE_LAST, c.GROUPED, c.BATCHED, *_CONVOLUTION),
    c.DEPTHWISE_LAST: (c.DEPTHWISE_LAST, c.DEPTHWISE, c.GROUPED, c.BATCHED, *_CONVOLUTION),
    c.ATTENTION: (c.ATTENTION, c.MASKED, c.BATCHED, c.DENSE),
    c.MASKED: (c.MASKED, c.ATTENTION, c.BATCHED, c.DENSE),
    c.RECURRENT: (c.RECURRENT, c.DENSE),
    c.SOFTMAX: (c.SOFTMAX, c.NORM, c.ELEMENTS),
    c.NORM: (c.NORM, c.ELEMENTS),
    c.GROUP_NORM: (c.GROUP_NORM, c.NORM, c.ELEMENTS),
    **{
        name: (name, c.ELEMENTS)
        for name in (c.ELEMENTS, c.CURVES, c.BATCH_NORM, c.POOLS, c.SUMS, c.MOVES, c.PARTS, c.JOINED,
                     c.CASTS, c.ROWS, c.RESIZED)
    },
}  # fmt: skip
"""Class -> those whose terms it takes, the first that are there."""
RATES = {
    c.GROUPED: 0.75,
    c.STEM: 0.5,
    c.DEPTHWISE: 1.5,
    c.DEPTHWISE_LAST: 6.0,
    c.MASKED: 0.6,
    c.RECURRENT: 0.4,
}
"""Rates of classes, relative to the device's, as RTX 3090 and 4090 have them (docs/results/gpus.md).
Depthwise products fill a small part of the tiles that they are counted in, so their rate says little."""
TILED = {"small": 0.2, "tiny": 0.3, "fill": 16.0, "unaligned": 0.2, "spread": 3.0, "direct": 0.3}
"""What the terms of products usually are besides, which RATES were found with."""
WITHOUT_UNITS, UNITS = (c.DEPTHWISE, c.DEPTHWISE_LAST), 2.0
"""What computes without units for matrices, and how many times as fast these are in half precision as all
else in float32 on RTX 3090 and 4090 (data sheets, sums in float32): RATES are relative to the units."""
IN_TF32 = frozenset([c.CONVOLUTION, c.POINTWISE, c.STEM, c.GROUPED])
"""What PyTorch computes in TF32 by default, in float32, on GPUs that have it; products of matrices not."""
COMPUTE, MOVE, START = range(3)


@dataclass(frozen=True)
class Kernels(Formula):
    """Per class of operations its terms; on counts alone, the rates of large operations.

    `multiprocessors`: of the device; `classes`: the terms of each (`lolat.graph.work`); `mode`:
    how it runs networks; `tile`: how many times smaller its tiles are than TILES, which are a GPU's;
    `nearby`: of classes of products what operations timed alone say beyond their terms; `sustained`: macs
    per ms that no product of a network goes beyond, where power keeps down what runs for long (Winograd's,
    which are fewer than are counted, aside); `host`: what starts the operations, None where that takes no
    time of its own; `tf32`: how many times the rate convolutions of float32 are computed at in TF32, 1 of a
    device without.
    """

    name: ClassVar[str] = "kernels"
    multiprocessors: float = 1.0
    classes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    mode: Mode = field(default_factory=Mode)
    tile: float = 1.0
    nearby: Mapping[str, Nearby] = field(default_factory=dict)
    sustained: float = math.inf
    host: Host | None = None
    tf32: float = 1.0

    @classmethod
    def of(
        cls,
        multiprocessors: float,
        classes: Mapping[str, Mapping[str, float]],
        mode: Mode | None = None,
        tile: float = 1.0,
    ) -> Kernels:
        """From the terms of the classes; the linear coefficients are those of large operations."""
        products = [classes[name] for name in PRODUCTS if name in classes]
        moving = [t for name, t in classes.items() if name not in PRODUCTS]
        rate = max((t["rate"] for t in products), default=math.inf)
        bandwidth = max(t["bandwidth"] for t in (*moving, *products))
        launch = min(t["launch"] for t in (*moving, *products))
        slopes = (1.0 / rate, 4.0 / bandwidth, launch)
        return cls(FEATURES, slopes, 0.0, multiprocessors, classes, mode or Mode(), tile)

    def times(self, work: Work) -> tuple[np.ndarray, np.ndarray]:
        """(steps,) ms of each in a network, and the one of FEATURES that it goes to.

        ModelFileError where a time is not finite.
        """
        ms, mostly = np.zeros(len(work.kind)), np.zeros(len(work.kind), int)
        with np.errstate(all="ignore"):
            for number, name in enumerate(CLASSES):
                which = (work.kind == number) & (work.bytes > 0)
                if which.any():
                    ms[which], mostly[which] = self._of_class(name, work.take(which))
        if not np.isfinite(ms).all():
            raise self.not_finite()
        return ms, mostly

    def _of_class(self, name: str, work: Work) -> tuple[np.ndarray, np.ndarray]:
        """`times` of steps of one class, finite or not."""
        terms = self.terms(name)
        if name not in PRODUCTS:
            short = work.bytes < terms["launch"] * terms["bandwidth"]
            return moving_time(in_network(terms), work.bytes), np.where(short, START, MOVE)
        parts = Ways.of(work, self.multiprocessors, self.tile).parts(terms)
        own = inside(terms, *parts) * self.factors(name, work)
        if self.tf32 > 1.0 and self.mode.dtype == FLOAT32 and name in IN_TF32:
            faster = {**terms, "rate": terms["rate"] * self.tf32}
            other = Tiled.of(work, self.multiprocessors, self.tile).parts(faster)
            better = (in_tf32 := inside(terms, *other)) < own
            own = np.where(better, in_tf32, own)
            computing, moving = (
                np.where(better, new, old) for new, old in zip(other, parts, strict=True)
            )
            parts = computing, moving
        kept = np.where(work.squares > 0, 0.0, work.macs) / self.sustained
        return np.maximum(own, kept), np.where(np.greater(*parts), COMPUTE, MOVE)

    def factors(self, name: str, work: Work) -> np.ndarray:
        """(steps,) what the terms of a class are to be multiplied by, for what was timed near by."""
        if name not in self.nearby:
            return np.ones(len(work.kind))
        return self.nearby[name].factors(work)

    def unlike(self, work: Work, times: np.ndarray) -> dict[str, float] | None:
        """What of a network is like no operation that the terms are from: class -> its share of the time;
        None where the terms are of a data sheet alone.
        """
        if len(self.classes) <= len(NEEDED):
            return None
        of_class = np.bincount(work.kind, times, len(CLASSES)) / max(float(times.sum()), 1e-300)
        return {
            name: float(share)
            for name, share in zip(CLASSES, of_class, strict=True)
            if share > 0.0 and name not in self.classes
        }

    @staticmethod
    def unlike_remarks(shares: Mapping[str, float], least: float) -> tuple[str, ...]:
        """A remark for each class that `unlike` found and that takes more than `least` of the time."""
        return tuple(
            f"nothing measured is like its {CALLED[name]} ({100 * share:.0f} % of its time); "
            "they are taken to be like others"
            for name, share in shares.items()
            if share > least
        )

    def terms(self, name: str) -> Mapping[str, float]:
        """The terms of a class, or of the one most like it; of RATES what is usual of the device."""
        if name in self.classes or name not in RATES:
            return self.classes[next(like for like in LIKE[name] if like in self.classes)]
        dense, usual = self.classes[c.DENSE], RATES[name]
        if name in WITHOUT_UNITS and self.mode.dtype == FLOAT32:
            usual *= UNITS
        return {**dense, **TILED, "rate": usual * dense["rate"]}

    def to_dict(self) -> dict[str, Any]:
        """The formula as it stands in a model file."""
        return super().to_dict() | {
            "multiprocessors": self.multiprocessors,
            "classes": {name: dict(terms) for name, terms in self.classes.items()},
            "mode": self.mode.to_dict(),
            "tile": self.tile,
            "nearby": {name: near.to_list() for name, near in self.nearby.items()},
            **({"sustained": self.sustained} if math.isfinite(self.sustained) else {}),
            **({} if self.host is None else {"host": self.host.to_dict()}),
            **({"tf32": self.tf32} if self.tf32 > 1.0 else {}),
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Kernels:
        """Read what `to_dict` wrote."""
        return cls(
            *from_coefficients(document),
            float(document["multiprocessors"]),
            msgspec.convert(document["classes"], dict[str, dict[str, float]]),
            Mode.from_dict(document.get("mode", {})),
            float(document.get("tile", 1.0)),
            {n: Nearby(rows) for n, rows in document.get("nearby", {}).items()},
            float(document.get("sustained", math.inf)),
            Host.from_dict(document["host"]) if "host" in document else None,
            float(document.get("tf32", 1.0)),
        )


class TrainingSteps(Kernels):
    """The same of training steps, where enough of them were timed to have terms of their own."""

    name: ClassVar[str] = "training-steps"


LEAST_MS = 1e-4  # of an operation that does anything


@dataclass(frozen=True)
class Tiled:
    """Products cut into tiles: `macs`, (tilings, steps), of whole tiles in whole waves, of a depth of 1;
    `unaligned`, (steps,), and `again`, bytes that tiles of 128 x 128 read again where rows are."""

    work: Work
    macs: np.ndarray
    unaligned: np.ndarray
    again: np.ndarray

    @classmethod
    def of(cls, work: Work, multiprocessors: float, tile: float = 1.0) -> Tiled:
        """The tiles of products, which no term of a device changes."""
        counts = []
        for long, short in ((max(a / tile, 1.0), max(b / tile, 1.0)) for a, b in TILES):
            fewest = np.full(len(work.kind), np.inf)
            for high, wide in ((long, short), (short, long)):
                tiles = work.number * np.ceil(work.rows / high) * np.ceil(work.columns / wide)
                fewest = np.minimum(fewest, np.ceil(tiles / multiprocessors))
            counts.append(fewest * long * short * multiprocessors)
        size = np.where(work.narrow, 2.0, 4.0)
        whole = np.where(work.narrow, ALIGNED_NARROW, ALIGNED)
        return cls(
            work,
            np.array(counts),
            (work.columns % whole != 0) | (work.depth % whole != 0),
            np.maximum(work.macs * size / 64.0 - work.bytes, 0.0),
        )

    @property
    def direct(self) -> np.ndarray:
        """(steps,) whether each is a 3x3 convolution of stride 1."""
        return self.work.squares > 0

    def parts(self, terms: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """(steps,) ms of computing, of moving."""
        fastest = (self.macs * slower(terms)[:, None]).min(axis=0)
        computing = fastest * (self.work.depth + terms["fill"]) / terms["rate"]
        computing = computing * (1.0 + self.unaligned * terms["unaligned"])
        computing = computing / (1.0 + self.direct * terms["direct"])
        light, heavy, again = self._moved(terms)
        moving = (light + heavy + again) / terms["bandwidth"]
        return computing, moving

    def _moved(self, terms: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(steps,) bytes: those of no weights, of weights as many as they count for, read again."""
        heavy = self.work.weights * optional(terms, "heavy")
        return (
            self.work.bytes - self.work.weights,
            heavy,
            self.unaligned * self.again / terms["spread"],
        )

    def slopes(self, terms: Mapping[str, float], alone: np.ndarray) -> dict[str, np.ndarray]:
        """Term -> (steps,) derivative of the ms by its logarithm; `alone`, (steps,): timed alone."""
        computing, moving = self.parts(terms)
        p = optional(terms, "overlap")
        both = _larger(computing, moving, p)
        share = (computing / both) ** p
        by_computing, by_moving = both * share, both * (1.0 - share)
        tiling = (self.macs * slower(terms)[:, None]).argmin(axis=0)
        small = np.array(SMALLER)[tiling] * terms["small"]
        light, heavy, again = self._moved(terms)
        logarithms = share * np.log(computing) + (1.0 - share) * np.log(moving)
        relative = {
            "rate": -1.0,
            "fill": terms["fill"] / (self.work.depth + terms["fill"]),
            "unaligned": self.unaligned * _share(terms["unaligned"]),
            "direct": self.direct * -_share(terms["direct"]),
            "small": small / (1.0 + small),
            "tiny": np.array(TINIER)[tiling] * _share(terms["tiny"]),
        }
        return {
            **{term: by_computing * slope for term, slope in relative.items()},
            "bandwidth": -by_moving,
            "spread": -by_moving * again / (light + heavy + again),
            "heavy": by_moving * heavy / (light + heavy + again),
            "overlap": both * (logarithms - np.log(both)),
            "launch": alone * terms["launch"],
            "step": ~alone * optional(terms, "step"),
        }


@dataclass(frozen=True)
class Ways:
    """Products, `tiled` as they are; those of the indices `able` also as Winograd's algorithm has them,
    `other`, which a library takes where it is faster.
    """

    tiled: Tiled
    able: np.ndarray
    other: Tiled

    @classmethod
    def of(cls, work: Work, multiprocessors: float, tile: float = 1.0) -> Ways:
        """Of products. Matrix units in half precision, and short vectors, gain nothing by Winograd."""
        able = np.flatnonzero((work.squares > 0) & ~work.narrow & (tile == 1.0))
        other = work.take(able).winograd()
        return cls(
            Tiled.of(work, multiprocessors, tile), able, Tiled.of(other, multiprocessors, tile)
        )

    def parts(self, terms: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
        """(steps,) ms of computing, of moving."""
        as_products = self.tiled.parts(terms)
        better, parts = self._better(terms, as_products)
        for all_of, some in zip(as_products, parts, strict=True):
            all_of[self.able[better]] = some[better]
        return as_products

    def slopes(self, terms: Mapping[str, float], alone: np.ndarray) -> dict[str, np.ndarray]:
        """Term -> (steps,) derivative of the ms by its logarithm; `alone`, (steps,): timed alone."""
        slopes = self.tiled.slopes(terms, alone)
        better, _ = self._better(terms, self.tiled.parts(terms))
        if better.any():
            for term, slope in self.other.slopes(terms, alone[self.able]).items():
                slopes[term][self.able[better]] = slope[better]
        return slopes

    def _better(
        self, terms: Mapping[str, float], as_products: tuple[np.ndarray, np.ndarray]
    ) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray]]:
        """(able,) whether the other way is faster, and its parts."""
        parts, p = self.other.parts(terms), optional(terms, "overlap")
        computing, moving = as_products
        return _larger(*parts, p) < _larger(computing[self.able], moving[self.able], p), parts


SMALLER = (0.0, 0.0, 0.5, 1.0, 1.5, 1.0)
TINIER = (0.0, 0.0, 0.0, 0.0, 0.0, 1.0)
"""(tilings,) how much of the terms `small` and `tiny` each pays."""


def inside(terms: Mapping[str, float], computing: np.ndarray, moving: np.ndarray) -> np.ndarray:
    """(steps,) ms of products in a network, of `Tiled.parts`."""
    longer = np.maximum(_larger(computing, moving, optional(terms, "overlap")), LEAST_MS)
    return np.asarray(longer + optional(terms, "step"))


def alone(terms: Mapping[str, float], computing: np.ndarray, moving: np.ndarray) -> np.ndarray:
    """(steps,) ms of products, each timed alone."""
    return np.asarray(_larger(computing, moving, optional(terms, "overlap")) + terms["launch"])


def in_network(terms: Mapping[str, float]) -> Mapping[str, float]:
    """The terms of what only moves, where it is not timed alone: the host starts it meanwhile."""
    return {**terms, "launch": terms["step"]} if "step" in terms else terms


def slower(terms: Mapping[str, float]) -> np.ndarray:
    """(tilings,) how many times as long a multiply-accumulate takes in each."""
    small, tiny = np.array(SMALLER) * terms["small"], np.array(TINIER) * terms["tiny"]
    return np.asarray((1.0 + small) * (1.0 + tiny))


def optional(terms: Mapping[str, float], name: str) -> float:
    """A term that need not be there."""
    return terms.get(name, OPTIONAL_TERMS[name])


def _share(term: float) -> float:
    return term / (1.0 + term)


def moving_time(terms: Mapping[str, float], moved: np.ndarray) -> np.ndarray:
    """(operations,) ms of operations that move `moved` bytes."""
    short, long = _logarithms(terms, moved)
    return np.asarray(np.exp(np.logaddexp(short, long) / terms["corner"]))


def moving_slopes(terms: Mapping[str, float], moved: np.ndarray) -> dict[str, np.ndarray]:
    """Term -> (operations,) derivative of `moving_time` by its logarithm."""
    short, long = _logarithms(terms, moved)
    both = np.logaddexp(short, long)
    time, starting = np.exp(both / terms["corner"]), np.exp(short - both)
    mean = starting * short + (1.0 - starting) * long
    return {
        "launch": time * starting,
        "bandwidth": -time * (1.0 - starting),
        "corner": time * (mean - both) / terms["corner"],
    }


def _logarithms(terms: Mapping[str, float], moved: np.ndarray) -> tuple[float, np.ndarray]:
    """Of a launch and of moving, to the power of the corner."""
    p = terms["corner"]
    long = np.log(np.maximum(moved / terms["bandwidth"], 1e-12))
    return p * float(np.log(terms["launch"])), p * long


def _larger(one: np.ndarray, other: np.ndarray, p: float) -> np.ndarray:
    """The p-norm of two, the larger of them rounded; their sum where p is 1."""
    most = np.maximum(one, other)
    return np.asarray(most * ((one / most) ** p + (other / most) ** p) ** (1.0 / p))
