"""A served model: what a step computes by hand, and what requests see against a simulation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.llm.config import read_decoder
from lolat.llm.gpu import GPU, FrameworkOverheads
from lolat.llm.serving import (
    GIB,
    PARTS,
    STARTS,
    Deployment,
    Load,
    Product,
    ServingSteps,
    deployment_of,
    each_ms,
    requests_that_fit,
    serve,
    steps_of,
)
from tests.llm.known_gpu import EIGHT, LLAMA, MIXED, OVERHEADS, SHEET, SMALL, section

B, F = "bfloat16", "fp8"
NOTHING = FrameworkOverheads(
    *[0.0] * (len(msgspec.structs.fields(FrameworkOverheads)) - 1), level=1.0
)


def overheads(**changes: float) -> FrameworkOverheads:
    return msgspec.structs.replace(NOTHING, **changes)


def loads(*columns: Any) -> Load:
    return Load(*(np.array(c, float) for c in np.broadcast_arrays(*np.atleast_1d(*columns))))


class Recorder(GPU):
    """A GPU that takes 1 ms for every operation named, and keeps what is asked for."""

    def __init__(self, *takes: str) -> None:
        super().__init__(section())
        self.takes, self.asked = takes, set[tuple[Any, ...]]()

    def ms(self, name: str, dtype: str, *sizes: Any) -> Any:
        columns = np.broadcast_arrays(*(np.asarray(size, float) for size in sizes))
        self.asked |= {
            (name, dtype, *row) for row in zip(*(c.ravel() for c in columns), strict=True)
        }
        return np.full(columns[0].shape, float(name in self.takes))


# ---- A step, by hand: 512 wide, 8 heads and 4 key heads of 64, 1024 between, a vocabulary of 1000.


def together(products: Iterable[Product]) -> Counter[tuple[str, float, float]]:
    """The number of times that each product is made."""
    found = Counter[tuple[str, float, float]]()
    for dtype, n, k, times in products:
        found[dtype, float(n), float(k)] += times
    return found


@pytest.mark.parametrize("parallel", [1, 2, 4])
def test_products_of_a_small_llama(parallel: int) -> None:
    p = parallel
    made = Deployment(SMALL, p, 1, F, F, B)
    assert together(made.products) == together(
        [Product(F, (8 + 2 * 4) * 64 / p, 512, 2), Product(F, 512, 8 * 64 / p, 2),
         Product(F, 2 * 1024 / p, 512, 2), Product(F, 512, 1024 / p, 2)]
    )  # fmt: skip
    starts = dict(zip(STARTS, made.starts, strict=True))
    # A layer: 4 products, 2 normalizations, rotation, cache, activation, putting attention together.
    assert starts == {
        "kernels": 20, "fp8": 8, "fp8_block": 0, "nvfp4": 0, "layers_of_experts": 0,
        "exchanges": 4 * (p > 1), "steps": 1, "parallel": p > 1,
    }  # fmt: skip
    matrices = 2 * (512 * (8 + 2 * 4) * 64 + 512 * 512 + 3 * 512 * 1024)
    assert made.dense_bytes == (matrices + 2 * 1000 * 512) / p
    assert made.weight_bytes == SMALL.weight_bytes(F) / p
    assert made.weight_bytes == pytest.approx((matrices + 2 * 2 * 1000 * 512) / p, rel=0.01)
    assert made.cache_bytes(100) == 100 * 2 * 2 * 4 * 64 * 2 / p
    # Normalization with its addition 4 tensors, rotation of queries and keys 4, activation 3.
    moved = 2 * 2 * (2 * 4 * 512 + 4 * (8 + 4) * 64 / p + 3 * 1024 / p)
    assert made.moved_bytes == moved


def test_products_of_a_small_mixture() -> None:
    """Three layers, the first without experts; two GPUs with half of every expert; normalized heads."""
    made = Deployment(MIXED, 2, 1, F, F, B)
    assert together(made.products) == together(
        [Product(F, (8 / 2 + 2) * 128, 512, 3), Product(F, 512, 8 * 128 / 2, 3),
         Product(F, 1024, 512, 1), Product(F, 512, 512, 1), Product(B, 16, 512, 2)]
    )  # fmt: skip
    starts = dict(zip(STARTS, made.starts, strict=True))
    assert (starts["kernels"], starts["fp8"]) == (3 * (2 + 4 + 2) + 10, 8)
    assert (starts["layers_of_experts"], starts["exchanges"]) == (2, 6)


@pytest.mark.parametrize(("parallel", "groups"), [(1, 1), (2, 1), (4, 4)])
def test_a_step_asks_for_its_operations(parallel: int, groups: int) -> None:
    """8 sequences of 1000 + 50 tokens are decoded; a prompt of 1000 comes in; 4 GPUs share 2 key heads."""
    p = float(parallel)
    gpu = Recorder("decode_attention", "prefill_attention", "moe", "all_reduce", "gemm")
    steps = steps_of(gpu, Deployment(MIXED, parallel, groups, B, B, B), loads(1000, 100, 8, 99))
    attention = (8 / p, max(2 / p, 1.0), 128.0, 0.0)
    assert {a for a in gpu.asked if "attention" in a[0]} == {
        ("decode_attention", B, 8.0, 1050.0, *attention),
        ("prefill_attention", B, 1.0, 1000.0, *attention),
    }
    tokens = (8.0, 1008.0, 1000.0)
    split = (p / groups, float(groups))
    assert {a[:-1] for a in gpu.asked if a[0] == "moe"} == {
        ("moe", B, m, 512.0, 256.0, 16.0, 4.0, *split) for m in tokens
    }
    reduced = {("all_reduce", B, p, m * 512) for m in tokens} if p > 1 else set()
    assert {a for a in gpu.asked if a[0] == "all_reduce"} == reduced
    heads = {a for a in gpu.asked if a[:2] == ("gemm", B) and a[3] == 1000 / p}
    assert {a[2] for a in heads} == {8.0, 9.0, 1.0}  # a prompt needs the head for its last token
    for row, prefill, decode in ((steps.decode, 0, 1), (steps.mixed, 1, 1), (steps.prompt, 1, 0)):
        wanted = {
            "products": 3 * 2 + 2 + 2, "head": 1, "attention": 3 * (prefill + decode), "experts": 2,
            "all_reduce": 6 * (p > 1),
        }  # fmt: skip
        assert dict(zip(PARTS[:-1], row[0], strict=False)) == wanted


def test_a_long_prompt_is_computed_in_several_steps() -> None:
    gpu = Recorder("gemm", "prefill_attention")
    steps = steps_of(gpu, Deployment(EIGHT, 1, 1, B, B, B), loads(3 * 8192, 100, 4, 99))
    assert steps.chunks == 3
    assert steps.prompt[0, PARTS.index("attention")] == 32  # one for the whole prompt and layer
    assert steps.prompt[0, PARTS.index("products")] == 3 * 32 * 4
    assert steps.prompt[0, len(PARTS) + STARTS.index("steps")] == 3
    assert steps.mixed[0, len(PARTS) + STARTS.index("steps")] == 3


def test_short_prompts_that_share_a_step() -> None:
    """Four of 100 tokens: each costs a quarter of the step, and its own attention."""
    gpu = Recorder("gemm", "prefill_attention")
    steps = steps_of(gpu, Deployment(EIGHT, 1, 1, B, B, B), loads(100, 50, 8, 99), 4.0)
    assert {a[2] for a in gpu.asked if a[:2] == ("gemm", B)} == {8.0, 408.0, 400.0, 12.0, 4.0}
    assert {a[3] for a in gpu.asked if a[0] == "prefill_attention"} == {100.0}
    assert steps.prompt[0, PARTS.index("products")] == 32 * 4 / 4
    assert steps.prompt[0, PARTS.index("attention")] == 32
    assert steps.prompt[0, len(PARTS) + STARTS.index("steps")] == 1 / 4


# ---- What requests see


def constant(step: float, prompt: float) -> ServingSteps:
    """Steps that take so many ms whatever is in them; a prompt with others `prompt` more than them."""
    table = np.zeros((3, 1, len(PARTS) + len(STARTS)))
    table[:, :, 0] = np.array([step, step + prompt, prompt])[:, None]
    return ServingSteps(*table, np.ones(1))


@given(
    prompt=st.integers(1, 20_000), output=st.integers(2, 4000), concurrency=st.integers(1, 300),
    burst=st.floats(0, 1), chunked=st.floats(0, 1), decoder=st.sampled_from([EIGHT, SMALL, MIXED]),
)  # fmt: skip
def test_what_a_request_waits_is_its_cycle(
    prompt: int, output: int, concurrency: int, burst: float, chunked: float, decoder: Any
) -> None:
    some = msgspec.structs.replace(OVERHEADS, burst_share=burst, chunked_share=chunked)
    asked = loads(prompt, output, concurrency, 1e9)
    steps = steps_of(GPU(section()), Deployment(decoder, 1, 1, B, B, B), asked)
    found = serve(some, steps, asked)
    assert (found.tpot_ms >= found.step_ms).all()
    assert found.ttft_ms > some.api_ms + found.prompt_ms * 0.99
    if found.tpot_ms > found.step_ms:  # else the step is the least
        assert found.cycle_ms == pytest.approx(found.ttft_ms + (output - 1) * found.tpot_ms)
    # By hand: every request's prompt once, and a step for each of its tokens.
    decode, alone = steps.decode @ each_ms(some), steps.prompt @ each_ms(some)
    if chunked == 0.0:
        assert found.cycle_ms - some.api_ms == pytest.approx(concurrency * alone + output * decode)


@pytest.mark.parametrize(
    ("burst", "chunked", "api_ms"), [(0, 0, 400.0), (0, 1, 400.0), (1, 0, 0.0)]
)
@pytest.mark.parametrize(
    ("requests", "output", "prompt_ms"),
    [(1, 50, 60.0), (8, 200, 30.0), (32, 300, 40.0), (64, 400, 50.0), (64, 400, 90.0)],
)
def test_requests_see_what_a_simulation_of_a_server_shows(
    burst: int, chunked: int, api_ms: float, requests: int, output: int, prompt_ms: float
) -> None:
    step_ms = 15.0
    ttft, tpot, rate = simulated(requests, output, step_ms, prompt_ms, api_ms, chunked == 1)
    asked = loads(1000, output, requests, 1e9)
    known = overheads(burst_share=burst, chunked_share=chunked, api_ms=api_ms)
    found = serve(known, constant(step_ms, prompt_ms), asked)
    assert found.tpot_ms == pytest.approx(tpot, rel=0.05)
    assert requests * output / found.cycle_ms == pytest.approx(rate, rel=0.05)
    near = 0.01 if requests == 1 else step_ms / 2  # a single request meets no step that runs
    assert found.ttft_ms - api_ms == pytest.approx(ttft, rel=0.2 * (requests > 1), abs=near)


def simulated(
    requests: int, output: int, step_ms: float, prompt_ms: float, api_ms: float, chunked: bool
) -> tuple[float, float, float]:
    """(ttft, tpot, tokens a ms) of a server with so many requests always there, event by event.

    One prompt at a time goes first: alone, or (`chunked`) with a step of all that are decoded. The
    next request is there a random time after the last one, `api_ms` at the mean, and lengths differ; with
    0 all begin together and stay so.
    """
    random = np.random.default_rng(3)
    now, done = 0.0, list[tuple[float, float, int, float]]()
    waiting, running = list[tuple[float, int]](), list[list[float]]()

    def ask() -> None:
        lengths = (output // 2, output * 3 // 2) if api_ms else (output, output + 1)
        waiting.append((now + random.exponential(api_ms), int(random.integers(*lengths))))
        waiting.sort()

    for _ in range(requests):
        ask()
    number = max(100 * requests, 3000)
    while len(done) < number:
        if not running:
            now = max(now, waiting[0][0])
        first = waiting.pop(0) if waiting and waiting[0][0] <= now else None
        decoded = running if chunked or not first else []
        now += (prompt_ms if first else 0.0) + (step_ms if chunked or not first else 0.0)
        for one in decoded:
            one[3] += 1
        if first:
            running.append([first[0], now, first[1], 1])
        for one in [one for one in running if one[3] >= one[2]]:
            running.remove(one)
            done.append((one[1] - one[0], (now - one[1]) / max(one[2] - 1, 1), int(one[2]), now))
            ask()
    later, start = done[number // 3 :], done[number // 3 - 1][3]
    ttft, tpot, tokens, ends = np.array(later).T
    rate = tokens.sum() / (ends[-1] - start)
    return float(ttft.mean()), float(tpot.mean()), float(rate)


@given(
    prompt=st.integers(1, 8000), output=st.integers(2, 2000), requests=st.integers(1, 512),
    gpus=st.sampled_from([1, 2, 4, 8]), fits=st.integers(1, 600),
)  # fmt: skip
def test_more_requests_at_once_are_never_faster_each(
    prompt: int, output: int, requests: int, gpus: int, fits: int
) -> None:
    asked = loads(prompt, output, [requests, 2 * requests], fits)
    steps = steps_of(GPU(section()), Deployment(EIGHT, gpus, 1, B, B, B), asked)
    found = serve(OVERHEADS, steps, asked)
    for fewer, more in (found.cycle_ms, found.tpot_ms):
        assert more >= 0.95 * fewer


def test_who_does_not_fit_waits_for_those_that_end() -> None:
    steps = constant(10.0, 5.0)
    found, ten = (serve(NOTHING, steps, loads(1000, 100, n, 10)) for n in (40, 10))
    assert found.cycle_ms == pytest.approx(4 * ten.cycle_ms)
    assert found.tpot_ms == ten.tpot_ms
    assert found.ttft_ms == pytest.approx(found.cycle_ms - 99 * found.tpot_ms)


# ---- Memory and data types


def test_requests_that_fit_by_hand() -> None:
    made = Deployment(EIGHT, 2, 1, F, F, B)
    free = (0.92 * 80 - 2) * GIB - EIGHT.weight_bytes(F) / 2
    a_token = 2 * 32 * 8 * 128 * 2 / 2
    assert requests_that_fit(section(), made, np.array([1.0, 3000.0])).tolist() == [
        free // a_token, free // (3000 * a_token),
    ]  # fmt: skip
    tiny = section(sheet=msgspec.structs.replace(SHEET, memory_gib=5.0))
    assert requests_that_fit(tiny, made, np.array([1.0])) == 0


@pytest.mark.parametrize(
    ("framework", "gib", "fp8", "sequences", "tokens", "caches"),
    [  # GiB for caches beside 15 of weights, by the frameworks' own rules
        ("vllm", 80, True, 1024, 8192, 0.92 * 80 - 2 - 15),
        ("vllm", 80, False, 256, 2048, 0.92 * 80 - 2 - 15),
        ("vllm", 45, True, 256, 2048, 0.92 * 45 - 2 - 15),
        ("", 141, True, 1024, 8192, 0.92 * 141 - 2 - 15),
        ("trtllm", 80, True, 2048, 8192, 0.9 * (80 - 2 - 15)),
        ("trtllm", 40, False, 2048, 8192, 0.9 * (40 - 2 - 15)),
        # mem_fraction_static leaves 512 MiB, 1.5 a token of a chunk, 2 for each of 256 in CUDA graphs.
        ("sglang", 80, True, 2048, 8192, 80 - (512 + 1.5 * 8192 + 2 * 256) / 1024 - 15),
        ("sglang", 180, True, 2048, 16384, 180 - (512 + 1.5 * 16384 + 2 * 256) / 1024 - 15),
        ("sglang", 45, True, 2048, 4096, 45 - (512 + 1.5 * 4096 + 2 * 256) / 1024 - 15),
        ("sglang", 24, True, 2048, 2048, 24 - (512 + 1.5 * 2048 + 2 * 256) / 1024 - 15),
    ],
)  # fmt: skip
def test_each_framework_has_its_own_memory_and_limits(
    framework: str, gib: float, fp8: bool, sequences: int, tokens: int, caches: float
) -> None:
    sheet = msgspec.structs.replace(SHEET, memory_gib=gib, fp8_tflops=2000 if fp8 else None)
    of = section(sheet=sheet, framework=framework)
    assert of.server.limits_on(of.sheet)[1:] == (sequences, tokens)
    made = Deployment(EIGHT, 1, 1, B, B, B)
    more = (made.weight_bytes / GIB - 15) * (0.9 if framework == "trtllm" else 1.0)
    wanted = (caches - more) * GIB / made.cache_bytes(10)
    assert requests_that_fit(of, made, np.array([10.0])) == pytest.approx(wanted, abs=1)


@pytest.mark.parametrize(
    ("asked", "changes", "wanted"),
    [
        ({}, {}, (B, B)), ({"dtype": F}, {}, (F, B)), ({"kv_dtype": F}, {}, (B, F)),
        ({"dtype": F}, {"framework": "trtllm"}, (F, F)),
        ({"dtype": F, "kv_dtype": B}, {"framework": "trtllm"}, (F, B)),
    ],
)  # fmt: skip
def test_data_types_as_asked_for_or_as_usual(
    asked: dict[str, Any], changes: dict[str, Any], wanted: tuple[str, str]
) -> None:
    made = deployment_of(section(**changes), SMALL, **asked)
    assert (made.dtype, made.kv_dtype) == wanted


def test_a_model_in_blocks_of_fp8_stays_so() -> None:
    blocks = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    decoder = read_decoder({**LLAMA, "quantization_config": blocks})
    assert deployment_of(section(), decoder).dtype == "fp8_block"
    assert deployment_of(section(), decoder, dtype="fp8").dtype == "fp8_block"
    assert deployment_of(section(), decoder, dtype=B).dtype == B


def test_an_operation_that_was_not_timed_is_named() -> None:
    known = {n: d for n, d in section().operations.items() if n != "all_reduce"}
    gpu = GPU(section(operations=known))
    with pytest.raises(InputError) as caught:
        steps_of(gpu, Deployment(SMALL, 2, 1, B, B, B), loads(10, 10, 1, 1))
    assert caught.value.code == "not-timed"
    assert "all_reduce" in str(caught.value)
