"""Networks read in child processes, with limits of time and memory.

A file that crashes a framework, or needs all memory, ends its child alone; and so does a network's function
that exits, never ends or writes where it should not. The pages read all networks so, the command line those
of files and functions, and a table's many networks are read by several children at once.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lolat.errors import InputError, LolatError, NetworkError
from lolat.graph import Graph
from lolat.io.process import Child, Handler, ProcessDied, RequestFailed
from lolat.readers.code import attribute_of, brief, is_function
from lolat.readers.size import as_sizes
from lolat.units import shortened

ENDINGS = (".keras", ".onnx", ".json")
MIB = 2**20
LIMIT_S = 60.0
"""For one network; the largest of keras.applications takes about ten. LOLAT_READ_S gives more."""
MEMORY_GIB = 2.0
"""On top of the frameworks themselves. LOLAT_READ_GIB gives more."""
LOADING_BYTES = 16 * 2**30
"""For PyTorch, or a module of the user's that loads a framework, while it is loaded."""
RENEWED = 64
"""Networks that one child reads; the memory that frameworks keep of each adds up."""
NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}
"""No GPU is needed, and one would take its memory from whoever is training on it."""
_NO_MEMORY = ("allocate memory", "bad_alloc", "OOM when")


def is_apart(spec: str) -> bool:
    """Whether NETWORK may do harm: a framework's file, a configuration, or a function."""
    kind, _, file = spec.partition(":")
    is_file = _ending(spec) in (".keras", ".onnx") or kind == "transformers"
    name = file.partition("?")[0] if kind == "transformers" else spec
    return (is_file and os.path.isfile(name)) or is_function(spec)


def read_apart(spec: str, size: Any) -> Graph:
    """The network in a file or of a function, read by a new child within the user's limits."""
    limits = limit("LOLAT_READ_S", LIMIT_S), limit("LOLAT_READ_GIB", MEMORY_GIB)
    # A function may ask for the GPU, and its output is for whoever wrote it.
    options: dict[str, Any] = {"environment": {}, "shows_errors": True} if is_function(spec) else {}
    with contextlib.closing(Reader(*limits, _ending(spec), **options)) as reader:
        return reader.read(spec, size)


def limit(variable: str, usual: float) -> float:
    """A limit of reading, which an environment variable may set; InputError where that is no number."""
    text = os.environ.get(variable) or str(usual)
    with contextlib.suppress(ValueError):
        if 0 < float(text) <= 1e6:
            return float(text)
    raise InputError(
        f"the environment variable {variable} is {shortened(text)!r}; expected a number above 0 to 1e+06, "
        f"such as {4 * usual:g}"
    )


def _ending(spec: str) -> str:
    """The ending of a file's name, in small letters; of a name of Keras' that of its files."""
    return ".keras" if spec.startswith("keras:") else os.path.splitext(spec)[1].lower()


def check_file(path: Path, name: str) -> None:
    """NetworkError unless the file at `path`, which the user calls `name`, may be a network's."""
    kind = Path(name).suffix.lower()
    if kind not in ENDINGS:
        form = f"a {kind} file" if kind else "without an ending"
        raise NetworkError(f"{name} is {form}; expected one of {', '.join(ENDINGS)}")
    if not path.stat().st_size:
        raise NetworkError(f"{name} is empty; expected a network's file")


# ---- The parent's side


class Reader:
    """Reads one network at a time in a child process, and in a new one where that died or was too slow.

    `limit_s` and `memory_gib`: the limits for one network. `ending`: the files whose framework is loaded
    before. Any thread may close it.
    """

    def __init__(
        self, limit_s: float = LIMIT_S, memory_gib: float = MEMORY_GIB, ending: str = ".keras",
        environment: Mapping[str, str] = NO_GPU, shows_errors: bool = False,
    ) -> None:  # fmt: skip
        self.limit_s, self.memory_gib, self.ending = limit_s, memory_gib, ending
        self._options: dict[str, Any] = {"environment": environment, "shows_errors": shows_errors}
        self._child: Child | None = None
        self._count, self._closed = 0, False
        self._one = threading.RLock()

    def start(self) -> Child:
        """The child, ready; a new one where there is none. NetworkError where none comes up."""
        with self._one:
            if self._child and (self._count >= RENEWED or not self._child.is_running()):
                self._end()
            if self._closed:
                raise NetworkError("networks are read no more: the program is ending")
            if self._child is None:
                arguments = ("lolat.readers.apart:start_reading", self.ending, str(self.memory_gib))
                self._child, self._count = Child(*arguments, name="reading it", **self._options), 0
            child = self._child
            try:
                child.ready()
            except (ProcessDied, RequestFailed) as problem:
                self._end()
                raise NetworkError(f"no process to read networks in: {problem}") from problem
            return child

    def read(self, network: str, size: Any = ()) -> Graph:
        """The network as a Graph; NetworkError: the reader's own, or that a limit was reached."""
        with self._one:
            try:
                request = {"network": network, "size": size}
                answer = self.start().request(request, self.limit_s)
                self._count += 1
                return Graph.from_dict(answer)
            except ProcessDied as died:
                self._end()
                raise NetworkError(
                    f"{shortened(network)}: {died}; expected a network that can be read in "
                    f"{self.limit_s:g} s and {self.memory_gib:g} GiB (the environment variables "
                    "LOLAT_READ_S and LOLAT_READ_GIB give more)"
                ) from None
            except RequestFailed as failed:
                error = failed.as_error(NetworkError)
                if type(error) is NetworkError and Path(network).stem not in error.message:
                    error = error.reworded(f"{shortened(network)}: {error.message}")
                raise error from None

    def close(self) -> None:
        """End the child, and with it the network that another thread has it read."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.close()


# ---- The child's side


def start_reading(ending: str, memory_gib: str = str(MEMORY_GIB)) -> Handler:
    """The child's handler of requests; frameworks are loaded before its memory is limited."""
    memory_bytes = round(float(memory_gib) * 2**30)
    with contextlib.suppress(LolatError):  # it is raised again for whoever needs the framework
        if ending == ".keras":
            from lolat.readers.keras import import_keras

            import_keras()
        elif ending == ".onnx":
            from lolat.readers.onnx import import_onnx

            import_onnx()
    return lambda request: answer(request, memory_bytes)


def _load(network: str, memory_bytes: int) -> None:
    """Load PyTorch, or a function's module, once, before the memory is limited again."""
    of_torch = network.partition(":")[0] in ("timm", "torchvision", "transformers")
    if is_function(network) or (of_torch and "torch" not in sys.modules):
        if of_torch:
            from lolat.readers.torch import import_torch

            with contextlib.suppress(LolatError):
                import_torch()
        else:
            attribute_of(network, "network", "a function that returns one")


def answer(
    request: dict[str, Any], memory_bytes: int = round(MEMORY_GIB * 2**30)
) -> dict[str, Any]:
    """The Graph of a network, as JSON data; NetworkError, or what readers raise."""
    from lolat.readers import open_network

    network = request["network"]
    try:
        _load(network, memory_bytes)
        return open_network(network, as_sizes(request["size"])).graph().to_dict()
    except BaseException as error:  # whatever a damaged file makes a framework raise
        if _lacks_memory(error):
            raise NetworkError(
                f"reading it needs more than {memory_bytes / 2**30:.3g} GiB of memory; expected a network "
                "that can be read in that: the environment variable LOLAT_READ_GIB gives more"
            ) from None
        if isinstance(error, LolatError):
            raise
        # Of a file the words may be anybody's.
        words = brief(error) if is_function(network) else type(error).__name__
        raise NetworkError(f"it cannot be read ({words}); expected a network") from error


def _lacks_memory(error: BaseException) -> bool:
    """Whether an error, or one that it was made of, says that memory was refused."""
    seen: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in seen:
        seen.append(one)
        one = one.__cause__ or one.__context__
    return any(isinstance(e, MemoryError) or any(n in str(e) for n in _NO_MEMORY) for e in seen)
