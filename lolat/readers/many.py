"""Many networks read at once, in processes of their own, and what was made of each kept on disk.

A process is a ProcessPoolExecutor of one worker: where one dies it is clear what it was reading, and the
others go on. It is renewed here, as `max_tasks_per_child` of a larger one hangs in Python 3.11 and 3.12
(python/cpython#115634).
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import pickle
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from lolat.errors import InputError, LolatError, NetworkError
from lolat.graph import Graph
from lolat.readers import read
from lolat.readers.cache import Cache, ending_of
from lolat.units import one_line, shortened

# ---- One network of many: read within limits of time and memory, what is made of it kept; and
# the process that does so for one after another.

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
    kept: Cache
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


# ---- many ----------------------------------------

Said = Callable[[int, int, str], None]
Answer = Future[tuple[Found, list[str]]]

MOST_PROCESSES = 8
LEAST_GIB = 2.0  # PyTorch or TensorFlow alone takes almost one
RENEWED = 64  # networks; what frameworks keep of each adds up


def arrays_of(
    specs: Iterable[Asked],
    name: str,
    of: Callable[[Graph], np.ndarray],
    kept: Cache,
    *,
    processes: int | None = None,
    limit_s: float = 300.0,
    memory_gib: float | None = None,
    said: Said | None = None,
) -> Iterator[tuple[Asked, Found]]:
    """For each of `specs`, once: the array `name` of the network, which is `of(graph)`; as they come.

    What `kept` has comes first and starts no process. The rest is made in `processes` (default: one per
    CPU that may be used, at most 8), each with one thread, and kept at once; `of` is then a function
    at the top of a module. One network, or `processes=1`, is read in this process.

    A network that cannot be read has its error in the array's place, and the others go on. So has one
    that takes longer than `limit_s` seconds (in this process: only in its main thread), ends its process,
    or needs more memory than `memory_gib` (GiB of data of one process; default: the machine's
    memory, at least 2, as weights that nothing fills count too; in this process: no limit).

    `said(done, total, spec)` is called after each. Raises InputError for a name or options that are none,
    LolatError where no process can be started, and what `of` raises, if that is no LolatError.
    """
    ending_of(name)  # or InputError, once and not for each network
    count = _processors() if processes is None else processes
    if count < 1:
        raise InputError(f"processes {processes!r}: expected a whole number from 1")
    memory = max(LEAST_GIB, _memory_gib()) if memory_gib is None else memory_gib
    for limit, unit in ((limit_s, "s"), (memory, "GiB")):
        if not 0 < limit < math.inf:
            raise InputError(f"a limit of {limit!r} {unit}: expected a number above 0")
    distinct = list({(spec, repr(size)): (spec, size) for spec, size in specs}.values())
    found = _arrays(distinct, Task(name, of, kept, limit_s, memory), count)
    return found if said is None else _told(found, len(distinct), said)


def _told(
    found: Iterator[tuple[Asked, Found]], total: int, said: Said
) -> Iterator[tuple[Asked, Found]]:
    for done, (asked, array) in enumerate(found, start=1):
        said(done, total, asked[0])
        yield asked, array


def _arrays(distinct: list[Asked], task: Task, count: int) -> Iterator[tuple[Asked, Found]]:
    waiting = []
    for asked in distinct:
        array: Found | None
        try:
            array = task.kept.array(*asked, task.name)
        except InputError as error:  # a size that is none
            array = error
        if array is None:
            waiting.append(asked)
        else:
            yield asked, array
    if count == 1 or len(waiting) == 1:
        yield from ((asked, made(asked, task)) for asked in waiting)
    else:
        yield from _in_processes(waiting, task, count)


def _in_processes(asked: list[Asked], task: Task, count: int) -> Iterator[tuple[Asked, Found]]:
    try:
        pickle.dumps(task.of)
    except Exception as error:  # of several kinds
        raise InputError(
            f"{task.of!r} cannot be given to another process ({error}); expected a function at the top of "
            "a module, or processes=1"
        ) from error
    waiting, idle = deque(asked), list[_Worker]()
    running: dict[Answer, _Worker] = {}
    found: list[tuple[Asked, Found]] = []
    try:
        while waiting or running:
            while waiting and len(running) < count:
                worker = idle.pop() if idle else _Worker(task)
                try:
                    running[worker.take(waiting[0])] = worker
                    waiting.popleft()
                except BrokenProcessPool:  # killed while it had nothing to do
                    worker.end()
            yield from found  # while the processes go on
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            found = []
            for answer in done:
                worker = running.pop(answer)
                idle.append(worker)  # at once, so that it is ended where its answer is raised
                found.append((worker.asked, worker.result(answer)))
                if worker.is_over:
                    idle.pop().end()
        yield from found
    finally:
        for worker in (*idle, *running.values()):
            worker.end()


class _Worker:
    """A process that reads one network after another."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.asked: Asked = ("", None)
        self.is_over = False
        self._begun, self._count = 0.0, 0
        self._listens, self._life = Pipe(duplex=False)
        ends = (self._listens, task.memory_gib)
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), prepare, ends)
        with _interrupts_held():
            self._start = self._pool.submit(ready, task)

    def take(self, asked: Asked) -> Answer:
        """Have it read a network; BrokenProcessPool where it has died, LolatError if at its start."""
        try:
            answer = self._pool.submit(made_here, asked, self.task)
        except BrokenProcessPool as error:
            self._check_start(error)
            raise
        self.asked, self._begun, self._count = asked, time.monotonic(), self._count + 1
        return answer

    def result(self, answer: Answer) -> Found:
        """What became of the network; LolatError where the process did not even start."""
        self.is_over = self._count >= RENEWED
        try:
            found, remarks = answer.result()
        except BrokenProcessPool as error:
            self.is_over = True
            self._check_start(error)
            if time.monotonic() - self._begun > self.task.limit_s:
                return too_long(self.asked, self.task)
            why = f"more than {self.task.memory_gib:.3g} GiB of memory, or a framework crashed"
            return left_out(self.asked, f"ended the process that read it ({why})")
        for remark in remarks:
            self.task.kept.remark(remark)
        return found

    def _check_start(self, error: BrokenProcessPool) -> None:
        if self._start.exception() is not None:
            raise LolatError(
                "no process could be started to read networks in; a script that asks for many has to do "
                'so under `if __name__ == "__main__":`, with a function that can be imported, or with '
                "processes=1"
            ) from error

    def end(self) -> None:
        """End the process, whatever it is doing."""
        with contextlib.suppress(OSError):
            self._life.send_bytes(b"end")  # closing it is not enough if a fork of ours has it too
        self._life.close()
        self._listens.close()
        self._pool.shutdown(wait=False, cancel_futures=True)


@contextlib.contextmanager
def _interrupts_held() -> Iterator[None]:
    """A process started in here gets no Ctrl-C before `prepare`: it would print a traceback."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _processors() -> int:
    """CPUs that this process may use, at most MOST_PROCESSES."""
    able = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(able or 1, MOST_PROCESSES)


def _memory_gib() -> float:
    """Memory of this machine; 0 where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    except (AttributeError, ValueError, OSError):
        return 0.0
