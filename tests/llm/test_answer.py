"""`Model.llm` and `lolat llm`: rows, limits, memory and prices by hand."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lolat.api.loading import load
from lolat.api.model import Model
from lolat.errors import AnswerIsNo, InputError, ModelFileError
from lolat.hardware.prices import Prices, price_list
from lolat.llm.alternatives import near_miss
from lolat.llm.answer import BREAKDOWN
from lolat.llm.config import read_decoder
from lolat.llm.decoder import DTYPES
from lolat.llm.load import Trace
from lolat.llm.question import ServingQuestion
from lolat.llm.ranking import best_of
from lolat.report.llm import llm_lines, llm_parts, row_words
from lolat.report.tables import lines_of
from lolat.units import GIB, digits, milliseconds
from lolat.web.fields import TABS
from tests.cli.commands import Command
from tests.llm.known_gpu import EIGHT, LARGE, LLAMA, MIXTURE, SHEET, document, section

KEYS = {
    "model", "device", "dtype", "concurrency", "tensor_parallel", "ttft_ms", "tpot_ms", "tpot_interval_ms",
    "prefill_ms", "decode_ms", "memory_gib", "fits", "tokens_per_s",
}  # fmt: skip
"""The keys of a row in the design's contract."""
MODEL = Model(document())


@pytest.fixture
def lolat(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Command:
    """`gpu.json` and the configuration `eight.json` in the working directory."""
    monkeypatch.chdir(tmp_path)
    Path("gpu.json").write_text(json.dumps(document()))
    Path("eight.json").write_text(json.dumps(LARGE))
    return Command(capsys)


def test_the_keys_of_the_contract(lolat: Command) -> None:
    ask = ("--concurrency", "1,8", "--tensor-parallel", "1,2")
    found = lolat.json("llm", "gpu.json", "eight.json", *ask)
    rows = [(row["concurrency"], row["tensor_parallel"]) for row in found["rows"]]
    assert rows == [(1, 1), (1, 2), (8, 1), (8, 2)]
    for row in found["rows"]:
        assert set(row) >= KEYS
        low, high = row["tpot_interval_ms"]
        assert low < row["tpot_ms"] < high
        assert (row["model"], row["device"], row["fits"]) == ("eight", "gpu.json", True)
    again = Model(document(), "gpu.json").llm(
        "eight.json", concurrency=(1, 8), tensor_parallel=(1, 2)
    )
    assert json.loads(json.dumps(again.to_dict()))["rows"] == found["rows"]


def test_a_load_that_is_given_twice_is_one_row(lolat: Command) -> None:
    for option, loads in (("--concurrency", "8,8,4"), ("--request-rate", "2,2,0.5")):
        found = lolat.json("llm", "gpu.json", "eight.json", option, loads, "--tensor-parallel", "1")
        assert len(found["rows"]) == 2


def test_requests_that_wait_for_a_free_sequence_hold_no_cache() -> None:
    """A step of vLLM has a token for each request, so that few tokens are few sequences."""
    cache = 2500 * 2 * 32 * 8 * 128 * 2
    for n, limit, held in ((10_000, "max_num_seqs", 16), (64, "max_num_batched_tokens", 8)):
        (row,) = MODEL.llm(LARGE, 2000, 500, n, 1, **{limit: held}).served
        assert row.memory_gib == pytest.approx((EIGHT.weight_bytes() + held * cache) / GIB)
        assert row.fits
    assert not MODEL.llm(LARGE, 2000, 500, 10_000, 1).served[0].fits
    asked = ServingQuestion(max_num_seqs=9, max_num_batched_tokens=8)
    for framework in ("trtllm", "sglang"):
        assert asked.limits(section(framework=framework))[1:] == (9, 8)


def test_rows_by_hand() -> None:
    answer = MODEL.llm(LARGE, 2000, 500, (1, 16), (1, 2), price_per_hour=2.0)
    for row in answer.served:
        n, p = row.concurrency, row.tensor_parallel
        cycle = row.ttft_ms + 499 * row.tpot_ms
        assert row.tokens_per_s == pytest.approx(1e3 * n * 500 / cycle, rel=0.02)
        assert row.tokens_per_s_user == pytest.approx(1e3 / row.tpot_ms)
        assert row.tokens_per_s_gpu == pytest.approx(row.tokens_per_s / p)
        assert row.dollars_per_million == pytest.approx(2.0 * p / 3600 / row.tokens_per_s * 1e6)
        cache = 2500 * 2 * 32 * 8 * 128 * 2
        assert row.memory_gib == pytest.approx((EIGHT.weight_bytes() + n * cache) / p / GIB)
        free = (0.92 * SHEET.memory_gib - 2) * GIB - EIGHT.weight_bytes() / p
        assert row.largest_concurrency == free // (cache / p)
        ends = (row.tpot_ms * math.exp(off) for off in (-0.2, 0.2))
        assert row.tpot_interval_ms == pytest.approx(tuple(ends))
        assert [*row.breakdown] == list(BREAKDOWN)
        assert sum(row.breakdown.values()) == pytest.approx(row.tpot_ms)
        assert min(row.breakdown.values()) >= -1e-9
        assert row.breakdown["all_reduce"] > 0 or p == 1
    one = answer.served[0]
    # One request: a step reads all weights but the embedding, of which it gathers one row.
    read = (EIGHT.weight_bytes() - 2 * 128256 * 4096) / (SHEET.bandwidth_gb_s * 1e6)
    assert one.breakdown["weights"] == pytest.approx(read, rel=0.01)
    assert read < one.decode_ms < 2.0 * read
    assert (answer.parameters, answer.active) == (EIGHT.parameters, EIGHT.parameters)


def test_asked_again_it_is_the_same() -> None:
    first = MODEL.llm(LARGE, concurrency=5)
    assert MODEL.llm(LARGE, concurrency=5) is first
    assert MODEL.llm(LARGE, concurrency=5, price_per_hour=1.0) is not first
    assert MODEL.llm({**LARGE, "num_hidden_layers": 16}, concurrency=5) is not first


# ---- Limits


@pytest.mark.parametrize("machines", [{1: 5.0, 2: 6.0, 4: 30.0, 8: 60.0}, {1: 3.0, 8: 20.0}, {}])
def test_the_best_has_the_cheapest_tokens_of_all_replicas(
    machines: dict[int, float], tmp_path: Path
) -> None:
    """All numbers of GPUs and replicas are asked alone and priced by hand; without prices by GPUs."""
    prices = tmp_path / "prices.csv"
    lines = (f"m{n},h100,{n},{usd}\n" for n, usd in machines.items())
    prices.write_text("InstanceType,AcceleratorName,AcceleratorCount,Price\n" + "".join(lines))
    known = Model(document() | {"device": "h100 (vllm)" if machines else "nobody's (vllm)"})
    asked: dict[str, Any] = {"prices": str(prices)} if machines else {}
    fast, slow = (known.llm(LARGE, 1000, 200, 64, p).served[0].tpot_ms for p in (8, 1))
    for limit in (1.01 * slow, (fast * slow) ** 0.5, 1.01 * fast):
        worth = {}
        pairs = ((p, r) for p in (1, 2, 4, 8) for r in (1, 2, 4, 8) if p * r <= 8)
        for parallel, replicas in pairs:
            row = known.llm(LARGE, 1000, 200, 64 // replicas, parallel).served[0]
            speed = replicas * (row.tokens_per_s or 0.0)
            holding = {n: usd for n, usd in machines.items() if n >= parallel}
            rents = [-(-replicas // (n // parallel)) * usd for n, usd in holding.items()]
            if (row.tpot_ms or 0.0) <= limit and (rents or not machines):
                worth[parallel, replicas] = min(rents, default=parallel * replicas) / speed
        found = known.llm(LARGE, 1000, 200, 64, max_tpot_ms=limit, gpus=8, **asked)
        best = found.served[found.best or 0]
        # Three replicas may be cheaper still, of which each has 22 requests.
        here = worth.get((best.tensor_parallel, best.replicas), 0.0)
        assert here == min(worth.values()) or best.replicas not in (1, 2, 4, 8)
        assert (found.chosen, best.within) == (best, True)
        assert " within the limits: " in "\n".join(lines_of(llm_lines(found)))


def test_the_best_has_the_most_requests_of_those_within_the_limits() -> None:
    requests = (2, 8, 32, 128)
    free = MODEL.llm(LARGE, 1000, 200, requests, 1)
    times = [row.tpot_ms for row in free.served]
    limit = (times[1] + times[2]) / 2
    assert times[1] < limit < times[2]
    answer = MODEL.llm(LARGE, 1000, 200, requests, 1, max_tpot_ms=limit, gpus=1)
    assert answer.best is not None
    assert answer.served[answer.best].concurrency == 8
    per_gpu = [row.tokens_per_s / row.gpus for row in answer.served if row.within]
    assert per_gpu[answer.best] == max(per_gpu)
    assert [row.within for row in answer.served] == [ms <= limit for ms in times]
    assert [row.within for row in free.served] == [None] * 4
    table = llm_parts(answer).table
    assert [row[-1] for row in table.cells][:3] == ["", "best", "beyond the limits"]
    # Without limits the row in the first line, in JSON and in the table is one.
    assert (free.best, free.chosen) == (3, free.served[3])
    table = llm_parts(free).table
    assert [row[-1] for row in table.cells] == ["", "", "", "most a GPU"]
    assert MODEL.llm(LARGE, 1000, 200, (1, 10**5), 1).chosen.concurrency == 1  # the other waits


@pytest.mark.slow
def test_replicas_of_a_log_have_the_mean_answers_of_all_of_it() -> None:
    """Each second answer is long, so that one of two replicas has these alone."""
    arrivals = tuple(float(n) for n in range(200))
    trace = Trace(arrivals, (1000,) * 200, (300, 10) * 100)
    (alone,) = MODEL.llm(LARGE, arrivals=trace, tensor_parallel=1).served
    rate = 1.6 * (alone.largest_rate or 0.0)
    asked = {"request_rate": rate, "tensor_parallel": (1, 2, 4), "price_per_hour": 2.0}
    found = MODEL.llm(LARGE, arrivals=trace, max_tpot_ms=1000.0, **asked)
    assert found.served[0].replicas == 2
    for row in found.served:
        assert row.tokens_per_s == pytest.approx(155 * rate)
        assert row.dollars_per_million == pytest.approx(2e6 * row.gpus / 3600 / (155 * rate))
    assert found.chosen.gpus == min(row.gpus for row in found.served)


def test_of_equally_cheap_rows_the_sure_one_is_the_best() -> None:
    asked = ServingQuestion(max_tpot_ms=10.0, percentile=90)
    row = MODEL.llm(LARGE, concurrency=8, tensor_parallel=1, price_per_hour=2.0).served[0]
    likely = replace(row, tpot_ms=8.0, tpot_p90_ms=8.0, intervals_ms={"tpot_p90": (7.0, 11.0)})
    sure = replace(row, tpot_ms=9.0, tpot_p90_ms=9.0, intervals_ms={"tpot_p90": (8.0, 10.0)})
    cheaper = replace(likely, dollars_per_million=0.9 * (row.dollars_per_million or 0.0))
    assert best_of([likely, sure], asked) is sure
    assert best_of([likely, sure, cheaper], asked) is cheaper
    fast = replace(sure, tpot_p90_ms=8.5, gpus=8)
    assert best_of([sure, fast], asked) is fast
    roomy = replace(sure, headroom_rate=4.0)
    assert best_of([replace(sure, gpus=8, headroom_rate=3.0), roomy], asked) is roomy
    assert best_of([replace(fast, headroom_rate=3.0), roomy], asked) is not roomy


def test_replicas_share_the_requests() -> None:
    """A small model on a small GPU that holds 10 requests: 36 of them need four."""
    memory = (read_decoder(LLAMA).weight_bytes() + 10.5 * 2 * 2 * 4 * 64 * 2 * 1000) / GIB + 2
    sheet = msgspec.structs.replace(SHEET, memory_gib=memory / 0.92)
    model = Model(document(section(sheet=sheet)))
    answer = model.llm(LLAMA, 900, 100, 36, 1, gpus=8)
    assert answer.best is not None
    best = answer.served[answer.best]
    assert (best.gpus, best.replicas, best.largest_concurrency) == (4, 4, 40)
    alone = model.llm(LLAMA, 900, 100, 9, 1).served[0]
    assert (best.tpot_ms, best.ttft_ms) == pytest.approx((alone.tpot_ms, alone.ttft_ms))
    assert best.tokens_per_s == pytest.approx(4 * alone.tokens_per_s)


@pytest.mark.parametrize(
    "asked", [{"max_tpot_ms": 0.01}, {"max_ttft_ms": 1.0}, {"tensor_parallel": 4, "gpus": 2},
              {"max_tpot_ms": 0.01, "gpus": 4}]
)  # fmt: skip
def test_no_configuration_is_an_answer(asked: dict[str, Any]) -> None:
    with pytest.raises(AnswerIsNo) as caught:
        MODEL.llm(LARGE, concurrency=8, **asked)
    assert caught.value.answer is not None
    assert caught.value.answer["best"] is None
    assert caught.value.answer["rows"]
    assert "8 concurrent requests: no configuration of up to " in str(caught.value)


def test_more_gpus_than_asked_for_are_no_miss_of_a_time() -> None:
    """Neither memory nor a time keeps 4 GPUs from being 2."""
    with pytest.raises(AnswerIsNo) as caught:
        MODEL.llm("llama-3.1-8b", concurrency=8, tensor_parallel=(4, 8), gpus=2)
    assert "no configuration of up to 2 GPUs has the split asked for (tensor_parallel" in str(
        caught.value
    )
    assert "the limit" not in str(caught.value)
    assert "on 4 GPUs" in str(caught.value)


# ---- What does not fit


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_an_answer(lolat: Command) -> None:
    """70 billion parameters in two bytes on 80 GiB: 131 GiB; 70 of each GPU are free for them."""
    ask = ("llm", "gpu.json", "llama-3.1-70b", "--concurrency", "4")
    found = lolat(*ask, "--tensor-parallel", "1", "--json")
    (row,) = json.loads(found.out)["rows"]
    assert (found.code, len(found.err.splitlines())) == (3, 1)
    assert (row["fits"], row["largest_concurrency"], row["tpot_ms"]) == (False, 0, None)
    assert found.err.endswith("; 2 GPUs do\n")
    none = lolat(*ask, "--tensor-parallel", "1")
    ways = "1 GPU in int4_wo does; 1 GPU in fp8 does; 2 GPUs do"
    assert none.code == 3
    assert none.out.startswith(f"No: llama-3.1-70b does not fit on 1 GPU; {ways}.\n")
    assert "does not fit" in lolat.done(*ask, "--tensor-parallel", "1,2").out
    usual = json.loads(lolat(*ask, "--json").out)["rows"]
    assert [row["tensor_parallel"] for row in usual] == [2, 4, 8]
    none = json.loads(lolat("llm", "gpu.json", "llama-3.1-405b", "--json").out)["rows"]
    assert {row["tensor_parallel"] for row in none} == {8}
    # 812 GB of weights, 756 GiB: more than 8 times 72, less than 16 times.
    no = lolat("llm", "gpu.json", "llama-3.1-405b", "--request-rate", "3", "--max-tpot-ms", "100")
    assert (no.code, no.err.partition(" does ")[2]) == (3, "not fit on 8 GPUs a replica\n")
    assert re.search(r"^2 x 16 GPUs .* --tensor-parallel 16$", no.out, re.M), no.out
    # 16 GB of weights fit in 70 GiB, and no cache of 128 KiB a token beside them for the longest request.
    long = {**LARGE, "max_position_embeddings": 10**7}
    answer = MODEL.llm(long, 10**6, 100, 1, 1)
    assert answer.chosen.tpot_ms is None
    assert "too little for the cache of 1,000,100 tokens: at least 2 GPUs" in answer.warnings[0]


@pytest.mark.slow
def test_preempted_requests_wait_and_prompts_are_short() -> None:
    """By the simulator's events 39 % of the time is without a cache, and 3 % in steps with prompts."""
    model, tokens = load("h100-vllm"), (500, 4000)
    few, crowded = model.llm("qwen3-32b", *tokens, (8, 32), 1).served
    shares = {name: ms / crowded.tpot_ms for name, ms in crowded.breakdown.items()}
    assert shares["waiting"] == pytest.approx(0.387, abs=0.02)
    assert shares["prompts"] < 0.05
    assert few.breakdown["waiting"] == 0
    rate = model.llm("qwen3-32b", *tokens, request_rate=0.13, gpus=1)
    assert "waits for memory" in row_words(rate.chosen)


def test_requests_that_wait_for_memory(lolat: Command) -> None:
    ask = ("llm", "gpu.json", "eight.json", "--tensor-parallel", "1", "--concurrency")
    row = MODEL.llm("eight.json", concurrency=1, tensor_parallel=1).served[0]
    fits = row.largest_concurrency
    found = lolat.done(*ask, f"{fits},{4 * fits}")
    assert (found.out.count("waits for"), found.out.count(" memory\n")) == (2, 1)
    legend = f"waits for memory: room for {fits:,} of the {4 * fits:,} requests at full length"
    assert legend in found.out
    few, many = MODEL.llm("eight.json", concurrency=(fits, 4 * fits), tensor_parallel=1).served
    assert (few.fits, many.fits) == (True, False)
    # Requests whose cache was dropped are computed again.
    assert 0.6 * few.tokens_per_s < many.tokens_per_s < 1.05 * few.tokens_per_s
    assert many.ttft_ms > 2 * few.ttft_ms


# ---- What is asked


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"output_tokens": 1}, "output-tokens"), ({"price_per_hour": math.nan}, "price-per-hour"),
        ({"concurrency": 8.0}, "concurrency"), ({"request_rate": "3"}, "request-rate"),
        ({"percentile": 100}, "percentile"), ({"draft_tokens": 3}, "draft-tokens"),
        ({"arrivals": "nowhere.csv"}, "arrivals"), ({"gpus": 5000}, "gpus"),
    ],
)  # fmt: skip
def test_questions_that_cannot_be(asked: dict[str, Any], code: str) -> None:
    """Others stand in refusals.toml."""
    with pytest.raises(InputError) as caught:
        MODEL.llm(LARGE, **asked)
    assert caught.value.code == code


def test_data_types_are_the_same_everywhere(lolat: Command) -> None:
    words = ", ".join(DTYPES)
    assert words in " ".join(lolat.text("llm", "--help").split())
    with pytest.raises(InputError, match=f"expected one of {words}$"):
        MODEL.llm(LARGE, dtype="fp9")
    with pytest.raises(InputError, match=r"computes bfloat16, fp8, fp8_block, int4_wo$"):
        MODEL.llm(LARGE, dtype="nvfp4")
    for dtype in ("bfloat16", "fp8", "fp8_block", "int4_wo"):
        assert MODEL.llm(LARGE, concurrency=1, dtype=dtype).chosen.dtype == dtype
    offered = {field.name: field for field in TABS["llm"].fields}["dtype"].choices
    assert [*offered][1:] == [*DTYPES]


@pytest.mark.parametrize(
    ("sure", "expected"), [(None, ["yes", "likely", None, None]), (90, ["yes", None, None, None])]
)
def test_a_limit_is_kept_by_the_interval_or_only_likely(sure: Any, expected: list[Any]) -> None:
    row = MODEL.llm(LARGE, concurrency=8, tensor_parallel=1).served[0]
    low, high = row.tpot_interval_ms
    limits = (high * 1.01, (row.tpot_ms + high) / 2, (low + row.tpot_ms) / 2, low * 0.99)
    told = []
    for limit in limits:
        try:
            answer = MODEL.llm(LARGE, concurrency=8, tensor_parallel=1, max_tpot_ms=limit, gpus=1,
                               sure=sure)  # fmt: skip
        except AnswerIsNo as no:
            told.append(no.answer["best"])
            continue
        table = llm_parts(answer).table
        (cells,), heads = table.cells, [column.head for column in table.columns]
        told.append(cells[heads.index(f"token <= {limit:.4g} ms")])
        assert cells[-1] == "best"
    assert told == expected


def test_certainty_widens_an_interval_as_a_normal_error_does() -> None:
    asked = {"concurrency": 8, "tensor_parallel": 1, "percentile": 90}
    answers = (MODEL.llm(LARGE, **asked, max_tpot_ms=1e6, sure=sure) for sure in (True, 95, 50))
    rows = [answer.served[0] for answer in answers]
    for row in rows:
        assert all(ends is not None for _, ends in row.token_times(90))
    logs = [[math.log(high / low) for _, (low, high) in row.token_times(90)] for row in rows]
    for at, quantile in ((1, 1.959964), (2, 0.674490)):  # 1.644854 of 90 %
        assert logs[at] == pytest.approx([one * quantile / 1.644854 for one in logs[0]], rel=1e-5)


@pytest.mark.slow
def test_tokens_a_second_are_the_inverse_of_the_time_per_token() -> None:
    fast, same = (
        MODEL.llm(LARGE, request_rate=2, **limit)
        for limit in ({"max_tpot_ms": 40.0}, {"min_tokens_per_s": 25})
    )
    assert fast.to_dict() | {"min_tokens_per_s": 25} == same.to_dict()
    heads = [[column.head for column in llm_parts(answer).table.columns] for answer in (fast, same)]
    assert [n for n in heads[1] if n not in heads[0]] == ["tokens/s >= 25"]
    with pytest.raises(AnswerIsNo, match="keeps 9000 tokens/s a request; nearest"):
        MODEL.llm(LARGE, request_rate=2, min_tokens_per_s=9000)
    assert fast.chosen.headroom == pytest.approx(fast.chosen.headroom_rate / 2 - 1)


def test_expert_parallel_leaves_out_what_it_does_not_divide() -> None:
    found = MODEL.llm(MIXTURE, concurrency=4, expert_parallel=4)
    assert [row.split for row in found.served] == [(1, 4, 8), (4, 4, 1), (8, 4, 1)]
    of_rows = (found.rows(), found.to_dict()["rows"])
    assert [row["expert_parallel"] for rows in of_rows for row in rows] == [4] * 6
    several = MODEL.llm(MIXTURE, concurrency=4, expert_parallel=[4, 1])
    splits = {(1, 1), (2, 1), (4, 1), (4, 4), (8, 1), (8, 4)}
    assert {row.split[:2] for row in several.served if row.attention_data_parallel == 1} == splits
    assert [row for row in several.served if row.expert_parallel == 4] == [*found.served]
    assert "expert" in "\n".join(lines_of(llm_lines(several)))
    with pytest.raises(InputError, match="4: expected a divisor of 2 GPUs"):  # no row would have it
        MODEL.llm(MIXTURE, tensor_parallel=2, expert_parallel=[1, 4])
    blocks: dict[str, Any] = {"dtype": "fp8_block", "tensor_parallel": 8, "concurrency": 8}
    with pytest.raises(InputError, match="of 1, 2, 4; with expert_parallel 8 each GPU has whole"):
        load("h100-vllm").llm("qwen3-235b-a22b", **blocks)
    assert load("h100-vllm").llm("qwen3-235b-a22b", expert_parallel=8, **blocks).chosen.gpus == 8


def test_numbers_of_attention_groups_are_compared() -> None:
    """Each number has the rows that it has alone; 8 GPUs are 8, 2 x 4 and so on by tensor parallel."""
    several = MODEL.llm(MIXTURE, concurrency=64, attention_data_parallel=[1, 4])
    assert {row.attention_data_parallel for row in several.served} == {1, 4}
    for groups in (1, 4):
        alone = MODEL.llm(MIXTURE, concurrency=64, attention_data_parallel=groups).served
        rows = [row for row in several.served if row.attention_data_parallel == groups]
        assert rows == [*alone]
        assert {row.gpus for row in rows if groups == 4} <= {4, 8}
    assert "attention groups" in [column.head for column in llm_parts(several).table.columns]
    # Eight GPUs would each keep the cache of one of four heads: they are tried as groups too.
    splits = {row.split for row in MODEL.llm(MIXTURE, concurrency=64).served}
    assert splits == {(1, 1, 1), (2, 1, 1), (4, 1, 1), (8, 1, 1), (1, 1, 8)}
    dense = MODEL.llm(LARGE, concurrency=64).served
    assert {row.attention_data_parallel for row in dense} == {1}


def test_cheaper_rows_on_as_many_gpus_nearly_keep_the_limits_too() -> None:
    """Of rows on two GPUs, that for $6 an hour misses the limit by 0.03 %; the best costs $8."""
    asked = ServingQuestion(request_rate=6, max_tpot_ms=10.0)
    [row] = MODEL.llm(LARGE, request_rate=6, tensor_parallel=1, gpus=1).served
    ends = {
        "tpot_ms": 10.003,
        "tpot_interval_ms": (9.0, 11.0),
        "tensor_parallel": 1,
        "within": False,
    }
    two = replace(row, gpus=2, replicas=2, dollars_per_hour=6.0, **ends)
    best = replace(row, gpus=2, dollars_per_hour=8.0, tpot_ms=9.0, tensor_parallel=2, within=True)
    of: Any = SimpleNamespace(asked=asked, load_of=lambda one: one, row=lambda load, n: load)
    sizings = {one.split: of for one in (two, best)}
    assert near_miss(sizings, [two, best], best) is two
    assert near_miss(sizings, [replace(two, dollars_per_hour=8.0), best], best) is None
    assert near_miss(sizings, [two, best], replace(best, dollars_per_hour=None)) is None
    assert two.over_words(asked) == "just over the 10.0 ms a token"
    asked = ServingQuestion(request_rate=6, min_tokens_per_s=100.0)
    assert two.over_words(asked) == "100 tokens/s a request, just under the 100"


@pytest.mark.slow
def test_fewer_gpus_that_nearly_keep_the_limits_are_told() -> None:
    """The limit is a thousandth below the time that one replica takes; two keep it."""
    alone = MODEL.llm(LARGE, request_rate=6, tensor_parallel=1).chosen
    assert alone.replicas == 1
    limit = {"max_tpot_ms": 0.999 * (alone.tpot_ms or 0.0), "tensor_parallel": 1, "request_rate": 6}
    near = MODEL.llm(LARGE, price_per_hour=3.0, **limit)
    assert near.chosen.replicas == 2
    most = milliseconds(limit["max_tpot_ms"])
    told = f"Nearly: 1 GPU, $2,190 a month: 0.1 % over the {most} a token, less than"
    assert any(said.startswith(told) for said in lines_of(llm_lines(near)))
    [row] = near.near
    assert row.tpot_ms == pytest.approx(alone.tpot_ms)
    assert MODEL.llm(LARGE, sure=90, **limit).near == ()
    with pytest.raises(AnswerIsNo, match=r"0\.1 % over the .* a token, less than the error"):
        MODEL.llm(LARGE, gpus=1, **limit)
    free = MODEL.llm(LARGE, price_per_hour=0.0, **limit)
    assert free.near != ()
    assert free.chosen.replicas == 2
    least = 1e3 / limit.pop("max_tpot_ms")
    limit["min_tokens_per_s"] = least
    with pytest.raises(AnswerIsNo) as caught:
        MODEL.llm(LARGE, gpus=1, **limit)
    mine = f"{digits(1e3 / alone.tpot_ms)} tokens/s a request, 0.1 % under the {least:g}, less than"
    assert mine in str(caught.value)
    far = MODEL.llm(LARGE, **limit | {"request_rate": 16})  # 6 a second on each of three
    assert far.chosen.replicas == 3


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [(YARN, 131072), ({**YARN, "rope_type": "llama3"}, 40960), (None, 40960),
     ({"type": "linear", "factor": 2.0}, 81920), ({**YARN, "factor": 1.0}, 40960)],
)  # fmt: skip
def test_positions_that_are_scaled_make_the_context_longer(scaling: Any, longest: int) -> None:
    """Qwen3's card says that YaRN with a factor of 4 takes 131,072 tokens."""
    config = {**LARGE, "max_position_embeddings": 40960, "rope_scaling": scaling}
    assert MODEL.llm(config, longest - 100, 100, 1, 1).served
    with pytest.raises(InputError, match=f"holds {longest:,} tokens"):
        MODEL.llm(config, longest - 99, 100, 1, 1)


@pytest.mark.parametrize("change", [{"variant": "none"}, {"terms": {"rate": 1.0}}])
def test_a_damaged_operation_is_named(change: dict[str, Any]) -> None:
    damaged = document()
    damaged["llm"]["operations"]["gemm"]["bfloat16"] |= change
    with pytest.raises(ModelFileError, match="gemm of bfloat16 is damaged"):
        Model(damaged, "gpu.json").llm(LARGE)


def test_a_card_with_more_memory_is_rented_where_it_is_cheaper_and_told() -> None:
    """An A100 of 40 GB: that of 80 GB is cheaper alone, and without RunPod's by the eight dearer."""
    sheet = msgspec.structs.replace(SHEET, memory_gib=40.0)
    known = document(section(sheet=sheet)) | {"device": "a100-sxm (vllm)"}
    listed = price_list()
    offers = (o for o in listed.offers if o.instance_type != "8x_A100-80GB-SXM_SECURE")
    prices = Prices(listed.prices, tuple(offers))
    rows = Model(known).llm(LARGE, 100, 100, 1, (1, 8), prices=prices).served
    assert [row.rented for row in rows] == [
        "1x_A100-80GB-SXM_SECURE (80 GiB a GPU, runpod, US)",
        "lambdalabs_A100x8 (shadeform, sanjose-usa-2)",
    ]  # fmt: skip


def test_the_command_takes_a_price_list(lolat: Command) -> None:
    Path("prices.csv").write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Price\nmine,h100,1,36\n"
    )
    Path("h100.json").write_text(json.dumps(document() | {"device": "h100 (vllm)"}))
    ask = ("eight.json", "--concurrency", "8", "--tensor-parallel", "1", "--prices", "prices.csv")
    [row] = lolat.json("llm", "h100.json", *ask)["rows"]
    assert row["dollars_per_million"] == pytest.approx(1e4 / row["tokens_per_s"])  # a cent a second
    assert row["rented"] == "mine"
    Path("h200.json").write_text(json.dumps(document() | {"device": "h200 (vllm)"}))
    assert "no price of h200 in prices.csv" in lolat("llm", "h200.json", *ask).err


def test_a_group_of_gpus_is_rented_in_one_machine(tmp_path: Path) -> None:
    """A pair costs 5 an hour, four cost 12: 16 GPUs that share a model have no price without machines of
    a whole node; two groups of four are in two machines.
    """
    prices = tmp_path / "prices.csv"
    prices.write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Price\npair,h100,2,5\nfour,h100,4,12\n"
    )
    known = Model(document() | {"device": "h100 (vllm)"})
    free = known.llm(LARGE, 100, 100, 8, (1, 2, 4, 16), prices=str(prices)).served
    assert [(row.dollars_per_hour, row.rented) for row in free] == [
        (5.0, "pair, 1 idle"), (5.0, "pair"), (12.0, "four"), (None, None)
    ]  # fmt: skip
    assert [row.dollars_per_million is None for row in free] == [False, False, False, True]
    for row in free[:3]:
        tokens_an_hour = 3600 * (row.tokens_per_s or 0.0)
        assert row.dollars_per_million == pytest.approx(row.dollars_per_hour / tokens_an_hour * 1e6)
    for machine, usd, name in (
        ("eight,h100,8,30", 60.0, "2 x eight"),
        ("most,h100,16,50", 50.0, "most"),
    ):
        with prices.open("a") as rows:  # a node has eight
            rows.write(f"{machine}\n")
        (row,) = known.llm(LARGE, 100, 100, 8, 16, prices=str(prices)).served
        assert (row.dollars_per_hour, row.rented, row.rented_gpus) == (usd, name, 16)
    limit = free[2].tpot_ms * 0.985  # two groups of four keep it, with half the requests each
    found = known.llm(LARGE, 100, 100, 8, 4, prices=str(prices), max_tpot_ms=limit, gpus=8)
    assert (found.chosen.replicas, found.chosen.gpus_words) == (2, "2 x 4 GPUs")
    assert (found.chosen.dollars_per_hour, found.chosen.rented) == (24.0, "2 x four")
    text = "\n".join(lines_of(llm_lines(found)))
    assert " on 2 x four" in text
    assert "$24.00" in text


def test_the_chance_that_a_limit_is_kept_is_that_of_a_normal_error() -> None:
    """The end of a 90 % interval is kept with 95 %, the time itself with 50 %, that of 50 % with 75 %."""
    row = MODEL.llm(LARGE, concurrency=8, tensor_parallel=1).served[0]
    ms, (_, high) = row.tpot_ms, row.tpot_interval_ms
    half = ms * math.exp(0.674490 / 1.644854 * math.log(high / ms))
    for limit, chance in ((high, 0.95), (ms, 0.5), (half, 0.75)):
        assert row.least_sure(ServingQuestion(max_tpot_ms=limit)) == (chance, False)
    both = ServingQuestion(max_tpot_ms=high, max_ttft_ms=row.ttft_ms)
    assert row.least_sure(both) == (0.5, False)
    half_full = {"request_rate": 2.0, "largest_rate": 3.0, "largest_rate_interval": (2.0, 4.5)}
    assert replace(row, **half_full).least_sure(ServingQuestion(max_tpot_ms=9 * high)) == (
        0.95,
        True,
    )
