"""Which networks to measure next."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.nas.fewshot.model import fit
from lolat.nas.fewshot.samples import Samples, space_terms
from lolat.nas.fewshot.suggest import _Device, suggest
from tests.nas.few_devices import everything, only_needed, some_cells

CELLS = space_terms("nasbench201")
LAYERS = space_terms("fbnet")


def samples(rows: np.ndarray, device: Callable[[str], float] = everything) -> Samples:
    archs = tuple(CELLS.write(row) for row in rows)
    return Samples(archs, rows, np.array([device(a) for a in archs]), 0.0, ())


@pytest.fixture(scope="module")
def ten() -> np.ndarray:
    return suggest(CELLS, 10)


def test_the_same_seed_names_the_same_different_networks(ten: np.ndarray) -> None:
    assert len(np.unique(ten, axis=0)) == 10
    assert np.array_equal(suggest(CELLS, 3), ten[:3])
    assert not np.array_equal(suggest(CELLS, 3, seed=1), ten[:3])


def test_networks_of_fbnet_are_suggested() -> None:
    chosen = suggest(LAYERS, 4)
    assert len(np.unique(chosen, axis=0)) == 4
    # Unlike each other: no two of them have half of their layers alike.
    alike = [(a == b).mean() for i, a in enumerate(chosen) for b in chosen[:i]]
    assert max(alike) < 1 / 2


def test_suggested_networks_tell_more_than_random_ones(ten: np.ndarray) -> None:
    """On made-up devices with 3 % noise: every operation apart, in every draw of the noise."""
    others = some_cells(400, seed=20)
    rows = CELLS.parse_many(others)
    exact = np.array([everything(a) for a in others])

    def error(chosen: np.ndarray, seed: int) -> float:
        known = samples(chosen)
        noise = np.exp(0.03 * np.random.default_rng(seed).standard_normal(len(chosen)))
        noisy = Samples(known.archs, known.rows, known.times * noise, 0.0, ())
        return float(np.median(np.abs(fit(CELLS.name, noisy).latency_ms(rows) / exact - 1.0)))

    chosen = ten[:8]
    drawn = [CELLS.parse_many(some_cells(8, seed=s)) for s in range(6)]
    assert np.mean([error(chosen, s) for s in range(6)]) < np.mean(
        [error(rows, s) for s, rows in enumerate(drawn)]
    )


def test_what_the_devices_do_with_dead_operations_is_told_apart(ten: np.ndarray) -> None:
    chosen = ten
    assert fit(CELLS.name, samples(chosen)).assumptions()[0][0].startswith("every operation")
    removed = fit(CELLS.name, samples(chosen, only_needed)).assumptions()[0]
    assert removed[0].startswith("operations that the output does not need")
    assert removed[1] > 0.9


def test_measured_networks_are_not_suggested_again(ten: np.ndarray) -> None:
    have = ten[:6]
    more = suggest(CELLS, 6, samples(have))
    assert not {row.tobytes() for row in have} & {row.tobytes() for row in more}


def test_only_the_networks_given_are_chosen_from() -> None:
    among = CELLS.parse_many(some_cells(9, seed=21))
    chosen = suggest(CELLS, 4, among=np.concatenate([among, among]))
    assert {row.tobytes() for row in chosen} < {row.tobytes() for row in among}
    assert len(np.unique(chosen, axis=0)) == 4


def test_more_than_there_are_is_refused() -> None:
    among = CELLS.parse_many(some_cells(4, seed=22))
    with pytest.raises(InputError, match="5 networks were asked for and 4 are left to choose from"):
        suggest(CELLS, 5, among=among)
    with pytest.raises(InputError, match=r"3 are left.*--count of at most 3"):
        suggest(CELLS, 4, samples(among[:1]), among)


def test_the_gain_of_a_measurement_is_that_of_the_conditional_covariance() -> None:
    """The covariance of all candidates before and after, by the textbook formula on the full matrix."""
    generator = np.random.default_rng(0)
    slopes, root = generator.standard_normal((12, 3)), generator.standard_normal((3, 3))
    covariance, variance = root @ root.T, 0.04
    device = _Device(slopes, covariance, variance)
    full = slopes @ covariance @ slopes.T
    after = [full - np.outer(full[:, i], full[:, i]) / (full[i, i] + variance) for i in range(12)]
    taken = [1.0 - np.trace(a) / np.trace(full) for a in after]
    assert device.gain() == pytest.approx(taken)
    device.measured(5)
    left = after[5]
    assert device.own == pytest.approx(np.diag(left))
    again = [
        1.0
        - np.trace(left - np.outer(left[:, i], left[:, i]) / (left[i, i] + variance))
        / np.trace(left)
        for i in range(12)
    ]
    assert device.gain() == pytest.approx(again)
