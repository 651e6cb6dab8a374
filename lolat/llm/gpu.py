"""A GPU that serves language models: the section `llm` of its device file, and its times of operations."""

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
"""The largest correction of a predicted time, as a logarithm of the factor."""
WEIGHT_ONLY = ("int4_wo", "fp8_wo")
OWN_IN_BFLOAT16 = {"gemm": "its products in bfloat16", "moe": "its experts in bfloat16"}
"""Operation with WEIGHT_ONLY weights -> words for `FittedKernel.like`: it is predicted from the same
operation in bfloat16."""
IN_GENERAL = "GPUs in general"
"""`FittedKernel.like` of an operation whose terms are the centers of their priors."""
UNSEEN = (0.2, 0.5)
"""`FrameworkFit.spread` if no language model of this kind was served."""
CALIBRATED_AT = 0.9
"""The coverage of the half widths in device files; a question may ask for another coverage."""


class FittedKernel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An operation in one data type on one GPU, fitted to timed rows.

    `terms`, `variant`: the parameters of its kernel model. `centers`, `weights`: the radial basis functions
    that correct log(ms). `spread`: the standard deviation of log(measured / predicted) on held-out rows.
    `rows`: the number of timed rows. `like`: the GPU that it was timed on, if not this one.
    """

    terms: dict[str, Positive]
    variant: str
    centers: tuple[tuple[Number, ...], ...] = ()
    weights: tuple[Number, ...] = ()
    spread: NotNegative = 0.3
    rows: int = 0
    like: str = ""


class Sheet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A GPU's data sheet. FLOP rates are without sparsity; `link_gb_s`: GB/s of a GPU's link in one
    direction.
    """

    multiprocessors: Positive
    bandwidth_gb_s: Positive
    memory_gib: Positive
    bf16_tflops: Positive
    fp8_tflops: Positive | None = None
    fp4_tflops: Positive | None = None
    link_gb_s: Positive | None = None
    gpus_per_node: Annotated[float, msgspec.Meta(ge=1, multiple_of=1)] = MACHINE


def sheet_of(gpu: Gpu, link_gb_s: float | None) -> Sheet | None:
    """The data sheet of a bundled GPU; None if the GPU lacks bfloat16, or a value is not known."""
    memory, bandwidth, rate = gpu.memory_gib, gpu.bandwidth_gb_s, gpu.peak(BFLOAT16)
    if not (rate and memory and bandwidth and gpu.multiprocessors):
        return None
    return Sheet(
        multiprocessors=gpu.multiprocessors, bandwidth_gb_s=bandwidth, memory_gib=memory, bf16_tflops=rate,
        fp8_tflops=gpu.fp8_tflops, fp4_tflops=gpu.fp4_tflops, link_gb_s=link_gb_s,
    )  # fmt: skip


class FrameworkFit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The overheads of a framework on a GPU, fitted to served rows.

    `spread`: half widths, as logarithms, of the intervals of (time per output token, time to the first
    token) with coverage CALIBRATED_AT, from held-out rows. `served`: the number of rows that the overheads
    are fitted to. `kinds`: the kinds of decoder in these rows, "dense" or "experts"; `dtypes`: the data
    types of their products; () if not known.
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

    `request_rate`: requests a second; without it `concurrency` requests at any time. `requests`: the number
    of timed requests; 0: a steady load from the start. `range_ratio`: lengths are between this fraction of
    the tokens and all of them. `lengths`: (tokens of each prompt, tokens of each answer) if these are known
    and differ; the fields of tokens are then means. `max_num_batched_tokens`, `max_num_seqs`: limits of a
    step; 0: the framework's.
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
        """The further arguments of `deployment_of`: the numbers of the split, then the data types."""
        split = self.tensor_parallel, self.expert_parallel, self.attention_data_parallel
        return *split, self.dtype, self.kv_dtype

    def limits(self, section: ServingSection) -> BatchLimits:
        """The limits of a step: the row's own, else the framework's."""
        own = self.max_num_seqs, self.max_num_batched_tokens
        return section.server.limits_on(section.sheet, *own)


class ServedFit(FrameworkFit, frozen=True, kw_only=True, omit_defaults=True):
    """A fit to served rows, to which later rows can be added.

    `own`: the rows that `lolat fit` was given. `before`: the fit without these rows; a later fit starts
    from it, so each row counts once. `own_error`: median relative errors of held-out `own` rows: (time per
    output token, time to the first token if known); `was_error`: the same errors before the fit.
    """

    own: tuple[ServedRow, ...] = ()
    before: FrameworkFit | None = None
    own_error: tuple[NotNegative, ...] = ()
    was_error: tuple[NotNegative, ...] = ()


OWN_FITS = ("latent", "linear")
"""Kinds of decoders with their own overheads, because other kernels run between their operations."""


class TrainingLevel(msgspec.Struct, frozen=True, omit_defaults=True):
    """The level of training decoders: the median of measured / predicted time of `rows` runs of the user.

    `spread`: the standard deviation of log(measured / predicted) around the level; `kinds`: the
    `DecoderPasses.kind` of the runs.
    """

    level: Positive
    rows: Annotated[int, msgspec.Meta(ge=1)]
    spread: NotNegative = 0.0
    kinds: tuple[str, ...] = ()


class ServingSection(ServedFit, frozen=True, kw_only=True, omit_defaults=True):
    """The section `llm` of a device file.

    `operations`: name in KERNEL_MODELS -> data type (of attention: queries/cache) -> fitted kernel. `fits`:
    the fit of each kind of decoder in OWN_FITS. `trained`: the level of training decoders.
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
        """The section with the overheads of a kind of decoder. A kind in OWN_FITS without a fit has the
        common overheads and no own rows.
        """
        if kind not in OWN_FITS:
            return self
        fit = self.fits.get(kind)
        if fit is None:
            return msgspec.structs.replace(self, own=(), before=None, own_error=(), was_error=())
        return msgspec.structs.replace(self, **msgspec.structs.asdict(fit))

    def with_fit(self, kind: str, fitted: ServingSection) -> ServingSection:
        """This section, with the fit of the section `fitted` for a kind of decoder."""
        if kind not in OWN_FITS:
            return fitted
        one = ServedFit(**{name: getattr(fitted, name) for name in ServedFit.__struct_fields__})
        return msgspec.structs.replace(self, fits=self.fits | {kind: one})

    @property
    def usual(self) -> ServingSection:
        """The section with the usual scheduler of a server, which looks for new requests at each step.

        The published SGLang servers looked less often, and frameworks without rows borrow overheads from
        them. The section is unchanged if its `poll_steps` come from the user's rows, or from rows of a
        framework without `polls`.
        """
        if self.own or (self.served and not self.server.polls):
            return self
        polls = min(self.overheads.poll_steps, 1.0)
        overheads = msgspec.structs.replace(self.overheads, poll_steps=polls)
        return msgspec.structs.replace(self, overheads=overheads)

    @property
    def server(self) -> Framework:
        """The framework's row of data; the row of DEFAULT_FRAMEWORK if the file names none."""
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
"""GB/s in one direction, assumed for a GPU whose data sheet has no link: PCI Express 4.0 with 16 lanes."""


def short(value: float) -> float:
    """Round a fitted number to four digits, as device files store it."""
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
    """True if the GPU has no rate for products of a data type; int4_wo needs the rate of bfloat16."""
    return getattr(sheet, RATES[dtype]) is None


def operation_ms(
    name: str, operation: FittedKernel, rows: Sizes, specs: GpuRates, dtype: str, alone: bool
) -> Any:
    """(rows,) ms of an operation, corrected; `alone`: repeated as in a benchmark, else inside a decoder's
    step.
    """
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
    """A GPU that predicts times of operations inside a step; sizes are numbers or (rows,) arrays."""

    def __init__(self, section: ServingSection) -> None:
        self.section, self.specs = section, specs_of(section.sheet)

    def ms(self, name: str, dtype: str, *sizes: Any) -> Any:
        """(rows,) ms of an operation; `sizes`: the columns of its kernel model.

        InputError (code "not-timed") if neither the operation nor a similar one was timed.
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

        The operation may be timed as a part of a module. Attention with queries in the cache's data type is
        preferred to attention with other queries.
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
