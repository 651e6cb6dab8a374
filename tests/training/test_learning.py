"""Coefficients of training found again from points made with known ones; left-out blocks by brute force."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from scipy.optimize import nnls

from lolat.errors import InputError, ModelFileError
from lolat.training.learning import (
    EpochPoint,
    PassPoint,
    StartPoint,
    UpdatePoint,
    fit_loop,
    fit_passes,
    fit_start,
    fit_update,
    refitted,
)
from lolat.training.terms import PASS_TERMS
from tests.training import training_points
from tests.training.training_points import BACKWARD, FORWARD, passes


def as_array(named: dict[str, float]) -> np.ndarray:
    return np.array([named.get(t, 0.0) for t in (*PASS_TERMS, "call")])


def test_the_coefficients_of_both_passes_are_found_again() -> None:
    found = fit_passes(passes(noise=0.0))
    assert as_array(found["forward_ms"]) == pytest.approx(as_array(FORWARD), rel=1e-4, abs=1e-12)
    assert as_array(found["backward_ms"]) == pytest.approx(as_array(BACKWARD), rel=1e-4, abs=1e-12)
    assert found["error"]["left_out_median"] < 1e-4
    assert found["error"]["left_out_forward_median"] < 1e-4


def test_a_backward_pass_never_takes_less_than_nothing() -> None:
    """Both passes are measured to take less than the forward pass alone."""
    points = [
        PassPoint(**{**vars(p), "latency_ms": p.latency_ms * (0.4 if p.backward else 1.0)})
        for p in passes(noise=0.1)
    ]
    found = fit_passes(points)
    assert all(c > 0.0 for side in ("forward_ms", "backward_ms") for c in found[side].values())
    for p in points:
        both = as_array(found["forward_ms"]) + as_array(found["backward_ms"])
        row = np.array([*p.terms, 1.0])
        assert row @ both >= row @ as_array(found["forward_ms"])


def test_errors_are_of_blocks_left_out_with_all_their_points() -> None:
    """Nothing but scipy: reweighted by hand, each block left out."""
    points = passes(blocks=40, noise=0.05)
    found = fit_passes(points)
    both = np.array([p.backward for p in points])
    ones = np.array([[*p.terms, 1.0] for p in points])
    rows = np.hstack([ones, ones * both[:, None]])
    times = np.array([p.latency_ms for p in points])
    names = np.array([p.name for p in points])
    predicted = np.array(
        [rows[i] @ huber(rows[names != name], times[names != name]) for i, name in enumerate(names)]
    )
    expected = np.log(times / predicted)[both]
    assert found["residuals"] == pytest.approx(expected.tolist(), abs=2e-3)
    error = np.abs(predicted / times - 1.0)
    assert found["error"]["left_out_median"] == pytest.approx(np.median(error[both]), abs=1e-3)
    assert found["error"]["left_out_forward_median"] == pytest.approx(
        np.median(error[~both]), abs=1e-3
    )


def huber(rows: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Relative least squares from 0, points beyond 1.5 times the median error weighing less."""
    relative = rows / times[:, None]
    size = np.linalg.norm(relative, axis=0)
    size[size == 0.0] = 1.0
    relative = relative / size
    weights = np.ones(len(times))
    for _ in range(20):
        root = np.sqrt(weights)
        found, _ = nnls(relative * root[:, None], root)
        error = np.abs(relative @ found - 1.0)
        limit = 1.5 * np.median(error)
        weights = np.minimum(1.0, limit / np.maximum(error, 1e-12))
    result: np.ndarray = found / size
    return result


def test_too_few_passes() -> None:
    points = passes()
    with pytest.raises(InputError, match=f"^{len(PASS_TERMS)} points are too few to fit"):
        fit_passes(points[: 2 * len(PASS_TERMS)])
    with pytest.raises(InputError, match=r"^0 points are too few"):
        fit_passes([])
    with pytest.raises(InputError, match=r"^0 points are too few"):
        fit_passes([p for p in points if p.backward])  # forward could not be told from backward
    alone = [PassPoint(**{**vars(p), "name": "one"}) for p in points]
    with pytest.raises(InputError, match="all passes are of the block 'one'; expected several"):
        fit_passes(alone)


def test_updates_are_found_again() -> None:
    points = [
        UpdatePoint(name, n, p, 0.2 + variable * n + parameter * p)
        for name, variable, parameter in (("adam", 0.03, 1.5e-6), ("sgd", 0.01, 3e-7))
        for n, p in ((1, 1024), (64, 65536), (16, 2**22), (4, 2**24))
    ]
    found = fit_update(points)
    assert found["adam"] == pytest.approx({"variable": 0.03, "parameter": 1.5e-6}, rel=1e-6)
    assert found["sgd"] == pytest.approx({"variable": 0.01, "parameter": 3e-7}, rel=1e-6)


def test_an_optimizer_with_too_few_updates_is_left_out() -> None:
    sgd = [UpdatePoint("sgd", n, p, 0.1 + n + p) for n, p in ((1, 2), (2, 9), (3, 5))]
    adam = [UpdatePoint("adam", 1, 9, 1.0), UpdatePoint("adam", 9, 9, 2.0)]
    assert list(fit_update([*adam, *sgd])) == ["sgd"]
    with pytest.raises(InputError, match=r"no optimizer has as many as 3 measured updates.*--rest"):
        fit_update(adam)


def test_the_loop_is_found_again() -> None:
    shapes = ((1, 1536), (33, 1536), (9, 1204224))
    points = [EpochPoint(n, e, 40.0 + 0.7 * n + 2e-6 * n * e) for n, e in shapes]
    expected = {"epoch": 40.0, "step": 0.7, "element": 2e-6}
    assert fit_loop(points) == pytest.approx(expected, rel=1e-6)


def test_what_cannot_be_told_of_the_loop_is_nothing() -> None:
    points = [EpochPoint(n, 1536, 40.0 + 0.7 * n) for n in (1, 33)]
    assert fit_loop(points) == pytest.approx({"epoch": 40.0, "step": 0.7, "element": 0.0})
    assert fit_loop(points[:1]) == pytest.approx({"epoch": 40.7, "step": 0.0, "element": 0.0})
    assert fit_loop([]) == {"epoch": 0.0, "step": 0.0, "element": 0.0}


def starts() -> list[StartPoint]:
    """300 ms, 14 ms an operation, 50 ms a variable of adam's and 20 of momentum's."""
    return [
        StartPoint("sgd", 55, 53, 300 + 14 * 55),
        StartPoint("sgd", 110, 99, 300 + 14 * 110),
        StartPoint("adam", 55, 53, 300 + 14 * 55 + 50 * 53),
        StartPoint("momentum", 55, 53, 300 + 14 * 55 + 20 * 53),
    ]


def test_the_start_is_found_again() -> None:
    found = fit_start(starts())
    assert found is not None
    assert found["constant"] == pytest.approx(300)
    assert found["operation"] == pytest.approx(14)
    assert found["variable"] == pytest.approx({"sgd": 0.0, "adam": 50.0, "momentum": 20.0})


@pytest.mark.parametrize("left", [[0], [1], [0, 1], [0, 1, 2, 3]])
def test_without_two_starts_of_the_simplest_nothing_is_known(left: list[int]) -> None:
    assert fit_start([p for i, p in enumerate(starts()) if i not in left]) is None


def test_a_section_holds_its_points_and_is_fitted_again_from_them() -> None:
    section = training_points.section(noise=0.05)
    assert set(section) >= {
        "forward_ms", "backward_ms", "update_ms", "loop_ms", "start_ms", "error", "residuals", "kinds",
        "environment", "noise", "warnings", "points", "update_points", "epoch_points", "start_points",
    }  # fmt: skip
    assert section["kinds"] == ["conv", "memory traffic"]
    stored = json.loads(json.dumps(section))
    assert refitted(stored, "m.json") == stored
    spoiled = stored | {"forward_ms": {}, "update_ms": {}, "start_ms": None, "residuals": []}
    spoiled |= {"interval": "old", "else": "stays"}
    assert refitted(spoiled, "m.json") == {**stored, "else": "stays"}


def test_an_interval_that_the_points_do_not_give_goes() -> None:
    few = training_points.section(blocks=29)  # too few to tell how the error depends on operations
    assert "interval" not in few
    assert "interval" not in refitted({**few, "interval": "old"}, "m.json")


def test_later_fields_of_a_point_do_no_harm_and_points_may_be_missing() -> None:
    stored = json.loads(json.dumps(training_points.section()))
    for key in ("points", "update_points", "epoch_points", "start_points"):
        stored[key] = [{**p, "later": 1} for p in stored[key]]
    assert refitted(stored, "m.json")["update_ms"] == stored["update_ms"]
    without = {k: v for k, v in stored.items() if not k.endswith("points")}
    assert refitted(without, "m.json") == without


@pytest.mark.parametrize(
    ("key", "change", "said"),
    [
        ("points", {"terms": {"acres": 1}}, r"unknown term 'acres' - at `\$.points"),
        ("points", {"latency_ms": 0}, r"points\[0\].latency_ms"),
        ("update_points", {"latency_ms": "x"}, r"update_points\[0\].latency_ms"),
        ("epoch_points", {"steps": None}, "m.json: its `training` cannot be fitted again"),
        ("start_points", {"latency_ms": float("nan")}, r"start_points\[0\].latency_ms"),
    ],
)
def test_damaged_points_are_refused(key: str, change: dict[str, Any], said: str) -> None:
    stored = json.loads(json.dumps(training_points.section()))
    stored[key][0] |= change
    with pytest.raises(ModelFileError, match=said):
        refitted(stored, "m.json")
    del stored[key]
    if key != "points":
        with pytest.raises(ModelFileError, match=f"missing required field `{key}`"):
            refitted(stored, "m.json")


def test_too_few_points_are_not_fitted_again() -> None:
    stored = json.loads(json.dumps(training_points.section()))
    stored["points"] = stored["points"][:9]
    with pytest.raises(
        ModelFileError, match=r"^m.json: .*too few to fit.*learn it again: lolat lea"
    ):
        refitted(stored, "m.json")
