"""Predict a network: a formula on the counts of its blocks, an interval, remarks."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from lolat.device.domain import (
    MOSTLY_SHARE,
    NEGLIGIBLE_SHARE,
    Extrapolation,
    beyond_remarks,
    extrapolated_half_width,
    fit_again,
)
from lolat.device.execution_modes import as_written
from lolat.device.file import DeviceFile, readable_models
from lolat.device.intervals import interval_around, normal_quantile
from lolat.device.prediction import Prediction, Query, end_ms, no_room_words
from lolat.device.predictors.formula import CONSTANT, Formula
from lolat.device.predictors.host import Steps
from lolat.device.predictors.int8 import int8_half_width, int8_remark, untimed_in_int8
from lolat.device.predictors.roofline import RECURRENT_MS, Roofline
from lolat.device.predictors.two_regime import TwoRegime
from lolat.device.question import AUTO, Question, as_whole
from lolat.device.schema import Noise
from lolat.device.summary import FRAMEWORK_TITLES
from lolat.errors import AnswerIsNo, InputError, arg
from lolat.graph import Graph, Operation
from lolat.graph.analysis import Analysis, analyze
from lolat.graph.counts import (
    COLUMNS,
    FEATURES,
    FORMULAS,
    behavior,
    quantized_remark,
    wide_share,
)
from lolat.graph.kinds import GATES
from lolat.graph.memory import copies
from lolat.graph.modes import (
    AMP,
    Mode,
    has_convolutions,
    has_images,
    lost_upcasts,
    other_dtype,
)
from lolat.hardware.gpus import PRECISION_OF
from lolat.io.results import Remark
from lolat.parameters import COVERAGE
from lolat.units import milliseconds, percent, plain

if TYPE_CHECKING:
    from lolat.device import Device

MOSTLY_UNLIKE = 0.5
"""Share of the time in classes that were not timed, beyond which a device without a sheet is unknown."""
MOSTLY_MACHINE = 2.0
"""The machine's part of an interval over the formula's part, above which the answer tells it."""
THREE_COUNTS = (
    "the table has three counts of convolutions alone: the time of weights, dense layers and other "
    "operations is not known"
)
NOT_KNOWN = Remark(
    "no interval",
    "most of the time goes to kinds of operations that were hardly timed on this device, and it has no "
    "data sheet (`lolat fit` with --facts)",
)
STEPS_ALONE = Remark(
    "only training steps were timed on this device",
    "the answer takes a forward pass to be at their level; fit it with timed networks too",
)
NO_IMAGES = (
    "the convolutions of this profile were timed channels last, which those over one or three dimensions "
    "cannot be in PyTorch: take the profile that was timed channels first"
)
LAID_BY_COMPILER = Remark(
    "channels last", "torch.compile lays images so itself, and the times stay"
)
_SIX = [COLUMNS.index(c) for c in FEATURES]
_OPS = COLUMNS.index("ops")

# ---- Remarks

BACKEND_OF = {"keras": "tensorflow", "torch": "torch", "onnx": "onnxruntime"}
"""Framework of a network (`Graph.framework`) -> the backend that runs it."""


def other_framework(file: DeviceFile, framework: str, known: str = "networks") -> Iterator[str]:
    """A remark on a network whose framework is another than that of the measurements.

    `framework`: the network's `Graph.framework`; `known`: an entry of `answers_for` that the profile named
    in the remedy must have. No remark if either is unknown. Counts are the same in every framework,
    latencies are not.
    """
    where = file.environment
    backend, learned = BACKEND_OF.get(framework), where.framework
    if backend is None or learned in (None, backend):
        return
    other = _learned_with(backend, file.name.removesuffix(f"-{learned}"), known)
    learn = f"lolat learn {where.device} --backend {backend}" if where.is_learned else ""
    remedy = f"the profile {other}" if other else learn  # none for published times
    its, own = (FRAMEWORK_TITLES.get(name, name) for name in (learned or "", backend))
    as_read = (
        f"the answer is for {its} running the operations of the file one by one; exporters fold batch "
        "norms and split attention"
        if framework == "onnx"
        else f"the answer is for the same network run by {its}"
    )
    yield Remark(
        f"this profile is of {its}, and {own} "
        + ("is the usual backend of Keras" if framework == "keras" else "runs this network"),
        as_read + (f"; for {own}: {remedy}" if remedy else ""),
    )


def _learned_with(backend: str, device: str, known: str) -> str | None:
    """The listed model of a device, by its name without framework, that was learned with `backend`."""
    for name, _, _, file in readable_models((device, f"{device}-{backend}").__contains__):
        if file.environment.framework == backend and known in file.answers_for:
            return name
    return None


def of_its_source(file: DeviceFile) -> tuple[str, ...]:
    """The remarks on where a profile's times are from: published, learned beside other programs, changed by
    a data sheet or as of now.
    """
    kernels = file.kernels
    gpu = file.gpu if kernels else None
    dies = gpu.dies_remark if gpu else ""
    power = gpu.power_remark(file.mode.dtype) if gpu and kernels and not kernels.measured else ""
    changed = (file.document.get(name) for name in ("as_now", "no_host"))
    remarks = filter(None, (file.loaded, *changed, file.of_form, file.estimated, dies, power))
    return *remarks, *(file.warnings if file.environment.of_layers else ())


def layout_remarks(model: Device, graph: Graph) -> Iterator[str]:
    """Yield remarks on a layout that a compiler chooses, or that a network's convolutions cannot have."""
    mode = model.file.mode
    if mode.fused and model.asked.channels_last:
        yield LAID_BY_COMPILER
    if mode.channels_last and not mode.fused and has_convolutions(graph) and not has_images(graph):
        yield NO_IMAGES


# ---- A prediction


def largest_batch(model: Device, analysis: Analysis, question: Question) -> int:
    """The largest batch that fits in memory and keeps the question's limit, or 1 if none keeps it.

    InputError if the memory is not known, AnswerIsNo if not even one sample fits.
    """
    mode = model.file.mode
    has, limit = model.file.available_bytes, question.max_ms
    if has is None:
        raise no_memory(model.label)
    most = analysis.largest_batch(mode, has)
    if not most:
        needed = analysis.memory(1, mode).total_bytes
        raise AnswerIsNo(no_room_words(needed, has, 0), code="no-room")
    if limit is None:
        return most

    def keeps(n: int, sure: bool) -> bool:
        return end_ms(predict(model, analysis, replace(question, batch_size=n)), sure) <= limit

    return max(last_within(keeps, most, 1, bool(question.sure)), 1)


NEXT_SMALLER = 0.9
"""Factor from a tried number to the next smaller one, as upper ends of intervals may fall."""


def last_within(
    keeps: Callable[[int, bool], bool | None], most: int, start: int, sure: bool
) -> int:
    """The largest of 1 ... `most` that keeps a limit of time; 0 if none does.

    `keeps(n, sure)`: True if n keeps the limit by its latency or, if `sure`, by the upper end of its
    interval; None if n is refused, at either end. Latencies grow with n, so bisection from `start` finds
    the last one. Upper ends may fall, because intervals are wide below the measured range; they are tried
    from that one down.
    """
    if keeps(start, False):
        numbers = range(most + 1)
        last = bisect_left(numbers, True, start + 1, key=lambda i: not keeps(i, False)) - 1
    else:
        last = bisect_left(range(start), True, 1, key=lambda i: keeps(i, False) is False) - 1
    if not sure:
        return last
    low, above = last, last + 1
    while low and not keeps(low, True):
        low, above = min(low - 1, int(NEXT_SMALLER * low)), low
    if low:
        return bisect_left(range(above), True, low + 1, key=lambda i: not keeps(i, True)) - 1
    return bisect_left(range(last + 1), True, 1, key=lambda i: keeps(i, True) is False) - 1


def no_memory(device: str) -> InputError:
    """The error of batch size "auto" on a device whose memory is not known."""
    return InputError(
        f"{arg('batch_size')} {AUTO}: the memory of {plain(device)} is not known; expected a batch size, "
        f"or {arg('memory_gib')} where a command has it",
        code="no-memory",
        of_device=True,
    )


def predict(model: Device, network: Graph | Analysis, question: Question) -> Prediction:
    """Predict one forward pass of a network that was read, in half precision if it is itself.

    InputError for a batch size, predictor or coverage that cannot be.
    """
    question.check(model)
    graph = (analysis := analyze(network)).graph
    model = as_written(model, graph)
    formula, coverage = model.predictor(question.predictor), question.coverage
    size = question.batch_size
    size = largest_batch(model, analysis, question) if size == AUTO else as_whole(size)
    counts = analysis.block_counts(size)
    file, where, mode = model.file, model.file.environment, model.file.mode
    terms, call_ms, steps = formula.of_blocks(analysis, size)
    latency = float(terms.sum()) + call_ms
    extrapolation = _extrapolation(model, analysis, size, formula, terms / (latency or 1.0), steps)
    extrapolation, of_counts = with_untimed(extrapolation, formula, analysis, size, mode)
    steps_alone = [STEPS_ALONE] * (not where.fitted_on.inference)
    inside = max(1.0 - extrapolation.share, 0.0) if extrapolation.known else None
    inside = inside if file.is_measured and not steps_alone else 0.0
    terms_ms = dict(zip(formula.features, terms.sum(axis=0).tolist(), strict=True))
    about = extrapolation, file.noise, coverage, int(counts[:, _OPS].sum()), graph
    is_checked = model.state is not None and model.state.check is not None
    all_ms = {**terms_ms, CONSTANT: call_ms}
    half, doubts = widened_half_width(formula, steps, *about, all_ms, is_checked)
    if mode.dtype == AMP:
        half, doubts = with_copies(half, doubts, file, graph, latency)
    remarks = [*graph.one_batch * (size > 1), *extrapolation.remarks, *doubts, *steps_alone]
    remarks += (*other_framework(file, graph.framework), *of_its_source(file))
    upcasts = lost_upcasts(graph, mode) if mode.half else ()
    remarks += (*layout_remarks(model, graph), *upcasts, *of_counts)  # less important
    interval = interval_around(latency, half)
    interval = steps.interval(half, coverage) if steps and half is not None else interval
    return Prediction(
        network=graph.name,
        batch_size=size,
        predictor=formula.name,
        latency_ms=latency,
        interval_ms=interval,
        coverage=None if interval is None else COVERAGE if coverage is None else coverage,
        in_domain=None if inside is None else inside >= MOSTLY_SHARE,
        inside_share=inside,
        memory=analysis.memory(size, mode),
        model=model.name,
        learned=where.date,
        state=model.state,
        warnings=tuple(dict.fromkeys(remarks)),
        names=analysis.names,
        features=formula.features,
        block_counts=counts,
        block_terms=terms,
        call_ms=call_ms,
        precision=PRECISION_OF[mode.dtype],
        framework=where.framework,
        launch=None if steps is None else steps.launch,
        available_bytes=file.available_bytes,
        host_ms=None if steps is None else steps.host_ms,
        host_bound=None if steps is None else steps.host_bound,
        query=Query(model, graph, coverage),
    )


COPIES_SHARE = 0.1
"""Share of the latency from which on the time to convert the weights is told."""


def with_copies(
    half: float | None, remarks: tuple[str, ...], file: DeviceFile, graph: Graph, latency_ms: float
) -> tuple[float | None, tuple[str, ...]]:
    """(half width of the interval in amp, a logarithm; remarks), wider where converting weights takes long.

    The latency is without the copies that autocast keeps until its context ends. A program with a context
    for each pass makes them in each: it reads 4 bytes and writes 2, at the data sheet's bandwidth. So do
    compilers, and PyTorch 2.10 and newer in inference mode. In eager PyTorch the latency has the copies
    that autocast does not keep. A conversion of less than COPIES_SHARE of the latency gets no remark.
    """
    gpu = file.gpu
    if gpu is None or not gpu.bandwidth_gb_s:
        return half, remarks
    kept, again = (3.0 * float(made.sum()) / gpu.bandwidth_gb_s / 1e6 for made in copies(graph))
    if file.mode.fused:
        kept, again = kept + again, 0.0
    if again >= COPIES_SHARE * latency_ms:
        told = Remark(
            "autocast keeps half-precision copies of whole trainable weights alone",
            f"it converts the others (frozen, buffers, parts) in each pass, counted as about "
            f"{milliseconds(again)} (none with --precision bf16)",
        )
        remarks = (*remarks, told)
    if kept < COPIES_SHARE * latency_ms:
        return half, remarks
    what = "its other weights" if again else "weights"
    told = Remark(
        f"{what} count as in half precision already, as in eager PyTorch within one torch.autocast context",
        "a context for each pass, torch.compile, and torch.inference_mode of newer PyTorch convert them in "
        f"each, {milliseconds(kept)} or more (none with --precision bf16)",
    )
    if file.mode.fused:
        told = Remark(
            "this time is without the conversion of weights to half precision",
            f"torch.compile converts them in each pass, {milliseconds(kept)} or more (none with "
            "--precision bf16)",
        )
    wider = None if half is None else math.hypot(half, math.log1p(kept / latency_ms))
    return wider, (*remarks, told)


ROWS_FOR_ALL = 4
"""Rows for each expert of a mixture from which nearly all of them, 1 - exp(-4), have one."""


def with_untimed(
    found: Extrapolation, formula: Formula, analysis: Analysis, batch_size: int, mode: Mode
) -> tuple[Extrapolation, tuple[str, ...]]:
    """(the extrapolation of an unusual network with its share that no measurement has, by its work; the
    remarks on its counts).

    The share is the largest of four: all, if an operation may hide products; the part quantized in a way
    that was not timed; the products that amp leaves in float32; the weights of experts with few rows. A row
    is a token at one of its experts, drawn by chance. Counts and work take all experts as read.
    """
    graph, counts, remarks = analysis.graph, analysis.counts, analysis.counts.warnings
    attributes = set[str]().union(*map(attrgetter("attributes"), graph.operations))
    if not (counts.quantized or {"hides", "experts", "wide"} & attributes):
        return found, remarks
    share = quantized = counts.quantized
    if (
        quantized
        and formula.int8
        and (share := untimed_in_int8(formula.int8, analysis)) < quantized
    ):
        told = int8_remark(analysis, formula.int8_ms(analysis, batch_size))
        remarks = (told, *(r for r in remarks if share or r != quantized_remark(quantized)))
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
        remarks = (Remark(f"{read} fewer", f"about {hit:.0f} of {experts:,}"), *remarks)
        share = max(share, float(weights[[*few]].sum()) / float(weights.sum()))
    beyond, unlike = (1.0 - share) * found.beyond, (1.0 - share) * found.unlike
    unmeasured = share + (1.0 - share) * found.unmeasured
    known = found.known or share > NEGLIGIBLE_SHARE
    return Extrapolation(beyond, unmeasured, unlike, found.remarks, known), remarks


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
    """(half width of the interval, a logarithm; remarks if there is none, or the machine makes most of it).

    `ops`: number of operations; `graph`: of a network that may be quantized; `terms_ms`: of the formula in
    the network; `is_checked`: by a check of the machine, whose own remark tells how its times move. Too few
    points: None for the default coverage, InputError for a given one.
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


def tables_extrapolation(
    model: Device, analysis: Analysis, batch_size: int, extrapolation: Extrapolation, steps: Steps
) -> Extrapolation:
    """Add the causes that classes of operations do not tell to an `extrapolation`.

    They are operations that no table has (recurrent layers, three dimensions, those without a formula), and
    other kinds of products than in timed networks.
    """
    remarks, operations = [*extrapolation.remarks], analysis.graph.operations
    times = np.bincount(steps.operation, steps.ms, len(operations)) / (steps.latency_ms or 1.0)

    def time_of(is_untimed: Callable[[Operation], bool], what: str = "", how: str = "") -> float:
        part = float(times[[is_untimed(o) for o in operations]].sum())
        if what and part > NEGLIGIBLE_SHARE:
            remarks.append(
                f"no {what} was timed on this device, {percent(part)} of the time: {how}"
            )
        return part

    share = (
        time_of(
            lambda o: o.kind in GATES,
            "recurrent layer",
            f"each of its steps is predicted as a matrix product of at least {1e3 * RECURRENT_MS:g} µs",
        )
        + time_of(
            lambda o: behavior(o).endswith("_3d"),
            "convolution or pool in three dimensions",
            "they are predicted as those in two",
        )
        + time_of(lambda o: o.kind not in FORMULAS)
    )
    unlike, of_kinds = model.file.domain.unlike(analysis.counts.at(batch_size).sum(axis=0))
    unlike *= 1.0 - extrapolation.unlike - share
    remarks += of_kinds
    known = extrapolation.known or share > NEGLIGIBLE_SHARE or bool(model.file.domain.shares)
    return replace(
        extrapolation,
        unmeasured=extrapolation.unmeasured + share,
        unlike=extrapolation.unlike + max(unlike, 0.0),
        remarks=tuple(remarks),
        known=known,
    )


def _extrapolation(
    model: Device, analysis: Analysis, batch_size: int, formula: Formula, terms: np.ndarray,
    steps: Steps | None,
) -> Extrapolation:  # fmt: skip
    """The part of a network outside the measured range; `terms`: (blocks, features), shares of the time."""
    domain, shares = model.file.domain, terms.sum(axis=1)
    if steps is not None and isinstance(formula, Roofline):
        found = formula.extrapolation(steps, batch_size, domain.minimum)
        return tables_extrapolation(model, analysis, batch_size, found, steps)
    if not domain.ratios:
        if told := other_dtype(analysis.graph, model.file.mode.dtype):
            return Extrapolation(unmeasured=1.0, remarks=tuple(told))
        latency = float(formula.of_operations(analysis, batch_size).sum())
        ops = int(analysis.block_counts(batch_size)[:, _OPS].sum())
        minimum = domain.minimum
        if minimum.most_samples is None and (batches := model.file.timed_batches):
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
        *beyond_remarks(beyond, analysis.names, shares),
        *domain.unmeasured_remarks(kinds, dtypes, operations),
    ]
    # Only known data types and kinds of operations can be learned.
    is_known = all(o.kind in FORMULAS for o in analysis.graph.operations)
    can_learn = not dtypes and is_known and not analysis.counts.quantized
    if can_learn and model.file.environment.is_learned:
        remarks.append(
            Remark(
                "to have the profile know it, time the whole network on its device and fit it in "
                "(timed.csv: network,batch_size,latency_ms)",
                fit_again(model.label),
            )
        )
    return replace(extrapolation, remarks=tuple(remarks))
