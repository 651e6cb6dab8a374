"""The figures of `evaluate`, against SciPy and scikit-learn."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import r2_score

from lolat.errors import MeasuringError
from lolat.model import Model
from lolat.model.figures import correlation, figures, r_squared, share_bounds
from lolat.report.evaluation import lines, verdict
from microbench.evaluate import compare
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
    assert found["pearson"] == pytest.approx(stats.pearsonr(predicted, measured)[0], abs=1e-9)
    assert found["spearman"] == pytest.approx(stats.spearmanr(predicted, measured)[0], abs=1e-9)
    assert found["r2"] == pytest.approx(r2_score(measured, predicted), abs=1e-9)
    relative = predicted / measured - 1
    assert found["median"] == pytest.approx(np.median(abs(relative)))
    assert found["mean"] == pytest.approx(np.mean(abs(relative)))
    assert found["bias"] == pytest.approx(np.median(relative))


def test_what_is_not_defined_is_null() -> None:
    one, same = np.array([1.0]), np.array([2.0, 2.0])
    assert correlation(one, one) is None
    assert correlation(same, np.array([1.0, 2.0])) is None
    assert r_squared(one, one) is None
    json.dumps(figures(one, one), allow_nan=False)


@pytest.mark.parametrize(("inside", "of"), [(0, 1), (1, 1), (18, 20), (20, 20), (0, 7), (3, 40)])
@pytest.mark.parametrize("certainty", [0.8, 0.95])
def test_bounds_of_a_share_are_those_of_scipy(inside: int, of: int, certainty: float) -> None:
    oracle = stats.binomtest(inside, of).proportion_ci(certainty, method="exact")
    assert share_bounds(inside, of, certainty) == pytest.approx((oracle.low, oracle.high))


def measured() -> list[synthetic.Measured]:
    """One as predicted, one a tenth slower than predicted, one far outside its interval."""
    small, big = MODEL.predict(GRAPH).latency_ms, MODEL.predict(BIG, 2).latency_ms
    return [
        synthetic.Measured("keras:Small", GRAPH, 1, small),
        synthetic.Measured("keras:Big", BIG, 2, 1.25 * big),
        synthetic.Measured("keras:Small", GRAPH, 4, 100 * MODEL.predict(GRAPH, 4).latency_ms),
    ]


def test_the_result_is_one_json_object() -> None:
    found = json.loads(json.dumps(compare(MODEL, measured(), {"x at 1": "died"}), allow_nan=False))
    assert found["predictor"] == "extended"
    assert [r["error"] for r in found["networks"]] == pytest.approx([0, -0.2, -0.99])
    assert found["summary"]["median"] == pytest.approx(0.2)
    assert found["summary"]["within_10_percent"] == pytest.approx(1 / 3)
    inside = [r["interval_ms"][0] <= r["measured_ms"] <= r["interval_ms"][1]
              for r in found["networks"]]  # fmt: skip
    assert found["inside_interval"] == sum(inside)
    assert [r["inside"] for r in found["networks"]] == inside
    widths = [(r["interval_ms"][1] - r["interval_ms"][0]) / r["predicted_ms"]
              for r in found["networks"]]  # fmt: skip
    assert [r["interval_width"] for r in found["networks"]] == pytest.approx(widths)
    assert {r["coverage"] for r in found["networks"]} == {0.9}
    oracle = stats.binomtest(sum(inside), 3).proportion_ci(0.95, method="exact")
    assert found["intervals"] == {
        "coverage": 0.9, "certainty": 0.95, "inside": sum(inside), "of": 3,
        "bounds": pytest.approx([oracle.low, oracle.high]),
        "median_width": pytest.approx(np.median(widths)),
    }  # fmt: skip
    assert inside[0]
    assert not inside[2]
    assert found["failures"] == {"x at 1": "died"}
    assert found["noise_floor"] == 0.03


def test_a_machine_that_moved_is_told_and_corrects_nothing() -> None:
    """All twice as slow: the error is that of the prediction as it is given, and its interval too."""
    usual = MODEL.predict(GRAPH)
    networks = [synthetic.Measured("keras:Small", GRAPH, 1, 2.0 * usual.latency_ms)]
    found = json.loads(json.dumps(compare(MODEL, networks, {}, 2.0), allow_nan=False))
    (row,) = found["networks"]
    assert row["predicted_ms"] == pytest.approx(usual.latency_ms)
    assert row["interval_ms"] == pytest.approx(list(usual.interval_ms or ()))
    assert row["error"] == found["summary"]["bias"] == pytest.approx(-0.5)
    assert (found["ratio"], row["inside"], found["inside_interval"]) == (2.0, False, 0)
    text = "\n".join(lines(found))
    assert "the model's own networks took 2.00 times as long as when it was learned" in text
    assert "off by 50 % at the median; the machine has changed since it was learned" in text


def test_without_networks_nothing_says_how_fast_the_machine_was() -> None:
    found = compare(MODEL, measured(), {})
    assert found["ratio"] is None
    wanted = "the model has no networks of its own that say how fast the machine was meanwhile"
    assert wanted in list(lines(found))


def judged(
    error: float,
    bias: float = 0.0,
    floor: float | None = 0.03,
    outside: int = 0,
    of: int = 3,
    ratio: float | None = None,
) -> str:
    """The verdict on `of` networks, `outside` of them outside the domain."""
    return verdict({
        "model": "desk", "noise_floor": floor, "ratio": ratio,
        "summary": {"median": error, "bias": bias},
        "networks": [{"network": f"keras:N{i}", "in_domain": i >= outside} for i in range(of)],
    })  # fmt: skip


def test_a_good_model() -> None:
    said = "This model is good here: half of these networks are within 8.0 %."
    assert judged(0.08) == said
    assert judged(0.08, bias=-0.08, floor=0.5, outside=3) == said, "there is nothing to mend"
    assert judged(0.0801).startswith("This model is fair here, off by 8.0 % at the median; ")
    assert judged(0.15).startswith("This model is fair here, off by 15 % at the median; ")
    assert judged(0.151).startswith("This model is poor here, off by 15 % at the median; ")


MOVED = "the machine has changed since it was learned: close other programs, or learn again."
BOTH_WAYS = "the formula does not know something about this device: its errors go both ways."


@pytest.mark.parametrize(
    ("given", "limit"),
    [
        ({"outside": 2, "bias": 0.2, "floor": 0.5},
         "most of these networks (keras:N0 ...) hold what was never measured: write their times into "
         "timed.csv and fit them in: lolat fit desk timed.csv --output mine.json."),
        ({"outside": 1, "floor": 0.11, "bias": 0.2},
         "the machine is noisy: close other programs, learn and evaluate again."),
        ({"bias": -0.15, "ratio": 1.11}, MOVED),
        ({"bias": 0.15, "ratio": 0.9}, MOVED),
        ({"bias": 0.15, "ratio": 0.95}, "all come out too slow: learn again."),
        ({"bias": -0.15}, "all come out too fast: learn again."),
        ({"bias": 0.13}, BOTH_WAYS),
        ({"floor": 0.1}, BOTH_WAYS),
        ({"floor": None}, BOTH_WAYS),
    ],
)  # fmt: skip
def test_what_limits_a_model(given: dict[str, Any], limit: str) -> None:
    assert judged(0.2, **given) == f"This model is poor here, off by 20 % at the median; {limit}"


def test_the_verdict_is_printed() -> None:
    found = compare(MODEL, measured(), {})
    assert verdict(found) in list(lines(found))
    assert verdict(found).startswith("This model is poor here, off by 20 % at the median")


def test_the_lines_say_all_of_it() -> None:
    text = "\n".join(lines(compare(MODEL, measured(), {"keras:VGG16 at batch 4": "no memory"})))
    assert "keras:Big" in text
    assert "-20.0 %" in text
    assert "extended: median error 20 % (noise floor 3.0 %), -20 % bias, 33 % within 10 %, " in text
    assert "R² " in text
    assert "Spearman " in text
    wanted = r"^inside the 90 % interval: \d of 3 \(\d+ \.\. \d+ % with 95 % certainty\)$"
    assert re.search(wanted, text, re.MULTILINE)
    wanted = r"^width of the intervals, from low to high: [\d.]+ % of the prediction at the median$"
    assert re.search(wanted, text, re.MULTILINE)
    assert "noise floor: what measuring a block again gives; no predictor can beat it" in text
    assert "not measured: keras:VGG16 at batch 4: no memory" in text
    widths = {len(line) for line in text.splitlines()[:4]}
    assert max(widths) < 100


def test_one_network_is_enough() -> None:
    text = "\n".join(lines(compare(MODEL, measured()[:1], {})))
    assert "R² -, Pearson -, Spearman -" in text
    # One of one, where a share of 2.5 % gives one of one in 2.5 % of all cases.
    assert re.search(
        r"inside the 90 % interval: 1 of 1 \([23] \.\. 100 % with 95 % certainty\)", text
    )


def test_a_model_without_residuals_or_noise() -> None:
    document = synthetic.document(noise={})
    for predictor in document["predictors"].values():
        del predictor["residuals"]
        predictor.pop("interval", None)
    found = compare(Model(document), measured(), {})
    assert found["inside_interval"] == 0
    assert found["networks"][0]["interval_ms"] is None
    assert found["intervals"] is None
    assert found["networks"][0]["interval_width"] is None
    assert found["networks"][0]["inside"] is None
    text = "\n".join(lines(found))
    assert "inside the" not in text
    assert "noise floor" not in text


def test_where_nothing_could_be_measured() -> None:
    with pytest.raises(MeasuringError, match=r"no network could be measured \(a: no memory; b: x"):
        compare(MODEL, [], {"a": "no memory", "b": "x"})
