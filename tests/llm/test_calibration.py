"""The overheads of a framework, fitted to served rows of known overheads."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import msgspec
import numpy as np
import pytest

from lolat.errors import InputError
from lolat.llm.calibration import Timed, fit_overheads, served_by, timed_steps
from lolat.llm.gpu import GPU, ServingSection
from lolat.llm.served import ServedRow
from lolat.llm.serving import Deployment, Load, serve, steps_of
from tests.llm.known_gpu import EIGHT, OVERHEADS, section


def served(noise: float = 0.0) -> list[ServedRow]:
    """Rows of a framework with known overheads, on a GPU with known operations."""
    random, rows = np.random.default_rng(9), []
    for parallel, dtype in ((1, "bfloat16"), (1, "fp8"), (4, "bfloat16"), (2, "fp8")):
        deployment = Deployment(EIGHT, parallel, 1, dtype, dtype, "bfloat16")
        requests = np.array([1.0, 2, 4, 8, 16, 32, 64, 128])
        ins, outs = (np.resize(v, 8).astype(float) for v in ((200, 1000, 4000), (100, 400)))
        load = Load(ins, outs, requests, np.full(8, 1e9))
        found = serve(OVERHEADS, steps_of(GPU(section()), deployment, load), load)
        tpot = found.tpot_ms * np.exp(noise * random.standard_normal(8))
        columns = zip(ins, outs, requests, tpot, found.ttft_ms, strict=True)
        rows += [ServedRow("eight", *column, parallel, 1, dtype) for column in columns]
    return rows


def steps(rows: list[ServedRow], known: ServingSection | None = None) -> Timed:
    return timed_steps(known or section(), rows, lambda name: EIGHT)


def fitted(known: ServingSection, rows: list[ServedRow]) -> tuple[ServingSection, str]:
    return served_by(known, rows, lambda name: EIGHT)


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_the_overheads_of_served_rows_are_found(noise: float) -> None:
    others = {"kernel_ms": 3e-3, "step_ms": 0.2, "small": 2.5, "api_ms": 35.0, "burst_share": 0.4}
    start = msgspec.structs.replace(OVERHEADS, **others)
    rows = steps(served(noise))
    right = steps(served())
    before, after = (
        np.abs(np.log(serve(w, rows.steps, rows.load).tpot_ms / right.tpot_ms))
        for w in (start, fit_overheads(rows, start))
    )
    assert after.max() < 0.5 * before.max()
    assert np.median(after) < 0.01 + noise / 3
    assert fit_overheads(rows, start).api_ms == pytest.approx(OVERHEADS.api_ms, rel=0.25)


def few(loads: tuple[int, ...], factors: Any, noise: float = 0.02) -> list[ServedRow]:
    """Rows of one server whose times are `factors` times what the known overheads say."""
    requests, random = np.array(loads, float), np.random.default_rng(4)
    size = np.ones(len(requests))
    load = Load(1000.0 * size, 300.0 * size, requests, 1e9 * size)
    deployment = Deployment(EIGHT, 1, 1, "bfloat16", "bfloat16", "bfloat16")
    found = serve(OVERHEADS, steps_of(GPU(section()), deployment, load), load)
    tpot = found.tpot_ms * factors * np.exp(noise * random.standard_normal(len(requests)))
    columns = zip(requests, tpot, found.ttft_ms * factors, strict=True)
    return [ServedRow("eight", 1000.0, 300.0, *map(float, c), dtype="bfloat16") for c in columns]


def tpot_at(known: ServingSection, requests: int) -> float:
    """The time per output token of so many requests, as `known` predicts it."""
    timed = steps(few((requests,), 1.0, 0.0), known)
    return float(serve(known.overheads, timed.steps, timed.load).tpot_ms[0])


def left_out_percent(words: str) -> float:
    return float(re.findall(r"([\d.]+) % now", words)[0])


@pytest.mark.parametrize("factor", [1.4, 0.7])
def test_a_level_that_rows_share_holds_beyond_their_largest_load(factor: float) -> None:
    """Six loads up to 32 requests; asked are 64 and 128."""
    known = section(spread=(0.14, 0.4))
    made, words = fitted(known, few((1, 2, 4, 8, 16, 32), factor))
    off = [tpot_at(made, n) / (tpot_at(known, n) * factor) for n in (1, 8, 32, 64, 128)]
    assert np.abs(np.log(off)).max() < 0.05
    assert np.abs(np.log(off)).max() < made.spread[0] < known.spread[0]
    assert left_out_percent(words) < 5.0


def test_rows_that_agree_make_the_interval_no_wider_and_one_that_does_not_changes_little() -> None:
    known, loads = section(spread=(0.14, 0.4)), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    agree, words = fitted(known, few(loads, 1.0))
    assert agree.spread[0] < known.spread[0]
    assert left_out_percent(words) < 3.0
    factors = np.ones(len(loads))
    factors[4] = 2.5
    odd, _ = fitted(known, few(loads, factors))
    assert odd.overheads.level == 1.0
    for n in (1, 8, 64):
        assert tpot_at(odd, n) == pytest.approx(tpot_at(known, n), rel=0.03)
    # Rows that no way explains widen it: each twice or half as long as the last.
    wild, words = fitted(known, few(loads, np.resize([0.5, 2.0], 10)))
    assert wild.spread[0] > 2 * known.spread[0]
    assert left_out_percent(words) > 30.0


def test_a_row_alone_moves_the_level_by_a_part() -> None:
    levels = []
    for loads in ((8,), (4, 8), (1, 2, 4, 8, 16, 32)):
        made, _ = fitted(section(), few(loads, 1.4, 0.0))
        levels.append(made.overheads.level)
    assert 1.1 < levels[0] < levels[1] < levels[2] < 1.42
    assert levels[0] < 1.4**0.75


def test_rows_that_wait_for_memory_tell_nothing() -> None:
    good = ServedRow("eight", 1000, 100, 8, 10.0, 300.0)
    too_many = ServedRow("eight", 1000, 100, 10**7, 10.0, 1.0)
    # Where requests come together, prompts of 4,000 tokens take as long without any lack of memory.
    burst = section(overheads=msgspec.structs.replace(OVERHEADS, burst_share=0.97))
    long = ServedRow("eight", 4000, 64, 64, 40.0, 40.0 * 64)
    for known, kept in ((burst, [8, 64]), (section(), [8])):
        found = steps([good, long], known).load
        assert sorted(found.concurrency.tolist()) == kept
    waits = ServedRow("eight", 1000, 100, 8, 10.0, 600.0)
    assert steps([good, too_many, waits, good]).load.concurrency.tolist() == [8, 8]
    with pytest.raises(InputError) as caught:
        steps([too_many, waits])
    assert caught.value.code == "served"


def test_served_rows_of_something_else_are_refused() -> None:
    rows, known = served(), section()
    made, words = fitted(known, [*rows, *rows])  # a row twice is one
    assert made.served == known.served + len(rows)
    assert re.fullmatch(r"\d+ served rows: .* at the median before, .* now, on rows .*", words)
    # Of all measured times 1.5 times what it predicts, it is off by a third of them.
    late = [dataclasses.replace(row, tpot_ms=row.tpot_ms * 1.5) for row in rows]
    _, words = fitted(known, late)
    assert "off by 33 % at the median before" in words
    seconds = [dataclasses.replace(row, tpot_ms=row.tpot_ms / 1e3, ttft_ms=0.0) for row in rows]
    with pytest.raises(InputError, match="expected tpot_ms in ms") as caught:
        fitted(known, seconds)
    assert caught.value.code == "served-unlike"
