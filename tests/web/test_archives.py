"""Files that are refused before anything is unpacked, each made on the spot."""

from __future__ import annotations

import contextlib
import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from lolat.errors import NetworkError
from lolat.web import networks as archives
from lolat.web.networks import check_file

MIB = 2**20


def keras_file(
    path: Path, *more: tuple[str, bytes], config: bytes = b"{}", packed: bool = True
) -> Path:
    kind = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(path, "w", kind) as archive:
        archive.writestr("metadata.json", b"{}")
        archive.writestr("config.json", config)
        for name, content in more:
            archive.writestr(name, content)
    return path


def refused(path: Path, name: str = "net.keras") -> str:
    with pytest.raises(NetworkError) as caught:
        check_file(path, name)
    said = str(caught.value)
    assert said.startswith(name)
    assert "\n" not in said
    assert str(path) not in said
    return said


def test_what_keras_writes_is_let_through(tmp_path: Path) -> None:
    keras = pytest.importorskip("keras")
    path = tmp_path / "net.keras"
    keras.Sequential([keras.Input((8,)), keras.layers.Dense(300)]).save(path)
    check_file(path, "net.keras")


@pytest.mark.parametrize("packed", [True, False])
def test_long_configurations_are_let_through(tmp_path: Path, packed: bool) -> None:
    layer = {"class_name": "Conv2D", "config": {"filters": 64, "kernel_size": [3, 3]}}
    config = json.dumps([{**layer, "name": f"conv_{i}"} for i in range(50_000)]).encode()
    assert len(config) > 4 * MIB
    check_file(keras_file(tmp_path / "n.keras", config=config, packed=packed), "n.keras")


def test_a_bomb_in_the_configuration(tmp_path: Path) -> None:
    path = keras_file(tmp_path / "n.keras", config=b" " * (40 * MIB))
    assert path.stat().st_size < MIB
    said = refused(path)
    assert "zip bomb" in said


def test_a_bomb_beside_it(tmp_path: Path) -> None:
    said = refused(keras_file(tmp_path / "n.keras", ("w", b"\0" * (20 * MIB))))
    assert "w is 1,0" in said
    assert "times as large unpacked; expected at most 200 times: a zip bomb" in said


def test_many_that_are_too_large_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_UNPACKED", 3 * MIB)
    more = [(f"w{i}", b"\0" * 900_000) for i in range(4)]
    said = refused(keras_file(tmp_path / "n.keras", *more))
    assert (
        said == "net.keras unpacks to 3 MiB; expected at most 3: a zip bomb, or too large a network"
    )


def test_a_large_configuration_that_hardly_shrinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archives, "MOST_CONFIG", 1000)
    said = refused(keras_file(tmp_path / "n.keras", config=b"x" * 1001))
    assert "its config.json unpacks to" in said


def lie(path: Path, name: str, size: int) -> None:
    """Have an archive declare another unpacked size for an entry, in both places."""
    content = bytearray(path.read_bytes())
    encoded = name.encode()
    for mark, at_size, at_name in ((b"PK\x03\x04", 22, 30), (b"PK\x01\x02", 24, 46)):
        at = content.find(mark)
        while at >= 0:
            if content[at + at_name : at + at_name + len(encoded)] == encoded:
                content[at + at_size : at + at_size + 4] = struct.pack("<I", size)
            at = content.find(mark, at + 4)
    path.write_bytes(bytes(content))


def test_an_entry_that_is_larger_than_it_says(tmp_path: Path) -> None:
    path = keras_file(tmp_path / "n.keras", config=b" " * (3 * MIB))
    lie(path, "config.json", 100)
    with zipfile.ZipFile(path) as archive:
        assert archive.getinfo("config.json").file_size == 100
    assert "unpacks to more than the 100 bytes that it declares: a zip bomb" in refused(path)


def test_entries_over_one_another(tmp_path: Path) -> None:
    """One packed stream, listed many times: small in the file, large when unpacked."""
    inner = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = inner.compress(b"a" * 150_000) + inner.flush()
    head = struct.pack("<4s5H3I2H", b"PK\x03\x04", 20, 0, 8, 0, 0, zlib.crc32(b"a" * 150_000),
                       len(data), 150_000, 11, 0) + b"config.json" + data  # fmt: skip
    entries = b""
    for i in range(50):
        name = b"config.json" if i == 0 else b"weights_%03d" % i
        entries += struct.pack("<4s6H3I5H2I", b"PK\x01\x02", 20, 20, 0, 8, 0, 0,
                               zlib.crc32(b"a" * 150_000), len(data), 150_000, len(name), 0, 0, 0, 0, 0,
                               0) + name  # fmt: skip
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 50, 50, len(entries), len(head), 0)
    path = tmp_path / "n.keras"
    path.write_bytes(head + entries + end)
    assert "lie over one another, as in a zip bomb" in refused(path)


@pytest.mark.parametrize(
    "entry", ["../../etc/passwd", "/etc/passwd", "a/../../b", "..\\x", "C:\\x", "\\\\host\\x"]
)
def test_names_that_lead_out(tmp_path: Path, entry: str) -> None:
    path = tmp_path / "n.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", "{}")
        info = zipfile.ZipInfo("x")
        info.filename = entry
        archive.writestr(info, "x")
    assert "which leads out of the archive" in refused(path)


def test_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_ENTRIES", 3)
    assert "holds 4 files" in refused(keras_file(tmp_path / "n.keras", ("a", b""), ("b", b"")))


def test_unusual_ways_to_pack(tmp_path: Path) -> None:
    path = tmp_path / "n.keras"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("config.json", "{}")
    assert "config.json is encrypted or packed in an unusual way" in refused(path)


def test_damaged_contents(tmp_path: Path) -> None:
    path = keras_file(tmp_path / "n.keras", config=bytes(range(256)) * 50)
    content = bytearray(path.read_bytes())
    at = content.find(b"config.json") + len("config.json")
    content[at : at + 40] = b"\xff" * 40
    path.write_bytes(bytes(content))
    assert "config.json in it is damaged" in refused(path)


@pytest.mark.parametrize(
    ("content", "name", "said"),
    [
        (b"hello", "notes.txt", "notes.txt is a .txt file; expected a .keras or an .onnx file"),
        (b"hello", "notes", "notes is without an ending; expected"),
        (b"", "n.onnx", "n.onnx is empty; expected a network's file"),
        (b"", "n.keras", "n.keras is empty"),
        (
            b"hello",
            "n.keras",
            "n.keras is no .keras file, or not all of it is there; expected a zip",
        ),
        (b"PK\x03\x04", "n.keras", "is no .keras file, or not all of it"),
    ],
)
def test_what_is_no_network(tmp_path: Path, content: bytes, name: str, said: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert said in refused(path, name)


def test_a_file_that_ends_early(tmp_path: Path) -> None:
    path = keras_file(tmp_path / "n.keras", config=b"x" * 5000, packed=False)
    path.write_bytes(path.read_bytes()[:3000])
    assert "not all of it is there" in refused(path)


def test_another_zip_archive(tmp_path: Path) -> None:
    path = tmp_path / "n.keras"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("word/document.xml", "<x/>")
    assert "is a zip archive, but no .keras file: it has no config.json" in refused(path)


@pytest.mark.parametrize("seed", range(60))
def test_damage_anywhere_is_never_a_crash(tmp_path: Path, seed: int) -> None:
    import random

    chance: Any = random.Random(seed)
    path = keras_file(tmp_path / "n.keras", ("w", bytes(2000)), config=b"{}" * 500)
    content = bytearray(path.read_bytes())
    for _ in range(chance.randint(1, 6)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    path.write_bytes(
        bytes(content[: chance.choice([len(content), chance.randrange(len(content))])])
    )
    with contextlib.suppress(NetworkError):
        check_file(path, "net.keras")
