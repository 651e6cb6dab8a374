"""Files that are sent to the page: taken, read, refused, and gone afterwards."""

from __future__ import annotations

import hashlib
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from tests.web.pages import ORIGIN, FakeReader, Site, site

MIB = 2**20


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    found = tmp_path / "temporary"
    found.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    return found


def send(page: Site, name: str, content: bytes, **fields: str) -> Any:
    """Send a file as the page's form does; a redirection is followed."""
    found = page.client.post(
        "/upload",
        files={"file": (name, content)},
        data={"view": page.view, "asked": "1", "model": "desk", "price.desk": "1", **fields},
        headers={"origin": ORIGIN},
    )
    page.taken(found.text)
    return found


def test_a_file_becomes_a_view_of_its_network(page: Site, folder: Path) -> None:
    found = send(page, "my net.onnx", b"\x08\x01", samples="999", epochs="3", batch_size="9")
    assert (found.status_code, found.history[0].status_code) == (200, 303)
    assert "my net 3 epochs of 999 samples, batch 9" in page.answer()
    assert page.commands()[0].startswith("lolat cost ")
    assert " 'my net.onnx' --samples 999 " in page.commands()[0]
    assert "with my net.onnx in it" in page.answer()
    link = page.link()
    assert re.search(r"source=upload&upload=[0-9a-f]{64}&", link)
    assert hashlib.sha256(b"\x08\x01").hexdigest() in link
    assert page.get(link.removeprefix("/")) == page.raw
    assert len(page.reader.calls) == 1
    assert page.reader.calls[0][0].endswith(".onnx")
    assert list(folder.iterdir()) == []


def test_a_size_goes_with_the_file(page: Site) -> None:
    send(page, "a.onnx", b"abc", file_size="3,64,64")
    assert page.reader.calls[0][1] == (3, 64, 64)
    assert "file_size=3,64,64" in page.link()
    assert "a.onnx --input-size 3,64,64" in page.commands()[0]
    page.get(page.link().removeprefix("/").replace("3,64,64", "3,65,65"))
    assert "give it again" in page.errors()["upload"]


@pytest.mark.parametrize(
    "name", ["../../x.onnx", "/etc/x.onnx", "..\\x.onnx", "C:\\nets\\x.onnx", "a/b/x.onnx"]
)
def test_the_name_of_a_file_is_a_name(page: Site, folder: Path, name: str) -> None:
    send(page, name, b"abc")
    path = Path(page.reader.calls[0][0])
    assert (path.parent.parent, path.name) == (folder, "file.onnx")
    assert " x.onnx --samples" in page.commands()[0]


def test_a_name_that_is_markup_or_a_command(page: Site) -> None:
    send(page, "<b>$(rm -rf x)</b>; x.onnx", b"abc")
    assert "<b>$(" not in page.raw
    assert " 'b>; x.onnx' " in page.commands()[0]  # what follows the last slash, in quotes


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("Bad.onnx", b"abc", "no network 'Bad.onnxBad' in keras.applications"),
        ("notes.txt", b"abc", "notes.txt is a .txt file"),
        ("net.onnx", b"", "net.onnx is empty"),
    ],
)
def test_what_is_no_network_is_said_at_the_field(
    page: Site, folder: Path, name: str, content: bytes, said: str
) -> None:
    page.reader.read = lambda network, size=(): FakeReader().read(network + "Bad")  # type: ignore[method-assign]
    found = send(page, name, content, samples="4321", **{"price.desk": "2.5"})
    assert found.status_code == 400
    assert list(page.errors()) == ["upload"]
    assert said in page.errors()["upload"]
    assert (page.value("samples"), page.value("price.desk")) == ("4321", "2.5")
    assert 'value="upload" checked' in page.raw
    assert list(folder.iterdir()) == []


def test_nothing_chosen(page: Site) -> None:
    assert send(page, "", b"").status_code == 400
    assert "no file is chosen" in page.errors()["upload"]
    assert send(page, "x.onnx", b"a", file_size="big").status_code == 400
    assert "'big'; expected a whole number" in page.errors()["upload"]


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("size", [100_001, 5 * MIB])
def test_too_large_whatever_it_declares(
    made: Path, folder: Path, declared: bool, size: int
) -> None:
    """Just above the limit, and far above; with Content-Length, and in pieces without."""
    with site([made], most_bytes=100_000) as page:
        mark = b"--xyz"
        body = b"".join(
            (mark, b'\r\nContent-Disposition: form-data; name="epochs"\r\n\r\n7\r\n', mark,
             b'\r\nContent-Disposition: form-data; name="file"; filename="n.onnx"\r\n\r\n', bytes(size),
             b"\r\n", mark, b"--\r\n")
        )  # fmt: skip

        def pieces() -> Any:
            for at in range(0, len(body), 65536):
                yield body[at : at + 65536]

        found = page.client.post(
            "/upload?view=training&source=keras&epochs=7&model=desk",
            content=body if declared else pieces(),
            headers={"origin": ORIGIN, "content-type": "multipart/form-data; boundary=xyz"},
        )
        page.taken(found.text)
        assert found.status_code == 413
        assert "larger than 0 MiB" in page.errors()["upload"]
        assert page.value("epochs") == "7"
        assert page.reader.calls == []
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--xyz",
        b"hello",
        b"--xyz\r\nContent-Disposition: form-data\r\n\r\nx\r\n--xyz--\r\n",
        b"--xyz\r\nno header\r\n\r\n",
        b"--xyzX\r\n",
        b"--xyz\r\n: no name\r\n\r\nx\r\n--xyz--\r\n",
    ],
)
def test_a_form_that_is_none(page: Site, body: bytes) -> None:
    found = page.client.post(
        "/upload",
        content=body,
        headers={"origin": ORIGIN, "content-type": "multipart/form-data; boundary=xyz"},
    )
    page.taken(found.text)
    assert found.status_code == 400
    assert list(page.errors()) == ["upload"]


def test_several_files_at_once_are_refused(page: Site) -> None:
    files = [("file", (name, b"a")) for name in ("a.onnx", "b.onnx")]
    answer = page.client.post("/upload", files=files, headers={"origin": ORIGIN})
    assert (answer.status_code, page.reader.calls) == (400, [])


def test_a_disk_that_is_full_is_said_on_the_page(page: Site, folder: Path) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (1000, limits[1])
    )  # the system's own refusal to write
    try:
        found = send(page, "net.onnx", b"\x08" * 5000)
        large = send(page, "net.onnx", b"\x08" * (3 * MIB))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    for answer in (found, large):
        assert answer.status_code == 400
        assert "the file cannot be kept while it is read: File too large" in answer.text
    assert list(folder.iterdir()) == []
    assert send(page, "net.onnx", b"\x08\x01").status_code == 200
