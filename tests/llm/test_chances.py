"""How likely served rows keep their limits: the chance, the sure choice, and a surer data type."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import lolat
from lolat.api.model import Model
from lolat.llm.answer import ServingAnswer
from lolat.report.llm import row_words
from tests.llm.known_gpu import LARGE, document

pytestmark = pytest.mark.slow  # They simulate loads.

KNOWN = Model(document() | {"device": "h100 (vllm)"})


@pytest.fixture(scope="module")
def likely(tmp_path_factory: pytest.TempPathFactory) -> ServingAnswer:
    """One GPU, half busy, with a limit that it keeps by its times alone."""
    prices = tmp_path_factory.mktemp("prices") / "prices.csv"
    prices.write_text("InstanceType,AcceleratorName,AcceleratorCount,Price\nbox,h100,1,5.5\n")
    return asked(str(prices))


def asked(prices: str, rate: float = 9.5, **more: Any) -> ServingAnswer:
    return KNOWN.llm(
        LARGE,
        1000,
        200,
        request_rate=rate,
        tensor_parallel=1,
        max_tpot_ms=21.8,
        prices=prices,
        **more,
    )


def test_the_first_line_has_the_chance_and_the_second_the_sure_choice(
    likely: ServingAnswer,
) -> None:
    """The chance is that of a normal error of the logarithm, by hand."""
    row = likely.chosen
    assert (row.verdict, likely.asked.coverage) == ("likely", 0.9)
    _, high = row.tpot_interval_ms or (0.0, 0.0)
    off = math.log(21.8 / (row.tpot_ms or 0.0)) / (math.log(high / (row.tpot_ms or 0.0)) / 1.644854)
    of_time = 0.5 * (1.0 + math.erf(off / math.sqrt(2.0)))
    assert row.chance == pytest.approx(of_time, abs=0.025)
    lines = likely.report().splitlines()
    place = next(
        n for n, line in enumerate(lines) if line.startswith("Cheapest within the limits: ")
    )
    percent = round(100 * (row.chance or 0.0))
    assert lines[place].endswith(f"; keeps the limits with a chance of about {percent} %.")
    assert lines[place + 1].startswith("Surely: 2 x 1 GPUs, ")
    assert f"limits: likely ({percent} %)" in repr(row)
    assert row.rows()[0]["chance"] == row.to_dict()["chance"] == row.chance


def test_the_sure_choice_says_up_to_which_rate_it_keeps_the_limits(likely: ServingAnswer) -> None:
    [sure] = likely.surer
    most = sure.headroom_rate or 0.0
    for rate, is_kept in ((most, True), (1.03 * most, False)):
        served = KNOWN.llm(
            LARGE, 1000, 200, request_rate=rate, tensor_parallel=1, gpus=sure.gpus
        ).chosen
        assert (not served.saturated and (served.tpot_ms or math.inf) <= 21.8) == is_kept


def test_a_surer_data_type_at_the_same_price_is_named(
    likely: ServingAnswer, tmp_path: Path
) -> None:
    """Each data type asked alone: the price and the chance."""
    (tmp_path / "prices.csv").write_text(
        "InstanceType,AcceleratorName,AcceleratorCount,Price\nbox,h100,1,5.5\n"
    )
    best = likely.chosen
    for row in likely.surer_at_price:
        alone = asked(str(tmp_path / "prices.csv"), dtype=row.dtype).chosen
        assert (alone.dollars_per_hour, alone.chance) == (row.dollars_per_hour, row.chance)
        assert alone.headroom_rate == row.headroom_rate
        assert 0.9 * (best.dollars_per_hour or 0.0) <= (row.dollars_per_hour or 0.0)
        assert (row.dollars_per_hour or 0.0) <= (best.dollars_per_hour or 0.0)
        assert (row.chance or 0.0) > (best.chance or 0.0)
    assert {row.dtype for row in likely.surer_at_price} == {"fp8", "int4_wo"}


def test_the_surest_data_type_is_named_beside_a_sure_one_of_its_name(likely: ServingAnswer) -> None:
    """Rows are told once; another row in a data type that the line `Surely` names is another offer."""
    names = [row.dtype for row in likely.surer_at_price]
    few = [replace(row, chance=0.9 - 0.1 * n) for n, row in enumerate(likely.surer_at_price)]
    more = replace(few[0], replicas=3, gpus=3)
    [sure] = likely.surer
    of = {"surer": (sure,), "surer_at_price": tuple(few)}
    for told, named in (((), names[:1]), ((more,), names[:1]), ((few[0],), [])):
        text = replace(likely, surer_other_dtypes=told, **of).report()
        assert re.findall(r"surer in (\w+), another", text) == named


def test_a_row_whose_queue_never_drains_keeps_no_limits(likely: ServingAnswer) -> None:
    """Around the rate that is served once requests have piled up; at that rate the chance is even."""
    row, asked = likely.chosen, likely.asked
    rate = row.request_rate or 0.0
    for backlog, drains in ((1.01 * rate, True), (0.99 * rate, False)):
        one = replace(row, backlog_rate=backlog)
        assert (one.keeps(asked), one.is_good) == (drains, drains)
        assert ("a queue never drains" in row_words(one)) == (not drains)
        assert one.words().endswith("; a queue never drains") == (not drains)
    assert replace(row, backlog_rate=rate).least_sure(asked) == (0.5, True)


def test_a_row_whose_rate_is_only_likely_has_no_sure_time(likely: ServingAnswer) -> None:
    """A limit of the token that its whole interval keeps, and a queue that drains by the prediction."""
    row = likely.chosen
    rate, (_, high) = row.request_rate or 0.0, row.tpot_interval_ms or (0.0, 0.0)
    asked = replace(likely.asked, max_tpot_ms=2.0 * high)
    for low, word in ((1.01, "yes"), (0.9, "likely")):
        one = replace(row, largest_rate=1.2 * rate, largest_rate_interval=(low * rate, 2.0 * rate),
                      backlog_rate=None, ttft_interval_ms=(1.0, 9.0))  # fmt: skip
        one = replace(one, verdict=one.verdict_on(asked), verdicts=one.judge(asked))
        assert (one.verdict, one.verdicts) == (word, {"tpot": word})
        assert row_words(one, "best") == "best" + ", a queue may stay" * (word == "likely")
        unbounded = replace(one, ttft_interval_ms=(1.0, None))
        assert "queue" not in row_words(unbounded), "the interval of the first token says so"
        text = replace(likely, served=(one,), chosen=one, asked=asked).report()
        assert ("a queue may stay: requests pile up" in text) == (word == "likely")


def test_each_row_has_its_chance(likely: ServingAnswer) -> None:
    lines = likely.report().splitlines()
    start = next(n for n, line in enumerate(lines) if "  chance  " in line)
    at = lines[start].index("chance") + len("chance")
    cells = [line[:at].split("  ")[-1].strip() for line in lines[start + 1 :][: len(likely.served)]]
    rows = sorted(likely.served, key=lambda row: row is not likely.chosen)
    assert cells == [
        "> 95 %" if row.verdict == "yes" else f"{100 * (row.chance or 0.0):.0f} %" for row in rows
    ]
    assert "chance: that a row keeps its least sure limit." in likely.report()
    sure = likely.asked.coverage * 100.0
    assert "  chance  " not in replace(likely, asked=replace(likely.asked, sure=sure)).report()


def test_a_limit_of_gpus_alone_is_kept_by_all_requests_served() -> None:
    """A rate is served with a chance; requests in progress always are, so that nothing has a chance."""
    model = Model.load("h100-vllm")
    text = model.llm("mixtral-8x7b", gpus=2, request_rate=9).report()
    assert "serves all requests with a chance of about " in text
    assert "chance: that a row serves all requests." in text
    assert "keeps the limits" not in text
    assert "chance" not in model.llm("mixtral-8x7b", gpus=2, concurrency=8).report()


@pytest.mark.parametrize(
    ("first", "middle", "is_told"), [(0.55, 0.85, True), (0.8, 0.85, False), (0.55, 0.75, False)]
)
def test_the_probable_choice_is_named_between_a_doubtful_and_a_sure_one(
    likely: ServingAnswer, first: float, middle: float, is_told: bool
) -> None:
    best = replace(likely.chosen, chance=first)
    price = 1.1 * (best.dollars_per_hour or 0.0)
    other = replace(best, chance=middle, gpus=7, dollars_per_hour=price,
                    dollars_per_million=1.1 * (best.dollars_per_million or 0.0),
                    dollars_per_month=730.0 * price)  # fmt: skip
    lines = (
        replace(likely, served=(best, other), chosen=best, best=0, bests=(0,)).report().splitlines()
    )
    place = next(n for n, line in enumerate(lines) if line.startswith("Cheapest within"))
    assert lines[place + 1].startswith("Probably: 7 GPUs, ") == is_told
    assert lines[place + 1 + is_told].startswith("Surely: ")


def test_a_wait_as_long_as_the_simulation_is_no_end() -> None:
    """Near the largest rate the slower server of the interval gets more requests than it serves."""
    idle = KNOWN.llm(LARGE, 1000, 200, request_rate=0.1, tensor_parallel=1, gpus=1).chosen
    low, _ = idle.largest_rate_interval or (0.0, 0.0)
    answer = KNOWN.llm(
        LARGE, 1000, 200, request_rate=0.95 * (idle.largest_rate or 0.0), tensor_parallel=1, gpus=1,
        max_ttft_ms=1e5,
    )  # fmt: skip
    row = answer.chosen
    assert low < (row.request_rate or 0.0) < (row.largest_rate or 0.0)
    first, of = row.ttft_interval_ms or (0.0, 0.0)
    assert (first > 0.0, of, (row.intervals_ms or {})["ttft_p99"][1]) == (True, None, None)
    assert row.tpot_interval_ms is not None
    assert row.tpot_interval_ms[1] < math.inf
    assert json.loads(json.dumps(row.to_dict(), allow_nan=False))["ttft_interval_ms"][1] is None
    assert re.search(r"\.\. unbounded\) +likely ", answer.report())
    assert "unbounded: requests pile up" in answer.report()
    assert row.verdicts == {"ttft": "likely"}


def test_between_the_best_and_the_sure_row_stands_the_first_probable_one() -> None:
    """A chance of 80 % is the upper end of the 60 % interval, which --sure 60 judges."""
    question: dict[str, Any] = {"request_rate": 20.0, "max_ttft_ms": 1e3, "max_tpot_ms": 40.0,
                                "percentile": 95, "dtype": "fp8", "tensor_parallel": 2}  # fmt: skip
    device = lolat.load("h100-vllm")
    found = device.llm("qwen3-32b", **question)
    (row,) = found.probable
    assert found.chosen.replicas < row.replicas < found.surer[0].replicas
    assert row.replicas == device.llm("qwen3-32b", **question, sure=60).chosen.replicas
    assert f"\nProbably: {row.replicas} x 2 GPUs, " in found.report()
