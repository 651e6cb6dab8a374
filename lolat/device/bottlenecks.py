"""The bottlenecks of a prediction: the blocks whose time stands out."""

from __future__ import annotations

from statistics import median

from lolat.device.prediction import CALL, BlockPrediction, Prediction
from lolat.units import digits

MOST_BOTTLENECKS = 3
SLOW = 1.25
"""A block is slow if its share of the time is at least this many times its share of the MACs."""
WHOLE = 0.9
"""Blocks with more than this share of the time are nearly the whole network."""


def bottlenecks(prediction: Prediction) -> list[BlockPrediction]:
    """The blocks that stand out, the longest first: up to three, and any that take as long as one of them.

    A block stands out if it takes at least twice the median time of the other blocks. For a slow block (see
    SLOW), 1.5 times is enough; a block that is bound by launch overhead is not slow. If the blocks that
    stand out take nearly all of the time and have nearly all of the MACs (WHOLE), only the slow ones are
    returned; none if one block alone takes nearly all and is not slow. None stand out if the host takes
    longer than the device.
    """
    if prediction.host_bound:
        return []
    blocks = sorted((b for b in prediction.blocks if b.name != CALL), key=lambda b: -b.latency_ms)
    macs = sum(b.counts["flops"] for b in blocks) or 1

    def is_slow(block: BlockPrediction) -> bool:
        return block.bound_by != "ops" and block.share >= SLOW * block.counts["flops"] / macs

    def stands_out(i: int) -> bool:
        share, usual = blocks[i].share, median(b.share for b in blocks[:i] + blocks[i + 1 :])
        return share >= (1.5 if is_slow(blocks[i]) else 2.0) * usual

    most = range(min(len(blocks), MOST_BOTTLENECKS) if blocks[1:] else 0)
    times = {digits(blocks[i].latency_ms) for i in most if stands_out(i)}
    outstanding = [block for block in blocks if digits(block.latency_ms) in times]
    share = sum(b.share for b in outstanding)
    if WHOLE < share < 1.1 * sum(b.counts["flops"] for b in outstanding) / macs:
        is_one = blocks[0].share > WHOLE and not is_slow(blocks[0])
        outstanding = [] if is_one else [*filter(is_slow, outstanding)]
    return outstanding
