"""`lolat training fit` and `lolat training predict`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lolat.io import paths as places
from lolat.model.file import write
from lolat.readers import read as read_network
from lolat.training.file import load_training
from tests.cli.commands import Command
from tests.devices import made_up
from tests.training import known_device
from tests.training.epoch_tables import epochs, fit, read, table

NETWORK = "generate:fc?layers=32,32&input=16"
RUN = ("--batch-size", 25, "--samples", 1000)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "desk.json"
    write(path, fit(epochs(), read, "a desk").document)
    return path


def generated(path: Path) -> Path:
    """Epochs of fully connected networks: 5 ms a step and 1 ms a layer."""
    lines = ["network,batch_size,samples,optimizer,epoch_s"]
    for layers in range(1, 5):
        network = f"generate:fc?layers={','.join(['32'] * layers)}&input=16"
        for batch_size in (8, 16, 32):
            seconds = -(-1000 // batch_size) * (5 + layers) / 1e3
            lines.append(f'"{network}",{batch_size},1000,sgd,{seconds}')
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_becomes_a_model_that_answers(lolat: Command, tmp_path: Path) -> None:
    output = tmp_path / "made" / "desk.json"
    done = lolat("training", "fit", generated(tmp_path / "e.csv"), "--output", output)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("e: 12 epochs of 4 networks\n")
    assert done.out.endswith(f"written: {output}\n")
    answer = lolat.json("training", "predict", output, NETWORK, *RUN, "--epochs", 3)
    assert answer["epoch_s"] == pytest.approx(40 * 7e-3, rel=0.1)
    assert answer["total_s"] == pytest.approx(3 * answer["epoch_s"])
    low, high = answer["interval_s"]
    assert low <= answer["total_s"] <= high
    assert answer["parts_ms"].keys() == {"forward", "backward", "update", "exchange"}
    assert answer["parts_ms"]["forward"] is None


def test_an_input_pipeline_that_is_slower_sets_the_pace(lolat: Command, made: Path) -> None:
    """10 ms a sample are 250 ms a batch; 40 of them make an epoch."""
    answer = lolat.answer("training", "predict", made, NETWORK, *RUN, "--input-ms-per-sample", 10)
    assert answer["iteration_ms"] == pytest.approx(250)
    assert answer["parts_ms"]["input"] > 0
    assert answer["epoch_s"] == pytest.approx(10, rel=0.01)


def test_fit_says_as_much_in_json(lolat: Command, tmp_path: Path) -> None:
    output = tmp_path / "desk.json"
    fit = ("training", "fit", generated(tmp_path / "e.csv"), "--output", output)
    told = lolat.json(*fit, "--name", "a desk", "--drop-last")
    assert (told["name"], told["epochs"], told["networks"]) == ("a desk", 12, 4)
    assert (told["drop_last"], told["optimizers"]) == (True, ["sgd"])
    assert 0.0 <= told["left_out_error"] < 0.1
    assert json.loads(output.read_text())["epochs"]["drop_last"] is True


def test_people_read_lines(lolat: Command, made: Path) -> None:
    ask = ("training", "predict", made, NETWORK, "--batch-size", 8)
    found = lolat.done(*ask, "--samples", 10**6, "--epochs", 2, "--optimizer", "adam")
    assert found.err == (
        "lolat: warning: no row that the model was fitted on has the operations softmax\n"
    )
    first, iteration, epoch, total = found.out.splitlines()
    assert first.endswith("· batch 8 · adam · a desk")
    assert " KiB of memory, estimated" in iteration
    assert epoch.endswith(" an epoch of 125000 iterations")
    assert " for 2 epochs, 90 % sure of " in total
    assert max(map(len, found.out.splitlines())) <= 80
    assert lolat(*ask).out.splitlines()[-1] == "Give --samples N for the time of an epoch."
    said = "lolat: warning: no row that the model was fitted on used adadelta, only adam, sgd"
    assert said in lolat.done(*ask, "--optimizer", "adadelta").err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--batch-size", 0], "'0': expected a whole number from 1"),
        (["--batch-size", 8, "--samples", 7], "a batch of 8 is larger than the data set of 7"),
        (["--batch-size", 8, "--samples", 9, "--epochs", 0], "'0': expected"),
        (
            ["--batch-size", 8, "--optimizer", "lion"],
            "'lion' is not one of 'sgd', 'momentum', 'rmsprop'",
        ),
        (["--batch-size", 8, "--coverage", 1], "expected a number above 0 and below 1"),
        ([], "--batch-size"),
    ],
)
def test_wrong_numbers_are_refused(
    lolat: Command, made: Path, options: list[object], said: str
) -> None:
    assert said in lolat.refused("training", "predict", made, NETWORK, *options)


def test_a_model_of_latency_gives_an_estimate(lolat: Command, model: Path) -> None:
    done = lolat.done("training", "predict", model, NETWORK, "--batch-size", 8, "--samples", 80)
    warning = done.err.splitlines()[0]
    assert "training was never measured on this device: an estimate" in warning
    assert f"`lolat learn cpu --mode training --backend tensorflow --output {model}`" in warning
    assert "% sure of" in done.out


def test_epochs_are_added_to_what_a_model_knows(
    lolat: Command, model: Path, tmp_path: Path
) -> None:
    before = json.loads(model.read_text())
    fit = ("training", "fit", generated(tmp_path / "e.csv"), "--output", model)
    lolat.done(*fit)
    after = json.loads(model.read_text())
    assert {k: v for k, v in after.items() if k != "epochs"} == before
    assert len(after["epochs"]["points"]) == 12
    answer = lolat.json("training", "predict", model, NETWORK, *RUN)
    assert answer["epoch_s"] == pytest.approx(40 * 7e-3, rel=0.1)
    refused = lolat.refused(*fit, "--name", "another desk")
    assert "is a model of another device" in refused
    assert "this is another desk" in refused
    assert json.loads(model.read_text()) == after


def test_wrong_tables_are_refused_and_nothing_written(lolat: Command, tmp_path: Path) -> None:
    output = tmp_path / "m.json"
    rows = table(tmp_path / "e.csv", epochs(8))
    refused = lolat.refused("training", "fit", rows, "--output", output)
    assert refused.startswith(f"lolat: {rows}, line 2: ")  # no network has such a name
    rows.write_text("network,batch_size,samples,optimizer\n")
    assert "lacks the column epoch_s" in lolat.refused("training", "fit", rows, "--output", output)
    rows.write_text('network,batch_size,samples,optimizer,epoch_s\n"generate:fc",8,9,sgd,1\n')
    few = lolat.refused("training", "fit", rows, "--output", output)
    assert "1 point is too few" in few
    assert "--output" in lolat.refused("training", "fit", rows)
    assert not output.exists()


# ---- With a model that `lolat fit` made, and `cost` with it, as a user would.


TEXT = "tests.devices.made_up:encoder"
SAID = "no training step was measured on this device: the backward pass is estimated from the forward one"


@pytest.fixture
def sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(places, "local_folder", lambda: tmp_path / "local")
    path = tmp_path / "sheet.json"
    path.write_text(json.dumps(known_device.document()))
    return path


def asked(lolat: Command, *arguments: object) -> dict[str, Any]:
    found = lolat.done(*arguments, "--json")
    assert f"lolat: warning: {SAID}\n" in found.err
    return dict(json.loads(found.out))


def test_from_a_data_sheet_to_a_training(lolat: Command, tmp_path: Path) -> None:
    """9.4 TFLOP/s and 500 GB/s, 85 % and 80 % of them; four dense layers, each with two gradients.

    That of its weights has 64 tiles of 128 x 128, and 40 multiprocessors take two waves, of 80, for them.
    """
    pytest.importorskip("torch")
    _, facts = made_up.write_tables(tmp_path)
    model = tmp_path / "desk.json"
    lolat.done("fit", "--facts", facts, "--name", "desk", "--output", model)
    ask = ("training", "predict", model, TEXT, "--sequence-length", 4096, "--batch-size", 8)
    answer = asked(lolat, *ask, "--optimizer", "adam", "--samples", 80, "--memory-gib", 16)
    dense = 4 * 8 * 4096 * 2048 * 512 / (0.85 * 4.7e9)
    moved = 4 * 8 * 4096 * (4 * 2048 + 4 * 512) / (0.8 * 5e8)
    parameters = 1000 * 512 + 4 * 512 * 2048 + 2 * 2048 + 2 * 512 + 4 * 512
    parts = answer["parts_ms"]
    assert parts["forward"] == pytest.approx(dense + moved, rel=0.1)
    assert parts["backward"] == pytest.approx((1 + 80 / 64) * dense + 1.3 * moved, rel=0.1)
    assert parts["update"] == pytest.approx(parameters * 4 * 7 / (0.8 * 5e8), rel=0.2)
    assert answer["epoch_s"] == pytest.approx(10 * answer["iteration_ms"] / 1e3)
    low, high = answer["interval_s"]
    assert low < answer["total_s"] < high
    assert answer["available_bytes"] == 16 * 2**30
    assert answer["largest_batch"] >= 8
    shorter = asked(lolat, *ask[:-3], 512, *ask[-2:])
    assert shorter["iteration_ms"] < 0.2 * answer["iteration_ms"]


def test_people_read_lines_of_several_devices(lolat: Command, sheet: Path) -> None:
    ask = ("--batch-size", 8, "--samples", 1000, "--replicas", 4, "--link-gbps", 50)
    found = lolat.done("training", "predict", sheet, NETWORK, *ask)
    first, iteration, parts, epoch, total, devices, *_ = found.out.splitlines()
    assert first.endswith("· batch 8 · sgd · v100-pcie-32gb (data sheet)")
    assert " KiB of memory, estimated" in iteration
    assert parts.startswith("  forward ")
    assert " · backward " in parts
    assert " · update " in parts
    assert epoch.endswith(" an epoch of 32 iterations")
    assert " for 1 epoch, 90 % sure of " in total
    assert devices.startswith("4 devices, a batch of 8 on each, gradients by ring over 50 Gbit/s: ")


@pytest.mark.parametrize(
    ("devices", "name", "gbps"),
    [(4, "PCIe 3.0 x16", 63.0), (9, "the network between machines", 10.0)],
)
def test_the_link_is_the_devices_own(
    lolat: Command, sheet: Path, devices: int, name: str, gbps: float
) -> None:
    """A V100 on a card: half of the 15.75 GB/s of its slot; nine are in two machines."""
    ask = ("training", "predict", sheet, NETWORK, "--batch-size", 8, "--replicas", devices)
    answer = asked(lolat, *ask)
    assert (answer["link"], answer["link_gbps"]) == (name, gbps)
    stated = asked(lolat, *ask, "--link-gbps", gbps)
    assert (stated["link"], stated["link_gbps"]) == (None, gbps)
    assert answer["iteration_ms"] == stated["iteration_ms"]
    told = lolat(*ask).out
    assert f"gradients by ring over {name}, {gbps:g} Gbit/s: " in told
    assert "The link is assumed: give yours with --link-gbps\n" in told
    assert "assumed" not in lolat(*ask, "--link-gbps", 5).out.partition("gradients by")[2]


def test_the_price_is_found_by_the_devices_name(lolat: Command, sheet: Path) -> None:
    ask = (sheet, NETWORK, "--samples", 1000, "--epochs", 3, "--batch-size", 32)
    answer = asked(lolat, "cost", *ask, "--replicas", "1,4")
    assert answer["prices"].startswith("V100-32GB in the built-in table of 20")
    assert [o["instance_type"] for o in answer["options"]] == ["V100-32G", "V100-32Gx4"]
    alone = load_training(sheet).predict(read_network(NETWORK), 32, 1000, 3)
    assert alone.interval_s is not None
    option = answer["options"][0]
    assert option["total_s"] == pytest.approx(alone.total_s)
    assert option["interval_s"] == pytest.approx(alone.interval_s)
    own = asked(lolat, "cost", *ask, "--price-per-hour", 7200)["options"][0]
    assert own["dollars"] == pytest.approx(2 * own["total_s"])
