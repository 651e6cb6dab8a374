"""The same training on several devices: against each device asked alone, and prices by hand."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from unittest.mock import Mock, call

import pytest

import lolat as package
from lolat.api.choosing import devices, with_a_price
from lolat.errors import InputError
from lolat.hardware.gpus import find_gpu, usable_bytes
from lolat.report.cost import cost_lines, cost_parts, costs_lines, costs_parts
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
    assert [c.device for c in found.answers] == ["h100-vllm"]
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
    assert "no amp units" in found.left_out["p4-fp32"]
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


def test_a_number_of_gpus_that_does_not_hold_the_training_is_never_recommended() -> None:
    """With the largest batch of eight, among which the training is sharded, it does not fit on two."""
    asked = {"input_size": 4096, "sharding": "fsdp", "tokens": 200e6}
    most = package.load("b200-vllm").cost("llama-3.1-8b", 1, replicas=8, **asked).largest_batch
    assert most is not None
    found = package.compare("llama-3.1-8b", most, ["b200-vllm"], **asked)
    (cost,) = found.answers
    assert {o.devices: (o.memory_bytes or 0) <= (cost.available_bytes or 0) for o in cost.options} == {
        1: False, 2: False, 8: True
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
    assert auto.batch_size == brute_force({n: c.best.samples_per_s for n, c in alone.items()})
    assert auto.batch_size < most // 4
    assert auto.memory_bytes < 0.9 * (auto.available_bytes or 0)
    assert auto.best == alone[auto.batch_size].best


def test_an_automatic_batch_leaves_a_tenth_of_the_memory_if_that_is_as_fast() -> None:
    """Two GPUs over a slow network: the larger the batch, the faster. Each batch is asked for alone."""
    model, graph = package.load("rtx-4090-amp"), package.read("timm:resnet18")
    ask: dict[str, Any] = {"replicas": 2, "link_gbps": 1}
    found = [model.cost(graph, "auto", memory_gib=gib, **ask) for gib in (2, 3, 4, 5, 6, 7)]
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


def test_all_gpus_with_a_price_once(prices: str) -> None:
    models, left_out = devices(["all"])
    assert left_out == {}
    assert "rtx-4090-amp-compiled" not in {m.label for m in models}
    compiled = {m.label for m in devices(["all"], launch="compiled")[0]}
    assert {"rtx-4090-amp-compiled", "a100-fp32"} <= compiled
    assert "rtx-4090-amp" not in compiled
    assert {"a100-fp32", "rtx-4090-amp", "epyc-2t"} <= {m.label for m in models}
    assert not any(m.label.startswith("justus") for m in models)
    priced, unpriced = with_a_price(models, prices)
    assert {m.label for m in priced} == {"a100-fp32", "v100-fp32"}
    assert {"h100-fp32", "t4-fp32", "rtx-4090-amp"} <= set(unpriced)
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
        "a100-fp32", "v100-fp32", "a100-sxm-80gb", "h100-pcie", "rtx-a6000"
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
    assert {"rtx-5090-amp", "rtx-pro-6000"} <= {cost.device for cost in every.answers}
    Path(prices).write_text(f"{PRICES.splitlines()[0]}\nx,5,RTXPro6000,1\n")
    lasts = package.compare(network(), on="all", precision="amp", **ask).channels_last
    card, eager = package.load("rtx-pro-6000"), {"precision": "amp", "launch": "eager"}
    last, first = (
        card.cost(network(), 64, samples=1000, channels_last=way, **eager).best.iteration_ms
        for way in (True, None)
    )
    assert lasts == {"rtx-pro-6000": pytest.approx(last / first)}
    named = package.compare(network(), on=["rtx-5090-amp", "rtx-pro-6000"], **ask)
    assert {cost.launch for cost in named.answers} == {"eager", "compiled"}


@pytest.mark.parametrize(
    ("names", "every", "labels"),
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
    names: list[str], every: bool, labels: list[str]
) -> None:
    models, _ = devices(names, every=every)
    assert [m.label for m in models] == labels


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


def test_the_launch_is_asked_of_each(prices: str) -> None:
    eager, compiled = (
        compared(["rtx-4090-amp-compiled"], "amp", 8, launch).answers[0]
        for launch in ("eager", None)
    )
    assert (eager.launch, compiled.launch) == ("eager", "compiled")


def test_a_gpu_that_was_measured_so_answers_for_its_launch() -> None:
    names = ("rtx-4090-amp-compiled", "rtx-4090-amp")
    found = compared(names, "amp", 8, "eager")
    assert [c.device for c in found.answers] == ["rtx-4090-amp"]


def test_data_in_tokens_of_a_network_that_reads_tokens() -> None:
    """A sample is a sequence: 1,000 tokens are eight of 128, the last one in part."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 4))
    (cost,) = package.compare(
        net, 2, "v100-fp32", input_size={"sequence_length": 128}, tokens=1000, precision="fp32"
    ).answers
    assert (cost.samples, cost.options[0].iterations) == (8, 4)


def test_limits_without_data_say_how_many_samples_they_buy() -> None:
    """US$ 12 at 3 an hour are 4 hours; a limit of 2 hours is less."""
    model = package.load("p4-fp32")
    for limits, hours in (({"max_dollars": 12}, 4), ({"max_dollars": 12, "max_hours": 2}, 2)):
        found = model.cost(network(), 8, price_per_hour=3, **limits).options[0]
        assert found.within_limits == int(3600 * hours * found.samples_per_s)
    assert model.cost(network(), 8).options[0].within_limits is None


def test_an_unknown_price_keeps_no_limit_of_money(prices: str) -> None:
    """A V100 costs US$ 2 an hour: 1 buys half an hour, whatever 5 hours allow; the P4 has no price."""
    limits = {"max_hours": 5.0, "max_dollars": 1.0}
    for given in (limits, {"max_dollars": 1.0}):
        found = compared(("v100-fp32", "p4-fp32"), "fp32", 64, prices=prices, replicas=1, **given)
        known, unknown = (cost.options[0] for cost in found.answers)
        assert known.within_limits == int(1800 * known.samples_per_s)
        assert (unknown.rented, unknown.within_limits, unknown.within_interval) == (None,) * 3
        printed = "\n".join(lines_of(costs_lines(found)))
        row = next(line for line in printed.splitlines() if line.startswith("p4 "))
        assert " no price" in row
        assert "samples" not in row
        assert "No price of p4 in " in printed
    free = package.load("p4-fp32").cost(network(), 64, price_per_hour=0, **limits).options[0]
    assert free.within_limits == int(5 * 3600 * free.samples_per_s)


def test_with_data_a_row_without_a_price_is_not_within_the_money(prices: str) -> None:
    """Of 10,000 samples the P4's hours are within the limit, and nobody knows its dollars."""
    found = compared(
        ("v100-fp32", "p4-fp32"), "fp32", 64, prices=prices, replicas=1, samples=10_000,
        max_hours=9, max_dollars=9,
    )  # fmt: skip
    _, table, _, _ = costs_parts(found)
    (cells,) = (row for row in table.cells if row[0] == "p4")
    assert [cell for cell in cells if cell in ("yes", "likely", "NO", "no price")] == [
        "yes", "no price"
    ]  # fmt: skip
    assert {choice.device for choice in (found.cheapest, found.fastest) if choice} == {"v100-fp32"}


@pytest.mark.parametrize("data", [{}, {"samples": 10_000}])
@pytest.mark.parametrize("limits", [{"max_dollars": 5}, {"max_dollars": 5, "max_hours": 10}])
def test_a_limit_of_money_is_refused_where_no_device_has_a_price(
    prices: str, data: dict[str, int], limits: dict[str, int]
) -> None:
    device, given = package.load("p4-fp32"), {"prices": prices, **data, **limits}
    asked_so = (
        lambda: device.cost(network(), 64, **given),
        lambda: device.cost(network(), [8, 64], **given),
        lambda: compared(("p4-fp32", "t4-fp32"), "fp32", 64, **given),
    )
    for ask in asked_so:
        with pytest.raises(
            InputError, match=r"max_dollars 5: no price of p4.* in .*prices\.csv"
        ) as error:
            ask()
        assert error.value.code == "no-price"
        assert "price_per_hour" in str(error.value)
    assert device.cost(network(), 64, prices=prices, **data, max_hours=10).prices is None


def test_a_comparison_never_takes_pure_half_precision_unasked() -> None:
    """Files measured in float16 train in AMP; asked for, float16 is answered."""
    asked = {"batch_size": 128, "samples": 10**6, "on": ["h100", "a100"]}
    found = package.compare("timm:resnet50", **asked)
    assert {c.precision for c in found.answers} <= {"fp32", "tf32", "amp"}
    assert {c.channels_last for c in found.answers if c.precision == "amp"} == {True}
    usual = package.compare("timm:resnet50", precision="amp", **asked)
    assert {(c.precision, c.channels_last) for c in usual.answers} == {("amp", False)}
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
    """By the device asked alone; a graph has to save a tenth of what compiled code leaves, too."""
    found = asked(prices, "fp32", batch_size)
    printed = [*lines_of(costs_lines(found))]
    for name, value in ("cheapest", "dollars"), ("fastest", "total_s"):
        best = getattr(found, name)
        alone: dict[str, Any] = {
            launch: package.load(best.device)
            .run_as("fp32", launch)
            .cost(network(), batch_size, 10_000, replicas=best.devices, prices=prices)
            .options[0]
            for launch in ("compiled", "graph")
        }
        expected, least = None, getattr(best, value)
        for launch, option in alone.items():
            if getattr(option, value) <= 0.9 * least:
                expected, least = launch, getattr(option, value)
        one = found.in_launch.get(name)
        assert (one and one.launch) == expected
        (at,) = (n for n, x in enumerate(printed) if x.startswith(f"{name.title()}: "))
        line = printed[at + 1]
        is_told = one is not None and (name == "cheapest" or best != found.cheapest)
        assert line.startswith("  with --launch") == is_told
        if is_told:
            share = 1 - alone[one.launch].total_s / best.total_s
            words = f"with --launch {one.launch}: {duration(alone[one.launch].total_s)}"
            assert words in line
            assert f", {100 * share:.2g} % less" in line


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
    assert told.startswith(f"DOES NOT FIT: up to 4 x a10 batch 1 ({sizes}); it would with --")


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
        offered = (
            f"channels last takes {last / first:.2f} times as long on rtx-4090 (--channels-last"
        )
        assert (offered in printed) == is_chosen
        assert ("Convolutions" in printed) == is_chosen


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


def test_ways_to_checkpoint_are_compared_as_each_alone() -> None:
    about = {"input_size": 4096, "sharding": "fsdp", "tokens": 2e8, "accumulate": 8}
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
    assert f"Cheapest: {best[1]} x h100-vllm in amp, {best[0]} checkpointing, " in printed
    assert not options.keys() & {("none", 2)}


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
        expected = good | {*of_each.items()}
        lines = [*lines_of(costs_lines(found))]
        start = lines.index("") + 2
        shown = [line.split() for line in lines[start : lines.index("", start)]]
        assert {(row[0], int(row[2])) for row in shown} == {
            (d.removesuffix("-fp32"), k) for d, k in expected
        }
        over = len(rows) - len(within)
        (told,) = (line for line in lines if line.startswith("Left out: "))
        assert f"{len(within) - len(expected)} rows slower and dearer than another" in told
        assert (f", {over} rows beyond the limits" in told) == bool(over)
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


def test_each_limit_has_a_column_of_its_own(prices: str) -> None:
    """A row that keeps the hours and not the dollars says which."""
    found = package.load("v100-fp32").cost(
        network(), 64, 10**7, prices=prices, max_hours=10**4, max_dollars=1e-3
    )
    head, row, *_ = lines_of([cost_parts(found)[1]])
    assert re.search(r"<= 10000 h +<= \$0.001$", head)
    assert re.search(r" yes +NO$", row)


def test_what_a_budget_buys_without_data_has_its_hours_and_its_price() -> None:
    """US$ 60 at 3 an hour are 20 hours."""
    found = package.load("p4-fp32").cost(network(), 8, price_per_hour=3, max_dollars=60)
    lines = [*lines_of(cost_lines(found))]
    assert any(
        line.startswith("Most within $60: 1 x p4, ") and " in 20 h" in line for line in lines
    )
    assert any(line.startswith("Price by the second: the price given") for line in lines)


def test_what_buys_nearly_as_much_data_far_sooner_is_named() -> None:
    """Two devices of the one price an hour have nearly half the time and the same data."""
    found = package.load("p4-fp32").cost(
        network(), 8, replicas=[1, 2], price_per_hour=3, max_dollars=60, link_gbps=10**5
    )
    one, two = (option.within_limits or 0 for option in found.options)
    assert one / 1.1 <= two < one
    (line,) = (n for n in lines_of(cost_lines(found)) if n.startswith("Most within $60: 1 x p4, "))
    assert re.search(r" in 20 h.*; sooner, nearly as much: 2 x p4, .* in 10 h", line)


def test_rows_of_different_updates_name_the_option_that_compares_equal_ones(prices: str) -> None:
    told = "An update is of 64 to 128 samples: --global-batch-size N compares equal ones."
    assert told in lines_of(costs_lines(asked(prices, "fp32")))
    one = compared(GPUS, "fp32", 64, samples=10_000, prices=prices, replicas=1)
    assert not any("An update is of" in line for line in lines_of(costs_lines(one)))


def test_a_recipe_without_runs_is_no_device_without_training_steps() -> None:
    """LoRA on an H100: runs were published on that GPU, but none with adapters."""
    for tune, mark in (("full", ""), ("lora:16", "?")):
        found = package.compare(
            "llama-3.1-8b", 1, ["h100-vllm"], input_size=4096, tune=tune, sharding="fsdp",
            replicas=8, tokens=1e8, checkpointing="full",
        )  # fmt: skip
        lines = [*lines_of(costs_lines(found))]
        (row,) = (line for line in lines if line.startswith("h100-vllm"))
        assert set(row.split()[-1]) - {"*"} & set("~!?") == set(mark)
        assert any(line.startswith("? ") for line in lines) == bool(mark)
