"""Price lists: columns by name, what is refused and how, and finding an accelerator."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lolat.errors import InputError
from lolat.io import paths
from lolat.training.cost import prices
from lolat.training.cost.plan import device_of
from lolat.training.cost.prices import Offer, offers_of, parse, read_catalogue

LIST = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,Price,Region,GpuInfo,SpotPrice
big,V100,8.0,92.0,448.0,4.4,here,"{'Gpus': [{'Name': 'V100', 'Count': 8.0}]}",
one,V100,1,8,61,3.06,there,,0.918
plain,,,4.0,16.0,0.2,here,,
"""
BIG = Offer("big", "V100", 8, 4.4, None, "here", 92.0, 448.0, "list")
ONE = Offer("one", "V100", 1, 3.06, 0.918, "there", 8.0, 61.0, "list")
PLAIN = Offer("plain", "", 0, 0.2, None, "here", 4.0, 16.0, "list")


def read(text: str) -> tuple[Offer, ...]:
    return parse(text.encode(), "p.csv", "list")


def refusal(text: str) -> str:
    with pytest.raises(InputError) as caught:
        read(text)
    return str(caught.value)


def test_a_list_is_read() -> None:
    assert read(LIST) == (BIG, ONE, PLAIN)
    assert [o.devices for o in read(LIST)] == [8, 1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_columns_are_found_by_name_in_any_order(seed: int) -> None:
    import csv
    import io

    rows = list(csv.reader(io.StringIO(LIST)))
    order = random.Random(seed).sample(range(9), 9)
    out = io.StringIO()
    csv.writer(out).writerows([row[i] for i in order] for row in rows)
    assert read(out.getvalue()) == (BIG, ONE, PLAIN)


def test_only_four_columns_are_needed_and_editors_do_no_harm() -> None:
    text = (
        "\ufeffprice, ACCELERATORCOUNT ,InstanceType,AcceleratorName\r\n 3.06 ,1,one,V100\r\n\r\n"
    )
    assert read(text) == (Offer("one", "V100", 1, 3.06, source="list"),)


def test_rows_that_are_no_machine_are_left_out() -> None:
    """GCP's accelerators without a machine, a sold-out instance, and half a card."""
    head = "InstanceType,AcceleratorName,AcceleratorCount,Price\n"
    assert [
        o.instance_type for o in read(f"{head},V100,1,2\na,A10,0.5,1\nb,A10,1,\nc,A10,1,2\n")
    ] == ["c"]


def test_a_list_without_the_columns_says_which_and_what_it_found() -> None:
    line = refusal("gpu,dollars,InstanceType\nV100,3,a\n")
    assert "p.csv lacks the columns acceleratorname, acceleratorcount, price; expected" in line
    assert "p.csv lacks the column price;" in refusal(LIST.replace("Price", "Cost", 1))
    assert "p.csv is empty" in refusal("")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("4.4", "-4.4", "line 2: price is '-4.4'; expected a number of at least 0"),
        ("4.4", "nan", "line 2: price is 'nan'; expected"),
        ("4.4", "inf", "line 2: price is 'inf'; expected"),
        ("4.4", "$4.4", "line 2: price is '$4.4'; expected"),
        ("0.918", "-1", "line 3: spotprice is '-1'; expected"),
        ("8.0,92", "-8.0,92", "line 2: acceleratorcount is '-8.0'; expected"),
        ("big,V100,8.0", "big,,8.0", "line 2: acceleratorname is empty; expected a name and a count"),
        ("one,V100,1", "one,V100,", "line 3: acceleratorname is 'V100'; expected a name and a count"),
        ("one,", "", "line 3: 8 cells; expected 9, as in the first line"),
    ],
)  # fmt: skip
def test_a_wrong_row_is_refused_with_its_line(old: str, new: str, said: str) -> None:
    assert said in refusal(LIST.replace(old, new, 1))


def test_what_is_no_price_list() -> None:
    assert "has no instance with a price" in refusal(LIST.splitlines()[0])
    assert "not a CSV table" in refusal(LIST + '"open')
    with pytest.raises(InputError, match="not UTF-8"):
        parse(b"\xff\xfe", "p.csv")


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="no such file; expected a price list"):
        read_catalogue(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"cannot read .*; expected a price list"):
        read_catalogue(tmp_path)
    path = tmp_path / "list.csv"
    path.write_text(LIST)
    assert {o.source for o in read_catalogue(path)} == {"list.csv"}
    monkeypatch.setattr("lolat.training.cost.prices.LARGEST_BYTES", 10)
    with pytest.raises(InputError, match="too large"):
        read_catalogue(path)


def test_an_accelerator_is_found_by_its_name() -> None:
    offers = [*read(LIST), Offer("r", "RTX4090", 1, 0.7), Offer("s", "V100-32GB", 1, 2.3)]
    assert offers_of(offers, "v100", "it") == (BIG, ONE)
    assert offers_of(offers, "rtx 4090", "it") == (offers[3],)
    assert offers_of(offers, "cpu", "it") == (PLAIN,)
    with pytest.raises(InputError) as caught:
        offers_of(offers, "A100", "p.csv")
    line = "no price of A100 in p.csv; expected one of cpu, RTX4090, V100, V100-32GB; or give"
    assert str(caught.value).startswith(line)
    many = [Offer(str(i), f"G{i:02}", 1, 1.0) for i in range(40)]
    with pytest.raises(InputError, match=r"one of G3\d.* \(40 in all, `lolat prices` lists them\)"):
        offers_of(many, "G3", "it")


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("V100", "V100"),
        ("Tesla V100-SXM2-16GB", "V100"),
        ("NVIDIA A100-80GB PCIe", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100-80GB"),
        ("v100-pcie-32gb", "V100-32GB"),
        ("h100-sxm-80gb", "H100"),
        ("80gb", None),
        ("cpu", "cpu"),
        ("K40", None),
    ],
)
def test_the_accelerator_that_a_device_is(device: str, name: str | None) -> None:
    assert prices.accelerator_of(device, prices.BUILT_IN) == name


@pytest.mark.parametrize(
    ("device", "name"),
    [("a100-pcie-40gb", None), ("L40S", None), ("NVIDIA L4", "L4"), ("A10", "A10"), ("rtx-4090", "RTX4090"),
     ("NVIDIA GeForce RTX 4090", "RTX4090"), ("rtx4090", "RTX4090"), ("p40", None), ("cpu", None)],
)  # fmt: skip
def test_a_name_that_begins_like_another_is_not_it(device: str, name: str | None) -> None:
    offers = [Offer(n, n, 1, 1.0) for n in ("A10", "L4", "RTX4090", "P4")]
    assert prices.accelerator_of(device, offers) == name


@pytest.mark.parametrize(
    ("where", "device"),
    [
        ("unknown", "rtx 4090"),
        ("gpu", "rtx 4090 (from 60 networks, amp)"),
        ("", "rtx 4090 (from 60 networks, amp)"),
        ("cpu", "cpu"),
        ("K80", "K80"),
    ],
)
def test_what_a_model_calls_its_device(where: str, device: str) -> None:
    """Of one made from tables what they were is left out, which might look like another: M60."""
    document = {"environment": {"device": where}}
    model: Any = SimpleNamespace(name="rtx 4090 (from 60 networks, amp)", document=document)
    assert device_of(model) == device


def test_every_built_in_price_says_where_and_when() -> None:
    import datetime

    for offer in prices.BUILT_IN:
        assert offer.source.startswith("skypilot-org/skypilot-catalog ")
        assert datetime.date.fromisoformat(offer.date).year >= 2026
        assert offer.price is not None
        assert offer.price > 0
    assert offers_of(prices.BUILT_IN, "V100", "it")[0].spot_price == 0.918


def test_what_is_written_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "kept.csv"
    path.write_text(prices.to_csv(prices.BUILT_IN))
    assert read_catalogue(path) == prices.BUILT_IN


def test_the_order_in_which_prices_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "local_folder", lambda: tmp_path)
    assert prices.find_prices().offers == prices.BUILT_IN
    assert "built-in table of 20" in prices.find_prices().where
    kept = prices.refreshed_file()
    kept.parent.mkdir()
    kept.write_text(prices.to_csv([Offer("x", "V100", 1, 1.0, source="s", date="2027-01-02")]))
    found = prices.find_prices()
    assert [o.instance_type for o in found.offers] == ["x"]
    assert found.where == "the catalogue of 2027-01-02"
    given = tmp_path / "mine.csv"
    given.write_text(LIST)
    assert len(prices.find_prices(given).offers) == 3
