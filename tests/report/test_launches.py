"""The best of several devices in another layout and launch: every device asked alone in each of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

import lolat
from lolat.device.prediction import Prediction
from lolat.report.best_devices import best_lines
from lolat.report.prediction import table_of_predictions
from lolat.report.tables import lines_of
from lolat.units import digits, milliseconds
from tests.synthetic import one

CARDS = ["rtx-3090", "rtx-4090", "rtx-5090"]
Worth = Callable[[Prediction], float]


def dollars(p: Prediction) -> float:
    return p.dollars_per_million or math.inf


MODES: dict[str, dict[str, dict[str, Any]]] = {
    "--channels-last": {"--channels-last": {"channels_last": True}},
    "--launch": {f"--launch {way}": {"launch": way} for way in ("compiled", "graph")},
}
WORTH: dict[str, Worth] = {"Fastest": lambda p: p.latency_ms, "Cheapest": dollars}


def told_of(found: Any) -> dict[str, list[str]]:
    """The lines on the fastest and the cheapest, also in other modes: name -> lines."""
    lines = [*lines_of(table_of_predictions(found.answers))]
    told = dict[str, list[str]]()
    for name in WORTH:
        told[name] = [x for x in lines if x.startswith(name)]
    return told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on", "about"),
    [(CARDS, {}), (CARDS, {"precision": "amp"}), ([*CARDS, "epyc-2t"], {}), (["h100", "a100"], {})],
)
@pytest.mark.parametrize("size", [64, 1024])
def test_the_best_in_another_layout_or_launch_is_that_of_all_devices(
    on: list[str], about: dict[str, Any], size: int
) -> None:
    """If it saves a tenth; a graph has to save a tenth of what compiled code takes, too."""
    found = lolat.predict("timm:resnet50", on, size, **about)
    for name, worth in WORTH.items():
        own = min(found, key=worth)
        _, *others = told_of(found)[name]
        expected = []
        for modes in MODES.values():
            said, least = "", worth(own)
            for option, asked in modes.items():
                alone = [
                    lolat.load(device).predict(
                        "timm:resnet50", size,
                        **({} if device == "epyc-2t" else {"precision": "best"} | asked | about),
                    )
                    for device in on
                ]  # fmt: skip
                best = min(alone, key=worth)
                if worth(best) < 0.9 * least and not (name == "Fastest" and best.host_bound):
                    least = worth(best)
                    value = milliseconds(least) if name == "Fastest" else f"${digits(least)}"
                    said = f"{name} with {option}: {on[alone.index(best)]}, {value}"
            expected += [said] * bool(said)
        bare = [line.replace("-amp", "") for line in others]
        assert len(bare) == len(expected), (bare, expected)
        for line, said in zip(bare, expected, strict=True):
            assert re.match(rf"{re.escape(said)}\b", line), (line, said)


@pytest.mark.parametrize("option", ["--launch compiled", "--channels-last"])
def test_its_verdict_is_that_of_the_question_with_this_option(option: str) -> None:
    """The same rivals are too close to call; a launch or layout that was asked for is not offered."""
    ask = "timm:resnet50", CARDS, 1024
    about = MODES[option.split()[0]][option]
    for name in WORTH:
        (told,) = (x for x in told_of(lolat.predict(*ask, precision="amp"))[name] if option in x)
        asked, *others = told_of(lolat.predict(*ask, precision="amp", **about))[name]
        assert not [x for x in others if option in x]
        assert len(others) == (option == "--channels-last")  # the launch
        told, asked = (words.replace(" a million samples", "") for words in (told, asked))
        bare, plain = (re.sub(r"(rtx-\d+)[-a-z]+", r"\1", words) for words in (told, asked))
        assert bare.replace(f" with {option}", "") == plain


def test_a_network_without_images_and_one_in_float32_have_no_layout() -> None:
    """torch.channels_last lies images of two dimensions; no layout was timed in float32."""
    product = one("dense", [[1, 512]], [[1, 512]], in_features=512, out_features=512, bias=True)
    for network, about in ((product, {}), ("timm:resnet50", {"precision": "fp32"})):
        found = lolat.predict(network, CARDS, 64, **about)
        assert not [x for lines in told_of(found).values() for x in lines if "--channels" in x]


def test_one_device_and_its_modes_are_offered_no_launch() -> None:
    """One device compares no devices; of CPUs there is no launch to choose."""
    for on in (["rtx-4090"], ["epyc-2t", "epyc-2t-torch"]):
        found = lolat.predict("timm:resnet18", on, [1, 64])
        assert not [x for lines in told_of(found).values() for x in lines if " with --" in x]


def test_the_first_device_is_that_of_the_same_network() -> None:
    """A time is compared with no other network's: the ratios are those of each network asked alone."""
    nets = ["timm:resnet50", "timm:vit_base_patch16_224"]

    def ratios(networks: list[str]) -> list[str]:
        found = lolat.predict(networks, CARDS, [64, 128], precision="amp")
        table, *_ = table_of_predictions(found.answers)
        (column,) = (c for c in table.columns if c.head == "vs. first")  # type: ignore[union-attr]
        return [str(column.value(p)) for p in found]

    both = ratios(nets)
    assert both == [*ratios(nets[:1]), *ratios(nets[1:])]
    assert both.count("1.00x") == 4
    alone = lolat.predict(nets, ["rtx-4090"], 64)
    assert "vs. first" not in "\n".join(lines_of(table_of_predictions(alone.answers)))


@pytest.mark.parametrize("launch", [None, "compiled"])
def test_each_network_has_a_line_on_the_fastest_device(launch: Any) -> None:
    """Where assumed hosts decide it says which, and the fastest of the devices asked with a graph."""
    nets, on = ["timm:resnet18", "timm:vit_base_patch16_224"], ["rtx-4090", "h100"]
    size = 1 if launch is None else 64
    found = lolat.predict(nets, on, size, launch=launch)
    lines = [x for x in told_of(found)["Fastest"] if " with " not in x]
    assert len(lines) == len(nets)
    for net, line in zip(nets, lines, strict=True):
        its = found.filter(lambda p, net=net: p.network == net)
        bound = [p.device for p in its if p.host_bound]
        if not bound:
            assert line.startswith(f"Fastest for {net}: {its.fastest.device}, ")
            continue
        alone = lolat.predict(net, on, size, launch="graph").fastest
        are = f"{', '.join(bound)} {'are' if bound[1:] else 'is'} host-bound"
        graph = f"(--launch graph: {alone.device}, {milliseconds(alone.latency_ms)})"
        assert line == f"Fastest for {net}: not decided, as {are} {graph}"
    assert any("not decided" in line for line in lines)


def test_a_faster_launch_decides_where_a_host_bound_one_would_not() -> None:
    """Eager and compiled, the hosts decide; a graph of each device is faster and needs no host."""
    net, on = "timm:resnet18", ["rtx-4090", "h100"]
    found = lolat.predict(net, on, 1, launch=["eager", "graph"])
    assert {bool(p.host_bound) for p in found if p.launch == "eager"} == {True}
    (line,) = (x for x in told_of(found)["Fastest"] if " with " not in x)
    alone = lolat.predict(net, on, 1, launch="graph").fastest
    assert line.startswith(f"Fastest: {alone.device} graph, {milliseconds(alone.latency_ms)}")
    both = lolat.predict(net, on, 1, launch=["eager", "compiled"])
    (line,) = (x for x in told_of(both)["Fastest"] if " with " not in x)
    assert line.startswith(
        "Fastest: not decided, as rtx-4090 compiled, h100 compiled are host-bound"
    )
    assert f"(--launch graph: {alone.device}, " in line


@pytest.mark.parametrize("precision", [None, "amp"])
def test_several_launches_are_compared_as_several_precisions_are(precision: str | None) -> None:
    """Each row takes what its launch alone takes, and the fastest is named by its launch."""
    names, launches = ["rtx-4090", "h100"], ["eager", "graph"]
    ask = {"batch_size": 64, "precision": precision}
    found = lolat.predict("timm:resnet50", names, launch=launches, **ask)
    alone = [lolat.predict("timm:resnet50", names, launch=one, **ask) for one in launches]
    wanted = {(p.device, p.launch): p.latency_ms for each in alone for p in each}
    assert {(p.device, p.launch): p.latency_ms for p in found} == wanted
    least = min(wanted, key=lambda key: wanted[key])
    assert found.fastest is not None
    assert (found.fastest.device, found.fastest.launch) == least
    assert f"\nFastest: {' '.join(least)}, " in found.report()
    assert "Launches differ" not in found.report()


def test_one_device_takes_one_launch_alone() -> None:
    with pytest.raises(lolat.InputError) as caught:
        lolat.load("rtx-4090").predict("timm:resnet50", launch=["eager", "graph"])
    assert caught.value.code == "launch"
    assert "lolat.predict(network, on=device) compares several" in str(caught.value)


def test_other_modes_are_told_for_few_networks_and_sizes() -> None:
    """One batch size has them; several have a sentence instead, and two lines for each size."""
    few, many = (
        [*best_lines(lolat.predict("timm:resnet50", on=["rtx-3090", "rtx-4090"], batch_size=sizes))]
        for sizes in ([64], [64, 128, 256])
    )
    assert any(" with --" in line for line in few)
    assert not any(" with --" in line for line in many)
    assert sum("named for one network" in line for line in few) == 0
    assert sum("named for one network" in line for line in many) == 1
    assert sum(line.startswith(("Fastest", "Cheapest")) for line in many) <= 2 * 3
