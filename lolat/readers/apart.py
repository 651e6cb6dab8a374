"""Networks that are read in a process of their own, with limits of time and memory.

A file that crashes a framework, or eats memory, ends that process alone; and so does a network's function
that exits, never ends or writes where it should not. The pages read everything so, the command line what
files and functions make.

A `.keras` file is a zip archive: it is looked at before anything is unpacked.
Only the JSON of the network is ever unpacked, into memory, but nothing is taken on trust: sizes as
declared, their ratio to what is there, and what really comes out.
"""

from __future__ import annotations

import contextlib
import os
import re
import struct
import sys
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

from lolat.errors import LolatError, NetworkError
from lolat.graph import Graph
from lolat.io import LIMITS, USUAL
from lolat.io.process import Child, Handler, ProcessDied, RequestFailed, limit_memory
from lolat.readers import attribute_of, brief, is_function
from lolat.units import shortened

ENDINGS = (".keras", ".onnx", ".json")
LIMIT_S = USUAL.max_read_s
MEMORY_BYTES = int(USUAL.max_read_gib * 2**30)
LOADING_BYTES = 16 * 2**30
"""What PyTorch, or a module of the user's that loads a framework, may take while it is loaded."""
START = "lolat.readers.apart:start_reading"
_NO_MEMORY = ("allocate memory", "bad_alloc", "OOM when")
NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}
"""No GPU is needed, and one would take its memory from whoever is training on it."""

# ---- The side of who asks.


def is_apart(spec: str) -> bool:
    """Whether NETWORK is what may do harm: a file of a framework's, a configuration, or a function."""
    kind, _, file = spec.partition(":")
    is_file = _ending(spec) in (".keras", ".onnx") or kind == "transformers"
    name = file.partition("?")[0] if kind == "transformers" else spec
    return (is_file and os.path.isfile(name)) or is_function(spec)


def read_apart(spec: str, size: Any) -> Graph:
    """The network in a file or of a function, by a new process, within LIMITS.

    What `read` raises; NetworkError where a limit is reached, or the file could do harm.
    """
    limits, shown = LIMITS.get(), shortened(spec)
    ending, of_user = _ending(spec), is_function(spec)
    if ending in ARCHIVES and not of_user:
        check_file(Path(spec), shown, limits.max_read_gib / USUAL.max_read_gib)
    # A function may ask for the GPU, and what it prints is for whoever wrote it.
    about: dict[str, Any] = {"shows_errors": True} if of_user else {"environment": NO_GPU}
    with Child(START, ending, str(limits.max_read_gib), name="reading it", **about) as process:
        try:
            process.ready()
            request = {"network": spec, "size": size}
            return Graph.from_dict(process.request(request, limits.max_read_s))
        except RequestFailed as failed:
            error = failed.as_error(NetworkError)
            if type(error) is not NetworkError or Path(spec).stem in str(error):
                raise error from None
            raise NetworkError(f"{shown}: {error} (LOLAT_DEBUG=1 shows more)") from None
        except ProcessDied as died:
            raise NetworkError(
                f"{shown}: {died}; expected a network that can be read in {limits.max_read_s:g} s and "
                f"{limits.max_read_gib:g} GiB (--max-read-s and --max-read-gib give more)"
            ) from None


def _ending(spec: str) -> str:
    """What a file's name ends in, in small letters."""
    return os.path.splitext(spec)[1].lower()


# ---- What goes on in that process.


def start_reading(ending: str, memory_gib: str = str(MEMORY_BYTES / 2**30)) -> Handler:
    """What it does with requests, once what takes long is loaded; its memory is limited from then on."""
    memory_bytes = round(float(memory_gib) * 2**30)
    if ending == ".keras":
        from lolat.readers.keras import import_keras

        with contextlib.suppress(LolatError):  # which is the answer to who needs it
            import_keras()
    elif ending == ".onnx":
        from lolat.readers.onnx.file import import_onnx

        with contextlib.suppress(LolatError):
            import_onnx()
    limit_memory(memory_bytes, on_top=True)
    return lambda request: answer(request, memory_bytes)


def _load(network: str, memory_bytes: int) -> None:
    """Load PyTorch, or a function's module, for what needs it, once, on top of the limit of memory."""
    of_torch = network.partition(":")[0] in ("timm", "torchvision", "transformers")
    if is_function(network) or (of_torch and "torch" not in sys.modules):
        limit_memory(LOADING_BYTES, on_top=True)
        if of_torch:
            from lolat.readers.torch import import_torch

            with contextlib.suppress(LolatError):
                import_torch()
        else:
            attribute_of(network)
        limit_memory(memory_bytes, on_top=True)


def answer(request: dict[str, Any], memory_bytes: int = MEMORY_BYTES) -> dict[str, Any]:
    """The Graph of the network that is asked for, as JSON has it; NetworkError, or what readers raise."""
    from lolat.readers import as_sizes, open_network, read

    network, size = request["network"], as_sizes(request["size"])
    try:
        _load(network, memory_bytes)
        if os.path.isfile(network):  # nothing of what was sent to a page is kept on disk
            return open_network(network, size).graph().to_dict()
        return read(network, size).to_dict()
    except (LolatError, MemoryError) as error:
        if not lacks_memory(error):
            raise
        raise NetworkError(
            f"reading it needs more than {memory_bytes / 2**30:.3g} GiB of memory; expected a network that "
            "can be read in that: a command's --max-read-gib gives more"
        ) from None
    except RecursionError:
        raise NetworkError(
            "it is nested too deeply to be read; expected a network's file"
        ) from None
    except BaseException as error:  # what a damaged file makes a framework raise, whatever it is
        # Of a file the words may be anybody's.
        words = brief(error) if is_function(network) else type(error).__name__
        raise NetworkError(f"it cannot be read ({words}); expected a network") from error


def lacks_memory(error: BaseException) -> bool:
    """Whether one of the errors that an error was made of says that memory was refused."""
    seen: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in seen:
        seen.append(one)
        one = one.__cause__ or one.__context__
    return any(isinstance(e, MemoryError) or any(n in str(e) for n in _NO_MEMORY) for e in seen)


# ---- Whether an archive can be opened without harm.

MIB = 2**20
ARCHIVES = {
    ".keras": (r"config\.json", "config.json", "Keras' model.save"),
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
    if re.match(r"[/\\]|[A-Za-z]:", name) or ".." in re.split(r"[/\\]", name):
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
