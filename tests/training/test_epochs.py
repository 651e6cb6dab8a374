"""Training from timed epochs: fitted on those of a made-up device, asked for others, written and read."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import lolat
from lolat.api.model import Model
from lolat.device.file import DeviceFile
from lolat.errors import InputError
from lolat.graph import Graph
from lolat.graph.modes import Mode
from lolat.optimizers import OPTIMIZERS
from lolat.training.epochs import EPOCH_TERMS, EpochTraining, epochs_document
from lolat.training.prediction import TrainingPrediction, predict
from lolat.training.run import TrainingRun
from lolat.training.tuning import tuned
from tests import synthetic
from tests.cli.commands import Command
from tests.training import known_device, test_measured
from tests.training.epoch_tables import Epoch, epoch, epochs, fit, iteration_ms, read, write
from tests.training.known import memory_bytes

NEW = ("s3w24x20", "s2w48x40", "s1w100x30")  # none of `networks()`


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> EpochTraining:
    return fit(epochs(), tmp_path_factory.mktemp("epochs"))


def asked(model: EpochTraining, network: str, *run: Any, **more: Any) -> TrainingPrediction:
    return predict(model, read(network), TrainingRun(*run, **more))


def test_other_networks_are_predicted(model: EpochTraining) -> None:
    errors = []
    for network in NEW:
        for batch_size in (8, 20):
            found = asked(model, network, batch_size, 1000, 3)
            assert found.epoch_s is not None
            errors.append(found.epoch_s / epoch(network, batch_size, 1000).epoch_s - 1)
            assert found.total_s == pytest.approx(3 * found.epoch_s)
            assert found.iteration_ms == pytest.approx(iteration_ms(network, batch_size), rel=0.15)
    assert np.median(np.abs(errors)) < 0.05
    assert np.max(np.abs(errors)) < 0.15


def test_an_optimizer_with_slots_takes_longer(model: EpochTraining) -> None:
    network, optimizers = "s4w100x10", ("sgd", "momentum", "adam")
    times = [asked(model, network, 2, optimizer=o).iteration_ms for o in optimizers]
    assert times == sorted(times)
    expected = iteration_ms(network, 2, "adam") - iteration_ms(network, 2, "sgd")
    assert times[2] - times[0] == pytest.approx(expected, rel=0.3)
    assert times[1] == pytest.approx((times[0] + times[2]) / 2)  # one slot, between none and two


def test_what_no_row_has_is_warned_of(model: EpochTraining) -> None:
    assert asked(model, NEW[0], 8, optimizer="adam").warnings == ()
    (warning,) = asked(model, NEW[0], 8, optimizer="RMSprop").warnings
    assert "rmsprop" in warning
    softmax = synthetic.one("softmax", [(1, 900)], [(1, 900)])
    (warning,) = predict(model, softmax, TrainingRun(4)).warnings
    assert "softmax" in warning


def test_nine_of_ten_epochs_lie_in_the_interval(tmp_path: Path) -> None:
    model = fit(epochs(noise=0.1), tmp_path)
    inside = []
    for row in epochs(150, noise=0.1, seed=5):
        found = asked(model, row.network, row.batch_size, row.samples, 1, row.optimizer)
        low, high = found.interval_s or (0.0, 0.0)
        assert low < (found.total_s or 0.0) < high
        inside.append(low <= row.epoch_s <= high)
    assert 0.82 <= np.mean(inside) <= 0.98


def test_few_rows_give_no_interval_and_too_few_no_model(tmp_path: Path) -> None:
    assert asked(fit(epochs(8), tmp_path), NEW[0], 8, 100).interval_s is None
    with pytest.raises(InputError) as caught:
        fit(epochs(6), tmp_path)
    assert caught.value.code == "too-few-points"
    # What the error offers works: its columns and its profile, with two rows.
    offered = re.search(r"two rows .* columns (.*): lolat fit (\S+)", str(caught.value))
    assert offered
    columns, profile = offered.groups()
    table = tmp_path / "nets.csv"
    head = columns.replace(" and ", ",").replace(" ", "")
    table.write_text(f"{head}\ntimm:resnet18,64,amp,sgd,3000\ntimm:resnet50,64,amp,sgd,1400\n")
    fitted = lolat.fit([profile, table])
    assert fitted.cost("timm:resnet18", 64, 10**6, precision="amp").options[0].total_s


def test_multiplications_are_never_free(tmp_path: Path) -> None:
    """Of networks as wide as each other, elements and multiplications cannot be separated."""
    rows = [epoch(f"s{s}w16x{x}", b, 256) for s in (1, 2, 4) for x in (14, 56) for b in (4, 16)]
    found = dict(zip(EPOCH_TERMS, fit(rows, tmp_path).coefficients, strict=True))
    assert found["elements"] > 0
    assert found["flops"] >= found["elements"] / 800 * (1 - 1e-9)


def test_rows_are_read_and_each_network_once(tmp_path: Path) -> None:
    rows = "1.5,nets:fc,Adam,8,,100,x\n2e-3,keras:VGG16,sgd,16,,1e3,x\n"
    sized = "3,nets:fc,sgd,4,64,100,x\n4,nets:fc,sgd,8,64,100,x\n"
    names = "\ufeffEpoch_s, network,Optimizer,batch_size,Input_size,samples,notes\n"
    path, graphs, said = tmp_path / "e.csv", [], list[str]()
    more = "".join(f"{i},nets:fc,sgd,16,,{i}00,x\n" for i in range(1, 5))
    path.write_text(names + 3 * rows + sized + more)

    def read_one(name: str, size: int | None) -> Graph:
        graphs.append((name, size))
        return synthetic.network()

    found = epochs_document(str(path), "m", None, read_one, said.append)
    points = found["epochs"]["points"]
    assert [tuple(p.values()) for p in points[:3]] == [
        ("nets:fc", 8, 100, "adam", 1.5),
        ("keras:VGG16", 16, 1000, "sgd", 0.002),
        ("nets:fc", 4, 100, "sgd", 3.0, 64),
    ]
    assert graphs == [("nets:fc", None), ("keras:VGG16", None), ("nets:fc", 64)]
    assert len(points) == 8
    assert any("4 of 12 rows are copies" in remark for remark in said)
    assert any(remark.endswith("not read: notes") for remark in said)
    assert found["device"] == "e"


def test_epochs_of_several_devices_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text("network,batch_size,samples,optimizer,epoch_s,gpus\ns1w8x14,8,100,sgd,1,2\n")
    with pytest.raises(InputError, match="line 2: run on several devices"):
        epochs_document(str(path), "m", None, lambda name, _: read(name), print)


def test_a_length_of_images_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "e.csv"
    path.write_text(
        "network,batch_size,samples,optimizer,epoch_s,seq_len\nkeras:VGG16,8,100,sgd,1,128\n"
    )
    with pytest.raises(InputError, match="line 2: seq_len is '128', and keras:VGG16 takes images"):
        epochs_document(str(path), "m", None, lambda name, _: synthetic.network(), print)


@pytest.mark.parametrize(
    "change", [{"epoch_s": float("nan")}, {"samples": 4}, {"optimizer": "unknown"}]
)
def test_a_wrong_row_is_named_by_its_line(tmp_path: Path, change: dict[str, Any]) -> None:
    good = Epoch("s1w8x14", 8, 100, "sgd", 1.0)
    with pytest.raises(InputError, match=r"epochs\.csv, line 3: "):
        fit([good, replace(good, **change)], tmp_path)


# ---- `lolat fit` with such a table, as a user would.


def network_file(folder: Path, stages: int) -> str:
    """A network of so many stages, as `lolat read` writes it."""
    path = folder / f"{stages}.json"
    path.write_text(json.dumps(synthetic.network(stages, 8, 8).to_dict()))
    return str(path)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Epochs of networks: 5 ms a step and 1 ms a stage."""
    rows = [
        Epoch(network_file(tmp_path, stages), batch, 1000, "sgd",
              -(-1000 // batch) * (5 + stages) / 1e3)
        for stages in range(1, 5)
        for batch in (8, 16, 32)
    ]  # fmt: skip
    return write(tmp_path / "e.csv", rows)


def test_a_table_becomes_a_model_that_answers(lolat: Command, table: Path) -> None:
    output = table.with_name("made") / "desk.json"
    lolat.done("fit", table, "--output", output, "--name", "a desk")
    size = ("--batch-size", 25, "--samples", 1000, "--epochs", 3)
    answer = lolat.json("cost", output, network_file(table.parent, 2), *size)
    (option,) = answer["options"]
    assert answer["model"] == "a desk"
    assert option["epoch_s"] == pytest.approx(40 * 7e-3, rel=0.1)
    assert option["total_s"] == pytest.approx(3 * option["epoch_s"])


def test_epochs_are_added_to_what_a_model_knows(
    lolat: Command, model_file: Path, table: Path
) -> None:
    before = json.loads(model_file.read_text())
    lolat.done("fit", table, "--output", model_file)
    after = json.loads(model_file.read_text())
    assert {k: v for k, v in after.items() if k != "epochs"} == before
    assert len(after["epochs"]["points"]) == 12
    assert lolat("fit", table, "--output", model_file, "--name", "another desk").code == 2
    assert json.loads(model_file.read_text()) == after


def in_precision(table: Path, *precisions: str) -> Path:
    """The table with a column of these, the last for all other rows."""
    head, *rows = table.read_text().splitlines()
    each = [*precisions, *[precisions[-1]] * len(rows)]
    lines = [f"{row},{each[i]}" for i, row in enumerate(rows)]
    path = table.with_name("p.csv")
    path.write_text("\n".join([f"{head},precision", *lines]) + "\n")
    return path


def test_epochs_of_mixed_precision_have_its_memory(
    lolat: Command, model_file: Path, table: Path
) -> None:
    """By `memory_bytes` in that mode; another precision is refused, or answered without these epochs."""
    net, output = network_file(table.parent, 2), table.with_name("amp.json")
    said = lolat.done("fit", table, "--output", table.with_name("plain.json")).err
    assert "taken to be of float32" in said
    size = (net, "--batch-size", 32)
    lolat.done("fit", in_precision(table, "amp"), "--output", output)
    answer = lolat.json("cost", output, *size)
    sgd, graph = OPTIMIZERS["sgd"], synthetic.network(2, 8, 8)
    expected = memory_bytes(graph, 32, sgd, Mode("amp"))
    assert (answer["precision"], answer["memory_bytes"]) == ("amp", expected)
    assert expected != memory_bytes(graph, 32, sgd)
    assert lolat.json("cost", output, *size, "--precision", "amp")["options"] == answer["options"]
    for way in (("--precision", "fp32"), ("--launch", "compiled")):
        assert lolat("cost", output, *size, *way).code == 2
    lolat.done("fit", in_precision(table, "amp"), "--output", model_file)
    whole = Model.load(model_file).run_as("fp32").cost(net, 64)
    assert (whole.precision, whole.estimated) == ("fp32", True)
    refused = lolat("fit", in_precision(table, "amp", "fp32"), "--output", output)
    assert refused.code == 2
    assert "line 3" in refused.err


def test_training_measured_in_one_precision_says_nothing_of_another() -> None:
    document = known_device.document() | {"training": test_measured.SECTION | {"points": []}}
    model = Model(document)
    assert not model.cost(known_device.network(), 8).estimated
    other = model.run_as("amp").cost(known_device.network(), 8)
    assert (other.precision, other.estimated) == ("amp", True)


@pytest.mark.parametrize("section", ["epochs", "training"])
def test_training_measured_with_one_host_says_nothing_of_another(
    section: str, tmp_path: Path
) -> None:
    """As slow a host as 0.9 ms an operation: what is measured is not asked, the formula is."""
    sections = {
        "epochs": fit(epochs(), tmp_path).file.epochs,
        "training": test_measured.SECTION | {"points": []},
    }
    known, network = Model.load("v100-fp32").file.document, known_device.network()
    model = Model(known | {section: sections[section]})
    assert not model.cost(network, 8).estimated
    found, alone = (m.run_as(host_us=900).cost(network, 8) for m in (model, Model(known)))
    assert found.estimated
    assert found.options[0].iteration_ms == alone.options[0].iteration_ms
    assert found.options[0].iteration_ms > 0.9 * len(network.operations)


@pytest.mark.parametrize(
    ("dtype", "timed", "said"),
    [
        ("bfloat16", "float32", "measured in float32, asked for bfloat16"),
        ("float64", "amp", "measured in amp, asked for float64"),
        ("float16", "bfloat16", ""),  # as many bytes, on the same units
        ("float32", "amp", ""),  # the file's precision, as the head says
    ],
)
def test_a_network_in_another_precision_than_the_epochs_is_told(
    model: EpochTraining, dtype: str, timed: str, said: str
) -> None:
    document = {**model.file.document, "epochs": {**model.file.epochs, "mode": {"dtype": timed}}}
    graph = synthetic.network(2, 8, 14)
    own = msgspec.structs.replace(
        graph, tensors=tuple(msgspec.structs.replace(t, dtype=dtype) for t in graph.tensors)
    )
    found = EpochTraining(DeviceFile(document), "file").batch(own, 8, OPTIMIZERS["sgd"])
    assert [w for w in found.warnings if w.startswith("measured in")] == [said] * bool(said)
    assert (found.in_domain is False) == bool(said)


@pytest.mark.parametrize(
    ("network", "batch_size", "tune", "said"),
    [("s2w16x28", 64, None, ""), ("s2w16x56", 2, "full", ""), ("s2w16x14", 8, None, ""),
     ("s2w16x28", 65, None, "a batch of 65, only 2 to 64"), ("s2w16x28", 1, None, "a batch of 1,"),
     ("s2w16x57", 8, None, "samples of 9,747 elements, only 588 to 9,408"),
     ("s2w16x28", 8, "frozen", "is frozen or computed again")],
)  # fmt: skip
def test_a_question_beyond_the_timed_epochs_says_so_with_a_wider_interval(
    model: EpochTraining, network: str, batch_size: int, tune: str | None, said: str
) -> None:
    """Of `epochs()`: batches of 2 to 64, and 3 x 14 x 14 to 3 x 56 x 56 elements."""
    found = model.batch(tuned(read(network), tune, None), batch_size, OPTIMIZERS["sgd"])
    assert [said in remark for remark in found.warnings] == [True] * bool(said)
    assert found.in_domain is (False if said else None)
    inside = model.batch(read("s2w16x28"), 8, OPTIMIZERS["sgd"]).half_width(0.9)
    assert found.half_width(0.9) == inside * (2 if said else 1)
