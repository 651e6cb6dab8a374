"""A served model: what a step computes by hand, and what requests see."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.llm.config import read_decoder
from lolat.llm.gpu import GPU
from lolat.llm.load import Load, Trace, read_trace
from lolat.llm.scheduler import Rule, attention_of_prompt
from lolat.llm.server import Server, of_requests
from lolat.llm.steps import (
    STARTS,
    STEP_PARTS,
    Deployment,
    Product,
    deployment_of,
    each_ms,
    operations_of,
    requests_that_fit,
    step_parts,
)
from lolat.units import GIB
from tests.llm.known_gpu import EIGHT, LLAMA, MIXED, OVERHEADS, SHEET, SMALL, section

B, F = "bfloat16", "fp8"


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


def test_experts_that_stay_in_bfloat16_are_timed_so() -> None:
    """All that a quantized model leaves out, against the model whose experts are of that type."""
    kept = replace(MIXED.with_bfloat16("experts"), dtype=F, expert_dtype=F)
    other = replace(MIXED, dtype=F, expert_dtype=B)
    gpu = GPU(section())
    one, two = (
        step_parts(gpu, Deployment(d, 1, 1, F, d.expert_dtype, B), 64, 8, 960.0).table(OVERHEADS, 8)
        for d in (kept, other)
    )
    assert list(one.tokens) == pytest.approx(list(two.tokens))
    assert operations_of(gpu, Deployment(kept, 1, 1, F, F, B)).keys() >= {("moe", B)}


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
    """Steps of up to 16 tokens, sequences of up to 960 tokens; 4 GPUs share 2 key heads."""
    p = float(parallel)
    gpu = Recorder("decode_attention", "prefill_attention", "moe", "all_reduce", "gemm")
    parts = step_parts(gpu, Deployment(MIXED, parallel, groups, B, B, B), 16, 8, 960.0)
    lengths, tokens = {max(20.0 * i, 1.0) for i in range(49)}, {float(m) for m in range(1, 17)}
    attention = (8 / p, max(2 / p, 1.0), 128.0, 0.0)
    asked = {a[0]: {b[2:] for b in gpu.asked if b[0] == a[0]} for a in gpu.asked}
    assert {row[1:] for row in asked["prefill_attention"]} == {(n, *attention) for n in lengths}
    assert {row[1:] for row in asked["decode_attention"]} == {(n, *attention) for n in lengths}
    assert {row[0] for row in asked["decode_attention"]} == {1.0, 2.0, 3.0, 4.0, 6.0, 8.0}
    split = (p / groups, float(groups))
    assert {a[:-1] for a in asked["moe"]} == {(m, 512.0, 256.0, 16.0, 4.0, *split) for m in tokens}
    reduced = {(p, m * 512) for m in tokens} if p > 1 else set()
    assert asked.get("all_reduce", set()) == reduced
    assert {a for a in asked["gemm"] if a[1] == 1000 / p} >= {(m, 1000 / p, 512.0) for m in tokens}
    # 8 sequences of 500 tokens decode; a prompt of 10 tokens, with 3 ms of attention, alone or with 4.
    steps = [(0, 0, 1, 8, 500, 0, 0, 0), (0, 0, 1, 0, 0, 10, 1, 3), (0, 0, 2, 4, 500, 10, 1, 3)]
    found = parts.of(np.array(steps, float), Rule())
    for row, times, attended in zip(found, (1, 1, 2), (3, 3, 6), strict=True):
        wanted = {
            "products": 3 * 2 + 2 + 2, "head": 1, "attention": attended, "experts": 2,
            "all_reduce": 6 * (p > 1),
        }  # fmt: skip
        each = {name: times * number for name, number in wanted.items()}
        assert dict(zip(STEP_PARTS[:-1], row, strict=False)) == each
        assert row[len(STEP_PARTS) + STARTS.index("steps")] == times


def test_the_table_of_a_scheduler_agrees_with_single_steps() -> None:
    """Sizes between those of the table, against the operations at these sizes."""
    gpu, deployment = GPU(section()), Deployment(EIGHT, 1, 1, B, B, B)
    table = step_parts(gpu, deployment, 8192, 256, 4000.0).table(OVERHEADS, 256)
    off = []
    for n, context, new in ((5, 333.0, 0), (77, 1000.0, 0), (150, 3000.0, 0), (20, 700.0, 555)):
        at = float(n + new)
        ms = sum(p.times * float(gpu.ms("gemm", B, at, p.n, p.k)) for p in deployment.products)
        ms += float(gpu.ms("gemm", B, float(n + (new > 0)), 128256.0, 4096.0))
        sizes = (32.0, 8.0, 128.0, 0.0)
        ms += 32 * float(gpu.ms("decode_attention", B, float(n), context, *sizes))
        ms += OVERHEADS.small * at * deployment.moved_bytes / gpu.specs.bandwidth
        ms += float(deployment.starts @ each_ms(OVERHEADS)[len(STEP_PARTS) :])
        found = table.step_ms(n, 0, context, new, 1) if new else table.step_ms(n, 0, context)
        off.append(found / ms - 1.0)
    assert np.abs(off).max() < 0.06  # products go up in tiles
    assert np.median(np.abs(off)) < 0.02
    whole = 32 * float(gpu.ms("prefill_attention", B, 1.0, 3000.0, *sizes))
    parts = ((0.0, 3000.0), (0.0, 1000.0), (1000.0, 2000.0))
    alone, *two = (attention_of_prompt(table.prefill, table.unit, *part) for part in parts)
    assert (alone, sum(two)) == pytest.approx((whole, whole), rel=0.02)


# ---- What requests see


def server(decoder: Any = EIGHT, gpus: int = 1, longest: float = 4000.0, **changes: Any) -> Server:
    return Server(GPU(section(**changes)), Deployment(decoder, gpus, 1, B, B, B), longest)


@settings(max_examples=30, deadline=None)
@given(
    prompt=st.integers(1, 3000), output=st.integers(2, 500), concurrency=st.integers(1, 128),
    decoder=st.sampled_from([EIGHT, SMALL, MIXED]),
)  # fmt: skip
def test_a_closed_loop_computes_each_prompt_once_and_a_step_for_each_token(
    prompt: int, output: int, concurrency: int, decoder: Any
) -> None:
    """The conservation law of a steady load, and the parts of its times against the times."""
    one, load = server(decoder), Load(prompt, output, concurrency)
    times = one.times(load, OVERHEADS)
    assert times.requests_per_s * times.e2e_ms.mean() == pytest.approx(1e3 * concurrency)
    assert times.output_tokens.mean() == pytest.approx(output)
    whole = times.ttft_ms + (output - 1) * times.tpot_ms  # all as long as asked
    assert whole == pytest.approx(times.e2e_ms)
    step, alone = times.step @ each_ms(OVERHEADS), one.prompt_parts(prompt) @ each_ms(OVERHEADS)
    assert times.mean_tpot_ms >= 0.99 * step.sum()
    assert times.ttft_ms.mean() >= OVERHEADS.front_ms + 0.98 * alone.sum()
    tpot, ttft, _ = of_requests(one, load, OVERHEADS)
    each = each_ms(OVERHEADS)
    assert tpot @ each == pytest.approx(times.mean_tpot_ms, rel=0.01)
    assert OVERHEADS.front_ms + ttft @ each == pytest.approx(times.ttft_ms.mean(), rel=0.02)


@settings(max_examples=20, deadline=None)
@given(
    prompt=st.integers(1, 3000), output=st.integers(20, 900), requests=st.integers(1, 100),
    gpus=st.sampled_from([1, 2, 4, 8]),
)  # fmt: skip
def test_more_requests_at_once_are_never_faster_each(
    prompt: int, output: int, requests: int, gpus: int
) -> None:
    one = server(gpus=gpus)
    fewer, more = (one.times(Load(prompt, output, n), OVERHEADS) for n in (requests, 2 * requests))
    assert more.mean_tpot_ms >= 0.95 * fewer.mean_tpot_ms
    assert more.e2e_ms.mean() >= 0.95 * fewer.e2e_ms.mean()


def test_requests_at_a_rate() -> None:
    """Little's law, waits that grow with the rate, and a rate that is too much."""
    one, step = server(), 1e-3
    most = one.largest_rate(Load(1000, 100), OVERHEADS)
    slow, busy, too_much = (
        one.times(Load(1000, 100, request_rate=part * most), OVERHEADS) for part in (0.05, 0.8, 1.5)
    )
    assert slow.ttft_ms.mean() < busy.ttft_ms.mean() < 0.2 * too_much.ttft_ms.mean()
    assert busy.concurrency == pytest.approx(0.8 * most * step * busy.e2e_ms.mean())
    # On an idle server: the prompt alone, between the client and the scheduler, maybe behind a step.
    alone = float(one.prompt_parts(1000.0) @ each_ms(OVERHEADS)) + OVERHEADS.front_ms
    assert np.percentile(slow.ttft_ms, 10) == pytest.approx(alone, rel=0.01)


@pytest.mark.parametrize(("gib", "framework"), [(80.0, "vllm"), (24.0, "vllm"), (24.0, "trtllm")])
def test_the_backlog_rate_is_that_of_a_server_that_too_many_requests_reach(
    gib: float, framework: str
) -> None:
    """Requests that leave a second while twice as many arrive, with a cache that fills up or does not."""
    sheet = msgspec.structs.replace(SHEET, memory_gib=gib)
    one = server(longest=1500.0, sheet=sheet, framework=framework)
    most = one.backlog_rate(Load(1000, 500), OVERHEADS)
    many = Load(1000 / 0.91, 500 / 0.91, request_rate=2.0 * most, range_ratio=0.82)
    _, found = one.simulate(many, OVERHEADS)
    end = np.sort(found.end_ms[~np.isnan(found.end_ms)])
    end = end[len(end) // 3 : -50]
    assert 1e3 * (len(end) - 1) / (end[-1] - end[0]) == pytest.approx(most, rel=0.025)


@pytest.mark.parametrize("framework", ["vllm", "trtllm"])
def test_requests_at_the_largest_rate_do_not_pile_up_and_at_a_tenth_more_do(framework: str) -> None:
    """20,000 requests, seven hours of them: those at the server when the last one comes have room.

    Only a server that preempts serves fewer of those that have piled up than it can serve.
    """
    sheet = msgspec.structs.replace(SHEET, memory_gib=120.0)
    one, load = server(longest=1500.0, sheet=sheet, framework=framework), Load(1000, 500)
    most, backlog = (of(load, OVERHEADS) for of in (one.largest_rate, one.backlog_rate))
    assert (most > 1.05 * backlog) == (framework == "vllm")
    for factor in (0.99, 1.1):
        at_rate = Load(1000, 500, request_rate=factor * most)
        requests, found = one.simulate(at_rate, OVERHEADS, 20_000)
        last = found.arrival_ms[requests.counted][-1]
        there = np.sum(found.arrival_ms <= last) - np.sum(found.end_ms < last)
        assert (there > 2 * one.most_running(load)) == (factor > 1.0)


def test_long_prompts_fill_each_step_of_a_server() -> None:
    """Each step has as many tokens as it takes; a request takes those of its prompt and its answer."""
    one = server(longest=8100.0, sheet=msgspec.structs.replace(SHEET, memory_gib=900.0))
    budget, (prompt, output) = one.rule.tokens, (8000, 100)
    each_step = budget / (prompt + output - 1)
    decode = round(each_step * (output - 1))
    table = one.parts.table(OVERHEADS, one.rule.sequences)
    step = table.step_ms(decode, 0, prompt + output / 2, budget - decode, 1)
    step += each_step * attention_of_prompt(table.prefill, table.unit, 0.0, prompt)
    assert one.rule.cache / (prompt + output) > 3 * decode  # many more could decode at once
    rate = one.largest_rate(Load(prompt, output), OVERHEADS)
    assert rate == pytest.approx(1e3 * each_step / step, rel=0.03)
    many = one.times(Load(prompt, output, concurrency=4 * decode), OVERHEADS)
    assert many.requests_per_s == pytest.approx(rate, rel=0.03)


def test_the_largest_rate_of_prompts_alone() -> None:
    """One token of output: a prompt after the other fills the steps."""
    one = server(longest=1001.0)
    rate = one.largest_rate(Load(1000, 1), OVERHEADS)
    table, steps = one.parts.table(OVERHEADS, one.rule.sequences), one.rule.tokens / 1000
    step = table.step_ms(0, 0, 0.0, one.rule.tokens, round(steps))
    step += steps * attention_of_prompt(table.prefill, table.unit, 0.0, 1000)
    assert rate == pytest.approx(1e3 * steps / step, rel=0.03)


def test_one_long_request_of_a_log_takes_no_more_memory_than_its_own() -> None:
    """199 requests of 1,500 tokens and one of 20,000, against the throughput of 200 equal ones."""
    sheet, arrivals = msgspec.structs.replace(SHEET, memory_gib=24.0), tuple(map(float, range(200)))
    rates = []
    for last in (1000, 19500):
        trace = Trace(arrivals, (1000,) * 199 + (last,), (500,) * 200)
        load = Load(*trace.mean_tokens, request_rate=1.0, arrivals=trace)
        one = Server(GPU(section(sheet=sheet)), Deployment(EIGHT, 1, 1, B, B, B), load.longest,
                     tokens=load.tokens)  # fmt: skip
        rates.append(one.backlog_rate(load, OVERHEADS))
    # Requests of a load differ a little, and some are preempted; equal ones leave in turn.
    assert rates[0] == pytest.approx(one.backlog_rate(Load(1000, 500), OVERHEADS), rel=0.07)
    assert 0.8 < rates[1] / rates[0] < 1.01


def test_arrivals(tmp_path: Path) -> None:
    """Evenly, at random, as recorded; the same each time; the mean rate is the one asked for."""
    table = tmp_path / "trace.csv"
    table.write_text(
        "arrival_s,user,input_tokens,output_tokens\n5,a,100,20\n6,b,300,10\n9,a,50,2\n"
    )
    trace = read_trace(table)
    assert (trace.rate, trace.mean_tokens, trace.unread) == (0.5, (150.0, 32 / 3), ("user",))
    recorded = Load(150.0, 11.0, request_rate=1.0, arrivals=trace).drawn(1, 0.0)
    assert recorded.arrivals is not None
    assert recorded.arrivals.tolist() == [0.0, 500.0, 2000.0]
    assert (recorded.inputs.tolist(), recorded.outputs.tolist()) == ([100, 300, 50], [20, 10, 2])
    alternating = Trace(tuple(range(4)), (9,) * 4, (1, 10, 1, 10))
    first, second = alternating.shares(2)  # the first has tokens to time
    assert (first.output_tokens, second.output_tokens) == ((10, 10), (1, 1))
    long = Trace(tuple(range(6000)), (9,) * 6000, (10,) * 6000)
    for replicas, most in ((1, 1), (2, 1), (12, 2), (60, 10), (6000, 500)):
        shares = long.shares(replicas)
        assert len(shares) == most  # together 1000 requests or more, none twice
        every = [at for one in shares for at in one.arrival_s]
        assert len(every) == len(set(every)) >= 1000
    for kind in ("even", "poisson"):
        first, second = (Load(9, 9, request_rate=4.0, arrivals=kind).drawn(1, 0.0) for _ in "12")
        assert first.arrivals is not None
        assert (first.arrivals == second.arrivals).all()
        gaps = np.diff(first.arrivals)[first.counted.start - 1 : first.counted.stop - 1]
        assert (len(gaps), gaps.mean()) == (1000, pytest.approx(250.0))
        assert gaps.std() / gaps.mean() == pytest.approx(float(kind == "poisson"), abs=0.1)


@pytest.mark.parametrize(
    ("rows", "given"),
    [
        ("", "0 requests"), ("1,10,10\n", "1 request;"),
        ("5,1,2\n4,1,2\n", "line 3: arrival_s is '4'; expected 5 or later; sort"),
        ("1,1,2\n1,1,2\n", "all requests arrive at once"), ("0,1,2\n1e9,1,2\n", "a week"),
        ("1762000000135,1,2\n1762000060135,1,2\n", "not milliseconds"),
        ("1,1,2\n2,0,2\n", "line 3: input_tokens is '0'"),
    ],
)  # fmt: skip
def test_a_trace_that_cannot_be(rows: str, given: str, tmp_path: Path) -> None:
    table = tmp_path / "trace.csv"
    table.write_text("arrival_s,input_tokens,output_tokens\n" + rows)
    with pytest.raises(InputError, match=given):
        read_trace(table)


def test_a_trace_counts_from_its_first_request_and_may_be_as_azure_publishes_it(
    tmp_path: Path,
) -> None:
    own, azure = tmp_path / "own.csv", tmp_path / "azure.csv"
    own.write_text(
        "arrival_s,input_tokens,output_tokens\n1700158546.5,374,44\n1700158551,396,109\n"
    )
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.5000000,374,44\n"
        "2023-11-16 18:15:51.0000000,396,109\n"
    )
    assert replace(read_trace(own), source="azure.csv") == read_trace(azure)
    text = own.read_text().replace("arrival_s,input", "timestamp,prompt")
    azure.write_text(text.replace("output", "completion"))
    assert replace(read_trace(own), source="azure.csv") == read_trace(azure)
    drawn = Load(385, 76, request_rate=1 / 4.5, arrivals=read_trace(azure)).drawn(1, 0.0)
    assert drawn.arrivals is not None
    assert drawn.arrivals.tolist() == pytest.approx([0.0, 4500.0])


# ---- Memory and data types


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
    assert requests_that_fit(of, made, 10) == pytest.approx(wanted, abs=1)


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
        step_parts(gpu, Deployment(SMALL, 2, 1, B, B, B), 16, 4, 100.0)
    assert caught.value.code == "not-timed"
    assert "all_reduce" in str(caught.value)
