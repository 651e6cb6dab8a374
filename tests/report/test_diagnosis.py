"""The verdict on networks measured again, case by case, and what is printed."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.fitting.points import Point
from lolat.model import Model
from lolat.model.state import LIMIT
from lolat.report.evaluation import doctor_lines as lines
from lolat.units import off
from microbench.doctor import Again, Difference, Examination, diagnose
from tests import by_hand, synthetic

MODEL = Model(by_hand.document())
VERSION = Difference("framework_version", "2.20.0", "2.21.0")
COUNTS = synthetic.totals(synthetic.network())


def again(i: int, ratio: float) -> Again:
    ms = 2.0 + 2 * i
    return Again(Point(f"network {i}", 1, COUNTS, ms, whole=True), ratio * ms)


def found(*ratios: float, **more: Any) -> Examination:
    """Networks of 2, 4, 6 ... ms that take `ratios` times as long now."""
    usual = {"unrest": 1.1, "others": 0.1, "seconds": 9.5, "starting_s": 5.0}
    return Examination(tuple(again(i, r) for i, r in enumerate(ratios)), **{**usual, **more})


def said(examination: Examination, model: Model = MODEL) -> tuple[str, str]:
    """The verdict and everything that is printed."""
    result = diagnose(model, examination)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    return result["verdict"], "\n".join(lines(model, "desk model.json", result))


@pytest.mark.parametrize(("ratio", "far"), [(1.0, 0.0), (1.25, 0.25), (0.8, 0.25), (0.5, 1.0)])
def test_twice_as_fast_is_as_far_as_twice_as_slow(ratio: float, far: float) -> None:
    assert off(ratio) == pytest.approx(far)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.0, 1.0, 1.0, 1.0, 1.0), "ok"),
        ((0.95, 1.02, 1.09, 1.19, 1.09), "ok"),
        ((1.05, 0.84, 1.0, 0.95, 1.19), "ok"),
        ((1.15, 1.11, 1.12, 1.09, 1.19), "drifted"),
        ((0.85, 0.9, 0.88, 0.95, 0.89), "drifted"),
        ((1.0, 1.0, 1.5, 1.0, 1.0), "ok"),  # one alone
        ((1.0, 1.2, 1.2, 1.2, 1.0), "drifted"),
    ],
)
def test_on_a_calm_machine(ratios: tuple[float, ...], verdict: str) -> None:
    assert said(found(*ratios))[0] == verdict


def test_the_figures_by_hand() -> None:
    result = diagnose(MODEL, found(1.0, 1.2, 0.9, 1.1))
    assert result["ratio"] == pytest.approx(1.05)
    assert result["spread"] == pytest.approx([0.9, 1.2])
    assert result["limit"] == 0.1
    assert result["networks"][1] == {
        "name": "network 1", "batch_size": 1, "learned_ms": 4.0, "now_ms": 4.8,
        "ratio": pytest.approx(1.2),
    }  # fmt: skip
    assert (result["unrest"], result["seconds"], result["starting_seconds"]) == (1.1, 9.5, 5.0)
    assert (result["model"], result["device"]) == (MODEL.name, MODEL.device)


def test_the_limit_is_the_same_however_noisy_the_learning_was() -> None:
    """Learned where the busiest tenth took 1.25 times and the calmest 0.9 times as long as usual."""
    unsteady = Model(dict(MODEL.document) | {"noise": {"quiet": 0.9, "busy": 1.25}})
    far = found(1.2, 1.22, 1.18, 1.2, 1.21)
    for model in (MODEL, unsteady):
        result = diagnose(model, far)
        assert (result["verdict"], result["limit"]) == ("drifted", 0.1)


@pytest.mark.parametrize(
    ("repeatability", "limit", "verdict"),
    [(0.06, 0.1, "drifted"), (0.25, 0.25, "ok"), (0.15, 0.15, "drifted"),
     (None, 0.1, "drifted")],
)  # fmt: skip
def test_the_limit_is_at_least_what_the_model_itself_repeats_to(
    repeatability: Any, limit: float, verdict: str
) -> None:
    noise = {"floor": 0.03, "repeatability": repeatability}
    model = Model(dict(MODEL.document) | {"noise": noise})
    far = found(1.2, 1.22, 1.18, 1.2, 1.21)
    told, text = said(far, model)
    assert (told, diagnose(model, far)["limit"]) == (verdict, limit)
    assert ("up to 25 % is what this model's own measurements differ by" in text) == (limit == 0.25)
    assert ("up to 10 % is usual" in text) == (limit == 0.1)


@pytest.mark.parametrize(
    ("ratios", "verdict", "words"),
    [
        ((1.02,) * 5, "ok", "2.0 % slower at the median (1.02 to 1.02 times as long)"),
        ((1.0,) * 5, "ok", "as fast as then at the median (1.00 to 1.00 times as long)"),
        ((1.2, 1.18, 1.19, 1.1, 1.25), "drifted",
         "drifted by +19 %: 19 % slower at the median (1.10 to 1.25 times as long)"),
        ((0.8,) * 5, "drifted", "drifted by -20 %: 20 % faster"),
    ],
)  # fmt: skip
def test_the_verdict_says_how_much_and_what_to_do(
    ratios: tuple[float, ...], verdict: str, words: str
) -> None:
    told, text = said(found(*ratios))
    assert told == verdict
    assert words in text
    assert ("What to do: learn" in text) == (verdict == "drifted")
    assert ("lolat learn cpu" in text) == (verdict == "drifted")
    assert ("up to 10 % is usual" in text) == (verdict in ("ok", "drifted"))
    gpu = Model(synthetic.document(environment={"device": "gpu"}))
    assert "with `lolat learn gpu`" in said(found(2.0, 2.0, 2.0), gpu)[1]


@pytest.mark.parametrize(
    "busy", [{"others": 0.95}, {"unrest": 1.51}, {"others": 0.95, "unrest": None}], ids=str
)
def test_a_busy_or_unsteady_machine_is_no_drift(busy: dict[str, Any]) -> None:
    verdict, text = said(found(1.4, 1.4, 1.4, 1.4, 1.4, **busy))
    assert verdict == "unsettled"
    advice = "close other programs and ask again in some minutes"
    for words in ("the machine is busy or unsteady now", "40 % slower at the median", advice):
        assert words in text
    assert ("other programs used 0.9 processors meanwhile" in text) == ("others" in busy)
    # If the networks hold all the same, they do.
    assert said(found(1.0, 1.0, 1.05, **busy))[0] == "ok"


@pytest.mark.parametrize(
    "calm", [{"others": 0.2}, {"unrest": 1.5}, {"others": 0.0, "unrest": None}], ids=str
)
def test_what_is_neither_busy_nor_unsteady(calm: dict[str, Any]) -> None:
    """A fifth of a processor may be used."""
    assert said(found(1.4, 1.4, 1.4, **calm))[0] == "drifted"


def test_another_machine_is_said_with_what_differs() -> None:
    processor, threads = Difference("processor", "a rack", "a desk"), Difference("threads", 64, 2)
    away = Examination(differences=(processor, threads))
    verdict, text = said(away)
    assert verdict == "another machine"
    assert "this is another processor: learned on a rack, here a desk" in text
    assert "learned with threads 64, here it is 2" in text
    assert "learned       now" not in text
    result = diagnose(MODEL, away)
    assert (result["ratio"], result["spread"], result["measured"]) == (None,) * 3
    assert result["networks"] == []


@pytest.mark.parametrize(
    ("ratio", "others", "measured", "words"),
    [
        (1.02, 0.1, "ok", "The networks hold all the same: 2.0 % slower"),
        (2.0, 0.1, "drifted", "The networks do not hold: "),
        (2.0, 0.9, "unsettled", "The machine is busy or unsteady, so the networks say little: "),
    ],
)
def test_another_version_is_said_with_what_was_measured(
    ratio: float, others: float, measured: str, words: str
) -> None:
    examination = found(*(ratio,) * 5, differences=(VERSION,), others=others)
    verdict, text = said(examination)
    assert verdict == "another machine"
    assert "learned with framework version 2.20.0, here it is 2.21.0" in text
    assert words in text
    assert "network 3" in text
    assert diagnose(MODEL, examination)["measured"] == measured


@pytest.mark.parametrize(
    ("difference", "words"),
    [
        (Difference("l3_bytes", 1, 2), "learned with bytes of third-level cache 1, here it is 2"),
        (Difference("threads_given", 1, 2), "threads that the framework may use 1, here it is 2"),
        (Difference("float32_products", "high", ""), "float32 products high, here it is none"),
        (Difference("instruction_sets", "", "avx512"), "instruction sets none, here it is avx512"),
        (Difference("device", "NVIDIA T4", None), "learned with device NVIDIA T4, here it is not there"),
    ],
)  # fmt: skip
def test_differences_in_words(difference: Difference, words: str) -> None:
    assert words in said(found(1.0, 1.0, 1.0, differences=(difference,)))[1]


def test_what_else_is_noted() -> None:
    few = said(found(1.0, 1.0, failures={"network 7 x1": "no memory"}, remark="no gpu here"))[1]
    assert "note: only 2 of the model's networks could be measured again" in few
    assert "note: network 7 x1 could not be measured again, or not to the end: no memory" in few
    assert "note: no gpu here" in few
    usual = said(found(1.0, 1.0, 1.0))[1]
    assert "only" not in usual
    assert "other programs" not in usual
    assert max(map(len, usual.splitlines())) < 100


def test_what_is_printed_is_plain() -> None:
    one = Again(Point("a\x1b[31m", 4, COUNTS, 13.944, whole=True), 14.2)
    result = diagnose(MODEL, Examination((one,), seconds=9.0, starting_s=4.0))
    text = list(lines(MODEL, "desk model.json", result))
    assert "\x1b" not in "".join(text)
    table = [line for line in text if line.startswith("a\\x1b")]
    assert [line.split()[1:] for line in table] == [["4", "13.9", "ms", "14.2", "ms", "1.02"]]
    assert "Next: lolat evaluate 'desk model.json'" in text
    assert text[-1] == "9.0 s, 4.0 of them starting the framework"


@given(st.lists(st.floats(0.3, 3.0), min_size=1, max_size=5))
def test_a_verdict_is_the_same_for_faster_and_slower(ratios: list[float]) -> None:
    near = abs(off(statistics.median(ratios)) - LIMIT)
    if near > 1e-6 and len(ratios) % 2:  # an even number's median is no mirror image
        there, back = found(*ratios), found(*(1 / r for r in ratios))
        assert said(there)[0] == said(back)[0]
