"""Serving frameworks, each a row of data: memory, limits, cache, overheads.

A new framework is a row of frameworks.toml, and its name in `lolat.parameters.SERVING`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lolat.io.documents import NotNegative, Positive

if TYPE_CHECKING:
    from lolat.llm.gpu import Sheet


class FrameworkOverheads(msgspec.Struct, frozen=True):
    """Overheads that a framework adds to the kernels of a step, the same for all language models.

    `fit_overheads` fits them. `kernel_ms`: the gap between two kernels of a CUDA graph. `fp8_ms`,
    `block_ms`, `fp4_ms`: a kernel that quantizes the input of a product. `experts_ms`: the small kernels of
    a layer with experts. `exchange_ms`: the wait for the slowest GPU in an all-reduce. `step_ms`:
    scheduling and sampling; `parallel_ms`: what several GPUs add to it. `small`: the number of times that
    the bytes of small operations are moved. `front_ms`: from the client to the scheduler, and back.
    `poll_steps`: steps until the scheduler looks for new requests. `level`: the time of a step over the sum
    of all this.
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
    front_ms: NotNegative
    poll_steps: NotNegative = 0.0
    level: Positive = 1.0


class BatchLimits(NamedTuple):
    """A step's default limits on cards with at least `memory_gib`: sequences and tokens."""

    memory_gib: float
    sequences: int
    tokens: int


class Framework(msgspec.Struct, frozen=True):
    """A framework's defaults.

    `option`: its option that limits sequences. `polls`: its option for the steps between two looks for new
    requests, 1 if not given; "" without one. `limits`: by memory, the largest cards first; `fp8_limits`:
    cards without FP8 have the last of them. `overheads`: assumed for a GPU without served rows.
    `memory_share`: the fraction of a GPU's memory that it uses. `cache_share`: the fraction of the memory
    beside the weights that caches get. `own_gib`, `token_gib`: GiB that it reserves for itself, and for
    each token of a step. `fp8_cache`: quantized weights go with an FP8 cache on any GPU, else only on GPUs
    with FP4. `token_each`: a step must have a token for each request that it may hold. `mixes`, `reserves`:
    as in Rule. `rounds`, `range_ratio`: requests for each concurrent one, and their lengths, where
    published rows do not state them. `is_rate_checked`: its requests at a rate were compared with served
    ones. `asks_for_fp8_cache`: the option without which its cache is in bfloat16.
    """

    title: str
    option: str
    limits: tuple[BatchLimits, ...]
    overheads: FrameworkOverheads
    polls: str = ""
    memory_share: float = 1.0
    cache_share: float = 1.0
    own_gib: float = 2.0
    token_gib: float = 0.0
    fp8_limits: bool = False
    fp8_cache: bool = False
    token_each: bool = False
    mixes: bool = True
    reserves: bool = False
    rounds: int = 10
    range_ratio: float = 0.8
    is_rate_checked: bool = False
    asks_for_fp8_cache: str = ""

    def limits_on(self, sheet: Sheet, sequences: int = 0, tokens: int = 0) -> BatchLimits:
        """The limits of a step on a card; `sequences`, `tokens`: given limits."""
        usual = next(one for one in self.limits if sheet.memory_gib >= one.memory_gib)
        if self.fp8_limits and sheet.fp8_tflops is None:
            usual = self.limits[-1]
        tokens = tokens or usual.tokens
        most = min(usual.sequences, tokens) if self.token_each else usual.sequences
        return BatchLimits(usual.memory_gib, sequences or most, tokens)

    def room_gib(self, sheet: Sheet) -> float:
        """The GiB of a card for weights and caches."""
        reserved = self.own_gib + self.token_gib * self.limits_on(sheet).tokens
        return self.memory_share * sheet.memory_gib - reserved

    def cache_dtype(self, sheet: Sheet, quantized: bool) -> str:
        """The data type of the cache if nobody asks for another."""
        eight = self.fp8_cache or sheet.fp4_tflops is not None
        return "fp8" if quantized and eight else "bfloat16"


_ROWS = Path(__file__).with_suffix(".toml").read_text("utf-8")
FRAMEWORKS = msgspec.toml.decode(_ROWS, type=dict[str, Framework])
DEFAULT_FRAMEWORK = "vllm"
"""The framework of a file that names none. On a GPU with several frameworks its kernels predict training.
"""
CHECKED_RATES = (
    "requests at a rate were compared with served ones on "
    + ", ".join(row.title for row in FRAMEWORKS.values() if row.is_rate_checked)
    + " alone"
)
"""The remark on other frameworks, if requests arrive at a rate."""


def framework_row(name: str) -> Framework:
    """The row of a framework; that of DEFAULT_FRAMEWORK if the name is not known."""
    return FRAMEWORKS.get(name, FRAMEWORKS[DEFAULT_FRAMEWORK])


def framework_in(text: str) -> str:
    """The framework that a file's name contains, else vLLM."""
    return next((name for name in FRAMEWORKS if name in text.casefold()), DEFAULT_FRAMEWORK)
