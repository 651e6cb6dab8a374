"""Many networks read at once, in processes of their own, and what was made of each kept on disk.

Each process reads one network at a time: where one dies it is clear what it was reading, and the others
go on.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import os
import pickle
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lolat.errors import InputError, LolatError, NetworkError
from lolat.graph import Graph
from lolat.io import FILES_APART
from lolat.io.process import (
    Child,
    Handler,
    ProcessDied,
    RequestFailed,
    ends_by_itself,
    limit_memory,
)
from lolat.readers import read_now
from lolat.readers.apart import lacks_memory
from lolat.readers.cache import Cache
from lolat.readers.size import as_sizes
from lolat.units import one_line, shortened

Spec = tuple[str, Any]
"""NETWORK and its input size, as `lolat.readers.read` takes them."""
Result = np.ndarray | LolatError
Said = Callable[[int, int, str], None]

MOST_PROCESSES = 8
LEAST_GIB = 2.0  # PyTorch or TensorFlow alone takes almost one
GRACE_S = 10.0
"""After the limit of time, for code that cannot be interrupted; then its process ends."""
RENEWED = 64  # networks; what frameworks keep of each adds up
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
               "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")  # fmt: skip
# No GPU is needed, and one would take its memory from whoever is training on it.
_ENVIRONMENT = {**dict.fromkeys(_ONE_THREAD, "1"), "CUDA_VISIBLE_DEVICES": "-1"}


@dataclass(frozen=True)
class Task:
    """What is made of each network, and the limits: seconds for one, GiB of data for its process.

    `apart`: whether what may do harm is read in one more process.
    """

    name: str
    of: Callable[[Graph], np.ndarray]
    kept: Cache
    limit_s: float
    memory_gib: float
    apart: bool


def arrays_of(
    specs: Iterable[Spec],
    name: str,
    of: Callable[[Graph], np.ndarray],
    kept: Cache,
    *,
    processes: int | None = None,
    limit_s: float = 300.0,
    memory_gib: float | None = None,
    said: Said | None = None,
) -> Iterator[tuple[Spec, Result]]:
    """For each of `specs`, once: the array `name` of the network, which is `of(graph)`; as they come.

    What `kept` has comes first and starts no process. The rest is made in `processes` (default: one per
    CPU that may be used, at most 8), each with one thread, and kept at once; `of` is then a function
    at the top of a module. One network, or `processes=1`, is read in this process.

    A network that cannot be read has its error in the array's place, and the others go on. So has one
    that takes longer than `limit_s` seconds (in this process: only in its main thread), ends its process,
    or needs more memory than `memory_gib` (GiB of data of one process; default: the machine's
    memory, at least 2, as weights that nothing fills count too; in this process: no limit).

    `said(done, total, spec)` is called after each. Raises LolatError where no process can be started, and
    what `of` raises, if that is no LolatError.
    """
    count = default_processes() if processes is None else processes
    memory = max(LEAST_GIB, machine_gib()) if memory_gib is None else memory_gib
    distinct = list({(spec, repr(size)): (spec, size) for spec, size in specs}.values())
    task = Task(name, of, kept, limit_s, memory, FILES_APART.get())
    return _arrays(distinct, task, count, said)


def _arrays(
    specs: list[Spec], task: Task, count: int, said: Said | None
) -> Iterator[tuple[Spec, Result]]:
    waiting: list[Spec] = []

    def results() -> Iterator[tuple[Spec, Result]]:
        for spec in specs:
            array: Result | None
            try:
                array = task.kept.array(*spec, task.name)
            except InputError as error:  # a size that is none
                array = error
            if array is None:
                waiting.append(spec)
            else:
                yield spec, array
        if count == 1 or len(waiting) == 1:
            yield from ((spec, array_of(spec, task)) for spec in waiting)
        elif waiting:
            yield from _in_processes(waiting, task, min(count, len(waiting)))

    for done, (spec, array) in enumerate(results(), start=1):
        if said is not None:
            said(done, len(specs), spec[0])
        yield spec, array


# ---- One network, in this process or in one of its own


def array_of(spec: Spec, task: Task, limited: bool = False) -> Result:
    """The array of one network, kept with its graph, or why there is none.

    `limited`: the process has a limit of memory. Raises what `task.of` raises, if it is no LolatError.
    """
    try:
        with _within(task.limit_s):
            array = np.asarray(task.of(task.kept.read(*spec, lambda: _read(spec))))
        task.kept.put_array(*spec, task.name, array)
        return array
    except _TooLongError:
        return _too_long(spec, task)
    except (LolatError, MemoryError) as error:
        if isinstance(error, MemoryError) or lacks_memory(error):
            most = f"{task.memory_gib:.3g} GiB of memory" if limited else "the memory that there is"
            return _left_out(spec, f"needs more than {most} to read")
        return copy.copy(error)  # without the frames, which hold on to the network


def _left_out(spec: Spec, why: str) -> NetworkError:
    return NetworkError(f"{shortened(spec[0])} {why}; it was left out")


def _too_long(spec: Spec, task: Task) -> NetworkError:
    return _left_out(spec, f"took longer than {task.limit_s:g} s to read")


def _read(spec: Spec) -> Graph:
    """The network's graph; whatever a framework raises is a NetworkError."""
    try:
        return read_now(spec[0], as_sizes(spec[1]))
    except (LolatError, MemoryError, KeyboardInterrupt):
        raise
    except RecursionError as error:
        raise NetworkError(f"{shortened(spec[0])} is nested too deeply to be read") from error
    except BaseException as error:
        raise NetworkError(
            f"{shortened(spec[0])} cannot be read ({type(error).__name__}: {one_line(error)})"
        ) from error


class _TooLongError(KeyboardInterrupt):
    """The time is over. As Ctrl-C: readers turn whatever else is raised into answers of their own."""


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


# ---- Many, in processes: a thread for each of them asks it for one network after another


def _in_processes(specs: list[Spec], task: Task, count: int) -> Iterator[tuple[Spec, Result]]:
    crew = _Crew(specs, task)
    try:
        for _ in range(count):
            threading.Thread(target=crew.work, daemon=True).start()
        for _ in specs:
            result = crew.results.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        crew.end()


class _Crew:
    """The processes that share out `specs`; `results` has what becomes of each, or what nobody foresaw."""

    def __init__(self, specs: list[Spec], task: Task) -> None:
        self.task = task
        self.packed = _packed(task)
        self.waiting: queue.SimpleQueue[Spec] = queue.SimpleQueue()
        for spec in specs:
            self.waiting.put(spec)
        self.results: queue.SimpleQueue[tuple[Spec, Result] | BaseException] = queue.SimpleQueue()
        self.children: list[Child] = []
        self.lock = threading.Lock()
        self.ended = False

    def work(self) -> None:
        """Have a process read what is waiting, until nothing is; in a thread of its own."""
        child, number = None, 0
        try:
            while True:
                spec = self.waiting.get_nowait()
                if child is None or number >= RENEWED or not child.is_running():
                    if child is not None:
                        child.close()
                    child, number = self._start(), 0
                number += 1
                self.results.put((spec, self._result(child, spec)))
        except queue.Empty:
            pass
        except BaseException as error:
            self.results.put(error)  # nobody looks where this one has ended

    def end(self) -> None:
        """End all processes, whatever they are doing."""
        with self.lock:
            self.ended = True
            children = list(self.children)
        for child in children:
            child.close()

    def _start(self) -> Child:
        with self.lock:
            if self.ended:
                raise LolatError("nobody asks for more networks")
            child = Child("lolat.readers.many:start_reading", self.packed,
                          environment=_ENVIRONMENT, shows_errors=True)  # fmt: skip
            self.children.append(child)
        try:
            child.ready()
        except (ProcessDied, RequestFailed) as problem:
            raise LolatError(
                f"no process could be started to read networks in ({problem}); close other programs, "
                "and try again"
            ) from problem
        return child

    def _result(self, child: Child, spec: Spec) -> Result:
        task, begun = self.task, time.monotonic()
        try:
            answer = child.request(_packed(spec), task.limit_s + GRACE_S)
        except ProcessDied:
            if time.monotonic() - begun > task.limit_s:
                return _too_long(spec, task)
            why = f"more than {task.memory_gib:.3g} GiB of memory, or a framework crashed"
            return _left_out(spec, f"ended the process that read it ({why})")
        except RequestFailed as failed:  # its answer could not be made or sent
            raise failed.as_error(LolatError) from failed
        result, remarks = _unpacked(answer)
        for remark in remarks:
            task.kept.remark(remark)
        if isinstance(result, Exception) and not isinstance(result, LolatError):
            raise result
        return result


def start_reading(packed: str) -> Handler:
    """What a process does with networks."""
    task: Task = _unpacked(packed)
    FILES_APART.set(task.apart)
    limit_memory(int(task.memory_gib * 2**30))
    return partial(_answer, task)


def _answer(task: Task, packed: str) -> str:
    """A network's array or error, or what the task's function raised, and the remarks of what keeps it."""
    result: Result | Exception
    try:
        with ends_by_itself(task.limit_s + 2 * GRACE_S):  # where nobody is left to do it
            result = array_of(_unpacked(packed), task, limited=True)
    except Exception as error:
        result = error
    return _packed((result, task.kept.remarks))


def _packed(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode("ascii")


def _unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


def default_processes() -> int:
    """CPUs that this process may use, at most MOST_PROCESSES."""
    able = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(able or 1, MOST_PROCESSES)


def machine_gib() -> float:
    """Memory of this machine; 0 where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    except (AttributeError, ValueError, OSError):
        return 0.0
