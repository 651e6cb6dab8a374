"""How devices are linked in one machine, by what frameworks, clouds and makers call them."""

from __future__ import annotations

import pytest

from lolat.training.exchange import MACHINE, Link, assumed_link, interconnect_of

NVLINK = {1: 160, 2: 300, 3: 600, 4: 900, 5: 1800}
"""GB/s, both ways together: NVIDIA's data sheets of P100, V100, A100, H100, B200."""
LANES, ENCODED = 16, 128 / 130
GIGATRANSFERS = {3: 8, 4: 16, 5: 32}
"""A second and lane: PCI Express."""

CARDS = {
    3: ["V100", "Tesla V100-PCIE-32GB", "v100-pcie-32gb", "V100-32GB", "p100-pcie-16gb", "Tesla P100",
        "t4", "Tesla T4", "p4", "K80", "K40", "M60", "1080ti", "NVIDIA GTX 1080 Ti",
        "NVIDIA GeForce RTX 2080 Ti"],
    4: ["a100-pcie-40gb", "NVIDIA A100-PCIE-40GB", "NVIDIA A100 80GB PCIe", "A100-80GB", "RTX 3090",
        "NVIDIA GeForce RTX 4090", "RTX4090", "rtx-4090", "A10G", "L4", "NVIDIA L40S", "A6000",
        "RTX 6000 Ada", "mi100", "mi210"],
    5: ["h100", "NVIDIA H100 PCIe", "H200 NVL", "RTX 5090", "NVIDIA GeForce RTX 5090",
        "RTX PRO 6000 Max-Q", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"],
}  # fmt: skip
MODULES = {
    1: ["Tesla P100-SXM2-16GB"],
    2: ["Tesla V100-SXM2-16GB", "v100-sxm2"],
    3: ["NVIDIA A100-SXM4-40GB", "a100-sxm-40gb", "A100-80GB-SXM", "a100-pcie-40gb A100-80GB-SXM"],
    4: ["h100-sxm-80gb", "NVIDIA H100 80GB HBM3", "H100-SXM", "NVIDIA H200"],
    5: ["NVIDIA B200"],
}


@pytest.mark.parametrize(("of", "name"), [(g, n) for g, names in CARDS.items() for n in names])
def test_cards_have_half_of_their_slot(of: int, name: str) -> None:
    found = interconnect_of(name)
    assert found is not None
    assert found.name == f"PCIe {of}.0 x16"
    assert found.gbps == pytest.approx(GIGATRANSFERS[of] * LANES * ENCODED / 2, rel=1e-3)


@pytest.mark.parametrize(("of", "name"), [(g, n) for g, names in MODULES.items() for n in names])
def test_modules_have_four_fifths_of_nvlink(of: int, name: str) -> None:
    found = interconnect_of(name)
    assert found is not None
    assert found.name == f"NVLink {of}"
    assert found.gbps == pytest.approx(8 * NVLINK[of] / 2 * 0.8)


@pytest.mark.parametrize(
    "name",
    ["cpu", "AMD EPYC, 2 threads", "Intel Core i7-12700H", "Intel Core i9-10940X", "Apple M2", "desk",
     "Intel Xeon E5-2690 v4", "80gb", "", "mi250"],
)  # fmt: skip
def test_others_are_not_known(name: str) -> None:
    assert interconnect_of(name) is None
    assert assumed_link(name, 2) == Link(10, name="a network, as no link of these devices is known")


def test_more_than_a_machine_holds_are_linked_by_a_network() -> None:
    assert assumed_link("RTX 4090", MACHINE).gbps == 126
    assert assumed_link("RTX 4090", MACHINE + 1) == Link(10, name="the network between machines")
    assert assumed_link("RTX 4090", 4, machine=2).gbps == 10
    assert str(assumed_link("RTX 4090", 4)) == "PCIe 4.0 x16, 126 Gbit/s"
    assert str(Link(12.5)) == "12.5 Gbit/s"
