"""A tuner with the real Ray, run on this machine: metrics, and trials over the budget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import cloudpickle, tune

from lolat.errors import InputError
from lolat.model import Model
from lolat.nas import spaces
from lolat.nas.adapters.ray_tune import TrialLatency, parameters
from tests import ray_cluster, synthetic
from tests.nas.adapters.test_adapters_doc import EXAMPLES, run
from tests.nas.test_space import every, small

MODEL = Model(synthetic.document())
STEPS = 3


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A Ray whose workers can import the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AIR_NEW_OUTPUT", "0")
        patch.setenv("TUNE_DISABLE_AUTO_CALLBACK_LOGGERS", "1")
        with ray_cluster.small_ray():
            yield


def fastest_and_slowest() -> tuple[list[dict[str, Any]], np.ndarray]:
    """Two candidates' values, and the latencies of all, each whole network predicted."""
    space, rows, networks = every()
    times = np.array([MODEL.predict(n).latency_ms for n in networks])
    return [space.values(rows[i]) for i in (times.argmin(), times.argmax())], times


@pytest.mark.slow
def test_a_trial_over_the_budget_is_not_trained_or_stopped(cluster: None, tmp_path: Path) -> None:
    (fastest, slowest), times = fastest_and_slowest()
    space = small()

    def build(config: Any) -> Any:
        values = config["trial"]["candidate"]
        return space.network([p.choices.index(values[p.name]) for p in space.positions])

    def train(config: Any) -> None:
        for step in range(STEPS):
            tune.report({"score": 1.0 + step})

    latency = TrialLatency(MODEL, build, float(np.median(times)))
    guarded = latency.trainable(train, over_budget={"score": 0.0})

    def either(config: Any) -> None:
        (guarded if config["trial"]["guarded"] else train)(config)

    trials = [(fastest, True), (slowest, True), (slowest, False)]
    searched = tune.grid_search([{"candidate": c, "guarded": g} for c, g in trials])
    found = tune.Tuner(
        either,
        param_space={"trial": searched},
        run_config=tune.RunConfig(
            storage_path=str(tmp_path), verbose=0, callbacks=[latency.callback()], stop=latency.stop
        ),
    ).fit()
    assert not found.errors
    of = {
        (r.metrics["config"]["trial"]["guarded"], r.metrics["over_budget"]): r.metrics
        for r in found
    }
    fast, not_trained, stopped = of[True, False], of[True, True], of[False, True]
    # The callback has added what `train` did not report.
    assert fast["latency_ms"] == pytest.approx(times.min(), rel=1e-12)
    assert (fast["score"], fast["training_iteration"]) == (3.0, STEPS)
    assert not_trained["latency_ms"] == pytest.approx(times.max(), rel=1e-12)
    assert (not_trained["score"], not_trained["training_iteration"]) == (0.0, 1)
    assert stopped["latency_ms"] == pytest.approx(times.max(), rel=1e-12)
    assert (stopped["score"], stopped["training_iteration"]) == (1.0, 1)


@pytest.mark.slow
def test_the_example_of_the_documentation_runs(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Instead of ~/ray_results, whose path Ray has fixed when it was imported.
    for module in ("ray.train.constants", "ray.tune.experiment.experiment"):
        monkeypatch.setattr(f"{module}.DEFAULT_STORAGE_PATH", str(tmp_path / "results"))
    run(EXAMPLES["ray_tune", 1], tmp_path, monkeypatch)
    assert (tmp_path / "results").is_dir()


def test_a_space_is_read_from_the_configuration() -> None:
    candidates, times = fastest_and_slowest()
    space = spaces.SPACES["fbnet"]()
    latency = cloudpickle.loads(cloudpickle.dumps(TrialLatency(MODEL, space, 100.0)))
    row = space.sample(1)[0]
    wanted = MODEL.predict(space.network(row)).latency_ms
    found = latency.metrics({**space.values(row), "learning rate": 0.1})
    assert found == {"latency_ms": pytest.approx(wanted, rel=1e-12), "over_budget": wanted > 100.0}
    near = TrialLatency(MODEL, small(), float(times.min()) * 1.000001)
    assert [near.metrics(c)["over_budget"] for c in candidates] == [False, True]


def test_the_parameters_of_a_space() -> None:
    space = small()
    found = parameters(space)
    assert {name: tuple(domain.categories) for name, domain in found.items()} == {
        p.name: p.choices for p in space.positions
    }


def test_a_reported_latency_is_not_predicted_again() -> None:
    def never(config: Any) -> Any:
        raise AssertionError

    latency = TrialLatency(MODEL, never, 5.0)
    assert latency.stop("1", {"latency_ms": 5.1})
    assert not latency.stop("1", {"latency_ms": 5.0})


def test_no_budget() -> None:
    with pytest.raises(InputError, match="max_ms is 0"):
        TrialLatency(MODEL, small(), 0)
