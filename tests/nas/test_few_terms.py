"""What the pieces of a space cost by the formula, and their derivatives."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.nas.fewshot import fbnet as layer_terms
from lolat.nas.fewshot import nasbench201 as cell_terms
from lolat.nas.fewshot.samples import SPACES, space_terms
from lolat.nas.fewshot.terms import OPS, TERMS, Pieces
from lolat.nas.spaces import nasbench201
from tests.nas.few_devices import EDGES, cell, folded_edges, needed_edges, some_cells

EVERY = [(space, pieces) for space in SPACES for pieces in space_terms(space).assumptions]


def total(pieces: Pieces, rows: np.ndarray, average: np.ndarray) -> np.ndarray:
    return pieces.counts(rows) @ (pieces.terms * average)


def test_macs_of_cells_are_those_that_the_benchmark_publishes() -> None:
    """Dong and Yang's API: 220.12 M for 3x3 on every edge, 7.78 M for skip_connect on every edge."""
    pieces = cell_terms.assumptions()[0]
    average = cell_terms._around() + 6 * (cell_terms._COSTS.mean(axis=0) + cell_terms._ADDITION)
    rows = nasbench201.parse_many([cell(["nor_conv_3x3"] * 6), cell(["skip_connect"] * 6)])
    macs = total(pieces, rows, average)[:, TERMS.index("macs")]
    assert macs / 1e6 == pytest.approx([220.12, 7.78], abs=0.005)


def test_counts_of_an_fbnet_block_by_hand() -> None:
    # Layer 1: 16 channels in and out, 32x32; k5_e3 has 48 in between.
    counts = layer_terms._block(32, 16, 16, 1, 6)
    assert counts[0] == 32 * 32 * 16 * 48 * 2
    assert counts[1] == 32 * 32 * 48 * 25
    assert counts[3] == 16 * 48 * 2 + 48 * 25
    # Layer 6: 24 to 32 channels, stride 2: skip is a pointwise convolution there.
    assert layer_terms._block(32, 24, 32, 2, 8)[0] == 16 * 16 * 24 * 32
    assert layer_terms._block(16, 32, 32, 1, 8) == [0.0] * 5
    # Two groups halve the pointwise convolutions.
    assert layer_terms._block(32, 16, 16, 1, 1)[0] * 2 == layer_terms._block(32, 16, 16, 1, 0)[0]


def test_layers_of_fbnet_by_its_table() -> None:
    layers = layer_terms.layers()
    assert len(layers) == 22
    assert layers[0] == (0, 32, 16, 16, 1)
    assert layers[5] == (2, 32, 24, 32, 2)
    assert layers[-1] == (6, 4, 184, 352, 1)


def test_needed_edges_are_those_on_a_path_to_the_output() -> None:
    archs = some_cells(2000)
    live, whole = cell_terms.needed(nasbench201.parse_many(archs))
    for arch, row, fed in zip(archs, live, whole, strict=True):
        expected = needed_edges(arch)
        assert {edge for edge, on in zip(EDGES, row, strict=True) if on} == expected
        assert fed == any(begin == 0 for begin, _ in expected)


@pytest.mark.parametrize(
    ("operations", "expected"),
    [
        # none of 0->1, 0->2, 1->2, 0->3, 1->3, 2->3 but what is named
        ({1: "nor_conv_3x3", 3: "skip_connect"}, {(0, 2)}),
        ({1: "nor_conv_1x1", 3: "skip_connect"}, {(0, 2)}),
        ({1: "avg_pool_3x3", 3: "skip_connect"}, set()),  # has no weights to fold into
        ({0: "skip_connect", 1: "nor_conv_3x3", 2: "skip_connect", 4: "skip_connect"}, set()),
        ({0: "nor_conv_1x1", 2: "nor_conv_3x3", 4: "skip_connect"}, {(0, 1), (1, 2)}),
        ({0: "nor_conv_1x1", 1: "skip_connect", 5: "skip_connect"}, {(0, 1)}),
        ({0: "nor_conv_1x1", 2: "skip_connect", 3: "skip_connect"}, {(0, 1)}),
        ({0: "nor_conv_1x1", 1: "nor_conv_3x3", 3: "skip_connect"}, {(0, 2)}),
    ],
)
def test_a_convolution_multiplied_by_zero_is_executed(
    operations: dict[int, str], expected: set[tuple[int, int]]
) -> None:
    arch = cell([operations.get(edge, "none") for edge in range(6)])
    (row,) = cell_terms.folded(nasbench201.parse_many([arch]))
    assert {edge for edge, on in zip(EDGES, row, strict=True) if on} == expected


def test_folded_convolutions_of_many_cells() -> None:
    archs = some_cells(2000)
    for arch, row in zip(archs, cell_terms.folded(nasbench201.parse_many(archs)), strict=True):
        found = {edge for edge, on in zip(EDGES, row, strict=True) if on}
        assert found == folded_edges(arch)


def test_suggested_cells_hand_their_input_to_their_output() -> None:
    rows = cell_terms.candidates(np.random.default_rng(0))
    assert len(np.unique(rows, axis=0)) == len(rows)
    archs = {nasbench201.write(row) for row in rows}
    for arch in some_cells(500):
        connected = any(
            needed_edges(arch) >= set(pairwise(path))
            for path in ((0, 3), (0, 1, 3), (0, 2, 3), (0, 1, 2, 3))
        )
        assert (arch in archs) == connected


@pytest.mark.parametrize(("space", "pieces"), EVERY, ids=lambda v: getattr(v, "name", v))
def test_derivatives_are_those_of_finite_differences(space: str, pieces: Pieces) -> None:
    generator = np.random.default_rng(1)
    parameters = generator.normal(0.0, 0.7, pieces.size)
    rows = space_terms(space).candidates(generator)[::200]
    counts = pieces.counts(rows)
    times, slopes = pieces.latency(counts, parameters)
    assert times == pytest.approx(counts @ pieces.costs(parameters)[0])
    for index in range(pieces.size):
        step = np.zeros(pieces.size)
        step[index] = 1e-5
        up, down = (np.log(pieces.latency(counts, parameters + s)[0]) for s in (step, -step))
        assert slopes[:, index] == pytest.approx((up - down) / 2e-5, abs=1e-6)


@pytest.mark.parametrize(("space", "pieces"), EVERY, ids=lambda v: getattr(v, "name", v))
def test_every_network_costs_something(space: str, pieces: Pieces) -> None:
    rows = space_terms(space).candidates(np.random.default_rng(0))
    counts = pieces.counts(rows)
    assert (counts >= 0).all()
    assert (counts @ pieces.costs(np.zeros(pieces.size))[0] > 0).all()
    assert (pieces.factors.sum(axis=1) >= 1).all()


def test_overlap_takes_the_larger_of_starting_and_working() -> None:
    both = {p.name: p for p in space_terms("fbnet").assumptions}
    parameters = np.zeros(both["sum"].size)
    parameters[1 + OPS] = 8.0  # a GPU that waits to be told what to do
    started = both["overlap"].costs(parameters)[0]
    alone = both["sum"].terms[:, OPS] * np.exp(8.0)
    assert started == pytest.approx(alone, rel=0.01)
    assert (both["sum"].costs(parameters)[0] >= started - 1e-12).all()


def test_a_space_that_is_not_known_is_refused() -> None:
    with pytest.raises(
        InputError, match="unknown space 'darts'; expected one of nasbench201, fbnet"
    ):
        space_terms("darts")
