"""Networks that are read in a process of their own, with limits of time and memory.

A file that crashes a framework, or eats memory, ends that process alone; and so does a network's function
that exits or writes where it should not. The pages read everything so, the command line what is in files.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

from lolat.errors import InputError, LolatError, NetworkError
from lolat.graph import Graph
from lolat.io.process import Child, Handler, ProcessDied, RequestFailed, limit_memory
from lolat.readers.archives import check_file
from lolat.units import shortened

LIMIT_S = 60.0
"""For one network; the largest of keras.applications takes about ten."""
MEMORY_BYTES = 2 * 2**30
"""What reading may take on top of what the frameworks take themselves."""
TORCH_BYTES = 16 * 2**30
"""What PyTorch may take while it is loaded."""
ENDINGS = (".keras", ".onnx", ".pt2")
START = "lolat.readers.apart:start_reading"
NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}
"""No GPU is needed, and one would take its memory from whoever is training on it."""

# ---- The side of who asks.


def read_apart(path: str, size: Any) -> Graph:
    """The network in a file, by a new process.

    LOLAT_READ_S and LOLAT_READ_GIB are other limits than LIMIT_S and MEMORY_BYTES. What `read` raises;
    NetworkError where a limit is reached, or the file could do harm.
    """
    limit_s = _limit("LOLAT_READ_S", LIMIT_S)
    memory_gib = _limit("LOLAT_READ_GIB", MEMORY_BYTES / 2**30)
    if ending_of(path) != ".onnx":
        check_file(Path(path), shortened(path))
    arguments = (ending_of(path), str(memory_gib))
    with Child(START, *arguments, name="reading it", environment=NO_GPU) as process:
        try:
            process.ready()
            return Graph.from_dict(process.request({"network": path, "size": size}, limit_s))
        except RequestFailed as failed:
            raise failed.as_error(NetworkError) from None
        except ProcessDied as died:
            raise NetworkError(
                f"{shortened(path)}: {died}; it may take {limit_s:g} s and {memory_gib:g} GiB: expected a "
                "network that can be read in that (LOLAT_READ_S and LOLAT_READ_GIB are other limits)"
            ) from None


def _limit(variable: str, usual: float) -> float:
    """A limit that the user may have set; InputError where it is no number above 0."""
    text = os.environ.get(variable, "")
    try:
        value = float(text) if text else usual
    except ValueError:
        value = 0.0
    if not 0.0 < value < 1e6:
        raise InputError(
            f"{variable}={shortened(text)}: expected a number above 0, such as {usual:g}"
        )
    return value


def ending_of(spec: str) -> str:
    """What a file's name ends in, in small letters."""
    return os.path.splitext(spec)[1].lower()


# ---- What goes on in that process.


def start_reading(ending: str, memory_gib: str = str(MEMORY_BYTES / 2**30)) -> Handler:
    """What it does with requests, once what takes long is loaded; its memory is limited from then on."""
    memory_bytes = int(float(memory_gib) * 2**30)
    if ending == ".keras":
        from lolat.readers.keras import import_keras

        with contextlib.suppress(
            LolatError
        ):  # without Keras the error is the answer to who needs it
            import_keras()
    elif ending == ".onnx":
        from lolat.readers.onnx.file import import_onnx

        with contextlib.suppress(LolatError):
            import_onnx()
    limit_memory(memory_bytes, on_top=True)
    return lambda request: answer(request, memory_bytes)


def _load_torch(network: str, memory_bytes: int) -> None:
    """Load PyTorch for what needs it, once, on top of the limit of memory."""
    of_torch = network.endswith(".pt2") or network.partition(":")[0] in ("timm", "torchvision")
    if of_torch and "torch" not in sys.modules:
        from lolat.readers.torch import import_torch

        limit_memory(TORCH_BYTES, on_top=True)
        with contextlib.suppress(LolatError):
            import_torch()
        limit_memory(memory_bytes, on_top=True)


def answer(request: dict[str, Any], memory_bytes: int = MEMORY_BYTES) -> dict[str, Any]:
    """The Graph of the network that is asked for, as JSON has it; NetworkError, or what readers raise."""
    from lolat.readers import as_sizes, open_network, read

    network, size = request["network"], as_sizes(request["size"])
    _load_torch(network, memory_bytes)
    try:
        if os.path.isfile(network):  # nothing of what was sent to a page is kept on disk
            return open_network(network, size).graph().to_dict()
        return read(network, size).to_dict()
    except LolatError:
        raise
    except MemoryError:
        raise NetworkError(
            f"reading it needs more than {memory_bytes / 2**30:.3g} GiB of memory; expected a "
            "network, whose weights are never loaded: is the file damaged?"
        ) from None
    except RecursionError:
        raise NetworkError(
            "it is nested too deeply to be read; expected a network's file"
        ) from None
    except Exception as error:  # what a damaged file makes a framework raise, whatever it is
        raise NetworkError(
            f"it cannot be read ({type(error).__name__}); expected a network's file"
        ) from error
