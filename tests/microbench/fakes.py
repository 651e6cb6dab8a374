"""A worker without framework and time, a backend without a framework, and graphs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from lolat.errors import DeviceError
from lolat.graph import Graph, Operation
from lolat.graph.counts import count
from lolat.graph.layers import Layers
from lolat.io.process import Handler, ProcessDied, RequestFailed
from lolat.microbench import backends, worker
from lolat.microbench.backends import Prepared
from lolat.microbench.blocks import BLOCKS, NETWORKS, Predefined

START_S = 1.7e9
ALWAYS = 10**6
REASONS = {"refuses": "ResourceExhausted: no", "dies": "the measuring process was killed"}


class FakeDevice:
    """Starts workers; all of them write their requests into `asked`: (worker, verb, key).

    `dies` and `refuses`: (verb, key) -> how many times. A call takes `ms` of its key, 2 if not given, times
    `drift` of the moment; moments are a tenth of a second apart and begin at START_S. `error`: why no
    worker can be started.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[int, str, str]] = []
        self.requests: list[dict[str, Any]] = []
        self.failed: list[str] = []  # the key of each request that was refused or killed
        self.workers: list[FakeWorker] = []
        self.dies: Counter[tuple[str, str]] = Counter()
        self.refuses: Counter[tuple[str, str]] = Counter()
        self.at_request: Callable[[dict[str, Any]], object] = lambda request: None
        self.estimate_ms: dict[str, float] = {}
        self.ms: dict[str, float] = {}
        self.drift: Callable[[float], float] = lambda at_s: 1.0
        self.moments = 0
        self.environment: dict[str, Any] = {"framework": "fake"}
        self.free_bytes: int | None = None
        self.others: float | None = None  # processors that other programs use; None: not told
        self.error: BaseException | None = None
        self.probes = 0  # one takes a ms longer than the one before

    def probe(self, threads: int) -> tuple[float, float]:
        """A probe of this machine by so many threads."""
        self.probes += 1
        return float(self.probes), 10.0 * threads

    def start(self, backend: str, device: str) -> Any:
        """A worker in place of `WorkerProcess`."""
        assert all(w.closed for w in self.workers), "two workers at a time"
        if self.error is not None:
            raise self.error
        self.workers.append(FakeWorker(self, len(self.workers)))
        return self.workers[-1]

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
        device.at_request(document)
        verb, key = document["do"], document.get("key", "")
        if verb == "start":
            key = f"{document['graph']['name']} {document['optimizer']}"
        device.requests.append(document)
        device.asked.append((self.number, verb, key))
        if device.dies[verb, key] > 0:
            device.dies[verb, key] -= 1
            self.dead = True
            device.failed.append(key)
            raise ProcessDied(REASONS["dies"])
        if device.refuses[verb, key] > 0:
            device.refuses[verb, key] -= 1
            device.failed.append(key)
            raise RequestFailed({"error": REASONS["refuses"], "kind": "ResourceExhausted"})
        if verb == "environment":
            return {"environment": device.environment, "available_bytes": device.free_bytes}
        if verb == "prepare":
            assert key not in self.prepared, "prepared twice"
            self.prepared.add(key)
            return {"estimate_ms": device.estimate_ms.get(key, 1.0)}
        if verb == "start":
            return {"once_ms": device.ms.get(key, 100.0)}
        assert verb == "sample", f"unknown request {verb!r}"
        return self.sample(key, document["before"], document["calls"])

    def sample(self, key: str, before: str, calls: int) -> dict[str, Any]:
        """Samples of a network in a loop, or of a block after the network `before`."""
        assert {key, *([before] if before else [])} <= self.prepared, "timed what is not prepared"
        assert before != key
        device = self.device
        moments = [device.moment() for _ in range(calls)]
        drift = [device.drift(at) for at in moments]
        return {
            "samples_ms": [device.ms.get(key, 2.0) * d for d in drift],
            "reference_ms": [device.ms.get(before, 2.0) * d for d in drift] if before else [],
            "at_s": moments,
            "before": before,
            "others_s": None if device.others is None else device.others * moments[-1],
        }

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


class Watcher:
    """Progress that keeps the stages, steps and notes of a run."""

    def __init__(self) -> None:
        self.stages: list[tuple[str, int]] = []
        self.steps = self.done = 0
        self.notes: list[str] = []

    def start(self, text: str, total: int, done: int = 0) -> None:
        self.stages.append((text, total))
        self.done += done

    def step(self) -> None:
        self.steps += 1

    def note(self, text: str) -> None:
        self.notes.append(text)


def tiny(channels: int) -> Callable[[], Graph]:
    """Makes a small graph: a convolution with norm and activation."""

    def make() -> Graph:
        n = Layers.on(f"tiny {channels}", 8, 8, 3)
        return n.done(n.conv_norm_act(n.input, channels, 3))

    return make


small = tiny(4)


# ---- A backend without a framework, and a worker process that has it

START = "tests.microbench.fakes:start"


class Fake:
    name = "fake"

    def __init__(self, device: str, threads: int | None = None) -> None:
        if device == "gpu":
            raise DeviceError("no gpu here: looked under the table")
        if device == "broken":
            raise RuntimeError("import broken")

    def environment(self) -> dict[str, Any]:
        return {"framework": "fake"}

    def available_bytes(self) -> int | None:
        return 12345

    def prepare_graph(self, graph: Any, batch_size: int) -> Prepared:
        return Prepared(lambda: None)

    def prepare_network(self, spec: str, input_size: tuple[int, ...], batch_size: int) -> Prepared:
        return Prepared(lambda: None)


def start(backend: str, device: str) -> Handler:
    """`microbench.worker.start`, with the fake among the backends."""
    backends.BACKENDS["fake"] = backends.Capabilities("tests.microbench.fakes:Fake")
    return worker.start(backend, device)


# ---- Which of the predefined blocks are built

WINDOW = ("kernel", "strides", "padding", "bias")


def covering(windows: bool = True) -> list[Predefined]:
    """The predefined blocks that have something new: the same operations at other sizes cannot fail alone.

    From the smallest on, each with a kind of operation that none before it has. `windows`: the window, and
    whether strides divide the input, are part of the kind.
    """
    chosen, seen = [], set()
    graphs = [(b, b.make()) for b in (*BLOCKS, *NETWORKS)]
    for block, graph in sorted(graphs, key=lambda pair: count(pair[1]).total().flops):
        kinds = {_kind(graph, o, windows) for o in graph.operations}
        if not kinds <= seen:
            chosen.append(block)
        seen |= kinds
    return chosen


def _kind(graph: Graph, operation: Operation, windows: bool) -> tuple[Any, ...]:
    a = operation.attributes
    kind = (operation.kind, a.get("groups", 1) > 1)
    if not windows:
        return kind
    shape = graph.tensors[operation.inputs[0]].shape
    left = [n % s for n, s in zip(shape[1:], a.get("strides", ()), strict=False)]
    return (*kind, *(str(a.get(f)) for f in WINDOW), len(shape), str(left))
