"""`Model.llm` and `lolat llm` for requests at a rate: replicas, machines, overload and prices."""

from __future__ import annotations

import itertools
import re
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.api.model import Model
from lolat.errors import AnswerIsNo, InputError
from lolat.llm.answer import ServingConfig
from lolat.llm.decoder import DTYPES
from lolat.llm.load import Load
from lolat.llm.question import ServingQuestion
from lolat.llm.rates import least_within, rate_at, step_of
from lolat.llm.server import RequestTimes, Server
from lolat.report.llm import llm_lines, llm_parts
from lolat.report.llm_best import holds_words
from lolat.report.llm_offers import chance_words, rounded_down
from lolat.report.tables import lines_of
from lolat.units import digits, milliseconds, percent
from tests.llm.known_gpu import LARGE, document

pytestmark = pytest.mark.slow  # They simulate loads.

MODEL = Model(document())


def test_replicas_fill_the_machine_that_is_rented(tmp_path: Path) -> None:
    """One GPU keeps the limits, and all eight of the machine are paid for; a limit of GPUs holds."""
    prices = tmp_path / "prices.csv"
    prices.write_text("InstanceType,AcceleratorName,AcceleratorCount,Price\nbox,h100,8,44\n")
    known = Model(document() | {"device": "h100 (vllm)"})
    ask: dict[str, Any] = {"request_rate": 2.0, "max_tpot_ms": 25.0}
    alone = known.llm(LARGE, 1000, 200, tensor_parallel=1, **ask).chosen
    assert alone.replicas == 1
    found = known.llm(LARGE, 1000, 200, prices=str(prices), **ask)
    assert {row.gpus for row in found.served} == {8}
    assert {row.dollars_per_hour for row in found.served} == {44.0}
    assert found.chosen.tpot_ms == min(row.tpot_ms for row in found.served)
    answer = known.llm(LARGE, 1000, 200, prices=str(prices), tensor_parallel=1, gpus=3, **ask)
    few = answer.chosen
    assert (few.rented_gpus, "box, 5 idle" in llm_parts(answer).best[0]) == (8, True)
    assert few.replicas == 3
    assert few.headroom_rate == pytest.approx(3 * alone.headroom_rate, rel=0.02)


def test_without_a_limit_of_times_the_queue_is_finite_up_to_a_rate_that_is_rounded_down() -> None:
    answer = MODEL.llm(LARGE, 1000, 200, request_rate=2.0, tensor_parallel=1, gpus=1)
    most = answer.chosen.drained_rate
    assert most <= min(answer.chosen.largest_rate, answer.chosen.backlog_rate)
    assert 0.98 * most <= answer.chosen.headroom_rate <= most  # steps are of 2 % or less
    alone = replace(answer.chosen, headroom_rate=2.0)
    full = replace(answer, chosen=alone, served=(alone,)).report()
    assert "The queue stays finite at 2 requests/s, with less than 2 % to spare." in full
    low, _ = answer.chosen.largest_rate_interval
    surely = low * most / answer.chosen.largest_rate
    assert answer.chosen.sure_rate == pytest.approx(surely, rel=0.02)
    for rate, shown in ((2.04, "2.04"), (3.719, "3.71"), (28.99, "28.9"), (12345.0, "12,300")):
        told = replace(answer.chosen, headroom_rate=rate)
        found = replace(answer, chosen=told, served=(told,))
        text = "\n".join(lines_of(llm_lines(found)))
        assert f"The queue stays finite up to {shown} requests/s" in text


def test_the_fewest_replicas_that_keep_the_limits() -> None:
    """One replica less does not keep them; the rate of the headroom does, and 2 % more does not."""
    ask = {"request_rate": 20.0, "max_ttft_ms": 400.0, "max_tpot_ms": 25.0, "tensor_parallel": 1}
    for percentile in (None, 90):
        answer = MODEL.llm(LARGE, 1000, 200, percentile=percentile, **ask)
        assert answer.best is not None
        best, more = answer.served[answer.best], ask | {"gpus": 64}
        assert best.replicas > 1
        with pytest.raises(AnswerIsNo):
            MODEL.llm(LARGE, 1000, 200, percentile=percentile, **ask | {"gpus": best.gpus - 1})
        assert answer.chosen.headroom_rate is not None
        for factor, kept in ((1.0, True), (1.02, False)):
            rate = {"request_rate": answer.chosen.headroom_rate * factor}
            again = MODEL.llm(LARGE, 1000, 200, percentile=percentile, **more | rate)
            assert (again.chosen.replicas <= best.replicas) == kept
        if percentile:
            assert best.ttft_p90_ms is not None
            assert best.ttft_p90_ms <= 400.0
    assert answer.served[0].tokens_per_s == pytest.approx(20.0 * 200)


def test_gpus_of_which_no_number_keeps_the_limits_are_left_out_with_their_time() -> None:
    """One request alone is too slow on 1 GPU; where none serves the load, the error names the most able."""
    alone = MODEL.llm(LARGE, 1000, 200, concurrency=1, tensor_parallel=(1, 2)).served
    limit = (alone[0].tpot_ms + alone[1].tpot_ms) / 2
    ask = {"tensor_parallel": (1, 2), "max_tpot_ms": limit}
    answer = MODEL.llm(LARGE, 1000, 200, request_rate=3.0, **ask)
    assert {row.tensor_parallel for row in answer.served} == {2}
    (told,) = (one for one in answer.warnings if "1 GPU a replica left out" in one)
    assert f"{milliseconds(alone[0].tpot_ms)} per output token" in told
    with pytest.raises(AnswerIsNo) as caught:
        MODEL.llm(LARGE, 1000, 200, request_rate=1e5, gpus=8, **ask)
    most = max(row["backlog_rate"] for row in caught.value.answer["rows"])
    assert f"overloaded, serves {digits(most)} of 100000 requests/s" in str(caught.value)


def test_the_times_in_the_table_are_those_of_the_percentile_that_its_heads_name() -> None:
    for percentile, of, end in ((None, "", ""), (95, " P95", "_p95"), (90, " P90", "_p90")):
        answer = MODEL.llm(
            LARGE, 1000, 200, request_rate=5, tensor_parallel=1, percentile=percentile
        )
        table = llm_parts(answer).table
        cells = dict(zip((column.head for column in table.columns), table.cells[0], strict=True))
        times = {"first token": "ttft", "per token": "tpot", "whole request": "e2e"}
        (row,) = answer.rows()
        for head, name in times.items():
            assert cells[head + of] == milliseconds(row[f"{name}{end}_ms"])
            if percentile == 95:
                assert row[f"{name}_p90_ms"] < row[f"{name}_p95_ms"] < row[f"{name}_p99_ms"]
                assert row[f"{name}_p95_high_ms"] > row[f"{name}_p95_ms"]
        asked = answer.chosen.percentiles_ms or {}
        assert {f"{n}_ms": ms for n, ms in asked.items()} == {
            f"{n}{end}_ms": row[f"{n}{end}_ms"] for n in times.values() if percentile
        }
    assert row["e2e_p90_ms"] > 1.02 * row["e2e_ms"]


def test_each_rate_has_its_own_best_row() -> None:
    """As if each rate were asked alone; one that no number of GPUs holds has none."""
    ask = {"max_ttft_ms": 400.0, "max_tpot_ms": 25.0, "price_per_hour": 2.0, "gpus": 8}
    rates = (5.0, 15.0, 1e5)
    answer = MODEL.llm(LARGE, 1000, 200, request_rate=rates, **ask)
    text = "\n".join(lines_of(llm_lines(answer)))
    found = [answer.served[n] for n in answer.bests]
    assert [row.request_rate for row in found] == [5.0, 15.0]
    for row in found:
        alone = MODEL.llm(LARGE, 1000, 200, request_rate=row.request_rate, **ask).chosen
        assert (row.gpus, row.replicas) == (alone.gpus, alone.replicas)
        assert row.headroom_rate == alone.headroom_rate  # however the search came there
        kept = MODEL.llm(
            LARGE, 1000, 200, **ask | {"request_rate": alone.headroom_rate, "gpus": row.gpus}
        )
        assert (kept.chosen.gpus, kept.chosen.within) == (row.gpus, True)
        best = f"Cheapest within the limits at {row.request_rate:g} requests/s: {row.gpus_words}, "
        assert re.search(rf"{best}\$.*\nThe limits (likely )?hold up to ", text)
        assert f"${1460 * row.gpus:,} " in text  # a month of 730 hours
    assert "No row keeps the limits at 100000 requests/s." in text
    table = llm_parts(answer).table
    marked = [n for n, row in enumerate(table.cells) if row[-1] == "best"]
    assert [table.rows[n] for n in marked] == found
    loads = [row.load for row in table.rows]
    assert marked == [loads.index(row.load) for row in found]  # the first of its load


def test_rates_of_which_each_replica_has_as_much_are_simulated_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    simulated = list[tuple[str, float]]()

    def times(server: Server, load: Load, *rest: Any) -> RequestTimes:
        simulated.append((server.deployment.dtype, load.request_rate))
        return whole(server, load, *rest)

    whole = Server.times
    monkeypatch.setattr(Server, "times", times)
    monkeypatch.setattr(Server, "slowed", lambda self, load, of, _: whole(self, load, of))
    asked = {"max_tpot_ms": 20.0, "max_ttft_ms": 500.0, "tensor_parallel": 1, "dtype": "bfloat16"}
    MODEL.llm(LARGE, 2000, 500, request_rate=(2, 4, 8, 16), **asked)
    assert sorted(set(simulated)) == sorted(simulated)


def test_a_load_that_saturates_is_told() -> None:
    """Above the largest rate the tokens a second are those of requests that have piled up."""
    one = {"tensor_parallel": 1, "gpus": 1}
    most = MODEL.llm(LARGE, 1000, 200, request_rate=1.0, **one).chosen.largest_rate
    assert most is not None
    free = {"tensor_parallel": 1, "max_num_seqs": 8}
    [row] = MODEL.llm(LARGE, 1000, 200, request_rate=0.5, **free).served
    assert row.largest_rate is not None
    assert row.largest_rate < most  # fewer at once
    with pytest.raises(AnswerIsNo) as caught:
        MODEL.llm(LARGE, 1000, 200, request_rate=2.0 * most, **one)
    [told] = caught.value.answer["rows"]
    assert (told["saturated"], told["within"], told["fits"]) == (True, False, True)
    assert told["tokens_per_s"] == pytest.approx(200 * told["backlog_rate"])
    assert any("overloaded" in remark for remark in caught.value.answer["warnings"])
    assert "overloaded, serves " in str(caught.value)
    assert "first token" not in str(caught.value)  # which grows with the queue


def test_answers_of_one_token_have_no_time_between_tokens(tmp_path: Path) -> None:
    """Requests that never meet take as long a token, whatever the other answers are."""
    head, times = "arrival_s,input_tokens,output_tokens\n", []
    for short in (10, 1):
        table = tmp_path / f"{short}.csv"
        table.write_text(head + "".join(f"{n},200,{short if n % 10 else 10}\n" for n in range(200)))
        row = MODEL.llm(LARGE, arrivals=str(table), tensor_parallel=1).chosen
        times.append([row.tpot_ms, row.tpot_p50_ms, row.tpot_p99_ms, row.ttft_ms])
    assert times[1] == pytest.approx(times[0])
    assert row.requests_per_s == pytest.approx(1.0)
    assert row.tokens_per_s == pytest.approx(1.9)


def test_gpus_that_surely_keep_the_limits_are_told_with_their_price() -> None:
    """The limit lies inside the interval of one replica; by hand, two cost twice as much a month."""
    ask = {"request_rate": 6, "tensor_parallel": 1, "price_per_hour": 3.0}
    [alone] = MODEL.llm(LARGE, **ask).served
    ms, high = alone.tpot_ms, alone.tpot_interval_ms[1]
    answer = MODEL.llm(LARGE, **ask, max_tpot_ms=(ms + high) / 2.0)
    assert answer.chosen.replicas == 1
    [row] = answer.surer
    assert row.replicas == 2
    assert row.tpot_interval_ms[1] <= (ms + high) / 2.0
    told = answer.report().splitlines()
    [surely] = [line for line in told if line.startswith("Surely: ")]
    assert surely.startswith(
        "Surely: 2 x 1 GPUs, $4,380 a month, twice as much; in int4_wo, another"
    )
    assert any(line.startswith("The limits likely hold up to ") for line in told)
    assert MODEL.llm(LARGE, **ask, max_tpot_ms=1.01 * high).surer == ()
    assert MODEL.llm(LARGE, **ask, max_tpot_ms=(ms + high) / 2.0, sure=90).chosen.replicas == 2


def test_limits_that_the_times_keep_and_not_their_intervals_are_not_surely_kept() -> None:
    """Limits within the interval of the only row, above and below its time."""
    ask = {"request_rate": 6, "tensor_parallel": 1, "gpus": 1}
    [alone] = MODEL.llm(LARGE, **ask).served
    for factor, words in ((1.001, "not surely fast enough"), (0.999, "too slow")):
        with pytest.raises(AnswerIsNo) as caught:
            MODEL.llm(LARGE, **ask, max_tpot_ms=factor * alone.tpot_ms, sure=90)
        assert caught.value.data["refusal"].short.startswith(f"{words} on 1 GPU: ")


@pytest.mark.parametrize(("arrivals", "limit"), [("poisson", 100.0), ("trace", 160.0)])
def test_gpus_that_surely_keep_the_limits_are_those_of_sure(
    tmp_path: Path, arrivals: str, limit: float
) -> None:
    """A question with `sure` finds the same GPUs of several splits, and none where none are told."""
    if arrivals == "trace":
        table, at = (
            tmp_path / "trace.csv",
            np.cumsum(np.random.default_rng(1).exponential(0.1, 600)),
        )
        rows = [f"{s},{500 + 97 * n % 1500},{50 + 31 * n % 300}" for n, s in enumerate(at)]
        table.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))
        arrivals = str(table)
    ask: dict[str, Any] = {"request_rate": 20.0, "arrivals": arrivals, "price_per_hour": 3.0}
    ask |= {"max_ttft_ms": limit, "percentile": 90}
    likely, surely = MODEL.llm(LARGE, **ask), MODEL.llm(LARGE, **ask, sure=90)
    assert not likely.chosen.is_sure(likely.asked)
    [row] = likely.surer
    assert (row.split, row.replicas) == (surely.chosen.split, surely.chosen.replicas)
    for other in likely.surer_other_dtypes:
        alone = MODEL.llm(LARGE, **ask, sure=90, dtype=other.dtype).chosen
        assert (other.split, other.replicas) == (alone.split, alone.replicas)
        assert other.gpus < 0.9 * row.gpus
    words = f"; in {likely.surer_other_dtypes[0].dtype}, another checkpoint, "
    assert words in likely.report()
    most = row.gpus - 1
    few = MODEL.llm(LARGE, **ask, gpus=most)
    assert few.surer == ()
    assert f"Surely: no number of GPUs up to {most}; sure without gpus tries" in few.report()
    with pytest.raises(AnswerIsNo):
        MODEL.llm(LARGE, **ask, gpus=most, sure=90)


FAST: dict[str, Any] = {
    "request_rate": 10.0, "price_per_hour": 3.0, "max_tpot_ms": 8.0, "tensor_parallel": (1, 2),
}  # fmt: skip


@cache
def asked_alone(name: str) -> dict[str, ServingConfig]:
    """The chosen row of each data type that can serve a model; only Qwen publishes FP8 in blocks."""
    alone = {}
    for dtype in DTYPES:
        if name.startswith("qwen") or dtype != "fp8_block":
            with suppress(InputError, AnswerIsNo):  # one that this GPU lacks, limits that it misses
                alone[dtype] = MODEL.llm(name, **FAST, dtype=dtype).chosen
    return alone


@pytest.mark.parametrize(
    ("name", "dtype"), [("qwen3-8b", ""), ("qwen3-8b", "fp8"), ("llama-3.1-8b", "")]
)
def test_what_other_data_types_need_is_told_where_it_is_cheaper(name: str, dtype: str) -> None:
    """By asking with each of them; a fixed price an hour counts GPUs."""
    answer, alone = MODEL.llm(name, **FAST, dtype=dtype), asked_alone(name)
    cheaper = {n: row for n, row in alone.items() if row.gpus < 0.9 * answer.chosen.gpus}
    told = {row.dtype: row for row in answer.other_dtypes}
    assert {n: (row.split, row.replicas) for n, row in told.items()} == {
        n: (row.split, row.replicas) for n, row in cheaper.items()
    }
    assert cheaper or dtype
    months = [row.dollars_per_month for row in answer.other_dtypes]
    assert months == sorted(730.0 * 3.0 * row.gpus for row in cheaper.values())
    remarks = " ".join(answer.warnings)
    assert ("dtype fp8_block; fp8 has one" in remarks) == ((name, dtype) == ("qwen3-8b", "fp8"))


@pytest.mark.parametrize("load", [{"request_rate": 20.0}, {"concurrency": 64}])
def test_too_few_gpus_name_those_that_suffice(load: dict[str, Any]) -> None:
    """By asking without the limit of GPUs; of concurrent requests up to 64 are tried."""
    ask = {**load, "tensor_parallel": 1, "max_tpot_ms": 14.0, "price_per_hour": 2.0}
    enough = MODEL.llm(LARGE, **ask, gpus=None if "request_rate" in load else 64).chosen
    assert enough.gpus > 2
    with pytest.raises(AnswerIsNo) as caught:
        MODEL.llm(LARGE, **ask, gpus=2)
    keep = "keep" if enough.verdicts == {"tpot": "yes"} else "likely keep"
    told = f"; {enough.gpus_words} {keep} them, ${1460 * enough.gpus:,} a month"
    assert told in str(caught.value)
    assert (f" (ask with gpus {enough.gpus})" in str(caught.value)) == ("concurrency" in load)
    assert told in caught.value.data["refusal"].short


@pytest.mark.parametrize("sure", [None, 90])
def test_the_replicas_of_a_trace_with_bursts_are_the_fewest_that_keep_the_limits(
    tmp_path: Path, sure: int | None
) -> None:
    """By asking for each number of GPUs: one less is too few, however the requests are dealt out."""
    rng, table = np.random.default_rng(2), tmp_path / "trace.csv"
    at = np.cumsum(rng.exponential(1.0, 2000) * np.repeat([0.05, 0.4] * 5, 200))
    rows = [f"{s},{500 + 97 * n % 1500},{50 + 31 * n % 300}" for n, s in enumerate(at)]
    table.write_text("\n".join(["arrival_s,input_tokens,output_tokens", *rows]))
    ask: dict[str, Any] = {"arrivals": str(table), "request_rate": 60, "tensor_parallel": 1}
    ask |= {"max_ttft_ms": 400.0, "percentile": 95, "sure": sure}
    least = MODEL.llm(LARGE, **ask).chosen.replicas
    assert least > 5
    for gpus in (least - 4, least - 1):
        with pytest.raises(AnswerIsNo):
            MODEL.llm(LARGE, **ask, gpus=gpus)
    assert MODEL.llm(LARGE, **ask, gpus=least).chosen.replicas == least


def test_each_limit_has_a_verdict() -> None:
    """The ends of the intervals are 8 .. 12 ms a token and 80 .. 120 ms to the first one."""
    row = ServingConfig(
        "net", "gpu", "bfloat16", "bfloat16", 9, 9, 1, 1, 1, 1, True, 1.0, 1, ttft_ms=100.0, tpot_ms=10.0,
        ttft_interval_ms=(80.0, 120.0), tpot_interval_ms=(8.0, 12.0),
    )  # fmt: skip
    for limit, verdict in ((12, "yes"), (11, "likely"), (9, "unlikely"), (7, "no")):
        asked = ServingQuestion(max_tpot_ms=limit, max_ttft_ms=13 * limit)
        first = {12: "yes", 11: "yes", 9: "likely", 7: "unlikely"}[limit]
        assert row.judge(asked) == {"tpot": verdict, "ttft": first}
        sure = "yes" if verdict == "yes" else "no"
        assert row.judge(replace(asked, max_ttft_ms=None, sure=90)) == {"tpot": sure}
    assert row.judge(ServingQuestion()) == replace(row, saturated=True).judge(asked) == {}


def test_fewer_gpus_that_cost_as_much_are_no_near_miss(tmp_path: Path) -> None:
    """Machines have two GPUs, so that one costs as much as two; a replica of two fits in none of one."""
    prices, head = tmp_path / "prices.csv", "InstanceType,AcceleratorName,AcceleratorCount,Price\n"
    known = Model(document() | {"device": "h100 (vllm)"})
    alone = known.llm(LARGE, request_rate=6, tensor_parallel=1).chosen
    ask = {"request_rate": 6, "tensor_parallel": 1, "max_tpot_ms": 0.999 * alone.tpot_ms}
    for gpus, near in ((1, 1), (2, 0)):
        prices.write_text(f"{head}box,h100,{gpus},{3 * gpus}\n")
        answer = known.llm(LARGE, **ask, prices=str(prices))
        assert answer.chosen.dollars_per_hour == 6.0
        assert len(answer.near) == near
    prices.write_text(f"{head}box,h100,1,3\n")
    text = known.llm(LARGE, **ask | {"tensor_parallel": 2}, prices=str(prices)).report()
    assert "is in machines of at most 1 GPU, and a replica needs 2; a price" in text


def test_gpus_of_price_0_are_as_those_without_a_price() -> None:
    """Of free GPUs the fewest serve the load; more of them are not cheaper for being as cheap."""
    ask = {"concurrency": 8, "gpus": 8}
    free, unpriced = MODEL.llm(LARGE, price_per_hour=0.0, **ask), MODEL.llm(LARGE, **ask)
    assert (free.chosen.dollars_per_hour, unpriced.chosen.dollars_per_hour) == (0.0, None)
    assert free.chosen.gpus == unpriced.chosen.gpus == 1
    assert "Cheapest within the limits: 1 GPU, $0.00 a million" in free.report()


def test_an_overloaded_row_has_no_times_in_the_table() -> None:
    """They are those of a queue that grows for as long as one looks; JSON has them."""
    answer = MODEL.llm(LARGE, request_rate=(1, 1e4), tensor_parallel=1, gpus=1)
    over = answer.served[1]
    lines = llm_parts(answer).table.cells
    assert over.ttft_ms > 1e4
    assert not any(cell.endswith((" s", " ms")) for cell in lines[1])
    assert lines[1][-1] == f"overloaded, serves {digits(over.backlog_rate)} of 10000 requests/s"
    assert sum(cell.endswith((" s", " ms")) for cell in lines[0]) == 3


def test_a_rate_is_surely_served_up_to_the_lower_end_of_the_largest_one() -> None:
    """Limits of times that are far away leave the rate to decide, for a row and for `sure`."""
    one = {"tensor_parallel": 1, "gpus": 1, "max_tpot_ms": 1e4, "max_ttft_ms": 1e5}
    row = MODEL.llm(LARGE, 1000, 200, request_rate=1.0, **one).chosen
    assert (
        row.backlog_rate < row.largest_rate
    )  # the error is the same, of the rate at which a queue drains
    low, _ = (end * row.backlog_rate / row.largest_rate for end in row.largest_rate_interval)
    below, above = (MODEL.llm(LARGE, 1000, 200, request_rate=f * low, **one) for f in (0.99, 1.01))
    assert (below.chosen.is_sure(below.asked), above.chosen.is_sure(above.asked)) == (True, False)
    assert above.chosen.sure_rate == pytest.approx(low, rel=0.03)  # of the error at another rate
    assert f"surely up to {rounded_down(above.chosen.sure_rate)}." in above.report()
    words = "keeps the limits with a chance of just under 95 % (else requests pile up)."
    assert words in above.report()
    assert MODEL.llm(LARGE, 1000, 200, request_rate=0.99 * low, sure=90.0, **one).chosen.within
    with pytest.raises(AnswerIsNo, match="may be overloaded on 1 GPU") as caught:
        MODEL.llm(LARGE, 1000, 200, request_rate=1.1 * low, sure=90.0, **one)
    words = f"10 % over the {digits(low)} requests/s at which a queue surely drains"
    assert words in str(caught.value)
    narrow = MODEL.llm(LARGE, 1000, 200, request_rate=0.99 * low, sure=50.0, **one).chosen
    assert (
        low < narrow.largest_rate_interval[0] < narrow.largest_rate < row.largest_rate_interval[1]
    )


@given(low=st.integers(-500, 500), data=st.data())
def test_it_finds_what_looking_at_every_number_finds(low: int, data: st.DataObject) -> None:
    high = data.draw(st.integers(low + 1, 5000))
    right, looked = data.draw(st.integers(low + 1, high)), list[int]()

    def keeps(number: int) -> bool:
        looked.append(number)
        return number >= right

    assert least_within(low, high, keeps) == right
    assert len(looked) <= 26  # twice those of halving


def test_rates_of_two_and_a_half_digits_are_steps_of_at_most_two_percent() -> None:
    """Each is counted by hand from 0.1 to 100, and its number leads back to it."""
    digits = (*range(100, 250, 2), *range(250, 500, 5), *range(500, 1000, 10))
    rates = [float(f"{n}e{power - 2}") for power in (-1, 0, 1) for n in digits]
    assert [rate_at(n) for n in range(-175, 350)] == rates
    assert [round(step_of(rate), 6) for rate in rates] == [*range(-175, 350)]
    assert max(b / a for a, b in itertools.pairwise(rates)) <= 1.02
    assert step_of(2.51) == pytest.approx(75.2)


def test_limits_that_only_nearly_idle_gpus_keep_are_told() -> None:
    """How busy they are follows from the most that one replica serves."""
    ask: dict[str, Any] = {"request_rate": 4.0, "percentile": 99, "tensor_parallel": 1}
    alone = MODEL.llm(LARGE, 1000, 200, **ask, gpus=1).chosen
    tight = MODEL.llm(LARGE, 1000, 200, **ask, max_ttft_ms=1.8 * alone.prefill_ms)
    busy = 4.0 / (tight.chosen.replicas * alone.largest_rate)
    assert busy < 0.15
    assert f"these are {percent(busy)} busy" in tight.report()
    loose = MODEL.llm(LARGE, 1000, 200, **ask, max_ttft_ms=20 * alone.prefill_ms)
    assert loose.chosen.replicas < tight.chosen.replicas / 3
    assert "nearly idle" not in loose.report()


def test_a_row_that_nearly_surely_keeps_a_limit_is_less_sure_than_sure() -> None:
    """95 % is how sure the upper end of a 90 % interval is."""
    answer = MODEL.llm(LARGE, 1000, 200, 8, 1, max_tpot_ms=1000.0)
    row, asked = answer.chosen, answer.asked
    for over, words in ((1.001, "just under 95 %"), (100.0, "about 80 %")):
        near = replace(row, tpot_interval_ms=(row.tpot_ms, over * 1000.0))
        assert words in chance_words(near, asked)


def test_the_headroom_of_a_trace_is_that_of_its_bursts(tmp_path: Path) -> None:
    trace = tmp_path / "log.csv"
    rows = "".join(f"{n * 0.5},1000,200\n" for n in range(200))
    trace.write_text(f"arrival_s,input_tokens,output_tokens\n{rows}")
    answer = MODEL.llm(LARGE, arrivals=str(trace), tensor_parallel=1, max_tpot_ms=50.0)
    row = replace(answer.chosen, headroom_rate=answer.chosen.request_rate)
    (words,) = holds_words(row, answer.asked)
    assert "less than 2 % to spare in the bursts of these arrivals" in words
