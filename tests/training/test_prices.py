"""Price lists: columns by name, what is refused and how, finding an accelerator, downloading."""

from __future__ import annotations

import contextlib
import csv
import datetime
import io
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lolat.errors import InputError
from lolat.io import paths
from lolat.training.cost import device_of, prices
from lolat.training.cost.prices import Offer, offers_of, parse, read_catalogue, refresh
from tests.training.site import served

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


@pytest.mark.parametrize("seed", range(3))
def test_columns_are_found_by_name_in_any_order(seed: int) -> None:
    rows = list(csv.reader(io.StringIO(LIST)))
    order = random.Random(seed).sample(range(9), 9)
    out = io.StringIO()
    csv.writer(out).writerows([row[i] for i in order] for row in rows)
    assert read(out.getvalue()) == (BIG, ONE, PLAIN)
    assert [o.devices for o in read(LIST)] == [8, 1, 1]


def test_only_four_columns_are_needed_and_editors_do_no_harm() -> None:
    head = "\ufeffprice, ACCELERATORCOUNT ,InstanceType,AcceleratorName"
    text = f"{head}\r\n 3.06 ,1,one,V100\r\n\r\n"
    assert read(text) == (Offer("one", "V100", 1, 3.06, source="list"),)


def test_rows_that_are_no_machine_are_left_out() -> None:
    """GCP's accelerators without a machine, half a card, and a sold-out instance."""
    head = "InstanceType,AcceleratorName,AcceleratorCount,Price\n"
    (found,) = read(f"{head},V100,1,2\na,A10,0.5,1\nb,A10,1,\nc,A10,1,2\n")
    assert found.instance_type == "c"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("4.4", "-4.4", "line 2: price is '-4.4'; expected a number of at least 0"),
        ("4.4", "nan", "line 2: price is 'nan'"),
        ("4.4", "$4.4", "line 2: price is '$4.4'"),
        ("0.918", "-1", "line 3: spotprice is '-1'"),
        ("8.0,92", "-8.0,92", "line 2: acceleratorcount is '-8.0'"),
        ("big,V100,8.0", "big,,8.0", "line 2: acceleratorname is empty; expected a name and a count"),
        ("one,V100,1", "one,V100,", "line 3: acceleratorname is 'V100'; expected a name and a count"),
        ("one,", "", "line 3: 8 cells; expected 9"),
        ("Price", "Cost", "p.csv lacks the column Price; expected a price list"),
        (LIST, "", "p.csv is empty; expected a price list"),
        (LIST, LIST.splitlines()[0], "has no instance with a price"),
        (LIST, LIST + '"open', "not a CSV table"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(old: str, new: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read(LIST.replace(old, new, 1))
    assert said in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with pytest.raises(InputError, match="expected a price list"):
            read_catalogue(path)
    with pytest.raises(InputError, match="not UTF-8"):
        parse(b"\xff\xfe", "p.csv")
    path = tmp_path / "list.csv"
    path.write_text(LIST)
    assert {o.source for o in read_catalogue(path)} == {"list.csv"}
    monkeypatch.setattr(prices, "LARGEST_BYTES", 10)
    with pytest.raises(InputError, match="too large"):
        read_catalogue(path)


def test_an_accelerator_is_found_by_its_name() -> None:
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


def test_every_built_in_price_says_where_and_when_and_reads_back(tmp_path: Path) -> None:
    for offer in prices.BUILT_IN:
        assert offer.source.startswith("skypilot-org/skypilot-catalog ")
        assert datetime.date.fromisoformat(offer.date).year >= 2026
        assert (offer.price or 0) > 0
    path = tmp_path / "kept.csv"
    path.write_text(prices.to_csv(prices.BUILT_IN))
    assert read_catalogue(path) == prices.BUILT_IN


def test_the_order_in_which_prices_are_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "local_folder", lambda: tmp_path)
    assert prices.find_prices().offers == prices.BUILT_IN
    kept = prices.refreshed_file()
    kept.parent.mkdir()
    kept.write_text(prices.to_csv([Offer("x", "V100", 1, 1.0, source="s", date="2027-01-02")]))
    found = prices.find_prices()
    assert [o.instance_type for o in found.offers] == ["x"]
    assert found.where == "the catalogue of 2027-01-02"
    given = tmp_path / "mine.csv"
    given.write_text(LIST)
    assert len(prices.find_prices(given).offers) == 3


# ---- Downloading, from a server on this machine.

AWS = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
p3.2xlarge,V100,1.0,8.0,61.0,"{'Gpus': []}",3.06,0.9,us-east-1,us-east-1a
p3.2xlarge,V100,1.0,8.0,61.0,"{'Gpus': []}",3.06,0.9,us-east-1,us-east-1b
p3.2xlarge,V100,1.0,8.0,61.0,"{'Gpus': []}",3.06,0.8,us-east-1,us-east-1c
"""
LAMBDA = "Price,InstanceType,AcceleratorName,AcceleratorCount\n4.4,gpu_8x_v100,V100,8.0\n"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """(folder, address) of a server."""
    folder = tmp_path / "site"
    with served(folder, {"aws/vms.csv": AWS, "lambda/vms.csv": LAMBDA}) as url:
        yield folder, url


def day() -> datetime.date:
    return datetime.date(2027, 2, 3)


def test_what_is_there_is_kept_with_its_source_and_date(
    site: tuple[Path, str], tmp_path: Path
) -> None:
    kept = tmp_path / "new" / "catalogue.csv"
    done = refresh(kept, site[1] + "/", ("aws", "gcp", "lambda"), day)
    assert done.offers == {"aws": 2, "lambda": 1}  # zones at one price are one row
    assert list(done.left_out) == ["gcp"]
    assert "404" in done.left_out["gcp"]
    found = read_catalogue(kept)
    assert [(o.instance_type, o.count, o.price, o.spot_price) for o in found] == [
        ("p3.2xlarge", 1, 3.06, 0.9), ("p3.2xlarge", 1, 3.06, 0.8), ("gpu_8x_v100", 8, 4.4, None),
    ]  # fmt: skip
    assert {o.date for o in found} == {done.date} == {"2027-02-03"}
    assert {o.source for o in found} == {f"{site[1]}/{name}/vms.csv" for name in ("aws", "lambda")}
    assert [p.name for p in kept.parent.iterdir()] == ["catalogue.csv"]  # nothing half written


@pytest.mark.parametrize("address", ["/lambda/vms.csv", "/lambda/"])
def test_one_file_by_its_address(site: tuple[Path, str], tmp_path: Path, address: str) -> None:
    kept = tmp_path / "catalogue.csv"
    done = refresh(kept, site[1] + address, today=day)
    assert (done.offers, done.left_out) == ({"vms.csv": 1}, {})
    assert read_catalogue(kept)[0].source == f"{site[1]}/lambda/vms.csv"


def test_a_file_that_is_no_price_list_is_left_out(site: tuple[Path, str], tmp_path: Path) -> None:
    (site[0] / "aws" / "vms.csv").write_text("<html>Sign in</html>")
    done = refresh(tmp_path / "c.csv", site[1], ("aws", "lambda"), day)
    assert done.offers == {"lambda": 1}
    assert "lacks the column" in done.left_out["aws"]


def broken(url: str) -> bytes:
    if "lambda" in url:
        raise TimeoutError("timed out")
    return AWS.encode()


@pytest.mark.parametrize(
    ("providers", "aws", "get", "said"),
    [
        (("gcp",), AWS, prices.get, r"has no price list \(gcp: the server answers 404"),
        (("aws",), AWS.replace("3.06", "-3.06"), prices.get, r"aws: .*line 2: price is '-3.06'"),
        (("aws", "lambda"), AWS, broken, r"cannot be reached \(timed out\)"),
        (("aws",), AWS * 99, prices.get, "more than 64 MiB"),
    ],
)
def test_without_anything_new_the_old_list_stays(
    site: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    providers: tuple[str, ...], aws: str, get: Callable[[str], bytes], said: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(prices, "LARGEST_BYTES", 20_000)
    kept = tmp_path / "c.csv"
    kept.write_text("old")
    (site[0] / "aws" / "vms.csv").write_text(aws)
    with pytest.raises(InputError, match=said):
        refresh(kept, site[1], providers, day, get)
    assert kept.read_text() == "old"


def test_no_network(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InputError, match=r"/aws/vms.csv cannot be reached \(Connection refused\)"):
        refresh(tmp_path / "c.csv", base)
    assert not (tmp_path / "c.csv").exists()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.0 200 OK\r\nContent-Length: 999\r\n\r\n" + LAMBDA.encode(),
         f"cannot be reached (broke off after {len(LAMBDA)} of 999 bytes)"),
        (b"SSH-2.0-x\r\n", "no answer of a web server: BadStatusLine"),
    ],
)  # fmt: skip
def test_an_answer_that_is_cut_off_or_none(answer: bytes, said: str, tmp_path: Path) -> None:
    """A cut at the end of a line would still be a table."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                with contextlib.suppress(OSError):
                    client = server.accept()[0]
                    client.recv(9999)
                    client.sendall(answer)
                    client.close()

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(InputError) as caught:
            refresh(tmp_path / "c.csv", f"http://127.0.0.1:{server.getsockname()[1]}/v.csv")
    assert said in str(caught.value)
    assert not (tmp_path / "c.csv").exists()


@pytest.mark.parametrize("base", ["file:///etc", "/tmp", "ftp://x/y", "http://", ""])
def test_only_the_web_is_asked(base: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected an address that starts with https://"):
        refresh(tmp_path / "c.csv", base)
