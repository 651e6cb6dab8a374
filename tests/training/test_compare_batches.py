"""Batches among several devices: the largest that fit, automatic ones, one of all devices."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lolat as package
from lolat.hardware.card_names import find_gpu, short_name
from lolat.report.cost import costs_lines
from lolat.report.tables import lines_of
from lolat.training.best import smallest_update
from lolat.training.choice import Choice
from lolat.training.prediction import TrainingPrediction
from lolat.training.run import TrainingLimits
from lolat.units import byte_size
from tests.training.several import network


def test_a_number_of_gpus_that_does_not_hold_the_training_is_never_recommended() -> None:
    """With the largest batch of eight, among which the training is sharded, it does not fit on four."""
    asked = {"input_size": 4096, "sharding": "fsdp", "tokens": 200e6}
    most = package.load("b200-vllm").cost("llama-3.1-8b", 1, replicas=8, **asked).largest_batch
    assert most is not None
    found = package.compare("llama-3.1-8b", most, ["b200-vllm"], **asked)
    (cost,) = found.answers
    assert {o.devices: (o.memory_bytes or 0) <= (cost.available_bytes or 0) for o in cost.options} == {
        1: False, 2: False, 4: False, 8: True
    }  # fmt: skip
    assert {c.devices for c in (found.cheapest, found.fastest, *found.frontier) if c} == {8}
    printed = "\n".join(lines_of(costs_lines(found)))
    held = cost.available_bytes or 0
    needed = [o.memory_bytes or 0 for o in cost.options if o.devices < 8]
    for size in needed:
        assert f"does not fit: {size / 2**30:,.3g} GiB of {held / 2**30:,.3g} GiB" in printed


@pytest.mark.parametrize("replicas", [[1, 8], [8, 1], [1]])
def test_each_number_of_gpus_says_the_largest_batch_that_fits_on_it(replicas: list[int]) -> None:
    """A GPU holds fewer sequences than eight that share the weights; so does one of a network's states."""
    decoder = {"input_size": 2048, "sharding": "fsdp", "tune": "lora:16"}
    asked = (
        (package.load("h100-vllm"), "llama-3.1-8b", decoder),
        (package.load("p4-fp32"), network(), {"sharding": "zero1", "optimizer": "adam"}),
    )
    for model, of, more in asked:
        for option in model.cost(of, "auto", replicas=replicas, **more).options:
            size, k = option.largest_batch or 0, option.devices
            assert option.batch_size <= size
            fit = [model.cost(of, n, replicas=k, **more).fits for n in (size, size + 1)]
            assert (fit, option.fits) == ([True, False], True)


def test_a_number_of_gpus_is_offered_with_a_smaller_batch() -> None:
    """70B in LoRA: eight H100 hold 4 sequences each, four hold fewer, and two not one."""
    asked = {"input_size": 4096, "sharding": "fsdp", "tune": "lora:16", "checkpointing": "full"}
    found = package.compare("llama-3.1-70b", "auto", "h100-vllm", tokens=1e8, **asked)
    fit = {o.devices: o.dollars for c in found.answers for o in c.options if o.fits}
    assert {*fit} == {4, 8}
    assert all(fit.values())
    title, *lines = lines_of(costs_lines(found))
    assert "batch 1 on each device, 1 to 8 in all" in title
    most = {o.devices: o.largest_batch for c in found.answers for o in c.options if o.fits}
    assert most[8] == 4 > (most[4] or 0)
    assert any("2 devices: does not fit: " in x and "--replicas 4" in x for x in lines)
    given = package.load("h100-vllm").cost("llama-3.1-70b", 4, replicas=[4, 8], **asked)
    (said,) = (w for w in given.warnings if w.startswith("4 devices: does not fit"))
    assert f"; batch {most[4]} fits" in said


def test_a_global_batch_is_shared_by_the_devices() -> None:
    """64 samples on 1, 2 and 4 devices are 8, 4 and 2 micro-batches of 8, as if these were asked for."""
    model = package.load("p4-fp32")
    found = model.cost(network(), 8, samples=6400, global_batch_size=64, replicas=[1, 2, 4])
    alone = [
        model.cost(network(), 8, samples=6400, accumulate=n, replicas=k)
        for k, n in ((1, 8), (2, 4), (4, 2))
    ]
    options = [(cost.accumulate, *cost.options) for cost in found.answers]
    assert options == [(cost.accumulate, *cost.options) for cost in alone]
    assert [option.iterations for _, option in options] == [100, 100, 100]


def test_the_parts_of_a_global_batch_are_the_largest_that_fit() -> None:
    """With room for 25 samples, 64 are two micro-batches of 16 on each of two devices."""
    model = package.load("p4-fp32")
    # A network may take 94 % of a card, less half a GiB.
    room = (model.cost(network(), 25).memory_bytes / 2**30 + 0.5) / 0.94 + 1e-6
    ask: dict[str, Any] = {"global_batch_size": 64, "replicas": 2, "memory_gib": room}
    assert 25 <= (model.cost(network(), 64, memory_gib=room).largest_batch or 0) < 32
    (cost,) = model.cost(network(), "auto", **ask).answers
    assert (cost.batch_size, cost.accumulate, cost.fits) == (16, 2, True)


def test_a_micro_batch_that_hardly_fits_is_halved_where_that_costs_no_time() -> None:
    model = package.load("p4-fp32")
    room = (model.cost(network(), 256).memory_bytes / 2**30 + 0.5) / 0.94 + 1e-6
    ask: dict[str, Any] = {"global_batch_size": 512, "replicas": 1, "memory_gib": room}
    (cost,) = model.cost(network(), "auto", **ask).answers
    (hardly,) = model.cost(network(), 256, **ask).answers
    assert hardly.memory_bytes > 0.9 * hardly.available_bytes > cost.memory_bytes
    assert cost.batch_size * cost.accumulate == 512
    slower = hardly.options[0].samples_per_s / cost.options[0].samples_per_s
    assert slower < 1.0 / 0.98


def test_the_largest_batch_that_fits() -> None:
    """Its memory is within the card's, and that of one sample more is not."""
    model, gpu = package.load("v100-fp32"), find_gpu("v100-pcie-32gb")
    assert gpu is not None
    most = model.cost(network(), "auto").largest_batch or 0
    fits, one = (model.cost(network(), n).memory_bytes for n in (most, most + 1))
    assert fits <= (gpu.usable_bytes or 0) < one


def brute_force(rates: dict[int, float]) -> int:
    """The smallest batch within 2 % of the best."""
    return min(n for n, rate in rates.items() if rate >= 0.98 * max(rates.values()))


@pytest.mark.parametrize("replicas", [1, 2, 8])
@pytest.mark.parametrize("name", ["v100-fp32", "rtx-4090-amp", "h100-fp32"])
def test_an_automatic_batch_is_the_smallest_as_fast_as_the_best(name: str, replicas: int) -> None:
    """Of all powers of two and the largest that fits, each asked for alone."""
    model, ask = package.load(name), {"samples": 10**6, "replicas": replicas}
    auto = model.cost(network(), "auto", **ask)
    most = auto.largest_batch or 0
    sizes = [*(2**n for n in range(most.bit_length())), most]
    alone = {n: model.cost(network(), n, **ask) for n in sizes}
    best = max(c.best.samples_per_s for c in alone.values())
    fast = {n: c.in_domain for n, c in alone.items() if c.best.samples_per_s >= 0.98 * best}
    assert auto.batch_size == min([n for n, is_inside in fast.items() if is_inside] or fast)
    assert auto.batch_size < most // 4
    assert auto.memory_bytes < 0.9 * (auto.available_bytes or 0)
    assert auto.best == alone[auto.batch_size].best


def test_an_automatic_batch_leaves_a_tenth_of_the_memory_if_that_is_as_fast() -> None:
    """Two GPUs over a slow network: the larger the batch, the faster. Each batch is asked for alone."""
    model, graph = package.load("rtx-4090-amp"), package.read("timm:resnet18")
    ask: dict[str, Any] = {"replicas": 2, "link_gbps": 1}
    found = [model.cost(graph, "auto", memory_gib=gib, **ask) for gib in (2, 3, 4)]
    for auto in found:
        most, room = auto.largest_batch or 0, auto.available_bytes or 0
        alone = [model.cost(graph, n, **ask) for n in range(1, most + 1)]
        rates = {c.batch_size: c.best.samples_per_s for c in alone}
        tried = {n: rates[n] for n in rates if n == most or n & (n - 1) == 0}
        best, near = brute_force(tried), 0.98 * max(tried.values())
        roomy = max(c.batch_size for c in alone if c.memory_bytes <= 0.9 * room)
        is_close = alone[best - 1].memory_bytes > 0.9 * room
        assert auto.batch_size == (roomy if is_close and rates[roomy] >= near else best)
    assert any(c.batch_size & (c.batch_size - 1) for c in found)
    few = package.load("v100-fp32").cost(network(), "auto", samples=100, replicas=4, link_gbps=0.01)
    assert few.batch_size == 25


def test_a_global_batch_is_in_the_largest_micro_batches_that_fit_with_their_gradients() -> None:
    """By hand: each divisor of the batch with its accumulation."""
    asked = {"input_size": 2048, "tokens": 20e6, "tune": "lora:16", "checkpointing": "full"}
    shared = package.compare(
        "llama-3.1-8b", "auto", ["l40s"], global_batch_size=16, replicas=1, **asked
    )
    alone = {
        n: package.load("l40s-vllm").cost("llama-3.1-8b", n, accumulate=16 // n, **asked)
        for n in (1, 2, 4, 8, 16)
    }
    largest = max(n for n, cost in alone.items() if cost.fits)
    assert not alone[8].fits
    assert shared.answers[0].batch_size == largest
    assert shared.answers[0].memory_bytes == alone[largest].memory_bytes
    assert shared.cheapest is not None
    assert shared.cheapest.dollars == alone[largest].options[0].dollars


def test_a_global_batch_without_room_is_told_once_in_its_smallest_split() -> None:
    asked = {"input_size": 4096, "sharding": "fsdp"}
    shared = package.compare(
        "llama-3.1-8b", "auto", ["a10"], global_batch_size=16, replicas=[1, 2, 4], **asked
    )
    assert [c.batch_size for c in shared.answers] == [1, 1, 1]
    four = package.load("a10").cost("llama-3.1-8b", 1, accumulate=4, replicas=4, **asked)
    assert shared.answers[-1].memory_bytes == four.memory_bytes
    (told,) = (line for line in lines_of(costs_lines(shared)) if line.startswith("DOES NOT FIT"))
    sizes = f"{four.memory_bytes / 2**30:.1f} GiB of {(four.available_bytes or 0) / 2**30:.1f} GiB"
    one, two = (byte_size(c.memory_bytes) for c in shared.answers[:2])  # more is divided among four
    said = f"DOES NOT FIT: 4 x a10 batch 1 ({sizes}; 1 x: {one}; 2 x: {two}); it fits with --"
    assert told.startswith(said)
    ways = re.search(r"; it fits with (.+)", told)
    assert ways
    for way in ways[1].split(", or "):
        options, _, on = way.partition(" on ")
        assert ("--replicas" in options) != bool(on)
        assert package.load("a10").cost("llama-3.1-8b", 1, **asked | question(options)).fits


@pytest.mark.parametrize("asked", [{"global_batch_size": 8}, {"sharding": "fsdp"}])
def test_what_would_fit_names_the_fewest_devices_that_hold_it(asked: dict[str, Any]) -> None:
    """By the question for each number of devices alone."""
    numbers, ask = (1, 2, 4, 8), {"input_size": 4096}
    size = "auto" if "global_batch_size" in asked else 8
    found = package.compare("llama-3.1-8b", size, ["h100"], replicas=numbers, **ask | asked)
    (told,) = (line for line in lines_of(costs_lines(found)) if line.startswith("DOES NOT FIT"))
    ways = re.findall(r"(--[^;]+?) on (\d)", told.rpartition("it fits with")[2])
    assert len(ways) > 1
    whole = {name: value for name, value in asked.items() if name != "global_batch_size"}
    size, gpu = found.answers[0].batch_size, package.load("h100-vllm")
    for options, fewest in ways:
        more = {"batch_size": size, **ask, **whole, **question(options.partition(" (")[0])}
        fits = [gpu.cost("llama-3.1-8b", **more | {"replicas": k}).fits for k in numbers]
        assert numbers[fits.index(True)] == int(fewest)


def question(options: str) -> dict[str, Any]:
    """The arguments of options of the command line; four devices unless they say another number."""
    words = iter(options.split())
    given = {word[2:].replace("-", "_"): next(words) for word in words}
    return {"replicas": 4} | {k: int(v) if v.isdigit() else v for k, v in given.items()}


def test_devices_without_room_say_without_which_checkpointing() -> None:
    asked = {"input_size": 4096, "checkpointing": ["none", "full"]}
    costs = package.compare("llama-3.1-8b", 1, ["a10", "h100-vllm"], replicas=1, **asked)
    told = [line for line in lines_of(costs_lines(costs)) if line.startswith("DOES NOT FIT")]
    for cost in costs.answers:
        way = {"none": "without", "full": "with full"}[cost.checkpointing or "none"]
        of_way = "".join(n for n in told if n.startswith(f"DOES NOT FIT {way} checkpointing: "))
        assert (f"1 x {short_name(cost.device)} batch 1 (" in of_way) == (cost.fits is False)
    assert "--checkpointing" not in "".join(told)  # both were asked for


FIGURES = (
    "iteration_ms",
    "total_s",
    "dollars",
    "memory_bytes",
    "fits",
    "link",
    "link_gbps",
    "largest_batch",
)


@given(
    replicas=st.lists(st.sampled_from([1, 2, 4, 8, 16, 32]), min_size=2, max_size=4, unique=True),
    sharding=st.sampled_from(["none", "zero1", "fsdp", "hybrid"]),
    link=st.sampled_from([None, 2.0, 50.0, 4000.0]),
    size=st.sampled_from([1, 2, "auto"]),
    whole=st.sampled_from([None, 128]),
    is_decoder=st.booleans(),
)
@settings(max_examples=12, deadline=None)
def test_a_row_has_the_figures_of_its_own_question(
    replicas: list[int],
    sharding: str,
    link: float | None,
    size: Any,
    whole: int | None,
    is_decoder: bool,
) -> None:
    """Alone it is asked with the batches of an update in place of a global batch, and where a given link
    is one between machines beside a number of devices that needs several.
    """
    if not is_decoder and sharding == "hybrid":
        sharding = "zero2"
    of, model = ("llama-3.2-1b", "h100-vllm") if is_decoder else (network(), "v100-fp32")
    asked = {"sharding": sharding, "link_gbps": link, "optimizer": "adam", "price_per_hour": 1}
    asked |= {"input_size": 1024, "tokens": 1e8} if is_decoder else {"samples": 100_000}
    if whole is None:
        (both,) = several_of(package.load(model).cost(of, size, replicas=replicas, **asked))
        rows = [(both, option) for option in both.options]
    else:
        about = {"replicas": replicas, "global_batch_size": whole}
        rows = [
            (c, c.options[0])
            for c in several_of(package.load(model).cost(of, size, **about, **asked))
        ]
    assert sorted(o.devices for _, o in rows) == sorted(replicas)
    for cost, option in rows:
        k = option.devices
        beside = (k, 64) if max(replicas) > 8 and link else (k,)
        about = {"replicas": beside, "accumulate": cost.accumulate}
        given_size = size if whole is None else option.batch_size
        alone = package.load(model).cost(of, given_size, **about, **asked).option(k)
        assert [getattr(option, n) for n in FIGURES] == [getattr(alone, n) for n in FIGURES]


def several_of(found: Any) -> list[Any]:
    """The answers of each batch."""
    return [*getattr(found, "answers", [found])]


@pytest.mark.parametrize(
    ("model", "sharding"),
    [("a100-sxm-80gb", "none"), ("h100-vllm", "none"), ("h100-vllm", "hybrid")],
)
def test_the_network_that_is_assumed_can_be_given(model: str, sharding: str) -> None:
    """Beside two machines of eight the proposed speed of a GPU's link changes no row, of any update."""
    is_decoder = model == "h100-vllm"
    of: Any = "llama-3.2-1b" if is_decoder else network()
    asked: dict[str, Any] = {"replicas": (8, 16), "sharding": sharding, "price_per_hour": 1}
    asked |= (
        {"input_size": 1024, "tokens": 1e8, "batch_size": 1} if is_decoder else {"batch_size": 64}
    )
    model_of = package.load(model)
    (whole,) = {o.link_gbps for o in model_of.cost(of, **asked).options if o.devices == 16}
    for update in ({}, {"accumulate": 2}, {"global_batch_size": 2048}):
        usual, given_one = (
            [
                o
                for c in several_of(model_of.cost(of, **asked, **update, link_gbps=gbps))
                for o in c.options
            ]
            for gbps in (None, (whole or 0.0) / 8)
        )
        assert [o.iteration_ms for o in usual] == pytest.approx([o.iteration_ms for o in given_one])
        assert [o.link for o in given_one] == [usual[0].link, None]


def test_of_choices_that_cost_the_same_the_smallest_update_is_the_cheapest() -> None:
    """By hand: 2,048 samples for 1 % less than 512 are no reason for another update; 3 % less are one."""

    cost = package.load("rtx-4090-amp").cost(network(), 8, samples=1000)
    known = cost.options[0], Choice.of(cost, cost.options[0])

    def of(usd: float, devices: int) -> tuple[TrainingPrediction, Choice]:
        option, choice = known
        made = replace(option, dollars=usd, dollars_interval=None, devices=devices)
        return made, replace(choice, dollars=usd, devices=devices, in_all=256 * devices)

    few, many, dear = of(27.62, 2), of(27.35, 8), of(28.20, 1)
    options = [many, few, dear]
    assert smallest_update(many[0], options, TrainingLimits()) is few[0]
    assert smallest_update(many[0], [many, dear], TrainingLimits()) is many[0]
    slow = replace(few[0], total_s=1e9), few[1]
    within = TrainingLimits(max_hours=24.0)
    assert smallest_update(many[0], [many, slow], within) is many[0], "it does not keep the limit"
    elsewhere = few[0], replace(few[1], device="h100")
    assert smallest_update(many[0], [many, elsewhere], TrainingLimits()) is many[0]
    assert smallest_update(None, [], TrainingLimits()) is None


@pytest.mark.parametrize(
    "varied",
    [
        {"checkpointing": ["none", "full"]}, {"precision": "best"}, {"launch": "compiled"},
        {"precision": "amp", "channels_last": True}, {"global_batch_size": 512, "replicas": [1, 4]},
    ],
)  # fmt: skip
def test_a_row_says_how_it_runs(varied: dict[str, Any]) -> None:
    """Asked as its own columns say, each row is the same again; no two rows say the same."""
    question = "precision", "launch", "channels_last", "checkpointing", "accumulate", "batch_size"
    model = package.load("rtx-4090")
    rows = model.cost("timm:resnet50", [32, 64], samples=10_000, **varied).rows()
    said = [tuple(row[name] for name in ("devices", *question)) for row in rows]
    assert len({*said}) == len(rows) >= 2
    for row in rows:
        asked = {name: row[name] for name in question}
        again = model.cost("timm:resnet50", samples=10_000, replicas=row["devices"], **asked)
        assert again.best.iteration_ms == pytest.approx(row["iteration_ms"], rel=1e-9)
        assert again.memory_bytes == row["memory_bytes"]
