"""The measured range of answers about serving: served loads, timed operations, GPUs of one node.

Outside this range intervals are wider, because measured errors are larger there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lolat.arrays import np
from lolat.llm.decoder import DTYPES
from lolat.llm.gpu import GPU, ServingSection
from lolat.llm.steps import STARTS, STEP_PARTS, Deployment, each_ms, operations_of
from lolat.units import percent

MOST_SERVED = {"requests at once": 512, "tokens of a prompt": 8192, "tokens of an answer": 8192}
"""The largest loads among the served rows that bundled devices are fitted to."""
DOUBLING = 0.07
"""Error of log(time) for each doubling beyond the largest served load. Measured by fits to rows of up to 8,
16 or 32 requests, tested on rows of up to 16 times as many; the largest over GPUs and frameworks."""
UNTIMED = 0.22
"""Error of log(time) of an untimed operation; measured on GPUs of which only the data sheet was used."""
BETWEEN_GB_S = 50.0
"""GB/s in one direction of a GPU's usual link to other machines (InfiniBand NDR)."""
IN_GROUPS = 0.2
"""Error of log(time) with attention data parallel: the second largest error of 11 served rows of gpt-oss,
which no fit had seen."""
AT_RATE = 0.17
"""Half width of log(time per token) for requests at a rate that do not pile up: the 90 % quantile of the
errors of rows whose language model was held out of the fit, shrunk toward `UNSEEN` as in `spread_of`.
Published rows of concurrent requests have larger errors."""
TAILS = {"ttft": ((0.3, 0.3), (1.2, 2.2)), "tpot": ((0.12, 0.12), (0.12, 0.65))}
"""Time -> errors of log(P99) that add to the error of log(mean): (below, above) without experts, then with
experts, from the rows of AT_RATE. Servers of experts are often cold in the first seconds, and their P99 is
then ten times as long. P90 has the error of the mean; up to P99 the error rises evenly.
"""
UNCOMPARED = (0.25, 0.5)
"""Least half widths, as logarithms, of (time per output token, time to the first token) of a profile that
was not compared with served rows at request rates: the largest of the profiles that were (H100, vLLM: 0.244
and 0.484)."""
FEWEST = 10
"""A bundled profile with at least so many served rows has intervals from its own errors."""
INSIDE = 0.95
"""A time is in the measured range if at least this fraction of it is spent in timed operations."""
OPERATIONS = {
    "gemm": "products", "decode_attention": "attention", "mla_decode": "attention",
    "delta_rule_generation": "attention", "moe": "experts", "all_reduce": "all_reduce",
}  # fmt: skip
OF_FIRST = dict.fromkeys(("prefill_attention", "mla_prefill", "delta_rule_context"), "attention")
"""Operations of a prompt -> their part of the time to the first token."""


def is_unseen(gpu: GPU, deployment: Deployment) -> bool:
    """True if the served rows of a GPU have no decoder of this kind ("dense", "experts")."""
    kinds = gpu.section.kinds
    return bool(kinds) and deployment.decoder.kind not in kinds


def unfitted(gpu: GPU, deployment: Deployment) -> list[str]:
    """The data types to which a deployment quantizes inputs of products, but no served row does."""
    section, count = gpu.section, deployment.starts.tolist()
    used = [name for name, n in zip(STARTS, count, strict=True) if n and name in DTYPES]
    if section.dtypes or not section.served:
        return [name for name in used if name not in (section.dtypes or used)]
    # A fit leaves overheads that no row shows at their usual values.
    each = (
        each_ms(o)[len(STEP_PARTS) :] / o.level
        for o in (section.overheads, section.server.overheads)
    )
    is_usual = dict(zip(STARTS, np.equal(*each).tolist(), strict=True))
    return [name for name in used if is_usual[name]]


def beyond(sizes: np.ndarray) -> dict[str, np.ndarray]:
    """(rows,) doublings beyond each limit in MOST_SERVED, by its name; `sizes`: (rows, 3)."""
    pairs = zip(MOST_SERVED.items(), sizes.T, strict=True)
    return {what: np.log2(np.maximum(value / most, 1.0)) for (what, most), value in pairs}


def tail(ends: Sequence[float], time: str, experts: int, at: int) -> tuple[float, float]:
    """(lower, upper) factors of the interval of percentile `at`; `ends`: those of the mean; `time`: "ttft",
    "tpot" or "e2e".
    """
    off, share = TAILS["ttft" if time == "ttft" else "tpot"][experts > 0], max(at - 90.0, 0.0) / 9.0
    below, above = (
        math.hypot(math.log(e), share * more) for e, more in zip(ends, off, strict=True)
    )
    return math.exp(-below), math.exp(above)


def half_widths(
    section: ServingSection, kind: str, at_rate: bool = False, is_full: bool = False
) -> tuple[float, float]:
    """Half widths, as logarithms, of the intervals of (time per output token, time to the first token).

    They are the `spread` of a profile whose served rows are of the same `kind` of decoder ("dense",
    "experts"), if there are FEWEST of these rows or the user has own rows (at a rate: own rows at rates).
    Otherwise they are at least UNCOMPARED. At a rate, the time per output token has AT_RATE if the
    framework was compared at rates. `is_full`: requests pile up at the rate, which no compared row did.
    """
    own_rate = any(row.request_rate for row in section.own)
    is_known = section.served >= FEWEST or bool(section.own)
    is_known &= not section.kinds or kind in section.kinds
    token, prompt = section.spread
    if not is_known or (at_rate and not own_rate):
        token, prompt = max(token, UNCOMPARED[0]), max(prompt, UNCOMPARED[1])
    if is_known and at_rate and not is_full and (section.server.is_rate_checked or own_rate):
        token = AT_RATE
        if own_rate:  # own rows narrow the interval at a rate as much as that of all rows
            own, before = section.spread[0], section.before
            token = min(own, AT_RATE * (own / before.spread[0] if before else 1.0))
    return token, prompt


def interval(
    gpu: GPU, deployment: Deployment, sizes: Sequence[float], parts: np.ndarray,
    computed: float | None = None, at_rate: bool = False, is_full: bool = False,
) -> tuple[float, float, list[str]]:  # fmt: skip
    """The interval of a time: (lower factor, upper factor, reasons why it is outside the measured range).

    The time is the time per output token or, if `computed` is given, the time to the first token, with this
    fraction of the prompt computed and the rest cached. `parts`: (STEP_PARTS + STARTS,) parts of the time.
    `sizes`: concurrent requests, tokens of a prompt, tokens of an answer. `at_rate`, `is_full`: as in
    `half_widths`.
    """
    section, first, unseen = gpu.section, computed is not None, is_unseen(gpu, deployment)
    ms = parts * each_ms(section.overheads)
    shares = dict(zip((*STEP_PARTS, *STARTS), ms / ms.sum(), strict=True))
    token, prompt = half_widths(section, deployment.decoder.kind, at_rate, is_full or first)
    off: Any = token + (computed or 0.0) * (prompt - token)
    operations, dtypes = _untimed(gpu, deployment, first), unfitted(gpu, deployment)
    untimed, quantizing = (sum(shares[name] for name in some) for some in (operations, dtypes))
    off = np.hypot(off, UNTIMED * untimed) if section.is_timed else max(off, UNTIMED)
    in_groups = deployment.attention_data_parallel > 1
    doublings = {what: float(by[0]) for what, by in beyond(np.array([sizes])).items()}
    off = np.hypot(np.hypot(off, IN_GROUPS * in_groups), DOUBLING * sum(doublings.values()))
    crosses_nodes, slower = deployment.gpus > section.sheet.gpus_per_node, 1.0
    if crosses_nodes:
        slower = max((section.sheet.link_gb_s or 0.0) / BETWEEN_GB_S, 1.0)
    low = np.exp(-off) * (1.0 - quantizing)  # that overhead may be nothing here
    high = np.exp(off) * (1.0 + (slower - 1.0) * shares["all_reduce"])
    missing = [f"{' and '.join(names)}, not timed on this GPU" for names in operations.values()]
    missing += [f"overhead of {dtype} in no serving measurement" for dtype in dtypes]
    share, time = untimed + quantizing, "first token" if first else "time per token"
    far = [f"more than {MOST_SERVED[what]:,} {what}" for what, by in doublings.items() if by]
    reasons = (
        (share > 1.0 - INSIDE, f"{percent(share)} of the {time}: {'; '.join(missing)}"),
        (far, f"no serving measurement had {' and '.join(far)}"),
        (not section.served or unseen, "no such language model was served on this GPU"),
        (crosses_nodes, "more GPUs than a node has"),
        (in_groups, "groups with attention of their own"),
    )
    return float(low), float(high), [words for is_so, words in reasons if is_so]


def _untimed(gpu: GPU, deployment: Deployment, first: bool) -> dict[str, list[str]]:
    """The untimed operations by part of the time per output token, or of the time to the `first` token."""
    part_of = {n: p for n, p in OPERATIONS.items() if not first or p != "attention"}
    part_of |= OF_FIRST if first else {}
    found = dict[str, list[str]]()
    for (name, dtype), one in operations_of(gpu, deployment).items():
        if one.like and name in part_of:
            found.setdefault(part_of[name], []).append(f"{name.replace('_', '-')} in {dtype}")
    return found
