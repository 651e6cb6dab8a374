"""The same training on several devices: against each device asked alone, and prices by hand."""

from __future__ import annotations

import os
import re
from itertools import takewhile
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

import lolat as package
from lolat.api.choosing import devices, with_a_price
from lolat.errors import InputError
from lolat.hardware.gpus import usable_bytes
from lolat.hardware.prices import Offer, Prices
from lolat.report.cost import cost_lines, costs_lines
from lolat.report.tables import lines_of
from lolat.units import digits, dollars, duration
from tests.training.several import GPUS, PRICES, asked, compared, network


def test_each_device_is_in_its_fastest_precision_and_layout(prices: str) -> None:
    found = asked(prices)
    assert [c.device for c in found.answers] == [*GPUS]
    for cost in found.answers:
        times = {}
        for way in (("fp32", False), ("tf32", False), ("amp", False), ("amp", True)):
            try:
                model = package.load(cost.device).run_as(way[0], channels_last=way[1])
                times[way] = model.cost(network(), 64, 10_000).options[0].iteration_ms
            except InputError:
                continue
        assert (cost.precision, bool(cost.channels_last)) == min(times, key=lambda way: times[way])
        assert cost.options[0].iteration_ms == pytest.approx(min(times.values()))
    assert {c.device: c.precision for c in found.answers}["p4-fp32"] == "fp32"


def test_a_gpu_without_bfloat16_is_left_out_of_a_decoders_comparison() -> None:
    found = package.compare("llama-3.1-8b", 1, ["t4", "h100"], input_size=512, tune="lora:16")
    assert [(c.device, c.profile) for c in found.answers] == [("h100", "h100-vllm")]
    assert "no bfloat16" in found.left_out["t4"]
    with pytest.raises(InputError, match="no bfloat16"):
        package.compare("llama-3.1-8b", 1, ["t4", "p100"], input_size=512)


def test_as_many_as_an_instance_has_and_its_price(prices: str) -> None:
    found = asked(prices, "fp32")
    numbers = {c.device: [o.devices for o in c.options] for c in found.answers}
    assert numbers == {"v100-fp32": [1, 2], "a100-fp32": [1], "p4-fp32": [1]}
    by_hand = {}
    for cost in found.answers:
        for option in cost.options:
            dollars = {"v100-fp32": 2, "a100-fp32": 3}.get(cost.device)
            hourly = None if dollars is None else dollars * option.devices
            assert option.dollars == (
                None if hourly is None else pytest.approx(hourly * (option.total_s or 0) / 3600)
            )
            by_hand[cost.device, option.devices] = option.total_s, option.dollars
    paid = {key: pair for key, pair in by_hand.items() if pair[1] is not None}
    assert found.cheapest is not None
    assert found.fastest is not None
    cheapest = min(paid, key=lambda key: (paid[key][1], paid[key][0]))
    assert (found.cheapest.device, found.cheapest.devices) == cheapest
    fastest = min(by_hand, key=lambda key: by_hand[key][0] or 0.0)
    assert (found.fastest.device, found.fastest.devices) == fastest
    for choice in found.frontier:
        assert not any(t < choice.total_s and d < (choice.dollars or 0) for t, d in paid.values())


def test_prices_from_a_pipe(prices: str) -> None:
    """Which can be read once; the same answers as from the file."""
    read, write = os.pipe()
    os.write(write, Path(prices).read_bytes())
    os.close(write)
    found = [
        package.compare(network(), 8, [*GPUS], precision="fp32", samples=100, prices=p)
        for p in (f"/dev/fd/{read}", prices)
    ]
    os.close(read)
    dollars = [[c.options[0].dollars for c in each.answers] for each in found]
    assert dollars[0] == dollars[1]
    assert any(dollars[0])


def test_who_cannot_answer_is_told(prices: str) -> None:
    found = asked(prices, "amp")
    assert [c.device for c in found.answers] == ["v100-fp32", "a100-fp32"]
    assert "no rate of P4 in amp" in found.left_out["p4-fp32"]
    others = "p4-fp32", "p100-fp32"
    with pytest.raises(InputError, match=r"no device can answer: .*P4.*P100") as error:
        compared(others, "amp", 64)
    assert error.value.code == "no-device"
    with pytest.raises(InputError) as only:
        compared(others[:1], "amp", 64)
    assert only.value.code == "no-precision"


def test_what_does_not_fit_is_never_recommended(prices: str) -> None:
    """By the largest batch of the smallest card: the P4 has 8 GB, the others 32 and 40."""
    small = package.load("p4-fp32").cost(network(), "auto", prices=prices)
    assert small.largest_batch is not None
    found = asked(prices, "fp32", small.largest_batch + 1)
    fits = {c.device: c.fits for c in found.answers}
    assert fits == {"v100-fp32": True, "a100-fp32": True, "p4-fp32": False}
    (lost,) = (c for c in found.answers if c.device == "p4-fp32")
    assert (lost.cheapest, lost.fastest, lost.prices) == (None, None, None)
    assert all(c.device != "p4-fp32" for c in (found.cheapest, found.fastest, *found.frontier) if c)


def test_all_gpus_with_a_price_once(prices: str) -> None:
    models, left_out = devices(["all"])
    assert left_out == {}
    assert "rtx-4090-amp-compiled" not in {m.profile for m in models}
    assert {"a100", "rtx-4090", "epyc-2t"} <= {m.label for m in models}
    compiled = {m.profile for m in devices(["all"], launch="compiled")[0]}
    assert {"rtx-4090-amp-compiled", "a100-fp32"} <= compiled
    assert "rtx-4090-amp" not in compiled
    assert {"a100-fp32", "rtx-4090-amp", "epyc-2t"} <= {m.profile for m in models}
    assert not any(m.label.startswith("justus") for m in models)
    priced, unpriced = with_a_price(models, prices)
    assert {m.label for m in priced} == {"a100", "v100"}
    assert {"h100-fp32", "t4", "rtx-4090"} <= set(unpriced)
    assert not {"epyc-2t", "i7-12700h-compiled"} & set(unpriced)
    assert all("prices.csv" in why for why in unpriced.values())
    Path(prices).write_text(f"{PRICES}x,5,GPU-X,1\n")
    _, unpriced = with_a_price(models, prices)
    assert [name for name, why in unpriced.items() if "no times" in why] == ["GPU-X"]
    assert "lolat fit" not in unpriced["GPU-X"]  # no data sheet of it comes along
    cards = "A6000,A100-80GB-SXM,V100,H100-PCIe"  # a V100 of 32 GB was measured
    Path(prices).write_text(PRICES + "".join(f"x,5,{card},1\n" for card in cards.split(",")))
    priced, unpriced = with_a_price(models, prices)
    assert {m.label for m in priced} == {
        "a100", "v100", "a100-sxm-80gb", "h100-pcie", "rtx-a6000"
    }  # fmt: skip
    assert all("no price" in why for why in unpriced.values())
    Path(prices).write_text(
        f"{PRICES}x,5,RTXPro6000,1\n"
    )  # a full card, though a Max-Q was measured
    priced, _ = with_a_price(models, prices)
    assert "rtx-pro-6000" in {m.label for m in priced}
    assert not any(m.file.product.endswith("Max-Q") for m in priced)


def test_a_compiled_profile_is_compared_eager_where_all_are_asked(prices: str) -> None:
    Path(prices).write_text(f"{PRICES}x,5,RTX5090,1\nx,5,RTXPro6000,1\n")
    ask = {"batch_size": 64, "samples": 1000, "prices": prices}
    every = package.compare(network(), on="all", **ask)
    assert {cost.launch for cost in every.answers} == {"eager"}
    labels = {cost.device for cost in every.answers}
    assert {"rtx-5090", "rtx-pro-6000"} <= labels
    spelled = package.compare(network(), on="all, rtx-5090-amp", **ask)  # as in a list
    assert {cost.device for cost in spelled.answers} == labels
    assert {cost.launch for cost in spelled.answers} == {"eager"}
    Path(prices).write_text(f"{PRICES.splitlines()[0]}\nx,5,RTXPro6000,1\n")
    said = lines_of(costs_lines(package.compare(network(), on="all", precision="amp", **ask)))
    card, eager = package.load("rtx-pro-6000"), {"precision": "amp", "launch": "eager"}
    last = card.cost(network(), 64, samples=1000, channels_last=True, **eager).best
    assert any(f"amp, channels last, {duration(last.total_s or 0.0)}" in str(line) for line in said)
    named = package.compare(network(), on=["rtx-5090-amp", "rtx-pro-6000"], **ask)
    assert {cost.launch for cost in named.answers} == {"eager", "compiled"}


@pytest.mark.parametrize(
    ("names", "every", "profiles"),
    [
        (["a100,rtx-4090"], False, ["a100-fp32", "rtx-4090-amp"]),  # eager, not compiled
        (["rtx-4090"], True, ["rtx-4090-amp"]),
        (["4090"], True, ["rtx-4090-amp"]),
        (["GeForce RTX 4090"], False, ["rtx-4090-amp"]),
        (["rtx-4090-amp-compiled"], True, ["rtx-4090-amp-compiled"]),
        # In capitals or not, with hyphens or without; each model once.
        (["A100,RTX4090,a100-FP32", "V100-fp32", "Rtx-3090"], False,
         ["a100-fp32", "rtx-4090-amp", "v100-fp32", "rtx-3090-amp"]),
    ],
)  # fmt: skip
def test_the_names_of_gpus_name_their_models(
    names: list[str], every: bool, profiles: list[str]
) -> None:
    models, _ = devices(names, every=every)
    assert [m.profile for m in models] == profiles
    assert {m.label for m in models} <= {*",".join(names).split(",")}


def test_a_card_without_a_model_is_that_of_its_data_sheet() -> None:
    models, left_out = devices(["a30"])
    assert ([m.label for m in models], left_out) == (["a30"], {})


def test_each_device_is_told_as_it_is_asked(prices: str) -> None:
    told = Mock()
    compared(GPUS, None, 64, on_progress=told, samples=100, prices=prices)
    assert told.mock_calls == [call(n, 3, name) for n, name in enumerate(GPUS, 1)]


def test_no_more_memory_is_taken_than_is_asked(tmp_path: Path) -> None:
    """Of cards of 32 and 80 GiB, asked for 40: one is left out, the other has the largest batch of 40."""
    h100, path = package.load("h100-fp32"), tmp_path / "p.csv"
    path.write_text(f"{PRICES}h,9,H100,1\n")
    names = "v100-fp32", "h100-fp32"
    found = compared(names, "fp32", "auto", memory_gib=40, prices=str(path))
    (answer,) = found.answers
    assert answer.device == "h100-fp32"
    most = answer.largest_batch or 0
    fits, more = (h100.cost(network(), n).memory_bytes for n in (most, most + 1))
    assert fits <= usable_bytes(40) < more
    alone = h100.cost(network(), "auto", prices=str(path), memory_gib=40)
    assert alone.batch_size == answer.batch_size
    assert found.left_out == {"v100-fp32": "less than 40 GiB of memory"}


def test_two_models_of_one_gpu_that_run_alike_are_one_answer() -> None:
    names = ("rtx-pro-6000-amp-compiled", "rtx-pro-6000-bf16-compiled")
    found = compared(names, "amp", 8)
    assert [c.device for c in found.answers] == [names[0]]


def test_a_gpu_that_was_measured_so_answers_for_its_launch() -> None:
    names = ("rtx-4090-amp-compiled", "rtx-4090-amp")
    found = compared(names, "amp", 8, "eager")
    assert [c.profile for c in found.answers] == ["rtx-4090-amp"]


def test_data_in_tokens_of_a_network_that_reads_tokens() -> None:
    """A sample is a sequence: 1,000 tokens are eight of 128, the last one in part."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 4))
    (cost,) = package.compare(
        net, 2, "v100-fp32", input_size={"sequence_length": 128}, tokens=1000, precision="fp32"
    ).answers
    assert (cost.samples, cost.options[0].iterations) == (8, 4)


def test_a_comparison_never_takes_pure_half_precision_unasked() -> None:
    """Files measured in float16 train in AMP; asked for, float16 is answered."""
    asked = {"batch_size": 128, "samples": 10**6, "on": ["h100", "a100"]}
    found = package.compare("timm:resnet50", **asked)
    assert {c.precision for c in found.answers} <= {"fp32", "tf32", "amp"}
    assert {c.channels_last for c in found.answers if c.precision == "amp"} == {True}
    usual = package.compare("timm:resnet50", precision="amp", **asked)
    assert usual.rows() == found.rows(), "the same in the precision that the default takes"
    pure = package.compare("timm:resnet50", precision="fp16", **asked)
    assert {c.precision for c in pure.answers} == {"fp16"}
    assert all(any("pure float16: " in w for w in c.warnings) for c in pure.answers)


def test_channels_last_train_as_nvidia_published() -> None:
    """ResNet-50 on an A100 80 GB, batch 256, mixed precision: 2,470 images a second with channels last."""
    ask = {"optimizer": "momentum", "replicas": 1}
    (cost,) = package.compare("timm:resnet50", 256, "a100-sxm-80gb", **ask).answers
    alone = package.load("a100-sxm-80gb").cost("timm:resnet50", 256, precision="best", **ask)
    for found in (cost, alone):
        assert found.options[0].samples_per_s == pytest.approx(2470, rel=0.1)
        assert (found.precision, found.channels_last) == ("amp", True)


def test_the_fastest_says_how_much_it_gains_on_the_cheapest() -> None:
    found = package.compare("timm:resnet50", 64, ["a100", "v100", "t4"], samples=10**6)
    (line,) = (x for x in lines_of(costs_lines(found)) if x.startswith("Fastest"))
    cheap, fast = found.cheapest, found.fastest
    assert cheap is not None is not fast
    faster, dearer = cheap.total_s / fast.total_s, (fast.dollars or 0) / (cheap.dollars or 1)
    assert faster > 1
    assert f"{faster:.3g} times as fast as the cheapest, for {dearer:.3g} times the price" in line
    (row,) = (
        r for r in found.rows() if r["devices"] == cheap.devices and r["dollars"] == cheap.dollars
    )
    assert f"({dollars(row['dollars_low'])} .. {dollars(row['dollars_high'])})" in repr(found)


@pytest.mark.parametrize("batch_size", [1, 512])
def test_a_row_is_host_bound_if_a_faster_host_shortens_it(prices: str, batch_size: int) -> None:
    found = asked(prices, "fp32", batch_size)
    for cost in found.answers:
        alone = package.load(cost.device).run_as("fp32")
        quick, slow = (
            alone.run_as(host_us=us).cost(network(), batch_size).options[0].iteration_ms
            for us in (30, 40)
        )
        assert cost.host_bound == (quick < 0.9 * slow) == (batch_size == 1)


@pytest.mark.parametrize("batch_size", [1, 64, 512])
def test_another_launch_is_offered_where_it_saves_a_tenth(prices: str, batch_size: int) -> None:
    """The best of all devices and numbers of them, each asked alone in each launch, by brute force.

    A graph has to save a tenth of what compiled code leaves, too. What is named the cheapest in a launch
    costs no more than what is named the fastest in it.
    """
    found = asked(prices, "fp32", batch_size)
    printed = [*lines_of(costs_lines(found))]
    every: dict[str, list[tuple[str, Any]]] = {
        launch: [
            (cost.device, option)
            for cost in found.answers
            for option in package.load(cost.device)
            .run_as("fp32", launch)
            .cost(
                network(),
                batch_size,
                10_000,
                replicas=[o.devices for o in cost.options],
                prices=prices,
            )
            .options
        ]
        for launch in ("compiled", "graph")
    }
    for name, value in ("cheapest", "dollars"), ("fastest", "total_s"):
        best = getattr(found, name)
        expected, least = None, getattr(best, value)
        for launch, options in every.items():
            known = [o for o in options if getattr(o[1], value) is not None]
            first = min(known, key=lambda one: getattr(one[1], value))
            if getattr(first[1], value) < 0.9 * least:
                expected, least = (launch, *first), getattr(first[1], value)
        one = found.better_launch.get(name)
        is_both = found.fastest == found.cheapest
        begin = "Cheapest and fastest: " if is_both else f"{name.title()}: "
        (at,) = (n for n, x in enumerate(printed) if x.startswith(begin))
        has_clauses = name == "cheapest" or not is_both
        below = printed[at + 1 :] if has_clauses else []
        clauses = takewhile(lambda x: x.startswith("  "), below)
        line = next((x for x in clauses if x.startswith("  with --launch")), "")
        is_told = one is not None and (name == "cheapest" or best != found.cheapest)
        assert bool(line) == is_told
        assert (one is None) == (expected is None)
        if one is None or expected is None:
            continue
        launch, device, option = expected
        assert (one.launch, one.device, one.devices) == (launch, device, option.devices)
        assert getattr(one, value) == pytest.approx(least)
        if is_told:
            is_other = (device, option.devices) != (best.device, best.devices)
            which = f"{option.devices} x {device.removesuffix('-fp32')}, " * is_other
            saved = f"{100 * (1 - least / getattr(best, value)):.2g} %"
            less = f"{saved} cheaper" if name == "cheapest" else f"{saved} less time"
            assert f"with --launch {launch}: {which}{duration(option.total_s)}" in line
            assert line.partition(";")[0].endswith(f", {less}")


@pytest.mark.parametrize(
    "about", [{"batch_size": 64}, {"batch_size": 32, "global_batch_size": 512}]
)
def test_the_best_in_another_launch_is_that_of_the_question_with_this_launch(
    about: dict[str, Any],
) -> None:
    """Compiled, an RTX 4090 is cheaper than the RTX 3090 that is the cheapest of the eager ones."""
    size, own = about["batch_size"], {k: v for k, v in about.items() if k != "batch_size"}
    own |= {"on": ["rtx-3090", "rtx-4090"], "samples": 10**6, "replicas": [1, 4]}
    prices = Prices("list", (Offer("a", "RTX3090", 1, 0.5), Offer("b", "RTX4090", 1, 0.74)))
    found = package.compare("timm:resnet50", size, prices=prices, **own)
    compiled = package.compare("timm:resnet50", size, prices=prices, launch="compiled", **own)
    told = found.better_launch["cheapest"]
    assert found.cheapest is not None is not compiled.cheapest
    assert (found.cheapest.device[:8], told.device[:8]) == ("rtx-3090", "rtx-4090")
    assert told.dollars == pytest.approx(compiled.cheapest.dollars)
    assert told.devices == compiled.cheapest.devices
    line = next(x for x in lines_of(costs_lines(found)) if "with --launch compiled" in x)
    close = [x for x in lines_of(costs_lines(compiled)) if x.startswith("  too close")]
    options = (option for cost in compiled.answers for option in cost.options)
    (best,) = (option for option in options if option.dollars == told.dollars)
    low, high = map(dollars, best.dollars_interval or ())
    assert line.split("; ", 2)[1:] == [f"90 % between {low} and {high}", close[0].strip()]


def test_a_layout_that_changes_little_is_neither_chosen_nor_offered() -> None:
    """A ViT has one convolution: channels last gives less than 2 %; of ResNet-50 it gives more."""
    model = package.load("rtx-4090").run_as("amp")
    for name, is_chosen in (("timm:vit_tiny_patch16_224", False), ("timm:resnet50", True)):
        graph = package.read(name)
        first, last = (
            m.cost(graph, 256).options[0].iteration_ms
            for m in (model, model.run_as(channels_last=True))
        )
        assert last < first
        assert (last < 0.98 * first) == is_chosen
        (best,) = package.compare(graph, 256, ["rtx-4090"]).answers
        assert (best.precision, bool(best.channels_last)) == ("amp", is_chosen)
        printed = "\n".join(
            lines_of(costs_lines(package.compare(graph, 256, ["rtx-4090"], precision="amp")))
        )
        assert ("amp, channels last" in printed) == is_chosen
        assert "as long: --channels-last" not in printed


def test_the_cheapest_that_is_sure_and_the_speed_of_loading(prices: str) -> None:
    """One V100 is the cheapest; two of them are half as long, and dearer by their instance."""
    Path(prices).write_text(
        "InstanceType,Price,AcceleratorName,AcceleratorCount\nv,2,V100,1\nw,5,V100,2\n"
    )
    about = {"precision": "fp32", "samples": 10**8, "prices": prices}
    one, two = package.load("v100-fp32").cost(network(), 512, replicas=[1, 2], **about).options
    low, high = ((o.interval_s or (0, 0))[1] / 3600 for o in (two, one))
    limit = ((one.total_s or 0) / 3600 + high) / 2
    assert low < limit < high
    found = package.compare(
        network(), 512, ["v100-fp32"], replicas=[1, 2], max_hours=limit, **about
    )
    lines = [*lines_of(costs_lines(found))]
    (sure,) = (line for line in lines if line.startswith("Cheapest") and "sure:" in line)
    assert "sure: 2 x v100 in fp32" in sure
    assert dollars(two.dollars or 0) in sure
    compiled = package.load("v100-fp32").run_as(launch="compiled")
    fast = compiled.cost(network(), 512, replicas=[1, 2], **about).options
    first, second = (
        f"{digits(k * 512e3 / o.iteration_ms)} samples/s ({digits(k * 512e3 / other.iteration_ms)} with "
        "--launch compiled)"
        for k, o, other in ((1, one, fast[0]), (2, two, fast[1]))
    )
    assert (
        f"Your input pipeline must deliver {first} for the cheapest, {second} for the fastest."
        in [line for line in lines if line.startswith("Your")]
    )
    # Without a price the fastest is the cheapest: one rate, once.
    free = about | {"prices": None, "price_per_hour": 0.0, "replicas": 1}
    lines = [*lines_of(costs_lines(package.compare(network(), 512, ["v100-fp32"], **free)))]
    told = f"Your input pipeline must deliver {first} for the cheapest and fastest."
    assert told in [line for line in lines if line.startswith("Your")]


def test_ways_to_checkpoint_are_compared_as_each_alone() -> None:
    two, eight = Offer("two", "H100-SXM", 2, 6.0), Offer("eight", "H100-SXM", 8, 32.0)
    about: dict[str, Any] = {"input_size": 4096, "sharding": "fsdp", "tokens": 2e8, "accumulate": 8}
    about["prices"] = Prices("list", (two, eight))
    model, ways = package.load("h100-vllm"), ("none", "selective", "full")
    alone = [
        model.cost("llama-3.1-8b", 1, replicas=[2, 8], checkpointing=way, **about) for way in ways
    ]
    found = model.cost("llama-3.1-8b", 1, replicas=[2, 8], checkpointing=ways, **about)
    several = package.compare(
        "llama-3.1-8b", 1, ["h100-vllm"], replicas=[2, 8], checkpointing=ways, **about
    )
    for costs in (found, several):
        assert [c.checkpointing for c in costs.answers] == [*ways]
        assert [c.options for c in costs.answers] == [c.options for c in alone]
    options = {(c.checkpointing, o.devices): o for c in alone for o in c.timed}
    best = min(options, key=lambda key: options[key].dollars or 0)
    assert several.cheapest is not None
    assert (several.cheapest.checkpointing, several.cheapest.devices) == best
    printed = "\n".join(lines_of(costs_lines(several)))
    assert f"Cheapest: {best[1]} x h100 (SXM) in amp, {best[0]} checkpointing, " in printed
    assert not options.keys() & {("none", 2)}


@pytest.mark.parametrize(("way", "size"), [("full", 4), ("full", 8), ("selective", 1)])
def test_less_checkpointing_is_offered_where_it_is_cheaper(way: str, size: int) -> None:
    """By each size of a batch alone: the largest that fits without it, in as large an update."""
    asked: dict[str, Any] = {"input_size": 4096, "tune": "lora:16", "tokens": 2e8, "replicas": 1}
    asked["prices"] = Prices("list", (Offer("one", "H100-SXM", 1, 3.0),))
    found = package.compare("llama-3.1-8b", size, ["h100"], checkpointing=way, **asked)
    model, alone = package.load("h100-vllm"), []
    for one in (16, 8, 4, 2, 1):
        if one <= size:
            about = {"accumulate": size // one, "checkpointing": "none", **asked}
            alone.append((one, model.cost("llama-3.1-8b", one, **about)))
    one, cost = next((one, cost) for one, cost in alone if cost.fits)
    assert cost.best.dollars is not None
    on_one = model.cost("llama-3.1-8b", size, checkpointing=way, **asked)
    share = cost.best.iteration_ms / on_one.best.iteration_ms
    told, compared = (
        [s for s in lines_of(lines) if s.startswith("Without checkpointing")]
        for lines in (cost_lines(on_one), costs_lines(found))
    )
    assert told == compared
    assert len(told) == (share <= 0.9)
    for line in told:
        assert f" {share:.2f} times as long: --checkpointing none" in line
        assert (f" --batch-size {one} --accumulate {size // one} " in line) == (one < size)
        assert dollars(cost.best.dollars) in line


def test_a_long_table_leaves_out_what_no_one_would_take() -> None:
    """All are in the answer; by hand: the frontier, and the cheapest row of each device within a limit."""
    numbers, names = [1, 2, 3, 4, 6, 8], ["a100", "v100", "t4", "p4", "h100"]
    about: dict[str, Any] = {
        "samples": 10**8,
        "replicas": numbers,
        "precision": "fp32",
        "price_per_hour": 2.0,
    }
    for limit in (None, 8.0):
        found: Any = package.compare(network(), 64, names, max_hours=limit, **about)
        rows: list[tuple[str, Any]] = [(c.device, o) for c in found.answers for o in c.options]
        within = [(d, o) for d, o in rows if limit is None or o.interval_s[0] <= 3600 * limit]
        good = {
            (d, o.devices)
            for d, o in within
            if not any(x.total_s < o.total_s and x.dollars < o.dollars for _, x in rows)
        }
        of_each: dict[str, int] = {}
        for d, o in sorted(
            within, key=lambda row: (row[1].total_s > 3600 * (limit or 1e9), row[1].dollars)
        ):
            of_each.setdefault(d, o.devices)
        most = 10 * found.cheapest.dollars
        dear = {(d, o.devices) for d, o in within if o.dollars > most} - good
        kept = good | {*of_each.items()}
        expected = kept - dear
        lines = [*lines_of(costs_lines(found))]
        start = lines.index("precision: fp32") + 2
        rows_shown = lines[start : lines.index("", start)]
        shown = [re.sub(r" \(.*?\)", "", line).split() for line in rows_shown]
        assert {(row[0], int(row[1])) for row in shown} == {
            (d.removesuffix("-fp32"), k) for d, k in expected
        }
        over = len(rows) - len(within)
        (told,) = (line for line in lines if line.startswith("Left out: "))
        assert f"{len(within) - len(kept)} rows slower and dearer than another" in told
        costly = f", {len(kept & dear)} rows at over 10 times the price of the cheapest (all of "
        assert (costly in told) == bool(kept & dear)
        assert (f", {over} rows surely beyond the limits" in told) == bool(over)
        assert len(found.rows()) == len(rows) == 30


def test_each_device_stands_once_in_its_best_precision() -> None:
    """The H100 has a file of float32 and one of float16, which answers in AMP alone."""
    found = package.compare("timm:resnet50", 4, "h100", samples=10**6, replicas=1)
    alone = [
        package.load("h100-fp32").cost("timm:resnet50", 4, 10**6, replicas=1, precision="best"),
        package.load("h100-fp16").cost("timm:resnet50", 4, 10**6, replicas=1, precision="amp"),
    ]
    (one,) = found.answers
    assert one.best.total_s == min(cost.best.total_s or 0.0 for cost in alone)


def test_rows_of_different_updates_name_the_option_that_compares_equal_ones(prices: str) -> None:
    """Behind the best options; one and two devices can share 256 samples."""
    lines = [*lines_of(costs_lines(asked(prices, "fp32")))]
    first = next(n for n, line in enumerate(lines) if line.startswith("Cheapest"))
    told = "Updates differ, 64 to 128 samples; for equal ones --global-batch-size 256, or that of your "
    assert f"{told}recipe, with --batch-size auto" in lines[first : lines.index("")]
    one = compared(GPUS, "fp32", 64, samples=10_000, prices=prices, replicas=1)
    assert not any("Updates differ" in line for line in lines_of(costs_lines(one)))


def test_a_recipe_without_runs_is_no_device_without_training_steps() -> None:
    """LoRA on an H100: runs were published on that GPU, but none with adapters."""
    for tune, mark in (("full", ""), ("lora:16", "?")):
        found = package.compare(
            "llama-3.1-8b", 1, ["h100-vllm"], input_size=4096, tune=tune, sharding="fsdp",
            replicas=8, tokens=1e8, checkpointing="full",
        )  # fmt: skip
        lines = [*lines_of(costs_lines(found))]
        (row,) = (line for line in lines if line.startswith("h100 "))
        assert set(row.split()[-1]) - {"*"} & set("~!?") == set(mark)
        assert any(line.startswith("? ") for line in lines) == bool(mark)


def test_a_frame_says_how_many_machines_are_rented_and_names_profiles_as_load() -> None:
    """Machines have 8 GPUs at most; 4 of the machine with 8 V100 are idle."""
    pytest.importorskip("pandas")
    about = {"samples": 10**6, "replicas": (4, 16)}
    frame = package.compare("timm:resnet50", 64, ["v100", "h100"], **about).frame()
    assert [package.load(name).label for name in frame["profile"]] == [*frame["profile"]]
    words = [*frame["rented"]]
    assert words[0].endswith("8x_v100 (lambda), 4 idle")
    assert words[1].startswith("2 x ")
    assert words[3].startswith("2 x ")
    assert words[2].startswith("4x_H100")
    assert {*frame["precision"]} == {"amp, channels last"}


def test_a_limit_that_is_likely_kept_has_the_interval_of_what_is_limited() -> None:
    found = package.compare(
        "timm:resnet50", 64, ["v100"], samples=10**6, max_dollars=1.0, replicas=1
    )
    (low, high) = found.answers[0].options[0].dollars_interval or (0.0, 0.0)
    most = (low + 2 * high) / 3
    found = package.compare(
        "timm:resnet50", 64, ["v100"], samples=10**6, max_dollars=most, replicas=1
    )
    lines = [*lines_of(costs_lines(found))]
    told = f"; likely: 90 % between {dollars(low)} and {dollars(high)}"
    assert any(line.startswith("Cheapest and fastest within") and told in line for line in lines)
    assert any(
        "likely / unlikely: only the predicted time keeps / misses it" in line for line in lines
    )
    # Beside a limit of hours that is surely kept, and one that is likely kept too.
    first, last = (s / 3600 for s in found.answers[0].options[0].interval_s or (0.0, 0.0))
    for hours, count in ((2 * last, 1), ((first + 2 * last) / 3, 2)):
        found = package.compare(
            "timm:resnet50",
            64,
            ["v100"],
            samples=10**6,
            max_hours=hours,
            max_dollars=most,
            replicas=1,
        )
        ends = f"between {dollars(low)} and {dollars(high)}"
        (line,) = (
            one
            for one in lines_of(costs_lines(found))
            if one.startswith("Cheapest and fastest within")
        )
        assert line.partition("; likely: 90 % ")[2].endswith(ends)
        assert line.count("between ") == count


def test_parts_of_a_global_batch_are_inside_the_measured_range_where_that_costs_no_time() -> None:
    """The sizes are asked one by one."""
    asked: dict[str, Any] = {
        "precision": "amp",
        "samples": 10**6,
        "replicas": 1,
        "global_batch_size": 4096,
    }
    each = {
        n: package.compare("timm:vit_base_patch16_224", n, ["h100"], **asked).answers[0]
        for n in (128, 256, 512, 1024)
    }
    least = 0.98 * each[1024].best.samples_per_s
    able = [n for n, cost in each.items() if cost.in_domain and cost.best.samples_per_s >= least]
    assert able
    assert not each[1024].in_domain
    found = package.compare("timm:vit_base_patch16_224", "auto", ["h100"], **asked).answers[0]
    assert found.batch_size == max(able)
