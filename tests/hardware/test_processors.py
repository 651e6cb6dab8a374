"""The hardware of a device: the generation of its processor."""

from __future__ import annotations

import pytest

import lolat
from lolat.hardware.processors import with_generation
from lolat.report.prediction import summary

AMD, INTEL, ARM = "AuthenticAMD", "GenuineIntel", "0x41"


@pytest.mark.parametrize(
    ("vendor", "family", "model", "generation"),
    [
        (AMD, 23, 49, "Zen 2"),  # Rome
        (AMD, 25, 1, "Zen 3"),  # Milan
        (AMD, 25, 33, "Zen 3"),  # Vermeer
        (AMD, 25, 17, "Zen 4"),  # Genoa
        (AMD, 25, 160, "Zen 4"),  # Bergamo
        (AMD, 26, 2, "Zen 5"),  # Turin
        (INTEL, 6, 106, "Ice Lake"),
        (INTEL, 6, 143, "Sapphire Rapids"),
        (ARM, 8, 0xD0C, "Neoverse N1"),  # Graviton 2
    ],
)
def test_a_processor_of_a_cloud_has_its_generation_in_place_of_numbers(
    vendor: str, family: int, model: int, generation: str
) -> None:
    processor = {"vendor": vendor, "family": family, "model": model}
    name = f"EPYC (family {family} model {model}), 2 threads"
    named = with_generation(name, processor)
    assert named == f"EPYC {generation}, 2 threads"
    assert with_generation("EPYC, 1 thread", processor) == f"EPYC {generation}, 1 thread"
    assert with_generation("my desk", processor) == f"my desk {generation}"
    assert with_generation(named, processor) == named  # a file that is written again


@pytest.mark.parametrize(
    "processor",
    [{}, {"vendor": INTEL, "family": 25, "model": 17}, {"vendor": AMD, "family": 25, "model": 200}],
)
def test_an_unknown_processor_keeps_its_name(processor: dict[str, object]) -> None:
    assert with_generation("a (family 9 model 9), 2 threads", processor).startswith("a (family 9")


def test_answers_and_lists_of_a_bundled_cpu_tell_its_generation() -> None:
    model = lolat.load("epyc-zen5-2t-torch")
    assert model.device == model.to_dict()["device"] == "AMD EPYC Zen 5, 2 threads"
    lines = summary(model.predict("timm:resnet18"))
    assert any("AMD EPYC Zen 5, 2 threads, by 118 measurements" in line for line in lines)
    listed = next(m for m in lolat.models() if m.name == "epyc-2t")
    assert listed.runs == "fp32, TensorFlow, on AMD EPYC Zen 4, 2 threads"
