"""The order of rows of served language models, and the best of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lolat.device.limits import best_or_sure

if TYPE_CHECKING:
    from lolat.llm.answer import ServingConfig
    from lolat.llm.question import ServingQuestion

UNPRICED = 1e12
"""Output tokens without a price come behind all that have one, by the GPUs that they take."""


def best_of(rows: Sequence[ServingConfig], asked: ServingQuestion) -> ServingConfig | None:
    """The best of the rows, by `rank`; the best that surely keeps the limits, if it costs little more."""
    return best_or_sure(rows, lambda row: rank(row, asked), lambda row: row.is_sure(asked), cost_of)


def cost_of(row: ServingConfig) -> float:
    """US$ of a million output tokens; under a rate US$ an hour of a request a second, which no simulation
    changes. A price of 0 counts as none.
    """
    if row.request_rate:
        return (row.dollars_per_hour or UNPRICED * row.gpus) / row.request_rate
    return row.dollars_per_million or UNPRICED / (row.tokens_per_s_gpu or 1e-9)


def rank(
    row: ServingConfig, asked: ServingQuestion, is_rate_unchecked: bool = False
) -> tuple[Any, ...]:
    """A sort key: the cheapest tokens come first or, without prices, the most tokens/s a GPU.

    Ties are decided in this order: the highest chance to keep the limits, the shortest times, a framework
    whose rates were checked, a timed load and timed operations, the highest rate that keeps the limits, the
    fewest GPUs.
    """
    return (
        float(f"{cost_of(row):.4g}"),  # as it is printed
        not row.is_sure(asked),
        -row.least_sure(asked)[0],
        [time.ms for time in row.token_times(asked.percentile)],
        is_rate_unchecked,
        row.in_domain is False,
        -(row.headroom_rate or 0.0),
        row.gpus,
    )
