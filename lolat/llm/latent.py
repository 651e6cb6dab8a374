"""Kernel models of multi-head latent attention and of gated delta networks, as in `lolat.llm.kernels`.

DeepSeek's latent attention (DeepSeek-AI 2024) keeps a vector of RANK + ROPE elements a token, which all
heads share. A prompt's keys and values are computed from it; in decode the products are absorbed into
queries and outputs, so that a head attends to the vector itself. A gated delta network (Yang et al. 2025)
keeps a matrix for each head instead of keys and values.
"""

from __future__ import annotations

from typing import Any

from lolat.arrays import np
from lolat.llm.decoder import CACHE_BYTES, WEIGHT_BYTES
from lolat.llm.kernels import (
    ATTENTION,
    HALF,
    GpuRates,
    Sizes,
    Terms,
    missed,
    overlap,
    prefill_ms,
)

RANK, ROPE, NOPE, VALUE = 512.0, 64.0, 128.0, 128.0
"""Elements, in all timed models, of the latent vector, a rotated key, the rest of a head's key, a head's
value."""
HIDDEN, QUERY_RANK = 7168.0, 1536.0
"""Elements of an input, and of a latent query, in the timed modules."""
LATENT = ("batch", "length", "heads")

# ---- Latent attention. Sizes: LATENT, heads of one GPU.

MODULE = {
    "around": (0.02, 1.0),  # ms to start all kernels beside attention
    "products": (0.5, 0.7),  # share of the data sheet's rate in the projections
    "weights": (0.5, 0.7),  # share of the data sheet's bandwidth in them
}
"""Further terms of a module (attention timed with its projections); a step counts projections as
products."""
LATENT_DECODE = {
    "launch": (9e-3, 0.35),  # ms
    "bandwidth": (0.8, 0.12),  # share of the data sheet's
    "cache": (0.25, 0.7),  # MB of cache a multiprocessor
    "cached": (1.5, 0.6),  # rate of data in the cache over that of memory, less 1
    "rate": (0.5, 0.5),  # share of the data sheet's products
    "least": (16.0, 0.3),  # heads that a product computes at least
    "lane": (2.0, 0.7),  # rate of one work item to a multiprocessor's share
    "merge": (3e-3, 0.8),  # ms of a second kernel where the cache is split
    "io": (2.0, 0.8),  # times that queries and outputs move
    "item": (1e-3, 1.0),  # ms of a multiprocessor for a work item
}
LANES, PART = 64.0, 512.0  # heads of a work item; tokens of the cache above which it is split


def _module_ms(t: Terms, tokens: Any, heads: Any, specs: GpuRates, dtype: str) -> Any:
    """(rows,) ms of the projections around attention in a data type, with the launches of their kernels."""
    of_head = QUERY_RANK * (NOPE + ROPE) + VALUE * HIDDEN
    own = HIDDEN * (QUERY_RANK + RANK + ROPE) + heads * of_head
    absorbed = heads * RANK * (NOPE + VALUE)
    passing = 4.0 * HIDDEN + 4.0 * QUERY_RANK + heads * (2.0 * (RANK + NOPE + VALUE) + ROPE)
    moved = own * WEIGHT_BYTES[dtype] + HALF * (absorbed + tokens * passing)
    math = 2.0 * tokens * (own / specs.rates[dtype] + absorbed / specs.rates["bfloat16"])
    return t["around"] + overlap(
        moved / (specs.bandwidth * t["weights"]), math / t["products"], 2.0
    )


def latent_prefill_ms(
    t: Terms, rows: Sizes, specs: GpuRates, dtype: str, variant: str, alone: bool
) -> Any:
    """(rows,) ms of causal attention of prompts; `dtype`: projections/cache."""
    weights, cache = dtype.split("/")
    b, n, h = (rows[c] for c in LATENT)
    middle = np.full_like(n, (NOPE + ROPE + VALUE) / 2.0)
    whole = dict(zip(ATTENTION, (b, n, h, h, middle, 0.0 * n), strict=True))
    ms = prefill_ms(t, whole, specs, f"{cache}/{cache}", "alone", alone)
    return ms + _module_ms(t, b * n, h, specs, weights) if alone and "around" in t else ms


def latent_decode_ms(
    t: Terms, rows: Sizes, specs: GpuRates, dtype: str, variant: str, alone: bool
) -> Any:
    """(rows,) ms of absorbed attention of a new token to `length` cached tokens; `dtype`:
    projections/cache.
    """
    weights, cache = dtype.split("/")
    b, n, h = (rows[c] for c in LATENT)
    units, bandwidth = specs.multiprocessors, specs.bandwidth * t["bandwidth"]
    line, each = (RANK + ROPE) * CACHE_BYTES[cache], 2.0 * (2.0 * RANK + ROPE)
    rate = specs.rates[cache] * t["rate"]
    miss = missed(b * n * line, t["cache"], units) if alone else 1.0
    moving = b * n * line * (miss + (1.0 - miss) / (1.0 + t["cached"])) / bandwidth
    heads = np.maximum(h, t["least"])
    blocks = b * np.ceil(h / LANES)
    split = np.clip(units / blocks, 1.0, np.maximum(n / 128.0, 1.0))
    products = np.minimum(heads, LANES) * each / (2.0 * rate)
    item = np.maximum(line / (bandwidth * t["lane"]), products)
    work = overlap(overlap(moving, b * n * heads * each / rate, 4.0), n / split * item * units, 4.0)
    around = b * h * (2.0 * RANK + ROPE) * HALF * t["io"] / specs.bandwidth
    around = around + np.ceil(blocks * split / units) * t["item"]
    around = around + np.where(n > PART, t["merge"], 0.0)
    if not alone:
        return work + around
    module = _module_ms(t, b, h, specs, weights) if "around" in t else 0.0
    return t["launch"] + work + around + module


ABSORBED = {
    "launch": (4.3e-3, 0.3),  # ms
    "rate": (0.5, 0.5),  # share of the data sheet's
    "bandwidth": (0.6, 0.5),  # share of the data sheet's
    "row": (1e-5, 1.0),  # us for a token and head to quantize the input
}


def absorbed_ms(
    t: Terms, rows: Sizes, specs: GpuRates, dtype: str, variant: str, alone: bool
) -> Any:
    """(rows,) ms of the product of each head into the latent space, or out of it; `rows`: tokens, heads."""
    m, h = rows["tokens"], rows["heads"]
    weights = h * RANK * NOPE
    moving = weights * WEIGHT_BYTES[dtype] + HALF * m * h * (RANK + NOPE)
    math = 2.0 * m * weights / (specs.rates[dtype] * t["rate"])
    ms = overlap(moving / (specs.bandwidth * t["bandwidth"]), math, 2.0) + 1e-3 * t["row"] * m * h
    return ms + (t["launch"] if alone else 0.0)


# ---- Gated delta networks. Sizes: DELTA, heads of one GPU.

DELTA = ("batch", "length", "k_heads", "k_dim", "v_heads", "v_dim")
DELTA_TERMS = {
    "launch": (4e-3, 0.7),  # ms
    "bytes": (1.0, 0.8),  # times that inputs, outputs and states move
    "chain": (1e-4, 2.0),  # us of a token that waits for the one before it
    "item": (1e-3, 1.5),  # ms of a multiprocessor for a sequence, or for a head of it
}
CHUNKS = DELTA_TERMS | {
    "launch": (0.02, 0.7), "bytes": (15.0, 0.8), "chain": (0.03, 1.0), "item": (0.01, 1.0),
}  # fmt: skip
"""Terms for prompts in chunks; a large `bytes` stands for the products inside a chunk."""
STATE = 4.0  # bytes of an element of a head's matrix
TAPS = 4.0  # tokens that the convolution sees, itself included


def _delta_ms(t: Terms, rows: Sizes, specs: GpuRates, moved: Any, lanes: Any, alone: bool) -> Any:
    chain = 1e-3 * t["chain"] * rows["length"]
    ms = overlap(t["bytes"] * moved / specs.bandwidth, chain, 2.0)
    return ms + lanes * t["item"] / specs.multiprocessors + (t["launch"] if alone else 0.0)


def convolution_ms(
    t: Terms, rows: Sizes, specs: GpuRates, dtype: str, variant: str, alone: bool
) -> Any:
    """(rows,) ms of the causal convolution of queries, keys and values."""
    b, n, k, k_dim, v, v_dim = (rows[c] for c in DELTA)
    moved = HALF * b * (2.0 * n + TAPS) * (2.0 * k * k_dim + v * v_dim)
    return _delta_ms(t, rows, specs, moved, b, alone)


def delta_ms(t: Terms, rows: Sizes, specs: GpuRates, dtype: str, variant: str, alone: bool) -> Any:
    """(rows,) ms of the gated delta rule; `variant` "one": for one token, which reads and writes each
    state.
    """
    b, n, k, k_dim, v, v_dim = (rows[c] for c in DELTA)
    moved = HALF * b * n * (2.0 * k * k_dim + 2.0 * v * v_dim)
    if variant == "one":
        moved = moved + 2.0 * STATE * b * v * k_dim * v_dim
    return _delta_ms(t, rows, specs, moved, b * v, alone)
