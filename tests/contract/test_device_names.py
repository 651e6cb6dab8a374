"""What an answer calls a device can be asked again: `lolat.load`, `--on` and MODEL take it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

import lolat

ON = ["a100", "l4", "h100", "RTX 3090", "rtx-4090-amp"]
SERVERS = ["h100-vllm", "h100-sglang", "h100-trtllm"]
NETWORK = "timm:resnet18"
MODES = ("precision", "launch", "channels_last")


def named(answer: Any, key: str) -> Iterator[str]:
    """The values of a key in an answer's rows, its frame and, however deep, its JSON."""

    def within(value: Any) -> Iterator[str]:
        if isinstance(value, Mapping):
            yield from [value[key]] if isinstance(value.get(key), str) else []
            yield from (one for part in value.values() for one in within(part))
        elif isinstance(value, list):
            yield from (one for part in value for one in within(part))

    yield from within(answer.rows())
    yield from within(answer.to_dict())
    frame = answer.frame()
    yield from frame[key].dropna() if key in frame else ()


ANSWERS: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "several": (lambda: lolat.predict(NETWORK, ON, [1, 64]), ON),
    "best": (lambda: lolat.predict(NETWORK, ON, 64, precision="best"), ON),
    "in amp": (lambda: lolat.predict(NETWORK, ON, 64, precision="amp", launch="compiled"), ON),
    "precisions": (
        lambda: lolat.predict(NETWORK, "rtx-4090", 64, precision=["amp", "fp16", "bf16"]),
        ["rtx-4090"],
    ),
    "one": (lambda: lolat.load("h100").predict(NETWORK, precision="bf16"), ["h100"]),
    "budget": (lambda: lolat.load("a100").budget(NETWORK, 50, "batch"), ["a100"]),
    "explained": (lambda: lolat.load("a100").explain(NETWORK, precision="bf16"), ["a100"]),
    "cost": (lambda: lolat.load("h100").cost(NETWORK, [32, 64], 1000), ["h100"]),
    "served": (
        lambda: lolat.load("h100-sglang").llm("llama-3.1-8b", request_rate=3),
        ["h100-sglang"],
    ),
    "served by a card": (
        lambda: lolat.load("l40s").llm("llama-3.1-8b", concurrency=[1, 8]),
        ["l40s"],
    ),
    "servers": (
        lambda: lolat.compare("llama-3.1-8b", on=[*SERVERS, "l40s"], request_rate=3),
        [*SERVERS, "l40s"],
    ),
    "decoder": (
        lambda: lolat.compare(
            "llama-3.1-8b", 1, ["h100", "l40s"], input_size=512, samples=100, tune="lora:16"
        ),
        ["h100", "l40s"],
    ),
    "costs": (lambda: lolat.compare(NETWORK, 64, ON, samples=1000), ON),
}


@pytest.mark.parametrize("of", ANSWERS)
def test_a_device_is_called_as_it_was_asked_for(of: str) -> None:
    """In attributes, rows, frame and JSON alike; the precision and the profile have their own names."""
    ask, on = ANSWERS[of]
    answer = ask()
    assert {*named(answer, "device")} == {*on}
    assert all(lolat.load(profile).profile == profile for profile in {*named(answer, "profile")})
    answers = getattr(answer, "answers", (answer,))
    assert isinstance(answers, tuple)
    assert {getattr(one, "device", on[0]) for one in answers} == {*on}


@pytest.mark.parametrize("of", ["several", "precisions", "in amp"])
def test_a_row_asked_again_is_the_same(of: str) -> None:
    for p in ANSWERS[of][0]():
        mode = {name: getattr(p, name) for name in MODES if getattr(p, name)}
        again = lolat.load(p.device).predict(NETWORK, p.batch_size, **mode)
        assert (again.latency_ms, again.profile) == (p.latency_ms, p.profile)


def test_all_devices_have_names_that_are_taken_back() -> None:
    """Each once; that of a GPU is its card's, and stands for a profile of the card."""
    found = lolat.predict(NETWORK, "all", 64)
    names = [p.device for p in found]
    assert len({*names}) == len(names)
    for p in found:
        assert lolat.load(p.device).file.product == lolat.load(p.profile).file.product
        assert not {"fp32", "fp16", "amp", "nhwc"} & {*p.device.split("-")}


LIMITS = {"max_ttft_ms": 1000.0, "max_tpot_ms": 40.0}


def test_a_row_has_one_verdict_on_its_limits() -> None:
    """By hand, from the ends of its interval: of a training on its hours, of a server on both times."""
    runs = lolat.compare(NETWORK, 64, ["l4", "h100"], samples=10**8, max_hours=6).rows()
    for row in runs:
        low, time, high = (row[name] for name in ("total_low_s", "total_s", "total_high_s"))
        words = {high <= 21600: "yes", low > 21600: "no"}
        assert row["verdict"] == words.get(True, "likely" if time <= 21600 else "unlikely")
    assert len({row["verdict"] for row in runs}) >= 3
    served = lolat.load("h100-vllm").llm("llama-3.1-70b", request_rate=[1, 3, 6.5], **LIMITS)
    for one, row in zip(served.served, served.rows(), strict=True):
        highs = [
            row[name] or math.inf for name in ("tpot_high_ms", "ttft_high_ms")
        ]  # None: unbounded
        ends = [highs[0] <= 40, highs[1] <= 1000] if one.tpot_ms else [False]
        assert (row["verdict"] in ("yes", "likely")) == one.within
        low = (one.largest_rate_interval or (0.0, 0.0))[0]
        assert (row["verdict"] == "yes") == (one.fits and all(ends) and one.request_rate <= low)
    free = lolat.load("h100-vllm").llm("llama-3.1-8b", request_rate=3)
    assert {row["verdict"] for row in free.rows()} == {None}


def test_a_served_row_in_words_has_framework_price_and_certainty() -> None:
    found = lolat.compare("llama-3.1-8b", on=[*SERVERS, "l40s"], request_rate=3, **LIMITS)
    for one in found.answers:
        words, row = one.words(), one.chosen
        assert one.device in words
        assert one.framework in words
        assert f"{row.dollars_per_month:,.0f} a month" in words
        assert f"limits: {row.verdict}" in words
    assert {"dollars_per_month", "verdict"} <= {*found.frame()}
