"""One network of many: read within limits of time and memory, what is made of it kept; and the process
that does so for one after another.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from lolat.errors import LolatError, NetworkError
from lolat.graph import Graph
from lolat.readers import read
from lolat.readers.kept import Kept
from lolat.readers.wording import one_line, shortened

Asked = tuple[str, Any]
"""NETWORK and its input size, as `lolat.readers.read` takes them."""
Found = np.ndarray | LolatError

GRACE_S = 10.0
"""After the limit of time, for code that cannot be interrupted; then its process ends."""
_ONE = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS",
        "TF_NUM_INTEROP_THREADS")  # fmt: skip
_NO_MEMORY = ("allocate memory", "bad_alloc", "OOM when")


@dataclass(frozen=True)
class Task:
    """What is made of each network, and the limits: seconds for one, GiB of data for its process."""

    name: str
    of: Callable[[Graph], np.ndarray]
    kept: Kept
    limit_s: float
    memory_gib: float


def made(asked: Asked, task: Task, limited: bool = False) -> Found:
    """The array of one network, kept with its graph, or why there is none.

    `limited`: `prepare` has set the limit of memory. Raises what `task.of` raises, if it is no LolatError.
    """
    try:
        with _within(task.limit_s):
            graph = task.kept.graph(*asked)
            if graph is None:
                graph = _read(asked)
                task.kept.put(*asked, graph)
            array = np.asarray(task.of(graph))
        task.kept.put_array(*asked, task.name, array)
        return array
    except _TooLongError:
        return too_long(asked, task)
    except (LolatError, MemoryError) as error:
        if isinstance(error, MemoryError) or _lacks_memory(error):
            most = f"{task.memory_gib:.3g} GiB of memory" if limited else "the memory that there is"
            return left_out(asked, f"needs more than {most} to read")
        return type(error)(*error.args)  # without the frames, which hold on to the network


def left_out(asked: Asked, why: str) -> NetworkError:
    """The error in the place of a network's array."""
    return NetworkError(f"{shortened(asked[0])} {why}; it was left out")


def too_long(asked: Asked, task: Task) -> NetworkError:
    """The error of a network that took longer than the limit."""
    return left_out(asked, f"took longer than {task.limit_s:g} s to read")


def _read(asked: Asked) -> Graph:
    """The network's graph; whatever a framework raises is a NetworkError."""
    try:
        return read(*asked)
    except (LolatError, MemoryError):
        raise
    except RecursionError as error:
        raise NetworkError(f"{shortened(asked[0])} is nested too deeply to be read") from error
    except (Exception, SystemExit) as error:
        raise NetworkError(
            f"{shortened(asked[0])} cannot be read ({type(error).__name__}: {one_line(error)})"
        ) from error


def _lacks_memory(error: BaseException) -> bool:
    """Whether one of the errors that an error was made of says that memory was refused."""
    seen: list[BaseException] = []
    one: BaseException | None = error
    while one is not None and one not in seen:
        seen.append(one)
        one = one.__cause__ or one.__context__
    return any(isinstance(e, MemoryError) or any(n in str(e) for n in _NO_MEMORY) for e in seen)


class _TooLongError(BaseException):
    """The time is over. No Exception: readers turn those into answers of their own, and go on."""


@contextlib.contextmanager
def _within(limit_s: float) -> Iterator[None]:
    """Raises _TooLongError inside after `limit_s`, where signals can be had: in the main thread.

    A timer of somebody else goes on afterwards.
    """
    main = threading.current_thread() is threading.main_thread()
    if not main or not hasattr(signal, "setitimer"):
        yield
        return
    inside = True

    def ring(*_: object) -> None:
        if inside:
            raise _TooLongError

    begun = time.monotonic()
    before = signal.signal(signal.SIGALRM, ring)
    # Each second again: the first may come where exceptions are swallowed, in a callback of C say.
    left, interval = signal.setitimer(signal.ITIMER_REAL, limit_s, 1.0)
    try:
        try:
            yield
        finally:
            inside = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL if before is None else before)
        if left:
            gone = time.monotonic() - begun
            signal.setitimer(signal.ITIMER_REAL, max(left - gone, 1e-3), interval)


def prepare(life: Connection, memory_gib: float) -> None:
    """Make a new process fit to read: one thread, no GPU, the limit of memory, an end with its parent.

    `life`: what is closed when the process has to end, by its parent or by the parent's death.
    """
    threading.Thread(target=_end_with, args=(life,), daemon=True).start()
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as behind nohup
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it, wherever its parent is
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    with contextlib.suppress(OSError):  # of a program without stderr
        os.dup2(2, 1)  # stdout may be promised to JSON
    os.environ.update(dict.fromkeys(_ONE, "1"))
    # None is needed, and one would take its memory from whoever is training on it.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    if torch := sys.modules.get("torch"):  # imported with the parent's script, before this
        torch.set_num_threads(1)
    with contextlib.suppress(ImportError, OSError, ValueError):  # where there is none of it
        import resource

        most = int(memory_gib * 2**30)
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        soft = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _end_with(life: Connection) -> None:
    with contextlib.suppress(EOFError, OSError):
        life.recv_bytes()
    os._exit(1)


def ready(task: Task) -> None:
    """The first thing to do in a new process: have the task arrive, with the module of its function."""


def made_here(asked: Asked, task: Task) -> tuple[Found, list[str]]:
    """`made` in a process of `prepare`, and the remarks of what keeps it.

    A process that the limit of time cannot interrupt (it is busy in C) ends GRACE_S later.
    """
    with open(os.devnull, "w", encoding="ascii") as nowhere:
        faulthandler.dump_traceback_later(task.limit_s + GRACE_S, exit=True, file=nowhere)
        try:
            return made(asked, task, limited=True), task.kept.remarks
        finally:
            faulthandler.cancel_dump_traceback_later()
