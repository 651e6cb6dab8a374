"""A GPU that serves language models: its section `llm` in a device file, and ms of its operations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from lolat.arrays import np
from lolat.errors import InputError, ModelFileError, arg
from lolat.graph.modes import BFLOAT16
from lolat.hardware.links import MACHINE
from lolat.io.documents import NotNegative, Number, Positive, converted
from lolat.llm.decoder import DTYPES
from lolat.llm.frameworks import BatchLimits, Framework, FrameworkOverheads, framework_row
from lolat.llm.kernel_models import KERNEL_MODELS
from lolat.llm.kernels import RATES, GpuRates, Sizes

if TYPE_CHECKING:
    from lolat.hardware.gpus import Gpu

MOST_CHANGE = 0.4
"""The largest correction of a predicted time, as a logarithm."""
WEIGHT_ONLY = ("int4_wo", "fp8_wo")
OWN_IN_BFLOAT16 = {"gemm": "its products in bfloat16", "moe": "its experts in bfloat16"}
"""An operation with smaller weights -> the operation that it is predicted as, in words for
`FittedKernel.like`."""
IN_GENERAL = "GPUs in general"
"""`FittedKernel.like` if the terms are usual ones, not of a GPU."""
UNSEEN = (0.2, 0.5)
"""`FrameworkFit.spread` if no such language model was served."""
CALIBRATED_AT = 0.9
"""The coverage of the half widths in files, whatever is the default of the option."""


class FittedKernel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation in one data type on one GPU, fitted to timed rows.

    `terms`, `variant`: the parameters of its kernel model. `centers`, `weights`: the correction, as a
    logarithm. `spread`: the standard deviation of log(measured / predicted) on held-out rows. `rows`: the
    number of timed rows. `like`: the GPU that it was timed on, if not this one.
    """

    terms: dict[str, Positive]
    variant: str
    centers: tuple[tuple[Number, ...], ...] = ()
    weights: tuple[Number, ...] = ()
    spread: NotNegative = 0.3
    rows: int = 0
    like: str = ""


class Sheet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU's data sheet. FLOP rates are dense; `link_gb_s` is one direction of one GPU's link."""

    multiprocessors: Positive
    bandwidth_gb_s: Positive
    memory_gib: Positive
    bf16_tflops: Positive
    fp8_tflops: Positive | None = None
    fp4_tflops: Positive | None = None
    link_gb_s: Positive | None = None
    gpus_per_node: Annotated[float, msgspec.Meta(ge=1, multiple_of=1)] = MACHINE


def sheet_of(gpu: Gpu, link_gb_s: float | None) -> Sheet | None:
    """The sheet of a bundled GPU; None if it lacks bfloat16, or a value is missing."""
    memory, bandwidth, rate = gpu.memory_gib, gpu.bandwidth_gb_s, gpu.peak(BFLOAT16)
    if not (rate and memory and bandwidth and gpu.multiprocessors):
        return None
    return Sheet(
        multiprocessors=gpu.multiprocessors, bandwidth_gb_s=bandwidth, memory_gib=memory, bf16_tflops=rate,
        fp8_tflops=gpu.fp8_tflops, fp4_tflops=gpu.fp4_tflops, link_gb_s=link_gb_s,
    )  # fmt: skip


class FrameworkFit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The overheads of a framework on a GPU, fitted to served rows.

    `spread`: half widths of the intervals of CALIBRATED_AT on held-out rows, as logarithms (per output
    token, first token). `served`: the number of rows that the overheads are fitted to. `kinds`: "dense" and
    "experts", by the language models of these rows; `dtypes`: the data types of their products; () if not
    known.
    """

    overheads: FrameworkOverheads
    spread: tuple[Positive, Positive] = (0.2, 0.4)
    served: int = 0
    kinds: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServedRow:
    """A served configuration with its times; `ttft_ms`: 0 if unknown; `row`: its row in a table; `source`:
    the file's name.

    `request_rate`: requests a second, else `concurrency` at any time. `requests`: those that were timed; 0
    if a steady load was there from the start. `range_ratio`: lengths are between this fraction of the
    tokens and all of them. `lengths`: tokens of each prompt and of each answer, if they are known and
    differ; the others are then their means. `max_num_batched_tokens`, `max_num_seqs`: limits of a step; 0:
    the framework's.
    """

    model: str
    input_tokens: Positive
    output_tokens: Positive
    concurrency: NotNegative
    tpot_ms: Positive
    ttft_ms: NotNegative = 0.0
    tensor_parallel: int = 1
    expert_parallel: int = 1
    dtype: str = ""
    kv_dtype: str = ""
    request_rate: NotNegative = 0.0
    cached_tokens: NotNegative = 0.0
    distinct_prompts: int = 0
    requests: int = 0
    range_ratio: Positive = 1.0
    max_num_batched_tokens: int = 0
    max_num_seqs: int = 0
    attention_data_parallel: int = 1
    lengths: tuple[tuple[int, ...], ...] = ()
    row: Mapping[str, str] = field(default_factory=dict, compare=False)
    source: str = field(default="", compare=False)

    @property
    def deployment(self) -> tuple[int, int, int, str, str]:
        """The arguments of `deployment_of`: the split and the data types."""
        split = self.tensor_parallel, self.expert_parallel, self.attention_data_parallel
        return *split, self.dtype, self.kv_dtype

    def limits(self, section: ServingSection) -> BatchLimits:
        """The limits of a step."""
        own = self.max_num_seqs, self.max_num_batched_tokens
        return section.server.limits_on(section.sheet, *own)


class ServedFit(FrameworkFit, frozen=True, kw_only=True, omit_defaults=True):
    """A fit to served rows, to which later rows can be added.

    `own`: the rows that `lolat fit` was given. `before`: the fit without them, from which a later fit
    starts, so that each row counts once.
    `own_error`: median relative errors of `own` held out, per output token and, if known, to the first one;
    `was_error`: those before the fit.
    """

    own: tuple[ServedRow, ...] = ()
    before: FrameworkFit | None = None
    own_error: tuple[NotNegative, ...] = ()
    was_error: tuple[NotNegative, ...] = ()


OWN_FITS = ("latent", "linear")
"""Kinds of decoders with overheads of their own: other kernels run between the operations."""


class TrainingLevel(msgspec.Struct, frozen=True, omit_defaults=True):
    """The level of training decoders: the median of measured over predicted time, over `rows` own runs.

    `spread`: the standard deviation of their logarithms around it; `kinds`: those of `DecoderPasses.kind`.
    """

    level: Positive
    rows: Annotated[int, msgspec.Meta(ge=1)]
    spread: NotNegative = 0.0
    kinds: tuple[str, ...] = ()


class ServingSection(ServedFit, frozen=True, kw_only=True, omit_defaults=True):
    """The section `llm` of a device file.

    `operations`: by name in KERNEL_MODELS and data type (for attention: queries/cache). `fits`: the fits of
    the decoders in OWN_FITS. `trained`: the level of training decoders.
    """

    sheet: Sheet
    operations: dict[str, dict[str, FittedKernel]]
    framework: str = ""
    fits: dict[str, ServedFit] = {}
    trained: TrainingLevel | None = None

    @property
    def is_timed(self) -> bool:
        """True if operations were timed on this GPU; otherwise only its data sheet is known."""
        return any(one.rows for dtypes in self.operations.values() for one in dtypes.values())

    def of(self, kind: str) -> ServingSection:
        """The section with the overheads of a kind of decoder; a kind without own overheads keeps the
        section's and has no rows.
        """
        if kind not in OWN_FITS:
            return self
        fit = self.fits.get(kind)
        if fit is None:
            return msgspec.structs.replace(self, own=(), before=None, own_error=(), was_error=())
        return msgspec.structs.replace(self, **msgspec.structs.asdict(fit))

    def with_fit(self, kind: str, fitted: ServingSection) -> ServingSection:
        """The section with the fit of another one for a kind of decoder."""
        if kind not in OWN_FITS:
            return fitted
        one = ServedFit(**{name: getattr(fitted, name) for name in ServedFit.__struct_fields__})
        return msgspec.structs.replace(self, fits=self.fits | {kind: one})

    @property
    def usual(self) -> ServingSection:
        """The section with a scheduler that looks for requests at each step, the default of servers.

        SGLang's published servers looked more rarely, and other frameworks borrow their rows. Rows of the
        framework itself, or of the user, show the server's own interval.
        """
        if self.own or (self.served and not self.server.polls):
            return self
        polls = min(self.overheads.poll_steps, 1.0)
        overheads = msgspec.structs.replace(self.overheads, poll_steps=polls)
        return msgspec.structs.replace(self, overheads=overheads)

    @property
    def server(self) -> Framework:
        """The framework's row of data; that of vLLM if the file names none."""
        return framework_row(self.framework)


def section_of(section: Mapping[str, Any], source: str) -> ServingSection:
    """Read the section `llm` of a device's file; ModelFileError if it is damaged."""
    found: ServingSection = converted(section, ServingSection, source, "$.llm")
    for name, dtypes in found.operations.items():
        for dtype, operation in dtypes.items():
            if not _is_known(name, dtype, operation):
                raise ModelFileError(
                    f"{source}: {name} of {dtype} is damaged, or from another LoLat; expected the terms of "
                    "its kernel model; fit the profile again with `lolat fit`"
                )
    return found


def _is_known(name: str, dtype: str, one: FittedKernel) -> bool:
    """True if an operation has the terms of its kernel model."""
    kernel = KERNEL_MODELS.get(name)
    if kernel is None or not {*dtype.split("/")} <= {*RATES}:
        return False
    is_variant = one.variant in kernel.variants(dtype)
    return is_variant and {*kernel.terms(dtype, one.variant)} == {*one.terms}


LINK_GB_S = 32.0
"""The link of a GPU whose data sheet has none: about PCI Express 4.0 with 16 lanes."""


def short(value: float) -> float:
    """Round a fitted number to the four digits that a file keeps."""
    return float(f"{value:.4g}")


def specs_of(sheet: Sheet) -> GpuRates:
    """Convert a sheet to rates per ms; a data type that the GPU lacks gets the rate of bfloat16."""
    rates = {t: 1e9 * (getattr(sheet, peak) or sheet.bf16_tflops) for t, peak in RATES.items()}
    link = sheet.link_gb_s or LINK_GB_S
    return GpuRates(sheet.multiprocessors, 1e6 * sheet.bandwidth_gb_s, 1e6 * link, rates)


def dtypes_of(operations: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The DTYPES whose products were timed; 4-bit weights are computed in bfloat16."""
    known = operations.get("gemm", {})
    return [t for t in DTYPES if t in known or (t in WEIGHT_ONLY and "bfloat16" in known)]


def lacks_rate(sheet: Sheet, dtype: str) -> bool:
    """True if the GPU has no rate for products of a data type; int4_wo needs that of bfloat16."""
    return getattr(sheet, RATES[dtype]) is None


def operation_ms(
    name: str, operation: FittedKernel, rows: Sizes, specs: GpuRates, dtype: str, alone: bool
) -> Any:
    """(rows,) ms of an operation, corrected; `alone`: run over and over, else inside a decoder's step."""
    kernel = KERNEL_MODELS[name]
    ms = kernel.ms(operation.terms, rows, specs, dtype, operation.variant, alone)
    if not operation.centers or kernel.log_sizes is None:
        return ms
    change = rbf(kernel.log_sizes(rows), np.array(operation.centers)) @ np.array(operation.weights)
    change = np.minimum(np.maximum(change, -MOST_CHANGE), MOST_CHANGE)
    if not alone:  # inside a step the correction counts only for the part that is no launch
        start = operation.terms.get("launch", operation.terms.get("start", 0.0))
        change = change * ms / (ms + start)
    return ms * np.exp(change)


def rbf(log_sizes: np.ndarray, centers: np.ndarray) -> np.ndarray:
    """(rows, centers) values of a radial basis function of width 1 around each center."""
    far = (log_sizes**2).sum(1)[:, None] + (centers**2).sum(1) - 2.0 * log_sizes @ centers.T
    return np.exp(-0.5 * np.maximum(far, 0.0))


class GPU:
    """Times of operations inside a step; sizes are numbers or (rows,) arrays."""

    def __init__(self, section: ServingSection) -> None:
        self.section, self.specs = section, specs_of(section.sheet)

    def ms(self, name: str, dtype: str, *sizes: Any) -> Any:
        """(rows,) ms of an operation; `sizes`: the columns of its kernel model.

        InputError (code "not-timed") if nothing like it was timed.
        """
        name, key, operation = self._found(name, dtype)
        columns = np.broadcast_arrays(*(np.asarray(size, float) for size in sizes))
        names = KERNEL_MODELS[name].columns
        flat = dict(zip(names, (column.ravel() for column in columns), strict=True))
        ms = operation_ms(name, operation, flat, self.specs, key, alone=False)
        return ms.reshape(columns[0].shape)

    def operation(self, name: str, dtype: str) -> FittedKernel:
        """A fitted operation; for attention `dtype` is the data type of the cache."""
        return self._found(name, dtype)[-1]

    def _found(self, name: str, dtype: str) -> tuple[str, str, FittedKernel]:
        """(name, data type in the section, operation).

        The section may have it as a part of a module. Queries are FP8 if the framework computes them so.
        """
        operations, module, key = self.section.operations, f"{name}_module", dtype
        name = module if module in operations and name not in operations else name
        known, is_cached = operations.get(name, {}), KERNEL_MODELS[name].cached
        if is_cached:
            keys = (f"{queries}/{dtype}" for queries in (dtype, "bfloat16", "fp8_block", "nvfp4"))
            key = next((key for key in keys if key in known), dtype)
        if key in known:
            return name, key, known[key]
        is_alike = (name == "gemm" and dtype in WEIGHT_ONLY) or (name, dtype) == ("moe", "fp8_wo")
        if is_alike and "bfloat16" in known:
            # Smaller weights are computed in bfloat16, and read in a quarter or half of the time.
            return name, key, msgspec.structs.replace(known["bfloat16"], like=OWN_IN_BFLOAT16[name])
        why = f"nothing like it was timed on this GPU, which knows {', '.join(known) or 'none'}"
        hint = "time it with examples/time_operations.py and `lolat fit`, or give another "
        hint += arg("kv_dtype" if is_cached else "dtype")
        raise InputError(f"{name} of {dtype}: {why}; {hint}", code="not-timed", of_device=True)
