"""Whether a file that was given can be opened without harm: looked at before anything is unpacked.

A `.keras` file is a zip archive. Only its configuration is ever unpacked, into memory, but nothing is
taken on trust: sizes as declared, their ratio to what is there, and what really comes out.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from lolat.errors import NetworkError

MOST_UNPACKED = 512 * 2**20
MOST_CONFIG = 32 * 2**20
MOST_ENTRIES = 10_000
MOST_RATIO = 200
"""Of an entry's size to what it takes in the file; weights hardly shrink, a configuration some 50 times."""
SMALL = 2**20
"""Entries below that are let be, whatever their ratio."""
_CHUNK = 2**16
_MIB = 2**20


def check_file(path: Path, name: str) -> None:
    """NetworkError unless the file at `path`, which the user calls `name`, looks like a network's."""
    kind = Path(name).suffix.lower()
    if kind not in (".keras", ".onnx"):
        given = f"a {kind} file" if kind else "without an ending"
        raise NetworkError(f"{name} is {given}; expected a .keras or an .onnx file")
    size = path.stat().st_size
    if not size:
        raise NetworkError(f"{name} is empty; expected a network's file")
    if kind == ".keras":
        _check_keras(path, name, size)


def _check_keras(path: Path, name: str, size: int) -> None:
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error):
        raise NetworkError(
            f"{name} is no .keras file, or not all of it is there; expected a zip archive written by "
            "model.save"
        ) from None
    if len(entries) > MOST_ENTRIES:
        raise NetworkError(
            f"{name} holds {len(entries):,} files; expected at most {MOST_ENTRIES:,}: save the model again"
        )
    for entry in entries:
        _check_name(entry.filename, name)
        if entry.flag_bits & 1 or entry.compress_type not in (
            zipfile.ZIP_STORED,
            zipfile.ZIP_DEFLATED,
        ):
            raise NetworkError(
                f"{name}: {_shown(entry)} is encrypted or packed in an unusual way; expected what "
                "model.save writes"
            )
    _check_sizes(entries, name, size)
    config = [e for e in entries if e.filename == "config.json"]
    if len(config) != 1:
        raise NetworkError(
            f"{name} is a zip archive, but no .keras file: it has no config.json; expected a file written "
            "by model.save"
        )
    if config[0].file_size > MOST_CONFIG:
        raise NetworkError(
            f"{name}: its config.json unpacks to {config[0].file_size / _MIB:,.0f} MiB; expected at most "
            f"{MOST_CONFIG // _MIB}: a zip bomb, or no network"
        )
    _check_contents(path, name, entries)


def _check_name(entry: str, name: str) -> None:
    """A name that could lead out of the folder that an archive is unpacked in."""
    parts = re.split(r"[/\\]", entry)
    if ".." in parts or entry.startswith(("/", "\\")) or re.match(r"[A-Za-z]:", entry):
        raise NetworkError(
            f"{name} holds a file called {entry[:80]!r}, which leads out of the archive; expected what "
            "model.save writes"
        )


def _check_sizes(entries: list[zipfile.ZipInfo], name: str, size: int) -> None:
    """Sizes as the archive declares them."""
    unpacked = sum(e.file_size for e in entries)
    if unpacked > MOST_UNPACKED:
        raise NetworkError(
            f"{name} unpacks to {unpacked / _MIB:,.0f} MiB; expected at most {MOST_UNPACKED // _MIB}: a "
            "zip bomb, or too large a network"
        )
    if sum(e.compress_size for e in entries) > size:
        raise NetworkError(
            f"{name}: its files lie over one another, as in a zip bomb; expected what model.save writes"
        )
    for entry in entries:
        if entry.file_size > max(SMALL, MOST_RATIO * entry.compress_size):
            raise NetworkError(
                f"{name}: {_shown(entry)} is {entry.file_size // max(entry.compress_size, 1):,} times as "
                f"large unpacked; expected at most {MOST_RATIO} times: a zip bomb"
            )


def _check_contents(path: Path, name: str, entries: list[zipfile.ZipInfo]) -> None:
    """What really comes out of the packed entries: no more than is declared. Nothing of it is kept."""
    with path.open("rb") as file:
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_DEFLATED:
                continue
            try:
                more = _unpacks_to_more(file, entry)
            except (OSError, ValueError, struct.error, zlib.error):  # anywhere in a damaged file
                raise NetworkError(
                    f"{name}: {_shown(entry)} in it is damaged; save the model again"
                ) from None
            if more:
                raise NetworkError(
                    f"{name}: {_shown(entry)} unpacks to more than the {entry.file_size:,} bytes that it "
                    "declares: a zip bomb; expected what model.save writes"
                )


def _unpacks_to_more(file: BinaryIO, entry: zipfile.ZipInfo) -> bool:
    """Whether an entry holds more than it declares; unpacked piece by piece, and only until that is known.

    Python's own reader stops at the declared size, which would hide it. ValueError where no entry begins.
    """
    file.seek(entry.header_offset)
    header = file.read(30)
    if header[:4] != b"PK\x03\x04":
        raise ValueError
    file.seek(sum(struct.unpack("<HH", header[26:30])), 1)
    left, out, unpacker = entry.compress_size, 0, zlib.decompressobj(-zlib.MAX_WBITS)
    waiting = b""
    while not unpacker.eof and (left or waiting) and out <= entry.file_size:
        if not waiting:
            waiting = file.read(min(left, _CHUNK))
            left -= len(waiting) or left
        out += len(unpacker.decompress(waiting, _CHUNK))
        waiting = unpacker.unconsumed_tail
    return out > entry.file_size


def _shown(entry: zipfile.ZipInfo) -> str:
    return ascii(entry.filename[:80])[1:-1]
