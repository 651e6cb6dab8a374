"""A device that runs one operation after the other: each computes, moves, and is started.

The longest of the three counts most, and the others in part, as they hide behind it incompletely:

    t = (computing ** SHARP + moving ** SHARP + starting ** SHARP) ** (1 / SHARP)
    computing = outputs * depth / rate
    moving = bytes / bandwidth

`rate` and `bandwidth` are those of the operation's class. The outputs of a product are those of whole
tiles, and, where the number of multiprocessors is known, in whole waves (NVIDIA's guide to matrix
multiplication calls what is lost tile and wave quantization). An ablation says why there is no more:
docs/explanation/gpu-formula.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import msgspec

from lolat.arrays import np
from lolat.fitting.predictors.formula import Formula, from_coefficients
from lolat.fitting.predictors.host import Host
from lolat.graph import work as c
from lolat.graph.modes import FLOAT32, Mode
from lolat.graph.work import CALLED, CLASSES, PRODUCTS, SHAPE, Work

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


# ---- The formula.

SHARP = 1.5  # 1: the sum of the three; infinity: the longest
TILE = 64  # outputs, high and wide, that a multiprocessor computes at once
DEEP = 64  # multiply-accumulates of each at a time, in half precision
SPLIT = 1024  # of depth, that each part has at least where it is split
TILED = frozenset([c.DENSE, c.POINTWISE, c.BATCHED, c.CONVOLUTION, c.ATTENTION])
"""Classes of products that are cut into tiles."""
IN_TF32 = frozenset([c.CONVOLUTION, c.POINTWISE, c.GROUPED])
"""What PyTorch computes in TF32 by default, in float32, on GPUs that have it; products of matrices not."""
FEATURES = ("flops", "traffic", "ops")
COMPUTE, MOVE, START = range(3)


@dataclass(frozen=True)
class Kernels(Formula):
    """Per class of operations its terms; on counts alone, the rates of large operations.

    `multiprocessors`: of the device, 1 where nobody said how many; `classes`: the terms of each class
    (`lolat.graph.work`): `bandwidth`, bytes per ms, and of products `rate`, macs per ms; `launch_ms`: what
    starting an operation costs that is timed alone, `step_ms`: in a network; `measured`: the classes of
    which operations were timed, others are as usual; `mode`: how it runs networks; `nearby`: of classes of
    products what operations timed alone say beyond their terms; `sustained`: macs per ms that no product of
    a network goes beyond, where power keeps down what runs for long; `host`: what starts the operations,
    None where that takes no time of its own; `tf32`: how many times the rate convolutions of float32 are
    computed at in TF32, 1 of a device without.
    """

    name: ClassVar[str] = "kernels"
    multiprocessors: float = 1.0
    classes: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    launch_ms: float = 0.0
    step_ms: float = 0.0
    measured: Sequence[str] = ()
    mode: Mode = field(default_factory=Mode)
    nearby: Mapping[str, Nearby] = field(default_factory=dict)
    sustained: float = math.inf
    host: Host | None = None
    tf32: float = 1.0

    @classmethod
    def of(
        cls, multiprocessors: float, classes: Mapping[str, Mapping[str, float]], launch_ms: float,
        step_ms: float, measured: Sequence[str] = CLASSES, mode: Mode | None = None,
    ) -> Kernels:  # fmt: skip
        """From the terms of all classes; the linear coefficients are those of large operations."""
        rate = max(terms["rate"] for name, terms in classes.items() if name in PRODUCTS)
        bandwidth = max(terms["bandwidth"] for terms in classes.values())
        slopes = (1.0 / rate, 4.0 / bandwidth, step_ms)
        own = multiprocessors, classes, launch_ms, step_ms, tuple(measured), mode or Mode()
        return cls(FEATURES, slopes, 0.0, *own)

    def times(self, work: Work) -> tuple[np.ndarray, np.ndarray]:
        """(steps,) ms of each in a network, and the one of FEATURES that most of it goes to.

        ModelFileError where a time is not finite.
        """
        ms, mostly = np.zeros(len(work.kind)), np.zeros(len(work.kind), int)
        with np.errstate(all="ignore"):
            for name, which in self._by_class(work):
                ms[which], mostly[which] = self._of_class(name, work.take(which))
        if not np.isfinite(ms).all():
            raise self.not_finite()
        return ms, mostly

    def times_alone(self, work: Work) -> np.ndarray:
        """(steps,) ms of each, timed alone."""
        ms = np.zeros(len(work.kind))
        for name, which in self._by_class(work):
            own = work.take(which)
            parts = self._parts(name, own)
            if name in PRODUCTS:
                ms[which] = (longest(*parts)[0] + self.launch_ms) * self.factors(name, own)
            else:
                ms[which] = longest(*parts, np.full(len(own.kind), self.launch_ms))[0]
        return ms

    def moving_ms(self, name: str, moved: float) -> float:
        """Ms of an operation in a network that only moves `moved` bytes."""
        terms = self.classes[name]
        parts = np.array([moved / terms["bandwidth"]]), np.array([self.step_ms])
        return float(longest(*parts)[0][0])

    def _by_class(self, work: Work) -> Iterator[tuple[str, np.ndarray]]:
        """Each class that there are steps of, and (steps,) which; those that move nothing are free."""
        for number, name in enumerate(CLASSES):
            which = (work.kind == number) & (work.bytes > 0)
            if which.any():
                yield name, which

    def _parts(self, name: str, work: Work, faster: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """(steps,) ms of computing, of moving; `faster`: times the rate."""
        terms = self.classes[name]
        volume = volumes(name, work, self.multiprocessors, self.mode)
        rate = faster * terms["rate"] if name in PRODUCTS else math.inf
        return volume / rate, work.bytes / terms["bandwidth"]

    def _of_class(self, name: str, work: Work) -> tuple[np.ndarray, np.ndarray]:
        """`times` of steps of one class, finite or not."""
        faster = self.tf32 if self.mode.dtype == FLOAT32 and name in IN_TF32 else 1.0
        start = np.full(len(work.kind), self.step_ms)
        ms, shares = longest(*self._parts(name, work, faster), start)
        if faster == 1.0:  # what was timed near by was in float32
            ms = ms * self.factors(name, work)
        return np.maximum(ms, work.macs / (faster * self.sustained)), shares.argmax(axis=0)

    def factors(self, name: str, work: Work) -> np.ndarray:
        """(steps,) what the terms of a class are to be multiplied by, for what was timed near by."""
        if name not in self.nearby:
            return np.ones(len(work.kind))
        return self.nearby[name].factors(work)

    def unlike(self, work: Work, times: np.ndarray) -> dict[str, float] | None:
        """What of a network is like no operation that the terms are from: class -> its share of the time;
        None where the terms are of a data sheet alone.
        """
        if not self.measured:
            return None
        of_class = np.bincount(work.kind, times, len(CLASSES)) / max(float(times.sum()), 1e-300)
        return {
            name: float(share)
            for name, share in zip(CLASSES, of_class, strict=True)
            if share > 0.0 and name not in self.measured
        }

    @staticmethod
    def unlike_remarks(shares: Mapping[str, float], least: float) -> tuple[str, ...]:
        """A remark for each class that `unlike` found and that takes more than `least` of the time."""
        return tuple(
            f"nothing measured is like its {CALLED[name]} ({100 * share:.0f} % of its time); "
            "they are taken to be as on other GPUs"
            for name, share in shares.items()
            if share > least
        )

    def to_dict(self) -> dict[str, Any]:
        """The formula as it stands in a model file."""
        return super().to_dict() | {
            "multiprocessors": self.multiprocessors,
            "classes": {name: dict(terms) for name, terms in self.classes.items()},
            "launch_ms": self.launch_ms,
            "step_ms": self.step_ms,
            "measured": list(self.measured),
            "mode": self.mode.to_dict(),
            **(
                {"nearby": {n: near.to_list() for n, near in self.nearby.items()}}
                if self.nearby
                else {}
            ),
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
            float(document["launch_ms"]),
            float(document["step_ms"]),
            tuple(document["measured"]),
            Mode.from_dict(document.get("mode", {})),
            {n: Nearby(rows) for n, rows in document.get("nearby", {}).items()},
            float(document.get("sustained", math.inf)),
            Host.from_dict(document["host"]) if "host" in document else None,
            float(document.get("tf32", 1.0)),
        )


class TrainingSteps(Kernels):
    """The same of training steps, where enough of them were timed to have terms of their own."""

    name: ClassVar[str] = "training-steps"


def volumes(name: str, work: Work, multiprocessors: float, mode: Mode) -> np.ndarray:
    """(steps,) multiply-accumulates of products of a class, with those for nothing: of whole tiles, in
    waves of one for each multiprocessor; in half precision, on units for matrices, of whole steps of depth.
    Few tiles that are deep, as of gradients of weights, are split in depth for idle multiprocessors.
    """
    if name not in TILED:
        return work.macs
    tiles = work.number * np.ceil(work.rows / TILE) * np.ceil(work.columns / TILE)
    idle = np.floor(multiprocessors / np.maximum(tiles, 1.0))
    parts = np.maximum(np.minimum(idle, np.floor(work.depth / SPLIT)), 1.0)
    waves = np.ceil(tiles * parts / multiprocessors)
    deep = DEEP if mode.half else 1
    depth = deep * np.ceil(work.depth / parts / deep)
    return np.asarray(waves * multiprocessors * TILE**2 * depth)


def longest(*parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(steps,) ms of what takes these (steps,) ms at a time, not all of them 0: the norm of order SHARP;
    and (parts, steps) the share that each has in it.
    """
    most = np.maximum.reduce(parts)
    powers = (np.array(parts) / most) ** SHARP
    total = powers.sum(axis=0)
    return most * total ** (1.0 / SHARP), powers / total
