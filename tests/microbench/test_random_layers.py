"""Random layers: the paper's ranges, the cap on work, the same ones for the same seed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lolat.errors import InputError
from lolat.graph.counts import count
from lolat.mlp.table import ACTIVATIONS, COLUMNS, OPTIMIZERS, LayerTable
from microbench.learn_layers import description, draw, name, work
from tests.mlp.tables import layer_graph

KINDS = ("convolution", "dense")


def rows(table: LayerTable) -> list[tuple[object, ...]]:
    columns = [c for c in COLUMNS[table.layer] if c != "gpu"]
    return list(zip(*(table[c].tolist() for c in columns), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_layers_and_fewer_are_the_first_of_more(kind: str) -> None:
    many = rows(draw(kind, 500, 3, 1e9))
    assert rows(draw(kind, 500, 3, 1e9)) == many
    assert rows(draw(kind, 60, 3, 1e9)) == many[:60]
    assert rows(draw(kind, 500, 4, 1e9)) != many
    assert len(set(many)) == 500


def test_convolutions_cover_the_ranges_of_the_paper() -> None:
    table = draw("convolution", 20_000, 1)
    for column, low, high in (
        ("batch_size", 1, 64), ("input_size", 1, 512), ("kernel_size", 1, 7), ("stride", 1, 4),
        ("use_bias", 0, 1),
    ):  # fmt: skip
        assert (table[column].min(), table[column].max()) == (low, high), column
    for channels in ("in_channels", "out_channels"):
        product = table[channels] * table["input_size"]
        assert table[channels].min() == 1
        assert 9_900 < product.max() <= 10_000
        # uniform up to a limit that depends on the size: half of the limit on average
        assert np.mean(table[channels] / (10_000 // table["input_size"])) == pytest.approx(
            0.5, abs=0.02
        )
    assert (table["kernel_size"] <= table["input_size"]).all()
    # as likely as the others, but for the few inputs that are smaller than 7
    shares = Counter(table["kernel_size"].tolist())
    assert all(abs(shares[k] / 20_000 - 1 / 7) < 0.015 for k in range(1, 8))


def test_dense_layers_cover_the_ranges_of_the_paper() -> None:
    table = draw("dense", 20_000, 1)
    for features in ("in_features", "out_features"):
        assert 1 <= table[features].min() < 10
        assert 4_085 < table[features].max() <= 4_095
        assert table[features].mean() == pytest.approx(2_048, rel=0.02)


@pytest.mark.parametrize("most", [None, 1e9])
@pytest.mark.parametrize("kind", KINDS)
def test_half_are_forward_only_and_every_word_is_as_likely(kind: str, most: float | None) -> None:
    table = draw(kind, 6_000, 2, most)
    optimizers = Counter(table["optimizer"].tolist())
    assert set(optimizers) == set(OPTIMIZERS)
    assert optimizers.pop("none") == pytest.approx(3_000, rel=0.06)
    assert all(n == pytest.approx(500, rel=0.2) for n in optimizers.values())
    activations = Counter(table["activation"].tolist())
    assert set(activations) == set(ACTIVATIONS)
    assert all(n == pytest.approx(1_500, rel=0.2) for n in activations.values())


@pytest.mark.parametrize("kind", KINDS)
def test_no_layer_has_more_work_than_allowed(kind: str) -> None:
    small = draw(kind, 300, 5, 2e8)
    assert work(small).max() <= 2e8
    assert work(draw(kind, 300, 5)).max() > 2e9


@settings(max_examples=25)
@given(st.sampled_from(KINDS), st.integers(0, 1_000))
def test_work_is_that_of_the_layer_as_a_network(kind: str, seed: int) -> None:
    table = draw(kind, 3, seed, 1e9)
    for row, found in enumerate(work(table)):
        total = count(layer_graph(table, row)).total(int(table["batch_size"][row]))
        moved = total.acts + total.inp + total.traffic + total.weights
        passes = 1 if table["optimizer"][row] == "none" else 3
        assert found == passes * (total.flops + 64 * moved)


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_as_plain_data_and_in_words(kind: str) -> None:
    table = draw(kind, 400, 6, 1e9)
    assert len({name(table, row) for row in range(400)}) == 400
    plain = description(table, 7)
    assert plain["layer"] == kind
    assert tuple(plain.values())[1:] == rows(table)[7]
    assert {type(v) for v in plain.values()} == {int, str}


def test_words_for_a_layer_by_hand() -> None:
    columns = {
        "batch_size": [8], "input_size": [56], "kernel_size": [3], "in_channels": [64],
        "out_channels": [128], "stride": [2], "padding": ["valid"], "use_bias": [1],
        "activation": ["relu"], "optimizer": ["adam"],
    }  # fmt: skip
    table = LayerTable("convolution", {c: np.array(v) for c, v in columns.items()})
    assert name(table, 0) == "conv 3x3/2 valid 64x56x56 to 128, relu, bias, x8, adam"
    # 27x27 outputs: 3 x (MACs + 64 x (outputs + inputs + what ReLU reads and writes + weights))
    out = 8 * 27 * 27 * 128
    inside, weights = 8 * 56 * 56 * 64, 3 * 3 * 64 * 128 + 128
    assert work(table)[0] == 3 * (out * 9 * 64 + 64 * (3 * out + inside + weights))


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(
        InputError, match=r"random convolution layers 0 have at most 10 MACs of work"
    ):
        draw("convolution", 20, 1, 10.0)
    with pytest.raises(
        InputError, match="unknown kind of layer 'lstm'; expected convolution or dense"
    ):
        draw("lstm", 20, 1)
