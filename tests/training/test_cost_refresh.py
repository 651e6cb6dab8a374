"""Downloading the catalogue from a server on this machine."""

from __future__ import annotations

import contextlib
import datetime
import functools
import http.server
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lolat.errors import InputError
from lolat.training.cost.prices import BASE, read_catalogue, refresh

AWS = """\
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone
p3.2xlarge,V100,1.0,8.0,61.0,"{'Gpus': []}",3.06,0.9,us-east-1,us-east-1a
p3.2xlarge,V100,1.0,8.0,61.0,"{'Gpus': []}",3.06,0.9,us-east-1,us-east-1b
p3.2xlarge,V100,1.0,8.0,61.0,"{'Gpus': []}",3.06,0.8,us-east-1,us-east-1c
"""
LAMBDA = "Price,InstanceType,AcceleratorName,AcceleratorCount\n4.4,gpu_8x_v100,V100,8.0\n"


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """(folder, address) of a server."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    folder = tmp_path / "site"
    for name, text in (("aws", AWS), ("lambda", LAMBDA)):
        (folder / name).mkdir(parents=True)
        (folder / name / "vms.csv").write_text(text)
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


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
        ("p3.2xlarge", 1, 3.06, 0.9),
        ("p3.2xlarge", 1, 3.06, 0.8),
        ("gpu_8x_v100", 8, 4.4, None),
    ]
    assert {o.date for o in found} == {done.date} == {"2027-02-03"}
    assert {o.source for o in found} == {f"{site[1]}/{name}/vms.csv" for name in ("aws", "lambda")}
    assert [p.name for p in kept.parent.iterdir()] == ["catalogue.csv"]  # nothing half written


def test_one_file_by_its_address(site: tuple[Path, str], tmp_path: Path) -> None:
    kept = tmp_path / "catalogue.csv"
    assert refresh(kept, site[1] + "/lambda/vms.csv", today=day).offers == {"vms.csv": 1}
    done = refresh(kept, site[1] + "/lambda/", today=day)
    assert (done.offers, done.left_out) == ({"vms.csv": 1}, {})
    assert read_catalogue(kept)[0].source == f"{site[1]}/lambda/vms.csv"


def test_a_file_that_is_no_price_list_is_left_out(site: tuple[Path, str], tmp_path: Path) -> None:
    (site[0] / "aws" / "vms.csv").write_text("<html>Sign in</html>")
    done = refresh(tmp_path / "c.csv", site[1], ("aws", "lambda"), day)
    assert done.offers == {"lambda": 1}
    assert "lacks the column" in done.left_out["aws"]


def test_without_anything_new_the_old_list_stays(site: tuple[Path, str], tmp_path: Path) -> None:
    kept = tmp_path / "c.csv"
    kept.write_text("old")
    with pytest.raises(InputError, match=r"has no price list \(gcp: the server answers 404"):
        refresh(kept, site[1], ("gcp",), day)
    (site[0] / "aws" / "vms.csv").write_text(AWS.replace("3.06", "-3.06"))
    with pytest.raises(InputError, match=r"aws: .*line 2: price is '-3.06'"):
        refresh(kept, site[1], ("aws",), day)
    assert kept.read_text() == "old"


def test_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(InputError) as caught:
        refresh(tmp_path / "c.csv", base)
    assert str(caught.value).startswith(
        f"{base}/aws/vms.csv cannot be reached (Connection refused)"
    )
    assert "`lolat prices`" in str(caught.value)
    assert not (tmp_path / "c.csv").exists()


def test_a_connection_that_breaks_off_half_way(tmp_path: Path) -> None:
    kept = tmp_path / "c.csv"
    kept.write_text("old")

    def get(url: str) -> bytes:
        if "lambda" in url:
            raise TimeoutError("timed out")
        return AWS.encode()

    with pytest.raises(InputError, match=r"cannot be reached \(timed out\)"):
        refresh(kept, "http://host", ("aws", "lambda"), day, get)
    assert kept.read_text() == "old"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.0 200 OK\r\nContent-Length: 999\r\n\r\n" + LAMBDA.encode(),
         f"cannot be reached (broke off after {len(LAMBDA)} of 999 bytes)"),
        (b"SSH-2.0-x\r\n", "no answer of a web server: BadStatusLine"),
    ],
)  # fmt: skip
def test_an_answer_that_is_cut_off_or_none(
    answer: bytes, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cut at the end of a line would still be a table."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):
                with contextlib.suppress(OSError):
                    client = server.accept()[0]
                    client.recv(9999)
                    client.sendall(answer)
                    client.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with pytest.raises(InputError) as caught:
            refresh(tmp_path / "c.csv", f"http://127.0.0.1:{server.getsockname()[1]}/v.csv")
    assert said in str(caught.value)
    assert not (tmp_path / "c.csv").exists()


@pytest.mark.parametrize("base", ["file:///etc", "/tmp", "ftp://x/y", "http://", ""])
def test_only_the_web_is_asked(base: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="expected an address that starts with https://"):
        refresh(tmp_path / "c.csv", base)


def test_a_file_that_is_too_large(
    site: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lolat.training.cost.prices.LARGEST_BYTES", 20)
    with pytest.raises(InputError, match="more than 64 MiB"):
        refresh(tmp_path / "c.csv", site[1], ("aws",))


def test_where_it_is_looked_for() -> None:
    assert BASE.startswith("https://raw.githubusercontent.com/skypilot-org/skypilot-catalog/")
