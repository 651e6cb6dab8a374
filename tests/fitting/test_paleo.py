"""The roofline of PALEO: its peaks and answers by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.fitting.predictors.baselines import PALEO_FEATURES as FEATURES
from lolat.fitting.predictors.baselines import Paleo
from lolat.model.learning import answers

# flops, acts, inp, traffic, weights; ms. The first computes most a ms (1e8), the second moves most:
# 4 * (100 + 200 + 300 + 400) bytes in 1 ms.
POINTS = np.array([[1e9, 1, 1, 1, 1], [1e3, 100, 200, 300, 400], [1e9, 10, 10, 10, 10]], float)
TIMES = np.array([10.0, 1.0, 40.0])


def test_the_peaks_are_the_highest_rates_of_any_point() -> None:
    found = Paleo.fit(POINTS, TIMES)
    assert FEATURES == ("flops", "acts", "inp", "traffic", "weights")
    assert found.peak == pytest.approx(1e8)
    assert found.bandwidth == pytest.approx(4000.0)
    assert found.constant == 0.0


def test_an_answer_is_compute_and_memory_one_after_the_other() -> None:
    found = Paleo.fit(POINTS, TIMES)
    assert found.one([5e8, 1000, 2000, 3000, 4000]) == pytest.approx(5e8 / 1e8 + 4 * 10000 / 4000)
    np.testing.assert_allclose(answers(found, POINTS)[1], 1e3 / 1e8 + 1.0)


@given(st.lists(st.tuples(*[st.integers(0, 10**9)] * 5), min_size=2, max_size=6))
def test_a_network_takes_as_long_as_its_layers_together(layers: list[tuple[int, ...]]) -> None:
    found = Paleo.fit(POINTS, TIMES)
    total = [sum(column) for column in zip(*layers, strict=True)]
    assert found.one(total) == pytest.approx(sum(found.one(layer) for layer in layers))


@pytest.mark.parametrize(
    ("empty", "words"),
    [([0], "0 multiply-accumulates"), ([1, 2, 3, 4], "0 elements read or written")],
)
def test_points_without_work_have_no_peak(empty: list[int], words: str) -> None:
    points = POINTS.copy()
    points[:, empty] = 0.0
    with pytest.raises(InputError, match=words):
        Paleo.fit(points, TIMES)
