"""The best of several devices in another launch: every device asked alone in each launch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import pytest

import lolat
from lolat.device.prediction import Prediction
from lolat.report.prediction import table_of_predictions
from lolat.report.tables import lines_of
from lolat.units import digits, milliseconds

CARDS = ["rtx-3090", "rtx-4090", "rtx-5090"]
Worth = Callable[[Prediction], float]


def dollars(p: Prediction) -> float:
    return p.dollars_per_million or math.inf


WORTH: dict[str, Worth] = {"Fastest": lambda p: p.latency_ms, "Cheapest": dollars}


def told_of(found: Any) -> dict[str, list[str]]:
    """The sentences on the fastest and the cheapest, without those on a launch: name -> their words."""
    lines = [*lines_of(table_of_predictions(found.answers))]
    return {name: [x for x in lines if x.startswith(name)] for name in WORTH}


@pytest.mark.parametrize(
    ("on", "about"),
    [(CARDS, {}), (CARDS, {"precision": "amp"}), ([*CARDS, "epyc-2t"], {}), (["h100", "a100"], {})],
)
@pytest.mark.parametrize("size", [64, 1024])
def test_the_best_in_another_launch_is_that_of_all_devices(
    on: list[str], about: dict[str, Any], size: int
) -> None:
    """If it saves a tenth; a graph has to save a tenth of what compiled code takes, too."""
    found = lolat.predict("timm:resnet50", on, size, **about)
    for name, worth in WORTH.items():
        own = min(found, key=worth)
        expected, least = None, worth(own)
        for launch in ("compiled", "graph"):
            alone = [
                lolat.load(device).predict(
                    "timm:resnet50", size,
                    **({} if device == "epyc-2t" else {"launch": launch, "precision": "best"} | about),
                )
                for device in on
            ]  # fmt: skip
            best = min(alone, key=worth)
            if worth(best) < 0.9 * least and not (name == "Fastest" and best.host_bound):
                expected, least = (launch, on[alone.index(best)]), worth(best)
        _, *others = told_of(found)[name]
        assert len(others) == (expected is not None)
        if expected:
            launch, device = expected
            value = milliseconds(least) if name == "Fastest" else f"${digits(least)}"
            said = rf"{name} with --launch {launch}: {device}(-amp)?, {re.escape(value)}\b"
            assert re.match(said, others[0]), others


def test_its_verdict_is_that_of_the_question_with_this_launch() -> None:
    """The same rivals are too close to call; a launch that was asked for offers none."""
    ask = "timm:resnet50", CARDS, 1024
    for name in WORTH:
        _, told = told_of(lolat.predict(*ask, precision="amp"))[name]
        (asked,) = told_of(lolat.predict(*ask, precision="amp", launch="compiled"))[name]
        bare, plain = (re.sub(r"(rtx-\d+)[-a-z]+", r"\1", words) for words in (told, asked))
        assert bare.replace(" with --launch compiled", "") == plain


def test_one_device_and_its_modes_are_offered_no_launch() -> None:
    """One device compares no devices; of CPUs there is no launch to choose."""
    for on in (["rtx-4090"], ["epyc-2t", "epyc-2t-torch"]):
        found = lolat.predict("timm:resnet18", on, [1, 64])
        assert not [x for lines in told_of(found).values() for x in lines if "--launch" in x]


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
