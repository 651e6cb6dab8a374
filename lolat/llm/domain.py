"""The domain of answers about serving: loads that were served, operations that were timed, one node.

Outside of it intervals are wider, as such times were off more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lolat.arrays import np
from lolat.llm.decoder import DTYPES
from lolat.llm.gpu import GPU, UNSEEN
from lolat.llm.serving import STARTS, STEP_PARTS, Deployment, each_ms, operations_of
from lolat.units import percent

MOST_SERVED = {"requests at once": 512, "tokens of a prompt": 8192, "tokens of an answer": 8192}
"""The largest loads among the served rows that bundled devices are fitted to."""
DOUBLING = 0.07
"""Error of log(time) for each doubling beyond the largest served load: that of fits to up to 8, 16 or 32
requests, on rows with up to 16 times as many, for the GPU and framework where it was largest."""
UNTIMED = 0.22
"""Error of log(time) of an operation that was not timed: that of GPUs known by their data sheet."""
BETWEEN_GB_S = 50.0
"""GB/s in one direction of a GPU's usual link to other machines (InfiniBand NDR)."""
IN_GROUPS = 0.2
"""Error of log(time) with attention data parallel: the largest but one of 11 served rows of gpt-oss, to
which nothing was fitted."""
AT_RATE = 0.17
"""The largest error of log(time per token) of requests at a rate that do not pile up: the 90 % quantile of
rows whose language model was left out of the fit, drawn to UNSEEN as by `spread_of`. Published closed loops
are off by more."""
TAILS = {"ttft": ((0.3, 0.3), (1.2, 2.2)), "tpot": ((0.12, 0.12), (0.12, 0.65))}
"""Errors of log(P99) below and above beside that of log(mean), without and with experts: of the same rows.
Servers of experts are often cold in the first seconds, and their P99 is then ten times as long. No rows
have percentiles between P90, whose error is that of the mean, and P99: it rises evenly between them."""
INSIDE = 0.95
"""The fraction of a time that must be in timed operations, as for other predictions."""
OPERATIONS = {
    "gemm": "products", "decode_attention": "attention", "mla_decode": "attention",
    "delta_rule_generation": "attention", "moe": "experts", "all_reduce": "all_reduce",
}  # fmt: skip
OF_FIRST = dict.fromkeys(("prefill_attention", "mla_prefill", "delta_rule_context"), "attention")
"""Operation -> its part of the time of an output token, and of a first one if it differs."""


def is_unseen(gpu: GPU, deployment: Deployment) -> bool:
    """Return True if a GPU served only the other kind of decoder: dense ones, or ones with experts."""
    kinds = gpu.section.kinds
    return bool(kinds) and deployment.decoder.kind not in kinds


def unfitted(gpu: GPU, deployment: Deployment) -> list[str]:
    """Return the data types to which a deployment quantizes inputs, and no served row of its kind did."""
    section, count = gpu.section, deployment.starts.tolist()
    used = [name for name, n in zip(STARTS, count, strict=True) if n and name in DTYPES]
    if section.dtypes or not section.served:
        return [name for name in used if name not in (section.dtypes or used)]
    # A fit leaves what no row tells as it is usual.
    each = (
        each_ms(o)[len(STEP_PARTS) :] / o.level
        for o in (section.overheads, section.server.overheads)
    )
    is_usual = dict(zip(STARTS, np.equal(*each).tolist(), strict=True))
    return [name for name in used if is_usual[name]]


def beyond(sizes: np.ndarray) -> dict[str, np.ndarray]:
    """Return the doublings beyond MOST_SERVED by its names, (rows,) of each; `sizes`: (rows, 3) of them."""
    pairs = zip(MOST_SERVED.items(), sizes.T, strict=True)
    return {what: np.log2(np.maximum(value / most, 1.0)) for (what, most), value in pairs}


def tail(ends: Sequence[float], time: str, experts: int, at: int) -> tuple[float, float]:
    """Return factors of the ends of a percentile from the mean's; `time`: "ttft", "tpot" or "e2e"."""
    off, share = TAILS["ttft" if time == "ttft" else "tpot"][experts > 0], max(at - 90.0, 0.0) / 9.0
    below, above = (
        math.hypot(math.log(e), share * more) for e, more in zip(ends, off, strict=True)
    )
    return math.exp(-below), math.exp(above)


def interval(
    gpu: GPU, deployment: Deployment, sizes: np.ndarray, parts: np.ndarray, computed: float | None = None,
    at_rate: bool | np.ndarray = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Return (rows,) factors of a time's lower and upper end, and whether each row is in the domain.

    The time is that per output token, or to the first one, before which a fraction of the prompt is
    `computed`: a cached prompt is off as tokens are. `parts`: (rows, STEP_PARTS + STARTS)
    of the time. `sizes`: (rows, 3) requests at once, tokens of a prompt, tokens of an answer. `at_rate`:
    the requests arrive at a rate, and do not pile up; one, or (rows,).
    """
    section, shares = gpu.section, _shares(gpu, parts)
    first, unseen = computed is not None, is_unseen(gpu, deployment)
    token, prompt = map(max, section.spread, UNSEEN if unseen else (0.0, 0.0))
    is_better = not first and section.served and not unseen
    # Own rows at a rate narrow the interval at a rate as that of all rows.
    before = section.before if any(row.request_rate for row in section.own) else None
    known = AT_RATE * (token / before.spread[0] if before else 1.0)
    of_rate = min(token, known) if is_better else token
    off: Any = np.where(at_rate, of_rate, token) + (computed or 0.0) * (prompt - token)
    zero = 0.0 * sizes[:, 0]
    untimed = sum((shares[part] for part in _untimed(gpu, deployment, first)), zero)
    off = np.hypot(off, UNTIMED * untimed) if section.is_timed else np.maximum(off, UNTIMED)
    in_groups = deployment.attention_data_parallel > 1
    off = np.hypot(off, IN_GROUPS * in_groups)
    doublings = np.sum([*beyond(sizes).values()], axis=0)
    off = np.hypot(off, DOUBLING * doublings)
    crosses_nodes, slower = deployment.gpus > section.sheet.gpus_per_node, 1.0
    if crosses_nodes:
        slower = max((section.sheet.link_gb_s or 0.0) / BETWEEN_GB_S, 1.0)
    quantizing = sum((shares[dtype] for dtype in unfitted(gpu, deployment)), zero)
    is_served = section.served > 0 and not (unseen or crosses_nodes or in_groups)
    inside = (untimed + quantizing <= 1.0 - INSIDE) & (doublings == 0) & is_served
    low = np.exp(-off) * (1.0 - quantizing)  # that overhead may be nothing here
    return low, np.exp(off) * (1.0 + (slower - 1.0) * shares["all_reduce"]), inside


def _shares(gpu: GPU, parts: np.ndarray) -> dict[str, np.ndarray]:
    """(rows,) shares of a time by part; `parts`: as of `interval`."""
    ms = parts * each_ms(gpu.section.overheads)
    return dict(zip((*STEP_PARTS, *STARTS), (ms / ms.sum(1, keepdims=True)).T, strict=True))


def _untimed(gpu: GPU, deployment: Deployment, first: bool) -> dict[str, list[str]]:
    """Return the operations that were not timed, by their part of a token's time, or of a `first` one's."""
    part_of = {n: p for n, p in OPERATIONS.items() if not first or p != "attention"}
    part_of |= OF_FIRST if first else {}
    found = dict[str, list[str]]()
    for (name, dtype), one in operations_of(gpu, deployment).items():
        if one.like and name in part_of:
            found.setdefault(part_of[name], []).append(f"{name.replace('_', '-')} in {dtype}")
    return found


def outside(
    gpu: GPU, deployment: Deployment, sizes: np.ndarray, parts: np.ndarray, first: bool
) -> list[str]:
    """Return why a time is not in the domain, in words; `sizes`, `parts`: a row of those of `interval`."""
    shares, time = _shares(gpu, parts[None]), "first token" if first else "time per token"
    parts_of = _untimed(gpu, deployment, first)
    missing = [f"{' and '.join(names)}, not timed on this GPU" for names in parts_of.values()]
    dtypes = unfitted(gpu, deployment)
    missing += [f"overhead of {dtype} in no served row" for dtype in dtypes]
    share = float(sum(shares[name][0] for name in (*parts_of, *dtypes)))
    far = [f"more than {MOST_SERVED[n]:,} {n}" for n, by in beyond(sizes[None]).items() if by[0]]
    crosses = deployment.gpus > gpu.section.sheet.gpus_per_node
    return [
        *([f"{percent(share)} of the {time}: {'; '.join(missing)}"] if share > 1.0 - INSIDE else []),
        *([f"no served row had {' and '.join(far)}"] if far else []),
        *(["no such language model was served on this GPU"] * (
            not gpu.section.served or is_unseen(gpu, deployment))),
        *(["more GPUs than a node has"] * crosses),
        *(["groups with attention of their own"] * (deployment.attention_data_parallel > 1)),
    ]  # fmt: skip
