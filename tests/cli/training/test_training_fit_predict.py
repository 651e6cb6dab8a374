"""`lolat training fit` and `lolat training predict`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lolat.model.file import write
from lolat.training.fitting import fit
from tests.cli.commands import Command
from tests.training.epoch_tables import epochs, read, table

NETWORK = "generate:fc?layers=32,32&input=16"
KEYS = {"iteration_ms", "parts_ms", "epoch_s", "total_s", "interval_s", "memory_bytes"}


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
    found = lolat(
        "training", "predict", output, NETWORK, "--batch-size", 25, "--samples", 1000,
        "--epochs", 3, "--json",
    )  # fmt: skip
    answer = json.loads(found.out)
    assert answer.keys() >= KEYS
    assert answer["epoch_s"] == pytest.approx(40 * 7e-3, rel=0.1)
    assert answer["total_s"] == pytest.approx(3 * answer["epoch_s"])
    low, high = answer["interval_s"]
    assert low <= answer["total_s"] <= high
    assert answer["parts_ms"].keys() == {"forward", "backward", "update", "exchange"}
    assert answer["parts_ms"]["forward"] is None


def test_an_input_pipeline_that_is_slower_sets_the_pace(lolat: Command, made: Path) -> None:
    """10 ms a sample are 250 ms a batch; 40 of them make an epoch."""
    found = lolat(
        "training", "predict", made, NETWORK, "--batch-size", 25, "--samples", 1000,
        "--input-ms-per-sample", 10, "--json",
    )  # fmt: skip
    answer = json.loads(found.out)
    assert answer["iteration_ms"] == pytest.approx(250)
    assert answer["parts_ms"]["input"] > 0
    assert answer["epoch_s"] == pytest.approx(10, rel=0.01)


def test_fit_says_as_much_in_json(lolat: Command, tmp_path: Path) -> None:
    output = tmp_path / "desk.json"
    rows = generated(tmp_path / "e.csv")
    done = lolat(
        "training", "fit", rows, "--output", output, "--name", "a desk", "--drop-last", "--json"
    )
    told = json.loads(done.out)
    assert (told["name"], told["epochs"], told["networks"]) == ("a desk", 12, 4)
    assert (told["drop_last"], told["optimizers"]) == (True, ["sgd"])
    assert 0.0 <= told["left_out_error"] < 0.1
    assert json.loads(output.read_text())["epochs"]["drop_last"] is True


def test_people_read_lines(lolat: Command, made: Path) -> None:
    found = lolat(
        "training", "predict", made, NETWORK, "--batch-size", 8, "--samples", 10**6,
        "--epochs", 2, "--optimizer", "adam",
    )  # fmt: skip
    assert found.code == 0
    assert found.err == (
        "lolat: warning: no row that the model was fitted on has normalizations of tensors without "
        "positions: what they cost is not known, so the network takes longer than said\n"
    )
    first, iteration, epoch, total = found.out.splitlines()
    assert first.endswith("· batch 8 · adam · a desk")
    assert " KiB of memory, estimated" in iteration
    assert epoch.endswith(" an epoch of 125000 iterations")
    assert " for 2 epochs, 90 % sure of " in total
    assert max(map(len, found.out.splitlines())) <= 80
    alone = lolat("training", "predict", made, NETWORK, "--batch-size", 8)
    assert alone.out.splitlines()[-1] == "Give --samples N for the time of an epoch."


def test_an_optimiser_of_no_row_is_warned_of(lolat: Command, made: Path) -> None:
    found = lolat(
        "training", "predict", made, NETWORK, "--batch-size", 8, "--optimizer", "adadelta"
    )
    assert found.code == 0
    assert (
        "lolat: warning: no row that the model was fitted on used adadelta, only adam, sgd"
        in found.err
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--batch-size", 0], "'0': expected a whole number from 1"),
        (["--batch-size", 8, "--samples", 0], "'0': expected"),
        (["--batch-size", 8, "--samples", -3], "'-3': expected"),
        (["--batch-size", 8, "--samples", 7], "a batch of 8 is larger than the data set of 7"),
        (["--batch-size", 8, "--samples", 9, "--epochs", 0], "'0': expected"),
        (
            ["--batch-size", 8, "--optimizer", "lion"],
            "'lion' is not one of 'sgd', 'momentum', 'rmsprop'",
        ),
        (["--batch-size", 8, "--coverage", 1], "expected a number above 0 and below 1"),
        (["--batch-size", "x"], "'x': expected a whole number"),
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
    answer = lolat.json(
        "training", "predict", model, NETWORK, "--batch-size", 25, "--samples", 1000
    )
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
