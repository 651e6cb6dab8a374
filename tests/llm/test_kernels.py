"""Times of operations against what physics, a count or a simulation says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.llm.decoder import WEIGHT_BYTES
from lolat.llm.gpu import lacks_rate, specs_of
from lolat.llm.kernel_models import KERNEL_MODELS
from lolat.llm.kernels import EVEN, HALF, Loads
from tests.llm.known_gpu import DTYPES, SHEET, SPECS, kernel_ms, random_rows, terms

GROWS = {
    "gemm": ("m", "n", "k"), "prefill_attention": ("batch", "length"), "all_reduce": ("elements",),
    "decode_attention": ("batch", "length"), "moe": ("tokens",), "mla_prefill": ("batch", "length"),
    "mla_decode": ("batch", "length", "heads"), "mla_bmm_pre": ("tokens",), "mla_bmm_post": ("tokens",),
    "delta_conv_context": ("batch", "length"), "delta_conv_generation": ("batch",),
    "delta_rule_context": ("batch", "length"), "delta_rule_generation": ("batch", "v_heads"),
}  # fmt: skip
KERNELS_OF = [
    pytest.param(name, dtype, variant, id=f"{name} {dtype} {variant}")
    for name, dtypes in DTYPES.items()
    for dtype in dtypes
    for variant in KERNEL_MODELS[name].variants(dtype)
]


@pytest.mark.parametrize(("name", "dtype", "variant"), KERNELS_OF)
@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), times=st.floats(1.05, 8.0))
def test_more_work_is_never_faster(
    name: str, dtype: str, variant: str, seed: int, times: float
) -> None:
    """But for a few per cent at another tile, and the kernel that merges parts of a cache, which more
    sequences make needless.
    """
    rows = random_rows(name, 200, seed)
    of = terms(name, dtype, variant)
    parts = of["merge"] + 5e-5 * 4 * SHEET.multiprocessors if "merge" in of else 0.0
    before = kernel_ms(name, dtype, rows, variant)
    for column in GROWS[name]:
        step = 64 if column in ("n", "k") else 1
        more = {**rows, column: np.ceil(rows[column] * times / step) * step}
        assert (kernel_ms(name, dtype, more, variant) >= 0.9 * before - parts).all(), column


@pytest.mark.parametrize(("name", "dtype", "variant"), KERNELS_OF)
def test_alone_an_operation_is_started_too(name: str, dtype: str, variant: str) -> None:
    """A start costs more than a cache saves, if tokens fall on experts evenly."""
    rows = random_rows(name, 2000, 1)
    rows |= {"skew": np.zeros(2000)} if name == "moe" else {}
    alone, served = (kernel_ms(name, dtype, rows, variant, alone) for alone in (True, False))
    assert (served > 0).all()
    assert (alone >= served).all()


# ---- Matrix products


@pytest.mark.parametrize("dtype", DTYPES["gemm"])
@given(n=st.integers(8, 512), k=st.integers(8, 512), m=st.integers(1, 16))
def test_a_product_that_is_all_weights_takes_their_bytes(
    dtype: str, n: int, k: int, m: int
) -> None:
    (ms,) = kernel_ms("gemm", dtype, {"m": m, "n": 64 * n, "k": 64 * k})
    least = 64 * n * 64 * k * WEIGHT_BYTES[dtype] / SPECS.bandwidth
    assert ms >= least
    if least > 0.02:
        assert ms < 2.0 * least


@pytest.mark.parametrize("dtype", DTYPES["gemm"])
def test_a_large_product_takes_its_flops(dtype: str) -> None:
    (ms,) = kernel_ms("gemm", dtype, {"m": 16384, "n": 16384, "k": 16384})
    of = terms("gemm", dtype)
    least = 2.0 * 16384**3 / (of["rate"] * SPECS.rates[dtype])
    quantized = 3.0 * 16384**2 / (of["bandwidth"] * of.get("quantizing", np.inf) * SPECS.bandwidth)
    assert least <= ms <= 1.3 * least + quantized  # loads, storing, a last wave, power


def test_a_data_type_that_a_gpu_lacks_is_computed_in_half_precision() -> None:
    assert SPECS.rates["nvfp4"] == SPECS.rates["bfloat16"] == 1e12  # FLOPs a ms
    assert SPECS.rates["fp8_block"] == 2e12
    assert lacks_rate(SHEET, "nvfp4")
    assert not lacks_rate(SHEET, "int4_wo")
    assert specs_of(SHEET).link == 4e8


# ---- Attention


def pairs(length: int, window: int) -> int:
    """Pairs of queries and keys, one by one."""
    return sum(min(i + 1, window or length) for i in range(length))


@pytest.mark.parametrize("variant", ["packed", "alone"])
@given(length=st.integers(1024, 6000), window=st.sampled_from([0, 1024, 3000]))
def test_prefill_takes_its_pairs_of_queries_and_keys(
    variant: str, length: int, window: int
) -> None:
    """The products of many sequences take as long as for 8192 tokens, but for tiles at the edges."""
    many = {"batch": 64, "heads": 32, "kv_heads": 8, "head_dim": 128}
    rows = {**many, "length": np.array([length, 8192]), "window": [window, 0]}
    nothing = dict.fromkeys(("append", "queries", "token", "item"), 1e-9)
    kind = "prefill_attention", "bfloat16/bfloat16"
    one, whole = kernel_ms(*kind, rows, variant, window=1.0, **nothing)
    least, most = pairs(length, window), pairs(8192, 0)
    assert 0.95 * least <= one / whole * most <= 1.05 * least + 128 * 3 * length


@pytest.mark.parametrize("name", ["prefill_attention", "decode_attention"])
@pytest.mark.parametrize("dtype", DTYPES["decode_attention"])
def test_a_window_that_holds_all_is_none(name: str, dtype: str) -> None:
    rows = random_rows(name, 500, 3)
    wide, none = ({**rows, "window": np.full(500, w)} for w in (1e6, 0.0))
    assert kernel_ms(name, dtype, wide) == pytest.approx(kernel_ms(name, dtype, none))
    narrow = kernel_ms(name, dtype, {**rows, "window": np.full(500, 64.0)})
    slower = terms("prefill_attention", dtype)["window"]
    assert (narrow <= kernel_ms(name, dtype, none) / slower).all()


@pytest.mark.parametrize("dtype", ["bfloat16/bfloat16", "bfloat16/fp8"])
def test_decoding_reads_the_cache_once(dtype: str) -> None:
    """The cache of many long sequences; with a window, no more than the window."""
    rows = {"batch": 64, "length": 16384, "heads": 32, "kv_heads": 8, "head_dim": 128}
    rows |= {"window": [0, 2048]}
    bytes_ = 64 * np.array([16384, 2048]) * 8 * 128 * 2 * (1 if dtype.endswith("fp8") else 2)
    least = bytes_ / (terms("decode_attention", dtype)["bandwidth"] * SPECS.bandwidth)
    ms = kernel_ms("decode_attention", dtype, rows)
    assert (ms >= least).all()
    assert ms == pytest.approx(least, rel=0.1)


# ---- Experts


@given(
    tokens=st.integers(1, 400), top_k=st.integers(1, 4), groups=st.sampled_from([1, 2, 4]),
    experts=st.sampled_from([8, 16, 64]), tile=st.sampled_from([8.0, 16.0, 128.0]),
)  # fmt: skip
def test_even_loads_are_those_of_dealing_tokens_round(
    tokens: int, top_k: int, groups: int, experts: int, tile: float
) -> None:
    counts = np.bincount(np.arange(tokens * top_k) % experts, minlength=experts)
    of_gpus = counts.reshape(-1, groups).T  # dealt to the GPUs in turns
    size = [np.array([float(v)]) for v in (tokens, top_k, experts, groups, 0.0)]
    loads = Loads(*size, alone=True)
    most = of_gpus[0]
    assert loads.touched == (most > 0).sum()
    assert loads.own == pytest.approx(most.sum(), abs=1.0)
    wanted = np.ceil(most / tile).sum()
    # An expert with one token more than another may need another tile.
    one_more = (np.ceil(most / tile) != np.ceil(most.mean() / tile)).sum()
    assert abs(loads.tiles(np.array([tile]))[0] - wanted) <= one_more + 1e-6


@pytest.mark.parametrize(("tokens", "experts", "top_k"), [(4, 128, 4), (32, 128, 8), (200, 32, 2)])
def test_experts_touched_in_a_served_model_are_those_of_a_simulation(
    tokens: int, experts: int, top_k: int
) -> None:
    """Each expert as popular as a gamma variate says; its tokens are a Poisson variate."""
    random = np.random.default_rng(5)
    popular = random.gamma(EVEN, 1.0 / EVEN, (4000, experts))
    counts = random.poisson(popular * tokens * top_k / experts)
    size = [np.array([float(v)]) for v in (tokens, top_k, experts, 1.0, 1.2)]
    assert Loads(*size, alone=False).touched == pytest.approx((counts > 0).sum(1).mean(), rel=0.02)


@pytest.mark.parametrize("skew", [1.01, 1.2])
@pytest.mark.parametrize(
    ("tokens", "experts", "top_k"), [(8, 128, 8), (64, 64, 4), (1024, 128, 8), (4096, 8, 2)]
)
def test_uneven_loads_are_near_a_simulation(
    skew: float, tokens: int, experts: int, top_k: int
) -> None:
    """Shares drawn with the density x ** -skew between 1 and 0.8 tokens, scaled to the assignments."""
    random = np.random.default_rng(7)
    low, high = (1.0, 0.8 * tokens) if tokens * top_k > experts else (0.01, 2.0)
    e, uniform = 1.0 - skew, random.random((2000, experts))
    drawn = (low**e + uniform * (high**e - low**e)) ** (1.0 / e)
    scaled = drawn / drawn.sum(1, keepdims=True) * tokens * top_k
    counts = np.floor(scaled + random.random(scaled.shape))
    size = [np.array([float(v)]) for v in (tokens, top_k, experts, 1.0, skew)]
    loads = Loads(*size, alone=True)
    assert loads.touched == pytest.approx((counts > 0).sum(1).mean(), rel=0.15)
    tiles, found = np.ceil(counts / 64.0).sum(1).mean(), loads.tiles(np.array([64.0]))
    assert np.maximum(found, loads.touched) == pytest.approx(tiles, rel=0.15)


@given(experts=st.sampled_from([16, 64, 256]), tokens=st.integers(1, 512))
def test_experts_take_the_bytes_of_those_touched(experts: int, tokens: int) -> None:
    rows = {
        "tokens": tokens, "hidden": 4096, "intermediate": 2048, "experts": experts, "top_k": 2,
        "tensor_parallel": 1, "expert_parallel": 1, "skew": 0,
    }  # fmt: skip
    touched = min(experts, 2 * tokens)
    (ms,) = kernel_ms("moe", "bfloat16", rows)
    assert ms >= touched * 3 * 4096 * 2048 * HALF / SPECS.bandwidth
    assert ms >= 2.0 * tokens * 2 * 3 * 4096 * 2048 / SPECS.rates["bfloat16"]


# ---- All-reduce


@given(gpus=st.sampled_from([2, 4, 8]), elements=st.integers(1, 2**28))
@pytest.mark.parametrize("variant", KERNEL_MODELS["all_reduce"].variants("bfloat16"))
def test_an_all_reduce_sends_each_part_twice(variant: str, gpus: int, elements: int) -> None:
    rows: dict[str, Any] = {"gpus": gpus, "elements": elements}
    (ms,) = kernel_ms("all_reduce", "bfloat16", rows, variant)
    least = 2.0 * (gpus - 1) / gpus * HALF * elements / SPECS.link
    assert ms >= least
    if least > 1.0:
        assert ms < 2.0 * least
