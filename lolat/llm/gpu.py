"""A GPU that serves language models: the section `llm` of a model file, and ms of its operations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from lolat.arrays import np
from lolat.errors import InputError, arg
from lolat.io.documents import NotNegative, Number, Positive
from lolat.llm.decoder import DTYPES
from lolat.llm.forms import FORMS, PEAKS, Facts, Rows

if TYPE_CHECKING:
    from lolat.hardware.gpus import Gpu

MOST_CHANGE = 0.4
"""No correction of a logarithm is larger."""
ENOUGH = 1.645
"""Standard deviations to either side that hold 90 %."""
SKEW = 1.2
"""How uneven tokens fall on experts in use, as the exponent of a power law; served models agree with it."""


FOUR_BIT_WEIGHTS = "int4_wo"
IN_GENERAL = "GPUs in general"
"""`Operation.like` of an operation that takes what is usual."""
UNSEEN = (0.2, 0.5)
"""`Section.spread` where no served row is of such a model."""


class Operation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One operation in one data type on one GPU.

    `terms`, `variant`: of its form; `centers`, `weights`: of the correction of the logarithm; `spread`:
    standard deviation of the logarithm on rows left out; `rows`: how many it is fitted to; `like`: the GPU
    whose terms these are, where it was not timed on this one.
    """

    terms: dict[str, Positive]
    variant: str
    centers: tuple[tuple[Number, ...], ...] = ()
    weights: tuple[Number, ...] = ()
    spread: NotNegative = 0.3
    rows: int = 0
    like: str = ""


class Ways(msgspec.Struct, frozen=True):
    """How a framework runs steps, the same for all models; `fit_ways` finds it from served rows.

    `kernel_ms`: from a kernel of a CUDA graph to the next; `fp8_ms`, `block_ms`, `fp4_ms`: a further kernel
    that quantizes the input of a product; `experts_ms`: the further kernels of a layer of experts;
    `exchange_ms`: what an all-reduce waits for the slowest GPU; `step_ms`: scheduling and sampling,
    `parallel_ms`: the same more on several GPUs; `small`: how many times the bytes of small operations are
    moved; `together`: the share of requests that arrive at once; `front_ms`: from the request to the
    scheduler and from the token to the user; `mixed`: the share of prompts whose tokens are computed in a
    step with those of others; `level`: how many times as long as all this says a step takes.
    """

    kernel_ms: NotNegative
    fp8_ms: NotNegative
    block_ms: NotNegative
    fp4_ms: NotNegative
    experts_ms: NotNegative
    exchange_ms: NotNegative
    step_ms: NotNegative
    parallel_ms: NotNegative
    small: NotNegative
    together: NotNegative
    front_ms: NotNegative
    mixed: NotNegative
    level: Positive = 1.0


class Sheet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Facts of a data sheet; rates without sparsity, `link_gb_s` one direction of one GPU."""

    multiprocessors: Positive
    bandwidth_gb_s: Positive
    memory_gib: Positive
    bf16_tflops: Positive
    fp8_tflops: Positive | None = None
    fp4_tflops: Positive | None = None
    link_gb_s: Positive | None = None
    gpus_per_node: Positive = 8


def sheet_of(gpu: Gpu, link_gb_s: float | None) -> Sheet | None:
    """The sheet of a GPU that comes along; None without bfloat16, or where a fact is missing."""
    memory, bandwidth, half = gpu.memory_gib, gpu.bandwidth_gb_s, gpu.half_tflops
    if not (gpu.bf16 and half and memory and bandwidth and gpu.multiprocessors):
        return None
    return Sheet(
        multiprocessors=gpu.multiprocessors, bandwidth_gb_s=bandwidth, memory_gib=memory, bf16_tflops=half,
        fp8_tflops=gpu.fp8_tflops, fp4_tflops=gpu.fp4_tflops, link_gb_s=link_gb_s,
    )  # fmt: skip


class Calibration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What served rows told of a framework on a GPU.

    `spread`: 90 % of served rows left out were within these of the prediction, as logarithms, (per output
    token, to the first); `served`: rows that the ways are fitted to; `kinds`: of their models, "dense" and
    "experts".
    """

    ways: Ways
    spread: tuple[Positive, Positive] = (0.2, 0.4)
    served: int = 0
    kinds: tuple[str, ...] = ()


OwnRow = tuple[str, Positive, Positive, Positive, Positive, NotNegative, int, int, str, str]


class Section(Calibration, frozen=True, kw_only=True, omit_defaults=True):
    """What a model file knows of language models.

    `operations`: by name of FORMS and data type, of attention queries/cache; `own`: served rows that
    `lolat fit` was given, `before`: what was known without them, so that each counts once.
    """

    sheet: Sheet
    operations: dict[str, dict[str, Operation]]
    framework: str = ""
    own: tuple[OwnRow, ...] = ()
    before: Calibration | None = None


def short(value: float) -> float:
    """A fitted number as a file keeps it: four digits are enough."""
    return float(f"{value:.4g}")


def facts_of(sheet: Sheet) -> Facts:
    """Per ms; a rate that the GPU lacks is that of half precision, as it computes in it."""
    rates = {t: 1e9 * (getattr(sheet, peak) or sheet.bf16_tflops) for t, peak in PEAKS.items()}
    link = sheet.link_gb_s or 32.0
    return Facts(sheet.multiprocessors, 1e6 * sheet.bandwidth_gb_s, 1e6 * link, rates)


def dtypes_of(operations: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The data types of DTYPES whose products are known; weights of 4 bits are computed in bfloat16."""
    known = operations.get("gemm", {})
    return [t for t in DTYPES if t in known or (t == FOUR_BIT_WEIGHTS and "bfloat16" in known)]


def lacks(sheet: Sheet, dtype: str) -> bool:
    """Whether the GPU cannot compute products of a data type (4-bit weights alone need no such rate)."""
    return getattr(sheet, PEAKS[dtype]) is None


def is_whole(name: str, dtype: str, operation: Operation) -> bool:
    """Whether an operation of a file has the terms of its form, and a correction of its width."""
    form, places = FORMS.get(name), {len(center) for center in operation.centers}
    if form is None or not {*dtype.split("/")} <= {*PEAKS}:
        return False
    width = form.place(dict.fromkeys(form.columns, np.ones(1))).shape[1] if form.place else 0
    return (
        operation.variant in form.variants(dtype)
        and {*form.terms(dtype, operation.variant)} == {*operation.terms}
        and places <= {width}
        and len(operation.centers) == len(operation.weights)
    )


def operation_ms(
    name: str, operation: Operation, rows: Rows, facts: Facts, dtype: str, alone: bool
) -> Any:
    """(rows,) ms, corrected; `alone`: as it was timed, else as it runs in a served model.

    Of a row that is all launch when timed alone the correction says nothing of how it runs in a model.
    """
    form = FORMS[name]
    ms = form.ms(operation.terms, rows, facts, dtype, operation.variant, alone)
    if not operation.centers or form.place is None:
        return ms
    change = correction(operation, form.place(rows))
    if not alone:
        start = operation.terms.get("launch", operation.terms.get("start", 0.0))
        change = change * ms / (ms + start)
    return ms * np.exp(change)


def correction(operation: Operation, places: np.ndarray) -> np.ndarray:
    """(rows,) logarithms."""
    change = bells(places, np.array(operation.centers)) @ np.array(operation.weights)
    return np.minimum(np.maximum(change, -MOST_CHANGE), MOST_CHANGE)


def bells(places: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """(rows, centers) values of a bell of width 1 around each center."""
    far = (places**2).sum(1)[:, None] + (centers**2).sum(1) - 2.0 * places @ centers.T
    return np.exp(-0.5 * np.maximum(far, 0.0))


class GPU:
    """Ms of operations as they run in a served model; sizes are numbers or (rows,) arrays."""

    def __init__(self, section: Section) -> None:
        self.section, self.facts = section, facts_of(section.sheet)

    def ms(self, name: str, dtype: str, *sizes: Any) -> Any:
        """(rows,) ms of the operation `name`; `sizes`: the columns of its form.

        InputError (code "not-timed") where nothing like it was timed.
        """
        operation = self.operation(name, dtype)
        columns = np.broadcast_arrays(*(np.asarray(size, float) for size in sizes))
        flat = dict(zip(FORMS[name].columns, (column.ravel() for column in columns), strict=True))
        ms = operation_ms(name, operation, flat, self.facts, self.key(name, dtype), alone=False)
        return ms.reshape(columns[0].shape)

    def operation(self, name: str, dtype: str) -> Operation:
        """The fitted operation; of attention `dtype` is that of the cache."""
        known = self.section.operations.get(name, {})
        wanted = self.key(name, dtype)
        if (
            wanted not in known
            and (name, dtype) == ("gemm", FOUR_BIT_WEIGHTS)
            and "bfloat16" in known
        ):
            # Weights of 4 bits are computed in bfloat16, and read in a quarter of the time.
            return msgspec.structs.replace(known["bfloat16"], like="its products in bfloat16")
        if wanted not in known:
            raise InputError(
                f"{name} of {dtype}: nothing like it was timed on this GPU, which knows "
                f"{', '.join(known) or 'none'}; time it with examples/time_operations.py and `lolat fit`, "
                f"or give another {arg('kv_dtype' if 'attention' in name else 'dtype')}",
                code="not-timed",
            )
        return known[wanted]

    def key(self, name: str, dtype: str) -> str:
        """The data type's name in the section; queries are of FP8 where the framework computes so."""
        known = self.section.operations.get(name, {})
        if name.endswith("_attention"):
            return next((q for q in (f"{dtype}/{dtype}", f"bfloat16/{dtype}") if q in known), dtype)
        return dtype
