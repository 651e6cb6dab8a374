"""The figures of `evaluate`, against SciPy and scikit-learn."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from lolat.api.measuring import Evaluation, compared
from lolat.api.model import Model
from lolat.errors import MeasuringError
from lolat.fitting.cross_validation import figures
from lolat.graph import Graph
from lolat.microbench.check import Case, Measured, MeasuredNetwork
from lolat.microbench.environment import Difference
from lolat.microbench.timing import JobLatency, Latencies
from lolat.report.evaluation import evaluation_lines, verdict
from lolat.report.tables import lines_of
from tests import by_hand, synthetic

MODEL = Model(by_hand.document())
GRAPH = synthetic.network()
BIG = synthetic.network(size=224, name="big")


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 50)), min_size=3, max_size=30).filter(
        lambda pairs: all(len({p[i] for p in pairs}) > 1 for i in (0, 1))
    )
)
def test_figures_are_those_of_scipy_and_sklearn(pairs: list[tuple[int, int]]) -> None:
    predicted, measured = np.array(pairs, float).T
    found = figures(predicted, measured)
    assert found["spearman"] == pytest.approx(stats.spearmanr(predicted, measured)[0], abs=1e-9)
    relative = predicted / measured - 1
    assert found["median"] == pytest.approx(np.median(abs(relative)))
    assert found["mean"] == pytest.approx(np.mean(abs(relative)))
    assert found["bias"] == pytest.approx(np.median(relative))


def test_what_is_not_defined_is_null() -> None:
    one, same = np.array([1.0]), np.array([2.0, 2.0])
    for predicted, measured in ((one, one), (same, np.array([1.0, 2.0]))):
        assert figures(predicted, measured)["spearman"] is None


def run(*rows: tuple[str, Graph, int, float], **failures: str) -> Measured:
    """Measured networks: (network, graph, batch size, ms)."""
    networks = (MeasuredNetwork(Case(name, n), graph, ms, 0.01) for name, graph, n, ms in rows)
    return Measured(
        tuple(networks), (), failures, Latencies({"a": JobLatency(1.0, 0.02)}, 0.9, 1.2)
    )


def measured(**failures: str) -> Measured:
    """One as predicted, one a quarter slower than predicted, one far outside its interval."""
    small, big = MODEL.predict(GRAPH).latency_ms, MODEL.predict(BIG, 2).latency_ms
    far = 100 * MODEL.predict(GRAPH, 4).latency_ms
    return run(
        ("keras:Small", GRAPH, 1, small),
        ("keras:Big", BIG, 2, 1.25 * big),
        ("keras:Small", GRAPH, 4, far),
        **failures,
    )


def printed(result: Evaluation) -> str:
    return "\n".join(lines_of(evaluation_lines(result)))


def test_the_result_is_one_json_object() -> None:
    found = json.loads(
        json.dumps(compared(MODEL, measured(x="died"), None).to_dict(), allow_nan=False)
    )
    assert found["predictor"] == "extended"
    assert [r["error"] for r in found["networks"]] == pytest.approx([0, -0.2, -0.99])
    assert found["summary"]["median"] == pytest.approx(0.2)
    assert found["summary"]["within_10_percent"] == pytest.approx(1 / 3)
    inside = [r["interval_ms"][0] <= r["measured_ms"] <= r["interval_ms"][1]
              for r in found["networks"]]  # fmt: skip
    assert [r["inside"] for r in found["networks"]] == inside
    widths = [(r["interval_ms"][1] - r["interval_ms"][0]) / r["predicted_ms"]
              for r in found["networks"]]  # fmt: skip
    assert [r["interval_width"] for r in found["networks"]] == pytest.approx(widths)
    assert {r["coverage"] for r in found["networks"]} == {0.9}
    assert found["intervals"] == {"coverage": 0.9, "inside": sum(inside), "of": 3}
    assert inside[0]
    assert not inside[2]
    assert found["failures"] == {"x": "died"}
    assert found["noise_floor"] == 0.03


def test_a_machine_that_moved_is_told_and_corrects_nothing() -> None:
    """All twice as slow: the error is that of the prediction as it is given, and its interval too."""
    usual = MODEL.predict(GRAPH)
    result = compared(MODEL, run(("keras:Small", GRAPH, 1, 2.0 * usual.latency_ms)), 2.0)
    found = result.to_dict()
    (row,) = found["networks"]
    assert row["predicted_ms"] == pytest.approx(usual.latency_ms)
    assert row["interval_ms"] == pytest.approx(list(usual.interval_ms or ()))
    assert row["error"] == found["summary"]["bias"] == pytest.approx(-0.5)
    assert (found["ratio"], row["inside"]) == (2.0, False)
    text = printed(result)
    wanted = (
        "machine meanwhile: 2.00 times as long as learned; with that taken out median error 0.0 %"
    )
    assert wanted in text
    assert found["ratio_taken_out"] == pytest.approx(
        {"median": 0.0, "bias": 0.0, "within_10_percent": 1.0}
    )
    assert (found["verdict"], found["cause"], found["limit"]) == ("poor", "machine", 0.1)
    assert "off by 50 % at the median; the machine has become 2.0 times slower since" in text


def test_a_ratio_that_does_not_fit_the_networks_is_not_taken_out() -> None:
    """The reference blocks took twice as long; the network was 11 % faster than predicted."""
    ms = 0.9 * MODEL.predict(GRAPH).latency_ms
    result = compared(MODEL, run(("keras:Small", GRAPH, 1, ms)), 2.0)
    assert "2.00 times as long as learned; a factor that does not fit these" in printed(result)
    assert "taken out median" not in printed(result)


def judged(
    error: float,
    bias: float = 0.0,
    floor: float = 0.03,
    outside: int = 0,
    of: int = 3,
    ratio: float | None = 1.0,
    rest: float = 0.2,
    limit: float = 0.1,
) -> tuple[str | None, str]:
    """The cause and the words of a verdict on `of` networks, `outside` of them outside the domain.

    `rest`: the error with the machine's ratio taken out.
    """
    usual = compared(MODEL, run(*(("", GRAPH, 1, 1.0),) * of), None)
    networks = tuple(
        replace(n, network=f"keras:N{i}", in_domain=i >= outside)
        for i, n in enumerate(usual.networks)
    )
    result = replace(
        usual, model="desk", summary={"median": error, "bias": bias}, networks=networks, limit=limit,
        ratio=ratio, ratio_taken_out=None if ratio is None else {"median": rest}, noise_floor=floor,
    )  # fmt: skip
    return result.cause, verdict(result)


@pytest.mark.parametrize(
    ("factor", "word"), [(1.08, "good"), (1.09, "fair"), (1.17, "fair"), (1.18, "poor")]
)
def test_how_good_a_model_is(factor: float, word: str) -> None:
    """Errors of 7.4, 8.3, 14.5 and 15.3 %."""
    ms = factor * MODEL.predict(GRAPH).latency_ms
    assert compared(MODEL, run(("keras:Small", GRAPH, 1, ms)), None).verdict == word


FIT = (
    "write their times into timed.csv and fit them in: lolat fit desk timed.csv --output mine.json."
)


@pytest.mark.parametrize(
    ("given", "cause", "words"),
    [
        ({"outside": 2, "bias": 0.2, "floor": 0.5}, "domain",
         f"most of these networks (keras:N0 ...) hold what was never measured: {FIT}"),
        ({"outside": 1, "floor": 0.11, "bias": 0.2}, "noise", "noise of the measurements"),
        # Only a machine that moved beyond its limit is blamed, and then nothing else is.
        ({"bias": -0.15, "ratio": 1.11}, "machine",
         "the machine has become 11 % slower since it was learned (up to 10 % is usual): close other"),
        ({"bias": 0.15, "ratio": 0.9}, "machine",
         "the machine has become 10 % faster since it was learned (up to 10 % is usual), which was in"),
        ({"ratio": 1.2, "limit": 0.25}, "formula", "the formula lacks something here"),
        # Only where it did not move, the formula is.
        ({"bias": 0.15, "ratio": 0.95}, "formula", f"most come out too slow; {FIT}"),
        ({"bias": 0.13}, "formula", f"its errors go both ways; {FIT}"),
        ({"bias": -0.15, "ratio": 1.09, "rest": 0.05}, "level", "within 10 % of the learned one"),
        ({"bias": -0.15, "ratio": None}, "formula", "most come out too fast"),
    ],
)  # fmt: skip
def test_what_an_error_is_from(given: dict[str, Any], cause: str, words: str) -> None:
    found, said = judged(0.2, **given)
    assert found == cause
    assert said.startswith("This profile is poor here, off by 20 % at the median; ")
    assert words in said


@pytest.mark.parametrize("state", [{"others": 0.95}, {"busy": 1.8}], ids=str)
def test_a_busy_machine_judges_no_profile(state: dict[str, float]) -> None:
    """As `doctor`: a machine that has moved while other programs run says nothing of the profile."""
    ms = 48.41 * MODEL.predict(GRAPH).latency_ms
    run_now = run(("keras:Small", GRAPH, 1, ms))
    state = {"others": 0.1, **state}
    run_now = replace(run_now, latencies=replace(run_now.latencies, **state))
    result = compared(MODEL, run_now, 48.41)
    assert (result.verdict, result.cause) == ("unsettled", "machine")
    told = "cannot be judged now: the machine is busy or unsteady (it is 48.4 times slower than learned; "
    assert told in printed(result)
    assert "poor" not in result.words() + printed(result)
    # The machine's own networks may miss the load that a user's network meets.
    missed = compared(MODEL, run_now, 1.05)
    assert (missed.verdict, missed.cause) == ("unsettled", "machine")
    assert "fit them in" not in printed(missed)
    # On a calm machine it is judged.
    calm = replace(result, noise=result.noise | {"others": 0.1, "busy": 1.2})
    assert calm.verdict == "poor"
    # The profile of another machine says nothing of this one, busy or not.
    other = replace(result, differences=(Difference("cpu", "AMD EPYC", "Intel Xeon"),))
    assert (other.verdict, other.cause) == ("poor", "machine")
    assert "this is another machine, 48.4 times slower than that of the profile: learn" in verdict(
        other
    )


@pytest.mark.parametrize(
    ("unrests", "verdict"),
    [((1.14, 1.0), "poor"), ((1.9, 1.0), "unsettled"), ((1.9, 1.0, 1.1), "poor")],
)
def test_rounds_of_the_networks_tell_of_a_load_that_nothing_else_shows(
    unrests: tuple[float, ...], verdict: str
) -> None:
    """Of three, one unsteady network does not decide the median."""
    ms = 1.7 * MODEL.predict(GRAPH).latency_ms
    found = run(*(("keras:Small", GRAPH, 1, ms),) * len(unrests))
    networks = (replace(n, unrest=u) for n, u in zip(found.networks, unrests, strict=True))
    result = compared(MODEL, replace(found, networks=tuple(networks)), 1.0)
    assert result.verdict == verdict
    told = "keras:Small usually took 1.9 times its fastest round" in printed(result)
    assert told == (verdict == "unsettled")
    assert ("usually 1.9 times its fastest" in printed(result)) == (1.9 in unrests)


def test_a_model_without_residuals_or_noise() -> None:
    document = synthetic.document(noise={})
    for predictor in document["predictors"].values():
        del predictor["residuals"]
        predictor.pop("interval", None)
    result = compared(Model(document), measured(), None)
    assert result.intervals is None
    first = result.networks[0]
    assert (first.interval_ms, first.interval_width, first.inside) == (None, None, None)
    text = printed(result)
    assert "inside" not in text
    assert "noise floor" not in text


def test_where_nothing_could_be_measured() -> None:
    with pytest.raises(MeasuringError, match=r"no network could be measured \(a: no memory; b: x"):
        compared(MODEL, run(a="no memory", b="x"), None)
