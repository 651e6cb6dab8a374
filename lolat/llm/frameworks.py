"""Serving frameworks, each a row of data: memory, limits, cache, overheads.

A new one is a row here and its name in `lolat.parameters.SERVING`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lolat.io.documents import NotNegative, Positive

if TYPE_CHECKING:
    from lolat.llm.gpu import Sheet


class FrameworkOverheads(msgspec.Struct, frozen=True):
    """Overheads that a framework adds to the kernels of a step, the same for all language models.

    `fit_overheads` fits them. `kernel_ms`: the gap between two kernels of a CUDA graph. `fp8_ms`,
    `block_ms`, `fp4_ms`: a kernel that quantizes the input of a product. `experts_ms`: the small kernels
    of a layer with experts. `exchange_ms`: the wait for the slowest GPU in an all-reduce. `step_ms`:
    scheduling and sampling; `parallel_ms`: what several GPUs add to it. `small`: the number of times that
    the bytes of small operations are moved. `api_ms`: from the client to the scheduler, and back.
    `level`: the factor between the sum of all this and the time of a step.
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
    api_ms: NotNegative = msgspec.field(name="front_ms")
    level: Positive = 1.0


class Limits(NamedTuple):
    """A step's default limits on cards with at least `memory_gib`: sequences and tokens."""

    memory_gib: float
    sequences: int
    tokens: int


class Framework(NamedTuple):
    """A framework's defaults.

    `title`: its name; `option`: its option that limits sequences. `memory_share`: the fraction of a GPU's
    memory that it uses. `cache_share`: the fraction of the memory beside the weights that caches get.
    `own_gib`, `token_gib`: GiB that it reserves for itself, and for each token of a step. `limits`: by
    memory, the largest cards first; `fp8_limits`: cards without FP8 have the last of them. `fp8_cache`:
    quantized weights go with an FP8 cache on any GPU, else only on GPUs with FP4. `mixes`, `reserves`,
    `is_ahead`: as in Rule. `rounds`, `range_ratio`: where published rows do not state them, the number of
    requests for each concurrent one, of which the first ones start at once, and their lengths.
    `overheads`: those assumed for a GPU without served rows.
    """

    title: str
    option: str
    memory_share: float
    cache_share: float
    own_gib: float
    token_gib: float
    limits: tuple[Limits, ...]
    fp8_limits: bool
    fp8_cache: bool
    mixes: bool
    reserves: bool
    is_ahead: bool
    rounds: int
    range_ratio: float
    overheads: FrameworkOverheads

    def limits_on(self, sheet: Sheet) -> Limits:
        """Return the limits of a step on a card."""
        if self.fp8_limits and sheet.fp8_tflops is None:
            return self.limits[-1]
        return next(one for one in self.limits if sheet.memory_gib >= one.memory_gib)

    def room_gib(self, sheet: Sheet) -> float:
        """Return the GiB of a card that weights and caches can have."""
        reserved = self.own_gib + self.token_gib * self.limits_on(sheet).tokens
        return self.memory_share * sheet.memory_gib - reserved

    def cache_dtype(self, sheet: Sheet, quantized: bool) -> str:
        """Return the data type of the cache if nobody asks for another."""
        eight = self.fp8_cache or sheet.fp4_tflops is not None
        return "fp8" if quantized and eight else "bfloat16"


FRAMEWORKS = {
    # gpu_memory_utilization and EngineArgs.get_batch_defaults of a server: cards of 70 GiB but the A100.
    "vllm": Framework(
        "vLLM", "--max-num-seqs", memory_share=0.92, cache_share=1.0, own_gib=2.0, token_gib=0.0,
        limits=(Limits(70, 1024, 8192), Limits(0, 256, 2048)), fp8_limits=True, fp8_cache=False,
        mixes=True, reserves=False, is_ahead=True, rounds=10, range_ratio=0.8,
        overheads=FrameworkOverheads(
            kernel_ms=2.7e-3, fp8_ms=2.2e-3, block_ms=0.0226, fp4_ms=6.5e-3, experts_ms=0.0223,
            exchange_ms=5.5e-3, step_ms=0.0, parallel_ms=0.0, small=2.85, api_ms=27.0,
        ),
    ),
    # KvCacheConfig.free_gpu_memory_fraction, max_batch_size, max_num_tokens.
    "trtllm": Framework(
        "TensorRT-LLM", "--max_batch_size", memory_share=1.0, cache_share=0.9, own_gib=2.0, token_gib=0.0,
        limits=(Limits(0, 2048, 8192),), fp8_limits=False, fp8_cache=True,
        mixes=True, reserves=True, is_ahead=True, rounds=10, range_ratio=0.8,
        overheads=FrameworkOverheads(
            kernel_ms=1.6e-3, fp8_ms=3e-3, block_ms=0.0104, fp4_ms=0.0, experts_ms=8e-3, exchange_ms=3.2e-3,
            step_ms=0.31, parallel_ms=0.21, small=2.66, api_ms=30.0,
        ),
    ),
    # ServerArgs: mem_fraction_static is what is left of 0.5 GiB, 1.5 MiB a token and 0.5 GiB of graphs.
    "sglang": Framework(
        "SGLang", "--max-running-requests", memory_share=1.0, cache_share=1.0, own_gib=1.0,
        token_gib=1.5 / 1024,
        limits=(Limits(160, 2048, 16384), Limits(60, 2048, 8192), Limits(35, 2048, 4096),
                Limits(0, 2048, 2048)), fp8_limits=False, fp8_cache=False,
        mixes=False, reserves=False, is_ahead=True, rounds=1, range_ratio=1.0,
        overheads=FrameworkOverheads(
            kernel_ms=2.5e-3, fp8_ms=1e-3, block_ms=1e-3, fp4_ms=2e-3, experts_ms=5e-3, exchange_ms=3.1e-3,
            step_ms=0.2, parallel_ms=0.2, small=2.77, api_ms=30.0,
        ),
    ),
}  # fmt: skip
"""The overheads of a framework are fitted to all of its served rows (docs/results); vLLM's rows have seven
combinations of model and data type on two GPUs. The overheads of one GPU shrink toward them."""
USUAL = "vllm"


def frameworks_in(text: str) -> str:
    """Return the framework that a file's name contains, else vLLM."""
    return next((name for name in FRAMEWORKS if name in text.casefold()), USUAL)
