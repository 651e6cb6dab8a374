"""Price lists: columns by name, what is refused and how, finding an accelerator."""

from __future__ import annotations

import csv
import datetime
import io
import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lolat.errors import InputError
from lolat.training.cost import device_of, prices
from lolat.training.cost.prices import Offer, offers_of, read_catalogue

LIST = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
big,V100,8.0,92.0,448.0,4.4,here,"{'Gpus': [{'Name': 'V100', 'Count': 8.0}]}",
one,V100,1,8,61,3.06,there,,0.918
plain,,,4.0,16.0,0.2,here,,
"""
BIG = Offer("big", "V100", 8, 4.4, "here", 92.0, 448.0, "p.csv")
ONE = Offer("one", "V100", 1, 3.06, "there", 8.0, 61.0, "p.csv")
PLAIN = Offer("plain", "", 0, 0.2, "here", 4.0, 16.0, "p.csv")

Read = Callable[[str], tuple[Offer, ...]]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str) -> tuple[Offer, ...]:
        path = tmp_path / "p.csv"
        path.write_bytes(text.encode())
        return read_catalogue(path)

    return read


@pytest.mark.parametrize("seed", range(3))
def test_columns_are_found_by_name_in_any_order(seed: int, read: Read) -> None:
    rows = list(csv.reader(io.StringIO(LIST)))
    order = random.Random(seed).sample(range(9), 9)
    out = io.StringIO()
    csv.writer(out).writerows([row[i] for i in order] for row in rows)
    assert read(out.getvalue()) == (BIG, ONE, PLAIN)
    assert [o.devices for o in read(LIST)] == [8, 1, 1]


def test_only_four_columns_are_needed_and_editors_do_no_harm(read: Read) -> None:
    head = "\ufeffprice, ACCELERATORCOUNT ,InstanceType,AcceleratorName"
    text = f"{head}\r\n 3.06 ,1,one,V100\r\n\r\n"
    assert read(text) == (Offer("one", "V100", 1, 3.06, source="p.csv"),)


def test_rows_that_are_no_machine_are_left_out(read: Read) -> None:
    """GCP's accelerators without a machine, half a card, and a sold-out instance; zones at one price."""
    head = "InstanceType,AcceleratorName,AcceleratorCount,Price,AvailabilityZone\n"
    (found,) = read(f"{head},V100,1,2,\na,A10,0.5,1,\nb,A10,1,,\nc,A10,1,2,x\nc,A10,1,2,y\n")
    assert found.instance_type == "c"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("4.4", "-4.4", "line 2: price is '-4.4'; expected a number of at least 0"),
        ("4.4", "nan", "line 2: price is 'nan'"),
        ("4.4", "$4.4", "line 2: price is '$4.4'"),
        ("8.0,92", "-8.0,92", "line 2: acceleratorcount is '-8.0'"),
        ("big,V100,8.0", "big,,8.0", "line 2: acceleratorname is empty; expected a name and a count"),
        ("one,V100,1", "one,V100,", "line 3: acceleratorname is 'V100'; expected a name and a count"),
        ("one,", "", "line 3: 8 cells; expected 9"),
        ("Price,", "Cost,", "p.csv lacks the column Price; expected a price list"),
        (LIST, "", "p.csv is empty; expected a price list"),
        (LIST, LIST.splitlines()[0], "has no instance with a price"),
        (LIST, LIST + '"open', "not a CSV table"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(old: str, new: str, said: str, read: Read) -> None:
    with pytest.raises(InputError) as caught:
        read(LIST.replace(old, new, 1))
    assert said in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(InputError, match="expected a price list"):
            read_catalogue(path)
    path = tmp_path / "list.csv"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not UTF-8"):
        read_catalogue(path)
    path.write_text(LIST)
    assert {o.source for o in read_catalogue(path)} == {"list.csv"}
    monkeypatch.setattr(prices, "LARGEST_BYTES", 10)
    with pytest.raises(InputError, match="too large"):
        read_catalogue(path)


def test_an_accelerator_is_found_by_its_name(read: Read) -> None:
    offers = [*read(LIST), Offer("r", "RTX4090", 1, 0.7), Offer("s", "V100-32GB", 1, 2.3)]
    assert offers_of(offers, "v100", "it") == (BIG, ONE)
    assert offers_of(offers, "rtx 4090", "it") == (offers[3],)
    assert offers_of(offers, "cpu", "it") == (PLAIN,)
    with pytest.raises(
        InputError, match=r"A100 in p.csv; .* cpu, RTX4090, V100, V100-32GB; or give"
    ):
        offers_of(offers, "A100", "p.csv")
    many = [Offer(str(i), f"G{i:02}", 1, 1.0) for i in range(40)]
    with pytest.raises(InputError, match=r"one of G3\d.* \(40 in all, `lolat prices` lists them\)"):
        offers_of(many, "G3", "it")


OTHERS = [Offer(n, n, 1, 1.0) for n in ("A10", "L4", "RTX4090", "P4")]


@pytest.mark.parametrize(
    ("offers", "device", "name"),
    [
        *((prices.BUILT_IN, d, n) for d, n in (
            ("V100", "V100"), ("Tesla V100-SXM2-16GB", "V100"), ("NVIDIA A100-80GB PCIe", "A100-80GB"),
            ("NVIDIA A100-SXM4-40GB", "A100"), ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
            ("v100-pcie-32gb", "V100-32GB"), ("h100-sxm-80gb", "H100"), ("80gb", None), ("cpu", "cpu"),
            ("K40", None),
        )),
        # A name that begins like another is not it.
        *((OTHERS, d, n) for d, n in (
            ("a100-pcie-40gb", None), ("L40S", None), ("NVIDIA L4", "L4"), ("A10", "A10"),
            ("rtx-4090", "RTX4090"), ("NVIDIA GeForce RTX 4090", "RTX4090"), ("p40", None),
            ("cpu", None),
        )),
    ],
)  # fmt: skip
def test_the_accelerator_that_a_device_is(offers: Any, device: str, name: str | None) -> None:
    assert prices.accelerator_of(device, offers) == name


@pytest.mark.parametrize(
    ("where", "device"),
    [("unknown", "rtx 4090"), ("gpu", "rtx 4090 (from 60 networks, amp)"), ("cpu", "cpu"),
     ("", "rtx 4090 (from 60 networks, amp)"), ("K80", "K80")],
)  # fmt: skip
def test_what_a_model_calls_its_device(where: str, device: str) -> None:
    """Of one made from tables what they were is left out, which might look like another: M60."""
    document = {"environment": {"device": where}}
    model: Any = SimpleNamespace(name="rtx 4090 (from 60 networks, amp)", document=document)
    assert device_of(model) == device


def test_every_built_in_price_says_where_and_when() -> None:
    for offer in prices.BUILT_IN:
        assert offer.source.startswith("skypilot-org/skypilot-catalog ")
        assert datetime.date.fromisoformat(offer.date).year >= 2026
        assert offer.price > 0


def test_a_file_of_prices_takes_the_place_of_those_built_in(tmp_path: Path) -> None:
    assert prices.find_prices().offers == prices.BUILT_IN
    given = tmp_path / "mine.csv"
    given.write_text(LIST)
    assert len(prices.find_prices(given).offers) == 3
