"""Serving frameworks, each a row of data: memory, limits, cache, overheads.

A new framework is a row of frameworks.toml, and its name in `lolat.parameters.SERVING_FRAMEWORKS`.
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
    scheduling and sampling of a step; `parallel_ms`: the time that several GPUs add to `step_ms`. `small`:
    the number of times that the bytes of small operations are moved. `front_ms`: the time of a request from
    the client to the scheduler, and back. `poll_steps`: steps until the scheduler looks for new requests.
    `level`: the ratio of a step's time to the sum of its parts and overheads.
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
    """The most sequences and tokens in a step, by default, on cards with at least `memory_gib`."""

    memory_gib: float
    sequences: int
    tokens: int


class Framework(msgspec.Struct, frozen=True):
    """A framework's defaults.

    `option`: the server's option that limits the sequences of a step. `polls`: the option for the number
    of steps after which the scheduler looks for new requests (1 by default); "" without such an option.
    `limits`: by memory, the largest cards first; `fp8_limits`: cards without FP8 have the last of these.
    `overheads`: assumed for a GPU without served rows. `memory_share`: the fraction of a GPU's memory
    that the server uses. `cache_share`: the fraction for caches of the memory that weights leave.
    `own_gib`, `token_gib`: GiB that the server reserves for itself, and for each token of a step.
    `fp8_cache`: True if quantized weights have an FP8 cache on any GPU; False: only on GPUs with FP4.
    `token_each`: True if a step cannot hold more sequences than tokens. `mixes`: prompts share steps with
    output tokens. `reserves`: a request starts only if its whole output fits in the cache. `rounds`,
    `range_ratio`: requests in a benchmark for each concurrent one, and the range of their lengths (see
    Load), of published rows that do not state them. `is_rate_checked`: True if predictions at a rate were
    compared with measurements. `asks_for_fp8_cache`: the option that turns an FP8 cache on; without it
    the cache is in bfloat16.
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
        """The limits of a step on a card; `sequences`, `tokens`: the user's limits, 0: the default."""
        usual = next(one for one in self.limits if sheet.memory_gib >= one.memory_gib)
        if self.fp8_limits and sheet.fp8_tflops is None:
            usual = self.limits[-1]
        tokens = tokens or usual.tokens
        most = min(usual.sequences, tokens) if self.token_each else usual.sequences
        return BatchLimits(usual.memory_gib, sequences or most, tokens)

    def room_gib(self, sheet: Sheet) -> float:
        """The GiB of a card that weights and caches may use."""
        reserved = self.own_gib + self.token_gib * self.limits_on(sheet).tokens
        return self.memory_share * sheet.memory_gib - reserved

    def cache_dtype(self, sheet: Sheet, quantized: bool) -> str:
        """The default data type of the cache; `quantized`: the weights are quantized."""
        eight = self.fp8_cache or sheet.fp4_tflops is not None
        return "fp8" if quantized and eight else "bfloat16"


_ROWS = Path(__file__).with_suffix(".toml").read_text("utf-8")
FRAMEWORKS = msgspec.toml.decode(_ROWS, type=dict[str, Framework])
DEFAULT_FRAMEWORK = "vllm"
"""The framework of a device file that names none. If a GPU has files of several frameworks, training is
predicted from the file of this one.
"""
CHECKED_RATES = (
    "requests at a rate were compared with served ones on "
    + ", ".join(row.title for row in FRAMEWORKS.values() if row.is_rate_checked)
    + " alone"
)
"""The remark on requests at a rate in any other framework."""


def framework_row(name: str) -> Framework:
    """The row of a framework; the row of DEFAULT_FRAMEWORK if the name is not known."""
    return FRAMEWORKS.get(name, FRAMEWORKS[DEFAULT_FRAMEWORK])


def framework_in(text: str) -> str:
    """The framework that a text, such as a file's name, contains; DEFAULT_FRAMEWORK if it contains none."""
    return next((name for name in FRAMEWORKS if name in text.casefold()), DEFAULT_FRAMEWORK)
