"""The verdict on networks measured again, case by case, and its words."""

from __future__ import annotations

import json
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.api.doctor import Diagnosis, diagnosis
from lolat.api.model import Model
from lolat.device.state import LIMIT
from lolat.microbench.check import Measured, NetworkAgain
from lolat.microbench.environment import Difference
from lolat.microbench.timing import JobLatency, Latencies
from lolat.report.device import learned
from lolat.report.evaluation import doctor_lines
from lolat.report.tables import lines_of
from lolat.units import deviation
from tests import by_hand

MODEL = Model(by_hand.document())
VERSION = Difference("framework_version", "2.20.0", "2.21.0")


def judged(
    *ratios: float,
    model: Model = MODEL,
    unrest: float = 1.1,
    others: float = 0.1,
    failures: dict[str, str] | None = None,
    differences: tuple[Difference, ...] = (),
) -> Diagnosis:
    """Networks of 2, 4, 6 ... ms that take `ratios` times as long now."""
    sizes = [2.0 + 2 * i for i in range(len(ratios))]
    again = tuple(
        NetworkAgain(f"network {i}", 1, ms, r * ms, r)
        for i, (ms, r) in enumerate(zip(sizes, ratios, strict=True))
    )
    run = Latencies({"a": JobLatency(1.0, 0.0)}, 1.0, unrest, others)
    return diagnosis(model, differences, Measured((), again, failures or {}, run))


def printed(result: Diagnosis, model: Model = MODEL) -> str:
    """Everything that is printed; the JSON is strict."""
    assert json.dumps(result.to_dict(), allow_nan=False)
    return "\n".join(lines_of(doctor_lines(model, "desk model.json", result)))


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.0, 1.0, 1.0, 1.0, 1.0), "ok"),
        ((1.05, 0.84, 1.0, 0.95, 1.19), "ok"),
        ((1.15, 1.11, 1.12, 1.09, 1.19), "drifted"),
        ((1.0, 1.0, 1.5, 1.0, 1.0), "ok"),  # one alone
        ((1.0, 1.2, 1.2, 1.2, 1.0), "drifted"),
    ],
)
def test_on_a_calm_machine(ratios: tuple[float, ...], verdict: str) -> None:
    result = judged(*ratios)
    assert result.verdict == verdict
    assert result.holds == (verdict == "ok")
    assert result.ratio == pytest.approx(statistics.median(ratios))
    assert result.spread == pytest.approx((min(ratios), max(ratios)))
    assert result.rows()[1] == {
        "name": "network 1", "batch_size": 1, "learned_ms": 4.0, "now_ms": 4.0 * ratios[1],
        "ratio": ratios[1],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("noise", "limit", "verdict"),
    [
        # However noisy the learning was, the limit is the same.
        ({"quiet": 0.9, "busy": 1.25}, 0.1, "drifted"),
        ({"repeatability": 0.06}, 0.1, "drifted"),
        ({"repeatability": 0.19}, 0.19, "ok"),
        ({"repeatability": 0.15}, 0.15, "drifted"),
    ],
)
def test_the_limit_is_fixed_but_for_a_model_that_repeats_worse(
    noise: dict[str, Any], limit: float, verdict: str
) -> None:
    model = Model(dict(MODEL.file.document) | {"noise": {"floor": 0.03, **noise}})
    result = judged(1.18, 1.2, 1.16, 1.18, 1.19, model=model)
    assert (result.verdict, result.limit) == (verdict, limit)
    text = printed(result, model)
    assert ("up to 19 % is how far this device's own repeated times differ" in text) == (
        limit == 0.19
    )
    assert ("up to 10 % is usual" in text) == (limit == 0.1)


@pytest.mark.parametrize(
    ("now", "verdict"), [(0.5, "unsettled"), (1.25, "unsettled"), (1.15, "ok")]
)
def test_a_profile_learned_on_an_unsteady_machine_holds_no_change_for_usual(
    now: float, verdict: str
) -> None:
    """Its own noise is no limit: times that halved since were within one of 333 %."""
    model = Model(dict(MODEL.file.document) | {"noise": {"repeatability": 3.33}})
    result = judged(*(now,) * 5, model=model)
    assert (result.verdict, result.limit) == (verdict, 0.2)
    text = printed(result, model)
    told = "unsettled: learned while the machine was busy or unsteady; learn again" in text
    assert told == ("learn again with `lolat learn cpu" in text) == (verdict == "unsettled")
    assert "333 %" not in text


@pytest.mark.parametrize(
    ("ratio", "others", "first"),
    [
        (1.0, 0.0, "ok: this profile is good for this machine now."),
        (1.4, 0.0, "drifted by +40 %: this profile is no longer good for this machine."),
        (1.4, 0.9, "unsettled: whether this profile is good cannot be told now, as the machine is"),
    ],
)
def test_the_verdict_and_its_remedy_stand_above_the_networks(
    ratio: float, others: float, first: str
) -> None:
    lines = printed(judged(*(ratio,) * 3, others=others)).splitlines()
    assert lines[0].startswith(first)
    (remedy,) = [i for i, n in enumerate(lines) if n.startswith(("What to do: ", "Next: "))]
    (table,) = [i for i, n in enumerate(lines) if n.startswith("network 0")]
    assert remedy < table


def test_the_remedy_keeps_the_threads_and_the_options_of_the_profile() -> None:
    where = dict(MODEL.file.document["environment"])
    where |= {"framework": "torch", "compile": True, "threads": 1, "threads_asked": 1}
    model = Model(dict(MODEL.file.document) | {"environment": where})
    text = printed(judged(1.4, 1.4, 1.4, model=model), model)
    assert "`lolat learn cpu --backend torch --compile --threads 1`" in text
    assert model.file.environment.learn_command("onnxruntime") == (
        "lolat learn cpu --backend onnxruntime --threads 1"
    )


@pytest.mark.parametrize("state", [{"others": 0.95}, {"unrest": 1.51}], ids=str)
def test_a_busy_or_unsteady_machine_is_no_drift(state: dict[str, Any]) -> None:
    result = judged(1.4, 1.4, 1.4, 1.4, 1.4, **state)
    assert result.verdict == "unsettled"
    text = printed(result)
    assert "40 % slower at the median" in text
    assert "close other programs and ask again" in text
    assert ("during this check other programs used 0.9 processors" in text) == ("others" in state)
    # If the networks hold all the same, they do.
    assert judged(1.0, 1.0, 1.05, **state).holds


@pytest.mark.parametrize(
    ("framework", "installed", "last"),
    [
        ("tensorflow", False, "Next: lolat evaluate 'desk model.json'"),
        ("torch", True, "Next: lolat evaluate 'desk model.json' timm:resnet50"),
        ("torch", False, None),
        ("onnxruntime", True, None),  # of which no network has a name
    ],
)
def test_the_next_command_runs_as_printed(
    monkeypatch: pytest.MonkeyPatch, framework: str, installed: bool, last: str | None
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: "/bin/lolat")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object() if installed else None)
    where = dict(MODEL.file.document["environment"]) | {"framework": framework}
    model = Model(dict(MODEL.file.document) | {"environment": where})
    text = printed(judged(1.0, 1.0, 1.0, model=model), model)
    assert [n for n in text.splitlines() if n.startswith("Next:")] == ([last] if last else [])
    learned_lines = [*lines_of(learned(model, "a.json", "desk model.json"))]
    (after,) = [n for n in learned_lines if n.startswith("Next:") and " show " in n]
    told = [part for part in after.removeprefix("Next: ").split(" · ") if " evaluate " in part]
    assert told == ([last.removeprefix("Next: ")] if last else [])


def test_another_machine_is_said_with_its_differences() -> None:
    away = (Difference("processor", "a rack", "a desk"), Difference("threads", 64, 2))
    result = diagnosis(MODEL, away, remark="no gpu here")
    assert (result.verdict, result.holds, result.networks) == ("another machine", False, ())
    assert (result.ratio, result.spread) == (None, None)
    text = printed(result)
    assert "this is another processor: learned on a rack, here a desk" in text
    assert "learned with threads 64, here it is 2" in text
    assert "note: no gpu here" in text


def test_another_version_is_said_with_the_times() -> None:
    result = judged(*(2.0,) * 5, differences=(VERSION,))
    assert (result.verdict, result.ratio) == ("another machine", 2.0)
    text = printed(result)
    assert "learned with framework version 2.20.0, here it is 2.21.0" in text
    assert "network 3" in text


@given(st.lists(st.floats(0.3, 3.0), min_size=1, max_size=5))
def test_a_verdict_is_the_same_for_faster_and_slower(ratios: list[float]) -> None:
    near = abs(deviation(statistics.median(ratios)) - LIMIT)
    if near > 1e-6 and len(ratios) % 2:  # an even number's median is no mirror image
        assert judged(*ratios).verdict == judged(*(1 / r for r in ratios)).verdict
