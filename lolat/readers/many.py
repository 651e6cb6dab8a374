"""Many networks read at once by several children, and the arrays made of them cache on disk."""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any

import numpy as np

from lolat.errors import InputError, LolatError, NetworkError
from lolat.graph import Graph
from lolat.readers import read_now
from lolat.readers.apart import NO_GPU, Reader
from lolat.readers.cache import Cache
from lolat.readers.code import brief
from lolat.readers.size import as_sizes
from lolat.units import shortened

Spec = tuple[str, Any]
"""NETWORK and its input size, as `lolat.readers.read` takes them."""
Said = Callable[[int, int, str], None]

MOST_PROCESSES = 8
LEAST_GIB = 2.0  # PyTorch or TensorFlow alone takes almost one
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
               "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")  # fmt: skip
_ENVIRONMENT = {**dict.fromkeys(_ONE_THREAD, "1"), **NO_GPU}


def arrays_of(
    specs: Iterable[Spec],
    name: str,
    of: Callable[[Graph], np.ndarray],
    cache: Cache,
    *,
    processes: int | None = None,
    limit_s: float = 300.0,
    memory_gib: float | None = None,
    said: Said | None = None,
) -> Iterator[tuple[Spec, np.ndarray | LolatError]]:
    """For each of `specs`, once: the array `name` of the network, which is `of(graph)`; in any order.

    Arrays in the cache come first. Other networks are read by `processes` children (default: one per
    CPU that may be used, at most 8), each with one thread; one network, or all with `processes=1`, in this
    process, without limits. A network that cannot be read has its error in the array's place: so has one
    that takes longer than `limit_s` seconds, ends its child, or needs more memory than `memory_gib` (GiB of
    data; default: the machine's memory, at least 2, as weights that nothing fills count too).

    `said(done, total, spec)` is called after each. Raises errors of `of` that are no LolatError.
    """
    distinct = list({(spec, repr(size)): (spec, size) for spec, size in specs}.values())
    count = default_processes() if processes is None else processes
    memory = max(LEAST_GIB, machine_gib()) if memory_gib is None else memory_gib
    waiting: list[Spec] = []

    def results() -> Iterator[tuple[Spec, np.ndarray | LolatError]]:
        for spec in distinct:
            try:
                array = cache.array(*spec, name)
            except InputError as error:  # a wrong size
                yield spec, error.with_traceback(None)
                continue
            if array is None:
                waiting.append(spec)
            else:
                yield spec, array
        graphs: Iterator[tuple[Spec, Graph | LolatError]]
        if count == 1 or len(waiting) == 1:
            graphs = ((spec, _read(spec, cache, _read_here)) for spec in waiting)
        else:
            graphs = _read_by_children(waiting, cache, count, limit_s, memory)
        for spec, graph in graphs:
            yield spec, _array(spec, graph, name, of, cache)

    for done, (spec, array) in enumerate(results(), start=1):
        if said is not None:
            said(done, len(distinct), spec[0])
        yield spec, array


def _array(
    spec: Spec,
    graph: Graph | LolatError,
    name: str,
    of: Callable[[Graph], np.ndarray],
    cache: Cache,
) -> np.ndarray | LolatError:
    """The array of a network, cache; or why there is none."""
    if isinstance(graph, LolatError):
        return graph
    try:
        array = np.asarray(of(graph))
    except LolatError as error:
        return error.with_traceback(None)
    cache.put_array(*spec, name, array)
    return array


def _read(spec: Spec, cache: Cache, read: Callable[[str, Any], Graph]) -> Graph | LolatError:
    """The network, from the cache or read; or why it cannot be read."""
    try:
        return cache.read(*spec, lambda: read(*spec))
    except LolatError as error:
        return error.with_traceback(None)  # the frames would hold on to the network


def _read_here(spec: str, size: Any) -> Graph:
    """The network, read in this process; whatever a framework raises is a NetworkError."""
    try:
        return read_now(spec, as_sizes(size))
    except (LolatError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise NetworkError(f"{shortened(spec)} cannot be read ({brief(error)})") from error


def _read_by_children(
    specs: list[Spec], cache: Cache, count: int, limit_s: float, memory_gib: float
) -> Iterator[tuple[Spec, Graph | LolatError]]:
    """The networks as they come: each thread has one reader, and so one child, at a time."""
    readers = [
        Reader(limit_s, memory_gib, "", _ENVIRONMENT, shows_errors=True)
        for _ in range(min(count, len(specs)))
    ]
    free: queue.SimpleQueue[Reader] = queue.SimpleQueue()
    for reader in readers:
        free.put(reader)

    def read(spec: Spec) -> Graph | LolatError:
        reader = free.get()
        try:
            return _read(spec, cache, reader.read)
        finally:
            free.put(reader)

    with ThreadPoolExecutor(max(len(readers), 1)) as pool:
        try:
            waiting = {pool.submit(read, spec): spec for spec in specs}
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:  # also where nobody asks for more
            pool.shutdown(wait=False, cancel_futures=True)
            for reader in readers:
                reader.close()


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
