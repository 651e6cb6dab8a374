"""The expected latency against the sum over all candidates; its gradient against finite differences."""

from __future__ import annotations

import functools
import importlib
import pickle
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.model import Model
from lolat.nas import Position, Space, spaces
from lolat.nas.adapters.mixture import KerasExpectedLatency, TorchExpectedLatency
from tests import synthetic
from tests.nas.test_scorer import bent_model
from tests.nas.test_space import every, small
from tests.training import known_device

MODEL = Model(synthetic.document())
SIZES = (2, 3, 3, 2, 2)


def probabilities(seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.dirichlet(np.ones(n)) for n in SIZES]


@functools.cache
def latencies() -> np.ndarray:
    """Of all candidates, each whole network predicted by the model."""
    _, _, networks = every()
    return np.array([MODEL.predict(n, 2).latency_ms for n in networks])


def brute_force(given: list[np.ndarray]) -> float:
    """The expectation: every candidate's latency times the product of its choices' probabilities."""
    _, rows, _ = every()
    chances = np.prod([p[rows[:, i]] for i, p in enumerate(given)], axis=0)
    return float(chances @ latencies())


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def slopes(logits: list[np.ndarray], temperature: float = 1.0) -> list[np.ndarray]:
    """Central differences of the brute force."""
    found = [np.zeros_like(x) for x in logits]
    step = 1e-5
    for vector, slope in zip(logits, found, strict=True):
        for i in range(len(vector)):
            ends = []
            for sign in (1, -1):
                vector[i] += sign * step
                ends.append(brute_force([softmax(x / temperature) for x in logits]))
                vector[i] -= sign * step
            slope[i] = (ends[0] - ends[1]) / (2 * step)
    return found


class WithTorch:
    """The adapter of PyTorch, in and out of numpy."""

    def __init__(self, *arguments: Any) -> None:
        self.torch = importlib.import_module("torch")
        self.latency = TorchExpectedLatency(*arguments)

    def tensor(self, values: np.ndarray) -> Any:
        return self.torch.tensor(values, dtype=self.torch.float64)

    def slopes(self, logits: list[np.ndarray], temperature: float) -> list[np.ndarray]:
        vectors = [self.tensor(x).requires_grad_() for x in logits]
        self.latency(vectors, temperature).backward()
        return [x.grad.numpy() for x in vectors]


class WithKeras:
    """The adapter of Keras, in and out of numpy, compiled into a graph as `fit` does."""

    def __init__(self, *arguments: Any) -> None:
        self.tensorflow = importlib.import_module("tensorflow")
        self.latency = KerasExpectedLatency(*arguments)

    def tensor(self, values: np.ndarray) -> Any:
        return self.tensorflow.constant(values, "float64")

    def slopes(self, logits: list[np.ndarray], temperature: float) -> list[np.ndarray]:
        variables = [self.tensorflow.Variable(x, dtype="float64") for x in logits]

        @self.tensorflow.function  # type: ignore[untyped-decorator]
        def gradients() -> Any:
            with self.tensorflow.GradientTape() as tape:
                value = self.latency(variables, temperature)
            return tape.gradient(value, variables)

        return [g.numpy() for g in gradients()]


BOTH = pytest.mark.parametrize("adapter", [WithTorch, WithKeras])


@BOTH
def test_the_expectation_is_that_of_all_candidates(adapter: Any) -> None:
    latency = adapter(small(), MODEL, 2)
    for seed in range(3):
        given = probabilities(seed)
        vectors = [latency.tensor(p) for p in given]
        assert float(latency.latency.of_probabilities(vectors)) == pytest.approx(
            brute_force(given), rel=1e-12
        )


@BOTH
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_the_gradient_is_that_of_finite_differences(adapter: Any, temperature: float) -> None:
    latency = adapter(small(), MODEL, 2)
    random = np.random.default_rng(1)
    logits = [random.normal(size=n) for n in SIZES]
    wanted = slopes(logits, temperature)
    assert max(abs(s).max() for s in wanted) > 1e-3
    for found, slope in zip(latency.slopes(logits, temperature), wanted, strict=True):
        np.testing.assert_allclose(found, slope, rtol=1e-5, atol=1e-9)


@BOTH
@pytest.mark.parametrize("predictor", [None, "two-regime"])
def test_a_certain_choice_is_the_candidate(adapter: Any, predictor: str | None) -> None:
    """By the two-regime formula too, on both sides of its breakpoint."""
    space, rows, networks = every()
    model, middle = bent_model()
    wanted = np.array([model.predict(n, 1, predictor).latency_ms for n in networks])
    indices = (17, int(wanted.argmin()), int(wanted.argmax()))
    assert predictor is None or wanted.min() < middle < wanted.max()
    latency = adapter(space, model, 1, predictor)
    for index in indices:
        ones = [latency.tensor(np.eye(n)[c]) for n, c in zip(SIZES, rows[index], strict=True)]
        found = float(latency.latency.of_probabilities(ones))
        assert found == pytest.approx(wanted[index], rel=1e-12)


@BOTH
def test_a_matrix_or_a_dict_will_do(adapter: Any) -> None:
    latency = adapter(spaces.SPACES["nasbench201"](), MODEL)
    logits = np.random.default_rng(0).normal(size=(6, 5))
    space = spaces.SPACES["nasbench201"]()
    in_order = latency.latency([latency.tensor(x) for x in logits])
    named = {p.name: latency.tensor(x) for p, x in zip(space.positions, logits, strict=True)}
    assert float(latency.latency(latency.tensor(logits))) == pytest.approx(float(in_order))
    assert float(latency.latency(named)) == pytest.approx(float(in_order))


@BOTH
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([2, 3, 3, 2], "4 vectors for 5 positions; expected one for each, in order, or a dict by name"),
        ([2, 3, 4, 2, 2], "shape \\(4,\\) for position 'width 2'; expected a vector of 3"),
        ({"width 1": 2, "depth": 2}, "no position 'depth'; expected width 1, kernel 2"),
        ({"width 1": 2, "kernel 2": 3}, "nothing for position 'width 2'; expected a vector of 3"),
    ],
)  # fmt: skip
def test_wrong_vectors(adapter: Any, given: Any, said: str) -> None:
    latency = adapter(small(), MODEL)
    zeros = (
        {k: latency.tensor(np.zeros(n)) for k, n in given.items()}
        if isinstance(given, dict)
        else [latency.tensor(np.zeros(n)) for n in given]
    )
    with pytest.raises(InputError, match=said):
        latency.latency(zeros)


@BOTH
def test_positions_with_one_choice_need_no_vector(adapter: Any) -> None:
    wide = spaces.SPACES["nasbench201"]()
    names = [
        Position(p.name, p.choices[:1] if i else p.choices) for i, p in enumerate(wide.positions)
    ]

    def build(*chosen: Any) -> Any:
        raise AssertionError("tables are enough")

    class Narrow:
        """The tables of the first edge alone."""

        def __init__(self, table: Any) -> None:
            self.table, self.positions = table, table.positions

        def at(self, batch_size: int) -> np.ndarray:
            found: np.ndarray = self.table.at(batch_size)
            return found[:, :1, :1, :1, :1, :1] if len(self.positions) == 6 else found

    space = Space("narrow", names, list(map(Narrow, wide.tables)), build)
    latency = adapter(space, MODEL)
    first = names[0].name
    chances = np.random.default_rng(0).dirichlet(np.ones(5))
    candidates = [[c, 0, 0, 0, 0, 0] for c in range(5)]
    wanted = chances @ wide.scorer(MODEL).latency(np.array(candidates))
    found = latency.latency.of_probabilities({first: latency.tensor(chances)})
    assert float(found) == pytest.approx(float(wanted))


@functools.cache
def fastest() -> list[int]:
    _, rows, _ = every()
    return list(map(int, rows[small().scorer(MODEL).latency(rows).argmin()]))


def test_a_keras_network_learns_to_be_fast() -> None:
    """Trained on the latency alone, the mixture ends at the fastest candidate."""
    import keras

    latency = KerasExpectedLatency(small(), MODEL)

    class Choices(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.logits = [self.add_weight(shape=(n,), initializer="zeros") for n in SIZES]

        def call(self, x: Any) -> Any:
            self.add_loss(latency(self.logits))
            return x

    layer = Choices()
    network = keras.Sequential([keras.Input((1,)), layer])
    network.compile(keras.optimizers.Adam(0.3), loss=lambda y, p: 0.0 * keras.ops.sum(p))
    network.fit(np.zeros((40, 1)), np.zeros((40, 1)), batch_size=1, verbose=0)
    assert [int(np.argmax(v)) for v in map(np.asarray, layer.logits)] == fastest()


def test_a_torch_network_learns_to_be_fast() -> None:
    import torch

    latency = pickle.loads(pickle.dumps(TorchExpectedLatency(small(), MODEL)))
    logits = [torch.zeros(n, requires_grad=True) for n in SIZES]
    optimizer = torch.optim.Adam(logits, 0.3)
    for _ in range(40):
        optimizer.zero_grad()
        latency(logits).backward()
        optimizer.step()
    assert [int(x.argmax()) for x in logits] == fastest()


@pytest.mark.parametrize("mode", [None, {"dtype": "amp", "compiled": True}])
def test_a_formula_that_takes_operations_one_by_one(mode: Any) -> None:
    """Its tables are those of the scorer, not the linear sum of counts."""
    space, rows, _ = every()
    model = Model(known_device.document(mode=mode) if mode else known_device.document())
    times = space.scorer(model, 2).latency(rows)
    latency = WithTorch(space, model, 2)
    given = probabilities()
    chances = np.prod([p[rows[:, i]] for i, p in enumerate(given)], axis=0)
    found = latency.latency.of_probabilities([latency.tensor(p) for p in given])
    assert float(found) == pytest.approx(float(chances @ times), rel=1e-9)
    np.testing.assert_allclose(latency.latency.times.latency(rows), times, rtol=1e-9)
