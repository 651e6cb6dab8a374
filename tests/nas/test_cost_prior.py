"""The costs of a space's pieces, and their derivatives."""

from __future__ import annotations

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.graph.counts import COLUMNS
from lolat.nas import Space
from lolat.nas.cost_prior import DEPTHWISE, MACS, OPS, WEIGHTS, Pieces, work
from lolat.nas.spaces import SPACES, fbnet, nasbench201
from tests.nas.few_devices import EDGES, folded_edges, needed_edges, some_cells
from tests.nas.test_decomposition import CHAIN, chain
from tests.nas.test_space import small

CIFAR, IMAGENET = fbnet.cifar(), fbnet.space()
KNOWN = [*(SPACES[name]() for name in ("nasbench201", "fbnet", "fbnet-cifar")), small()]
EVERY = pytest.mark.parametrize(
    ("space", "pieces"),
    [(space, pieces) for space in KNOWN for pieces in space.assumptions()],
    ids=lambda v: v.name,
)


def test_what_no_choice_changes_is_the_spaces_own() -> None:
    own = sum(work(table) for table in nasbench201.space().tables if not table.positions)
    same = [MACS, DEPTHWISE, OPS]
    assert nasbench201.REST[same].tolist() == own[same].tolist()
    assert nasbench201.REST[WEIGHTS] + 10 == own[WEIGHTS]  # biases


def edges_of(row: np.ndarray) -> set[tuple[int, int]]:
    return {edge for edge, on in zip(EDGES, row, strict=True) if on}


def test_needed_and_folded_edges_of_many_cells() -> None:
    archs = some_cells(2000)
    rows = KNOWN[0].parse(archs)
    for arch, row, fed, folded in zip(
        archs, *nasbench201.needed_edges(rows), nasbench201.folded(rows), strict=True
    ):
        assert edges_of(row) == needed_edges(arch)
        assert fed == any(begin == 0 for begin, _ in needed_edges(arch))
        assert edges_of(folded) == folded_edges(arch)


@EVERY
def test_derivatives_are_those_of_finite_differences(space: Space, pieces: Pieces) -> None:
    generator = np.random.default_rng(1)
    parameters = generator.normal(0.0, 0.7, pieces.size)
    counts = pieces.counts(space.sample(10, generator))
    times, slopes = pieces.latency(counts, parameters)
    assert times == pytest.approx(counts @ pieces.costs(parameters)[0])
    for slope, step in zip(slopes.T, 1e-5 * np.eye(pieces.size), strict=True):
        up, down = (np.log(pieces.latency(counts, parameters + s)[0]) for s in (step, -step))
        assert slope == pytest.approx((up - down) / 2e-5, abs=1e-6)


def test_overlap_takes_the_larger_of_starting_and_working() -> None:
    both = {p.name: p for p in IMAGENET.assumptions()}
    parameters = np.zeros(both["sum"].size)
    parameters[1 + OPS] = 8.0  # a GPU that waits for its next operation
    started = both["overlap"].costs(parameters)[0]
    assert started == pytest.approx(both["sum"].terms[:, OPS] * np.exp(8.0), rel=0.01)
    assert (both["sum"].costs(parameters)[0] >= started - 1e-12).all()


def test_pieces_of_tables_add_up_to_the_terms_of_whole_networks() -> None:
    """Its terms are those of its counts, up to a scale."""
    reverse = {name: choices[::-1] for name, choices in CHAIN.items()}
    own = (small(), Space.from_factory(chain, CHAIN), Space.from_factory(chain, reverse))
    for space in (*own, IMAGENET, CIFAR):
        rows = space.decode(np.arange(space.size)) if space in own else space.sample(50)
        counts = space.counts(rows)[:, [COLUMNS.index("weights"), COLUMNS.index("ops")]]
        for pieces in space.assumptions():
            assert (pieces.terms >= 0).all()
            terms = (pieces.counts(rows) @ pieces.terms)[:, [WEIGHTS, OPS]]
            assert terms / terms[0] == pytest.approx(counts / counts[0])


def test_a_space_of_too_many_pieces_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lolat.nas.cost_prior.MOST_PIECES", 10)
    with pytest.raises(InputError):
        small().assumptions()
