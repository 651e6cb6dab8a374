"""Rented instances, the frontier and `lolat cost` by hand, with a training whose seconds are known."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

import lolat as package
from lolat.device.file import DeviceFile, new_document
from lolat.device.question import RunAs
from lolat.errors import InputError
from lolat.graph import Graph, GraphBuilder
from lolat.hardware.hardware import Hardware
from lolat.hardware.prices import BUILT_IN, Offer, price_list
from lolat.hardware.rental import Rental
from lolat.report.cost import cost_lines
from lolat.report.cost_table import link_words
from lolat.report.tables import lines_of
from lolat.training import plan
from lolat.training.best import best_of
from lolat.training.cost import Cost, cost_on
from lolat.training.prediction import TrainingPrediction
from lolat.training.question import TrainingQuestion
from lolat.training.run import TrainingLimits
from tests import synthetic
from tests.cli.commands import Command
from tests.training import known_device
from tests.training.known import KnownTraining
from tests.training.several import listed, network

ONE = Offer("one", "G", 1, 3.0)
DEARER = Offer("dear", "G", 1, 3.5)
FOUR = Offer("four", "G", 4, 11.0)
EIGHT = Offer("eight", "G", 8, 40.0)


@pytest.mark.parametrize(
    ("offers", "devices", "name", "instances", "price", "idle"),
    [
        ((ONE, DEARER), 1, "one", 1, 3.0, 0),  # the cheapest
        ((ONE, FOUR, EIGHT), 4, "four", 1, 11.0, 0),  # one instance with as many
        ((ONE, FOUR, EIGHT), 8, "eight", 1, 40.0, 0),  # even where several would be cheaper
        ((ONE, FOUR), 8, "four", 2, 22.0, 0),  # else the cheapest way
        ((ONE, FOUR, EIGHT), 3, "one", 3, 9.0, 0),
        ((ONE, FOUR, EIGHT), 5, "one", 5, 15.0, 0),
        ((EIGHT,), 1, "eight", 1, 40.0, 7),  # paid for and idle
        ((EIGHT,), 9, "eight", 2, 80.0, 7),
        ((ONE, Offer("two", "G", 2, 6.0)), 4, "two", 2, 12.0, 0),  # as dear: fewer instances
        ((Offer("box", "", 0, 0.2),), 3, "box", 3, 0.6, 0),  # without an accelerator: itself
    ],
)
def test_rented_instances(
    offers: tuple[Offer, ...], devices: int, name: str, instances: int, price: float, idle: int
) -> None:
    found = Rental(Hardware("G"), offers, "list").rented(devices)
    assert (found.instance_type, found.instances, found.idle_devices) == (name, instances, idle)
    assert found.price_per_hour == pytest.approx(price)


points = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12)


@given(points, st.sampled_from([None, 5]), st.sampled_from([None, 5]))
def test_the_frontier_is_the_options_that_no_other_beats_and_the_best_keep_the_limits(
    found: list[tuple[int, int]], hours: int | None, most: int | None
) -> None:
    options = [
        TrainingPrediction(n, None, None, 1.0, {}, 0.0, 1.0, total_s=3600 * t, dollars=m)
        for n, (t, m) in enumerate(found)
    ]
    cheapest, fastest, frontier = best_of(options, TrainingLimits(hours, most))
    front = [
        o for o in options
        if not any(3600 * t <= o.total_s and m <= o.dollars and (3600 * t, m) != (o.total_s, o.dollars)
                   for t, m in found)
    ]  # fmt: skip
    assert sorted(frontier, key=options.index) == front
    assert [o.dollars for o in frontier] == sorted(o.dollars for o in front)
    paid = [(t, m) for t, m in found if most is None or m <= most]
    kept = [m for t, m in paid if hours is None or t <= hours]
    assert (cheapest and cheapest.dollars) == min(kept, default=None)
    assert (fastest and fastest.total_s) == min((3600 * t for t, _ in paid), default=None)


# ---- A cost by hand: 36 s a sample, 800 samples, 5 epochs: 40 hours of one device.

PRICES = """InstanceType,Price,AcceleratorName,AcceleratorCount,Region,vCPUs
one,3.0,V100,1,there,8
eight,20,V100,8,there,64
small,0.1,,,here,1
box,0.2,,,here,4
"""


def known(device: str = "Tesla V100-SXM2", sample_ms: float = 36_000.0) -> KnownTraining:
    """Ends of the interval 5/6 and 6/5 of the time."""
    about = DeviceFile(new_document("desk", device, {"device": device, "threads": 2}))
    return KnownTraining(about, sample_ms=sample_ms, factor=1.2)


@pytest.fixture
def prices(tmp_path: Path) -> str:
    path = tmp_path / "p.csv"
    path.write_text(PRICES)
    return str(path)


def asked(model: KnownTraining, *replicas: int, **more: Any) -> Cost:
    device: Any = SimpleNamespace(
        file=model.file, source="desk.json", label="desk", profile="desk", asked=RunAs()
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "training_of", lambda device: model)
        patch.setattr(plan, "as_written", lambda device, graph: device)
        more = {"batch_size": 10, "samples": 800, "epochs": 5, **more}
        question = TrainingQuestion(replicas=replicas or 1, **more)
        return cost_on(device, synthetic.network(), question)


def test_a_price_for_a_device() -> None:
    found = asked(known(), 1, 2, 4, 8, price_per_hour=2.5, link_gbps=1e9)
    options = found.options
    assert [o.devices for o in options] == [1, 2, 4, 8]
    hours = [(o.total_s or 0) / 3600 for o in options]
    assert hours == pytest.approx([40, 20, 10, 5], rel=1e-4)  # and messages of 5 microseconds
    assert [o.dollars for o in options] == pytest.approx([100] * 4, rel=1e-4)
    assert options[0].interval_s == pytest.approx((40 / 1.2 * 3600, 48 * 3600))
    assert options[0].dollars_interval == pytest.approx((100 / 1.2, 120))
    assert (found.cheapest, found.fastest, found.frontier) == (1, 8, (1, 2, 4, 8))
    *_, cheapest, fastest = found.words().splitlines()
    assert (cheapest[:20], fastest[:20]) == ("cheapest: 1 device, ", "fastest: 8 devices, ")


def test_an_option_is_told_once() -> None:
    """A single one is no choice; one that is both the cheapest and the fastest within the time is one."""
    paid = {"price_per_hour": 2.5, "link_gbps": 1e9}
    assert asked(known(), 1, **paid).words().splitlines()[1:] == ["1 device, 40 h 00 min, $100.00"]
    both = "cheapest and fastest: 8 devices, 5 h 00 min, $100.00"
    assert asked(known(), 1, 8, max_hours=6, **paid).words().splitlines()[1:] == [both]


def test_a_list_of_prices_has_the_models_device(prices: str) -> None:
    found = asked(known(), 1, 4, 8, prices=prices)
    assert found.prices == f"V100 (a row without SXM or PCIe is taken as SXM) in {prices}"
    rented = [o.rented for o in found.options if o.rented]
    names = [(r.instance_type, r.instances, r.price_per_hour) for r in rented]
    assert names == [("one", 1, 3.0), ("one", 4, 12.0), ("eight", 1, 20.0)]
    assert [o.dollars for o in found.options] == pytest.approx([120, 120, 100], rel=1e-4)
    assert (found.cheapest, found.fastest, found.frontier) == (8, 8, (8,))


def test_counts_are_those_that_the_data_allows(lolat: Command, tmp_path: Path, net: str) -> None:
    """1,000 samples have three batches of 256; a number of devices that is given twice is one."""
    rows = ["four,11,V100,4", "eight,20,V100,8", "one,3,V100,1", "two,6,V100,2"]
    for some, batch_size, counts in (
        (rows[:2], 256, [3]), (rows[1:], 256, [1, 2]), (rows[1:], 100, [1, 2, 8]),
        (rows[:2], 1000, [1]),
    ):  # fmt: skip
        prices = listed(tmp_path, *some)
        ask = ("cost", net, "--samples", 1000, "--prices", prices, "--batch-size", batch_size)
        found = json.loads(lolat.done(*ask, "--on", "v100,t4", "--json").out)
        v100 = next(a for a in found["answers"] if a["device"] == "v100")
        assert [o["devices"] for o in v100["options"]] == counts
    for device in ("v100-fp32", "v100,t4"):
        ask = (*ask[:-1], 8)
        twice = lolat.done(*ask, "--on", device, "--replicas", "2,2", "--json").out
        answer = next(a for a in json.loads(twice)["answers"] if a["profile"] == "v100-fp32")
        assert [o["devices"] for o in answer["options"]] == [2]
        assert lolat.done(*ask, "--on", device, "--replicas", "2,2")


def test_networks_with_attention_are_told_what_is_assumed_of_their_training() -> None:
    """And what a CPU drops; the softmax of a classifier and of a channel attention is none of tokens."""
    drops = "drops of 2 Attention on a CPU (single operations)"
    about = dict.fromkeys(("heads", "key_heads"), 1) | dict.fromkeys(("queries", "keys"), 16)
    b = GraphBuilder("attends", "torch")
    x = b.input((1, 16, 64))
    x = b.add("dense", [x], (1, 16, 64), in_features=64, out_features=64, bias=False)
    x = b.add("attention", [x, x, x], (1, 16, 64), **about, head_size=64, value_size=64)
    b.training_only_on_cpu.append(drops)
    attends, gpu = b.build([x]), package.load("a100-fp32")
    said = "sgd is assumed, and networks with attention are mostly trained by adamw"
    for device, graph, optimizer, told in (
        (gpu, attends, None, [True, False]), (gpu, attends, "sgd", [False, False]),
        (gpu, network_with_softmax(), None, [False, False]),
        (gpu, single_attention(of_channels=False), None, [True, False]),
        (gpu, single_attention(of_channels=True), None, [False, False]),
        (package.load("epyc-2t-torch"), attends, "adamw", [False, True]),
    ):  # fmt: skip
        remarks = "\n".join(device.cost(graph, 8, optimizer=optimizer).warnings)
        assert [said in remarks, f"not counted: {drops}" in remarks] == told


def network_with_softmax() -> Graph:
    b = GraphBuilder("classifies", "keras")
    x = b.add("dense", [b.input((1, 8))], (1, 4), in_features=8, out_features=4, bias=False)
    return b.build([b.add("softmax", [x], (1, 4))])


def single_attention(of_channels: bool) -> Graph:
    """Scores, a softmax, a product with the values; the scores are of a dense layer if `of_channels`."""
    b = GraphBuilder("attends", "torch")
    q, shape = b.input((1, 16, 64)), (1, 16, 16)
    if of_channels:
        x = b.add("dense", [q], shape, in_features=64, out_features=16, bias=False)
    else:
        x = b.add("matmul", [q, q], shape, contracted=64)
    x = b.add("softmax", [b.add("mul", [x], shape)], shape)
    return b.build([b.add("matmul", [x, q], (1, 16, 64), contracted=16)])


def test_a_cpu_is_an_instance_with_as_many_threads(prices: str) -> None:
    options = asked(known("cpu"), 1, 2, prices=prices).options
    rented = [(o.rented.instance_type, o.rented.instances) for o in options if o.rented]
    assert rented == [("box", 1), ("box", 2)]


MACHINES = """InstanceType,Price,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB
small,0.1,,,4,{small}
large,0.3,,,4,512
unknown,0.4,,,4,
"""


def test_a_cpu_is_an_instance_that_holds_the_iteration(
    lolat: Command, tmp_path: Path, net: str
) -> None:
    """Its memory less 6 % and half a GiB: just as much as the iteration takes, and a bit less."""
    path, model = tmp_path / "p.csv", known("cpu")
    step_gib = asked(model).memory_bytes / 2**30
    just = (step_gib + 0.5) / 0.94
    for small, name in ((just * 1.01, "small"), (just * 0.99, "large"), ("", "small")):
        path.write_text(MACHINES.format(small=small))
        rented = asked(model, prices=str(path)).options[0].rented
        assert rented is not None
        assert rented.instance_type == name
    path.write_text(MACHINES.format(small=just * 0.99).partition("large")[0])
    assert asked(model, prices=str(path)).prices is None
    ask = ("cost", "epyc-2t", net, "--batch-size", 10, "--samples", 800, "--prices", path)
    assert "with that memory" in lolat.done(*ask).out
    path.write_text(MACHINES.format(small=16))
    for memory_gib, name in ((17, "small"), (18, "large")):  # a list and a sheet differ by a tenth
        rented = asked(model, prices=str(path), memory_gib=memory_gib).options[0].rented
        assert rented is not None
        assert rented.instance_type == name


def test_without_a_price_there_are_times_alone(prices: str) -> None:
    found = asked(known("K40"), 1, 2)
    assert (found.prices, found.cheapest, found.fastest) == (None, None, 2)
    assert {o.dollars for o in found.options} == {None}
    assert asked(known("K40"), prices=prices).prices is None


def test_the_link_follows_from_the_rented_instances(prices: str) -> None:
    """One device an instance: a network. Eight in one: as the V100-SXM2 is linked, 0.8 of 150 GB/s, and
    half of that between two such machines.
    """
    network, nvlink = ("the network between machines", 10.0), ("NVLink 2", 960.0)
    found = asked(known(), 1, 2, 8, 16, prices=prices)
    links = [(o.link, o.link_gbps) for o in found.options]
    assert links == [(None, None), network, nvlink, ("the network of a cluster", 480.0)]
    # Without instances: eight in a machine.
    found = asked(known(), 2, 9, price_per_hour=1)
    assert [(o.link, o.link_gbps) for o in found.options] == [nvlink, links[-1]]
    assert asked(known(), 4, link_gbps=25).options[0].link is None


@pytest.mark.parametrize(("given", "whole"), [(60, 480), (25, 200), (1.25, 10), (500, 960)])
def test_a_given_link_is_that_of_each_gpu(prices: str, given: float, whole: float) -> None:
    """Eight of a machine share what they have between machines, at most NVLink's; the line says both.

    Beside several machines one keeps its own; alone the given link joins all.
    """
    for price in ({"prices": prices}, {"price_per_hour": 1}):
        cost = asked(known(), 8, 16, link_gbps=given, **price)
        inside, between = cost.options
        assert (inside.link, inside.link_gbps, between.link_gbps) == ("NVLink 2", 960, whole)
        (alone,) = asked(known(), 8, link_gbps=given, **price).options
        assert (alone.link, alone.link_gbps) == (None, given)
        words = f"{whole} Gbit/s a machine of 8, {whole / 8:g} a GPU"
        assert link_words((cost, between)) == words
    usual = asked(known(), 16, prices=prices)
    words = "480 Gbit/s a machine of 8, 60 a GPU (assumed; yours: --link-gbps 60)"
    assert link_words((usual, usual.options[0])) == f"the network of a cluster, {words}"
    again = asked(known(), 16, prices=prices, link_gbps=60).options[0]
    assert again.iteration_ms == pytest.approx(usual.options[0].iteration_ms)


@pytest.mark.parametrize(
    ("given", "words"), [(60, ""), (500, "960 are used"), (960, "as fast as the link inside")]
)
def test_a_given_link_of_which_machines_cannot_use_all_is_told(given: float, words: str) -> None:
    """NVLink 2 inside a machine reaches 960 Gbit/s: eight times 60 are less, eight times 500 more."""
    told = [w for w in asked(known(), 16, link_gbps=given).warnings if "--link-gbps" in w]
    assert [words in w for w in told] == [True] * bool(words)


@pytest.mark.parametrize("sample_ms", [1e-3, 36_000.0])
def test_without_an_instance_of_just_as_many_the_job_decides(
    tmp_path: Path, sample_ms: float
) -> None:
    """Three devices: apart, over a network, or in a machine of four; each priced in a list of its own."""
    rows = ["one,3.0,V100,1", "four,13,V100,4"]
    model = known(sample_ms=sample_ms)
    apart, machine, both = (
        asked(model, 3, prices=listed(tmp_path, *some)).options[0]
        for some in ([rows[0]], [rows[1]], rows)
    )
    assert (apart.link, machine.link) == ("the network between machines", "NVLink 2")
    assert both.dollars == min(apart.dollars or 0.0, machine.dollars or 0.0)
    assert (both.link == machine.link) is (sample_ms < 1.0)  # where exchanging takes the time


@pytest.mark.parametrize(("dollars", "is_machine"), [(9.8, True), (10.0, False)])
def test_of_offers_that_cost_nearly_the_same_the_fastest(
    tmp_path: Path, dollars: float, is_machine: bool
) -> None:
    """Three devices apart for $9 an hour, or in one machine for 9 or 11 % more."""
    prices = listed(tmp_path, "one,3.0,V100,1", f"four,{dollars},V100,4")
    (found,) = asked(known(), 3, prices=prices).options
    assert (found.link == "NVLink 2") is is_machine


def test_the_name_of_an_instance_tells_the_form_of_its_cards(tmp_path: Path) -> None:
    """Two A100 of form SXM: 0.8 of 300 GB/s; as cards: 0.5 of 31.5."""
    for instance, link in (
        ("2x_a100_sxm4", ("NVLink 3", 1920.0)),
        ("a2-highgpu-2g", ("NVLink 3", 1920.0)),  # Google's A100 are SXM
        ("2x", ("PCIe 4.0 x16", 126.0)),
    ):
        prices = listed(tmp_path, f"{instance},4,A100,2")
        found = package.load("a100-fp32").cost(synthetic.network(), 8, replicas=2, prices=prices)
        assert (found.options[0].link, found.options[0].link_gbps) == link
        said = [w for w in found.warnings if "times are those of the PCIe card" in w]
        assert [w.endswith("SXM is rented, with its link") for w in said] == [True] * (
            instance != "2x"
        )


@pytest.mark.parametrize(
    ("batch_size", "asked_gib", "instance", "memory_gib"),
    [
        (8, None, "eight", 16), (8, 31, "two", None), ("auto", None, "eight", 16),
        ("auto", 32, "two", None), ("most", None, "eight", 16), ("one more", None, "two", None),
    ],
)  # fmt: skip
def test_a_card_with_less_memory_is_rented_where_the_step_fits(
    tmp_path: Path, batch_size: int | str, asked_gib: float | None, instance: str,
    memory_gib: float | None,
) -> None:  # fmt: skip
    """The model's card has 32 GiB; eight of 16 in one machine go before four machines of two.

    The most is the largest batch of 16 GiB less 6 % and half a GiB.
    """
    prices = listed(tmp_path, "two,5.0,V100-32GB,2", "eight,6,V100,8")
    model, graph = package.load("v100-fp32"), synthetic.network()
    most = model.cost(graph, 1, memory_gib=16).largest_batch or 0
    batch_size = {"most": most, "one more": most + 1}.get(str(batch_size), batch_size)
    ask: dict[str, Any] = {"replicas": 8, "prices": prices, "memory_gib": asked_gib}
    found = model.cost(graph, batch_size, 10**6, **ask)
    rented = found.options[0].rented
    assert rented is not None
    assert (rented.instance_type, rented.memory_gib) == (instance, memory_gib)
    row = found.rows()[0]  # the need, and the card's
    assert (row["memory_bytes"], row["device_memory_gib"]) == (found.memory_bytes, memory_gib)
    assert "memory_gib" not in row
    assert (found.options[0].link == "the network between machines") == (instance == "two")


def test_memory() -> None:
    found = asked(known(), memory_gib=16)
    assert found.available_bytes == asked(known()).available_bytes == int(16 * 2**30 * 0.94) - 2**29
    assert found.largest_batch is not None
    assert found.largest_batch > 10
    assert asked(known("some box")).largest_batch is None
    much = 4 * 2 * (found.largest_batch // 2)
    over = asked(known(), batch_size=much, samples=10**6)
    (way,) = over.would_fit
    _, size, _, number = way.split()
    assert int(size) * int(number) == much
    assert asked(known(), batch_size=int(size), accumulate=int(number), samples=10**6).fits
    # A batch that is all the data can be divided as well, although two of it are more than there are.
    few = asked(known(), batch_size=much, samples=much)
    assert (few.fits, few.would_fit) == (False, over.would_fit)
    cpu = known("cpu")
    cpu.file = cpu.file.but(environment={**cpu.file.recorded, "available_bytes": 1000})
    assert asked(cpu).largest_batch == 0


def test_memory_of_compiled_code_is_told_to_be_that_of_eager_code() -> None:
    eager, compiled = (
        package.load("v100-fp32").cost(network(), 8, launch=launch)
        for launch in ("eager", "compiled")
    )
    assert eager.memory == compiled.memory
    said = ["memory is that of eager" in " ".join(cost.warnings) for cost in (eager, compiled)]
    assert said == [False, True]


def test_rows_have_the_built_in_prices_and_both_ends_of_an_interval() -> None:
    sheet = package.Model(known_device.document())
    found = sheet.cost(network(), 32, 1000, 3, replicas=[1, 4])
    assert (found.prices or "").startswith("V100, V100-32GB in the built-in table of 20")
    names = [row["instance_type"] for row in found.rows()]
    assert names == ["paperspace_V100-32GB", "gpu_8x_v100"]  # $6.32 for four of eight, not $9.20
    for row, option in zip(found.rows(), found.options, strict=True):
        assert all(isinstance(v, str | float | int | None) for v in row.values())
        assert (row["total_low_s"], row["total_high_s"]) == option.interval_s
        assert (row["dollars_low"], row["dollars_high"]) == option.dollars_interval
    (row,) = sheet.cost(network(), 32).rows()
    assert (row["total_low_s"], row["dollars_high"]) == (None, None)


# ---- `lolat prices`.


def test_the_price_list_is_printed(lolat: Command, prices: str) -> None:
    lines = lolat.text("prices").splitlines()
    assert "p3.2xlarge" in "\n".join(lines)
    assert len(lines) == 3 + len(price_list().offers)
    offers = lolat.json("prices", "--prices", prices)["offers"]
    found = [(o["instance_type"], o["price"], o["region"]) for o in offers if o["count"]]
    assert {("one", 3.0, "there"), ("eight", 20.0, "there")} <= {*found}
    with BUILT_IN.open() as table:
        rows = [*csv.DictReader(table)]
    cards = {"h100": ["H100", "H100-PCIe"], "RTX 4090": ["RTX4090"], "l4": ["L4"], "cpu": [""]}
    for name, card in cards.items():
        known = [row["InstanceType"] for row in rows if row["AcceleratorName"] in card]
        assert [o["instance_type"] for o in lolat.json("prices", name)["offers"]] == known
    assert "did you mean H100" in lolat.refused("prices", "h10")


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"price_per_hour": -1}, "price_per_hour -1: expected a number from 0"),
        ({"price_per_hour": math.nan}, "price_per_hour nan"),
        ({"max_hours": -1}, "max_hours -1: expected a number above 0"),
        ({"max_dollars": "x"}, "max_dollars 'x'"),
        ({"memory_gib": math.nan}, "memory_gib nan"),
        ({"link_gbps": "a"}, "link_gbps 'a'"),
        ({"validation_samples": -5}, "validation_samples -5: expected a whole number from 1"),
        ({"validation_samples": 2.5}, "validation_samples 2.5"),
        ({"validation_samples": 5, "samples": None}, "validation_samples without samples"),
        ({"epochs": 3, "samples": None}, "epochs without samples or tokens"),
        ({"epochs": 3, "samples": None, "max_dollars": 5}, "epochs without samples or tokens"),
        ({"optimizer": "x"}, "optimizer 'x': expected one of sgd"),
    ],
)
def test_python_checks_as_the_command_does(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        package.load("v100-fp32").cost(network(), 8, **{"samples": 100, **asked})


def test_numbers_and_arrays_of_numpy_are_taken() -> None:
    model, net = package.load("v100-fp32"), network()
    plain = model.cost(net, [1, 8], 100, replicas=[1, 2]).to_dict()
    arrays = model.cost(net, np.array([1, 8]), np.int64(100), replicas=np.array([1, 2]))
    assert json.loads(json.dumps(arrays.to_dict())) == json.loads(json.dumps(plain))
    assert "on 1 device:" in str(arrays)  # two batch sizes are no two devices


def test_an_onnx_file_without_what_training_has_says_so() -> None:
    """Exports for inference have no batch normalization, nor dropout."""
    model, net = package.load("v100-fp32"), structs.replace(network(), framework="onnx")
    bare = [o for o in net.operations if o.kind != "batch_norm"]
    assert len(bare) < len(net.operations)
    as_exported = tuple(
        structs.replace(o, kind="relu") if o not in bare else o for o in net.operations
    )
    for graph, told in ((net, False), (structs.replace(net, operations=as_exported), True)):
        remarks = [w for w in model.cost(graph, 8).warnings if w.startswith("an ONNX file without")]
        assert bool(remarks) == told


@pytest.mark.parametrize("sample_ms", [1e-3, 36_000.0])
def test_a_machine_with_as_many_devices_is_kept_whatever_the_job(
    tmp_path: Path, sample_ms: float
) -> None:
    """Eight in one machine cost 2 % more than two machines of four, whose network nobody tells."""
    prices = listed(tmp_path, "four,11,V100,4", "eight,22.4,V100,8")
    for link in ({}, {"link_gbps": 960.0}, {"link_gbps": 25.0}):
        (option,) = asked(known(sample_ms=sample_ms), 8, prices=prices, **link).options
        assert (option.rented and option.rented.instance_type) == "eight"


def test_a_link_as_fast_as_nvlink_is_one_machine(tmp_path: Path) -> None:
    """Six V100 over 960 Gbit/s are six of eight; sixteen are in two machines, which it does not join."""
    prices = listed(tmp_path, "two,5,V100,2", "eight,40,V100,8")
    for gbps, devices, names, is_told in (
        (960.0, 6, ("eight", 1), False), (25.0, 6, ("two", 3), False), (960.0, 16, ("eight", 2), True),
        (100.0, 16, ("two", 8), False),
    ):  # fmt: skip
        found = asked(known(), devices, prices=prices, link_gbps=gbps)
        rented = found.options[0].rented
        if devices < 16:
            assert (rented and (rented.instance_type, rented.instances)) == names
        assert any("inside a machine" in w for w in found.warnings) is is_told


def test_the_fastest_is_of_all_offers_where_none_keeps_the_limit(tmp_path: Path) -> None:
    """Three apart take 10 Gbit/s for $9 an hour, a machine of four NVLink for $13."""
    prices = listed(tmp_path, "one,3.0,V100,1", "four,13,V100,4")
    slow, fast, poor = (
        asked(known(sample_ms=0.2), 3, prices=prices, **limit).options[0]
        for limit in ({}, {"max_hours": 1e-6}, {"max_dollars": 1e-6})
    )
    assert [o.link for o in (slow, fast)] == ["the network between machines", "NVLink 2"]
    assert poor.dollars == slow.dollars
    # The exchange hardly counts: no reason to pay $13.
    late = asked(known(), 3, prices=prices, max_hours=1e-3).options[0]
    assert late.link == "the network between machines"


def test_convolutions_of_float32_are_judged_by_the_peak_of_tf32() -> None:
    """An A100 has 19.5 TFLOPS in float32 and 156 in TF32, 312 in half precision.

    A product and its two gradients take 6 FLOPs a MAC, the first convolution 4: its input has no gradient.
    """
    torch = pytest.importorskip("torch")
    convolutions = [torch.nn.Conv2d(64, 64, 3, padding=1, bias=False) for _ in range(2)]
    last = torch.nn.Flatten(), torch.nn.Linear(64 * 32 * 32, 512, bias=False)
    net = torch.nn.Sequential(*convolutions, *last)
    convolution, linear = 64 * 64 * 9 * 32 * 32, 64 * 32 * 32 * 512
    shape = {"input_size": (64, 32, 32)}
    for precision, peaks in (("fp32", (156e12, 19.5e12)), ("amp", (312e12, 312e12))):
        cost = package.load("a100").run_as(precision).cost(net, 64, **shape)
        least_s = 10 * convolution / peaks[0] + 6 * linear / peaks[1]
        (option,) = cost.options
        assert option.mfu == pytest.approx(least_s * option.samples_per_s, rel=1e-3)
        assert cost.tf32 == (precision == "fp32")
        assert ("fp32 (convolutions in TF32)" in next(lines_of(cost_lines(cost)))) == cost.tf32
    assert not package.load("a100").cost(net[2:], 64, input_size=(64, 32, 32)).tf32
