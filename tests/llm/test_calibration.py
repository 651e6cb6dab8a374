"""The overheads of a framework, fitted to served rows of known overheads."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import msgspec
import numpy as np
import pytest

from lolat.errors import InputError
from lolat.llm import calibration
from lolat.llm.calibration import ServedTimes, fit_overheads, served_by, timed_steps
from lolat.llm.gpu import ServedRow, ServingSection
from tests.llm.known_gpu import EIGHT, OVERHEADS, section


@pytest.fixture(autouse=True)
def the_model_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "find_decoder", lambda name: EIGHT)


def as_known(rows: list[ServedRow], noise: Any = 0.0, factors: Any = 1.0) -> list[ServedRow]:
    """The rows with the times of a framework of known overheads, on a GPU of known operations."""
    random, made = np.random.default_rng(9), []
    for row, factor in zip(rows, np.broadcast_to(factors, len(rows)), strict=True):
        (tpot,), (ttft,) = steps([row]).predicted(OVERHEADS)
        off = factor * np.exp(noise * random.standard_normal())
        times = {"tpot_ms": float(tpot * off), "ttft_ms": float(ttft * factor)}
        made.append(dataclasses.replace(row, **times))
    return made


def served(noise: float = 0.0) -> list[ServedRow]:
    """Rows of four deployments with up to 128 requests."""
    rows = [
        ServedRow(
            "eight", (200, 1000, 4000)[i % 3], (100, 400)[i % 2], 2**i, 1.0, 0.0, parallel, 1, dtype
        )
        for parallel, dtype in ((1, "bfloat16"), (1, "fp8"), (4, "bfloat16"), (2, "fp8"))
        for i in range(8)
    ]
    return as_known(rows, noise)


def steps(rows: list[ServedRow], known: ServingSection | None = None) -> ServedTimes:
    return timed_steps(known or section(), rows)


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_the_overheads_of_served_rows_are_found(noise: float) -> None:
    others = {"kernel_ms": 3e-3, "step_ms": 0.2, "small": 2.5, "front_ms": 35.0}
    start = msgspec.structs.replace(OVERHEADS, **others)
    rows = steps(served(noise))
    right = steps(served())
    found = fit_overheads(rows, start)
    before, after = (np.abs(np.log(rows.predicted(w)[0] / right.tpot_ms)) for w in (start, found))
    assert after.max() < 0.5 * before.max()
    assert np.median(after) < 0.01 + noise / 3
    assert found.front_ms == pytest.approx(OVERHEADS.front_ms, rel=0.25)


def few(loads: tuple[int, ...], factors: Any, noise: float = 0.02) -> list[ServedRow]:
    """Rows of one server whose times are `factors` times what the known overheads say."""
    rows = [ServedRow("eight", 1000, 300, n, 1.0, dtype="bfloat16") for n in loads]
    return as_known(rows, noise, factors)


def tpot_at(known: ServingSection, requests: int) -> float:
    """The time per output token of so many requests, as `known` predicts it."""
    return float(steps(few((requests,), 1.0, 0.0), known).predicted(known.overheads)[0][0])


def left_out_percent(words: str) -> float:
    return float(re.findall(r"([\d.]+) % now", words)[0])


@pytest.mark.parametrize("factor", [1.4, 0.7])
def test_a_level_that_rows_share_holds_beyond_their_largest_load(factor: float) -> None:
    """Six loads up to 32 requests; asked are 64 and 128."""
    known = section(spread=(0.14, 0.4))
    made, words = served_by(known, few((1, 2, 4, 8, 16, 32), factor))
    off = [tpot_at(made, n) / (tpot_at(known, n) * factor) for n in (1, 8, 32, 64, 128)]
    assert np.abs(np.log(off)).max() < 0.05
    assert np.abs(np.log(off)).max() < made.spread[0] < known.spread[0]
    assert left_out_percent(words) < 5.0


def test_rows_that_agree_make_the_interval_no_wider_and_one_that_does_not_changes_little() -> None:
    known, loads = section(spread=(0.14, 0.4)), (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
    agree, words = served_by(known, few(loads, 1.0))
    assert agree.spread[0] < known.spread[0]
    assert left_out_percent(words) < 3.0
    factors = np.ones(len(loads))
    factors[4] = 2.5
    odd, _ = served_by(known, few(loads, factors))
    assert odd.overheads.level == 1.0
    for n in (1, 8, 64):
        assert tpot_at(odd, n) == pytest.approx(tpot_at(known, n), rel=0.03)
    # Rows that no way explains widen it: each twice or half as long as the last.
    wild, words = served_by(known, few(loads, np.resize([0.5, 2.0], 10)))
    assert wild.spread[0] > 2 * known.spread[0]
    assert left_out_percent(words) > 30.0


def test_rows_that_do_not_help_are_told_with_their_errors() -> None:
    made, words = served_by(section(), few((1, 2, 4, 8), (0.8, 1.25, 0.8, 1.25), 0.0))
    assert "no better than the device without them" in words
    assert f"{100 * made.own_error[0]:.0f} % now" in words
    assert "no better" not in served_by(section(), few((1, 2, 4, 8), 1.4))[1]


def test_first_tokens_that_take_three_times_as_long_are_told_and_lie_in_the_interval() -> None:
    rows = few((1, 2, 4, 8, 16, 32), 1.0)
    late = [dataclasses.replace(row, ttft_ms=3.0 * row.ttft_ms) for row in rows]
    made, words = served_by(section(spread=(0.14, 0.4)), late)
    assert "first token by 67 % before, " in words
    found = steps(late, made).predicted(made.overheads)[1]
    off = np.abs(np.log(found / [row.ttft_ms for row in late]))
    assert 0.7 < off.max() < 1.001 * made.spread[1]
    assert made.spread[0] < 0.2
    _, words = served_by(section(), [dataclasses.replace(row, ttft_ms=0.0) for row in rows])
    assert "first token" not in words


def test_a_row_alone_moves_the_level_by_a_part() -> None:
    levels = []
    for loads in ((8,), (4, 8), (1, 2, 4, 8, 16, 32)):
        made, _ = served_by(section(), few(loads, 1.4, 0.0))
        levels.append(made.overheads.level)
    assert 1.1 < levels[0] < levels[1] < levels[2] < 1.42
    assert levels[0] < 1.4**0.75


def test_rows_that_wait_for_memory_tell_nothing() -> None:
    good = ServedRow("eight", 1000, 100, 8, 10.0, 300.0)
    too_many = ServedRow("eight", 1000, 100, 10**7, 10.0, 1.0)
    # If all of them start at once, prompts of 4,000 tokens take as long without any lack of memory.
    long = ServedRow("eight", 4000, 64, 64, 40.0, 40.0 * 64)
    for row, kept in ((dataclasses.replace(long, requests=64), [8, 64]), (long, [8])):
        assert sorted(steps([good, row]).concurrency.tolist()) == kept
    waits = ServedRow("eight", 1000, 100, 8, 10.0, 600.0)
    assert steps([good, too_many, waits, good]).concurrency.tolist() == [8, 8]
    with pytest.raises(InputError) as caught:
        steps([too_many, waits])
    assert caught.value.code == "served"


@pytest.mark.slow
def test_served_rows_of_something_else_are_refused() -> None:
    rows, known = served(), section()
    made, words = served_by(known, [*rows, *rows])  # a row twice is one
    assert made.served == known.served + len(rows)
    assert re.fullmatch(
        r"\d+ serving measurements: .* at the median before, .* now, on rows .*", words
    )
    copies = f"; {len(rows)} of {2 * len(rows)} rows are copies of others, and count once"
    assert words.endswith(copies)
    assert served_by(made, rows)[0].served == made.served
    assert f"{len(rows)} of {len(rows)} rows are copies" in served_by(made, rows)[1]
    assert "copies" not in served_by(known, rows)[1]
    # Of all measured times 1.5 times what it predicts, it is off by a third of them.
    late = [dataclasses.replace(row, tpot_ms=row.tpot_ms * 1.5) for row in rows]
    _, words = served_by(known, late)
    assert "off by 33 % at the median before" in words
    assert words.endswith("; check their tensor_parallel, and their dtype")
    seconds = [dataclasses.replace(row, tpot_ms=row.tpot_ms / 1e3, ttft_ms=0.0) for row in rows]
    with pytest.raises(InputError, match="expected tpot_ms in ms") as caught:
        served_by(known, seconds)
    assert caught.value.code == "served-unlike"


def test_lengths_that_are_not_known_are_told_if_first_tokens_are_far_off() -> None:
    random = np.random.default_rng(4)
    lengths = tuple(tuple(random.integers(50, n, 256).tolist()) for n in (8000, 800))
    means = [float(np.mean(one)) for one in lengths]
    row = ServedRow("eight", *means, 32, 1.0, requests=256, lengths=lengths, source="own.json")
    varied = as_known([row])
    for lens, is_told in ((lengths, False), ((), True)):
        _, words = served_by(section(), [dataclasses.replace(varied[0], lengths=lens)])
        assert ("requests of own.json are all taken as long" in words) is is_told, words
