"""The verdict on blocks measured again, case by case, and what is printed."""

from __future__ import annotations

import json
import random
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.model import Model, load
from lolat.points import Point
from lolat.report.diagnosis import diagnose, median_limit, off
from lolat.report.diagnosis_text import lines
from microbench.chosen import choose
from microbench.doctor import Again, Difference, Examination
from tests import synthetic

NOISE = {"floor": 0.02, "reference_ms": 4.0, "calm_ms": 5.0}
MODEL = Model(synthetic.document(noise=NOISE))
VERSION = Difference("framework_version", "2.20.0", "2.21.0")


def found(*ratios: float, restless: tuple[int, ...] = (), **more: Any) -> Examination:
    """Blocks of 2, 4, 6 ... ms that take `ratios` times as long now."""
    blocks = tuple(
        Again(f"block {i}", 1, "compute", 2.0 + 2 * i, r * (2.0 + 2 * i), i not in restless)
        for i, r in enumerate(ratios)
    )
    usual = {"reference_ms": 4.1, "unrest": 1.1, "at_known_calm": True, "load": 0.2, "threads": 2}
    return Examination(blocks, **{**usual, "seconds": 9.5, "starting_s": 5.0, **more})


def said(examination: Examination, model: Model = MODEL) -> tuple[str, str]:
    """The verdict and everything that is printed."""
    result = diagnose(model, examination)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    return result["verdict"], "\n".join(lines(model, "desk model.json", result))


@pytest.mark.parametrize(("ratio", "far"), [(1.0, 0.0), (1.25, 0.25), (0.8, 0.25), (0.5, 1.0)])
def test_twice_as_fast_is_as_far_as_twice_as_slow(ratio: float, far: float) -> None:
    assert off(ratio) == pytest.approx(far)


@pytest.mark.parametrize(
    ("floor", "limit"), [(None, 0.1), (0.0, 0.1), (0.016, 0.1), (0.025, 0.1), (0.05, 0.2)]
)
def test_the_limit_comes_from_the_noise_floor(floor: float | None, limit: float) -> None:
    assert median_limit(floor) == pytest.approx(limit)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.0, 1.0, 1.0, 1.0, 1.0), "ok"),
        ((0.95, 1.02, 1.09, 1.28, 1.09), "ok"),
        ((1.05, 0.78, 1.0, 0.95, 1.25), "ok"),
        ((1.15, 1.11, 1.12, 1.09, 1.2), "drifted"),
        ((0.85, 0.9, 0.88, 0.95, 0.89), "drifted"),
        ((1.0, 1.0, 1.35, 1.0, 1.0), "drifted"),  # one alone
        ((1.0, 1.0, 1.0, 1.0, 0.7), "drifted"),
    ],
)
def test_on_a_calm_machine(ratios: tuple[float, ...], verdict: str) -> None:
    assert said(found(*ratios))[0] == verdict


def test_the_figures_by_hand() -> None:
    result = diagnose(MODEL, found(1.0, 1.2, 0.9, 1.1, 1.3, restless=(4,)))
    assert result["ratio"] == pytest.approx(1.05)  # of 0.9, 1.0, 1.1 and 1.2
    assert result["spread"] == pytest.approx([0.9, 1.2])
    assert (result["limit"], result["block_limit"]) == pytest.approx((0.1, 0.3))
    assert result["blocks"][1] == {
        "name": "block 1", "batch_size": 1, "role": "compute", "learned_ms": 4.0, "now_ms": 4.8,
        "ratio": 1.2, "calm": True,
    }  # fmt: skip
    assert result["reference"] == {"learned_ms": 4.0, "now_ms": 4.1, "ratio": 4.1 / 4.0}
    assert (result["seconds"], result["starting_seconds"]) == (9.5, 5.0)
    assert result["warnings"] == [
        "no calm moment for block 4 x1: the fastest of disturbed times and does not count"
    ]


def test_a_drift_says_how_much_and_what_to_do() -> None:
    verdict, text = said(found(1.2, 1.18, 1.19, 1.1, 1.25))
    assert verdict == "drifted"
    assert "drifted by +19 %: 19 % slower at the median (1.10 to 1.25 times as long)" in text
    assert (
        "What to do: learn a model of this machine as it is with `python learn_model.py cpu`"
        in text
    )
    assert "drifted by -20 %: 20 % faster" in said(found(0.8, 0.8, 0.8, 0.8, 0.8))[1]


def test_one_block_that_is_off_is_named() -> None:
    verdict, text = said(found(1.01, 1.02, 1.45, 1.0, 1.02))
    assert verdict == "drifted"
    assert "drifted by +45 % in block 2 x1; the blocks together are 2.0 % slower" in text


def test_a_disturbed_time_is_no_drift() -> None:
    assert said(found(1.0, 1.0, 1.0, 1.0, 9.0, restless=(4,)))[0] == "ok"


def test_another_state_is_no_drift() -> None:
    # What was seen when processors were moved apart: compute as before, the rest up to 1.7 times.
    slow = found(1.02, 1.15, 1.5, 1.6, 1.7, reference_ms=7.2, at_known_calm=False)
    verdict, text = said(slow)
    assert verdict == "unsettled"
    assert "cannot tell: the machine is busy, or in another state than when it was learned." in text
    assert "the reference block 80 % slower" in text
    assert "close other programs and ask again in some minutes. If it stays so" in text
    # And a model that was learned in that state.
    fast = found(0.98, 0.9, 0.7, 0.6, 0.6, reference_ms=2.4)
    assert said(fast)[0] == "unsettled"
    # If the blocks hold all the same, they do.
    assert said(found(1.0, 1.0, 1.0, 1.05, 1.2, reference_ms=7.2, at_known_calm=False))[0] == "ok"


def test_a_whole_machine_that_is_steadily_slower_has_drifted() -> None:
    slow = {"reference_ms": 6.2, "at_known_calm": False}
    same = (1.5, 1.55, 1.48, 1.52, 1.6)
    assert said(found(*same, **slow))[0] == "drifted"
    assert said(found(*same, **slow, unrest=1.5))[0] == "unsettled"
    assert said(found(*same, **slow, load=1.5))[0] == "unsettled"
    assert said(found(1.5, **slow))[0] == "unsettled", "one block alone shows no pattern"


def test_on_a_busy_machine() -> None:
    verdict, text = said(found(1.2, 1.2, 1.2, 1.2, 1.2, load=1.9))
    assert verdict == "unsettled"
    assert "note: the machine was busy before (load 1.9 on 2 threads): close other" in text
    verdict, text = said(found(1.0, 1.0, 1.0, 1.0, 1.0, load=1.9))
    assert verdict == "ok"
    assert "busy" in text


def test_another_machine_is_said_with_what_differs() -> None:
    away = Examination(
        differences=(Difference("processor", "a rack", "a desk"), Difference("threads", 64, 2))
    )
    verdict, text = said(away)
    assert verdict == "another machine"
    assert (
        "another machine: this is another processor: learned on a rack, here a desk; learned with threads "
        "64, here it is 2" in text
    )
    assert "learned       now" not in text
    assert diagnose(MODEL, away)["ratio"] is None


def test_another_version_is_said_with_what_was_measured() -> None:
    verdict, text = said(found(1.0, 1.01, 1.02, 1.03, 1.04, differences=(VERSION,)))
    assert verdict == "another machine"
    assert "learned with framework version 2.20.0, here it is 2.21.0" in text
    assert "The blocks hold all the same: 2.0 % slower" in text
    assert "block 3" in text
    twice = (2.0, 2.0, 2.0, 2.0, 2.0)
    assert "The blocks do not hold: " in said(found(*twice, differences=(VERSION,)))[1]
    busy = found(*twice, differences=(VERSION,), load=1.9)
    assert "busy, or in another state than then, so the blocks say little: " in said(busy)[1]
    result = diagnose(MODEL, busy)
    assert (result["verdict"], result["measured"]) == ("another machine", "unsettled")


def test_a_gpu_that_is_not_there() -> None:
    missing = Examination(
        differences=(Difference("device", "NVIDIA T4", None),), remark="no gpu here"
    )
    verdict, text = said(missing)
    assert verdict == "another machine"
    assert "learned with device NVIDIA T4, here it is not there" in text
    assert "note: no gpu here" in text


def test_a_model_that_does_not_know_its_noise() -> None:
    model = Model(synthetic.document(noise={"reference_ms": "fast"}))
    verdict, text = said(found(1.3, 1.3, 1.3, 1.3, 1.3, at_known_calm=None), model)
    assert verdict == "drifted"
    assert "the model does not say how fast the machine was when it was learned" in text
    assert "reference block" not in text.split("note:")[0]


def test_few_blocks_and_failures_are_said() -> None:
    text = said(found(1.0, 1.0, failures={"block 7 x1": "no memory"}))[1]
    assert "note: only 2 of the model's blocks could be measured again" in text
    assert "note: block 7 x1 could not be measured again, or not to the end: no memory" in text


def test_what_is_printed_fits_into_a_line_and_is_plain() -> None:
    block = Again("a\x1b[31m", 4, "reading weights", 13.944, 14.2, True)
    result = diagnose(MODEL, Examination((block,), seconds=9.0, starting_s=4.0))
    text = list(lines(MODEL, "desk model.json", result))
    assert "\x1b" not in "".join(text)
    table = [line for line in text if line.startswith("a\\x1b")]
    assert [line.split()[1:6] for line in table] == [["4", "13.9", "ms", "14.2", "ms"]]
    assert "Next: lolat evaluate 'desk model.json'" in text
    assert text[-1] == "9.0 s, 4.0 of them starting the framework"
    usual = "\n".join(lines(MODEL, "m", diagnose(MODEL, found(1.0, 1.0, 1.0, 1.0, 1.0))))
    assert max(map(len, usual.splitlines())) < 100
    assert "The blocks are as fast as then at the median (1.00 to 1.00 times as long)" in usual


@given(st.lists(st.floats(0.3, 3.0), min_size=1, max_size=5), st.floats(0.5, 2.0))
def test_a_verdict_is_the_same_for_faster_and_slower(ratios: list[float], reference: float) -> None:
    there = found(*ratios, reference_ms=4.0 * reference)
    back = found(*(1 / r for r in ratios), reference_ms=4.0 / reference)
    near = min(abs(off(statistics.median(ratios)) - 0.1), abs(off(reference) - 0.3))
    if near > 0.02 and len(ratios) % 2:  # an even number's median is no mirror image
        assert said(there)[0] == said(back)[0]


def test_no_alarm_for_the_noise_of_a_real_run() -> None:
    """Times as the doctor would have them, drawn from the raw samples of a learning run."""
    model = load("epyc-2t")
    points = [Point.from_dict(p) for p in model.document["points"]]
    chosen = [c.point for c in choose(points, model.predictor().to_dict()["coefficients"])]
    limit, draw = model.document["noise"]["calm_ms"], random.Random(1)
    verdicts = []
    for _ in range(200):
        blocks = []
        for p in chosen:
            assert p.samples_ms is not None
            calm = [t for t, r in zip(p.samples_ms, p.reference_ms, strict=True) if r <= limit]
            now = statistics.median(draw.choices(calm, k=6))
            blocks.append(Again(p.name, p.batch_size, "", p.latency_ms, now, True))
        examination = Examination(tuple(blocks), at_known_calm=True, reference_ms=4.3)
        verdicts.append(diagnose(model, examination)["verdict"])
    assert verdicts.count("ok") == 200
