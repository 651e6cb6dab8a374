"""What a tuner is told of a trial, and the parameters of a space; the real Ray: tests/nas/test_ray.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.model import Model
from lolat.nas import spaces
from lolat.nas.adapters.ray_tune import TrialLatency, parameters
from tests import synthetic
from tests.nas.test_space import every, small

MODEL = Model(synthetic.document())


def fastest_and_slowest() -> tuple[list[dict[str, Any]], np.ndarray]:
    """Two candidates' values, and the latencies of all, each whole network predicted."""
    space, rows, networks = every()
    times = np.array([MODEL.predict(n).latency_ms for n in networks])
    return [space.values(rows[i]) for i in (times.argmin(), times.argmax())], times


def test_a_space_is_read_from_the_configuration() -> None:
    from ray import cloudpickle

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


def test_no_budget() -> None:
    with pytest.raises(InputError, match="max_ms is 0"):
        TrialLatency(MODEL, small(), 0)
