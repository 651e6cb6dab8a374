"""Files that are sent to the page: taken, read, refused, and gone afterwards."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")

from lolat.readers import read_now
from tests.web.pages import FakeReader, Site
from tests.web.test_networks import onnx_file


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files go."""
    found = tmp_path / "temporary"
    found.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(found))
    return found


def send(page: Site, name: str, content: bytes, **fields: str) -> Any:
    given = {"view": "training", "model": "laptop", "network": "ResNet50"}
    return page.send(name, content, **(given | fields))


def test_a_file_becomes_a_view_of_its_network(page: Site, folder: Path) -> None:
    found = send(page, "my net.onnx", b"\x08\x01", samples="999", batch_size="9", input_size="64")
    assert (found.status_code, found.history[0].status_code) == (200, 303)
    assert "my net 64x64x3" in page.answer()
    assert "20 epochs of 999 samples" in page.commands()[0] or "--samples 999" in page.commands()[0]
    assert " 'my net.onnx' --input-size 64 " in page.commands()[0]
    digits = hashlib.sha256(b"\x08\x01").hexdigest()[:6]
    assert page.value("network") == f"upload:my net.onnx@{digits}"
    assert page.get(page.link().removeprefix("/")) == page.raw
    ((path, size),) = page.reader.calls
    assert (path.rpartition("/")[2], size) == ("file.onnx", (64,))
    assert list(folder.iterdir()) == []
    page.get(page.link().removeprefix("/").replace("input_size=64", "input_size=65"))
    assert "my net 65x65x3" in page.answer()  # the file is kept


def test_two_files_of_one_name_are_two(page: Site) -> None:
    send(page, "net.onnx", b"one", input_size="32")
    first = page.link().removeprefix("/")
    send(page, "net.onnx", b"two", input_size="64")
    assert "net 64x64x3" in page.answer()
    page.get(first)
    assert "net 32x32x3" in page.answer()
    assert " net.onnx " in page.commands()[0]


def test_a_file_that_leaves_its_size_open_waits_for_it(page: Site, tmp_path: Path) -> None:
    page.reader.read = read_now  # type: ignore[method-assign]
    send(page, "mine.onnx", onnx_file(tmp_path / "open.onnx", "side").read_bytes(), batch_size="7")
    error = page.errors()["input_size"]
    assert "'mine.onnx' needs \"Input size\": its input is 3x?x?; " in error
    assert error.endswith('for example "Input size" 224 or 3,224,224')
    link = page.link().removeprefix("/")
    for side in (32, 48):
        page.get(f"{link}&input_size={side}")
        assert f"mine 3x{side}x{side}" in page.answer()
        assert page.errors() == {}
    both = onnx_file(tmp_path / "both.onnx", "side", "length").read_bytes()
    send(page, "both.onnx", both, input_size="32")
    assert 'and "Sequence length" for tokens and steps alone' in page.errors()["input_size"]
    page.get(f"{page.link().removeprefix('/')}&sequence_length=77")
    assert "both 3x32x32, 77x4" in page.answer()
    assert " both.onnx --input-size 32 --sequence-length 77 --samples" in page.commands()[0]
    send(page, "fixed.onnx", onnx_file(tmp_path / "fixed.onnx").read_bytes(), input_size="99")
    assert 'leave "Input size" out' in page.errors()["input_size"]
    page.get(page.link().removeprefix("/").replace("input_size=99", ""))
    assert "fixed 3x8x8" in page.answer()


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
