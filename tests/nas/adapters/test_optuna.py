"""A study with the real Optuna: what it records, prunes and finds, against all candidates."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
import pytest
from torch import nn

import lolat
from lolat.errors import InputError
from lolat.model import Model
from lolat.nas import Position, Space
from lolat.nas.adapters import optuna as adapter
from tests import synthetic
from tests.nas.test_space import every, small

optuna.logging.set_verbosity(optuna.logging.ERROR)
MODEL = Model(synthetic.document())


def latency_of(values: dict[str, Any]) -> float:
    """The whole network's prediction: what the adapter's tables must give."""
    space, rows, networks = every()
    wanted = [p.choices.index(values[p.name]) for p in space.positions]
    index = next(i for i, row in enumerate(rows) if row.tolist() == wanted)
    return MODEL.predict(networks[index]).latency_ms


def median_ms() -> float:
    return float(np.median([MODEL.predict(n).latency_ms for n in every()[2]]))


def width(trial: Any, values: Any) -> float:
    return float(values["width 2"] + values["kernel 2"])


NEW = hasattr(optuna.trial.Trial, "set_constraint")  # from Optuna 5 on


def study(seed: int = 0) -> Any:
    before = (
        {} if NEW else {"constraints_func": lambda t: (t.user_attrs["latency_ms"] - median_ms(),)}
    )
    sampler = optuna.samplers.NSGAIISampler(seed=seed, population_size=8, **before)
    return optuna.create_study(directions=["maximize", "minimize"], sampler=sampler)


def test_a_study_over_a_space() -> None:
    space, budget = every()[0], median_ms()
    objective = adapter.SpaceObjective(space, MODEL, width, budget)
    found = study()
    found.optimize(objective, n_trials=60)
    done = [t for t in found.trials if t.state == optuna.trial.TrialState.COMPLETE]
    pruned = [t for t in found.trials if t.state == optuna.trial.TrialState.PRUNED]
    assert len(done) + len(pruned) == 60
    assert done
    assert pruned
    for trial in found.trials:
        wanted = latency_of(trial.params)
        assert trial.user_attrs["latency_ms"] == pytest.approx(wanted, rel=1e-12)
        if NEW:
            assert trial.constraints == {"latency_ms": pytest.approx(wanted - budget)}
        assert (trial in pruned) == (wanted > budget)
    for trial in done:
        assert trial.values == pytest.approx([width(None, trial.params), latency_of(trial.params)])
        assert space.values(objective.row(trial)) == trial.params
    assert all(t.values[1] <= budget for t in found.best_trials)


def test_over_the_budget_but_scored() -> None:
    space, budget = every()[0], median_ms()
    found = study()
    found.optimize(adapter.SpaceObjective(space, MODEL, width, budget, prune=False), n_trials=60)
    assert all(t.state == optuna.trial.TrialState.COMPLETE for t in found.trials)
    over = [t for t in found.trials if t.values[1] > budget]
    assert over
    # Optuna itself leaves those out that violate the constraint, though they score more.
    assert max(t.values[0] for t in over) > max(t.values[0] for t in found.best_trials)
    assert all(t.values[1] <= budget for t in found.best_trials)


def test_a_network_that_a_function_builds() -> None:
    def build(stages: int) -> Any:
        return nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(stages)))

    graphs = [lolat.read(build(n), (3, 32, 32)) for n in (1, 4)]
    times = [MODEL.predict(graph, 4, "two-regime").latency_ms for graph in graphs]
    assert times[0] < times[1]
    latency = adapter.Latency(MODEL, sum(times) / 2, batch_size=4, predictor="two-regime")

    def objective(trial: Any) -> tuple[float, float]:
        stages = trial.suggest_int("stages", 1, 4)
        return float(stages), latency(trial, build(stages), (3, 32, 32))

    found = study()
    found.enqueue_trial({"stages": 1})
    found.enqueue_trial({"stages": 4})
    found.optimize(objective, n_trials=2)
    few, many = found.trials
    assert few.values == [1.0, pytest.approx(times[0])]
    assert many.state == optuna.trial.TrialState.PRUNED
    assert many.user_attrs["latency_ms"] == pytest.approx(times[1])
    trial = optuna.trial.FixedTrial({})
    adapter.Latency(MODEL)(trial, graphs[0])
    assert trial.user_attrs == {"latency_ms": pytest.approx(MODEL.predict(graphs[0]).latency_ms)}


def test_values_that_optuna_cannot_store() -> None:
    positions = [
        Position("block", (("conv", 3), ("conv", 5))), Position("bias", (1, True, 0.5)),
        Position("only", ((),)),
    ]  # fmt: skip
    space = Space("odd", positions, [], lambda values, name: synthetic.network())
    scored = []
    objective = adapter.SpaceObjective(
        space, MODEL, lambda trial, values: scored.append(values) or 0.0
    )
    found = study()
    found.optimize(objective, n_trials=60)
    rows = [objective.row(trial).tolist() for trial in found.trials]
    assert {tuple(row) for row in rows} == {(a, b, 0) for a in range(2) for b in range(3)}
    assert [space.values(row) for row in rows] == scored
    assert found.trials[0].distributions["block"].choices == (0, 1)


def test_an_old_optuna_has_no_constraints_of_a_trial() -> None:
    class Old:
        """A trial of Optuna 4: user attributes, no `set_constraint`."""

        def __init__(self) -> None:
            self.user_attrs: dict[str, Any] = {}

        def set_user_attr(self, key: str, value: Any) -> None:
            self.user_attrs[key] = value

    trial = Old()
    assert adapter.Latency(MODEL, 4.0, prune=False).record(trial, 5.0) == 5.0
    assert trial.user_attrs == {"latency_ms": 5.0}
    with pytest.raises(optuna.TrialPruned, match="5 ms, over the budget of 4 ms"):
        adapter.Latency(MODEL, 4.0).record(Old(), 5.0)


def test_no_budget() -> None:
    with pytest.raises(InputError, match="max_ms is 0"):
        adapter.SpaceObjective(small(), MODEL, width, 0)
