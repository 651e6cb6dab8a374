"""Measures every node of a Ray cluster once: a task per node that reserves all its CPUs.

Frameworks run in the node's own measuring process, as everywhere; Ray only brings the call there and the
points back. Ray's workers run at a low priority (nice 15), so what else runs on a node shows in the noise.
"""

from __future__ import annotations

import getpass
import importlib
import os
import re
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lolat.errors import LolatError
from lolat.fitting.points import Point
from microbench import environment

ANSWER_S = 60.0  # until a node has said what it is
RETRIES = 1  # of a measurement whose process died, not its node; its journal is still there


@dataclass(frozen=True)
class Node:
    """A node of the cluster: Ray's id, where it is, its processor, and what Ray may give away of it."""

    id: str
    address: str
    host: str
    processor: str
    cpus: float
    gpus: float

    @property
    def name(self) -> str:
        """As part of a file name: host and processor."""
        return f"{environment.slug(self.host)}-{environment.slug(self.processor)}"


@dataclass(frozen=True)
class Measured:
    """What a node measured: as `microbench.learn.measure_blocks` returns it; `device`: its name; `journal`:
    where the node keeps it until `forget`."""

    points: list[Point]
    environment: dict[str, Any]
    noise: dict[str, Any]
    warnings: list[str]
    device: str
    journal: Path | None = None


Measure = Callable[[str, str | None, tuple[str, ...], bool], Measured]
"""Measures where it is called: (device, backend or None, its options, whether to start anew)."""


@dataclass(frozen=True)
class Failed:
    """A node that could not be asked or measured, and why."""

    name: str
    reason: str


def measure_here(
    device: str, backend: str | None, options: tuple[str, ...], restart: bool
) -> Measured:
    """Measure the predefined blocks on this machine; a run that was killed goes on. LolatError as there."""
    from microbench import backends
    from microbench.learn import measure_blocks
    from microbench.worker import pick

    started = time.monotonic()
    full_name = pick(device, options)[0] if backend is None else backends.joined(backend, options)
    folder = Path(tempfile.gettempdir()) / f"lolat-fleet-{getpass.getuser()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    name = environment.slug(f"{socket.gethostname()} {device} {full_name}")
    run = measure_blocks(full_name, device, folder / f"{name}.journal.jsonl", time.time(), restart)
    run.environment["seconds"] = round(time.monotonic() - started, 1)
    run.journal.close()
    label = environment.label_of(device, run.environment)
    return Measured(run.points, run.environment, run.noise, run.warnings, label, run.journal.path)


def survey(device: str) -> tuple[list[Node], list[Failed]]:
    """The nodes of the cluster that `ray` is connected to, asked what they are; and those that do not say.

    Nodes without CPUs to give away (a head that only directs), or without a GPU if `device` is gpu, are
    left out. They are in the order of their names.
    """
    ray, affinity = _ray()
    ask = ray.remote(num_cpus=0, max_retries=0)(describe)
    answers = {}
    for node in ray.nodes():
        has = node["Resources"]
        if node["Alive"] and has.get("CPU", 0) > 0 and (device == "cpu" or has.get("GPU", 0) > 0):
            there = affinity(node["NodeID"], soft=False)
            answers[ask.options(scheduling_strategy=there).remote()] = node
    waited = list(answers)
    done = ray.wait(waited, num_returns=len(waited), timeout=ANSWER_S)[0] if waited else []
    nodes, failed = [], []
    for reference, node in answers.items():
        address, has = node["NodeManagerAddress"], node["Resources"]
        if reference not in done:
            failed.append(Failed(address, f"no answer within {ANSWER_S:.0f} s"))
            continue
        try:
            host, processor = ray.get(reference)
        except ray.exceptions.RayError as error:
            failed.append(Failed(address, reason(error)))
            continue
        label = processor if device == "cpu" else device
        nodes.append(Node(node["NodeID"], address, host, label, has["CPU"], has.get("GPU", 0)))
    return sorted(nodes, key=lambda n: (n.name, n.address, n.id)), failed


def describe() -> tuple[str, str]:
    """(host, processor) of this machine."""
    return socket.gethostname(), environment.device_label("cpu")


def measure_nodes(
    nodes: Sequence[Node],
    device: str,
    backend: str | None,
    options: tuple[str, ...],
    restart: bool,
    measure: Measure = measure_here,
) -> Iterator[tuple[Node, Measured | Failed]]:
    """Measure each node, all at the same time but one at a time per host; each as it is done.

    A task waits until all CPUs of its node (all GPUs too, if that is the `device`) are free, and has
    them alone. A node that dies is one that Failed.
    """
    ray, affinity = _ray()
    task = ray.remote(max_retries=RETRIES)(_measure)
    waiting, running = list(nodes), dict[Any, Node]()
    while waiting or running:
        busy = {node.host for node in running.values()}
        for node in list(waiting):
            if node.host not in busy:
                busy.add(node.host)
                waiting.remove(node)
                started = task.options(
                    scheduling_strategy=affinity(node.id, soft=False),
                    num_cpus=node.cpus,
                    num_gpus=node.gpus if device != "cpu" else 0,
                )
                call = started.remote(measure, node.cpus, device, backend, options, restart)
                running[call] = node
        for reference in ray.wait(list(running), num_returns=1)[0]:
            node = running.pop(reference)
            try:
                answer = ray.get(reference)
            except ray.exceptions.RayError as error:
                answer = reason(error)
            yield node, Failed(node.name, answer) if isinstance(answer, str) else answer


def forget(node: Node, came: Measured | Failed) -> None:
    """Let a node remove its journal: what it measured is kept here. One that died has it for a day."""
    if isinstance(came, Measured) and came.journal is not None:
        ray, affinity = _ray()
        there = ray.remote(num_cpus=0, max_retries=0)(Path.unlink).options(
            scheduling_strategy=affinity(node.id, soft=False)
        )
        ray.wait([there.remote(came.journal, missing_ok=True)], timeout=ANSWER_S)


def _measure(
    measure: Measure, cpus: float, device: str, backend: str | None, options: tuple[str, ...], restart: bool
) -> Measured | str:  # fmt: skip
    """On the node: what was measured, or why not."""
    # Ray sets it to the CPUs that it reserved; a run without Ray has as many threads as there are.
    if os.environ.get("OMP_NUM_THREADS") == str(max(1, int(cpus))):
        del os.environ["OMP_NUM_THREADS"]
    try:
        return measure(device, backend, options, restart)
    except LolatError as error:
        return str(error)


def reason(error: Exception) -> str:
    """Why Ray has no answer, in a few words."""
    kind = type(error).__name__
    words = {
        "NodeDiedError": "the node died",
        "TaskUnschedulableError": "the node died",
        "WorkerCrashedError": "the measuring process or its node died",
        "OutOfMemoryError": "the node ran out of memory",
    }
    if kind in words:
        return words[kind]
    missing = re.search(r"No module named '([\w.]+)'", str(error))
    if missing:
        return f"it has no {missing[1]}: install the same LoLat there"
    lines = str(getattr(error, "cause", None) or error).split("\n")
    return f"{kind}: {' '.join(lines[0].split())[:200]}"


def _ray() -> tuple[Any, Any]:
    """(ray, what ties a task to a node)."""
    strategies = importlib.import_module("ray.util.scheduling_strategies")
    return importlib.import_module("ray"), strategies.NodeAffinitySchedulingStrategy
