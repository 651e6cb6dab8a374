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


def brute_force(given: list[np.ndarray]) -> float:
    """The expectation: each candidate's latency, of its whole network, times its choices' probabilities."""
    _, rows, networks = every()
    chances = np.prod([p[rows[:, i]] for i, p in enumerate(given)], axis=0)
    return float(chances @ np.array([MODEL.predict(n, 2).latency_ms for n in networks]))


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


class WithTorch:
    """The adapter of PyTorch, in and out of numpy; it may have been sent to another process."""

    def __init__(self, *arguments: Any) -> None:
        self.torch = importlib.import_module("torch")
        self.latency = pickle.loads(pickle.dumps(TorchExpectedLatency(*arguments)))

    def tensor(self, values: np.ndarray) -> Any:
        return self.torch.tensor(values, dtype=self.torch.float64)

    def differs(self, logits: list[np.ndarray], temperature: float) -> bool:
        """Whether the gradient is not that of finite differences, by PyTorch's own check."""
        vectors = [self.tensor(x).requires_grad_() for x in logits]
        function = functools.partial(self.of_several, temperature)
        return not self.torch.autograd.gradcheck(function, vectors)

    def of_several(self, temperature: float, *vectors: Any) -> Any:
        return self.latency(list(vectors), temperature)


class WithKeras:
    """The adapter of Keras, in and out of numpy, compiled into a graph as `fit` does."""

    def __init__(self, *arguments: Any) -> None:
        self.tensorflow = importlib.import_module("tensorflow")
        self.latency = KerasExpectedLatency(*arguments)

    def tensor(self, values: np.ndarray) -> Any:
        return self.tensorflow.constant(values, "float64")

    def differs(self, logits: list[np.ndarray], temperature: float) -> bool:
        """Whether the gradient is not that of finite differences, by TensorFlow's own check."""
        function = self.tensorflow.function(lambda *v: self.latency(list(v), temperature))
        found = self.tensorflow.test.compute_gradient(
            function, list(map(self.tensor, logits)), 1e-5
        )
        return not all(np.allclose(a, b, 1e-5, 1e-9) for a, b in zip(*found, strict=True))


BOTH = pytest.mark.parametrize("adapter", [WithTorch, WithKeras])


@BOTH
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_the_expectation_and_its_gradient(adapter: Any, temperature: float) -> None:
    latency = adapter(small(), MODEL, 2)
    random = np.random.default_rng(1)
    logits = [random.normal(size=n) for n in SIZES]
    given = [softmax(x / temperature) for x in logits]
    wanted = pytest.approx(brute_force(given), rel=1e-12)
    assert float(latency.latency(list(map(latency.tensor, logits)), temperature)) == wanted
    assert float(latency.latency.of_probabilities(list(map(latency.tensor, given)))) == wanted
    assert not latency.differs(logits, temperature)


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
    space = spaces.SPACES["nasbench201"]()
    latency = adapter(space, MODEL)
    logits = np.random.default_rng(0).normal(size=(6, 5))
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
    space, rows, _ = every()
    fastest = rows[space.scorer(MODEL).latency(rows).argmin()].tolist()
    assert [int(np.argmax(v)) for v in map(np.asarray, layer.logits)] == fastest


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
