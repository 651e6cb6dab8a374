"""`lolat training predict`, `cost` and `serve` with a model that `lolat fit` made, as a user would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lolat.io import paths as places
from lolat.readers import read
from lolat.training.file import load_training
from tests.cli.commands import Command
from tests.devices import made_up
from tests.training import known_device

NETWORK = "generate:fc?layers=32,32&input=16"
TEXT = "tests.devices.made_up:encoder"
SAID = "no training step was measured on this device: the backward pass is estimated from the forward one"


@pytest.fixture
def sheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(places, "local_folder", lambda: tmp_path / "local")
    path = tmp_path / "sheet.json"
    path.write_text(json.dumps(known_device.document()))
    return path


def asked(lolat: Command, *arguments: object) -> dict[str, Any]:
    found = lolat(*arguments, "--json")
    assert found.code == 0, found.err
    assert f"lolat: warning: {SAID}\n" in found.err
    answer = json.loads(found.out)
    assert isinstance(answer, dict)
    return answer


def test_from_a_data_sheet_to_a_training(lolat: Command, tmp_path: Path) -> None:
    """9.4 TFLOP/s and 500 GB/s, 85 % and 80 % of them; four dense layers, each with two gradients.

    That of its weights has 64 tiles of 128 x 128, and 40 multiprocessors take two waves, of 80, for them.
    """
    pytest.importorskip("torch")
    _, facts = made_up.write_tables(tmp_path)
    model = tmp_path / "desk.json"
    done = lolat("fit", "--facts", facts, "--name", "desk", "--output", model)
    assert done.code == 0, done.err
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


def test_people_read_lines(lolat: Command, sheet: Path) -> None:
    ask = ("--batch-size", 8, "--samples", 1000, "--replicas", 4, "--link-gbps", 50)
    found = lolat("training", "predict", sheet, NETWORK, *ask)
    assert found.code == 0, found.err
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
    alone = load_training(sheet).predict(read(NETWORK), 32, 1000, 3)
    assert alone.interval_s is not None
    option = answer["options"][0]
    assert option["total_s"] == pytest.approx(alone.total_s)
    assert option["interval_s"] == pytest.approx(alone.interval_s)
    own = asked(lolat, "cost", *ask, "--price-per-hour", 7200)["options"][0]
    assert own["dollars"] == pytest.approx(2 * own["total_s"])


def test_the_length_of_a_text_costs(lolat: Command, sheet: Path) -> None:
    pytest.importorskip("torch")
    ask = ("cost", sheet, TEXT, "--samples", 100, "--batch-size", 10, "--sequence-length")
    short, long = (asked(lolat, *ask, n)["options"][0]["total_s"] for n in (128, 1024))
    assert 5 < long / short < 9
