"""The expected latency against the sum over all candidates; its gradient against finite differences."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.model import Model
from lolat.nas import Part, Position, Space, spaces
from lolat.nas.mixture import TorchExpectedLatency
from tests import synthetic
from tests.nas.test_scorer import bent_model
from tests.nas.test_space import every, small
from tests.training import known_device

torch = pytest.importorskip("torch")
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


def made(*arguments: Any) -> TorchExpectedLatency:
    """It may have been sent to another process."""
    found: TorchExpectedLatency = pickle.loads(pickle.dumps(TorchExpectedLatency(*arguments)))
    return found


def tensor(values: np.ndarray) -> Any:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_the_expectation_and_its_gradient(temperature: float) -> None:
    latency = made(small(), MODEL, 2)
    random = np.random.default_rng(1)
    logits = [random.normal(size=n) for n in SIZES]
    given = [softmax(x / temperature) for x in logits]
    wanted = pytest.approx(brute_force(given), rel=1e-12)
    assert float(latency(list(map(tensor, logits)), temperature)) == wanted
    assert float(latency.of_probabilities(list(map(tensor, given)))) == wanted
    vectors = [tensor(x).requires_grad_() for x in logits]
    assert torch.autograd.gradcheck(lambda *v: latency(list(v), temperature), vectors)


@pytest.mark.parametrize("predictor", [None, "two-regime"])
def test_a_certain_choice_is_the_candidate(predictor: str | None) -> None:
    """By the two-regime formula too, on both sides of its breakpoint."""
    space, rows, networks = every()
    model, middle = bent_model()
    wanted = np.array([model.predict(n, 1, predictor).latency_ms for n in networks])
    indices = (17, int(wanted.argmin()), int(wanted.argmax()))
    assert predictor is None or wanted.min() < middle < wanted.max()
    latency = made(space, model, 1, predictor)
    for index in indices:
        ones = [tensor(np.eye(n)[c]) for n, c in zip(SIZES, rows[index], strict=True)]
        found = float(latency.of_probabilities(ones))
        assert found == pytest.approx(wanted[index], rel=1e-12)


def test_a_matrix_or_a_dict_will_do() -> None:
    space = spaces.SPACES["nasbench201"]()
    latency = made(space, MODEL)
    logits = np.random.default_rng(0).normal(size=(6, 5))
    in_order = latency([tensor(x) for x in logits])
    named = {p.name: tensor(x) for p, x in zip(space.positions, logits, strict=True)}
    assert float(latency(tensor(logits))) == pytest.approx(float(in_order))
    assert float(latency(named)) == pytest.approx(float(in_order))


@pytest.mark.parametrize(
    "sizes",
    [[2, 3, 3, 2], [2, 3, 4, 2, 2], [2, 3, 3, 2, 2, 2], {"width 1": 2, "depth": 2}, {"width 1": 2}],
)
def test_wrong_vectors(sizes: Any) -> None:
    latency = made(small(), MODEL)
    pairs = sizes.items() if isinstance(sizes, dict) else enumerate(sizes)
    zeros = {key: tensor(np.zeros(n)) for key, n in pairs}
    with pytest.raises(InputError):
        latency(zeros if isinstance(sizes, dict) else list(zeros.values()))


def test_positions_with_one_choice_need_no_vector() -> None:
    names = [Position("width", (8, 16)), Position("kernel", (3,))]

    def shape(*chosen: int) -> tuple[int, ...]:
        return (1, 8, 8, 3)

    def write(layers: Any, x: int, width: int, kernel: int) -> int:
        return layers.conv(x, width, kernel)

    space = Space.of_parts("narrow", names, [Part("only", (0, 1), shape, write)])
    found = made(space, MODEL).of_probabilities({"width": tensor(np.array([0.25, 0.75]))})
    times = space.scorer(MODEL).latency(np.array([[0, 0], [1, 0]]))
    assert float(found) == pytest.approx(0.25 * times[0] + 0.75 * times[1])


@pytest.mark.parametrize("mode", [None, {"dtype": "amp", "launch": "compiled"}])
def test_a_formula_that_takes_operations_one_by_one(mode: Any) -> None:
    """Its tables are those of the scorer, not the linear sum of counts."""
    space, rows, _ = every()
    model = Model(known_device.document(mode=mode) if mode else known_device.document())
    times = space.scorer(model, 2).latency(rows)
    latency = made(space, model, 2)
    given = probabilities()
    chances = np.prod([p[rows[:, i]] for i, p in enumerate(given)], axis=0)
    found = latency.of_probabilities([tensor(p) for p in given])
    assert float(found) == pytest.approx(float(chances @ times), rel=1e-9)
    for row, wanted in zip(rows[::7], times[::7], strict=True):
        ones = [tensor(np.eye(n)[c]) for n, c in zip(SIZES, row, strict=True)]
        assert float(latency.of_probabilities(ones)) == pytest.approx(wanted, rel=1e-9)
