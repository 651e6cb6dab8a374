"""Training that was measured: coefficients found again, a profile by hand, what both refuse."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import numpy as np
import pytest

import lolat
from lolat.api.model import Model
from lolat.errors import InputError, ModelFileError
from lolat.fitting.least_squares import fit_relative
from lolat.graph import Graph, GraphBuilder
from lolat.graph.counts import behaviors
from lolat.optimizers import OPTIMIZERS
from lolat.training.measured import (
    WIDENING,
    UpdatePoint,
    effective_ops,
    fit_loop,
    fit_passes,
    fit_start,
    fit_update,
    refitted,
)
from lolat.training.pass_counts import PASS_TERMS
from lolat.training.plan import training_of
from lolat.training.prediction import TrainingPrediction, predict
from lolat.training.run import TrainingRun
from tests import synthetic
from tests.training import training_points
from tests.training.training_points import BACKWARD, FORWARD, UPDATES, passes


def as_array(named: dict[str, float]) -> np.ndarray:
    return np.array([named.get(t, 0.0) for t in (*PASS_TERMS, "call")])


def test_the_coefficients_of_both_passes_are_found_again() -> None:
    found = fit_passes(passes(noise=0.0))
    assert as_array(found["forward_ms"]) == pytest.approx(as_array(FORWARD), rel=1e-4, abs=1e-12)
    assert as_array(found["backward_ms"]) == pytest.approx(as_array(BACKWARD), rel=1e-4, abs=1e-12)
    assert found["error"]["left_out_median"] < 1e-4
    assert found["error"]["left_out_forward_median"] < 1e-4


def test_errors_are_of_blocks_left_out_with_all_their_points() -> None:
    """Each block left out with all its points, by the fit of all other blocks."""
    points = passes(blocks=40, noise=0.05)
    found = fit_passes(points)
    both = np.array([p.backward for p in points])
    ones = np.array([as_array({**p.terms, "call": 1.0}) for p in points])
    rows = np.hstack([ones, ones * both[:, None]])
    times = np.array([p.latency_ms for p in points])
    names = np.array([p.name for p in points])
    predicted = np.array(
        [
            rows[i] @ fit_relative(rows[names != name], times[names != name])
            for i, name in enumerate(names)
        ]
    )
    expected = np.log(times / predicted)[both]
    assert found["residuals"] == pytest.approx(expected.tolist(), abs=2e-3)
    error = np.abs(predicted / times - 1.0)
    told = found["error"]["left_out_median"], found["error"]["left_out_forward_median"]
    assert told == pytest.approx((np.median(error[both]), np.median(error[~both])), abs=1e-3)


def test_too_few_passes() -> None:
    points = passes()
    one_way = [p for p in points if p.backward]  # forward could not be told from backward
    for few in (points[: 2 * len(PASS_TERMS)], [], one_way):
        with pytest.raises(InputError) as caught:
            fit_passes(few)
        assert caught.value.code == "too-few-points"


def test_updates_are_found_again() -> None:
    found = fit_update(training_points.updates())
    for name, (variable, parameter) in UPDATES.items():
        expected = {"variable": variable, "parameter": parameter}
        assert found[name] == pytest.approx(expected, rel=1e-6)


def test_an_optimizer_with_too_few_updates_is_left_out() -> None:
    sgd = [UpdatePoint("sgd", n, p, 0.1 + n + p) for n, p in ((1, 2), (2, 9), (3, 5))]
    adam = [UpdatePoint("adam", 1, 9, 1.0), UpdatePoint("adam", 9, 9, 2.0)]
    assert list(fit_update([*adam, *sgd])) == ["sgd"]


def test_the_loop_is_found_again_and_what_cannot_be_told_is_nothing() -> None:
    expected = {"epoch": 40.0, "step": 0.7, "element": 2e-6}
    assert fit_loop(training_points.epochs()) == pytest.approx(expected, rel=1e-6)
    assert fit_loop(training_points.epochs()[:2]) == {"epoch": 0.0, "step": 0.0, "element": 0.0}


def test_the_start_is_found_again() -> None:
    found = fit_start(training_points.starts())
    assert found is not None
    assert found["constant"] == pytest.approx(300)
    assert found["operation"] == pytest.approx(14)
    assert found["variable"] == pytest.approx({"sgd": 0.0, "adam": 50.0, "momentum": 20.0})


@pytest.mark.parametrize("left", [[0], [0, 1, 2, 3]])
def test_without_two_starts_of_the_simplest_nothing_is_known(left: list[int]) -> None:
    assert fit_start([p for i, p in enumerate(training_points.starts()) if i not in left]) is None


def test_a_section_holds_its_points_and_is_fitted_again_from_them() -> None:
    section = training_points.section(noise=0.05)
    assert section["kinds"] == ["conv", "memory traffic"]
    stored = json.loads(json.dumps(section))
    assert refitted(stored, "m.json") == stored
    spoiled = stored | {"forward_ms": {}, "update_ms": {}, "start_ms": None, "residuals": []}
    assert refitted(spoiled | {"interval": "old"}, "m.json") == stored


# ---- Predicting, from a profile made by hand: its parts, added up by hand again.

RESIDUALS = [0.01 * n for n in range(1, 20)]  # the 18th of 19 is what 90 % stay below
UPDATE_MS = {"sgd": (0.5, 1e-3), "adam": (2.0, 4e-3)}
SECTION: dict[str, Any] = {
    "forward_ms": {"flops": 1e-6, "ops": 0.1, "call": 100.0},
    "backward_ms": {"flops": 3e-6, "norm_traffic": 1e-4, "own_groups": 5.0, "call": 50.0},
    "update_ms": {n: {"variable": v, "parameter": p} for n, (v, p) in UPDATE_MS.items()},
    "loop_ms": {"epoch": 30.0, "step": 0.25, "element": 1e-4},
    "start_ms": {"constant": 300.0, "operation": 7.0, "variable": {"sgd": 0.0, "adam": 11.0}},
    "kinds": ["conv", "dense", "memory traffic", "softmax"],
    "noise": {"floor": 0.0},
    "residuals": RESIDUALS,
    "environment": {"framework": "tensorflow"},
}


def document(**changes: Any) -> dict[str, Any]:
    return synthetic.document(training=copy.deepcopy(SECTION) | changes)


def model(**changes: Any) -> Any:
    return training_of(Model(document(**changes), "m.json"))


def asked(trained: Any, *run: Any, **more: Any) -> TrainingPrediction:
    return predict(trained, network(), TrainingRun(*run, **more))


def network() -> Graph:
    """8x8x3 -> conv 3x3 to 4, bias -> batch norm -> flatten -> dense 10, no bias -> softmax."""
    b = GraphBuilder("small", "keras")
    x = b.input((1, 8, 8, 3))
    x = b.add("conv", [x], (1, 8, 8, 4), kernel=(3, 3), in_channels=3, out_channels=4, groups=1,
              bias=True, strides=(1, 1))  # fmt: skip
    x = b.add("batch_norm", [x], (1, 8, 8, 4))
    x = b.add("flatten", [x], (1, 256))
    x = b.add("dense", [x], (1, 10), in_features=256, out_features=10, bias=False)
    return b.build([b.add("softmax", [x], (1, 10))])


FLOPS = 64 * 4 * 27 + 256 * 10
PARAMETERS = 27 * 4 + 4 + 2 * 4 + 2560
VARIABLES = 2 + 2 + 1
INPUTS = 8 * 8 * 3


def by_hand(n: int, optimizer: str = "sgd") -> dict[str, float]:
    """Parts of an iteration of `network` on n samples: four operations; the norm moves 2 x 256 elements."""
    variable, parameter = UPDATE_MS[optimizer]
    return {
        "forward": 1e-6 * n * FLOPS + 0.1 * 4 + 0.25 + 1e-4 * n * INPUTS,
        "backward": 3e-6 * n * FLOPS + 1e-4 * n * 512,
        "update": variable * VARIABLES + parameter * PARAMETERS,
        "exchange": 0.0,
    }


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_an_iteration(optimizer: str) -> None:
    found = asked(model(), 32, optimizer=optimizer)
    expected = by_hand(32, optimizer)
    assert found.parts_ms == pytest.approx(expected)
    assert found.iteration_ms == pytest.approx(sum(expected.values()))
    assert found.warnings == ()


def test_the_start_comes_once_and_the_loops_own_time_each_epoch() -> None:
    found = asked(model(), 32, samples=96, epochs=5, optimizer="adam")
    assert found.epoch_s == pytest.approx((3 * sum(by_hand(32, "adam").values()) + 30.0) / 1e3)
    assert found.startup_s == pytest.approx((300.0 + 7.0 * 4 + 11.0 * VARIABLES) / 1e3)
    assert found.total_s == pytest.approx(found.startup_s + 5 * found.epoch_s)
    step = model().batch(network(), 32, OPTIMIZERS["adam"]).iteration.step
    assert step == pytest.approx(0.25 + 1e-4 * 32 * INPUTS)


def test_an_evaluation_is_a_forward_pass_as_latencies_are() -> None:
    found = model()
    without = asked(found, 32, samples=96)
    with_it = asked(found, 32, samples=96, validation=70)
    latency = Model(synthetic.document())
    expected = 30.0
    for n in (32, 32, 6):
        predicted = latency.predict(network(), n)
        call = predicted.blocks[-1]
        assert call.name == "call"
        expected += predicted.latency_ms - call.latency_ms + 0.25 + 1e-4 * n * INPUTS
    assert with_it.evaluation_s == pytest.approx(expected / 1e3)
    assert with_it.epoch_s == pytest.approx(without.epoch_s + expected / 1e3)
    assert with_it.total_s - without.total_s == pytest.approx(expected / 1e3)


@pytest.mark.parametrize(
    ("coverage", "noise", "factor"),
    [(0.9, 0.0, math.exp(RESIDUALS[17])), (0.5, 0.0, math.exp(RESIDUALS[9])), (0.9, 1.0, 2.0)],
)  # nothing is known better than noise
def test_the_interval_is_of_blocks_left_out(coverage: float, noise: float, factor: float) -> None:
    found = asked(model(noise={"floor": noise}), 8, samples=80, coverage=coverage)
    assert found.interval_s == pytest.approx((found.total_s / factor, found.total_s * factor))
    assert asked(model(), 8, samples=80, coverage=0.99).interval_s is None


def test_kinds_that_no_block_had_widen_it() -> None:
    kinds = ["dense", "softmax"]
    assert behaviors(network().operations) - set(kinds) == {"conv", "memory traffic"}
    found = asked(model(kinds=kinds), 8, samples=80)
    factor = math.exp(WIDENING * RESIDUALS[17])
    assert found.interval_s == pytest.approx((found.total_s / factor, found.total_s * factor))
    (warning,) = found.warnings
    assert warning == "no block measured in training has the operations conv, memory traffic"


def test_the_scale_of_the_interval_is_that_of_the_file() -> None:
    """With exponent 0.5, from 2 to 8 operations: 4 are the middle, where the scale is 1."""
    scale = {"exponent": 0.5, "ops": [2.0, 8.0], "scores": [0.1] * 19}
    coefficients = {"forward_ms": {"ops": 1.0}, "backward_ms": {}}
    found = asked(model(interval=scale, **coefficients), 8, samples=80)
    assert found.interval_s[1] / found.total_s == pytest.approx(math.exp(0.1))


@pytest.mark.parametrize(
    "start", [None, {"constant": 300.0, "operation": 7.0, "variable": {"sgd": 0.0}}]
)
def test_a_start_that_was_not_measured_is_left_out(start: Any) -> None:
    found = asked(model(start_ms=start), 8, samples=80, epochs=2, optimizer="adam")
    assert found.startup_s is None
    assert found.total_s == pytest.approx(2 * found.epoch_s)


def test_a_damaged_section_is_refused() -> None:
    with pytest.raises(ModelFileError, match=r"^m.json: .*\$.training.backward_ms"):
        model(backward_ms={"flops": -1.0})


def test_training_hears_the_domain_of_inference() -> None:
    """Of a device whose training was measured: inside and outside as `predict` says, and wider outside."""
    measured, widths = lolat.load("epyc-2t-torch"), {}
    for wide, size, batch_size in ((16, 28, 16), (64, 56, 512), (4096, 8, 1)):
        graph = synthetic.network(width=wide, size=size)
        found = measured.cost(graph, batch_size, samples=10**4)
        inside = measured.predict(graph, batch_size).in_domain
        assert found.in_domain is inside
        ends = found.options[0].interval_s
        assert ends is not None
        widths.setdefault(inside, []).append(ends[1] / ends[0])
        assert bool(found.warnings) is not inside
    assert max(widths[True]) < min(widths[False])


def test_effective_operations_by_hand() -> None:
    for times, ops, expected in (
        ([7.0], [12], 12),  # a block, as the points are
        ([1.0, 2.0, 3.0], [4, 8, 12], 24),  # all operations take as long
        ([3.0, 1.0], [1, 1], 1.6),  # 16 / (9 + 1)
        ([3e-290, 1e-290], [1, 1], 1.6),  # the squares of the times are 0
        ([5.0, 0.0], [2, 0], 2),  # a block of reshapes
        ([0.0, 0.0], [2, 3], 5),
        ([], [], 1),
    ):
        assert effective_ops(np.array(times), np.array(ops)) == pytest.approx(expected)


def test_errors_average_out_as_effective_operations_say() -> None:
    random = np.random.default_rng(0)
    times, ops = np.array([6.0, 3.0, 1.0]), np.array([3, 6, 1])
    each = np.repeat(times / ops, ops)
    totals = (each * (1 + 0.1 * random.standard_normal((20000, len(each))))).sum(axis=1) / 10
    assert totals.std() == pytest.approx(0.1 / math.sqrt(effective_ops(times, ops)), rel=0.03)


def test_a_network_in_double_precision_was_not_measured() -> None:
    builder = GraphBuilder("net", "keras")
    x = builder.input((1, 8), "float64")
    sizes = {"in_features": 8, "out_features": 8, "bias": False}
    graph = builder.build([builder.add("dense", [x], (1, 8), dtype="float64", **sizes)])
    found = lolat.load("epyc-2t").cost(graph, 8).options[0].warnings
    assert "measured in float32, asked for float64" in found
