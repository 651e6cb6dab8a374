"""The process that reads networks for the pages: started early, ended when it is slow, replaced when dead.

Keras is loaded there and not in the server, so that the page is there at once; and a file that crashes a
framework, or eats memory, ends that process alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from lolat.errors import InputError, LolatError, NetworkError
from lolat.graph import Graph
from lolat.io.process import Child, Handler, ProcessDied, RequestFailed, limit_memory

LIMIT_S = 60.0
"""For one network; the largest of keras.applications takes about ten."""
MEMORY_BYTES = 4 * 2**30
"""What reading may take on top of what the frameworks take themselves."""
TORCH_BYTES = 16 * 2**30
"""What PyTorch may take while it is loaded."""
AT_ONCE_S = 0.5


class Reader:
    """Reads one network at a time; not to be called by two threads at once."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.limit_s = limit_s
        self._process: Child | None = None
        self._lock = threading.Lock()  # of `_process`, which `close` takes from another thread
        self._closed = False

    def start(self) -> None:
        """Have a process that is ready; NetworkError where none comes up."""
        self._ready()

    @property
    def pid(self) -> int | None:
        """The process that reads, if there is one."""
        return None if self._process is None else self._process.pid

    def read(self, network: str, size: Sequence[int] = (), again: bool = False) -> Graph:
        """The network as a Graph; `network` is NETWORK of the command line, or a file's path.

        A process that is gone at once was dying before it was asked: another one is, once (`again`).

        NetworkError: what the reader says, or that the process ended or took more than `limit_s`.
        """
        process, began = self._ready(), time.monotonic()
        try:
            return Graph.from_dict(
                process.request({"network": network, "size": list(size)}, self.limit_s)
            )
        except ProcessDied as died:
            self._end()
            if not again and time.monotonic() - began < min(AT_ONCE_S, self.limit_s):
                return self.read(network, size, again=True)
            raise NetworkError(
                f"reading it was given up: it took more than {self.limit_s:g} s or too much memory; "
                "expected a network that can be read in that time"
            ) from died
        except (RequestFailed, InputError) as error:
            raise NetworkError(str(error)) from error

    def close(self) -> None:
        """End the process, and what is being read with it."""
        with self._lock:
            self._closed = True
        self._end()

    def _ready(self) -> Child:
        """The process, a new one where there is none or the last one has died."""
        if self._process is not None and not self._process.is_running():
            self._end()
        with self._lock:
            if self._closed:
                raise NetworkError("the server is stopping")
            if self._process is None:
                # No GPU is needed, and one would take its memory from whoever is training on it.
                self._process = Child(
                    "lolat.web.reading:start_reading", environment={"CUDA_VISIBLE_DEVICES": "-1"}
                )
            process = self._process
        try:
            process.ready()
        except (ProcessDied, RequestFailed) as problem:
            self._end()
            raise NetworkError(
                "the process that reads networks did not start; try again"
            ) from problem
        return process

    def _end(self) -> None:
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()


# ---- What goes on in that process


def start_reading(memory_bytes: int = MEMORY_BYTES) -> Handler:
    """What it does with requests, once what takes long is loaded; its memory is limited from then on."""
    from lolat.readers.keras import import_keras

    with contextlib.suppress(LolatError):  # without Keras the error is the answer to who needs it
        import_keras()
    limit_memory(memory_bytes, on_top=True)
    return answer


def _load_torch(network: str) -> None:
    """Load PyTorch for what needs it, once, on top of the limit of memory."""
    of_torch = network.endswith(".pt2") or network.partition(":")[0] in ("timm", "torchvision")
    if of_torch and "torch" not in sys.modules:
        from lolat.readers.torch import import_torch

        limit_memory(TORCH_BYTES, on_top=True)
        with contextlib.suppress(LolatError):
            import_torch()
        limit_memory(MEMORY_BYTES, on_top=True)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The Graph of the network that is asked for, as JSON has it; NetworkError, or what readers raise."""
    from lolat.readers import open_network, read

    network, size = request["network"], tuple(request["size"])
    _load_torch(network)
    try:
        if os.path.isfile(network):  # one that was sent to the page: nothing of it is kept on disk
            return open_network(network, size).graph().to_dict()
        return read(network, size).to_dict()
    except LolatError:
        raise
    except MemoryError:
        raise NetworkError(
            f"reading it needs more than {MEMORY_BYTES / 2**30:.0f} GiB of memory; expected a "
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
