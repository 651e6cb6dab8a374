"""`lolat cost` and `prices`, with a training model whose seconds are known by hand and such networks."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.training.known_training import KnownTraining

from lolat.model.file import write
from lolat.training.file import load_training
from tests import synthetic
from tests.cli.commands import ROOT, Command
from tests.training.epoch_tables import document

LIST = """InstanceType,Price,AcceleratorName,AcceleratorCount,Region,vCPUs
one,3.0,V100,1,there,8
eight,20,V100,8,there,64
small,0.1,,,here,1
box,0.2,,,here,4
"""


def known(device: str = "Tesla V100-SXM2", **more: Any) -> KnownTraining:
    """36 s a sample; ends of the interval 5/6 and 6/5 of that."""
    document = {"environment": {"device": device, "threads": 2}}
    return KnownTraining(document=document, sample_ms=36_000.0, factor=1.2, gradients=0, **more)


@pytest.fixture
def lolat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """The model is one on a V100."""
    given(monkeypatch, known())
    return Command(capsys)


def given(monkeypatch: pytest.MonkeyPatch, model: KnownTraining) -> None:
    monkeypatch.setattr("lolat.training.file.load_training", lambda _: model)
    monkeypatch.setattr("lolat.readers.read", lambda *_: synthetic.network())


@pytest.fixture
def prices(tmp_path: Path) -> Path:
    path = tmp_path / "p.csv"
    path.write_text(LIST)
    return path


ASK = ("cost", "m.json", "n", "--samples", 800, "--epochs", 5, "--batch-size", 10)


def asked(lolat: Command, *more: object) -> dict[str, Any]:
    return dict(lolat.json(*ASK, *more))


def test_a_price_for_a_device(lolat: Command) -> None:
    """40 hours of one device; the time shared out and the price multiplied, the money is the same."""
    answer = asked(lolat, "--price-per-hour", 2.5, "--replicas", "1,2,4,8")
    rows = answer["options"]
    assert [r["devices"] for r in rows] == [1, 2, 4, 8]
    # a sum of nothing is exchanged: only the latency, 2 (K-1) messages of 5 microseconds
    assert [r["hours"] for r in rows] == pytest.approx([40, 20, 10, 5], rel=1e-4)
    assert [r["dollars"] for r in rows] == pytest.approx([100] * 4, rel=1e-4)
    assert [r["dollars_per_epoch"] for r in rows] == pytest.approx([20] * 4, rel=1e-4)
    assert rows[0]["hours_interval"] == pytest.approx([40 / 1.2, 48])
    assert rows[0]["dollars_interval"] == pytest.approx([100 / 1.2, 120])
    assert rows[0]["interval_s"] == pytest.approx([40 / 1.2 * 3600, 48 * 3600])
    assert (answer["cheapest"]["devices"], answer["fastest"]["devices"]) == (1, 8)
    assert "storage" in answer["left_out"]
    assert (answer["samples"], answer["batch_size"], answer["epochs"]) == (800, 10, 5)


def test_a_slow_input_pipeline_costs_what_it_takes(lolat: Command) -> None:
    """45 s a sample, and the device takes 36."""
    answer = asked(lolat, "--price-per-hour", 1, "--input-ms-per-sample", 45_000)
    assert answer["options"][0]["hours"] == pytest.approx(50, rel=1e-4)
    line = lolat.refused(*ASK, "--price-per-hour", 1, "--input-ms-per-sample", -1)
    assert "'-1': expected a number of milliseconds from 0" in line


def test_a_list_of_prices_and_the_models_own_device(lolat: Command, prices: Path) -> None:
    answer = asked(lolat, "--prices", prices, "--replicas", "1,4,8")
    assert answer["prices"] == f"V100 in {prices}"
    found = [(r["instance_type"], r["instances"], r["price_per_hour"]) for r in answer["options"]]
    assert found == [("one", 1, 3.0), ("one", 4, 12.0), ("eight", 1, 20.0)]
    dollars = [r["dollars"] for r in answer["options"]]
    assert dollars == pytest.approx([120, 120, 100], rel=1e-4)
    assert answer["frontier"] == [8]
    assert answer["cheapest"] == answer["fastest"]


def test_without_prices_the_built_in_ones(lolat: Command) -> None:
    answer = asked(lolat)
    assert answer["prices"].startswith("V100 in the built-in table of 20")
    option = answer["options"][0]
    assert (option["instance_type"], option["dollars"]) == ("p3.2xlarge", pytest.approx(40 * 3.06))
    assert option["source"].startswith("skypilot-org/skypilot-catalog")


def test_a_cpu_is_an_instance_with_as_many_threads(
    lolat: Command, prices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, known("cpu"))
    options = asked(lolat, "--prices", prices, "--replicas", "1,2")["options"]
    assert [(o["instance_type"], o["instances"]) for o in options] == [("box", 1), ("box", 2)]


def test_what_a_terminal_shows(lolat: Command, prices: Path) -> None:
    ask = (*ASK, "--prices", prices, "--replicas", "1,4,8", "--optimizer", "adam")
    lines = lolat.text(*ask).splitlines()
    assumed = "(assumed; yours: --link-gbps)"
    assert lines[:3] == [
        "hand made on desk: 5 epochs of 800 samples, batch 10 on each device, adam",
        f"Gradients of 4 devices by ring over the network between machines, 10 Gbit/s {assumed}",
        f"Gradients of 8 devices by ring over NVLink 2, 960 Gbit/s {assumed}",
    ]
    row = "1 1 x one 3.00 40.0 33.3 .. 48.0 120.00 100.00 .. 144.00 24.00"
    assert " ".join(lines[5].split()) == row
    assert "Cheapest and fastest: 8 devices, 5 h 00 min, $100.00" in lines
    assert max(map(len, lines)) <= 110


def test_a_link_that_is_given_is_everywhere(lolat: Command, prices: Path) -> None:
    ask = (*ASK, "--prices", prices, "--replicas", "1,4,8", "--link-gbps", 25)
    assert lolat(*ask).out.splitlines()[1] == "Gradients by ring over 25 Gbit/s (--link-gbps)"
    answer = lolat.json(*ask)
    assert answer["link_gbps"] == 25
    assert answer["links"] == [{"devices": k, "link": None, "gbps": 25} for k in (4, 8)]


def test_the_link_follows_from_what_is_rented(lolat: Command, prices: Path) -> None:
    """One device an instance: a network. Eight in one: as the V100-SXM2 is linked, 0.8 of 150 GB/s."""
    network = {"link": "the network between machines", "gbps": 10.0}
    nvlink = {"link": "NVLink 2", "gbps": 960.0}
    found = asked(lolat, "--prices", prices, "--replicas", "1,2,8,16")
    assert found["link_gbps"] is None
    wanted = {2: network, 8: nvlink, 16: network}
    assert found["links"] == [{"devices": n, **link} for n, link in wanted.items()]
    # Without instances: eight in a machine.
    own = asked(lolat, "--price-per-hour", 1, "--replicas", "2,9")
    assert own["links"] == [{"devices": 2, **nvlink}, {"devices": 9, **network}]


def test_a_cpu_has_a_network(lolat: Command, prices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, known("cpu"))
    told = lolat(*ASK, "--prices", prices, "--replicas", 2).out.splitlines()[1]
    assert "over the network between machines, 10 Gbit/s (assumed" in told
    told = lolat(*ASK, "--price-per-hour", 1, "--replicas", 2).out.splitlines()[1]
    assert "over a network, as no link of these devices is known, 10 Gbit/s (assumed" in told


def test_a_price_belongs_to_the_device(
    lolat: Command, prices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(monkeypatch, known("cpu", name="AMD EPYC, 2 threads"))
    ask = ("--prices", prices, "--accelerator", "v100")
    line = lolat.refused(*ASK, *ask)
    assert "the price is of v100, the times of the model are of AMD EPYC, 2 threads; give a" in line
    assert "--price-per-hour for AMD EPYC, 2 threads, or --as-if to take both all the same" in line
    answer = asked(lolat, *ask, "--as-if", "--replicas", "1,8")
    assert answer["prices"] == f"v100 in {prices}, as if it were that of AMD EPYC, 2 threads"
    assert answer["options"][0]["dollars"] == pytest.approx(120)
    assert answer["links"] == [{"devices": 8, "link": "PCIe 3.0 x16", "gbps": 63.0}]
    told = lolat(*ASK, *ask, "--as-if").out.splitlines()
    assert f"Price of {answer['prices']}" in told


def test_a_warning_of_the_model_is_said(lolat: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    given(monkeypatch, known(said=("outside",)))
    found = lolat(*ASK, "--price-per-hour", 1, "--json")
    assert found.err == "lolat: warning: outside\n"
    assert json.loads(found.out)["model"] == "desk"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--replicas", 0), "'0': expected whole numbers from 1, such as 1,2,4,8"),
        (("--replicas", "1,two"), "'1,two': expected whole numbers from 1"),
        (("--price-per-hour", -1), "'-1': expected a number from 0"),
        (("--price-per-hour", "nan"), "'nan': expected a number from 0"),
        (("--samples", 8), "a batch of 10 is larger than the data set of 8 samples"),
        (("--price-per-hour", 1, "--replicas", "1,81"), "a batch of 10 on each of 81 devices is larger"),
        (("--link-gbps", 0), "'0': expected a number of Gbit/s above 0"),
        (("--price-per-hour", 1, "--strategy", "star"), "'star' is not one of 'ring', 'tree'"),
        (("--accelerator", "H800"), "no price of H800 in the built-in table of 20"),
        (("--accelerator", "A6000"), "the price is of A6000, the times of the model are of Tesla V100"),
        (("--price-per-hour", 1, "--prices", "x.csv"), "are two prices; give one of them"),
        (("--prices", "none.csv"), "none.csv: no such file; expected a price list"),
        (("--optimizer", "lion"), "lion"),
        (("--price-per-hour", 1, "--coverage", 2), "coverage"),
        (("--samples", 0), "'0': expected a whole number from 1"),
    ],
)  # fmt: skip
def test_what_is_refused(lolat: Command, more: tuple[object, ...], said: str) -> None:
    assert said in lolat.refused(*ASK, *more)


def test_a_list_that_is_refused_and_a_device_that_is_not_in_it(
    lolat: Command, prices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices.write_text(LIST.replace("3.0", "-3.0", 1))
    assert "line 2: price is '-3.0'; expected" in lolat.refused(*ASK, "--prices", prices)
    prices.write_text(LIST)
    line = lolat.refused(*ASK, "--prices", prices, "--accelerator", "A100")
    assert "expected one of cpu, V100; or give --price-per-hour" in line
    given(monkeypatch, known("K40"))
    line = lolat.refused(*ASK, "--prices", prices)
    assert "has no accelerator like 'K40', the device of the model; give --price-per-hour" in line
    assert line.endswith("--as-if and --accelerator with one of cpu, V100")


def test_one_device_is_what_the_training_model_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the file of a training model, as a user has it."""
    path = tmp_path / "desk.json"
    write(path, document())
    monkeypatch.setattr("lolat.readers.read", lambda *_: synthetic.network())
    lolat = Command(capsys)
    ask = (path, "n", "--samples", 1000, "--epochs", 3, "--batch-size", 32)
    alone = load_training(path).predict(synthetic.network(), 32, 1000, 3).to_dict()
    option = lolat.json("cost", *ask, "--price-per-hour", 7200)["options"][0]
    assert option["total_s"] == alone["total_s"]
    assert option["interval_s"] == alone["interval_s"]
    assert option["epoch_s"] == pytest.approx(alone["epoch_s"])
    assert option["dollars"] == pytest.approx(2 * alone["total_s"])
    assert option["dollars_interval"] == pytest.approx([2 * t for t in alone["interval_s"]])


def test_the_commands_of_the_page_run(
    lolat: Command, prices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(prices.parent)
    prices.rename("vms.csv")
    page = (ROOT / "docs/how-to/training.md").read_text(encoding="utf-8")
    page = page.partition("## Cost")[2]
    lines = [line for line in page.splitlines() if line.startswith("lolat ")]
    shown = [shlex.split(line, comments=True)[1:] for line in lines]
    assert len(shown) >= 3
    for words in shown:
        assert lolat(*words).code == 0, words


# ---- `lolat prices`.

HEAD = "InstanceType,Price,AcceleratorName,AcceleratorCount,Region\n"
OTHERS = HEAD + "one,3.06,V100,1,there\none,3.5,V100,1,far\nbox,0.2,,,here\n"


@pytest.fixture
def listed(tmp_path: Path) -> Path:
    path = tmp_path / "p.csv"
    path.write_text(OTHERS)
    return path


def test_the_built_in_table_says_its_sources_and_day(lolat: Command) -> None:
    lines = lolat.text("prices").splitlines()
    assert lines[0].startswith("US$ an hour of a whole instance, from the built-in table of 20")
    rows = lines[3:]
    assert all("skypilot-org/skypilot-catalog" in row for row in rows)
    assert all(row[-10:-6] >= "2026" for row in rows)
    v100 = next(row for row in rows if "p3.2xlarge" in row)
    assert " ".join(v100.split()).startswith("V100 x1 p3.2xlarge 3.06 us-east-1 ")
    assert rows[-1].startswith("cpu")
    assert max(map(len, lines)) <= 120


def test_a_file_of_ones_own(lolat: Command, listed: Path) -> None:
    found = lolat("prices", "--prices", listed)
    assert [" ".join(line.split()) for line in found.out.splitlines()[2:]] == [
        "accelerator instance type $/hour region source, read",
        "V100 x1 one 3.06 there p.csv",  # the cheaper region
        "cpu box 0.20 here p.csv",
    ]


def test_json_is_one_object(lolat: Command, listed: Path) -> None:
    answer = lolat.json("prices", "--prices", listed, "--accelerator", "v100")
    found = [(o["instance_type"], o["price"], o["region"]) for o in answer["offers"]]
    assert found == [("one", 3.06, "there"), ("one", 3.5, "far")]
