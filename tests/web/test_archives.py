"""Files that are refused before anything is unpacked, each made on the spot."""

from __future__ import annotations

import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from lolat.errors import NetworkError
from lolat.readers import apart
from lolat.readers.apart import check_file

MIB = 2**20
NAME = "net.keras"


def keras_file(
    path: Path, *more: tuple[str, bytes], config: bytes = b"{}", packed: int = zipfile.ZIP_DEFLATED
) -> Path:
    with zipfile.ZipFile(path, "w", packed) as archive:
        for name, content in (("metadata.json", b"{}"), ("config.json", config), *more):
            info = zipfile.ZipInfo("x")
            info.filename, info.compress_type = name, packed  # as given, also where it leads out
            archive.writestr(info, content)
    return path


def refusal(path: Path, name: str = NAME) -> str:
    with pytest.raises(NetworkError) as caught:
        check_file(path, name)
    line = str(caught.value)
    assert line.startswith(name)
    assert "expected" in line
    assert "\n" not in line
    assert str(path) not in line
    return line


def test_what_keras_writes_is_let_through(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    path = tmp_path / NAME
    keras.Sequential([keras.Input((8,)), keras.layers.Dense(300)]).save(path)
    check_file(path, NAME)


@pytest.mark.parametrize("packed", [zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED])
def test_long_configurations_are_let_through(tmp_path: Path, packed: int) -> None:
    layer = {"class_name": "Conv2D", "config": {"filters": 64, "kernel_size": [3, 3]}}
    config = json.dumps([{**layer, "name": f"conv_{i}"} for i in range(50_000)]).encode()
    assert len(config) > 4 * MIB
    check_file(keras_file(tmp_path / NAME, config=config, packed=packed), NAME)


def lies(path: Path) -> Path:
    """A configuration of 3 MiB that is declared, in both places, to have 100 bytes."""
    content = bytearray(keras_file(path, config=b" " * (3 * MIB)).read_bytes())
    for mark, at_size, at_name in ((b"PK\x03\x04", 22, 30), (b"PK\x01\x02", 24, 46)):
        at = content.find(mark)
        while at >= 0:
            if content[at + at_name : at + at_name + 11] == b"config.json":
                content[at + at_size : at + at_size + 4] = struct.pack("<I", 100)
            at = content.find(mark, at + 4)
    path.write_bytes(content)
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("config.json").file_size == 100
    return path


def overlapping(path: Path) -> Path:
    """One packed stream, listed many times: small in the file, large when unpacked."""
    inner = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = inner.compress(b"a" * 150_000) + inner.flush()
    check = zlib.crc32(b"a" * 150_000)
    head = struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 8, 0, 0, check,
                       len(data), 150_000, 11, 0) + b"config.json" + data  # fmt: skip
    entries = b""
    for i in range(50):
        name = b"config.json" if i == 0 else b"weights_%03d" % i
        entries += struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 8, 0, 0, check,
                               len(data), 150_000, len(name), 0, 0, 0, 0, 0, 0) + name  # fmt: skip
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 50, 50, len(entries), len(head), 0)
    path.write_bytes(head + entries + end)
    return path


def damaged(path: Path) -> Path:
    content = bytearray(keras_file(path, config=bytes(range(256)) * 50).read_bytes())
    at = content.find(b"config.json") + len("config.json")
    content[at : at + 40] = b"\xff" * 40
    path.write_bytes(content)
    return path


def cut_short(path: Path) -> Path:
    keras_file(path, config=b"x" * 5000, packed=zipfile.ZIP_STORED)
    path.write_bytes(path.read_bytes()[:3000])
    return path


def another(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "<x/>")
    return path


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda p: keras_file(p, config=b" " * (40 * MIB)), "zip bomb"),
        (lambda p: keras_file(p, ("w", b"\0" * (20 * MIB))), "'w' in it is 1,0"),
        (lambda p: keras_file(p, packed=zipfile.ZIP_BZIP2), "packed in an unusual way"),
        (lies, "unpacks to more than the 100 bytes that it declares: a zip bomb"),
        (overlapping, "lie over one another, as in a zip bomb"),
        (damaged, "'config.json' in it is damaged"),
        (cut_short, "not all of it is there"),
        (another, "without one config.json"),
        *((lambda p, n=name: keras_file(p, (n, b"x")), "leads out of the archive") for name in (
            "../../etc/passwd", "/etc/passwd", "a/../../b", "..\\x", "C:\\x", "\\\\host\\x")),
    ],
)  # fmt: skip
def test_what_does_harm_is_refused(
    tmp_path: Path, make: Callable[[Path], Path], words: str
) -> None:
    assert words in refusal(make(tmp_path / NAME))


@pytest.mark.parametrize(
    ("limit", "value", "more", "words"),
    [
        ("MOST_UNPACKED", 3 * MIB, [(f"w{i}", b"\0" * 900_000) for i in range(4)], "3 MiB"),
        ("MOST_CONFIG", 1000, [], "its config.json unpacks to"),
        ("MOST_ENTRIES", 3, [("a", b""), ("b", b"")], "4 files"),
    ],
)
def test_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    limit: str, value: int, more: list[tuple[str, bytes]], words: str,
) -> None:  # fmt: skip
    path = keras_file(tmp_path / NAME, *more, config=b"x" * 1001)
    check_file(path, NAME)
    monkeypatch.setattr(apart, limit, value)
    assert words in refusal(path)
    if limit != "MOST_ENTRIES":  # what grows with the memory that is allowed
        assert "--max-read-gib" in refusal(path)
        check_file(path, NAME, times=2.0)


def test_weights_that_are_not_packed_may_be_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Keras and PyTorch write them; they are no more than the file itself."""
    monkeypatch.setattr(apart, "MOST_UNPACKED", 1000)
    path = keras_file(tmp_path / NAME, ("w", b"\0" * 5000), packed=zipfile.ZIP_STORED)
    check_file(path, NAME)
    content = path.read_bytes()
    at = content.rfind(b"PK\x01\x02")  # its entry in the directory, and there its size unpacked
    path.write_bytes(content[: at + 24] + struct.pack("<I", 4000) + content[at + 28 :])
    assert "'w' in it is not packed, and yet of two sizes" in refusal(path)


@pytest.mark.parametrize(
    ("content", "name", "words"),
    [
        (b"hello", "notes.txt", "a .txt file"),
        (b"hello", "notes", "without an ending"),
        (b"", "n.onnx", "n.onnx is empty"),
        (b"", "n.keras", "n.keras is empty"),
        (b"hello", "n.keras", "no .keras file"),
        (b"PK\x03\x04", "n.keras", "no .keras file"),
    ],
)
def test_what_is_no_network(tmp_path: Path, content: bytes, name: str, words: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert words in refusal(path, name)


def test_a_read_network_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "n.json"
    path.write_text(" " * 2000)
    check_file(path, "n.json")
    monkeypatch.setattr(apart, "MOST_CONFIG", 1000)
    with pytest.raises(NetworkError, match="expected a read network"):
        check_file(path, "n.json")


def test_damage_anywhere_is_refused_or_does_no_harm(tmp_path: Path) -> None:
    """What is let through comes out of Python's own unpacking as large as is declared, or not at all."""
    whole = keras_file(tmp_path / NAME, ("w", bytes(2000)), config=b"{}" * 500).read_bytes()
    path, told = tmp_path / "damaged.keras", []
    for seed in range(60):
        chance = random.Random(seed)
        content = bytearray(whole)
        for _ in range(chance.randint(1, 6)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content[: chance.choice([len(content), chance.randrange(len(content))])])
        try:
            check_file(path, NAME)
        except NetworkError as error:
            told.append(str(error))
            continue
        with zipfile.ZipFile(path) as archive:
            try:
                unpacked = archive.read("config.json")
            except (zipfile.BadZipFile, EOFError):  # which the process that reads says
                continue
            assert len(unpacked) == archive.getinfo("config.json").file_size < MIB
    assert 10 < len(told) < 60
    assert all(line.startswith(NAME) for line in told)
