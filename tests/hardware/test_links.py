"""Links by data sheets: cards, modules, and the networks of instances."""

from __future__ import annotations

import pytest

from lolat.hardware.environment_section import Environment
from lolat.hardware.hardware import Hardware
from lolat.hardware.links import MACHINE, Link, assumed_link

NVLINK = {1: 160, 2: 300, 3: 600, 4: 900, 5: 1800}
"""GB/s, both ways together: NVIDIA's data sheets of P100, V100, A100, H100, B200."""
LANES, ENCODED = 16, 128 / 130
GIGATRANSFERS = {3: 8, 4: 16, 5: 32}
"""A second and lane: PCI Express."""
CARDS = {
    3: ["Tesla V100-PCIE-32GB", "V100-32GB", "p100-pcie-16gb", "t4", "K80", "1080ti",
        "NVIDIA GeForce RTX 2080 Ti"],
    4: ["NVIDIA A100-PCIE-40GB", "A100-80GB", "NVIDIA GeForce RTX 4090", "RTX4090", "A10G", "L4",
        "NVIDIA L40S", "A6000", "RTX 6000 Ada", "mi210"],
    5: ["h100", "NVIDIA H100 PCIe", "H200 NVL", "RTX 5090", "RTX PRO 6000 Max-Q"],
}  # fmt: skip
MODULES = {
    1: ["Tesla P100-SXM2-16GB"],
    2: ["Tesla V100-SXM2-16GB", "v100-sxm2"],
    3: ["NVIDIA A100-SXM4-40GB", "a100-sxm-40gb", "A100-80GB-SXM", "a100-pcie-40gb A100-80GB-SXM"],
    4: ["h100-sxm-80gb", "NVIDIA H100 80GB HBM3", "H100-SXM", "NVIDIA H200"],
    5: ["NVIDIA B200"],
}


@pytest.mark.parametrize(("of", "device"), [(g, n) for g, names in CARDS.items() for n in names])
def test_cards_have_half_of_their_slot(of: int, device: str) -> None:
    gbps = GIGATRANSFERS[of] * LANES * ENCODED / 2
    link = assumed_link(device, 2)
    assert link.gbps == pytest.approx(gbps, rel=1e-3)
    assert str(link.name).removesuffix(" without P2P") == f"PCIe {of}.0 x16"


@pytest.mark.parametrize(("of", "device"), [(g, n) for g, names in MODULES.items() for n in names])
def test_modules_have_four_fifths_of_nvlink(of: int, device: str) -> None:
    link = assumed_link(device, 2)
    assert (link.name, link.gbps) == (f"NVLink {of}", pytest.approx(8 * NVLINK[of] / 2 * 0.8))


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        "AMD EPYC, 2 threads",
        "Intel Core i7-12700H",
        "Intel Xeon E5-2690 v4",
        "80gb",
        "gaudi2",
    ],
)
def test_a_device_of_unknown_links_has_a_network(device: str) -> None:
    assert assumed_link(device, 2).gbps == 10


@pytest.mark.parametrize(
    ("device", "instance", "link"),
    [
        (
            "h200",
            "gpu-h200-sxm_8gpu-128vcpu-1600gb",
            "NVLink 4",
        ),  # the machine's memory, not the card's
        ("B200", "gpu-b200-sxm_8gpu-160vcpu-1792gb", "NVLink 5"),
        ("A100-80GB", "gpu_8x_a100_80gb_sxm4", "NVLink 3"),
        ("H100", "lambdalabs_H100-sxm5x4", "NVLink 4"),
        ("H100", "gpu_1x_h100_pcie", "PCIe 5.0 x16"),
        ("a100-sxm-80gb", "4x_A100-80GB_SECURE", "PCIe 4.0 x16"),
    ],
)
def test_the_type_of_an_instance_names_the_form_of_its_cards(
    device: str, instance: str, link: str
) -> None:
    assert assumed_link(device, 2, instance=instance).name == link


@pytest.mark.parametrize(
    ("device", "number", "slow"),
    [("rtx-3090", 8, 32), ("rtx-4090", 4, 64), ("rtx-4090", 2, 84), ("RTX 2080 Ti", 8, 32),
     ("rtx-5090", 8, 32), ("rtx-a6000", 8, 84), ("a10", 8, 84), ("rtx-6000-ada", 8, 84)],
)  # fmt: skip
def test_cards_without_p2p_may_be_as_slow_as_their_host(
    device: str, number: int, slow: float
) -> None:
    """By hand: each message crosses a memory of 64 GB/s twice; others reach 1.5 times less than half."""
    link = assumed_link(device, number)
    assert link.ends[1].gbps == pytest.approx(slow)
    assert ("without P2P" in str(link.name)) == (device not in ("rtx-a6000", "a10", "rtx-6000-ada"))
    assert link.is_within


def test_more_devices_than_a_machine_holds_are_linked_by_a_network() -> None:
    assert assumed_link("RTX 4090", MACHINE).gbps == 126
    unknown = assumed_link("RTX 4090", MACHINE + 1)
    assert unknown == Link(10, name="the network between machines", fastest_gbps=126)
    apart = Link(10, name="the network between machines", fastest_gbps=100)
    assert assumed_link("RTX 4090", 4, machine=2) == assumed_link("h100-sxm", 3, machine=1) == apart


@pytest.mark.parametrize(
    ("device", "instance", "gbps", "fast", "slow"),
    [
        (
            "A100-SXM4-40GB",
            "p4d.24xlarge",
            400,
            800,
            200,
        ),  # as the clouds say, twice as fast or slow
        ("NVIDIA A100", "a2-highgpu-8g", 100, 200, 50),
        ("A100-80GB-SXM", "Standard_ND96amsr_A100_v4", 1600, 3200, 800),
        ("T4", "n1-standard-16 + 2 T4", 32, 64, 16),
        (
            "H100-SXM",
            "p5.48xlarge",
            0.8 * 8 * 450,
            2 * 2880,
            1440,
        ),  # within a machine it is no faster
        (
            "H100-SXM",
            "some-cloud",
            1440,
            2880,
            720,
        ),  # a cluster's: a quarter of NVLink to the whole
        ("NVIDIA B200", "", 2880, 0.8 * 8 * 900, 1440),
        ("L40S", "some-cloud", 10, 126, 5),  # not known: any, up to the link within a machine
        ("AMD EPYC", "", 10, 3200, 5),
    ],
)
def test_the_network_between_machines_is_that_of_the_instance(
    device: str, instance: str, gbps: float, fast: float, slow: float
) -> None:
    link = assumed_link(device, 16, instance=instance)
    assert link.gbps == pytest.approx(gbps)
    assert [end.gbps for end in link.ends] == pytest.approx([fast, slow])
    assert ("no faster than NVLink 4" in str(link.name)) == (instance == "p5.48xlarge")


@pytest.mark.parametrize(
    ("device", "gb_s", "gbps"),
    [("h100", 450, 1440), ("h100-sxm", 63, 10), ("h100-sxm", 200, 640), ("rtx-4090", 32, 10)],
)
def test_a_cluster_is_of_gpus_whose_own_data_sheet_has_nvlink(
    device: str, gb_s: float, gbps: float
) -> None:
    """Half of 0.8 of its rate joins two machines of eight; 10 Gbit/s if they have PCI Express."""
    hardware = Hardware(device, Environment(sheet={"link_gb_s": gb_s}))
    assert hardware.link_of(16).gbps == pytest.approx(gbps)
    assert hardware.link_of(8).gbps == pytest.approx(
        8 * gb_s * (0.8 if gb_s > 63 else 0.5), rel=0.02
    )
