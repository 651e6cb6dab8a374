"""Files that are sent to the page: taken, read, refused, and gone afterwards."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from tests.web.pages import ORIGIN, FakeReader, Site


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
        data={"view": "training", "model": "laptop", "network": "ResNet50", **fields},
        headers={"origin": ORIGIN},
    )
    page.taken(found.text)
    return found


def test_a_file_becomes_a_view_of_its_network(page: Site, folder: Path) -> None:
    found = send(page, "my net.onnx", b"\x08\x01", samples="999", batch_size="9", input_size="64")
    assert (found.status_code, found.history[0].status_code) == (200, 303)
    assert "my net 64x64x3" in page.answer()
    assert "20 epochs of 999 samples" in page.commands()[0] or "--samples 999" in page.commands()[0]
    assert " 'my net.onnx' --input-size 64 " in page.commands()[0]
    assert page.value("network") == "upload:my net.onnx"
    assert page.get(page.link().removeprefix("/")) == page.raw
    ((path, size),) = page.reader.calls
    assert (path.rpartition("/")[2], size) == ("file.onnx", (64,))
    assert list(folder.iterdir()) == []
    page.get(page.link().removeprefix("/").replace("input_size=64", "input_size=65"))
    assert "give the file again" in page.errors()["network"]


@pytest.mark.parametrize("name", ["../../x.onnx", "/etc/x.onnx", "C:\\nets\\x.onnx"])
def test_the_name_of_a_file_is_a_name(page: Site, folder: Path, name: str) -> None:
    send(page, name, b"abc")
    path = Path(page.reader.calls[0][0])
    assert (path.parent.parent, path.name) == (folder, "file.onnx")
    assert " x.onnx --samples" in page.commands()[0]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("Bad.onnx", b"abc", "no network 'Bad.onnxBad' in keras.applications"),
        ("", b"", "no file is chosen"),
    ],
)
def test_what_is_no_network_is_said_at_the_field(
    page: Site, folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, words: str
) -> None:
    monkeypatch.setattr(page.reader, "read", lambda spec, size: FakeReader().read(spec + "Bad"))
    assert send(page, name, content, samples="4321").status_code == 400
    assert list(page.errors()) == ["upload"]
    assert words in page.errors()["upload"]
    assert page.value("samples") == "4321"
    assert list(folder.iterdir()) == []


def test_a_file_cannot_be_read_at_another_size(page: Site) -> None:
    send(page, "a.onnx", b"abc", view="budget", vary="resolution")
    assert "cannot be varied" in page.answer()
