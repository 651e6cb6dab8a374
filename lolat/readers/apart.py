"""Networks that are read in a process of their own, with limits of time and memory.

A file that crashes a framework, or eats memory, ends that process alone; and so does a network's function
that exits, never ends or writes where it should not. The pages read everything so, the command line what
files and functions make.
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
from lolat.readers.code import attribute_of, brief, is_function
from lolat.units import shortened

ENDINGS = (".keras", ".onnx", ".json")
MIB = 2**20
LIMIT_S = 60.0
"""For one network; the largest of keras.applications takes about ten. LOLAT_READ_S gives more."""
MEMORY_GIB = 2.0
"""On top of what the frameworks take themselves. LOLAT_READ_GIB gives more."""
MEMORY_BYTES = int(MEMORY_GIB * 2**30)
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
    """The network in a file or of a function, by a new process, within its limits.

    What `read` raises; NetworkError where a limit is reached.
    """
    limit_s, gib = limit("LOLAT_READ_S", LIMIT_S), limit("LOLAT_READ_GIB", MEMORY_GIB)
    shown = shortened(spec)
    ending, of_user = _ending(spec), is_function(spec)
    # A function may ask for the GPU, and what it prints is for whoever wrote it.
    about: dict[str, Any] = {"shows_errors": True} if of_user else {"environment": NO_GPU}
    with Child(START, ending, str(gib), name="reading it", **about) as process:
        try:
            process.ready()
            request = {"network": spec, "size": size}
            return Graph.from_dict(process.request(request, limit_s))
        except RequestFailed as failed:
            error = failed.as_error(NetworkError)
            if type(error) is not NetworkError or Path(spec).stem in str(error):
                raise error from None
            said = f"{shown}: {error.message} (LOLAT_DEBUG=1 shows more)"
            raise error.reworded(said) from None
        except ProcessDied as died:
            raise NetworkError(
                f"{shown}: {died}; expected a network that can be read in {limit_s:g} s and {gib:g} GiB "
                "(the environment variables LOLAT_READ_S and LOLAT_READ_GIB give more)"
            ) from None


def limit(variable: str, usual: float) -> float:
    """A limit of reading, which an environment variable may say; InputError where that is no number."""
    text = os.environ.get(variable) or str(usual)
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1e6:
        raise InputError(
            f"the environment variable {variable} is {shortened(text)!r}; expected a number above 0 to "
            f"1e+06, such as {4 * usual:g}"
        )
    return value


def _ending(spec: str) -> str:
    """The ending of a file's name, in small letters; of a name of Keras' that of its files."""
    return ".keras" if spec.startswith("keras:") else os.path.splitext(spec)[1].lower()


# ---- What goes on in that process.


def start_reading(ending: str, memory_gib: str = str(MEMORY_BYTES / 2**30)) -> Handler:
    """What it does with requests, once what takes long is loaded; its memory is limited from then on."""
    memory_bytes = round(float(memory_gib) * 2**30)
    if ending == ".keras":
        from lolat.readers.keras import import_keras

        with contextlib.suppress(LolatError):  # which is the answer to who needs it
            import_keras()
    elif ending == ".onnx":
        from lolat.readers.onnx import import_onnx

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
            attribute_of(network, "network", "a function that returns one")
        limit_memory(memory_bytes, on_top=True)


def answer(request: dict[str, Any], memory_bytes: int = MEMORY_BYTES) -> dict[str, Any]:
    """The Graph of the network that is asked for, as JSON has it; NetworkError, or what readers raise."""
    from lolat.readers import open_network, read
    from lolat.readers.size import as_sizes

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
            "can be read in that: the environment variable LOLAT_READ_GIB gives more"
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


# ---- What is sent to a page.


def check_file(path: Path, name: str) -> None:
    """NetworkError unless the file at `path`, which the user calls `name`, may be a network's."""
    kind = Path(name).suffix.lower()
    if kind not in ENDINGS:
        given = f"a {kind} file" if kind else "without an ending"
        raise NetworkError(f"{name} is {given}; expected one of {', '.join(ENDINGS)}")
    if not path.stat().st_size:
        raise NetworkError(f"{name} is empty; expected a network's file")
