"""Whether a file that was given can be opened without harm: looked at before anything is unpacked.

A `.keras` file is a zip archive, and so is a `.pt2` file. Only the JSON of the network is ever unpacked,
into memory, but nothing is taken on trust: sizes as declared, their ratio to what is there, and what
really comes out.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from lolat.errors import NetworkError

MIB = 2**20
ENDINGS = (".keras", ".onnx", ".pt2", ".json")
ARCHIVES = {
    ".keras": (r"config\.json", "config.json", "Keras' model.save"),
    ".pt2": (r"(?:.*/)?models/[^/]+\.json|serialized_exported_program\.json", "network",
             "torch.export.save"),
}  # fmt: skip
"""Which file in an archive is the network's, what that is called, and what writes such archives."""

MOST_UNPACKED = 512 * MIB
"""Of what is packed; weights that are not take no more than the file."""
MOST_CONFIG = 32 * MIB
MOST_ENTRIES = 10_000
MOST_RATIO = 200
"""Of an entry's size to what it takes in the file; weights hardly shrink, a configuration some 50 times."""
GIVES_MORE = "(a command's --max-read-gib gives more)"
SMALL = MIB
"""Entries below that are let be, whatever their ratio."""
_CHUNK = 2**16


def check_file(path: Path, name: str, times: float = 1.0) -> None:
    """NetworkError unless the file at `path`, which the user calls `name`, looks like a network's.

    `times`: so many times as much may be unpacked.
    """
    kind = Path(name).suffix.lower()
    if kind not in ENDINGS:
        given = f"a {kind} file" if kind else "without an ending"
        raise NetworkError(f"{name} is {given}; expected one of {', '.join(ENDINGS)}")
    if not path.stat().st_size:
        raise NetworkError(f"{name} is empty; expected a network's file")
    if kind == ".json" and path.stat().st_size > MOST_CONFIG:
        raise NetworkError(
            f"{name} is larger than {MOST_CONFIG // MIB} MiB; expected a read network"
        )
    if kind in ARCHIVES and (reason := _harm(path, kind, times)):
        raise NetworkError(f"{name}: {reason}; expected what {ARCHIVES[kind][2]} writes")


def _harm(path: Path, kind: str, times: float) -> str:
    """What is wrong with a file as an archive of a kind, "" where nothing is."""
    most, most_config = int(times * MOST_UNPACKED), int(times * MOST_CONFIG)
    pattern, called, _ = ARCHIVES[kind]
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error):
        return f"no {kind} file, which is a zip archive, or not all of it is there"
    if len(entries) > MOST_ENTRIES:
        return f"{len(entries):,} files in it, more than {MOST_ENTRIES:,}"
    for entry in entries:
        if reason := _harm_of_entry(entry):
            return f"{entry.filename[:80]!a} in it {reason}"
    unpacked = sum(e.file_size for e in entries if e.compress_type != zipfile.ZIP_STORED)
    if unpacked > most:
        return (
            f"{unpacked / MIB:,.0f} MiB when unpacked, more than {most // MIB}: a zip bomb, or too large a "
            f"network {GIVES_MORE}"
        )
    if sum(e.compress_size for e in entries) > path.stat().st_size:
        return "its files lie over one another, as in a zip bomb"
    configs = [e.file_size for e in entries if re.fullmatch(pattern, e.filename)]
    if len(configs) != 1:
        return f"no {kind} file: a zip archive without one {called}"
    if configs[0] > most_config:
        return (
            f"its {called} unpacks to {configs[0] / MIB:,.0f} MiB, more than {most_config // MIB}: a zip "
            f"bomb, or no network {GIVES_MORE}"
        )
    return _harm_inside(path, entries)


def _harm_of_entry(entry: zipfile.ZipInfo) -> str:
    """What is wrong with an entry as the archive declares it."""
    name = entry.filename
    if (
        name.startswith(("/", "\\"))
        or re.match(r"[A-Za-z]:", name)
        or ".." in re.split(r"[/\\]", name)
    ):
        return "leads out of the archive"
    if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "is encrypted or packed in an unusual way"
    if entry.compress_type == zipfile.ZIP_STORED and entry.file_size != entry.compress_size:
        return "is not packed, and yet of two sizes"
    if entry.file_size > max(SMALL, MOST_RATIO * entry.compress_size):
        ratio = entry.file_size // max(entry.compress_size, 1)
        return f"is {ratio:,} times as large unpacked, more than {MOST_RATIO} times: a zip bomb"
    return ""


def _harm_inside(path: Path, entries: list[zipfile.ZipInfo]) -> str:
    """What is wrong with what really comes out of the packed entries. Nothing of it is kept."""
    with path.open("rb") as file:
        for entry in entries:
            if entry.compress_type != zipfile.ZIP_DEFLATED:
                continue
            shown = ascii(entry.filename[:80])
            try:
                if _unpacks_to_more(file, entry):
                    size = f"the {entry.file_size:,} bytes that it declares"
                    return f"{shown} in it unpacks to more than {size}: a zip bomb"
            except (OSError, ValueError, struct.error, zlib.error):  # anywhere in a damaged file
                return f"{shown} in it is damaged"
    return ""


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
