"""A roofline for each class of operations: each operation computes, moves bytes and is launched.

The longest of the three counts fully and the others in part, as they overlap incompletely:

    t = (computing ** s + moving ** s + starting ** s) ** (1 / s),  s: the device's sharpness
    computing = outputs * depth / rate
    moving = bytes / bandwidth

`rate` and `bandwidth` belong to the operation's class. The outputs of a product are rounded up to whole
tiles and, if the number of multiprocessors is known, to whole waves (tile and wave quantization in NVIDIA's
guide to matrix multiplication). docs/explanation/formula.md has an ablation.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, Self

import msgspec

from lolat.arrays import np
from lolat.device.domain import NEGLIGIBLE_SHARE, PASSED_OVER_SHARE, Extrapolation, MeasuredMinimum
from lolat.device.predictors.formula import Formula
from lolat.device.predictors.host import GIVEN, GRAPH_CALLS, LATE, Host, Steps, launches_alone
from lolat.device.predictors.operation_classes import IN_TF32, OPERATION_CLASSES, TILED
from lolat.device.predictors.shape_residuals import Row, shape_factors
from lolat.graph import work as c
from lolat.graph.counts import COLUMNS
from lolat.graph.modes import DEFAULT_MODE, FLOAT32, GRAPH, TF32, Mode
from lolat.graph.work import CALLED, CLASSES, PRODUCTS, Workload, work_of
from lolat.io.documents import Number, Positive
from lolat.io.results import Figure, Remark
from lolat.units import milliseconds

if TYPE_CHECKING:
    from lolat.graph.analysis import Analysis

SHARPNESS = 3.0  # default order of the norm: 1 gives the sum, infinity the longest part
DEEP = 64  # the depth of a product is padded to multiples of this in half precision
SPLIT_DEPTH = 1024  # least depth of a part of a split product
TILE = 64  # height and width of the outputs that a multiprocessor computes at once
OF_MATRICES = 1.5  # rate of matrix products / rate of convolutions, in TF32
WINOGRAD = 4.0
"""Multiplications of a direct 3x3 convolution / multiplications of F(4x4, 3x3) (Lavin and Gray 2016).
Libraries use the latter in float32: counted as direct convolutions, V100, P100, T4 and P4 reach 1.6 to 2.25
times their peak."""
RECURRENT_MS = 0.007
"""Least time of a recurrent layer per position of its input in ms, on any GPU. PyTorch 1.11 takes 6.1 to
14.5 us, median 7.1, for 80 LSTM and RNN networks (40 to 360 units, batches of 1 to 62) by cuDNN's standard
algorithm and 0.3 to 76 by the one for small layers (xwang233's cudnn-rnn-bench-62143); DeepBench 27 to 62
us for LSTMs of 256 and 512 units on a V100 (batch 16 to 128), 13 to 52 on a Titan Xp."""
LEAST_TRAINING_STEPS = 20  # least held-out training steps for a separate interval
LAYOUT_FACTORS = 1.2, 3.1
"""Bytes moved to convert layouts per byte of a convolution in half precision, (forward, backward), at the
data sheet's bandwidth. Tensor cores need channels last, and cuDNN converts tensors from channels first and
back: about half of them forward, all backward. Source: 290 networks of timm on an RTX 3090 (PyTorch 1.12
and 1.13, AMP) in both layouts, families left out. With these factors and `OperationClass.backward`,
training steps predicted by the terms of inference have a median error of 7.5 % and no bias; without them,
14 % and -14 % with channels first. A GPU that converts all tensors (`Gpu.channels_last`) takes the second
number forward too: an H100 (cuDNN 9) 2.5 to 3.5, by 14 networks in both layouts (benchmarks/h100)."""
NOTHING_MEASURED = (
    "nothing was measured on this device: its data sheet alone; operations timed there make it better "
    "(`lolat fit OPERATIONS.csv --facts FILE --name NAME`)"
)
OPERATION_FEATURES = ("flops", "traffic", "ops")
COMPUTE, MOVE, START = range(3)
TERM_NAMES = ("rate", "bandwidth")
CLASS_TERMS = {name: TERM_NAMES if name in PRODUCTS else TERM_NAMES[1:] for name in CLASSES}
"""Class of operations -> its terms: `bandwidth` (bytes per ms), and for products `rate` (MACs per ms)."""


LARGE_PRODUCT = 1_000_000
"""More elements than any matrix in a timed network's product of two tensors has; the largest are 785 x 785,
for CaiT's tokens."""


class OwnStep(msgspec.Struct, frozen=True):
    """A training step that a user timed.

    `network`, `size`: arguments of `lolat.readers.read`; `key`: equal for steps with the same work and mode
    at batch size 1; `passes_ms`: measured ms of the forward and backward pass of a micro-batch.
    """

    network: str
    size: int | tuple[int, ...] | None
    key: str
    batch_size: int
    passes_ms: Positive


class Roofline(Formula, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """A rate, a bandwidth and a launch overhead for each class of operations.

    A question with counts alone is answered with the rates of large operations.

    - `multiprocessors`: 1 if unknown.
    - `classes`: the terms of each class (CLASS_TERMS).
    - `launch_ms`: launch overhead of an addition that is timed alone.
    - `step_ms`: launch overhead of an operation in a network.
    - `measured`: the classes with timed operations. Other classes have usual terms.
    - `mode`: the execution mode.
    - `shape_residuals`: corrections of classes of products, from operations timed alone.
    - `sustained`: MACs per ms that no product in a network exceeds, because power limits long runs.
    - `sheet_peak`: (MACs per ms, bytes per ms) of the data sheet; None without one.
    - `host`: the launches of a GPU's host; None if launching takes no time of its own.
    - `tf32`: the rate of convolutions in TF32 / their rate in float32; 1 without TF32.
    - `tile`: height and width of the outputs that a multiprocessor computes at once; 1 without tiles.
    - `sharpness`: see SHARPNESS.
    - `training`: measured / predicted time of training steps.
    - `training_residuals`: the `residuals` of training steps.
    - `training_optimizer`: the optimizer whose update was timed; "none" without an update, "" if unknown.
    - `channels_last_terms`: True if the terms are for channels last; channels first then adds conversions.
    - `layout_factor`: bytes converted per byte of a convolution in a forward pass (LAYOUT_FACTORS).
    - `own_steps`: the user's timed steps, which scaled `training` by the factor `own_level`.
    """

    name: ClassVar[str] = "kernels"
    multiprocessors: Positive
    classes: dict[Literal[CLASSES], dict[str, Positive]]  # type: ignore[valid-type]
    launch_ms: Positive
    step_ms: Positive
    measured: tuple[Literal[CLASSES], ...]  # type: ignore[valid-type]
    mode: Mode = DEFAULT_MODE
    shape_residuals: dict[Literal[tuple(PRODUCTS)], tuple[Row, ...]] = msgspec.field(  # type: ignore[valid-type]
        default_factory=dict
    )
    sustained: Positive | None = None
    sheet_peak: tuple[Positive, Positive] | None = None
    host: Host | None = None
    tf32: Positive = 1.0
    tile: Positive = TILE
    sharpness: Positive = SHARPNESS
    training: Positive = 1.0
    training_residuals: tuple[Number, ...] = ()
    training_optimizer: str = ""
    channels_last_terms: bool = False
    layout_factor: Positive = LAYOUT_FACTORS[0]
    own_steps: tuple[OwnStep, ...] = ()
    own_level: Positive = 1.0

    @classmethod
    def of(
        cls, multiprocessors: float, classes: Mapping[str, Mapping[str, float]], launch_ms: float,
        step_ms: float, measured: Sequence[str] = CLASSES, mode: Mode = DEFAULT_MODE, tile: float = TILE,
    ) -> Roofline:  # fmt: skip
        """A formula from the terms of all classes; its linear coefficients hold for large operations."""
        rate = max(terms["rate"] for name, terms in classes.items() if name in PRODUCTS)
        bandwidth = max(terms["bandwidth"] for terms in classes.values())
        return cls.linear(
            OPERATION_FEATURES, (1.0 / rate, 4.0 / bandwidth, step_ms), 0.0, classes=classes,
            multiprocessors=multiprocessors, launch_ms=launch_ms, step_ms=step_ms,
            measured=tuple(measured), mode=mode, tile=tile,
        )  # fmt: skip

    def of_terms(self, classes: Mapping[str, Mapping[str, float]]) -> Self:
        """The formula with other terms for its classes; its linear coefficients change accordingly."""
        large = Roofline.of(
            self.multiprocessors, classes, self.launch_ms, self.step_ms, self.measured
        )
        return msgspec.structs.replace(self, classes=large.classes, coefficients=large.coefficients)

    def scaled(self, factor: float) -> Self:
        """The formula of a device that takes `factor` times as long; its host, another machine, stays."""
        return msgspec.structs.replace(
            super().scaled(factor),
            classes={
                name: {term: value / factor for term, value in terms.items()}
                for name, terms in self.classes.items()
            },
            step_ms=factor * self.step_ms,
            launch_ms=factor * self.launch_ms,
            sustained=self.sustained and self.sustained / factor,
        )

    # ---- Times of single operations

    @cached_property
    def terms(self) -> np.ndarray:
        """(2, CLASSES) rates and bandwidths; a class without products has an infinite rate."""
        return np.array(
            [[self.classes[name].get(term, math.inf) for name in CLASSES] for term in TERM_NAMES]
        )

    def times(self, work: Workload) -> tuple[np.ndarray, np.ndarray]:
        """((steps,) ms of each step in a network, (features, steps) its shares); views take no time."""
        faster = self.faster(work, self.mode.dtype, self.tf32)
        with np.errstate(all="ignore"):
            start = np.maximum(self.step_ms, RECURRENT_MS * work.sequential)
            ms, shares = longest(self.sharpness, *self._parts(work, faster), start)
            ms = ms * self.factors(work) * self.slower(work)
            if self.sustained is not None:
                ms = np.maximum(ms, work.macs / (faster * self.sustained))
            least_ms = self._least_ms(work, faster)
            ms = np.maximum(ms, least_ms)
            moved = self.layout_bytes(work, self.mode, self.channels_last_terms, self.layout_factor)
            layout_ms = moved / (self.sheet_peak or (0.0, math.inf))[1]
            ms = np.maximum(ms + layout_ms, least_ms)
            more = np.maximum(layout_ms, 0.0) / ms
            shares = shares * (1.0 - more)
            shares[MOVE] += more
        ms = np.where(work.bytes > 0, ms, 0.0)
        return ms, np.where(work.bytes > 0, shares, 0.0)

    def times_alone(self, work: Workload) -> np.ndarray:
        """(steps,) ms of each step when timed alone; the launch overhead of products is added in full."""
        launch_ms = self.launch_ms * launches_alone(work)
        on_top = np.where(work.is_of(*PRODUCTS), launch_ms, 0.0)
        faster = self.faster(work, self.mode.dtype, self.tf32)
        with np.errstate(all="ignore"):
            ms, _ = longest(self.sharpness, *self._parts(work, faster), launch_ms - on_top)
            ms = np.maximum((ms + on_top) * self.factors(work), self._least_ms(work, faster))
        return np.where(work.bytes > 0, ms, 0.0)

    def moving_ms(self, name: str, moved: float) -> float:
        """Time in ms of an operation of class `name` in a network, if it only moves `moved` bytes."""
        parts = np.array([moved / self.classes[name]["bandwidth"]]), np.array([self.step_ms])
        return float(longest(self.sharpness, *parts)[0][0])

    @staticmethod
    def faster(work: Workload, dtype: str, tf32: float) -> np.ndarray:
        """(steps,) rate of each step in a mode's data type / its rate in float32."""
        of = {FLOAT32: (tf32, 1.0), TF32: (tf32, OF_MATRICES * tf32 if tf32 > 1.0 else 1.0)}
        convolutions, matrices = of.get(dtype, (1.0, 1.0))
        others = np.where(work.is_of(*TILED - IN_TF32), matrices, 1.0)
        return np.where(work.is_of(*IN_TF32), convolutions, others)

    def _least_ms(self, work: Workload, faster: np.ndarray) -> np.ndarray:
        """(steps,) least ms of each step by the data sheet's peak and bandwidth; 0 without a sheet."""
        macs, moved = self.sheet_peak or (math.inf, math.inf)
        may = has_winograd(self.mode.dtype, self.tf32) & work.is_of(c.CONVOLUTION)
        by_winograd = np.where(may & (work.depth % 9 == 0), WINOGRAD, 1.0)
        return np.maximum(work.macs / (faster * by_winograd * macs), work.bytes / moved)

    def _parts(self, work: Workload, faster: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """((steps,) ms of computing, (steps,) ms of moving); `faster`: (steps,) factor of the rate."""
        rate, bandwidth = self.terms[:, work.kind]
        if self.assumes_large:
            usual = np.array(OPERATION_CLASSES[c.BATCHED].in_half) * (self.sheet_peak or 0.0)
            sides = np.sort([work.rows, work.columns, work.depth], axis=0)
            large = work.is_of(c.BATCHED) & (sides[1] * sides[2] > LARGE_PRODUCT)
            rate, bandwidth = np.where(
                large, np.maximum((rate, bandwidth), usual[:, None]), (rate, bandwidth)
            )
        volume = volumes(work, self.multiprocessors, self.mode, self.tile)
        return volume / (faster * rate), work.bytes / bandwidth

    @property
    def assumes_large(self) -> bool:
        """True if large products of two tensors get the usual shares of the data sheet, if these are more.

        No timed network has such products, and fits to small ones, such as of windows, are too slow.
        """
        is_timed = c.BATCHED in self.shape_residuals
        return self.mode.half and self.sheet_peak is not None and not is_timed

    @staticmethod
    def slower(work: Workload) -> np.ndarray:
        """(steps,) usual time of each step in a backward pass / the time predicted from its work."""
        back = np.array([OPERATION_CLASSES[name].backward for name in CLASSES])
        return np.where(work.backward, back[work.kind], 1.0)

    @staticmethod
    def layout_bytes(
        work: Workload, mode: Mode, on_top: bool = False, forward: float = LAYOUT_FACTORS[0]
    ) -> np.ndarray:
        """(steps,) bytes moved to convert layouts of convolutions' tensors, beyond what the terms include.

        `on_top`: True if the terms are for channels last. Otherwise the terms are for inference with
        channels first, and the bytes are negative for channels last and compiled networks, which convert
        less than the terms include. `forward`: bytes per byte of a convolution in a forward pass.
        """
        if not mode.half:
            return np.zeros(len(work.kind))
        each = np.where(work.backward, LAYOUT_FACTORS[1], forward) * (not mode.runs_channels_last)
        each -= forward * (not on_top)
        return each * work.bytes * work.is_of(*IN_TF32)

    def factors(self, work: Workload) -> np.ndarray:
        """(steps,) factors of the times, from the shape residuals."""
        factors = np.ones(len(work.kind))
        for name, rows in self.shape_residuals.items():
            which = work.is_of(name)
            factors[which] = shape_factors(rows, work.take(which))
        return factors

    # ---- Whole networks

    def units(self, counts: np.ndarray) -> np.ndarray:
        """(features,) units of each term; elements of convolutions and weights count as moved elements."""
        units = super().units(counts)
        units[MOVE] += sum(counts[COLUMNS.index(name)] for name in ("acts", "inp", "weights"))
        return units

    def steps(self, work: Workload) -> Steps:
        """The steps of a network in the order in which they run."""
        ms, shares = self.times(work)
        if work.backward.any():
            ms = ms * self.training
        return Steps.of(work, ms, shares, self.host, self.mode)

    def of_blocks(
        self, analysis: Analysis, batch_size: int
    ) -> tuple[np.ndarray, float, Steps | None]:
        """Times of the blocks as in `Formula.of_blocks`; the call takes no time of its own."""
        steps, each = self._of_operations(analysis, batch_size)
        terms = np.zeros((len(analysis.blocks), len(self.features)))
        np.add.at(terms, analysis.owner, each)
        return terms, 0.0, steps

    def counts_of(self, analysis: Analysis, batch_size: int) -> np.ndarray:
        """Counts of operations as in `Formula.counts_of`; "ops" are the launches in this execution mode."""
        counts = super().counts_of(analysis, batch_size)
        steps, _ = self._of_operations(analysis, batch_size)
        counts[:, COLUMNS.index("ops")] = np.bincount(steps.operation, steps.moves, len(counts))
        return counts

    def of_operations(self, analysis: Analysis, batch_size: int) -> np.ndarray:
        """Times of operations as in `Formula.of_operations`; waiting for the host is in the term "ops"."""
        return self._of_operations(analysis, batch_size)[1]

    def _of_operations(self, analysis: Analysis, batch_size: int) -> tuple[Steps, np.ndarray]:
        steps = self.steps(work_of(analysis.graph, batch_size, self.mode))
        terms = np.zeros((len(analysis.graph.operations), len(self.features)))
        of_device = steps.of_device_ms
        np.add.at(terms, steps.operation, (steps.shares * of_device).T)
        np.add.at(terms[:, START], steps.operation, steps.ms - of_device)
        return steps, terms

    # ---- Extrapolation

    def extrapolation(
        self, steps: Steps, batch_size: int, minimum: MeasuredMinimum
    ) -> Extrapolation:
        """The part of a network outside the measured range.

        The whole network is outside if it is host-bound, launched in a way that was not measured, or below
        the `minimum`. Otherwise operations of untimed classes are outside, and the time that the device
        waits.
        """
        unlike, remarks = self.unlike(steps), [*self._reasons(steps, batch_size, minimum)]
        if unlike is None:
            known = bool(remarks)
            return Extrapolation(float(known), remarks=(NOTHING_MEASURED, *remarks), known=known)
        waiting = float(steps.waits_ms.sum()) / (steps.latency_ms or 1.0)
        share = (1.0 - waiting) * sum(unlike.values())
        extrapolation = Extrapolation(1.0 - share if remarks else waiting, unlike=share)
        if unlike and extrapolation.share >= NEGLIGIBLE_SHARE:
            remarks += self.unlike_remarks(unlike, PASSED_OVER_SHARE)
        return dataclasses.replace(extrapolation, remarks=tuple(remarks))

    def unlike(self, steps: Steps) -> dict[str, float] | None:
        """Class that was not timed -> its share of the device's time; None if no class was timed at all."""
        if not self.measured:
            return None
        ms = np.bincount(steps.kind, steps.run_ms, len(CLASSES))
        shares = dict(zip(CLASSES, (ms / (ms.sum() or 1.0)).tolist(), strict=True))
        return {n: share for n, share in shares.items() if share > 0.0 and n not in self.measured}

    @staticmethod
    def unlike_remarks(shares: Mapping[str, float], least: float) -> tuple[str, ...]:
        """A remark on the classes in `unlike` with a share above `least`."""
        most = sorted(
            ((share, name) for name, share in shares.items() if share > least), reverse=True
        )
        if not most:
            return ()
        parts = ", ".join(f"{CALLED[name]} ({{{name}}} %)" for _, name in most)
        return (
            Remark(
                "kinds of operations that were hardly timed on this device",
                f"{parts} of the time; they are assumed to be as on other GPUs",
                **{name: Figure("{:.0f}".format, 100 * share) for share, name in most},
            ),
        )

    @property
    def launched_otherwise(self) -> str:
        """A remark if the launch differs from the measured launch; else ""."""
        if self.host is None or self.host.launch == self.mode.launch:
            return ""
        return (
            f"the measurements were launched in another way ({self.host.launch}); {self.mode.launch} is "
            "estimated from them"
        )

    def _reasons(self, steps: Steps, batch_size: int, minimum: MeasuredMinimum) -> Iterator[str]:
        """Yield remarks on reasons why a whole network is outside the measured range."""
        host, operations = self.host, int(steps.moves.sum())
        views = len(steps.moves) - operations
        if host is not None and steps.host_ms is not None and steps.host_bound:
            is_graph_faster = self.mode.launch != GRAPH and operations > 2 * GRAPH_CALLS
            graph = " or CUDA graphs (--launch graph)" if is_graph_faster else ""
            own = "" if host.source == GIVEN else "; yours: --host-us"
            rest_ms = steps.latency_ms - steps.host_ms
            is_late = rest_ms > LATE * steps.latency_ms
            faster = "saves {rest} at most" if is_late else "does not help"
            launched = "{operations} operation" if operations == 1 else "{operations} operations"
            if views:
                launched += " and {views} view" if views == 1 else " and {views} views"
            yield Remark(
                "host-bound",
                f"the host takes {{took}} to launch {launched}, the device {{runs}} to run them; a "
                f"faster device {faster}, a larger batch{graph} helps (an addition takes the host "
                f"{{start}} µs, {{source}}, within a factor of {host.factor:g}{own})",
                took=Figure(milliseconds, steps.host_ms),
                operations=Figure("{:,}".format, operations),
                views=Figure("{:,}".format, views),
                runs=Figure(milliseconds, steps.device_ms),
                rest=Figure(milliseconds, rest_ms),
                start=Figure("{:.0f}".format, 1e3 * host.start_ms),
                source=host.source,
            )
        if self.launched_otherwise:
            yield self.launched_otherwise
        of_steps = batch_size, steps.device_ms, operations
        if smaller := minimum.remark(*of_steps, with_host_ms=steps.latency_ms):
            yield smaller


class TrainingSteps(Roofline, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """A roofline for training steps, with its own terms if enough steps were timed."""

    name: ClassVar[str] = "training-steps"

    @staticmethod
    def slower(work: Workload) -> np.ndarray:
        """(steps,) ones, because the terms cover both passes."""
        return np.ones(len(work.kind))

    @staticmethod
    def layout_bytes(
        work: Workload, mode: Mode, on_top: bool = False, forward: float = LAYOUT_FACTORS[0]
    ) -> np.ndarray:
        """(steps,) zeros, because the terms cover both passes."""
        return np.zeros(len(work.kind))


def has_winograd(dtype: str, tf32: float) -> bool:
    """True if convolutions may use Winograd's algorithm: in float32, without matrix units for it."""
    return dtype in (FLOAT32, TF32) and tf32 == 1.0


def volumes(work: Workload, multiprocessors: float, mode: Mode, tile: float = TILE) -> np.ndarray:
    """(steps,) multiply-accumulates, rounded up to whole tiles and waves.

    A wave has one tile per multiprocessor. In half precision the depth is rounded up too. A few deep tiles,
    such as those of weight gradients, are split in depth over idle multiprocessors. `tile`: 1 without
    tiles.
    """
    if tile == 1.0:
        return work.macs
    # A recurrent layer's products wait for each other.
    sequential = np.maximum(work.sequential, 1.0)
    tiles = work.number / sequential * np.ceil(work.rows / tile) * np.ceil(work.columns / tile)
    idle = np.floor(multiprocessors / np.maximum(tiles, 1.0))
    parts = np.maximum(np.minimum(idle, np.floor(work.depth / SPLIT_DEPTH)), 1.0)
    waves = sequential * np.ceil(tiles * parts / multiprocessors)
    deep = DEEP if mode.half else 1
    depth = deep * np.ceil(work.depth / parts / deep)
    return np.where(work.is_of(*TILED), waves * multiprocessors * tile**2 * depth, work.macs)


def longest(sharpness: float, *parts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((steps,) ms of overlapping parts, (parts, steps) their shares), by the norm of order `sharpness`.

    `parts`: (steps,) ms each, not all 0.
    """
    times = np.array(parts)
    most = times.max(axis=0)
    powers = (times / most) ** sharpness
    total = powers.sum(axis=0)
    return most * total ** (1.0 / sharpness), powers / total
