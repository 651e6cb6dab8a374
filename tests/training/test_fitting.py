"""A training model: fitted on the epochs of a made-up device, asked for others, written and read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lolat.errors import InputError, ModelFileError
from lolat.graph import Graph
from lolat.model.file import write
from lolat.training.file import from_document, load_training
from lolat.training.fitting import Epoch, EpochTraining, fit, read_epochs
from lolat.training.iteration import EPOCH_TERMS
from tests import synthetic
from tests.training.epoch_tables import epoch, epochs, iteration_ms, read

NEW = ("s3w24x20", "s2w48x40", "s1w100x30")  # none of `networks()`


@pytest.fixture(scope="module")
def model() -> EpochTraining:
    return fit(epochs(), read, "a desk")


def test_other_networks_are_predicted(model: EpochTraining) -> None:
    errors = []
    for network in NEW:
        for batch_size in (8, 20):
            found = model.predict(read(network), batch_size, 1000, 3)
            assert found.epoch_s is not None
            errors.append(found.epoch_s / epoch(network, batch_size, 1000).epoch_s - 1)
            assert found.total_s == pytest.approx(3 * found.epoch_s)
            assert found.iteration_ms == pytest.approx(iteration_ms(network, batch_size), rel=0.15)
    assert np.median(np.abs(errors)) < 0.05
    assert np.max(np.abs(errors)) < 0.15


def test_an_optimizer_with_slots_takes_longer(model: EpochTraining) -> None:
    network = read("s4w100x10")
    optimizers = ("sgd", "momentum", "adam")
    times = [model.predict(network, 2, optimizer=o).iteration_ms for o in optimizers]
    assert times == sorted(times)
    expected = iteration_ms("s4w100x10", 2, "adam") - iteration_ms("s4w100x10", 2, "sgd")
    assert times[2] - times[0] == pytest.approx(expected, rel=0.3)
    assert times[1] == pytest.approx((times[0] + times[2]) / 2)  # one slot, between none and two


def test_an_optimizer_that_no_row_used_is_warned_of(model: EpochTraining) -> None:
    assert model.predict(read(NEW[0]), 8, optimizer="adam").warnings == ()
    (warning,) = model.predict(read(NEW[0]), 8, optimizer="RMSprop").warnings
    assert "used rmsprop, only adam, sgd" in warning


def test_a_last_batch_may_be_dropped() -> None:
    rows = epochs(drop_last=True, noise=0.0)
    found = fit(rows, read, "a desk", drop_last=True).predict(read(NEW[0]), 64, 127)
    assert found.iterations == 1
    assert found.epoch_s == pytest.approx(epoch(NEW[0], 64, 127, drop_last=True).epoch_s, rel=0.1)


def test_nine_of_ten_epochs_lie_in_the_interval() -> None:
    model = fit(epochs(noise=0.1), read, "a desk")
    inside = []
    for row in epochs(150, noise=0.1, seed=5):
        asked = (read(row.network), row.batch_size, row.samples, 1, row.optimizer)
        found = model.predict(*asked)
        low, high = found.interval_s or (0.0, 0.0)
        assert low < (found.total_s or 0.0) < high
        inside.append(low <= row.epoch_s <= high)
    assert 0.82 <= np.mean(inside) <= 0.98


def test_few_rows_give_no_interval_and_too_few_no_model() -> None:
    model = fit(epochs(8), read, "a desk")
    found = model.predict(read(NEW[0]), 8, 100)
    assert found.interval_s is None
    assert found.warnings[-1] == "no interval: 8 points cannot give 90 % coverage"
    with pytest.raises(InputError, match="6 points are too few to fit 6 coefficients"):
        fit(epochs(6), read, "a desk")


def test_what_lies_far_from_the_rows_is_warned_of() -> None:
    rows = [epoch(n, b, 256) for n in ("s1w8x14", "s2w8x28", "s4w8x14") for b in (2, 4, 8, 16)]
    model = fit(rows, read, "a desk")
    assert model.predict(read("s2w8x14"), 8).warnings == ()
    found = model.predict(read("s4w64x56"), 64)
    dense, long = found.warnings
    assert "times for each element that it moves, the rows at most" in dense
    assert "is far longer than those of the rows" in long


def test_operations_that_no_row_has_are_warned_of() -> None:
    def plain(network: str) -> Graph:
        """A dense layer, and nothing else."""
        sizes = {"in_features": int(network), "out_features": 10}
        return synthetic.one("dense", [(1, int(network))], [(1, 10)], bias=True, **sizes)

    rows = [Epoch(str(n), 4, 64, "sgd", 0.1 + 1e-3 * n, 0) for n in range(10, 100, 10)]
    model = fit(rows, plain, "a desk")
    assert model.predict(plain("55"), 4).warnings == ()
    (warning,) = model.predict(read("s1w8x14"), 1).warnings[:1]
    assert "fitted on has normalizations of tensors with positions, elements that conv" in warning


def test_multiplications_are_never_free() -> None:
    """Of networks as wide as each other, elements and multiplications cannot be told apart."""
    rows = [epoch(f"s{s}w16x{x}", b, 256) for s in (1, 2, 4) for x in (14, 56) for b in (4, 16)]
    found = dict(zip(EPOCH_TERMS, fit(rows, read, "a desk").coefficients, strict=True))
    moved = found["traffic"] + found["conv_elements"]
    assert moved > 0
    assert found["flops"] >= moved / 800 * (1 - 1e-9)


def test_a_model_is_written_and_read(model: EpochTraining, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    write(path, model.document)
    document = json.loads(path.read_text())
    assert list(document) == sorted(document)
    assert (document["schema"], document["version"]) == ("lolat-model", 1)
    assert document["environment"] == {"device": "a desk", "source": "a table of epochs"}
    assert len(document["epochs"]["points"]) == 60
    first, row = document["epochs"]["points"][0], epochs()[0]
    for name in ("epoch_s", "network", "batch_size", "samples", "optimizer"):
        assert first[name] == getattr(row, name)
    assert first["counts"] == synthetic.totals(read(row.network), row.batch_size)
    asked = (read(NEW[0]), 8, 1000, 2, "adam")
    assert load_training(path).predict(*asked) == model.predict(*asked)


DOMAIN = {"densest": 1, "longest_ms": 1, "absent": []}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"coefficients_ms": {}}, "the field `epochs.coefficients_ms.weighted_ops` is missing"),
        ({"coefficients_ms": None}, r"at `\$.epochs.coefficients_ms`"),
        ({"coefficients_ms": dict.fromkeys(EPOCH_TERMS, 0.0)}, "all 0"),
        (
            {"coefficients_ms": {**dict.fromkeys(EPOCH_TERMS, 1.0), "steps": -1}},
            r"at `\$.epochs.coefficients_ms\[...\]`",
        ),
        ({"coefficients_ms": {**dict.fromkeys(EPOCH_TERMS, 1.0), "x": 1}}, "has 'x'; expected"),
        ({"residuals": ["a"]}, r"at `\$.epochs.residuals\[0\]`"),
        ({"drop_last": "yes"}, r"at `\$.epochs.drop_last`"),
        ({"domain": {"densest": None}}, r"at `\$.epochs.domain.densest`"),
        ({"domain": DOMAIN | {"absent": ["x"]}}, "`epochs.domain.absent` has 'x'"),
        ({"domain": {}}, r"field `densest` - at `\$.epochs.domain`"),
        ({"optimizers": ["x"]}, "`epochs.optimizers` has 'x'; expected of sgd"),
    ],
)
def test_a_damaged_document_is_refused(
    model: EpochTraining, change: dict[str, object], said: str
) -> None:
    with pytest.raises(ModelFileError, match=f"^m.json: .*{said}"):
        from_document(
            {**model.document, "epochs": {**model.document["epochs"], **change}}, "m.json"
        )


# ---- The table.

HEAD = "network,batch_size,samples,optimizer,epoch_s\n"


def test_rows_are_read(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text(
        "\ufeffEpoch_s, network,Optimizer,batch_size,more,samples\n"
        '1.5,"generate:fc?layers=10,20",Adam,8,x,100\n'
        "2e-3,keras:VGG16,sgd,16,,1e3\n",
        encoding="utf-8",
    )
    assert read_epochs(path) == [
        Epoch("generate:fc?layers=10,20", 8, 100, "adam", 1.5, 2),
        Epoch("keras:VGG16", 16, 1000, "sgd", 0.002, 3),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        (HEAD, "has no rows"),
        (HEAD.replace(",samples", ""), "lacks the column samples; expected"),
        (
            HEAD + "a,8,100,sgd,nan\n",
            "line 2: epoch_s is 'nan'; expected a time above 0, in seconds",
        ),
        (HEAD + "a,8,100,sgd,-1\n", "epoch_s is '-1'"),
        (HEAD + "a,8,100,sgd\n", "line 2: 4 cells; expected 5"),
        (
            HEAD + "a,8,100,sgd,1\na,1.5,100,sgd,1\n",
            "line 3: batch_size is '1.5'; expected a whole",
        ),
        (HEAD + "a,8,-5,sgd,1\n", "samples is '-5'"),
        (HEAD + "a,101,100,sgd,1\n", "line 2: a batch of 101 is larger than the data set of 100"),
        (HEAD + "a,8,100,lion,1\n", "line 2: optimizer 'lion': expected one of sgd, momentum"),
        (HEAD + " ,8,100,sgd,1\n", "line 2: network is empty"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "e.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_epochs(path)
    assert said in str(error.value)
