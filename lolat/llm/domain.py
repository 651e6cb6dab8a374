"""The domain of answers about served models: loads that were served, operations that were timed, a node.

Outside of it an interval is wider, by how much times were farther off outside of what they were fitted to.
"""

from __future__ import annotations

from typing import Any

from lolat.arrays import np
from lolat.llm.gpu import GPU, UNSEEN
from lolat.llm.serving import PARTS, Layout, Load, each_ms, operations_of

MOST_SERVED = {"requests at once": 512, "tokens of a prompt": 8192, "tokens of an answer": 8192}
"""Of all served rows that the shipped models are fitted to; fewer are mostly reading weights."""
DOUBLING = 0.07
"""Logarithm by which rows are farther off for each doubling beyond what was served: of models fitted to up
to 8, 16 or 32 users, on rows with up to 16 times as many, the GPU and framework where it is the most."""
UNTIMED = 0.22
"""The same of a part whose operation was not timed: as of a GPU that is known by its sheet alone."""
BETWEEN_GB_S = 50.0
"""One direction of a GPU's usual link to other machines (InfiniBand NDR)."""
INSIDE = 0.95
"""The share of a time whose operations are to be timed, as of other predictions."""
OPERATIONS = {"products": "gemm", "attention": "decode_attention", "experts": "moe",
              "all_reduce": "all_reduce"}  # fmt: skip


def is_unseen(gpu: GPU, layout: Layout) -> bool:
    """Whether the served rows of a GPU are all of the other kind of model, dense or with experts."""
    kinds = gpu.section.kinds
    return bool(kinds) and layout.decoder.kind not in kinds


def beyond(load: Load) -> dict[str, np.ndarray]:
    """(rows,) doublings beyond MOST_SERVED, by its names."""
    values = (load.served, load.input_tokens, load.output_tokens)
    pairs = zip(MOST_SERVED.items(), values, strict=True)
    return {what: np.log2(np.maximum(value / most, 1.0)) for (what, most), value in pairs}


def crosses_nodes(gpu: GPU, layout: Layout) -> bool:
    """Whether GPUs that share a model are in several machines."""
    return layout.tensor_parallel > gpu.section.sheet.gpus_per_node


def interval(
    gpu: GPU, layout: Layout, load: Load, steps: np.ndarray, first: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows,) factors of the lower and the upper end of a time per output token, or to the `first`, and
    whether a row is inside the domain; `steps`: (rows, PARTS + STARTS) that the time consists of.
    """
    section = gpu.section
    ms = steps * each_ms(section.ways)
    shares = dict(zip(PARTS, (ms / ms.sum(1, keepdims=True)).T, strict=False))
    least = UNSEEN[first] if is_unseen(gpu, layout) else 0.0
    off: Any = max(section.spread[first], least)
    names = OPERATIONS | ({"attention": "prefill_attention"} if first else {})
    like = {name for (name, _), one in operations_of(gpu, layout).items() if one.like}
    untimed = sum((shares[part] for part, name in names.items() if name in like), 0.0 * load.served)
    if not any(one.rows for of in section.operations.values() for one in of.values()):
        off = max(off, UNTIMED)  # nothing was timed
    else:
        off = np.hypot(off, UNTIMED * untimed)
    doublings = np.sum([*beyond(load).values()], axis=0)
    off = np.hypot(off, DOUBLING * doublings)
    slower = 1.0
    if crosses_nodes(gpu, layout):
        slower = max((section.sheet.link_gb_s or 0.0) / BETWEEN_GB_S, 1.0)
    inside = (untimed <= 1.0 - INSIDE) & (doublings == 0) & (not crosses_nodes(gpu, layout))
    return np.exp(-off), np.exp(off) * (1.0 + (slower - 1.0) * shares["all_reduce"]), inside
