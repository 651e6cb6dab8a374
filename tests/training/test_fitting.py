"""A training model: fitted on the epochs of a made-up device, asked for others, written and read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from lolat.errors import InputError, ModelFileError
from lolat.graph import Graph
from lolat.io.tables import read_table
from lolat.model.file import write
from lolat.training import fitting
from lolat.training.file import from_document, load_training
from lolat.training.fitting import REQUIRED, TERMS, EpochTraining
from tests import synthetic
from tests.training.epoch_tables import Epoch, epoch, epochs, fit, iteration_ms, read

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


def test_operations_that_no_row_has_are_warned_of() -> None:
    def plain(network: str) -> Graph:
        """A dense layer, and nothing else."""
        sizes = {"in_features": int(network), "out_features": 10}
        return synthetic.one("dense", [(1, int(network))], [(1, 10)], bias=True, **sizes)

    rows = [Epoch(str(n), 4, 64, "sgd", 0.1 + 1e-3 * n) for n in range(10, 100, 10)]
    model = fit(rows, plain, "a desk")
    assert model.predict(plain("55"), 4).warnings == ()
    (warning,) = model.predict(read("s1w8x14"), 1).warnings
    assert warning == "no row that the model was fitted on has the operations conv, memory traffic"


def test_multiplications_are_never_free() -> None:
    """Of networks as wide as each other, elements and multiplications cannot be told apart."""
    rows = [epoch(f"s{s}w16x{x}", b, 256) for s in (1, 2, 4) for x in (14, 56) for b in (4, 16)]
    found = dict(zip(TERMS, fit(rows, read, "a desk").coefficients, strict=True))
    assert found["elements"] > 0
    assert found["flops"] >= found["elements"] / 800 * (1 - 1e-9)


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
    asked = (read(NEW[0]), 8, 1000, 2, "adam")
    assert load_training(path).predict(*asked) == model.predict(*asked)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"coefficients_ms": {}}, r"field `ops` - at `\$.epochs.coefficients_ms`"),
        ({"coefficients_ms": None}, r"at `\$.epochs.coefficients_ms`"),
        (
            {"coefficients_ms": {**dict.fromkeys(TERMS, 1.0), "steps": -1}},
            r"at `\$.epochs.coefficients_ms.steps`",
        ),
        ({"residuals": ["a"]}, r"at `\$.epochs.residuals\[0\]`"),
        ({"drop_last": "yes"}, r"at `\$.epochs.drop_last`"),
        ({"optimizers": [1]}, r"at `\$.epochs.optimizers\[0\]`"),
        ({"kinds": None}, r"at `\$.epochs.kinds`"),
    ],
)
def test_a_damaged_document_is_refused(
    model: EpochTraining, change: dict[str, object], said: str
) -> None:
    again = "fit them again: lolat training fit EPOCHS.csv --output MODEL"
    with pytest.raises(ModelFileError, match=f"^m.json: .*{said}.*; {again}$"):
        from_document(
            {**model.document, "epochs": {**model.document["epochs"], **change}}, "m.json"
        )


# ---- The table.

HEAD = "network,batch_size,samples,optimizer,epoch_s\n"


def of(path: Path) -> EpochTraining:
    """Fitted to a file; each network is the same one."""
    rows = read_table(path, REQUIRED, rows="timed epoch")
    return fitting.fit(rows, lambda network: synthetic.network(), "a desk")


def test_rows_are_read(tmp_path: Path) -> None:
    rows = '1.5,"generate:fc?layers=10,20",Adam,8,x,100\n2e-3,keras:VGG16,sgd,16,,1e3\n'
    path = tmp_path / "e.csv"
    head = "\ufeffEpoch_s, network,Optimizer,batch_size,more,samples\n"
    path.write_text(head + 4 * rows, encoding="utf-8")
    told = [tuple(p.values()) for p in of(path).document["epochs"]["points"]]
    assert told[:2] == [
        ("generate:fc?layers=10,20", 8, 100, "adam", 1.5),
        ("keras:VGG16", 16, 1000, "sgd", 0.002),
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
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "e.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        of(path)
    assert said in str(error.value)
