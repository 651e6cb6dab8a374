"""What tests of measuring share: a worker without framework and time, a backend without one, graphs."""

from __future__ import annotations

import importlib
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lolat.errors import DeviceError, MeasuringError
from lolat.graph import Graph, Operation
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from lolat.io.process import Handler, ProcessDied, RequestFailed
from microbench import backends, worker
from microbench.backends import Prepared
from microbench.blocks import BLOCKS, NETWORKS, Predefined

START_S = 1.7e9


class FakeDevice:
    """Starts workers; all of them write what they are asked into `asked`: (worker, verb, key).

    `dies` and `refuses`: (verb, key) -> how many times (a large number: always). Every request takes
    `request_s` seconds of the fake `clock`. A call takes `ms` of its key, 2 if not given, times
    `slowness` of the moment; moments are a tenth of a second apart and begin at START_S. Other programs
    use `others` processors; None: the system does not say.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[int, str, str]] = []
        self.requests: list[dict[str, Any]] = []
        self.workers: list[FakeWorker] = []
        self.dies: Counter[tuple[str, str]] = Counter()
        self.refuses: Counter[tuple[str, str]] = Counter()
        self.estimate_ms: dict[str, float] = {}
        self.ms: dict[str, float] = {}
        self.slowness: Callable[[float], float] = lambda at_s: 1.0
        self.moments = 0
        self.environment: dict[str, Any] = {"framework": "fake"}
        self.free_bytes: int | None = None
        self.now = 0.0
        self.request_s = 0.0
        self.others: float | None = None

    def start(self, backend: str, device: str) -> Any:
        """What Runner starts a worker with."""
        assert all(w.closed for w in self.workers), "two workers at a time"
        self.workers.append(FakeWorker(self, len(self.workers)))
        return self.workers[-1]

    def clock(self) -> float:
        return self.now

    def moment(self) -> float:
        """The next moment, seconds since the epoch."""
        self.moments += 1
        return START_S + self.moments / 10

    def keys(self, verb: str) -> list[str]:
        """The jobs that were asked for with `verb`, in order."""
        return [key for _, do, key in self.asked if do == verb]


class FakeWorker:
    def __init__(self, device: FakeDevice, number: int) -> None:
        self.device, self.number = device, number
        self.prepared: set[str] = set()
        self.closed = self.dead = False

    def request(self, document: dict[str, Any], limit_s: float) -> dict[str, Any]:
        assert not self.dead, "asked a dead worker"
        assert not self.closed, "asked a closed worker"
        assert limit_s > 0
        device = self.device
        device.now += device.request_s
        verb, key = document["do"], document.get("key", "")
        device.requests.append(document)
        device.asked.append((self.number, verb, key))
        if device.dies[verb, key] > 0:
            device.dies[verb, key] -= 1
            self.dead = True
            raise ProcessDied("the measuring process was killed")
        if device.refuses[verb, key] > 0:
            device.refuses[verb, key] -= 1
            raise RequestFailed({"error": "ResourceExhausted: no", "kind": "ResourceExhausted"})
        if verb == "environment":
            return {"environment": device.environment}
        if verb == "memory":
            return {"available_bytes": device.free_bytes}
        if verb == "prepare":
            self.prepared.add(key)
            return {"estimate_ms": device.estimate_ms.get(key, 1.0)}
        if verb == "forget":
            assert set(document["keys"]) <= self.prepared
            self.prepared -= set(document["keys"])
            return {}
        assert verb == "sample", f"unknown request {verb!r}"
        return self.sample(key, document["before"], document["calls"])

    def sample(self, key: str, before: str, calls: int) -> dict[str, Any]:
        """Samples of a network in a loop, or of a block after the network `before`."""
        assert {key, *([before] if before else [])} <= self.prepared, "timed what is not prepared"
        assert before != key
        device = self.device
        moments = [device.moment() for _ in range(calls)]
        slowness = [device.slowness(at) for at in moments]
        return {
            "samples_ms": [device.ms.get(key, 2.0) * s for s in slowness],
            "reference_ms": [device.ms.get(before, 2.0) * s for s in slowness] if before else [],
            "at_s": moments,
            "before": before,
            "others_s": None if device.others is None else device.others * moments[-1],
        }

    def close(self) -> None:
        self.closed = True


class Watcher:
    """Progress that notes what a run says, and calls `at_step` ahead of each measurement."""

    def __init__(self, at_step: Callable[[], object] = lambda: None) -> None:
        self.stages: list[tuple[str, int]] = []
        self.steps = 0
        self.notes: list[str] = []
        self.steps_at_note: list[int] = []
        self.at_step = at_step

    def start(self, text: str, total: int) -> None:
        self.stages.append((text, total))

    def step(self) -> None:
        self.steps += 1
        if self.stages[-1][0] == "measuring":
            self.at_step()

    def note(self, text: str) -> None:
        self.notes.append(text)
        self.steps_at_note.append(self.steps)


def tiny(channels: int) -> Callable[[], Graph]:
    """What makes a small graph: a convolution with norm and activation."""

    def make() -> Graph:
        n = Layers.on(f"tiny {channels}", 8, 8, 3)
        return n.done(n.conv_norm_act(n.input, channels, 3))

    return make


small = tiny(4)


# ---- A backend without a framework, and a worker process that has it

START = "tests.microbench.fakes:start"


class Fake:
    name = "fake"

    def __init__(self, device: str) -> None:
        if device == "gpu":
            raise DeviceError("no gpu here: looked under the table")
        if device == "broken":
            raise RuntimeError("import broken")
        # As it was when threads of a framework would have been started.
        self.nice = os.getpriority(os.PRIO_PROCESS, 0) if hasattr(os, "getpriority") else 0

    def environment(self) -> dict[str, Any]:
        return {"framework": "fake", "nice": self.nice}

    def available_bytes(self) -> int | None:
        return 12345

    def prepare_graph(self, graph: Any, batch_size: int) -> Prepared:
        return Prepared(lambda: None)

    def prepare_network(self, spec: str, input_size: tuple[int, ...], batch_size: int) -> Prepared:
        if spec == "kill":
            os.kill(os.getpid(), 9)
        if spec == "unknown":
            raise MeasuringError("operation 'foo' is not built here")
        return Prepared(lambda: None)


def start(backend: str, device: str) -> Handler:
    """What `microbench.worker` does, with the fake among the backends."""
    backends.BACKENDS["fake"] = "tests.microbench.fakes:Fake"
    # What else runs on the machine of the tests is none of theirs.
    worker.others_s = lambda pids: None  # type: ignore[assignment]
    return worker.start(backend, device)


# ---- Which of the predefined blocks are built

WINDOW = ("kernel", "strides", "padding", "dilation", "bias")


def covering(windows: bool = True) -> list[Predefined]:
    """The predefined blocks that have something new: the same operations at other sizes cannot fail alone.

    From the one with the least to do on, each with a kind of operation that none before it has.

    `windows`: what is said of its window, and whether strides divide its input, are part of the kind.
    """
    found, seen = [], set()
    graphs = [(b, b.make()) for b in (*BLOCKS, *NETWORKS)]
    for block, graph in sorted(graphs, key=lambda pair: count(pair[1]).total().flops):
        kinds = {_kind(graph, o, windows) for o in graph.operations}
        if not kinds <= seen:
            found.append(block)
        seen |= kinds
    return found


def _kind(graph: Graph, operation: Operation, windows: bool) -> tuple[Any, ...]:
    said = operation.attributes
    kind = (operation.kind, said.get("groups", 1) > 1)
    if not windows:
        return kind
    shape = graph.tensors[operation.inputs[0]].shape
    left = [n % s for n, s in zip(shape[1:], said.get("strides", ()), strict=False)]
    return (*kind, *(str(said.get(f)) for f in WINDOW), len(shape), str(left))


def exported(backend: Any, graph: Graph, batch_size: int) -> tuple[bytes, dict[str, Any]]:
    """(ONNX model, inputs by name) that the onnxruntime backend would run for a block."""
    backend._call = lambda *given: given
    try:
        return backend.prepare_graph(graph, batch_size)
    finally:
        del backend._call


def session_of(model: bytes, optimized: Path | None = None) -> Any:
    """A session of ONNX Runtime, with the threads that this process may share; what it runs is written."""
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.use_per_session_threads = not hasattr(runtime, "set_global_thread_pool_sizes")
    if optimized is not None:
        options.optimized_model_filepath = str(optimized)
    return runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
