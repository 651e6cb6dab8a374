"""Price lists: columns by name, rows that are refused, accelerators by their names."""

from __future__ import annotations

import csv
import datetime
import io
import random
from collections.abc import Callable
from pathlib import Path

import pytest

import lolat
from lolat.errors import InputError
from lolat.hardware.environment_section import Environment
from lolat.hardware.hardware import Hardware
from lolat.hardware.prices import PRICE_COLUMNS, Offer, Prices, price_list
from lolat.hardware.rental import Rental, rental_of, slower_words

LIST = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
big,V100,8.0,92.0,448.0,4.4,here,"{'Gpus': [{'Name': 'V100', 'Count': 8.0}]}",
one,V100,1,8,61,3.06,there,,0.918
plain,,,4.0,16.0,0.2,here,,
"""
BIG = Offer("big", "V100", 8, 4.4, "here", 92.0, "p.csv", "", 448.0)
ONE = Offer("one", "V100", 1, 3.06, "there", 8.0, "p.csv", "", 61.0)
PLAIN = Offer("plain", "", 0, 0.2, "here", 4.0, "p.csv", "", 16.0)

Read = Callable[[str], tuple[Offer, ...]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str) -> tuple[Offer, ...]:
        path = tmp_path / "p.csv"
        path.write_bytes(text.encode())
        return price_list(path).offers

    return read


def test_columns_are_found_by_name_in_any_order(read: Read) -> None:
    rows = list(csv.reader(io.StringIO(LIST)))
    order = random.Random(0).sample(range(9), 9)
    out = io.StringIO()
    csv.writer(out).writerows([row[i] for i in order] for row in rows)
    assert read(out.getvalue()) == (BIG, ONE, PLAIN)
    assert [o.devices for o in read(LIST)] == [8, 1, 1]


def test_rows_that_are_no_machine_are_left_out_and_counted(read: Read, tmp_path: Path) -> None:
    """GCP's accelerators without a machine, half a card, and a sold-out instance; zones at one price."""
    head = "InstanceType,AcceleratorName,AcceleratorCount,Price,AvailabilityZone\n"
    rows = f"{head},V100,1,2,\n,T4,1,1,\na,A10,0.5,1,\nb,A10,1,,\nc,A10,1,2,x\nc,A10,1,2,y\n"
    (found,) = read(rows)
    assert found.instance_type == "c"
    name = price_list(tmp_path / "p.csv").prices
    why = "2 rows of accelerators without an instance type, 1 row with a part of an accelerator, 1 row"
    assert name == f"{tmp_path / 'p.csv'} (left out: {why} without a price)"


def test_columns_that_change_nothing_are_named(read: Read, tmp_path: Path) -> None:
    """But for those that SkyPilot's catalog has; a unit of an hour is read."""
    head = "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Monthly,Unit"
    read(f"{head}\na,A10,1,2,1,900,1 Hour\nb,A10,1,2,1,900,Hrs\n")
    name = price_list(tmp_path / "p.csv").prices
    assert name == f"{tmp_path / 'p.csv'} (columns that are not read: monthly)"


@pytest.mark.parametrize(
    ("old", "new", "place"),
    [
        ("4.4", "-4.4", "line 2: price is '-4.4'; expected a number from 0"),
        ("8.0,92", "-8.0,92", "line 2: acceleratorcount"),
        ("Price,", "Cost,", "Price"),
        ("Region", "Currency", "line 2: currency is 'here'; expected USD"),
        ("Region", "PriceUnit", "line 2: priceunit is 'here'; expected hour"),
    ],
)
def test_a_wrong_cell_is_named(old: str, new: str, place: str, read: Read) -> None:
    with pytest.raises(InputError) as caught:
        read(LIST.replace(old, new, 1))
    assert place in str(caught.value)


@pytest.mark.parametrize(
    "unit", ["Hour", "hrs", "1 Hour", "1h", "per hour", "$/h", "USD per VM-hour"]
)
def test_units_of_an_hour(unit: str, read: Read) -> None:
    (found,) = read(
        f"InstanceType,AcceleratorName,AcceleratorCount,Price,PriceUnit\na,A10,8,4,{unit}\n"
    )
    assert found.price == 4


@pytest.mark.parametrize(
    "unit",
    [
        "per GPU hour",
        "GPU-hour",
        "per hour per GPU",
        "24 hours",
        "per 100 hours",
        "half an hour",
        "1/24 h",
    ],
)
def test_other_units_with_an_hour_are_refused(unit: str, read: Read) -> None:
    """Eight GPUs at $4 a GPU and hour are $32 an hour, not $4."""
    with pytest.raises(InputError, match=f"line 2: priceunit is '{unit}'; expected hour"):
        read(f"InstanceType,AcceleratorName,AcceleratorCount,Price,PriceUnit\na,A10,8,4,{unit}\n")


def accelerator_of(device: str, prices: Prices) -> str | None:
    rental = rental_of(Hardware(device, Environment(device=device)), None, prices)
    return rental and (rental.offers[0].accelerator or "cpu")


@pytest.mark.parametrize(
    ("system", "types"),
    [("Linux-6.18-x86_64-with-glibc2.36", {"c6a.large", "g4dn", "t2g.x"}), ("", None),
     ("Linux-6.1-aarch64-with-glibc2.36", {"t4g.large", "m7gd.large", "c5.large"})],
)  # fmt: skip
def test_a_processor_of_another_architecture_is_not_rented(
    system: str, types: set[str] | None, tmp_path: Path
) -> None:
    """AWS names Graviton by a g after the generation; a column Arch has the last word."""
    rows = {
        "t4g.large": "",
        "m7gd.large": "",
        "c6a.large": "",
        "g4dn": "",
        "c5.large": "arm64",
        "t2g.x": "x86_64",
    }
    path = tmp_path / "p.csv"
    lines = [f"{name},,,2,0.1,{arch}" for name, arch in rows.items()]
    path.write_text(
        "\n".join(["InstanceType,AcceleratorName,AcceleratorCount,vCPUs,Price,Arch", *lines])
    )
    its = {"device": "cpu", "operating_system": system, "threads": 2}
    rental = rental_of(Hardware("cpu", Environment(**its)), None, str(path))
    assert rental is not None
    assert {o.instance_type for o in rental.offers} == (types or set(rows))
    assert "any machine with 2 vCPUs or more: taken to be as fast as the device" in rental.basis


BUILT_IN = price_list()
OTHERS = Prices("list", tuple(Offer(n, n, 1, 1.0) for n in ("A10", "L4", "RTX4090", "P4")))


@pytest.mark.parametrize(
    ("device", "name"),
    [("V100", "V100"), ("Tesla V100-SXM2-16GB", "V100"), ("NVIDIA A100-80GB PCIe", "A100-80GB"),
     ("NVIDIA A100-SXM4-40GB", "A100"), ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM"),
     ("v100-pcie-32gb", "V100-32GB"), ("h100-sxm-80gb", "H100"), ("80gb", None), ("cpu", "cpu"),
     ("K40", None)],
)  # fmt: skip
def test_the_accelerator_that_a_device_is(device: str, name: str | None) -> None:
    assert accelerator_of(device, BUILT_IN) == name


@pytest.mark.parametrize(
    ("device", "types"),
    [("a100-sxm-80gb", {*(f"{n}x_A100-80GB-SXM_SECURE" for n in (1, 2, 4, 8)), "gpu_8x_a100_80gb_sxm4"}),
     ("h100-pcie", {"gpu_1x_h100_pcie"}), ("h100", {"gpu_1x_h100_pcie"}),
     ("h100-sxm", {"gpu_1x_h100_sxm5", "gpu_2x_h100_sxm5", "lambdalabs_H100-sxm5x4",
                   "lambdalabs_H100-sxm5x8", *(f"{n}x_H100-SXM_SECURE" for n in (1, 2, 4, 8))})],
)  # fmt: skip
def test_a_card_of_a_form_that_is_another_chip_is_not_rented(device: str, types: set[str]) -> None:
    """By the words of the built-in list: an H100 PCIe has 114 multiprocessors, a SXM 132; an A100 PCIe has
    300 W and no NVLink, a SXM 400 W. RunPod's A100-80GB is "A100 PCIe" in SkyPilot's catalog.
    """
    rental = rental_of(Hardware(device, Environment(device=device)), None, BUILT_IN)
    assert rental is not None
    assert {o.instance_type for o in rental.offers} == types
    assert {rental.link(o.devices, o).name for o in rental.offers} == {
        {"a100-sxm-80gb": "NVLink 3", "h100-sxm": "NVLink 4"}.get(device, "PCIe 5.0 x16")
    }


OWN = Prices("list", tuple(
    Offer(t, a, n, 1.0)
    for t, a, n in (("p5", "H100", 8), ("p5e", "H200", 8), ("x", "RTX3080", 1), ("p4d", "A100", 8))
))  # fmt: skip


@pytest.mark.parametrize(
    ("device", "rented"),
    [("h100-sxm", "p5"), ("h100-pcie", "p5"), ("h200", "p5e"), ("h200-nvl", None), ("3080", "x"),
     ("a100-pcie-40gb", "p4d"), ("a100-80gb", None)],
)  # fmt: skip
def test_a_list_without_forms(device: str, rented: str | None) -> None:
    """A H100 may be of any form; a NVL is another card; a card with less bandwidth is not as fast."""
    rental = rental_of(Hardware(device, Environment(device=device)), None, OWN)
    assert (rental and rental.offers[0].instance_type) == rented


def test_a_slower_card_of_the_same_name_is_told() -> None:
    """By NVIDIA's sheets an A100 of 40 GB has 1,555 GB/s, of 80 GB (SXM) 2,039; a V100's are alike."""
    listed = Prices("p.csv", (Offer("x", "A100", 1, 1.0), Offer("v", "V100", 1, 1.0)))
    words = slower_words(Hardware("a100-sxm-80gb"), listed)
    assert "A100 has 1,555 GB/s of memory bandwidth, less than 2,039" in words
    assert [slower_words(Hardware(name), listed) for name in ("v100", "a100", "rtx-4090")] == [
        ""
    ] * 3


@pytest.mark.parametrize(
    ("rows", "instance", "is_told"),
    [("p5.48xlarge,H100,8,55.04;p5.4xlarge,H100,1,6.88", "p5.4xlarge", False),
     ("p5.48xlarge,H100,8,55.04;a3-highgpu-1g,H100,1,11.0", "a3-highgpu-1g", False),
     ("p5.48xlarge,H100,8,55.04;my-dgx,H100,8,20.0", "my-dgx", True),
     ("p4de.24xlarge,A100-80GB,8,40.9;mybox,A100-80GB,1,1.5", "mybox", True),
     ("p4de.24xlarge,A100-80GB,8,40.9;Standard_NC24ads_A100_v4,A100-80GB,1,3.7", "p4de.24xlarge", False),
     ("p5en.48xlarge,H200,8,63.3;1x_H200_SECURE,H200,1,3.6", "1x_H200_SECURE", False)],
)  # fmt: skip
def test_a_cheaper_row_without_a_form_is_rented(
    rows: str, instance: str, is_told: bool, tmp_path: Path
) -> None:
    """By the clouds' pages: p5 and a3-highgpu have H100 SXM, NC A100 v4 the PCIe card; no H200 is PCIe."""
    (path := tmp_path / "p.csv").write_text(
        f"{','.join(PRICE_COLUMNS)}\n{rows.replace(';', chr(10))}\n"
    )
    devices = {"H100": "h100-sxm", "H200": "h200-sxm", "A100-80GB": "a100-sxm-80gb"}
    device = devices[rows.split(",")[1]]
    rental = rental_of(Hardware(device), None, str(path))
    assert rental is not None
    assert rental.offers_for(1)[0].instance_type == instance
    assert ("is taken as SXM" in rental.basis) == is_told


def test_a_name_that_begins_like_another_is_not_it() -> None:
    names = {"a100-pcie-40gb": None, "L40S": None, "NVIDIA L4": "L4", "A10": "A10", "p40": None,
             "NVIDIA GeForce RTX 4090": "RTX4090", "cpu": None}  # fmt: skip
    assert {device: accelerator_of(device, OTHERS) for device in names} == names
    cards = ("RTX2080", "RTX2080Ti", "RTX6000", "RTX6000-Ada", "RTXPRO6000")
    own = Prices("list", tuple(Offer(n, n, 1, float(at)) for at, n in enumerate(cards)))
    devices = ("RTX 2080", "RTX 2080 Ti", "Quadro RTX 6000", "RTX 6000 Ada", "rtx-pro-6000")
    assert tuple(accelerator_of(device, own) for device in devices) == cards


@pytest.mark.parametrize(
    ("listed", "models"),
    [("NVIDIA H100 80GB HBM3", {"h100-fp32"}), ("A100-SXM4-80GB", {"a100-fp32"}),
     ("NVIDIA A100-SXM4-40GB", {"a100-fp32"}), ("Tesla P100-PCIE-16GB", {"p100-fp32"}),
     ("Tesla V100-SXM2-32GB", {"v100-fp32"}), ("H100-PCIe", set()), ("NVIDIA L4", set()),
     ("MI300X", set())],
)  # fmt: skip
def test_names_of_the_driver_in_a_list(listed: str, models: set[str]) -> None:
    """A H100 PCIe has 114 multiprocessors, a SXM, which the model is of, 132 (NVIDIA's data sheets)."""
    prices = Prices("list", (Offer("one", listed, 1, 1.0),))
    every = [lolat.load(f"{n}-fp32") for n in ("h100", "a100", "p100", "v100", "t4", "p4")]
    assert {m.label for m in every if rental_of(m.file, None, prices)} == models


def test_offers_of_several_cards() -> None:
    """Of names with commas every one counts; a name of two cards would silently be one of them."""

    def offers(gpu: str) -> list[Offer]:
        return [*price_list().of_gpu(gpu).offers]

    assert offers("t4, l4") == [*offers("t4"), *offers("l4")]
    assert {o.accelerator for o in offers("cpu,t4")} == {"", "T4"}
    assert offers("A100-SXM4-80GB,a100") == offers("a100")
    for several in ("h100 or h200", "t4 l4"):
        with pytest.raises(InputError, match="several; expected commas"):
            offers(several)
    with pytest.raises(InputError, match="l5: not in"):
        offers("t4,l5")


def test_every_built_in_price_says_where_and_when() -> None:
    assert len(BUILT_IN.offers) == 89
    for offer in BUILT_IN.offers:
        assert offer.source.startswith("skypilot-org/skypilot-catalog ")
        assert datetime.date.fromisoformat(offer.date).year >= 2026
        assert offer.price > 0


OF_A_PROVIDER = {
    "aws": {"T4": {1: 0.526, 4: 3.912, 8: 7.824}, "L4": {1: 0.9776, 4: 6.6752, 8: 13.3504},
            "A10G": {1: 1.006, 4: 5.672, 8: 16.288}},
    "runpod": {"A100-80GB": {1: 1.39, 2: 2.78, 4: 5.56, 8: 11.12},
               "A100-80GB-SXM": {1: 1.59, 2: 3.18, 4: 6.36, 8: 12.72},
               "H100": {1: 3.29, 2: 6.58, 4: 13.16, 8: 26.32},
               "H200": {1: 4.59, 2: 9.18, 4: 18.36, 8: 36.72},
               "B200": {1: 6.79, 2: 13.58, 4: 27.16, 8: 54.32}, "RTX3090": {1: 0.5, 2: 1.0, 4: 2.0, 8: 4.0},
               "RTX4090": {1: 0.74, 2: 1.48, 4: 2.96, 8: 5.92},
               "RTX5090": {1: 0.99, 2: 1.98, 4: 3.96, 8: 7.92}},
    "shadeform": {"RTXPro6000": {1: 2.19, 2: 4.38, 4: 8.76}, "V100-32GB": {1: 2.34, 2: 4.68, 4: 9.36}},
    "gcp": {"T4": {1: 0.73, 2: 1.46, 4: 2.92}, "P100": {1: 1.84, 2: 3.68, 4: 7.36}},
    "nebius": {"H200": {1: 3.5, 8: 28.0}, "B200": {8: 44.0}},
    "lambda": {"B200": {1: 6.99, 2: 13.78, 8: 53.52}},
}  # fmt: skip
"""Dollars an hour of the machines with so many GPUs of a card, as read in each provider's vms.csv."""


@pytest.mark.parametrize("provider", OF_A_PROVIDER)
def test_of_a_provider_every_number_of_a_card_is_listed(provider: str) -> None:
    """Two machines of two GPUs are not cheaper than one of four because that one is not in the list."""
    for card, dollars in OF_A_PROVIDER[provider].items():
        own = [o for o in BUILT_IN.offers if (o.places[0], o.accelerator) == (provider, card)]
        assert {o.count: o.price for o in own} == dollars, card


@pytest.mark.parametrize(
    ("device", "dollars"),
    [("h100-sxm", (3.29, 6.58, 13.16, 26.32)), ("a100-sxm-80gb", (1.59, 3.18, 6.36, 12.72)),
     ("b200", (6.79, 13.58, 27.16, 44.0)), ("h200", (3.5, 9.18, 18.36, 28.0)),
     ("l40s", (0.88, 1.76, 3.52, 7.04)), ("rtx-4090", (0.74, 1.48, 2.96, 5.92)),
     ("rtx-a6000", (0.57, 1.14, 2.28, 4.56))],
)  # fmt: skip
def test_the_cheapest_single_machine_of_a_card(device: str, dollars: tuple[float, ...]) -> None:
    """Nebius has the H200 by one and by eight alone, and the B200 by eight: for less than RunPod."""
    rental = rental_of(Hardware(device), None, BUILT_IN)
    assert rental is not None
    for count, price in zip((1, 2, 4, 8), dollars, strict=True):
        offer = min(rental.offers_for(count), key=lambda o: o.price)
        assert (offer.devices, offer.price) == (count, price)


def test_the_price_of_one_device_and_the_cheapest_for_several() -> None:
    """Who rents one pays $1.5, not an eighth of $8; four of eight are cheaper than four for $9."""
    prices = {"one": (1, 1.5), "eight": (8, 8.0), "four": (4, 9.0)}
    offers = {n: Offer(n, "V100", *price) for n, price in prices.items()}
    rental = Rental(Hardware("v100"), tuple(offers.values()), "list")
    assert rental.of_one_device() == rental.offers_for(1)[0] == offers["one"]
    assert (
        Rental(Hardware("v100"), (offers["four"], offers["eight"]), "").of_one_device()
        == offers["eight"]
    )
    assert rental.offers_for(4) == [offers["eight"]]
    assert rental.offers_for(3) == [offers["one"], offers["eight"]]


def test_a_card_of_the_other_form_is_rented_only_without_the_own() -> None:
    """Two A100 PCIe for $3 are the PCIe profile's, though NVLink joins the SXM cards for $3.1."""
    rows = (
        ("p", "A100-80GB-PCIe", 2, 3.0),
        ("s", "A100-80GB-SXM", 2, 3.1),
        ("e", "A100-80GB-SXM", 8, 20.0),
    )
    offers = {row[0]: Offer(*row) for row in rows}
    for device, of_two in (
        ("A100 PCIe 80 GB", "p"),
        ("A100 SXM 80 GB", "s"),
        ("NVIDIA A100 80GB", "p"),
    ):
        rental = Rental(Hardware(device), tuple(offers.values()), "list")
        assert rental.offers_for(2) == [offers[of_two]]
        assert rental.offers_for(8) == [offers["e"]]


def test_of_equal_prices_the_card_of_the_own_form_is_rented() -> None:
    """A machine whose card may be of another form comes after, whatever its name, unless it is cheaper."""
    names = {"a": "H100", "s": "H100-SXM", "p": "H100-PCIe"}
    offers = tuple(Offer(name, card, 1, 2.0) for name, card in names.items())
    for device, own in (("h100-sxm", "s"), ("h100-pcie", "p"), ("rtx-4090", "a")):
        rental = Rental(Hardware(device), offers, "list")
        assert rental.of_one_device().instance_type == own
        assert rental.offers_for(1)[0].instance_type == own
    cheap = Rental(Hardware("h100-sxm"), (Offer("z", "H100", 1, 1.9), *offers), "list")
    assert cheap.of_one_device().instance_type == cheap.offers_for(1)[0].instance_type == "z"
