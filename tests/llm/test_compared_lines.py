"""The lines of a comparison of served models: what little more money buys, data types, splits tried."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec
import pytest

import lolat
from lolat.errors import AnswerIsNo
from lolat.llm.answer import ServingConfig
from lolat.llm.compare import ComparedModels, compare
from lolat.llm.frameworks import FRAMEWORKS
from lolat.report.llms import compared_lines, compared_table
from lolat.report.tables import lines_of
from lolat.units import milliseconds
from tests.llm.test_compare import LARGE, Model, files

pytestmark = pytest.mark.slow  # They simulate loads.

ANSWER = Model(files()["large"]).llm(
    LARGE, request_rate=1.0, tensor_parallel=1, max_tpot_ms=200.0, price_per_hour=1.0
)


def row(dollars: float, rate: float) -> ServingConfig:
    """A row of these dollars an hour that keeps the limits up to this rate."""
    best = ANSWER.compared
    assert best is not None
    return replace(
        best,
        dollars_per_hour=dollars,
        dollars_per_million=dollars,
        headroom_rate=rate,
        sure_rate=rate,
    )


def compared(**rows: ServingConfig) -> ComparedModels:
    return ComparedModels({n: ANSWER.alone(one) for n, one in rows.items()}, {}, ANSWER.asked)


@pytest.mark.parametrize(
    ("dollars", "rate", "is_told"),
    [(103.0, 8.9, True), (100.0, 8.9, True), (130.0, 8.9, False), (103.0, 6.0, False)],
)
def test_much_more_load_for_little_more_money_is_told(
    dollars: float, rate: float, is_told: bool
) -> None:
    """5.2 requests/s for $100: 8.9 are 71 % more."""
    found = compared(a=row(100.0, 5.2), b=row(dollars, rate))
    best = found.cheapest
    if dollars == 100.0:
        assert best == "b", "of equal prices the roomier is the cheapest"
        return
    text = "\n".join(lines_of(compared_lines(found)))
    assert ("For 3.0 % more: b, " in text) is is_told
    assert ("up to 8.90 requests/s (71 % more)." in text) is is_told


@pytest.mark.parametrize(
    ("chance", "usd", "is_told"), [(0.55, 2.0, True), (0.8, 2.0, False), (0.55, 4.0, False)]
)
def test_the_device_that_probably_keeps_the_limits_is_named(
    chance: float, usd: float, is_told: bool
) -> None:
    """Of three devices the cheapest is doubtful and the third sure; a sure one costs 3 dollars."""
    token, _ = row(1.0, 2.0).tpot_interval_ms or (0.0, 0.0)
    unsure = (token, 1e3)
    doubtful = replace(row(1.0, 2.0), tpot_interval_ms=unsure, verdict="likely", chance=chance)
    probable = replace(row(usd, 2.0), tpot_interval_ms=unsure, verdict="likely", chance=0.85)
    text = "\n".join(lines_of(compared_lines(compared(a=doubtful, b=probable, c=row(3.0, 2.0)))))
    assert ("\nProbably: b, " in text) is is_told
    assert "\nSurely: c, " in text


def test_only_remarks_of_shown_rows_are_explained() -> None:
    """A device of over five times the price is left out of the table of many."""
    rows = {name: row(1.0 + n, 2.0) for n, name in enumerate("abcdef")}
    waits = replace(row(50.0, 2.0), breakdown={"waiting": 1e3})
    assert waits.waits_for_memory
    text = "\n".join(lines_of(compared_lines(compared(**rows, g=waits))))
    assert "at over 5 times the price" in text
    assert "waits for memory" not in text
    assert "waits for memory: " in "\n".join(lines_of(compared_lines(compared(a=waits))))


def test_data_types_that_differ_are_a_column() -> None:
    text = "\n".join(lines_of(compared_lines(compared(a=row(1.0, 2.0), b=row(2.0, 2.0)))))
    assert "data type" not in text
    other = replace(row(2.0, 2.0), dtype="fp8")
    text = "\n".join(lines_of(compared_lines(compared(a=row(1.0, 2.0), b=other))))
    assert "data type" in text
    assert "fp8, cache bfloat16" in text
    assert "Data types:" not in text


def test_rates_that_no_served_rate_checked_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"a": row(1.0, 2.0)}
    assert "rate unchecked" not in "\n".join(lines_of(compared_lines(compared(**rows))))
    found = ComparedModels(
        {n: replace(ANSWER.alone(one), framework="trtllm") for n, one in rows.items()},
        {},
        ANSWER.asked,
    )
    assert "cheapest, rate unchecked" in "\n".join(lines_of(compared_lines(found)))
    checked = msgspec.structs.replace(FRAMEWORKS["trtllm"], is_rate_checked=True)
    monkeypatch.setitem(FRAMEWORKS, "trtllm", checked)
    assert "rate unchecked" not in "\n".join(lines_of(compared_lines(found)))


def test_of_equal_prices_a_framework_with_checked_rates_is_the_cheapest() -> None:
    """Although the other keeps the limits up to a higher rate; the answer is above the table."""
    assert not FRAMEWORKS["trtllm"].is_rate_checked
    assert FRAMEWORKS["vllm"].is_rate_checked
    for price, best in ((1.0, "b"), (1.1, "a")):
        full = {"a": replace(ANSWER.alone(row(1.0, 5.0)), framework="trtllm"),
                "b": replace(ANSWER.alone(row(price, 2.0)), framework="vllm")}  # fmt: skip
        found = ComparedModels(full, {}, ANSWER.asked)
        assert found.cheapest == best
        lines = [*lines_of(compared_lines(found))]
        assert lines[0].startswith(f"Cheapest: {best}, ")
        assert lines.index("") > 1


def test_a_data_type_that_keeps_the_limits_on_the_asked_gpus_is_named() -> None:
    """The type is answered if asked for, and bfloat16 on as many GPUs is not."""
    model = lolat.load("b200-vllm")
    about: dict[str, Any] = {"gpus": 1, "request_rate": 6.0, "max_tpot_ms": 30.0}
    with pytest.raises(AnswerIsNo) as no:
        model.llm("llama-3.1-70b", **about)
    (dtype,) = re.findall(
        r"; with dtype[ =](\w+) \(another checkpoint\) 1 GPU (?:likely )?keeps", str(no.value)
    )
    kept = model.llm("llama-3.1-70b", dtype=dtype, **about).compared
    assert kept is not None
    month = kept.dollars_per_month or 0.0
    assert re.search(rf"1 GPU (likely )?keeps them, \${month:,.0f} a month", str(no.value))
    with pytest.raises(AnswerIsNo) as none:
        model.llm("llama-3.1-70b", **about | {"max_tpot_ms": 0.5})
    assert "another checkpoint" not in str(none.value)


def test_a_gpu_that_is_too_slow_in_any_number_names_the_splits_that_were_tried() -> None:
    """70 B parameters in FP8 are 65 GiB: an L40S has 48 GB, so that 2, 4 and 8 hold them."""
    with pytest.raises(AnswerIsNo, match="on any number of replicas of 2, 4 or 8 GPUs; with 2: "):
        lolat.load("l40s-vllm").llm(
            "llama-3.1-70b", dtype="fp8", request_rate=5, input_tokens=1800, output_tokens=350,
            max_ttft_ms=1000, min_tokens_per_s=30, percentile=90,
        )  # fmt: skip


@pytest.mark.parametrize("limit", [1.0, 40.0])
def test_a_limit_that_no_device_reaches_is_told_once_with_the_nearest_time(limit: float) -> None:
    """Two devices, each asked alone: the nearer has the shorter first token."""
    quick = Model(files()["large"])
    slow = lolat.load("l40s-vllm")
    about: dict[str, Any] = {
        "request_rate": 3.0,
        "max_ttft_ms": limit,
        "input_tokens": 4000,
        "tensor_parallel": 1,
    }
    alone = []
    for model in (quick, slow):
        with pytest.raises(AnswerIsNo) as no:
            model.llm("llama-3.1-8b", **about)
        alone.append(no.value)
    with pytest.raises(AnswerIsNo) as both:
        compare({"slow": slow.llm, "quick": quick.llm}, "llama-3.1-8b", **about)
    first = min(alone, key=lambda one: one.data["refusal"].log_excess)
    name, other = ("quick", "slow") if first is alone[0] else ("slow", "quick")
    assert str(both.value) == (
        f"no device can answer; {name} is nearest (further off: {other}): {first}"
    )
    row = min(first.answer["rows"], key=lambda row: row["ttft_ms"])
    assert f"{milliseconds(row['ttft_ms'])} to the first token, " in str(both.value)
    meant = "the limit of 1 is in milliseconds: did you mean 1000?"
    assert (meant in str(both.value)) == (row["ttft_ms"] > 30.0 * limit)
    assert ("; try higher limits" in str(both.value)) != (meant in str(both.value))


@pytest.mark.parametrize("price", [100.0, 100.004])
def test_of_equal_prices_as_printed_the_faster_row_comes_first(price: float) -> None:
    """Although rates of its framework were not checked."""
    slow = row(100.0, 5.0)
    assert slow.tpot_ms
    quick = replace(row(price, 5.0), tpot_ms=slow.tpot_ms / 2)
    full = {"slow": ANSWER.alone(slow), "quick": replace(ANSWER.alone(quick), framework="trtllm")}
    found = ComparedModels(full, {}, ANSWER.asked)
    assert found.cheapest == "quick"
    assert compared_table(found).rows == [quick, slow]


@pytest.mark.parametrize(("price", "best"), [(104.0, "sure"), (106.0, "likely")])
def test_a_device_that_surely_keeps_the_limits_is_the_best_for_little_more(
    price: float, best: str
) -> None:
    likely = replace(row(100.0, 5.0), tpot_interval_ms=(1.0, 1e3), verdict="likely", chance=0.6)
    found = compared(likely=likely, sure=row(price, 5.0))
    assert found.cheapest == best
    text = "\n".join(lines_of(compared_lines(found)))
    assert ("\nFor 3.8 % less, less surely: likely, 1 GPU, " in text) is (best == "sure")


def test_a_cheaper_data_type_has_its_times_and_is_told_without_limits_too() -> None:
    rows = {"a": row(100.0, 5.0)}
    other = replace(row(50.0, 5.0), dtype="fp8", tpot_ms=123.4, ttft_ms=1234.0)
    for limits, words in (
        ({"max_tpot_ms": None}, "123 ms a token."),
        ({"max_ttft_ms": 2e3}, "1234 ms to the first token, 123 ms a token, "),
    ):
        asked = replace(ANSWER.asked, **limits)
        full = {n: replace(ANSWER.alone(one), other_dtypes=(other,)) for n, one in rows.items()}
        text = "\n".join(lines_of(compared_lines(ComparedModels(full, {}, asked))))
        line = re.search(
            r"^Cheaper in fp8, another checkpoint: a, 1 GPU, .* a month, (.*)", text, re.M
        )
        assert line is not None
        assert line[1].startswith(words)
