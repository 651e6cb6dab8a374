"""Scores against the model's own predictions of whole networks, and against brute force."""

from __future__ import annotations

import re
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lolat
from lolat import nas
from lolat.api.model import Model
from lolat.device.predictors.additive import AdditiveCosts
from lolat.errors import InputError
from lolat.nas import estimators
from lolat.nas.estimators import LatencyEstimator, table_estimator
from lolat.nas.grid import Grid
from lolat.nas.ranking import Latencies, best_of
from lolat.nas.space import CHUNK, Space
from lolat.nas.user_code import find_space
from tests import synthetic
from tests.nas.test_space import every
from tests.training import known_device

MODEL = Model(synthetic.document())
PLAIN = AdditiveCosts.linear(("ops",), (1.0,), 0.25)


def made(
    sizes: list[int], tables: dict[tuple[int, ...], Any], formula: Any = PLAIN
) -> LatencyEstimator:
    """A estimator of made-up milliseconds."""
    return table_estimator(
        Grid(tuple(sizes)), [(p, np.asarray(t, float)) for p, t in tables.items()], formula, 1
    )


def bent_model() -> tuple[Model, float]:
    """A model whose two-regime formula bends in the middle of the small space, and where it does."""
    space, rows, _ = every()
    formula = MODEL.predictor("two-regime")
    line = space.counts(rows)[:, :3] @ np.array(formula.slopes) + formula.constant
    middle = float(np.median(line))
    document = synthetic.document()
    document["predictors"]["two-regime"] |= {"breakpoint_ms": middle, "slope": 0.5}
    return Model(document), middle


@pytest.mark.parametrize("batch_size", [1, 8])
@pytest.mark.parametrize(
    ("model", "predictor"),
    [
        (MODEL, None), (MODEL, "extended"), (MODEL, "two-regime"), (bent_model()[0], "two-regime"),
        (Model(known_device.document()), None),  # a formula that takes operations one by one
    ],
)  # fmt: skip
def test_a_latency_is_the_models_own(model: Model, predictor: str | None, batch_size: int) -> None:
    space, rows, networks = every()
    estimator = nas.estimator(space, model, batch_size, predictor)
    found = [model.predict(n, batch_size, predictor).latency_ms for n in networks]
    np.testing.assert_allclose(estimator.latency(rows), found, rtol=1e-12)


@pytest.mark.parametrize("mode", [{"dtype": "amp"}, {"dtype": "amp", "launch": "compiled"}])
def test_where_parts_change_each_other_whole_candidates_tell_by_how_much(
    mode: dict[str, Any],
) -> None:
    space, rows, networks = every()
    model = Model(known_device.document(mode=mode))
    found = np.array([model.predict(n, 8).latency_ms for n in networks])
    scored = nas.estimator(space, model, 8).latency(rows)
    assert np.median(np.abs(scored / found - 1)) < 0.03
    assert np.corrcoef(scored, found)[0, 1] > 0.97


@pytest.mark.parametrize(
    ("name", "device", "batch_size", "most"),
    [
        ("nasbench201", "t4-fp32", 64, 1e-3),
        ("fbnet", "a100-fp32", 64, 0.01),
        ("fbnet", "rtx-4090-amp", 64, 0.015),
    ],
)  # fmt: skip
def test_a_host_decides_some_latencies(
    name: str, device: str, batch_size: int, most: float
) -> None:
    space, model = find_space(name), Model.load(device)
    rows = space.sample(12, seed=5)
    found = [model.predict(space.network(row), batch_size) for row in rows]
    assert len({p.host_bound for p in found}) == 2
    estimator = nas.estimator(name, device, batch_size)
    np.testing.assert_allclose(estimator.latency(rows), [p.latency_ms for p in found], rtol=most)
    assert ("summed over parts" in estimator.source) == (most > 1e-6)


def test_a_host_and_networks_of_a_function() -> None:
    space, rows, networks = every()
    choices = {f"p{n}": p.choices for n, p in enumerate(space.positions)}
    made = Space.from_factory(lambda **chosen: space.build((*chosen.values(),), ""), choices)
    host = {"start_ms": 1.0, "factor": 2.0, "source": "assumed"}
    model = Model(known_device.document(host=host))
    found = [model.predict(n, 4).latency_ms for n in networks]
    np.testing.assert_allclose(nas.estimator(made, model, 4).latency(rows), found, rtol=0.01)


def test_tables_of_any_positions_add_up() -> None:
    # In no order, overlapping, one inside another, one too large to be merged with anything.
    random = np.random.default_rng(0)
    sizes = [3, 4, 2, 60, 50, 40]
    tables = {
        (): 2.0, (1,): random.random(4), (2, 0): random.random((2, 3)), (0, 1, 2): random.random((3, 4, 2)),
        (5, 3): random.random((40, 60)), (3, 4): random.random((60, 50)), (4,): random.random(50),
        (5, 4, 3): random.random((40, 50, 60)),
    }  # fmt: skip
    estimator = made(sizes, tables)
    rows = Grid(tuple(sizes)).sample(500, random)
    expected = [
        0.25 + sum(float(np.asarray(t)[tuple(row[p] for p in key)]) for key, t in tables.items())
        for row in rows
    ]
    for dtype in (np.int8, np.uint8, np.int32, np.int64, np.uint64):
        np.testing.assert_allclose(estimator.latency(rows.astype(dtype)), expected, rtol=1e-12)
    assert estimator.latency(rows[:0]).shape == (0,)
    np.testing.assert_allclose(estimator.latency(rows[::2]), expected[::2], rtol=1e-12)
    np.testing.assert_allclose(estimator.latency(np.asfortranarray(rows)), expected, rtol=1e-12)


def test_more_choices_than_a_byte_holds() -> None:
    table = np.arange(70_000.0)
    estimator = made([70_000, 2], {(0,): table, (1,): [0.0, 0.5]})
    rows = np.array([[69_999, 1], [0, 0], [65_536, 0]])
    assert estimator.latency(rows).tolist() == [70_999.75 - 1000.0, 0.25, 65_536.25]


@pytest.mark.parametrize("dtype", [np.int8, np.int64])
def test_a_wrong_choice_is_named_wherever_it_is(dtype: Any) -> None:
    estimator = made([3, 3], {(0,): [1, 2, 3], (1,): [1, 2, 3]})
    rows = np.zeros((CHUNK + 10, 2), dtype)
    for wrong in (3, -1):
        rows[CHUNK + 3, 1] = wrong
        with pytest.raises(InputError, match=f"row {CHUNK + 3} has {wrong} at position 1"):
            estimator.latency(rows)
    with pytest.raises(InputError, match=r"shape \(candidates, 2\)"):
        estimator.latency(np.zeros((4, 3), dtype))
    with pytest.raises(InputError, match="type float64"):
        estimator.latency(np.zeros((4, 2)))


PIECES = st.lists(st.lists(st.sampled_from([1.0, 2.0, 3.0]), max_size=9), max_size=5)


@given(PIECES, st.integers(1, 12))
def test_the_best_are_those_of_brute_force(pieces: list[list[float]], k: int) -> None:
    best, every = Latencies.joined([]), list[float]()
    for piece in pieces:
        indices = np.arange(len(every), len(every) + len(piece))
        best = best_of(best, Latencies(indices, np.array(piece, float)), k)
        every += piece
    expected = sorted(range(len(every)), key=lambda i: (every[i], i))[:k]
    assert best.indices.tolist() == expected
    assert best.times.tolist() == [every[i] for i in expected]


def test_a_range_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimators, "DECODED", 1000)
    sizes = [5, 7, 9, 11, 13, 4]
    estimator = made(sizes, {(p,): np.arange(n) for p, n in enumerate(sizes)})
    for start, stop in ((0, None), (10, 30_000)):
        indices, rows, times = map(np.concatenate, zip(*estimator.chunks(start, stop), strict=True))
        assert indices.tolist() == list(range(start, stop or estimator.grid.size))
        assert rows.tolist() == Grid(tuple(sizes)).decode(indices).tolist()
        assert times.tolist() == (0.25 + rows.sum(axis=1)).tolist()


def test_networks_in_half_precision_are_estimated_in_it() -> None:
    torch = pytest.importorskip("torch")

    def built(width: int, depth: int) -> Any:
        layers = [torch.nn.Linear(2048, 2048) for _ in range(depth)]
        return torch.nn.Sequential(*layers, torch.nn.Linear(2048, width)).half()

    space = Space.from_factory(built, {"width": (512, 4096), "depth": (1, 3)}, input_size=(2048,))
    model = Model.load("v100-fp32")
    rows = space.decode(np.arange(space.size))
    predicted = [model.predict(space.network(row), 512).latency_ms for row in rows]
    np.testing.assert_allclose(nas.estimator(space, model, 512).latency(rows), predicted, rtol=1e-6)


@pytest.mark.parametrize(("device", "is_far"), [("rtx-4090", True), ("epyc-2t", False)])
def test_tables_that_add_up_to_other_latencies_are_told(device: str, is_far: bool) -> None:
    """The host decides candidates of skip connections: a whole network's prediction is the oracle."""
    space, model = find_space("nasbench201"), lolat.load(device)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        formula, tables = nas.latency_tables(space, model, 256)
    skips = [[str(c) for c in p.choices].index("skip_connect") for p in space.positions]
    total = formula.constant
    total += sum(float(ms[tuple(skips[p] for p in positions)]) for positions, ms in tables)
    off = abs(total / model.predict(space.network(np.array(skips)), 256).latency_ms - 1)
    assert (off > 0.3) == is_far
    assert len(told) == is_far
    for warning in told:
        (percent,) = re.findall(r"within ([\d.]+) % of .* 3\d whole", str(warning.message))
        assert float(percent) > 30
        assert warning.filename == __file__
