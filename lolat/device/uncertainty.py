"""The uncertainty of a prediction: the unmeasured part of a network, and the width of the interval."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lolat.device.domain import (
    NEGLIGIBLE_SHARE,
    Extrapolation,
    beyond_remarks,
    extrapolated_half_width,
    fit_again,
)
from lolat.device.file import DeviceFile
from lolat.device.intervals import interval_around, normal_quantile
from lolat.device.predictors.formula import CONSTANT, Formula
from lolat.device.predictors.host import Steps
from lolat.device.predictors.int8 import int8_half_width, int8_remark, untimed_in_int8
from lolat.device.predictors.roofline import LARGE_PRODUCT, RECURRENT_MS, Roofline
from lolat.device.predictors.two_regime import TwoRegime
from lolat.device.profile_remarks import STEPS_ALONE
from lolat.device.schema import Noise
from lolat.errors import InputError
from lolat.graph import Graph, Operation
from lolat.graph.analysis import Analysis
from lolat.graph.counts import COLUMNS, FEATURES, FORMULAS, behavior, quantized_remark, wide_share
from lolat.graph.kinds import GATES
from lolat.graph.modes import AMP, Mode, other_dtype
from lolat.graph.weights import copies
from lolat.graph.work import BATCHED, is_large_resize
from lolat.io.results import Figure, Remark
from lolat.parameters import COVERAGE
from lolat.units import milliseconds, percent

if TYPE_CHECKING:
    from lolat.device.device import Device

MOSTLY_UNLIKE = 0.5
"""Largest share of the time in untimed classes at which a device without a data sheet still has an
interval."""
MOSTLY_MACHINE = 2.0
"""The machine's part of an interval / the formula's part, above which the answer gets a remark."""
THREE_COUNTS = (
    "the table has three counts of convolutions alone: the time of weights, dense layers and other "
    "operations is not known"
)
NOT_KNOWN = Remark(
    "no interval",
    "most of the time goes to kinds of operations that were hardly timed on this device, and it has no "
    "data sheet (`lolat fit` with --facts)",
)


_SIX = [COLUMNS.index(c) for c in FEATURES]
_OPS = COLUMNS.index("ops")


COPIES_SHARE = 0.1
"""Smallest share of the latency at which the conversion of weights gets a remark."""


def with_copies(
    half_width: float | None,
    remarks: tuple[str, ...],
    file: DeviceFile,
    graph: Graph,
    latency_ms: float,
) -> tuple[float | None, tuple[str, ...]]:
    """(half width of the log interval in amp, remarks); both account for the conversion of weights.

    The latency excludes copies that autocast keeps until its context ends. A program with a context for
    each pass makes these copies in each pass, at the data sheet's bandwidth, reading 4 bytes and writing 2
    for each weight. So do compilers, and PyTorch 2.10 and newer in inference mode. In eager PyTorch the
    latency includes copies that autocast does not keep. A conversion of less than COPIES_SHARE of the
    latency changes nothing.
    """
    gpu = file.gpu
    if gpu is None or not gpu.bandwidth_gb_s:
        return half_width, remarks
    kept, again = (3.0 * float(made.sum()) / gpu.bandwidth_gb_s / 1e6 for made in copies(graph))
    if file.mode.fused:
        kept, again = kept + again, 0.0
    if again >= COPIES_SHARE * latency_ms:
        remark = Remark(
            "autocast keeps half-precision copies of whole trainable weights alone",
            "it converts the others (frozen, buffers, parts) in each pass, counted as about {again} (none "
            "with --precision bf16)",
            again=Figure(milliseconds, again),
        )
        remarks = (*remarks, remark)
    if kept < COPIES_SHARE * latency_ms:
        return half_width, remarks
    what = "its other weights" if again else "weights"
    remark = Remark(
        f"{what} count as in half precision already, as in eager PyTorch within one torch.autocast context",
        "a context for each pass, torch.compile, and torch.inference_mode of newer PyTorch convert them in "
        "each, {kept} or more (none with --precision bf16)",
        kept=Figure(milliseconds, kept),
    )
    if file.mode.fused:
        remark = Remark(
            "this time is without the conversion of weights to half precision",
            "torch.compile converts them in each pass, {kept} or more (none with --precision bf16)",
            kept=Figure(milliseconds, kept),
        )
    wider = None if half_width is None else math.hypot(half_width, math.log1p(kept / latency_ms))
    return wider, (*remarks, remark)


FEW_ROWS = 4
"""Dense layers with large weights and at most this many rows are in no table."""
ROWS_FOR_ALL = 4
"""Rows per expert of a mixture at which nearly all experts, 1 - exp(-4) of them, get a row."""


def with_untimed(
    extrapolation: Extrapolation, formula: Formula, analysis: Analysis, batch_size: int, mode: Mode
) -> tuple[Extrapolation, tuple[str, ...]]:
    """(the extrapolation with a network's unmeasured share of work added, the remarks on its counts).

    The share is the largest of four: everything, if an operation may hide products; the part quantized in
    an untimed way; the products that amp leaves in float32; the weights of experts with few rows. A row is
    a token at one of its experts, drawn at random. Counts and work assume that all experts are read.
    """
    graph, counts, remarks = analysis.graph, analysis.counts, analysis.counts.warnings
    attributes = set[str]().union(*map(attrgetter("attributes"), graph.operations))
    if not (counts.quantized or {"hides", "experts", "wide"} & attributes):
        return extrapolation, remarks
    share = quantized = counts.quantized
    if (
        quantized
        and formula.int8
        and (share := untimed_in_int8(formula.int8, analysis)) < quantized
    ):
        int8_words = int8_remark(analysis, formula.int8_ms(analysis, batch_size))
        remarks = (int8_words, *(r for r in remarks if share or r != quantized_remark(quantized)))
    share = max(share, wide_share(graph) if mode.dtype == AMP else 0.0)
    if "hides" in attributes:
        share = 1.0
    few: dict[int, tuple[float, int]] = {}  # position -> (rows, experts)
    for position, o in enumerate(graph.operations):
        if (experts := o.attributes.get("experts", 1)) > 1:
            written = graph.tensors[o.outputs[0]].elements(batch_size)
            if (rows := written / o.attributes["out_features"]) < ROWS_FOR_ALL * experts:
                few[position] = rows, experts
    if few:
        weights = counts.at(1)[:, COLUMNS.index("weights")]
        rows, experts = min(few.values(), key=lambda one: one[0] / one[1])
        hit = experts * (1.0 - (1.0 - 1.0 / experts) ** rows)
        read = "a mixture of experts is timed as if it read all of them; with few tokens at once it reads"
        fewer = Figure("{:.0f}".format, hit), Figure("{:,}".format, experts)
        remarks = (
            Remark(f"{read} fewer", "about {hit} of {all}", hit=fewer[0], all=fewer[1]),
            *remarks,
        )
        share = max(share, float(weights[[*few]].sum()) / float(weights.sum()))
    beyond, unlike = (1.0 - share) * extrapolation.beyond, (1.0 - share) * extrapolation.unlike
    unmeasured = share + (1.0 - share) * extrapolation.unmeasured
    known = extrapolation.known or share > NEGLIGIBLE_SHARE
    return Extrapolation(beyond, unmeasured, unlike, extrapolation.remarks, known), remarks


def widened_half_width(
    formula: Formula,
    steps: Steps | None,
    extrapolation: Extrapolation,
    noise: Noise,
    coverage: float | None,
    ops: int,
    graph: Graph | None = None,
    terms_ms: Mapping[str, float] | None = None,
    is_checked: bool = False,
) -> tuple[float | None, tuple[str, ...]]:
    """(half width of the log interval or None, remarks).

    The remarks say that there is no interval, or that the machine causes most of it. `ops`: number of
    operations; `graph`: the network, if it may be quantized; `terms_ms`: ms of each term; `is_checked`:
    True after a check of the machine, which has its own remark. With too few points the half width is None
    for the default coverage; a given coverage is an InputError.
    """
    if steps is not None and isinstance(formula, Roofline) and formula.multiprocessors == 1.0:
        unlike = formula.unlike(steps) or {}
        if sum(unlike.values()) > MOSTLY_UNLIKE:
            return None, (NOT_KNOWN,)
    floor, sure = noise.floor or 0.0, COVERAGE if coverage is None else coverage
    try:
        half_width = formula.half_width(ops, sure, floor, terms_ms)
    except InputError as error:
        if coverage is not None:
            raise
        return None, (Remark("no interval", str(error)),)
    widened = extrapolated_half_width(half_width, extrapolation, sure)
    int8 = int8_half_width(formula.int8, graph, sure) if graph and formula.int8 else 0.0
    machine = math.log1p(noise.repeatability or 0.0) * normal_quantile(sure)
    told: tuple[str, ...] = ()
    if machine > MOSTLY_MACHINE * widened and not is_checked:
        repeat = f"its times repeat within {percent(noise.repeatability or 0.0)}"
        told = (
            Remark("the interval is wide because the machine was unsteady while learning", repeat),
        )
    return math.hypot(widened, machine, int8), told


SORT_PASSES = 12.0
"""Bytes that CUB's radix sort moves / bytes counted. It moves 96 an element: keys of 4 bytes and positions
of 8 are read and written for each of four digits. The count has 8, one pass over the keys."""
UNTIMED: tuple[tuple[Any, ...], ...] = (
    (lambda o: o.kind in GATES, "recurrent layer",
     f"each of its steps is predicted as a matrix product of at least {1e3 * RECURRENT_MS:g} µs"),
    (lambda o: behavior(o).endswith("_3d"), "convolution or pool in three dimensions",
     "they are predicted as those in two"),
    (lambda o: o.kind == "sort", "sort or choice of the largest",
     "it is predicted as one pass over its tensor, and takes several", SORT_PASSES),
    (lambda o: o.kind not in FORMULAS,),
)  # fmt: skip
"""Operations that no table has: (a test for such an operation, its name, how it is predicted, the factor by
which it may take longer)."""


def _is_large_product(graph: Graph, operation: Operation) -> bool:
    """True for a product of two tensors with a matrix of more than LARGE_PRODUCT elements."""
    if operation.kind != "matmul":
        return False
    shape = graph.tensors[operation.outputs[0]].shape
    _, middle, most = sorted([*shape[-2:], operation.attributes["contracted"]])
    return bool(middle * most > LARGE_PRODUCT)


def _has_few_rows(graph: Graph, batch_size: int, operation: Operation) -> bool:
    """True for a dense layer with at most FEW_ROWS rows."""
    if operation.kind != "dense":
        return False
    a, written = operation.attributes, graph.tensors[operation.outputs[0]].elements(batch_size)
    return bool(written <= FEW_ROWS * a["out_features"] * a.get("experts", 1))


def tables_extrapolation(
    device: Device, analysis: Analysis, batch_size: int, extrapolation: Extrapolation, steps: Steps,
    formula: Roofline,
) -> Extrapolation:  # fmt: skip
    """The `extrapolation` with causes added that classes of operations do not show.

    These are operations that no table has (recurrent layers, three dimensions, kinds without a formula),
    kinds of products or sizes of products and images beyond those of timed networks, and dense layers with
    few rows.
    """
    remarks, operations = [*extrapolation.remarks], analysis.graph.operations
    times = np.bincount(steps.operation, steps.ms, len(operations)) / (steps.latency_ms or 1.0)

    def time_of(
        is_untimed: Callable[[Operation], bool], what: str = "", how: str = "", longer: float = 1.0
    ) -> float:
        part = float(times[[is_untimed(o) for o in operations]].sum())
        if what and longer * part > NEGLIGIBLE_SHARE:
            remarks.append(
                f"no {what} was timed on this device, {percent(part)} of the time: {how}"
            )
        return longer * part

    share = min(sum(time_of(*untimed) for untimed in UNTIMED), 1.0)
    large = time_of(
        partial(is_large_resize, analysis.graph),
        "image resized to more than 96 x 96 pixels",
        "it is predicted by its bytes, eager as a pool",
    )
    if formula.multiprocessors > 1.0:
        large += time_of(
            partial(_has_few_rows, analysis.graph, batch_size),
            "dense layer of one to four rows",
            "it is predicted as slow as one of more rows, and may be several times faster",
        )
    if BATCHED in formula.measured and BATCHED not in formula.shape_residuals:
        large += time_of(
            partial(_is_large_product, analysis.graph),
            "product of two tensors with matrices of more than 1,000,000 elements",
            "its rate is a usual one of GPUs in half precision, or that of small ones if that is higher"
            if formula.assumes_large
            else "its rate is that of small ones, such as of windows, and large ones may be faster",
        )
    unlike, of_kinds = device.file.domain.unlike(analysis.counts.at(batch_size).sum(axis=0))
    unlike *= 1.0 - extrapolation.unlike - share - large
    known = extrapolation.known or share > NEGLIGIBLE_SHARE or bool(device.file.domain.shares)
    return replace(
        extrapolation,
        unmeasured=extrapolation.unmeasured + share,
        unlike=extrapolation.unlike + max(unlike, 0.0) + large,
        remarks=(*remarks, *of_kinds),
        known=known,
    )


def extrapolation_of(
    device: Device, analysis: Analysis, batch_size: int, formula: Formula, terms: np.ndarray,
    steps: Steps | None,
) -> Extrapolation:  # fmt: skip
    """The part of a network outside the measured range; `terms`: (blocks, features) shares of the time."""
    domain, shares = device.file.domain, terms.sum(axis=1)
    if steps is not None and isinstance(formula, Roofline):
        found = formula.extrapolation(steps, batch_size, domain.minimum)
        return tables_extrapolation(device, analysis, batch_size, found, steps, formula)
    if not domain.ratios:
        if told := other_dtype(analysis.graph, device.file.mode.dtype):
            return Extrapolation(unmeasured=1.0, remarks=tuple(told))
        latency = float(formula.of_operations(analysis, batch_size).sum())
        ops = int(analysis.block_counts(batch_size)[:, _OPS].sum())
        minimum = domain.minimum
        if minimum.most_samples is None and (batches := device.file.timed_batches):
            minimum = msgspec.structs.replace(minimum, most_samples=batches[1])
        if smaller := minimum.remark(batch_size, latency, ops):
            return Extrapolation(unlike=1.0, remarks=(smaller,))
        if domain.shares:
            unlike, remark = domain.unlike(analysis.counts.at(batch_size).sum(axis=0))
            return Extrapolation(unlike=min(unlike, 1.0), remarks=remark)
        if formula.name == TwoRegime.name:
            return Extrapolation(unlike=1.0, known=False, remarks=(THREE_COUNTS,))
        return Extrapolation(known=False)
    counts = analysis.block_counts(batch_size)[:, _SIX]
    beyond = domain.beyond(counts)
    kinds, dtypes = domain.unmeasured(analysis.graph)
    operations = np.zeros(len(analysis.owner))  # each operation's share of the time
    if kinds or dtypes:
        operations = formula.of_operations(analysis, batch_size).sum(axis=1)
        operations *= float(shares.sum()) / (float(operations.sum()) or 1.0)
    is_unmeasured = np.zeros(len(operations), bool)
    is_unmeasured[[*kinds, *dtypes]] = True
    by_block = np.bincount(analysis.owner, operations * is_unmeasured, len(shares))
    rest = float((shares - by_block)[beyond].clip(0.0).sum())
    extrapolation = Extrapolation(rest, float(by_block.sum()))
    if extrapolation.share < NEGLIGIBLE_SHARE:
        return extrapolation
    remarks = [
        *beyond_remarks(beyond, [str(b.name) for b in analysis.blocks], shares),
        *domain.unmeasured_remarks(kinds, dtypes, operations),
    ]
    # Only known data types and kinds of operations can be learned.
    is_known = all(o.kind in FORMULAS for o in analysis.graph.operations)
    can_learn = not dtypes and is_known and not analysis.counts.quantized
    if can_learn and device.file.environment.is_learned:
        remarks.append(
            Remark(
                "the profile can learn this network",
                "time it on the device and fit it in (timed.csv: network,batch_size,latency_ms): "
                f"{fit_again(device.label)}",
            )
        )
    return replace(extrapolation, remarks=tuple(remarks))


@dataclass(frozen=True)
class Uncertainty:
    """The uncertainty of a predicted time.

    `interval_ms`: the interval of the time; None if there is none. `inside_share`: the share of the
    time inside the measured range; None if it is unknown. `unmeasured`, `doubts`, `of_counts`: remarks on
    the part outside this range, on the interval, and on the counts.
    """

    interval_ms: tuple[float, float] | None
    inside_share: float | None
    unmeasured: tuple[str, ...]
    doubts: tuple[str, ...]
    of_counts: tuple[str, ...]


def uncertainty_of(
    device: Device, analysis: Analysis, batch_size: int, formula: Formula,
    times: tuple[np.ndarray, float, Steps | None], coverage: float | None,
) -> Uncertainty:  # fmt: skip
    """The uncertainty of a network's time; `times`: what `formula.of_blocks` returned for it."""
    (terms, call_ms, steps), file, graph = times, device.file, analysis.graph
    latency = float(terms.sum()) + call_ms
    found = extrapolation_of(device, analysis, batch_size, formula, terms / (latency or 1.0), steps)
    extrapolation, of_counts = with_untimed(found, formula, analysis, batch_size, file.mode)
    steps_alone = () if file.environment.fitted_on.inference else (STEPS_ALONE,)
    inside = max(1.0 - extrapolation.share, 0.0) if extrapolation.known else None
    terms_ms = dict(zip(formula.features, terms.sum(axis=0).tolist(), strict=True))
    half_width, doubts = widened_half_width(
        formula, steps, extrapolation, file.noise, coverage, graph=graph,
        ops=int(analysis.block_counts(batch_size)[:, _OPS].sum()),
        terms_ms={**terms_ms, CONSTANT: call_ms},
        is_checked=bool(device.state and device.state.check),
    )  # fmt: skip
    if file.mode.dtype == AMP:
        half_width, doubts = with_copies(half_width, doubts, file, graph, latency)
    interval = interval_around(latency, half_width)
    if steps is not None and half_width is not None:
        interval = steps.interval(half_width, coverage)
    return Uncertainty(
        interval_ms=interval,
        inside_share=inside if file.is_measured and not steps_alone else 0.0,
        unmeasured=tuple(extrapolation.remarks),
        doubts=(*doubts, *steps_alone),
        of_counts=tuple(of_counts),
    )
