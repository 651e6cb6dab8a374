"""What the pieces of a space cost, their derivatives, and which networks to measure next."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.nas.fewshot import SPACES, Samples, fit, space_terms, suggest
from lolat.nas.pieces import DEPTHWISE, MACS, OPS, TRAFFIC, WEIGHTS, Device, Pieces, work
from lolat.nas.spaces import fbnet, nasbench201
from tests.nas.few_devices import (
    EDGES,
    PATHS,
    everything,
    folded_edges,
    needed_edges,
    only_needed,
    some_cells,
)

CELLS, LAYERS = space_terms("nasbench201"), space_terms("fbnet")
EVERY = pytest.mark.parametrize(
    ("space", "pieces"),
    [(space, pieces) for space in SPACES for pieces in space_terms(space).assumptions],
    ids=lambda v: getattr(v, "name", v),
)


def test_counts_of_fbnets_blocks_by_hand() -> None:
    blocks = fbnet.blocks()
    # Layer 1: 16 channels in and out, 32x32; k5_e3 has 48 in between: three convolutions with a
    # normalization each, two activations and an addition.
    k5_e3 = blocks[0, fbnet.CHOICES.index("k5_e3")]
    assert k5_e3[MACS] == 32 * 32 * 16 * 48 * 2
    assert k5_e3[DEPTHWISE] == 32 * 32 * 48 * 25
    assert k5_e3[TRAFFIC] == 32 * 32 * (16 + 12 * 48 + 6 * 16)
    assert k5_e3[WEIGHTS] == 16 * 48 * 2 + 48 * 25
    assert k5_e3[OPS] == 9
    # Two groups halve the pointwise convolutions, and two shuffles start three operations each.
    e1, g2 = (blocks[0, fbnet.CHOICES.index(c)] for c in ("k3_e1", "k3_e1_g2"))
    assert (g2[MACS] * 2, g2[TRAFFIC], g2[OPS]) == (e1[MACS], e1[TRAFFIC], e1[OPS] + 6)
    # Layer 6: 24 to 32 channels, stride 2: skip is a pointwise convolution of a quarter of the input there.
    skip = [16 * 16 * 24 * 32, 0, 16 * 16 * (24 + 5 * 32), 24 * 32, 3]
    assert blocks[5, -1].tolist() == skip
    assert blocks[8, -1].tolist() == [0.0] * 5


@pytest.mark.parametrize(
    ("terms", "space", "biases"),
    [(nasbench201, nasbench201.space(), 10), (fbnet, fbnet.cifar(), 100)],
)
def test_what_no_choice_changes_is_the_spaces_own(terms: Any, space: Any, biases: int) -> None:
    own = sum(work(table) for table in space.tables if not table.positions)
    same = [MACS, DEPTHWISE, OPS]
    assert terms.REST[same].tolist() == own[same].tolist()
    assert terms.REST[WEIGHTS] + biases == own[WEIGHTS]


def edges_of(row: np.ndarray) -> set[tuple[int, int]]:
    return {edge for edge, on in zip(EDGES, row, strict=True) if on}


def test_needed_and_folded_edges_of_many_cells() -> None:
    archs = some_cells(2000)
    rows = nasbench201.parse_many(archs)
    for arch, row, fed, folded in zip(
        archs, *nasbench201.needed(rows), nasbench201.folded(rows), strict=True
    ):
        assert edges_of(row) == needed_edges(arch)
        assert fed == any(begin == 0 for begin, _ in needed_edges(arch))
        assert edges_of(folded) == folded_edges(arch)


def test_suggested_cells_hand_their_input_to_their_output() -> None:
    rows = nasbench201.candidates(np.random.default_rng(0))
    assert len(np.unique(rows, axis=0)) == len(rows)
    archs = {nasbench201.write(row) for row in rows}
    for arch in some_cells(500):
        connected = any(needed_edges(arch) >= set(pairwise(path)) for path in PATHS)
        assert (arch in archs) == connected


@EVERY
def test_derivatives_are_those_of_finite_differences(space: str, pieces: Pieces) -> None:
    generator = np.random.default_rng(1)
    parameters = generator.normal(0.0, 0.7, pieces.size)
    counts = pieces.counts(space_terms(space).candidates(generator)[::200])
    times, slopes = pieces.latency(counts, parameters)
    assert times == pytest.approx(counts @ pieces.costs(parameters)[0])
    for slope, step in zip(slopes.T, 1e-5 * np.eye(pieces.size), strict=True):
        up, down = (np.log(pieces.latency(counts, parameters + s)[0]) for s in (step, -step))
        assert slope == pytest.approx((up - down) / 2e-5, abs=1e-6)


@EVERY
def test_every_network_costs_something(space: str, pieces: Pieces) -> None:
    counts = pieces.counts(space_terms(space).candidates(np.random.default_rng(0)))
    assert (counts >= 0).all()
    assert (counts @ pieces.costs(np.zeros(pieces.size))[0] > 0).all()
    assert (pieces.factors.sum(axis=1) >= 1).all()


def test_overlap_takes_the_larger_of_starting_and_working() -> None:
    both = {p.name: p for p in LAYERS.assumptions}
    parameters = np.zeros(both["sum"].size)
    parameters[1 + OPS] = 8.0  # a GPU that waits to be told what to do
    started = both["overlap"].costs(parameters)[0]
    assert started == pytest.approx(both["sum"].terms[:, OPS] * np.exp(8.0), rel=0.01)
    assert (both["sum"].costs(parameters)[0] >= started - 1e-12).all()


def test_a_space_that_is_not_known_is_refused() -> None:
    with pytest.raises(InputError, match="'darts'; expected one of nasbench201, fbnet"):
        space_terms("darts")


# ---- What to measure next.


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


def test_suggested_networks_of_fbnet_are_unlike_each_other() -> None:
    chosen = suggest(LAYERS, 4)
    alike = [(a == b).mean() for i, a in enumerate(chosen) for b in chosen[:i]]
    assert max(alike) < 1 / 2


def test_suggested_networks_tell_more_than_random_ones(ten: np.ndarray) -> None:
    """On made-up devices with 3 % noise: every operation apart, in every draw of the noise."""
    others = some_cells(400, seed=20)
    rows = CELLS.parse_many(others)
    exact = np.array([everything(a) for a in others])

    def error(chosen: np.ndarray, seed: int) -> float:
        known = samples(chosen)
        known.times[:] *= np.exp(0.03 * np.random.default_rng(seed).standard_normal(len(chosen)))
        return float(np.median(np.abs(fit(CELLS.name, known).latency_ms(rows) / exact - 1.0)))

    drawn = [CELLS.parse_many(some_cells(8, seed=s)) for s in range(6)]
    of_random = [error(rows, s) for s, rows in enumerate(drawn)]
    assert np.mean([error(ten[:8], s) for s in range(6)]) < np.mean(of_random)


def test_what_the_devices_do_with_dead_operations_is_told_apart(ten: np.ndarray) -> None:
    assert fit(CELLS.name, samples(ten)).assumptions()[0][0].startswith("every operation")
    words, weight = fit(CELLS.name, samples(ten, only_needed)).assumptions()[0]
    assert words.startswith("operations that the output does not need")
    assert weight > 0.9


def test_what_is_chosen_from(ten: np.ndarray) -> None:
    more = suggest(CELLS, 6, samples(ten[:6]))
    assert not {row.tobytes() for row in ten[:6]} & {row.tobytes() for row in more}
    among = CELLS.parse_many(some_cells(9, seed=21))
    chosen = {row.tobytes() for row in suggest(CELLS, 4, among=np.concatenate([among, among]))}
    assert len(chosen) == 4
    assert chosen < {row.tobytes() for row in among}
    with pytest.raises(InputError, match="--count 10: only 9 networks are left"):
        suggest(CELLS, 10, among=among)
    with pytest.raises(InputError, match="--count 9: only 8 networks are left"):
        suggest(CELLS, 9, samples(among[:1]), among)


def test_the_gain_of_a_measurement_is_that_of_the_conditional_covariance() -> None:
    """The covariance of all candidates before and after, by the textbook formula on the full matrix."""
    generator = np.random.default_rng(0)
    slopes, root = generator.standard_normal((12, 3)), generator.standard_normal((3, 3))
    variance = 0.04

    def after(full: np.ndarray, i: int) -> np.ndarray:
        return np.asarray(full - np.outer(full[:, i], full[:, i]) / (full[i, i] + variance))

    def gains(full: np.ndarray) -> list[float]:
        return [1.0 - np.trace(after(full, i)) / np.trace(full) for i in range(12)]

    device = Device(slopes, root @ root.T, variance)
    full = slopes @ root @ root.T @ slopes.T
    assert device.gain() == pytest.approx(gains(full))
    device.measured(5)
    assert device.own == pytest.approx(np.diag(after(full, 5)))
    assert device.gain() == pytest.approx(gains(after(full, 5)))
