"""Frameworks that serve language models, a row of data each: memory, limits of a step, ways."""

from __future__ import annotations

from typing import NamedTuple

from lolat.llm.gpu import Sheet, Ways

GIB = 2.0**30


class Limits(NamedTuple):
    """A framework's defaults on cards of `memory_gib` or more: sequences and tokens of a step."""

    memory_gib: float
    sequences: int
    tokens: int


class Framework(NamedTuple):
    """How a framework serves where nothing else is asked for.

    `title`, `option`: how people call it, and what it calls its limit of sequences; `whole`: the share of a
    GPU's memory for weights, caches and all else; `rest`: the share for caches of what is left beside
    weights; `own_gib`, `token_gib`: reserved for its own and for each token of a step; `limits`: the
    largest cards first; `small`: cards without FP8 have the last of them; `narrow`: the cache of a
    quantized model is in FP8 on any GPU; `ways`: of any GPU.
    """

    title: str
    option: str
    whole: float
    rest: float
    own_gib: float
    token_gib: float
    limits: tuple[Limits, ...]
    small: bool
    narrow: bool
    ways: Ways

    def of_card(self, sheet: Sheet) -> Limits:
        """The limits on a card."""
        if self.small and sheet.fp8_tflops is None:
            return self.limits[-1]
        return next(one for one in self.limits if sheet.memory_gib >= one.memory_gib)

    def room_gib(self, sheet: Sheet) -> float:
        """GiB for weights and caches on a card."""
        reserved = self.own_gib + self.token_gib * self.of_card(sheet).tokens
        return self.whole * sheet.memory_gib - reserved


FRAMEWORKS = {
    # gpu_memory_utilization and EngineArgs.get_batch_defaults of a server: cards of 70 GiB but the A100.
    "vllm": Framework(
        "vLLM", "--max-num-seqs", whole=0.92, rest=1.0, own_gib=2.0, token_gib=0.0,
        limits=(Limits(70, 1024, 8192), Limits(0, 256, 2048)), small=True, narrow=False,
        ways=Ways(
            kernel_ms=2.7e-3, fp8_ms=2.2e-3, block_ms=0.0226, fp4_ms=6.5e-3, experts_ms=0.0223,
            exchange_ms=5.5e-3, step_ms=0.0, parallel_ms=0.0, small=2.85, together=0.12, front_ms=27.0,
            mixed=0.17,
        ),
    ),
    # KvCacheConfig.free_gpu_memory_fraction, max_batch_size, max_num_tokens.
    "trtllm": Framework(
        "TensorRT-LLM", "--max_batch_size", whole=1.0, rest=0.9, own_gib=2.0, token_gib=0.0,
        limits=(Limits(0, 2048, 8192),), small=False, narrow=True,
        ways=Ways(
            kernel_ms=1.6e-3, fp8_ms=3e-3, block_ms=0.0104, fp4_ms=0.0, experts_ms=8e-3, exchange_ms=3.2e-3,
            step_ms=0.31, parallel_ms=0.21, small=2.66, together=0.14, front_ms=30.0, mixed=0.7,
        ),
    ),
    # ServerArgs: mem_fraction_static is what is left of 0.5 GiB, 1.5 MiB a token and 0.5 GiB of graphs.
    "sglang": Framework(
        "SGLang", "--max-running-requests", whole=1.0, rest=1.0, own_gib=1.0, token_gib=1.5 / 1024,
        limits=(Limits(160, 2048, 16384), Limits(60, 2048, 8192), Limits(35, 2048, 4096),
                Limits(0, 2048, 2048)), small=False, narrow=False,
        ways=Ways(
            kernel_ms=2.5e-3, fp8_ms=1e-3, block_ms=1e-3, fp4_ms=2e-3, experts_ms=5e-3, exchange_ms=3.1e-3,
            step_ms=0.2, parallel_ms=0.2, small=2.77, together=0.97, front_ms=30.0, mixed=0.41,
        ),
    ),
}  # fmt: skip
"""The ways are fitted to all served rows of each (docs/results), vLLM's to seven models and data types on
two GPUs. Those of a GPU are drawn to them."""
USUAL = "vllm"


def framework_of(name: str) -> Framework:
    """The row of a framework; vLLM's of a file that names none."""
    return FRAMEWORKS.get(name, FRAMEWORKS[USUAL])


def frameworks_in(text: str) -> str:
    """The framework that a file's name says; vLLM where it says none."""
    return next((name for name in FRAMEWORKS if name in text.casefold()), USUAL)
