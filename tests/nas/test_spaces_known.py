"""The known spaces: published figures, PyTorch networks after the authors' code, and their own networks."""

from __future__ import annotations

import numpy as np
import pytest

from lolat import nas
from lolat.api.model import Model
from lolat.errors import InputError
from lolat.graph.counts import COLUMNS, count
from lolat.nas import Space, spaces
from lolat.nas.spaces import nasbench201
from tests import synthetic

MODEL = Model(synthetic.document())
NAMES = tuple(spaces.SPACES)
# The authors' FBNet-B and FBNet-C (their model definitions), a digit a layer.
FBNET_B = "0340076377786704674773"
FBNET_C = "0380076737677777677773"


@pytest.fixture(scope="module")
def known() -> dict[str, Space]:
    """The known spaces, made once."""
    return {name: make() for name, make in spaces.SPACES.items()}


def macs(space: Space, rows: np.ndarray) -> list[int]:
    return list(map(int, space.counts(rows)[:, COLUMNS.index("flops")]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch_size", [1, 32])
def test_tables_add_up_to_whole_networks(
    known: dict[str, Space], name: str, batch_size: int
) -> None:
    space = known[name]
    rows = space.sample(8, seed=1)
    networks = [space.network(row) for row in rows]
    whole = np.array([count(network).total(batch_size) for network in networks])
    np.testing.assert_array_equal(space.counts(rows, batch_size), whole)
    for predictor in ("extended", "two-regime"):
        predicted = [MODEL.predict(n, batch_size, predictor).latency_ms for n in networks]
        estimator = nas.estimator(space, MODEL, batch_size, predictor)
        np.testing.assert_allclose(estimator.latency(rows), predicted, rtol=1e-12)


def test_sizes_and_text(known: dict[str, Space]) -> None:
    assert {name: space.size for name, space in known.items()} == {
        "nasbench201": 15_625, "fbnet": 9**22, "fbnet-cifar": 9**22,
    }  # fmt: skip
    for space in known.values():
        rows = space.sample(20, seed=2)
        np.testing.assert_array_equal(space.parse([space.arch(row) for row in rows]), rows)
        with pytest.raises(InputError, match="network 1"):
            space.parse(["none of this"])


def test_nasbench201_has_the_published_macs(known: dict[str, Space]) -> None:
    # The benchmark's own figure (220.11969 M) has the ten biases of the classifier, which are no products.
    space = known["nasbench201"]
    all_3x3 = "|op~0|+|op~0|op~1|+|op~0|op~1|op~2|".replace("op", "nor_conv_3x3")
    assert macs(space, space.parse([all_3x3])) == [220_119_690 - 10]
    all_1x1 = all_3x3.replace("3x3", "1x1")
    stages = 15 * 6 * 16 * 16 * 32 * 32
    assert macs(space, space.parse([all_1x1])) == [220_119_680 - 8 * stages]
    nothing = all_3x3.replace("nor_conv_3x3", "none")
    assert macs(space, space.parse([nothing])) == [220_119_680 - 9 * stages]


def test_fbnets_of_the_paper(known: dict[str, Space]) -> None:
    # Table 3 of the paper: 295 M and 375 M multiply-accumulates; C has 5.5 M parameters. (Blocks of
    # expansion 1 have their first convolution here, as in the authors' code, which is some 3 % more.)
    space = known["fbnet"]
    rows = space.parse([FBNET_B, FBNET_C])
    np.testing.assert_allclose(macs(space, rows), [295e6, 375e6], rtol=0.04)
    np.testing.assert_allclose(space.counts(rows)[1, COLUMNS.index("weights")], 5.5e6, rtol=0.01)


def test_pytorchs_nasbench201_counts_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import lolat
    from tests.nas import torch_spaces

    monkeypatch.setattr(nasbench201, "CELLS", 1)  # the reader takes seconds for fifteen
    space = nasbench201.space()
    row = np.array([1, 0, 3, 2, 4, 3])
    theirs = torch_spaces.without_weights(torch_spaces.nasbench201, space.values(row), 1)
    graph = lolat.read(theirs, (3, 32, 32))
    for batch_size in (1, 8):
        ours = space.counts(row[None], batch_size)[0]
        assert (
            dict(zip(COLUMNS, ours.tolist(), strict=True))
            == count(graph).total(batch_size)._asdict()
        )


def test_pytorchs_layers_of_fbnet_count_the_same(known: dict[str, Space]) -> None:
    # Convolutions and dense layers, by hooks: no reader of ours in between.
    pytest.importorskip("torch")
    from tests.nas import torch_spaces

    space = known["fbnet"]
    for row in space.sample(4, seed=5):
        network = torch_spaces.without_weights(torch_spaces.fbnet, space.values(row))
        theirs = torch_spaces.hooked(network, 224)
        ours = dict(zip(COLUMNS, space.counts(row[None])[0].tolist(), strict=True))
        assert {k: ours[k] for k in theirs} == theirs
