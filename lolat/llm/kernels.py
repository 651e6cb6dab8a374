"""Kernel models: formulas for the time of matrix products, attention, experts and all-reduces on a GPU.

A kernel model has the arguments `terms` (positive numbers; the tables below have the center of each term's
prior, and its width as a logarithm), `rows` (sizes as (rows,) arrays) and the specs of a GPU. It returns
(rows,) ms. If `alone`, the operation is repeated as in a benchmark; else it runs inside a decoder's step: a
CUDA graph launches it, and its data come from memory.

Tiles are computed in waves over the multiprocessors while bytes move at a bandwidth, and the longer of
these two times counts most, as in NVIDIA's guide to matrix multiplication and in FlashAttention (Dao et al.
2022).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from lolat.arrays import np
from lolat.llm.decoder import CACHE_BYTES, WEIGHT_BYTES

Terms = Mapping[str, float]
Sizes = Mapping[str, Any]
"""The sizes of an operation by name, each a number or a (rows,) array."""
Center = tuple[float, float]
HALF = 2.0  # bytes of a number in half precision

RATES = {
    "bfloat16": "bf16_tflops", "fp8": "fp8_tflops", "fp8_block": "fp8_tflops", "nvfp4": "fp4_tflops",
    "int4_wo": "bf16_tflops", "fp8_wo": "bf16_tflops", "w4a16_mxfp4": "bf16_tflops",
    "w4a8_mxfp4_mxfp8": "fp8_tflops",
}  # fmt: skip
"""Data type -> the field of the data sheet with the rate of its products."""


class GpuRates(NamedTuple):
    """A GPU's rates per ms: bytes of memory (`bandwidth`) and of a link; FLOPs by data type (`rates`; a MAC
    is two FLOPs).
    """

    multiprocessors: float
    bandwidth: float
    link: float
    rates: Mapping[str, float]


def overlap(a: Any, b: Any, sharp: float) -> Any:
    """The time of two overlapping tasks: the sum of both for `sharp` = 1, nearly the longer for a large
    `sharp`.
    """
    longer = np.maximum(a, b)
    return longer * (1.0 + (np.minimum(a, b) / longer) ** sharp) ** (1.0 / sharp)


def waves(busy: Any, wave_quantization: float) -> Any:
    """The number of waves for `busy` tiles per multiprocessor, with a part of the idle time of the last
    wave.

    `wave_quantization`: that part, from 0 (none) to 1 (all).
    """
    busy = np.maximum(busy, 1.0)
    return busy + wave_quantization * (np.ceil(busy) - busy)


def cache_hit_share(times: Any) -> Any:
    """The fraction of data that a cache still has after other data, `times` the cache's size, passed."""
    fourth = np.minimum(times, 99.0) ** 4
    return 1.0 / (1.0 + fourth * fourth)


# ---- Matrix products: (m, k) of half precision times (k, n) weights.

GEMM = {
    "launch": (2.4e-3, 1.0),  # ms to start it
    "rate": (0.88, 0.16),  # share of the data sheet's in the middle of a large tile
    "bandwidth": (0.80, 0.15),  # share of the data sheet's
    "cache": (0.9, 0.7),  # bytes in the cache move 1 + this times as fast
    "cache_mb": (36.0, 0.7),  # MB that the cache holds between two calls
    "depth": (1.5, 0.7),  # ns of a step through k of any tile
    "store": (1.5, 0.6),  # bandwidth of storing finished tiles, in shares of the memory's
    "whole": (0.35, 0.7),  # wave quantization, see `waves`; above 1 if tiles run in clusters
    "throttle": (0.09, 0.7),  # share by which long kernels are slower: power
}
SPLIT_K = {"split": (2.7e-3, 0.5)}  # ms of a second kernel that adds up the parts of k
QUANTIZED = {
    "launch": (5e-3, 1.0),  # ms of both kernels
    "row": (6e-4, 1.0),  # us a row to quantize the input
    "quantizing": (0.8, 0.5),  # share of `bandwidth` that quantizing reaches
    "single": (2e-4, 1.0),  # ms more for one row
}
IN_BLOCKS = {"ragged": (0.09, 1.5)}  # share of a tile added for the missing rows of the last one
HOSTED = {
    "host": (0.12, 1.0),  # ms, at least, of a framework's own code before the kernels run
    "host_small": (0.12, 1.0),  # the same for fewer than 32 rows
    "host_unaligned": (0.2, 0.6),  # the same if n is no multiple of 64, or k of 128
    "host_pad": (5e-3, 1.5),  # ms to pad the input if m is no multiple of 4
}
TILE_HEIGHTS = np.array([16.0, 64.0, 64.0, 128.0, 128.0, 128.0])[:, None]
TILE_WIDTHS = np.array([64.0, 64.0, 128.0, 64.0, 128.0, 256.0])[:, None]
"""TILE_HEIGHTS, TILE_WIDTHS: the heights and widths of the tiles that a library chooses from."""
FIXED = {"fixed-128": 128.0, "fixed-256": 256.0}
"""Variants of CUTLASS, whose tile depends on m alone -> the largest m with tiles of 64 rows."""
GEMM_VARIANTS = {"fp8": ("library", *FIXED), "fp8_block": ("library", "hosted")}
"""Data type -> the variants that a fit chooses from; other data types have "library" alone."""
PASS = 2048.0  # elements of a row that quantizing reads at once, beside the tiles of CUTLASS
RAMP_MS, HOT_MS = 1e-3, 0.3  # time until memory streams; time until a kernel is hot
COPIES = 6.0  # of weights, which a benchmark takes in turns
STEP = {"bfloat16": 1.6, "fp8": 0.7, "fp8_block": 0.95, "nvfp4": 1.1}
"""Center of the prior of `depth`, ns, by data type."""


def gemm_terms(dtype: str, variant: str) -> dict[str, Center]:
    """The terms of products in a data type, for a variant in GEMM_VARIANTS."""
    whole = 1.2 if variant in FIXED else 0.25
    terms = GEMM | {"depth": (STEP.get(dtype, 1.6), 0.7), "whole": (whole, 0.7)}
    if variant == "library" and dtype in ("bfloat16", "fp8"):
        terms |= SPLIT_K
    if dtype != "bfloat16":
        terms |= QUANTIZED
    if dtype == "fp8_block":
        terms |= IN_BLOCKS
    return terms | (HOSTED if variant == "hosted" else {})


def gemm_ms(t: Terms, rows: Sizes, specs: GpuRates, dtype: str, variant: str, alone: bool) -> Any:
    """(rows,) ms of matrix products; `rows`: m, n, k."""
    m, n, k = rows["m"], rows["n"], rows["k"]
    width = WEIGHT_BYTES[dtype]
    inputs = width if dtype in ("fp8", "fp8_block", "nvfp4") else HALF
    bandwidth = specs.bandwidth * t["bandwidth"]
    gain, cache = t["cache"] / (1.0 + t["cache"]), 1e-6 / t["cache_mb"]
    weights, others = n * k * width, m * k * inputs + HALF * m * n
    warm = cache_hit_share((COPIES * weights + others) * cache) if alone else 0.0
    far = others * (1.0 - gain * cache_hit_share((weights + others) * cache))
    moving = (weights * (1.0 - gain * warm) + far) / bandwidth
    moving = moving + RAMP_MS * moving / (moving + 5 * RAMP_MS)
    time = _gemm_kernel(t, m, n, k, specs, dtype, variant, bandwidth, moving)
    if "row" in t:
        read = np.ceil(k / PASS) * PASS if variant in FIXED else k
        bytes_ = m * (HALF * read + k)
        far = bytes_ * (1.0 - gain * cache_hit_share(bytes_ * cache))
        passing = far / (bandwidth * t["quantizing"])
        time = time + 1e-3 * t["row"] * m + passing
    if not alone:
        return time
    time = time + t["launch"] + (np.where(m == 1, t["single"], 0.0) if "single" in t else 0.0)
    if "host" not in t:
        return time
    host = np.where(m < 32, t["host_small"], t["host"])
    host = np.where((k % 128 > 0) | (n % 64 > 0), t["host_unaligned"], host)
    return overlap(time, host + np.where(m % 4 > 0, t["host_pad"], 0.0), 8.0)


def _gemm_kernel(
    t: Terms, m: Any, n: Any, k: Any, specs: GpuRates, dtype: str, variant: str, bandwidth: float,
    moving: Any,
) -> Any:  # fmt: skip
    """(rows,) ms of the kernel with the fastest tile, with or without splitting k."""
    units, flops = specs.multiprocessors, specs.rates[dtype] * t["rate"] / specs.multiprocessors
    if variant in FIXED:
        high = np.where(m <= 32, 32.0, np.where(m <= FIXED[variant], 64.0, 128.0))
        high = np.where(m <= 16, 16.0, high)
        high, wide = high[None], np.where(m <= 64, 64.0, 128.0)[None]
    else:
        high, wide = TILE_HEIGHTS, TILE_WIDTHS
    down = np.ceil(m / high)
    if variant == "fixed-128":  # clusters of two tiles in m
        down = np.where(m > 128, 2.0 * np.ceil(down / 2.0), down)
    busy = down * np.ceil(n / wide) / units
    per_k = np.sqrt((2.0 * high * wide / flops) ** 2 + (1e-6 * t["depth"]) ** 2)
    store = np.minimum(high, m) * np.minimum(wide, n) * (HALF * units / (t["store"] * bandwidth))
    step = np.ceil(k / 64.0) * 64.0 * per_k
    computing = waves(busy, t["whole"]) * (step + store)
    if "ragged" in t:
        lacks = np.ceil(m / 128) - m / 128
        computing = computing + step * np.where(m > 64, t["ragged"] * lacks, 0.0)
    kernel = _overlapped(computing.min(0), moving, t)
    if "split" in t:
        parts = np.clip(np.rint(1.0 / busy), 1.0, np.clip(k / 256.0, 1.0, 32.0))
        add = t["split"] + m * n * parts * (8.0 / (bandwidth * (1.0 + t["cache"])))
        deep = np.ceil(k / parts / 64.0) * 64.0
        computing = waves(busy * parts, t["whole"]) * (deep * per_k + store)
        best = (computing + add).argmin(0), np.arange(len(m))
        kernel = np.minimum(kernel, _overlapped(computing[best], moving, t) + add[best])
    return kernel


def _overlapped(computing: Any, moving: Any, t: Terms) -> Any:
    computing = computing * (1.0 + t["throttle"] * computing / (computing + HOT_MS))
    return np.cbrt(computing**3 + moving**3)


# ---- Attention. Rows: batch, length, heads, kv_heads, head_dim, window (0: all).

PREFILL = {
    "launch": (9.3e-3, 0.35),  # ms of all kernels of a call
    "rate": (1.2, 0.5),  # share of the data sheet's inside a tile, softmax apart
    "soft": (0.024, 0.7),  # ns of a multiprocessor for a query x key, whatever the head_dim
    "item": (2.9e-3, 0.3),  # ms of a multiprocessor to begin and end a tile of queries
    "tail": (0.3, 0.9),  # share of the longest tile that no other tile hides
    "token": (8e-4, 1.5),  # us a token to write keys and values
    "append": (1.5, 0.6),  # times that keys and values move in kernels of their own
    "queries": (0.4, 1.2),  # the same of queries: rotation, deployment
    "cache": (0.2, 0.7),  # MB of cache a multiprocessor
    "wide": (1.0, 0.5),  # rate of head_dim 129 to 192 to that of 128
    "widest": (0.45, 0.6),  # above 256
    "window": (0.87, 0.4),  # rate with a window to that without
}
PACKED = ("packed", "alone", "packed-one", "packed-one-whole")
"""Variants, by the query heads of a key head that share a tile: all; none; the heads of one token; the
heads of one token, only in layers without a window."""
DECODE = {
    "launch": (8.5e-3, 0.35),  # ms
    "bandwidth": (0.86, 0.12),  # share of the data sheet's
    "cache": (0.25, 0.7),  # MB of cache a multiprocessor
    "cached": (2.5, 0.6),  # rate of data in the cache over that of memory
    "lane": (3.0, 0.7),  # rate of one work item to a multiprocessor's share
    "item": (3e-3, 0.6),  # ms of a multiprocessor for a work item: sequence x key head x part
    "wide": (0.5, 1.0),  # part of `item` that grows with head_dim
    "head": (0.05, 0.6),  # us of a multiprocessor for a query head of 128 and part
    "merge": (1.8e-3, 0.8),  # ms of a second kernel where the cache is split
    "rate256": (1.0, 0.25),  # rate of head_dim above 192 to that of 128
    "launch2": (0.95, 0.4),  # of the rows of another kernel: launch, item, rate to the main one's
    "item2": (1.1, 0.6),
    "rate2": (0.93, 0.4),
    "copy": (5e-3, 0.4),  # ms to copy queries and outputs, of "whole"
}
GROUPED = ("grouped", "grouped-long", "whole", "some", "some-long", "some-long-4")
"""Variants, by the layers that run in the main kernel: "grouped": all (FlashAttention 3, FlashInfer);
"whole": those without a window (FlashAttention 2); "some": those with groups of 2 to 32 query heads (XQA).
"long": the cache is split by its whole length, even if a window hides most of it. "4": into four parts, not
one, for each multiprocessor."""
TILES = (16.0, 64.0, 128.0)
ATTENTION = ("batch", "length", "heads", "kv_heads", "head_dim", "window")
REACH = np.array([2.5, 2.5, 2.0, 0.6, 2.5])
"""Reach of a correction in doublings of each size."""


def missed(touched: Any, cache_mb: float, units: float) -> Any:
    """The fraction of an input that has left the cache when a benchmark reads the same input again."""
    return 1.0 / (1.0 + (cache_mb * 1e6 * units / touched) ** 2)


def prefill_ms(
    t: Terms, rows: Sizes, specs: GpuRates, dtype: str, variant: str, alone: bool
) -> Any:
    """(rows,) ms of causal attention over `length` new tokens; `dtype`: queries/cache."""
    b, n, h, k, d, w = (rows[c] for c in ATTENTION)
    queries, keys_dtype = dtype.split("/")
    units, reach = specs.multiprocessors, np.where(w > 0, w, np.inf)
    one = n == 1
    pack = {"packed": True, "alone": False, "packed-one": one, "packed-one-whole": one & (w == 0)}
    lanes, group = np.where(pack[variant], k, h), np.where(pack[variant], h / k, 1.0)
    slower = np.where(d <= 192, t["wide"], np.where(d <= 256, 0.85, t["widest"]))
    slower = np.where(d <= 128, 1.0, slower) * np.where((w > 0) & (w < n), t["window"], 1.0)
    cell = (4.0 * d * units / (specs.rates[queries] * t["rate"]) + t["soft"] * 1e-6) / slower
    best: Any = np.inf
    for tile in TILES:
        step = np.maximum(tile / group, 1.0)
        tiles = np.ceil(n / step)
        cut = np.clip(np.ceil((reach - 1.0) / step), 0.0, tiles)  # tiles before the window cuts
        keys = tiles * 32.0 + step * tiles * (tiles - 1.0) / 2.0 + n
        keys = keys - (tiles - cut) * (1.0 - w + step * (tiles + cut - 1.0) / 2.0)
        column = (tile + 32.0) * cell  # keys and values of a tile cost as much as 32 rows
        longest = (np.minimum(n, reach + step) + 32.0) * column + t["item"]
        work = b * lanes * (keys * column + tiles * t["item"]) / units
        best = np.minimum(best, overlap(work, longest, 3.0) + t["tail"] * longest)
    moved = n * h * 2 * HALF + n * k * 2.0 * CACHE_BYTES[keys_dtype]
    io = b * moved * d
    miss = missed(io, t["cache"], units) if alone else 1.0
    per_byte = (miss + (1.0 - miss) / 2.5) / (specs.bandwidth * 0.85)
    writing = t["token"] * 1e-3 * np.minimum(k * d, 512.0) / 512.0
    own = b * n * (writing + (t["append"] * k + t["queries"] * h) * d * 2 * HALF * per_byte)
    return (t["launch"] if alone else 0.0) + overlap(best, io * per_byte, 3.0) + own


def decode_ms(t: Terms, rows: Sizes, specs: GpuRates, dtype: str, variant: str, alone: bool) -> Any:
    """(rows,) ms of attention of a new token to `length` cached ones; `dtype`: queries/cache."""
    b, n, h, k, d, w = (rows[c] for c in ATTENTION)
    group, units = h / k, specs.multiprocessors
    bandwidth = specs.bandwidth * t["bandwidth"]
    seen = np.where(w > 0, np.minimum(n, w), n)
    cut = np.True_
    if variant.startswith("grouped"):
        main, pack = (d != 192) & (d <= 256), np.True_
    elif variant == "whole":
        main = pack = cut = (group > 1) & (w == 0)
    else:
        main = pack = (group > 1) & (group <= 32)
    second = {name: np.where(main, 1.0, t[name]) for name in ("launch2", "item2", "rate2")}
    if variant.startswith("some"):  # more than 16 heads start like the other kernel
        second["launch2"] = np.where(main & (group <= 16), 1.0, t["launch2"])
    lanes = np.where(pack, k, h)
    work = b * lanes
    parts = np.maximum((n if "-long" in variant else seen) / 128.0, 1.0)
    aimed = units * (4.0 if variant.endswith("-4") else 1.0)
    split = np.where(cut, np.clip(aimed / work, 1.0, parts), 1.0)
    line = d * 2.0 * CACHE_BYTES[dtype.split("/")[1]]  # bytes of a token and key head
    once, read = b * seen * k * line, work * seen * line
    rate = second["rate2"] * np.where(d <= 64, 0.93, np.where(d > 192, t["rate256"], 1.0))
    miss = missed(once, t["cache"], units) if alone else 1.0
    moving = once * (miss + (1.0 - miss) / t["cached"]) + (read - once) / t["cached"]
    moving = moving / (bandwidth * rate)
    item_alone = seen / split * line / (bandwidth / units * t["lane"] * rate)
    math = b * seen * h * d * 4.0 / (specs.rates["bfloat16"] * 0.17 * second["rate2"])
    item = t["item"] * second["item2"] * (1.0 + t["wide"] * d / 128.0) / (1.0 + t["wide"])
    begin = np.ceil(work * split / units) * item
    begin = begin + b * h * split * d / 128.0 * t["head"] * 1e-3 / units
    launch = t["launch"] * second["launch2"] if alone else 0.0
    launch = launch + np.where(split > 1, t["merge"], 0.0) + 5e-5 * (split - 1.0)
    if variant == "whole":
        copied = t["copy"] * alone + b * h * d * 4 * HALF / bandwidth
        launch = launch + np.where(main & (k > 1) & (b > 1), copied, 0.0)
    return launch + overlap(overlap(overlap(moving, item_alone, 4.0), math, 4.0), begin, 1.8)


def attention_log_sizes(rows: Sizes) -> Any:
    """(rows, 5) scaled logarithms of the sizes, which the correction depends on."""
    n, w = rows["length"], rows["window"]
    hidden = np.where(w > 0, np.maximum(n / np.maximum(w, 1.0), 1.0), 1.0)
    group = rows["heads"] / rows["kv_heads"]
    sizes = rows["batch"] * rows["kv_heads"], n, group, rows["head_dim"], hidden
    return np.log2(np.stack(np.broadcast_arrays(*sizes), 1)) / REACH


# ---- Routed experts of one layer on one GPU. Rows: EXPERTS.

EXPERTS = ("tokens", "hidden", "intermediate", "experts", "top_k", "tensor_parallel",
           "expert_parallel", "skew")  # fmt: skip
"""The sizes of an operation of experts. `skew`: the exponent of the power law that distributes tokens over
experts; 0: evenly."""
MOE = {
    "start": (0.018, 0.7),  # ms of all kernels of the layer
    "rate": (0.6, 0.4),  # share of the data sheet's in a tile of 128 rows
    "loads": (40.0, 0.8),  # rows of products that the loads of a tile cost as much as
    "bandwidth": (0.85, 0.15),  # share of the data sheet's, of weights of touched experts
    "passing": (2.0, 0.8),  # passes over every token x top_k, also tokens of experts on other GPUs
    "own": (2.0, 0.8),  # passes over the rows of this GPU's experts
    "cache_mb": (30.0, 0.7),  # MB of weights that stay in the cache when timed over and over
    "tile": (1.0, 0.7),  # rows of a tile over the expected tokens of an expert
    "depth": (200.0, 0.8),  # further steps of k, to fill and empty a tile
    "fill": (1.0, 0.5),  # waves added to those of tiles
}
EXPECTED_BY = ("own", "all")
"""Variants, by the mean number of tokens of an expert that a tile is chosen for: all assignments divided by
this GPU's experts ("own"), or by all experts ("all")."""
EVEN = 1.2
"""Shape of the gamma distribution of an expert's popularity inside a decoder; the number of its tokens is
then negative binomial. Chosen by served rows of gpt-oss, MiniMax and Qwen3 (docs/results)."""
TILE_COLUMNS, LEAST_TILE, MOST_TILE = 64.0, 8.0, 128.0


class Loads:
    """Tokens on the experts of the busiest GPU, as (rows,) arrays.

    `here`: experts on a GPU; `own`: assignments of tokens to these experts; `touched`: experts with at
    least one assignment. With `skew` 0 all experts get equally many tokens. Otherwise, as in the published
    tables, an expert's share is drawn with the density x ** -skew between 1 and 0.8 * tokens (between 0.01
    and 2 if there are fewer assignments than experts), then scaled and rounded to the assignments. The
    constants in the code are fitted to 1,100 simulations, with median errors of 2 to 4 %.
    """

    def __init__(
        self, tokens: Any, top_k: Any, experts: Any, groups: Any, skew: Any, alone: bool
    ) -> None:
        assigned, self.here, mean = tokens * top_k, experts / groups, tokens * top_k / experts
        self.even = skew == 0
        self.power = e = np.where(self.even, -0.1, 1.0 - skew)
        dense = (assigned > experts) | (not alone)
        self.low = low = np.where(dense, 1.0, 0.01)
        self.high = high = np.where(dense, np.maximum(0.8 * tokens, 1.6), 2.0)
        self.low_power, self.high_power = low**e, high**e
        self.first = high * self.high_power - low * self.low_power
        self.span = self.high_power - self.low_power
        mu = e / (1.0 + e) * self.first / self.span
        square = e / (2.0 + e) * (high**2 * self.high_power - low**2 * self.low_power) / self.span
        variance = np.maximum(square / mu**2 - 1.0, np.maximum(1.0 - mean, 0.0) / mean)
        self.scale = mu / mean
        self.busy = busy = self._busiest(self.here / variance, experts, groups, 3.5 * high / mu)
        own = np.maximum(mean * self.here * busy, np.minimum(1.0, assigned))
        own = np.minimum(own, tokens * np.minimum(top_k, self.here))
        above = self.here * self._above(0.408 * busy**-1.313)[0]
        least = np.maximum(above, 0.239 * self.here * busy)
        touched = np.minimum(np.minimum(own, self.here), least)
        if not alone:
            touched = self.here * (1.0 - (1.0 + mean * busy / EVEN) ** -EVEN)
        level = np.minimum(self.here, np.ceil(assigned / groups))
        self.touched = np.where(self.even, level, touched)
        self.own = np.where(self.even, np.where(dense, assigned / groups, level), own)

    @staticmethod
    def _busiest(shape: Any, experts: Any, groups: Any, most: Any) -> Any:
        """The ratio of the busiest GPU's load to the mean of `groups` GPUs, for gamma distributed loads."""
        # Wilson-Hilferty; the largest of n normal values is near steps / (1.56 + 0.16 steps).
        steps = np.log2(groups)
        cube = 1.0 - 0.103 / shape + 0.589 * steps / (1.56 + 0.16 * steps) / np.sqrt(shape)
        busy = np.maximum(cube, 0.3) ** (1.64 + 0.83 / np.sqrt(experts))
        busy = np.maximum(np.minimum(busy, np.minimum(groups, most)), 1.0)
        return np.where(groups > 1, busy, 1.0)

    def _above(self, load: Any) -> tuple[Any, Any]:
        """(the fraction of experts with more than `load` tokens, the fraction of tokens that they get)."""
        x = np.minimum(np.maximum(load * self.scale, self.low), self.high)
        power = x**self.power
        tokens = (self.high * self.high_power - x * power) / self.first
        return (self.high_power - power) / self.span, tokens

    def tiles(self, rows: Any) -> Any:
        """The number of tiles of `rows` tokens; the last tile of each expert is padded."""
        experts, tokens = self._above(rows / self.busy)
        more = np.maximum(tokens * self.own / rows - 0.811 * self.here * experts, 0.0)
        even = self.touched * np.ceil(self.own / (self.touched * rows) - 1e-9)
        return np.where(self.even, even, self.touched + more)


def moe_ms(t: Terms, rows: Sizes, specs: GpuRates, dtype: str, variant: str, alone: bool) -> Any:
    """(rows,) ms of a layer's experts, three matrices each; `variant`: one of EXPECTED_BY."""
    tokens, hidden, width, experts, top_k, parts, groups, skew = (rows[c] for c in EXPERTS)
    width, units = width / parts, specs.multiprocessors
    load = Loads(tokens, top_k, experts, groups, skew, alone)
    weights = load.touched * 3.0 * width * hidden * WEIGHT_BYTES[dtype]
    if alone:
        weights = weights * (0.2 + 0.8 / (1.0 + (1e6 * t["cache_mb"] / weights) ** 4))
    moving = weights / (specs.bandwidth * t["bandwidth"])
    expected = tokens * top_k / (load.here if variant == "own" else experts)
    tile = np.minimum(np.maximum(t["tile"] * expected, LEAST_TILE), MOST_TILE)
    tiles = np.maximum(load.tiles(tile), load.touched) / units
    steps = (tiles * np.ceil(2.0 * width / TILE_COLUMNS) + t["fill"]) * (hidden + t["depth"])
    steps = steps + (tiles * np.ceil(hidden / TILE_COLUMNS) + t["fill"]) * (width + t["depth"])
    rate = t["rate"] * specs.rates[dtype] / units * (128.0 + t["loads"]) / 128.0
    products = steps * 2.0 * TILE_COLUMNS * (tile + t["loads"]) / rate
    passing = t["passing"] * tokens * top_k * (hidden + 3.0 * width)
    passing = passing + t["own"] * load.own * (hidden + width)
    start = t["start"] if alone else 0.0
    return start + HALF * passing / specs.bandwidth + np.sqrt(moving**2 + products**2)


def moe_log_sizes(rows: Sizes) -> Any:
    """(rows, 3) scaled logarithms of the sizes, which the correction depends on."""
    here = rows["experts"] / rows["expert_parallel"]
    width = rows["intermediate"] / rows["tensor_parallel"]
    sizes = np.broadcast_arrays(rows["tokens"], here, width)
    return np.log2(np.stack(sizes, 1)) / np.array([3.75, 3.0, 3.0])


# ---- All-reduce of half precision over the GPUs of a node. Rows: gpus, elements.

ALL_REDUCE = {
    "launch": (3.5e-3, 0.7),  # ms with two GPUs and next to no bytes
    "hop": (1.5e-4, 1.0),  # ms for each further GPU: flags to wait for
    "one": (0.5, 0.5),  # one shot, each GPU reads all of all others: share of the link's rate
    "two_start": (2e-3, 0.8),  # ms of two shots: each GPU sums its part and sends it to the others
    "two": (0.6, 0.4),  # share of the link's rate of two shots
    "ring_start": (0.012, 0.8),  # ms of the library's ring
    "ring_hop": (2e-3, 1.0),
    "ring": (0.75, 0.5),  # share of the link's rate with 4 GPUs
    "growth": (1.1, 0.6),  # factor of `ring` for twice the GPUs; above 1 if the switch sums
    "ramp": (0.05, 0.8),  # ms to fill the pipeline
    "ramp_mb": (15.0, 0.7),  # MB with half of it
}
OWN_UP_TO = {"free": None, "to-8-mb": 8.0}
"""Variant -> MB up to which a framework uses its own kernels; None: it always uses the faster kernels."""


def all_reduce_ms(
    t: Terms, rows: Sizes, specs: GpuRates, dtype: str, variant: str, alone: bool
) -> Any:
    """(rows,) ms of an all-reduce; `specs.link`: bytes per ms in one direction of one GPU."""
    gpus, size = rows["gpus"], HALF * rows["elements"]
    rounds = 2.0 * (gpus - 1.0) / gpus * size / specs.link
    start = (t["launch"] if alone else 0.0) + t["hop"] * (gpus - 2.0)
    one_shot = start + size * (gpus - 1.0) / (specs.link * t["one"])
    two_shot = start + t["two_start"] + rounds / t["two"]
    library = t["ring_start"] + t["ring_hop"] * (gpus - 2.0)
    library = library + t["ramp"] * size / (size + 1e6 * t["ramp_mb"])
    library = library + rounds / (t["ring"] * t["growth"] ** np.log2(gpus / 4.0))
    limit = OWN_UP_TO[variant]
    own = _sooner(one_shot, two_shot)
    return _sooner(own, library) if limit is None else np.where(size < 1e6 * limit, own, library)


def _sooner(a: Any, b: Any) -> Any:
    return 1.0 / overlap(1.0 / np.maximum(a, 1e-9), 1.0 / np.maximum(b, 1e-9), 8.0)
