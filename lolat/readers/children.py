"""Reads networks in child processes, so that a crash or an endless loop ends only the child."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import chain

import numpy as np

from lolat.errors import LolatError, NetworkError
from lolat.graph import Graph
from lolat.io.process import Child, Handler, ProcessDied, RequestFailed, scheduled_count
from lolat.io.progress import OnProgress
from lolat.readers.bundled import bundled_graph, check_name
from lolat.readers.cache import Cache
from lolat.readers.reading import read_now
from lolat.readers.size import AnySize, as_size
from lolat.units import shortened

LIMIT_S = 60.0
"""Time limit in seconds to read a network for the web page; the largest Keras network takes about 10."""
TABLE_LIMIT_S = 300.0
"""Time limit in seconds to read a network of a table while other networks are read in parallel."""
MOST_PROCESSES = 8
NO_GPU = {"CUDA_VISIBLE_DEVICES": "-1"}
"""Hides the GPU: reading needs none, and would take GPU memory from other running programs."""
_ONE_THREAD = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS",
               "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")  # fmt: skip

Spec = tuple[str, int | tuple[int, ...] | None]
"""NETWORK and its input size."""


def read_in_child(spec: str, size: AnySize = None, limit_s: float = LIMIT_S) -> Graph:
    """Read a network in a child process; NetworkError also if the child dies or exceeds `limit_s`."""
    check_name(spec)  # a child starts a framework, to say the same
    with _child() as child:
        return _answer(child, spec, size, limit_s)


def _child(shows_errors: bool = False) -> Child:
    environment = {**dict.fromkeys(_ONE_THREAD, "1"), **NO_GPU}
    start = "lolat.readers.children:start_reading"
    return Child(start, name="reading it", environment=environment, shows_errors=shows_errors)


def _answer(child: Child, spec: str, size: AnySize, limit_s: float) -> Graph:
    """Ask a child to read a network, and return its graph."""
    try:
        asked = {"network": spec, "size": as_size(size).given}
        return Graph.from_dict(child.request(asked, limit_s))
    except ProcessDied as died:
        raise NetworkError(
            f"{shortened(spec)}: {died}; expected a network that can be read in {limit_s:g} s"
        ) from None
    except RequestFailed as failed:
        raise failed.as_error(NetworkError) from None


def start_reading() -> Handler:
    """The function with which the child process answers requests."""
    return lambda asked: read_now(asked["network"], as_size(asked["size"])).to_dict()


# ---- The networks of a table.


def arrays_of(
    specs: Collection[Spec],
    name: str,
    array_of: Callable[[Graph], np.ndarray],
    on_progress: OnProgress | None = None,
) -> Iterator[tuple[Spec, np.ndarray | LolatError]]:
    """Yield (spec, `array_of(graph)`) for each of the distinct `specs`, in any order.

    Arrays that are cached under `name` come first; new arrays are cached. If a network cannot be read, or
    `array_of` raises a LolatError, the error takes the array's place. Other exceptions are raised.
    """
    cache = Cache()

    def made(spec: Spec, graph: Graph | LolatError) -> np.ndarray | LolatError:
        if isinstance(graph, LolatError):
            return graph
        try:
            array = np.asarray(array_of(graph))
        except LolatError as error:
            return error.with_traceback(None)
        cache.put_array(*spec, name, array)
        return array

    on_disk = {spec: a for spec in specs if (a := cache.array(*spec, name)) is not None}
    graphs = _graphs([spec for spec in specs if spec not in on_disk], cache)
    new = ((spec, made(spec, graph)) for spec, graph in graphs)
    for done, (spec, array) in enumerate(chain(on_disk.items(), new), start=1):
        if on_progress is not None:
            on_progress(done, len(specs), spec[0])
        yield spec, array


def _graphs(specs: list[Spec], cache: Cache) -> Iterator[tuple[Spec, Graph | LolatError]]:
    """Yield (spec, graph or error). One network is read in this process, several by one child per CPU."""
    count, threads = min(default_processes(), len(specs)), threading.local()
    children: list[Child] = []

    def read(spec: Spec) -> Graph | LolatError:
        name, size = spec[0], as_size(spec[1])
        try:
            return bundled_graph(name, size) or cache.read(
                name, size, lambda: read_now(name, size) if count == 1
                else _answer(child(), name, size, TABLE_LIMIT_S),
            )  # fmt: skip
        except LolatError as error:
            return error.with_traceback(None)  # a traceback would keep the network in memory

    def child() -> Child:
        """The child process of this thread; started again if it died."""
        if not hasattr(threads, "child") or not threads.child.is_running():
            threads.child = _child(shows_errors=True)
            children.append(threads.child)
        running: Child = threads.child
        return running

    if count < 2:
        yield from ((spec, read(spec)) for spec in specs)
        return
    with ThreadPoolExecutor(count) as pool:
        try:
            waiting = {pool.submit(read, spec): spec for spec in specs}
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        finally:  # also if the caller stops before the end
            pool.shutdown(wait=False, cancel_futures=True)
            for one in children:
                one.close()


def default_processes() -> int:
    """Number of CPUs that this process may use, at most MOST_PROCESSES."""
    return min(scheduled_count(), MOST_PROCESSES)
