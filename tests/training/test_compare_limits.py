"""Limits of hours and dollars among several devices: who keeps them, and what they buy."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

import lolat as package
from lolat.errors import AnswerIsNo, InputError, worded
from lolat.hardware.card_names import short_name
from lolat.report.cost import cost_lines, cost_parts, costs_lines, costs_parts
from lolat.report.cost_bests import nearly_words
from lolat.report.cost_table import limits_words
from lolat.report.tables import lines_of
from lolat.training.best import FASTEST
from lolat.training.choice import Choice, choice_words
from lolat.training.compare import joined
from lolat.training.cost import CostRow
from lolat.training.listing import best_row
from lolat.training.prediction import check_limits
from lolat.training.run import TrainingLimits
from lolat.units import dollars, duration, quantity
from tests.cli.commands import Command
from tests.training.several import GPUS, asked, compared, listed, network


def test_limits_without_data_say_how_many_samples_they_buy() -> None:
    """US$ 12 at 3 an hour are 4 hours; a limit of 2 hours is less."""
    model = package.load("p4-fp32")
    for limits, hours in (({"max_dollars": 12}, 4), ({"max_dollars": 12, "max_hours": 2}, 2)):
        found = model.cost(network(), 8, price_per_hour=3, **limits).options[0]
        assert found.data_within_limits == int(3600 * hours * found.samples_per_s)
    assert model.cost(network(), 8).options[0].data_within_limits is None


def test_an_unknown_price_keeps_no_limit_of_money(prices: str) -> None:
    """A V100 costs US$ 2 an hour: 1 buys half an hour, whatever 5 hours allow; the P4 has no price."""
    limits = {"max_hours": 5.0, "max_dollars": 1.0}
    for given in (limits, {"max_dollars": 1.0}):
        found = compared(("v100-fp32", "p4-fp32"), "fp32", 64, prices=prices, replicas=1, **given)
        known, unknown = (cost.options[0] for cost in found.answers)
        assert known.data_within_limits == int(1800 * known.samples_per_s)
        assert (unknown.rented, unknown.data_within_limits, unknown.data_within_interval) == (
            None,
        ) * 3
        printed = "\n".join(lines_of(costs_lines(found)))
        row = next(line for line in printed.splitlines() if line.startswith("p4 "))
        assert " no price" in row
        assert "samples" not in row
        assert "No price of p4 in " in printed
    free = package.load("p4-fp32").cost(network(), 64, price_per_hour=0, **limits).options[0]
    assert free.data_within_limits == int(5 * 3600 * free.samples_per_s)


def test_with_data_a_row_without_a_price_is_not_within_the_money(prices: str) -> None:
    """Of 10,000 samples the P4's hours are within the limit, and nobody knows its dollars."""
    found = compared(
        ("v100-fp32", "p4-fp32"), "fp32", 64, prices=prices, replicas=1, samples=10_000,
        max_hours=9, max_dollars=9,
    )  # fmt: skip
    _, table, _, _ = costs_parts(found)
    (cells,) = (row for row in table.cells if row[0] == "p4")
    assert [cell for cell in cells if cell in ("yes", "likely", "no", "no price")] == [
        "yes", "no price"
    ]  # fmt: skip
    assert {choice.device for choice in (found.cheapest, found.fastest) if choice} == {"v100-fp32"}


def test_a_launch_that_keeps_the_money_is_told_where_none_does_without(prices: str) -> None:
    """Each launch's price is that of the device asked alone; a limit below all of them offers nothing."""
    eager, compiled, graph = (
        package.load("a100-fp32").run_as("fp32", launch)
        .cost(network(), 8, 10**6, prices=prices, replicas=1).options[0].dollars or 0.0
        for launch in ("eager", "compiled", "graph")
    )  # fmt: skip
    least = min(compiled, graph)
    assert least < 0.9 * eager
    for limit, is_told in ((0.95 * eager, True), (0.9 * least, False)):
        found = compared(("a100-fp32",), "fp32", 8, prices=prices, replicas=1, samples=10**6,
                         max_dollars=limit)  # fmt: skip
        first, second, *_ = lines_of(costs_lines(found))
        least_s = min(option.total_s or 0.0 for option in found.timed)
        assert first.startswith(
            f"Nothing is within ${limit:g}: 1 x a100 (PCIe 40 GB), {duration(least_s)}, $"
        )
        assert second.startswith(
            "Within the limits: --launch " if is_told else "Nearest, but not within: "
        )
        with pytest.raises(AnswerIsNo, match="nothing is within") as error:
            check_limits(found)
        assert ("; launch=" in str(error.value)) == is_told
        told = {one.launch: one.dollars for one in found.better_launch.values()}
        of = {"compiled": compiled, "graph": graph}
        assert told == {launch: pytest.approx(of[launch]) for launch in told}
        assert bool(told) == is_told == bool(found.offer)


def test_a_launch_that_misses_the_time_too_is_not_told_to_keep_it(prices: str) -> None:
    """Of all launches, asked alone, the shortest takes longer than the limit, or not."""
    hours = min(
        (package.load("a100-fp32").run_as("fp32", launch)
         .cost(network(), 8, 10**6, prices=prices, replicas=1).options[0].total_s or 0.0) / 3600.0
        for launch in ("compiled", "graph")
    )  # fmt: skip
    for limit, is_told in ((1.05 * hours, True), (0.9 * hours, False)):
        found = compared(("a100-fp32",), "fp32", 8, prices=prices, replicas=1, samples=10**6,
                         max_hours=limit)  # fmt: skip
        assert [*lines_of(costs_lines(found))]
        assert bool(found.offer) == is_told


def test_a_faster_mode_has_the_options_that_ask_for_it(lolat: Command) -> None:
    """Compiled code, on a GPU that already runs in its fastest precision; nothing keeps the limit."""
    ask = (
        "cost",
        "a100",
        "timm:resnet50",
        "--batch-size",
        128,
        "--samples",
        10**6,
        "--max-dollars",
        0.1,
    )
    lines = lolat(*ask).out.splitlines()
    said = re.fullmatch(r"Nearest, but not within: (--.+) \((.+)\)", lines[1])
    assert said
    other = json.loads(lolat(*ask, *said[1].split(), "--json").out)
    own = json.loads(lolat(*ask, "--json").out)
    assert own["options"][0]["dollars"] > other["options"][0]["dollars"] > 0.1
    assert said[2].endswith(f", {dollars(other['options'][0]['dollars'])}")
    assert not any("times as long" in line for line in lines), "a hint that leads to a refusal"


def test_a_layout_that_keeps_the_money_is_told_where_the_default_does_not(lolat: Command) -> None:
    """On one device and on several: with the options that the refusal names the same command succeeds."""
    about = "timm:resnet50 --batch-size 64 --samples 1000000 --replicas 1 --price-per-hour 1"
    given = *about.split(), "--precision", "amp"
    first, last = (
        lolat.answer("cost", "rtx-4090-amp", *given, *more)["options"][0]["dollars"]
        for more in ([], ["--channels-last"])
    )
    assert last < 0.9 * first
    limit = "--max-dollars", f"{0.95 * first:.3f}"
    for on in (["rtx-4090-amp"], ["--on", "rtx-4090-amp"]):
        done = lolat("cost", *on, *given, *limit)
        assert done.code == 3
        assert "; --channels-last (1 x rtx-4090 " in done.err
        lolat.done("cost", *on, *given, *limit, "--channels-last")
    for on in (["rtx-4090"], ["--on", "rtx-4090"]):
        lolat.done("cost", *on, *given, *limit)  # a card takes the faster layout by itself
    told = lolat("cost", "rtx-4090-amp", *about.split(), *limit).err
    assert "; --precision amp --channels-last (1 x rtx-4090 " in told
    least = lolat("cost", "rtx-4090", *given, "--max-dollars", f"{0.01 * last:.5f}")
    assert least.code == 3
    assert least.err.count("within") == 1


def test_what_is_expected_beyond_the_limits_is_no_rival_of_the_best(tmp_path: Path) -> None:
    """The V100 costs less than the A100, but may take longer than allowed: it is in the table alone."""
    prices = listed(tmp_path, "v,2,V100-32GB,1", "a,6,A100,1")
    about: dict[str, Any] = {"replicas": 1, "samples": 10**6, "prices": prices}
    free = compared(("v100-fp32", "a100-fp32"), "fp32", 64, **about)
    assert free.cheapest is not None
    assert free.cheapest.device == "v100-fp32"
    low = (free.timed[0].interval_s or (0.0, 0.0))[0]
    hours = (low * free.cheapest.total_s) ** 0.5 / 3600
    found = compared(("v100-fp32", "a100-fp32"), "fp32", 64, **about, max_hours=hours)
    assert found.cheapest is not None
    assert found.cheapest.device == "a100-fp32"
    both, one = ([*lines_of(costs_lines(costs))] for costs in (free, found))
    assert any("too close to call against a100 (+" in line for line in both)
    assert any(line.startswith("v100 ") and "unlikely" in line for line in one)
    assert not any("too close to call" in line for line in one)


@pytest.mark.parametrize("data", [{}, {"samples": 10_000}])
@pytest.mark.parametrize("limits", [{"max_dollars": 5}, {"max_dollars": 5, "max_hours": 10}])
def test_a_limit_of_money_is_refused_where_no_device_has_a_price(
    prices: str, data: dict[str, int], limits: dict[str, int]
) -> None:
    device, given = package.load("p4-fp32"), {"prices": prices, **data, **limits}
    asked_so = (
        lambda: device.cost(network(), 64, **given),
        lambda: device.cost(network(), [8, 64], **given),
        lambda: compared(("p4-fp32", "t4-fp32"), "fp32", 64, **given),
    )
    for ask in asked_so:
        with pytest.raises(
            InputError, match=r"max_dollars 5: no price of p4.* in .*prices\.csv"
        ) as error:
            ask()
        assert error.value.code == "no-price"
        assert "price_per_hour" in str(error.value)
    assert device.cost(network(), 64, prices=prices, **data, max_hours=10).prices is None


def test_each_limit_has_a_column_of_its_own(prices: str) -> None:
    """A row that keeps the hours and not the dollars says which."""
    found = package.load("v100-fp32").cost(
        network(), 64, 10**7, prices=prices, max_hours=10**4, max_dollars=1e-3
    )
    head, row, *_ = lines_of([cost_parts(found)[1]])
    assert re.search(r"<= 10000 h +<= \$0.001$", head)
    assert re.search(r" yes +no$", row)


def test_what_a_budget_buys_without_data_has_its_hours_and_its_price() -> None:
    """US$ 60 at 3 an hour are 20 hours."""
    found = package.load("p4-fp32").cost(network(), 8, price_per_hour=3, max_dollars=60)
    lines = [*lines_of(cost_lines(found))]
    assert any(
        line.startswith("Most within $60: 1 x p4, ") and " in 20 h" in line for line in lines
    )
    assert any(line.startswith("Billed by the second: the price given") for line in lines)


def test_a_budget_holds_the_memory(lolat: Command, net: str) -> None:
    found = lolat.json("budget", "p4-fp32", net, "--max-ms", 10**9, "--vary", "batch")
    model = package.load("p4-fp32")
    fits = [model.predict(network(), int(found["answer"]) + more).fits for more in (0, 1)]
    assert fits == [True, False]


def test_a_limit_has_a_column_among_several(lolat: Command, net: str) -> None:
    """Above, within and below the interval of each device."""
    found = [package.load(f"{name}-fp32").predict(network(), 64) for name in ("a100", "p4")]
    (low, high), p4_ms = found[1].interval_ms or (0.0, 0.0), found[1].latency_ms
    words = ((high, "yes"), ((p4_ms + high) / 2, "likely"), ((low + p4_ms) / 2, "unlikely"))
    ask = ("predict", net, "--on", "a100,p4", "--batch-size", 64, "--max-ms")
    for limit, word in (*words, (low / 2, "no")):
        done = lolat(*ask, limit)
        assert done.code == 0  # the a100 keeps each limit
        (row,) = (line for line in done.out.splitlines() if line.startswith("p4 "))
        assert f"  {word}  " in row
        assert ("--sure 90" in done.out) == ("  likely  " in done.out)
        sure = lolat(*ask, limit, "--sure", 90)
        (row,) = (line for line in sure.out.splitlines() if line.startswith("p4 "))
        assert f"  {'yes' if word == 'yes' else 'no'}  " in row


def test_the_cheapest_and_the_fastest_are_within_the_limits(
    lolat: Command, prices: str, net: str
) -> None:
    every = asked(prices)
    assert every.fastest is not None
    dollars = [o.dollars for c in every.answers for o in c.options if o.dollars is not None]
    ask = ("cost", net, "--batch-size", 64, "--samples", 10_000, "--prices", prices)
    too_short = every.fastest.total_s / 3600 * 0.9
    for on in (("--on", "v100,a100"), ("--on", "v100,a100,p4")):
        assert lolat(*ask, *on, "--max-hours", too_short).code == 3
        assert "within 9 h: " in lolat.done(*ask, *on, "--max-hours", 9).out
        lost = lolat(*ask, *on, "--max-hours", 9, "--max-dollars", min(dollars) / 2)
        assert (lost.code, "; cheapest 1 x " in lost.out.splitlines()[0]) == (3, True)
        assert "cheapest" not in lost.err
        assert "expected fewer samples or epochs" in lost.err
        out = lolat.done(*ask, *on, "--max-dollars", 2 * max(dollars)).out
        assert f"Fastest within ${2 * max(dollars):g}: " in out
        assert f"<= ${2 * max(dollars):g}" in out


def test_a_limit_in_dollars_alone_shows_the_interval_of_the_dollars(lolat: Command) -> None:
    """By the ends in JSON; with a limit in hours, or none, the hours have it."""
    ask = "cost", "timm:resnet18", "--on", "v100,a100", "--samples", 10**8, "--replicas", 1
    options = [one["options"][0] for one in json.loads(lolat(*ask, "--json").out)["answers"]]
    dollars = [f"{low:.2f} .. {high:.2f}" for low, high in (o["dollars_interval"] for o in options)]
    for more, is_of_money in (
        (("--max-dollars", 99), True),
        (("--max-dollars", 99, "--max-hours", 99), False),
        ((), False),
    ):
        out = lolat.done(*ask, *more).out
        assert [ends in out for ends in dollars] == [is_of_money] * 2
        assert ("$, 90 % between" in out) == is_of_money
        assert len(re.findall(r"\d  +90 % between|hours +90 % between", out)) == (not is_of_money)


@pytest.mark.parametrize("one", [True, False])
def test_how_sure_a_longest_time_is_kept(lolat: Command, prices: str, net: str, one: bool) -> None:
    """By the ends of each interval: above, within and below; the sentence of the cheapest says it too."""
    of = ("a100-fp32",) if one else ("--on", "a100,t4", "--precision", "fp32")
    ask = ("cost", *of, net, "--batch-size", 64, "--samples", 10**7, "--prices", prices)
    found = json.loads(lolat(*ask, "--json").out)
    (option,) = (found if one else found["answers"][0])["options"]
    (low, high), total = option["interval_s"], option["total_s"]
    limits = {"yes": 1.01 * high, "likely": (total + high) / 2, "unlikely": (low + total) / 2,
              "no": 0.99 * low}  # fmt: skip
    for word, limit_s in limits.items():
        lines = lolat(*ask, "--max-hours", limit_s / 3600).out.splitlines()
        start = "      1 " if one else "a100 "
        assert [line for line in lines if line.startswith(start) and f" {word}" in line]
        cheapest = [line for line in lines if line.startswith("Cheapest")]
        assert not any("too close to call" in line for line in lines)  # from itself
        assert len(cheapest) == (word in ("yes", "likely") and not one)
        assert [line for line in cheapest if "; likely: " in line] == cheapest * (word == "likely")


@pytest.mark.parametrize("name", ["max_hours", "max_dollars"])
def test_what_must_be_sure_keeps_the_limit_with_the_end_of_its_interval(
    prices: str, name: str
) -> None:
    """By brute force over the options of the answer without a limit."""
    ask = {"prices": prices, "samples": 10_000, "replicas": (1, 2)}
    every = [o for c in compared(GPUS, "fp32", 64, **ask).answers for o in c.options]
    ends = {
        "max_hours": [o.interval_s and o.interval_s[1] / 3600 for o in every],
        "max_dollars": [o.dollars_interval and o.dollars_interval[1] for o in every],
    }[name]
    for limit in sorted(filter(None, ends)):
        able = [o for o, end in zip(every, ends, strict=True) if end and end <= 1.001 * limit]
        found = compared(GPUS, "fp32", 64, **ask, sure=True, **{name: 1.001 * limit})
        assert sorted(o.total_s or 0 for o in found.within()) == sorted(
            o.total_s or 0 for o in able
        )
        if paid := [o.dollars for o in able if o.dollars is not None]:
            assert found.cheapest is not None
            assert found.cheapest.dollars == pytest.approx(min(paid), rel=0.021)  # ALIKE
        printed = "\n".join(lines_of(costs_lines(found)))
        assert "likely" not in printed
        assert f"surely within {1.001 * limit:g}" in " ".join(printed.split()).replace("$", "")
    short = {name: 0.99 * min(filter(None, ends))}
    missing = compared(GPUS, "fp32", 64, **ask, sure=True, **short)
    with pytest.raises(AnswerIsNo, match=r"nothing is surely within [^:]*; "):
        check_limits(missing)
    assert ", up to " in missing.missed


def test_of_many_rows_those_at_twice_the_price_are_left_out() -> None:
    """But for the Pareto front; --json has all."""
    found = package.compare("timm:resnet50", 64, samples=10**6)
    rows = [(Choice.of(c, o).dollars, Choice.of(c, o)) for c in found.answers for o in c.options]
    _, table, _, after = costs_parts(found)
    shown = [Choice.of(*row) for row in table.rows]
    least = min(usd for usd, _ in rows if usd is not None)
    assert {choice for choice in shown if (choice.dollars or 0) > 2 * least} <= {*found.frontier}
    assert {*found.frontier} <= {*shown}
    near = {choice.device for usd, choice in rows if usd is not None and usd <= 2 * least}
    assert near <= {choice.device for choice in shown}
    assert len(found.rows()) == len(rows) > len(shown)
    (told,) = (line for line in after if line.startswith("Left out: "))
    unseen = {choice.device for _, choice in rows} - {choice.device for choice in shown}
    number, names = re.findall(
        r"(\d+) rows at over 2 times the price of the cheapest \(all of (.+?)\)", told
    )[0]
    assert int(number) > 0
    assert {*names.split(", ")} == {short_name(device) for device in unseen}


def test_a_number_that_must_be_sure_is_the_coverage(lolat: Command, net: str) -> None:
    ask = ("cost", "a100-fp32", net, "--batch-size", 64, "--samples", 10**6, "--max-hours", 9)
    sure, wide = lolat.answer(*ask, "--sure", 95), lolat.answer(*ask, "--coverage", 0.95)
    assert (sure["sure"], wide["sure"], sure["coverage"]) == (True, False, 0.95)
    assert sure["options"][0]["interval_s"] == wide["options"][0]["interval_s"]


@pytest.mark.parametrize(("link_gbps", "is_near"), [(1e4, True), (0.5, False)])
def test_a_choice_that_is_sure_for_little_more_is_taken(link_gbps: float, is_near: bool) -> None:
    """One device likely keeps the limit, two surely do: for the same money, or for much more."""
    model, about = package.load("p4-fp32"), {"samples": 10**7, "price_per_hour": 1.0}
    about |= {"link_gbps": link_gbps, "replicas": (1, 2)}
    one, two = model.cost(network(), 64, **about).options
    assert ((two.dollars or 0) <= 1.05 * (one.dollars or 0)) == is_near
    assert one.interval_s
    assert two.interval_s
    assert one.total_s
    assert two.interval_s[1] < one.total_s
    hours = (one.total_s + one.interval_s[1]) / 2 / 3600
    found = model.cost(network(), 64, max_hours=hours, **about)
    assert found.cheapest == json.loads(json.dumps(found.to_dict()))["cheapest"] == 1 + is_near
    assert re.search(f"cheapest.*: {1 + is_near} device", found.words())
    several = joined([found], {}, None)
    for said in (cost_parts(found)[0], costs_parts(several)[2]):
        cheapest = [one.first for one in said if one.first.startswith("Cheapest")]
        assert [", sure: 2 " in line for line in cheapest] == [False] + [True] * (not is_near)
    row = best_row(several) or pytest.fail("no best row")
    assert row[1].devices == found.best.devices == 1 + is_near
    assert limits_words(row).startswith("; likely within ") == (not is_near)


@pytest.mark.parametrize("more", [(), ("--sure", 90)])
def test_the_largest_batch_keeps_the_limit(lolat: Command, net: str, more: tuple[Any, ...]) -> None:
    """The answer's end is within it, and that of one sample more is not; memory alone holds more."""
    model = package.load("a100-fp32")

    def end_ms(batch_size: int) -> float:
        found = model.predict(network(), batch_size)
        assert found.interval_ms is not None
        return found.interval_ms[1] if more else found.latency_ms

    ask = ("predict", "a100", net, "--batch-size", "auto")
    limit = 10 * end_ms(1)
    found = lolat.json(*ask, "--max-ms", limit, *more)["batch_size"]
    assert end_ms(found) <= limit < end_ms(found + 1)
    most = lolat.json(*ask)["batch_size"]
    assert found < most == lolat.json(*ask, "--max-ms", 2 * end_ms(most), *more)["batch_size"]
    short = lolat(*ask, "--max-ms", end_ms(1) / 2, *more, "--json")
    assert (short.code, json.loads(short.out)["batch_size"]) == (3, 1)


def test_a_refusal_names_rows_of_its_table_and_the_nearest_choice_of_all_launches() -> None:
    """By brute force over the answers in each launch, without limits."""
    on = ["rtx-5090", "rtx-4090", "h100", "a100"]
    about: dict[str, Any] = {"on": on, "samples": 1_281_167, "epochs": 90}
    free = package.compare("timm:resnet50", **about)
    limits: dict[str, Any] = {"max_hours": 1.0, "max_dollars": 12.0}
    found = package.compare("timm:resnet50", **about, **limits)
    first, second, *lines = lines_of(costs_lines(found))
    every = [(o.total_s or 0.0, o.dollars, Choice.of(c, o)) for c in free.answers for o in c.timed]
    fastest = min(every, key=lambda one: one[0])
    cheapest = min(every, key=lambda one: one[1] or inf)
    told = (f"{way} {c.devices} x {c.card}, {duration(s)}, {dollars(usd or 0.0)}"
            for way, (s, usd, c) in (("fastest", fastest), ("cheapest", cheapest)))  # fmt: skip
    assert first == f"Nothing is within 1 h, $12: {'; '.join(told)}"
    _, table, _, _ = costs_parts(found)
    assert {fastest[2], cheapest[2]} <= {Choice.of(*row) for row in table.rows}
    for launch in ("compiled", "graph"):
        other = package.compare("timm:resnet50", **about, launch=launch)
        every += [
            (o.total_s or 0.0, o.dollars, Choice.of(c, o)) for c in other.answers for o in c.timed
        ]
    _, _, best = min(every, key=lambda one: max(one[0] / 3600, (one[1] or inf) / 12))
    assert second == f"Nearest, but not within: --launch {best.launch} ({choice_words(best)})"
    assert not any("times as long" in line for line in lines), "a hint that leads to a refusal"


def test_a_gpu_with_a_limit_is_asked_in_the_numbers_that_are_rented() -> None:
    """As of `--on`: several keep a time that one misses; a profile and a given number stay as asked."""
    about = {"samples": 10**6, "precision": "amp"}
    alone = package.load("a100").cost(network(), 64, **about).options
    limit = 0.3 * (alone[0].total_s or 0.0) / 3600
    found = package.load("a100").cost(network(), 64, **about, max_hours=limit)
    beside = package.compare(network(), 64, "a100", **about, max_hours=limit)
    assert [o.devices for o in alone] == [1]
    assert found.options == beside.answers[0].options
    assert found.fastest is not None
    assert found.fastest > 1
    paid = package.load("a100").cost(network(), 64, **about, max_hours=limit, price_per_hour=1)
    assert [o.devices for o in paid.options] == [1, 2, 4, 8]  # no list has the sizes of instances
    few = package.load("a100").cost(network(), 64, 128, max_hours=limit, price_per_hour=1)
    assert [o.devices for o in few.options] == [1, 2]  # the data fill two batches
    for name, more in (("a100", {"replicas": 1}), ("a100-fp32", {})):
        of_one = package.load(name).cost(network(), 64, **about | more, max_hours=limit)
        assert [o.devices for o in of_one.options] == [1]
        assert of_one.missed


@pytest.mark.parametrize("on", [["a100"], ["--on", "a100,t4"]])
@pytest.mark.parametrize("replicas", ["1", "1,2"])
def test_a_refusal_is_said_once(lolat: Command, on: list[str], replicas: str) -> None:
    """No line on the best repeats the fastest row, which the first line has."""
    ask = "timm:resnet50", "--samples", 10**7, "--replicas", replicas, "--max-hours", 0.1
    lines = lolat("cost", *on, *ask).out.splitlines()
    said = re.search(r", (\d[^,;]*, \$[\d.]+)", lines[0])
    assert said
    assert lines[0].startswith("Nothing is within 0.1 h: ")
    assert not any(said[1] in line or line.startswith(("Fastest", ":")) for line in lines[1:])
    about: dict[str, Any] = {"samples": 10**7, "replicas": [1, 2], "max_hours": 0.1}
    for found in (package.load("a100").cost("timm:resnet50", **about),
                  package.compare("timm:resnet50", 64, ["a100", "t4"], **about)):  # fmt: skip
        assert found.fastest
        assert (found.words().count("fastest"), found.words().count("cheapest")) == (1, 1)


def test_the_most_data_within_a_limit_names_the_row_and_its_launch(lolat: Command) -> None:
    """By the answers in each launch: the most samples of all rows, not a faster row with fewer."""
    ask = "cost", "--on", "rtx-5090,b200", "timm:resnet50", "--max-dollars", 100
    lines = lolat.done(*ask).out.splitlines()

    def most(*launch: str) -> tuple[int, str, int]:
        found = lolat.answer(*ask, *launch)["answers"]
        each = [
            (o["data_within_limits"], c["device"], o["devices"])
            for c in found
            for o in c["options"]
        ]
        return max(each)

    eager = most()
    samples, device, devices = max(most("--launch", launch) for launch in ("compiled", "graph"))
    assert samples > eager[0] / 0.9
    assert lines[0].startswith(f"Most within $100: {eager[2]} x {eager[1]}, {quantity(eager[0])} ")
    said = rf"  with --launch \w+: {devices} x {device}, {re.escape(quantity(samples))} samples .+"
    assert re.fullmatch(said, lines[1])
    assert "times as long" not in " ".join(lines)


def test_a_likely_row_that_is_hardly_faster_is_not_told() -> None:
    """By hand: within the limit 100 s are sure; 95 s are likely and 5 % less, 85 s 15 %."""
    found = package.load("a100-fp32").cost(network(), 64, 10**6, replicas=(1, 2), price_per_hour=1)
    one, two = found.options
    sure = replace(
        one, total_s=100.0, interval_s=(90.0, 110.0), dollars=5.0, dollars_interval=(4, 6)
    )
    limits = TrainingLimits(max_dollars=10.0)
    for seconds, is_told in ((95.0, False), (85.0, True)):
        likely = replace(two, total_s=seconds, dollars=8.0, dollars_interval=(6.0, 11.0))
        rows = [CostRow(found, sure), CostRow(found, likely)]
        words = nearly_words(rows[0], rows, limits, FASTEST, lambda row: f"{row.option.devices}")
        assert words == "faster, but only likely within $10: 2" * is_told


def test_the_offer_to_a_decoder_joins_sharding_and_launch_if_neither_keeps_the_limit() -> None:
    """Each of the two alone misses it, asked one by one."""

    def ask(**more: Any) -> Any:
        about = {"input_size": 4096, "samples": 244_141, "max_dollars": 100}
        devices, sizes = ["h100", "b200"], {"global_batch_size": 256}
        return package.compare("llama-3.1-8b", "auto", devices, **about, **sizes, **more)

    found, both = ask(), ask(sharding="fsdp", launch="compiled")
    assert all(one.missed for one in (found, ask(sharding="fsdp"), ask(launch="compiled")))
    assert not both.missed
    assert found.offer == both.cheapest
    assert 'launch="compiled" sharding="fsdp" (8 x h100 ' in worded(found.offered)
