"""The costs of a space's pieces, and their derivatives."""

from __future__ import annotations

import numpy as np
import pytest

from lolat.errors import InputError
from lolat.graph.counts import COLUMNS
from lolat.nas import Space
from lolat.nas.cost_prior import DEPTHWISE, MACS, OPS, TRAFFIC, WEIGHTS, Pieces, of_tables, work
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


def test_counts_of_fbnets_blocks_by_hand() -> None:
    blocks = fbnet.blocks(fbnet.CIFAR, CIFAR)
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


def test_what_no_choice_changes_is_the_spaces_own() -> None:
    own = sum(work(table) for table in nasbench201.space().tables if not table.positions)
    same = [MACS, DEPTHWISE, OPS]
    assert nasbench201.REST[same].tolist() == own[same].tolist()
    assert nasbench201.REST[WEIGHTS] + 10 == own[WEIGHTS]  # biases


def test_stem_and_head_of_fbnet_by_hand() -> None:
    for variant, space, before, behind, channels, classes in (
        (fbnet.IMAGENET, IMAGENET, 112**2, 7**2, 1984, 1000),
        (fbnet.CIFAR, CIFAR, 32**2, 4**2, 1504, 100),
    ):
        kernels = [3 * 3 * 3 * 16, 352 * channels, channels * classes]
        macs = before * kernels[0] + behind * kernels[1] + kernels[2]
        moved = 6 * (before * 16 + behind * channels)
        # Convolution, norm and relu twice, pooling, the classifier.
        assert fbnet.rest(variant, space).tolist() == [macs, 0, moved, sum(kernels), 8]


def edges_of(row: np.ndarray) -> set[tuple[int, int]]:
    return {edge for edge, on in zip(EDGES, row, strict=True) if on}


def test_needed_and_folded_edges_of_many_cells() -> None:
    archs = some_cells(2000)
    rows = KNOWN[0].parse(archs)
    for arch, row, fed, folded in zip(
        archs, *nasbench201.needed(rows), nasbench201.folded(rows), strict=True
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
    """A space without assumptions of its own: its terms are those of its counts, up to a scale."""
    reverse = {name: choices[::-1] for name, choices in CHAIN.items()}
    for space in (small(), Space.from_factory(chain, CHAIN), Space.from_factory(chain, reverse)):
        rows = space.decode(np.arange(space.size))
        counts = space.counts(rows)[:, [COLUMNS.index("flops"), COLUMNS.index("weights")]]
        for pieces in of_tables(space.name, space.tables):
            assert (pieces.terms >= 0).all()
            terms = (pieces.counts(rows) @ pieces.terms)[:, [MACS, WEIGHTS]]
            assert terms / terms[0] == pytest.approx(counts / counts[0])


def test_a_space_of_too_many_pieces_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lolat.nas.cost_prior.MOST_PIECES", 10)
    with pytest.raises(InputError):
        small().assumptions()
