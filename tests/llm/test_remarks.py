"""Remarks on an answer are true, by another answer or by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lolat import load
from lolat.api.model import Model
from lolat.api.serving import serving_models
from lolat.errors import AnswerIsNo
from lolat.llm.config import read_decoder
from lolat.llm.gpu import ServedFit, ServedRow
from lolat.llm.load import Trace
from lolat.units import GIB, percent
from tests.llm.known_gpu import (
    DEEPSEEK,
    LARGE,
    MIXTURE,
    OVERHEADS,
    SHEET,
    document,
    operation,
    section,
)  # fmt: skip


def of(**changes: Any) -> Model:
    return Model(document(section(**changes)))


def said(answer: Any, words: str) -> str:
    """The one remark with these words, or ""."""
    return next((remark for remark in answer.warnings if words in remark), "")


WIDE = {**MIXTURE, "hidden_size": 2048, "moe_intermediate_size": 1024, "num_experts": 64}


def slow_experts(factor: float) -> Model:
    """The known GPU, its experts in FP8 at a part of their rate and bandwidth."""
    operations = {name: dict(dtypes) for name, dtypes in section().operations.items()}
    usual = operation("moe", "fp8")
    slower = {term: usual.terms[term] * factor for term in ("rate", "bandwidth")}
    operations["moe"]["fp8"] = msgspec.structs.replace(usual, terms=usual.terms | slower)
    return of(operations=operations)


@pytest.mark.slow
@pytest.mark.parametrize("load", [{"concurrency": (8, 64)}, {"request_rate": 2.0}])
def test_a_data_type_that_is_slower_than_the_published_one_is_told(load: dict[str, Any]) -> None:
    asked = {**load, "tensor_parallel": 1}
    fp8, usual = (slow_experts(0.1).llm(WIDE, **asked, dtype=dtype) for dtype in ("fp8", ""))
    same = fp8.served.index(fp8.chosen)
    mine, its = (answer.served[same].tpot_ms for answer in (fp8, usual))
    assert its < 0.9 * mine
    remark = said(fp8, "fp8 is slower than bfloat16 here")
    figures = [float(ms) for ms in re.findall(r"([\d.]+) ms", remark)]
    assert figures == pytest.approx([its, mine], rel=0.01)
    at = slow_experts(0.1).llm(WIDE, **asked, dtype="fp8", percentile=90)
    assert said(at, "fp8 is slower") == remark.replace(" (", " (on average; ")
    assert not said(usual, "slower")
    assert not said(slow_experts(1.0).llm(WIDE, **asked, dtype="fp8"), "slower")


@pytest.mark.slow
def test_a_data_type_that_cannot_serve_the_rate_is_not_called_faster() -> None:
    """Two GPUs hold few requests in bfloat16, each fast, and the others wait more and more."""
    model, asked = load("h100-vllm"), {"request_rate": 3.0, "tensor_parallel": 2}
    fp8, usual = (model.llm("llama-3.1-70b", 1800, 350, **asked, dtype=t) for t in ("fp8", ""))
    assert usual.chosen.largest_rate / usual.chosen.replicas < 3.0 < fp8.chosen.largest_rate
    assert not said(fp8, "slower")


def test_an_overhead_that_no_served_row_has_may_be_nothing() -> None:
    """The lower end is without the launch overhead of quantizing, and the domain is left."""
    block = msgspec.structs.replace(OVERHEADS, block_ms=0.05)
    fp8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    made = of(overheads=block, dtypes=("bfloat16", "nvfp4"), spread=(0.1, 0.3))
    mine, known, usual = (
        one.llm(LARGE | own, concurrency=1, tensor_parallel=1)
        for one, own in ((made, fp8), (of(overheads=block), fp8), (made, {}))
    )
    quantized = 32 * 4 * 0.05  # qkv, output, gate and up, down of each layer
    row = mine.chosen
    assert row.tpot_interval_ms[0] == pytest.approx(
        (row.tpot_ms - quantized) * math.exp(-0.1), rel=0.01
    )
    assert row.tpot_interval_ms[1] == pytest.approx(row.tpot_ms * math.exp(0.1))
    assert [a.chosen.in_domain for a in (mine, known, usual)] == [False, True, True]
    assert said(mine, "no served dense model in fp8_block is known")
    doubt = said(mine, "fp8_block's launch overhead is assumed, so that its ")
    assert "a token may be too long: bfloat16 is predicted at " in doubt
    assert said(known, "fp8_block is slower than bfloat16 here, as its kernels were timed")
    assert not said(known, "is known")
    assert not usual.warnings
    framework = section().server.overheads.block_ms  # a fit leaves what no row tells
    left = of(overheads=msgspec.structs.replace(OVERHEADS, block_ms=framework))
    unknown = left.llm(LARGE | fp8, concurrency=1, tensor_parallel=1)
    low = (unknown.chosen.tpot_ms - 32 * 4 * framework) * math.exp(-0.2)
    assert unknown.chosen.tpot_interval_ms[0] == pytest.approx(low, rel=0.01)
    assert said(unknown, "no served dense model in fp8_block is known")


def test_a_slower_data_type_is_told_of_the_load_where_it_loses_most() -> None:
    """By the answers in both types; the best row, of 128 requests, loses less than a tenth."""
    model = load("h100-vllm")
    mine, other = (model.llm("qwen3-32b", dtype=t).served for t in ("fp8_block", "fp8"))
    ratios = {(r.concurrency, r.split): r.tpot_ms for r in other}
    worst = max(mine, key=lambda row: row.tpot_ms / ratios[row.concurrency, row.split])
    answer = model.llm("qwen3-32b", dtype="fp8_block")
    assert answer.chosen.load_words != worst.load_words
    assert f"({worst.load_words})" in said(answer, "fp8_block's launch overhead is assumed")


@pytest.mark.slow
@pytest.mark.parametrize("like", ["", "another"])
def test_prompts_that_mostly_exchange_are_told(like: str) -> None:
    """By all-reduces at a hundredth of the usual rate of the link; their share by two answers."""
    operations = dict(section().operations)
    usual = operations["all_reduce"]["bfloat16"]
    slow = {
        term: 0.01 * value if term in ("one", "two", "ring") else value
        for term, value in usual.terms.items()
    }
    made = msgspec.structs.replace(usual, terms=slow, like=like)
    asked: dict[str, Any] = {"request_rate": 2.0, "tensor_parallel": (1, 2, 4)}
    slower, fast = of(operations=operations | {"all_reduce": {"bfloat16": made}}), of()
    found, other = (one.llm(LARGE, **asked) for one in (slower, fast))
    remark = said(found, "all-reduces take most of a prompt's time")
    assert f"as they were timed on one host of {like or 'made-up'};" in remark
    shares = dict(map(reversed, re.findall(r"([\d.]+) % on (\d)", remark)))
    for row, quick in zip(found.served[1:], other.served[1:], strict=True):
        least = 1.0 - quick.prefill_ms / row.prefill_ms
        assert least < float(shares[str(row.gpus)]) / 100.0 < 1.05 * least
    assert not said(other, "all-reduces")
    with pytest.raises(AnswerIsNo) as no:
        slower.llm(LARGE, **asked, max_ttft_ms=1.0)
    assert remark in no.value.message
    assert remark in no.value.answer["warnings"]


def test_the_first_token_of_sglang_is_that_of_its_default() -> None:
    """SGLang's published servers looked for requests every 10 or 30 steps; others borrow their rows."""
    rare = msgspec.structs.replace(OVERHEADS, poll_steps=27.0)
    asked: dict[str, Any] = {"concurrency": 8, "tensor_parallel": 1}

    def first(framework: str, **changes: Any) -> Any:
        fits = {"latent": ServedFit(overheads=rare, kinds=("latent",), **changes)}
        return of(framework=framework, fits=fits).llm(DEEPSEEK, **asked)

    served, borrowed, timed = first("sglang", served=9), first("vllm"), first("vllm", served=9)
    for answer in (served, borrowed):
        fewer = timed.chosen.ttft_ms - answer.chosen.ttft_ms
        assert fewer == pytest.approx(26.0 * answer.chosen.decode_ms, rel=0.05)
    assert said(served, "--scheduler-recv-interval 1")
    assert not said(borrowed, "recv-interval")


def test_a_kind_of_model_without_served_rows_is_told_and_its_interval_is_wider() -> None:
    dense = of(kinds=("dense",), spread=(0.1, 0.3))
    large, mixture = (dense.llm(c, concurrency=8, tensor_parallel=1) for c in (LARGE, MIXTURE))
    assert said(mixture, "no served mixture of experts")
    assert [one.chosen.in_domain for one in (large, mixture)] == [True, False]
    assert not said(large, "no served")
    for answer, off in ((large, 0.1), (mixture, 0.25)):
        low, high = answer.chosen.tpot_interval_ms
        assert high / low == pytest.approx(math.exp(2 * off))
    assert not said(of(kinds=("dense", "experts")).llm(MIXTURE, concurrency=8), "no served")
    other = load("h100-vllm").llm("qwen3.5-27b", concurrency=8, tensor_parallel=2)
    assert said(other, "no served model with linear attention on this GPU and framework")
    assert other.chosen.in_domain is False


@pytest.mark.slow
def test_a_rate_on_a_file_without_a_framework_is_that_of_vllm() -> None:
    asked: dict[str, Any] = {"request_rate": 1.0, "tensor_parallel": 1}
    named, unnamed = (of(framework=name).llm(LARGE, **asked) for name in ("vllm", ""))
    assert unnamed.chosen.tpot_ms == named.chosen.tpot_ms
    assert not said(unnamed, "requests at a rate were compared")
    assert said(of(framework="trtllm").llm(LARGE, **asked), "requests at a rate were compared")


@pytest.mark.parametrize(
    ("framework", "fp8", "most"),
    [("vllm", 2000, 1024), ("vllm", None, 256), ("trtllm", 2000, 2048), ("sglang", 2000, 2048)],
)
def test_more_requests_than_a_framework_runs_at_once_are_told(
    framework: str, fp8: float | None, most: int
) -> None:
    model = of(framework=framework, sheet=msgspec.structs.replace(SHEET, fp8_tflops=fp8))
    asked = {"input_tokens": 50, "output_tokens": 50, "tensor_parallel": 1}
    many = said(model.llm(LARGE, concurrency=(1, most, most + 1), **asked), "at once on this card")
    assert many.startswith("1 row: ")
    assert f"at most {most:,} requests" in many
    assert not said(model.llm(LARGE, concurrency=most, **asked), "at once on this card")


def test_how_many_gpus_hold_weights_that_do_not_fit() -> None:
    decoder, room = read_decoder(LARGE), 0.92 * 10 - 2
    small = of(sheet=msgspec.structs.replace(SHEET, memory_gib=10))
    gib = {t: decoder.weight_bytes(t) / GIB for t in ("bfloat16", "fp8")}
    needs = {t: next(n for n in (1, 2, 4, 8) if n * room >= taken) for t, taken in gib.items()}
    n = needs["bfloat16"]
    words = f"at least {n} GPUs (--tensor-parallel {n}); {needs['fp8']} in fp8"
    answer = small.llm(LARGE, concurrency=1, tensor_parallel=1)
    assert words in answer.warnings[0]
    with pytest.raises(AnswerIsNo, match=f"does not fit on 1 GPU a replica; .*{re.escape(words)}"):
        small.llm(LARGE, concurrency=1, tensor_parallel=1, gpus=1)
    # Weights of 4 bits are a quarter of those in bfloat16: no data type fits on 16 GPUs of so little room.
    memory = (2 + gib["bfloat16"] / 4 / 17) / 0.92
    tiny = of(sheet=msgspec.structs.replace(SHEET, memory_gib=memory))
    answer = tiny.llm(LARGE, concurrency=1, tensor_parallel=1)
    assert answer.warnings[0].endswith(": more than 16 are needed")


def test_what_was_not_timed_is_named() -> None:
    operations = {name: dict(dtypes) for name, dtypes in section().operations.items()}
    for name, dtype in (("moe", "bfloat16"), ("all_reduce", "bfloat16")):
        operations[name][dtype] = msgspec.structs.replace(operation(name, dtype), like="h100-vllm")
    answer = of(operations=operations).llm(WIDE, concurrency=8, tensor_parallel=2)
    words = "as on h100-vllm: all-reduce in bfloat16, experts in bfloat16"
    assert said(answer, "not timed") == f"not timed on this GPU, but assumed {words}"


def test_a_data_type_that_changes_nothing_is_told() -> None:
    oss = {**MIXTURE, "model_type": "gpt_oss", "quantization_config": {"quant_method": "mxfp4"}}
    oss |= {"num_local_experts": 16, "mlp_only_layers": None}
    operations = {name: dict(dtypes) for name, dtypes in section().operations.items()}
    operations["moe"]["w4a16_mxfp4"] = operation("moe", "w4a16_mxfp4")
    known = of(operations=operations)
    asked, usual = (known.llm(oss, concurrency=8, tensor_parallel=1, dtype=t) for t in ("fp8", ""))
    assert asked.chosen.tpot_ms == usual.chosen.tpot_ms
    assert said(asked, "dtype fp8 changes nothing")
    assert not said(usual, "changes nothing")


def test_fp8_on_a_gpu_without_it_is_read_in_8_bits_and_computed_in_bfloat16() -> None:
    old = of(sheet=msgspec.structs.replace(SHEET, fp8_tflops=None))
    asked: dict[str, Any] = {"concurrency": 1, "tensor_parallel": 1, "input_tokens": 7000}
    for config in (LARGE, WIDE):
        fp8, half = (old.llm(config, dtype=t, **asked) for t in ("fp8", ""))
        assert fp8.chosen.dtype == "fp8_wo"
        assert said(fp8, "computes no FP8")
        assert "in bfloat16: " in said(fp8, "not timed on this GPU, but assumed as its ")
        if config is LARGE:  # its prompt is bound by products
            assert fp8.chosen.prefill_ms == pytest.approx(half.chosen.prefill_ms, rel=0.05)
        decoder = read_decoder(config)
        read = (decoder.weight_bytes("bfloat16") - decoder.weight_bytes("fp8")) / GIB
        assert half.chosen.memory_gib - fp8.chosen.memory_gib == pytest.approx(read, rel=0.02)
        assert fp8.chosen.decode_ms < (0.7 if config is LARGE else 1.0) * half.chosen.decode_ms
    assert not said(of().llm(LARGE, dtype="fp8", **asked), "computes no FP8")


def test_the_parts_beside_a_decoder_are_told() -> None:
    seen = {"model_type": LARGE["model_type"], "text_config": LARGE, "vision_config": {"depth": 4}}
    plain, multimodal = (of().llm(c, concurrency=8) for c in (LARGE, seen))
    assert said(multimodal, "vision_config: the memory and the time of these parts are not counted")
    assert not said(plain, "vision_config")
    assert multimodal.chosen.tpot_ms == plain.chosen.tpot_ms


def test_a_part_that_stays_in_bfloat16_is_told() -> None:
    partly = {"quant_method": "fp8", "modules_to_not_convert": ["self_attn"]}
    config = {**LARGE, "quantization_config": partly}
    remark = "keeps the parts that were published in bfloat16 (attention)"
    assert said(of().llm(config, concurrency=8, dtype="fp8"), remark)
    converted = of().llm(config, concurrency=8, dtype="bfloat16")
    assert said(converted, "was published in fp8: dtype bfloat16 needs converted weights")
    assert not said(of().llm(config, concurrency=8, dtype="fp8"), "converted")
    assert not said(of().llm(config, concurrency=8), remark)
    assert not said(of().llm(LARGE, concurrency=8, dtype="fp8"), remark)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "rate", "told"), [(40, 4.0, True), (4000, 4.0, False)])
def test_a_log_that_is_too_short_for_a_load_that_stays_is_told(
    number: int, rate: float, told: bool
) -> None:
    """40 requests at 4 a second last 10 s, and one takes about as long; P99 is half a request of them."""
    trace = Trace(tuple(n / rate for n in range(number)), (1000,) * number, (600,) * number)
    asked = {"request_rate": rate, "percentile": 99, "tensor_parallel": 2}
    answer = of().llm(LARGE, arrivals=trace, **asked)
    assert bool(said(answer, "expected a longer log")) == told
    assert bool(said(answer, "P99 of 40 requests")) == told


def test_a_first_token_that_own_rows_did_not_correct_is_told() -> None:
    row = ServedRow("eight", 1000, 100, 8, 10.0)
    for error, told in (
        ((0.05,), "no first token"),
        ((0.05, 0.4), "off by 40 %"),
        ((0.05, 0.1), ""),
    ):
        answer = of(own=(row,), own_error=error).llm(LARGE, concurrency=1, tensor_parallel=1)
        found = said(answer, "first token")
        assert bool(found) == bool(told)
        assert told in found


def test_cached_tokens_of_a_trace_are_of_its_own_prompts(tmp_path: Path) -> None:
    """Three prompts, one as long as what the cache holds; the usual 1,024 tokens do not count."""
    table = tmp_path / "trace.csv"
    table.write_text("arrival_s,input_tokens,output_tokens\n1,5000,20\n2,3000,20\n3,4000,20\n")
    whole = of().llm(LARGE, arrivals=str(table), tensor_parallel=1)
    assert "trace.csv: 3 requests in 2.0 s: 1.00 a second on average\n" in whole.report()
    ask = {"request_rate": (1, 2), "tensor_parallel": 1}
    twice = of().llm(LARGE, arrivals=str(table), **ask).report()
    assert "on average; here each request 2.00 times, so that bursts grow too\n" in twice
    for cached, told in ((3000, "1 prompt of the arrivals"), (2999, "")):
        answer = of().llm(LARGE, arrivals=str(table), cached_tokens=cached, tensor_parallel=1)
        assert said(answer, "cached tokens").startswith(told)
        assert bool(said(answer, "cached tokens")) == bool(told)


@pytest.mark.slow
def test_copies_of_cached_tokens_are_told_where_requests_wait_for_memory() -> None:
    """A GPU with more memory has no request that waits, nor the remark."""
    ask = {"request_rate": 5.0, "tensor_parallel": 1, "gpus": 4, "max_tpot_ms": 100.0}
    few, many = (
        of(sheet=msgspec.structs.replace(SHEET, memory_gib=gib)).llm(
            LARGE, 7000, 400, cached_tokens=cached, **ask
        )
        for gib, cached in ((30, 6000), (160, 6000))
    )
    assert few.chosen.breakdown["waiting"] > 0.0
    assert many.chosen.breakdown["waiting"] == 0.0
    words = "each request is given a copy of its 6,000 cached tokens"
    assert said(few, words)
    assert not said(many, words)
    with pytest.raises(AnswerIsNo, match=words):
        of(sheet=msgspec.structs.replace(SHEET, memory_gib=30)).llm(
            LARGE, 7000, 400, cached_tokens=6000, **ask | {"gpus": 1}
        )


def test_a_card_of_two_gpus_is_told(tmp_path: Path) -> None:
    """A card's price buys two of the GPUs that are answered for, each with half of its 128 GB."""
    table = tmp_path / "prices.csv"
    table.write_text("InstanceType,AcceleratorName,AcceleratorCount,Price\nfour,MI250,4,4.00\n")
    (card,) = serving_models("mi250").models.values()
    served = card.llm(LARGE, concurrency=8, tensor_parallel=2, prices=str(table))
    trained = card.cost(
        LARGE, 1, input_size=128, tokens=1e6, replicas=8, sharding="fsdp", prices=str(table)
    )
    for answer in (served, trained):
        assert said(answer, "a card is 2 GPUs")
    rented = trained.options[0].rented
    assert (rented.price_per_hour, rented.instances, rented.idle_devices) == (4.0, 1, 0)


def test_an_assumed_link_is_told() -> None:
    """Two GPUs exchange by it, one GPU does not."""
    unlinked = of(sheet=msgspec.structs.replace(SHEET, link_gb_s=None))
    words = "the data sheet has no link_gb_s: 32 GB/s"
    assert said(unlinked.llm(LARGE, tensor_parallel=2), words)
    assert not said(unlinked.llm(LARGE, tensor_parallel=1), words)
    assert not said(of().llm(LARGE, tensor_parallel=2), words)


@pytest.mark.slow
def test_gpus_that_the_limits_leave_nearly_idle_are_told() -> None:
    """The remark is in JSON too; four times the limit needs less than a quarter of the GPUs."""
    model, tokens = load("h100-vllm"), (400, 100)
    answer = model.llm("llama-3.1-70b", *tokens, request_rate=5.0, max_ttft_ms=40.0)
    remark, row = said(answer, "nearly idle"), answer.chosen
    assert f"are {percent(5.0 / (row.largest_rate or 0.0))} busy" in remark
    assert remark in answer.to_dict()["warnings"]
    other = model.llm("llama-3.1-70b", *tokens, request_rate=5.0, max_ttft_ms=160.0)
    assert other.chosen.gpus < row.gpus / 4
    assert not said(other, "nearly idle")
