"""Measures training on this device: passes of the blocks, updates, the framework's loop, its start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from lolat.graph import Graph
from lolat.graph.counts import behaviors, count
from lolat.io.process import ProcessDied, RequestFailed
from lolat.io.progress import Progress
from lolat.training.iteration import (
    OPTIMIZERS,
    memory_bytes,
    optimizer_named,
    pass_rows,
    started,
    variables,
)
from lolat.training.learning import (
    SIMPLEST,
    EpochPoint,
    PassPoint,
    Points,
    StartPoint,
    UpdatePoint,
    training_section,
)
from microbench import families
from microbench.backends import check_trains
from microbench.blocks import BLOCKS, Predefined, as_known, row
from microbench.journal import Journal
from microbench.learn import USUAL, Check, network_jobs, noise_of, run_jobs, warnings
from microbench.runner import OVERHEAD_BYTES, Job, Outcome, Runner, Settings, keep_bytes
from microbench.timing import Level, levels

# ---- What is measured to learn training: the predefined blocks, five more, and at which batch
# sizes.

LARGE = (4, 16, 64)
"""Batch sizes beside 1, of which a block is measured at the largest that its counts allow."""
MOST_FLOPS = 3e9  # multiply-accumulates of a forward pass
MOST_ELEMENTS = 7e7  # that it reads and writes
IMAGE = 4  # channels up to which an input is an image: nobody asks for its gradient


def batch_sizes(graph: Graph) -> tuple[int, ...]:
    """1, and the largest of LARGE whose counts stay below the limits.

    2 instead of 1 where a batch norm has one value per channel and sample: PyTorch does not train that.

    Convolutions in groups of several channels are measured at 1 alone: TensorFlow's backward pass of
    one takes seconds on a CPU.
    """
    counts = count(graph).total(1)
    if counts.patches and any(is_unrolled(o.attributes) for o in graph.operations):
        return (1,)
    elements = counts.acts + counts.inp + counts.traffic
    able = [n for n in LARGE if n * counts.flops <= MOST_FLOPS and n * elements <= MOST_ELEMENTS]
    norms = [o for o in graph.operations if o.kind == "batch_norm"]
    alone = any(prod(graph.tensors[o.inputs[0]].shape[1:-1]) == 1 for o in norms)
    return (2 if alone else 1, *able[-1:])


def is_unrolled(a: Mapping[str, Any]) -> bool:
    """Whether an operation's attributes are of a convolution in groups of several channels."""
    return bool(1 < a.get("groups", 1) < a.get("in_channels", 0))


def reads_image(graph: Graph) -> bool:
    """Whether a block stands at the entrance of a network."""
    return all(graph.tensors[i].shape[-1] <= IMAGE for i in graph.inputs)


_small_resnet = partial(families.residual_network, depths=(1, 1, 1, 1), name="small resnet")
_mobile_network = partial(
    families.inverted_network,
    rows=((4, 24, 2, 2, 3), (4, 40, 2, 2, 3), (4, 80, 2, 2, 3), (4, 160, 1, 2, 3)),
    stem=16,
    last=960,
    name="small mobile net",
)
TRAINING_BLOCKS: tuple[Predefined, ...] = tuple(
    replace(b, batch_sizes=batch_sizes(b.make()))
    for b in (
        *BLOCKS,
        row("3 dense, dropout, norm 784", (), families.regularized, 784, 512, 3),
        row("small vgg 3x32x32", (), families.small_vgg, 32, 32),
        # Small networks from image to classes, some of which are started too.
        row("small resnet 3x224x224", (), _small_resnet, 224),
        row("small mobile net 3x224x224", (), _mobile_network, 224, act="relu6", se=False),
        row("small mobile net silu 3x192x192", (), _mobile_network, 192, act="silu", se=True),
    )
)

# ---- A run

SHAPES: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "one": ((1024,),),
    "many": ((1024,),) * 64,
    "middle": ((512, 512),) * 16,
    "large": ((2048, 2048),) * 4,
}
"""Variables that each optimizer updates: so that a variable and a parameter can be told apart."""
LOOPS = {
    "1 step": ((8, 8, 3), 8, 1),
    "33 steps": ((8, 8, 3), 8, 33),
    "9 large steps": ((224, 224, 3), 8, 9),
}
"""Epochs of next to nothing: (shape of a sample, batch size, steps)."""
STARTED = ("small resnet 3x224x224", "small mobile net silu 3x192x192")
"""Whole networks among the blocks: SIMPLEST starts both, every other optimizer the first."""
START_LIMIT_S = 120.0
DIRECTIONS = {"forward": False, "forward+backward": True}

Measured = tuple[Job, Callable[[Level, tuple[float, ...]], Any]]
"""A job, and what makes a point of its level and its raw times, ms."""


def measure_training(
    backend: str,
    device: str,
    journal_path: Path,
    now: float,
    restart: bool = False,
    progress: Progress | None = None,
    settings: Settings = USUAL,
    blocks: Sequence[Predefined] = TRAINING_BLOCKS,
    check: Check | None = None,
) -> tuple[dict[str, Any], Journal]:
    """What a model file has under "training", and the journal, still on disk; see `run_jobs`.

    LolatError where the backend trains nothing, or too little could be measured, too.
    """
    check_trains(backend)
    graphs = {b.name: as_known(backend, b.make()) for b in blocks}
    measured = [*_passes(blocks, graphs), *_updates(), *_epochs()]
    jobs = [job for job, _ in measured]
    frame = network_jobs(backend), settings, journal_path, now, restart, progress, check
    with run_jobs(backend, device, jobs, *frame) as (runner, outcome, journal):
        starts, failed = _starts(runner, graphs, journal)
        section = _section(measured, outcome, starts)
    if failed:
        without = "any optimizer" if SIMPLEST in failed else ", ".join(failed)
        section["warnings"].append(
            f"the start of a training could not be measured with {', '.join(failed)} (first: "
            f"{next(iter(failed.values()))}): predictions with {without} do not tell what a first epoch "
            "takes more; measure again, with `restart`"
        )
    return section, journal


def _passes(blocks: Sequence[Predefined], graphs: Mapping[str, Graph]) -> Iterator[Measured]:
    for block in blocks:
        graph = graphs[block.name]
        payload = {"graph": graph.to_dict(), "of_inputs": not reads_image(graph)}
        for n in block.batch_sizes:
            need = 2 * memory_bytes(graph, n, OPTIMIZERS["sgd"]) + OVERHEAD_BYTES
            for direction, backward in DIRECTIONS.items():
                passes = {**payload, "batch_size": n, "backward": backward}
                key, held = f"{block.name} x{n} {direction}", 2 * keep_bytes(graph, n)
                job = Job(key, {"training": {"passes": passes}}, need, held)
                yield job, partial(_pass_point, block.name, graph, n, backward)


def _updates() -> Iterator[Measured]:
    for name, optimizer in OPTIMIZERS.items():
        for label, shapes in SHAPES.items():
            of = optimizer_named(name).name, len(shapes), sum(map(prod, shapes))
            held = 4 * (2 + optimizer.slots) * of[-1]
            update = {"optimizer": name, "shapes": [list(s) for s in shapes]}
            need = 2 * held + OVERHEAD_BYTES
            job = Job(f"{name} {label}", {"training": {"update": update}}, need, held)
            yield job, partial(_point, UpdatePoint, of)


def _epochs() -> Iterator[Measured]:
    for label, (shape, batch_size, steps) in LOOPS.items():
        of = steps, batch_size * prod(shape)
        held = 4 * prod(of)
        epoch = {"shape": list(shape), "batch_size": batch_size, "steps": steps}
        need = 3 * held + OVERHEAD_BYTES
        job = Job(f"epoch of {label}", {"training": {"epoch": epoch}}, need, held)
        yield job, partial(_point, EpochPoint, of)


def _starts(
    runner: Runner, graphs: Mapping[str, Graph], journal: Journal
) -> tuple[list[StartPoint], dict[str, str]]:
    """First steps of networks made anew, one time each; optimizer -> why it failed.

    What the journal has is not measured again. The simplest come first: without them the others are worth
    nothing, and a worker that dies ends it.
    """
    first, second = STARTED
    others = [name for name in OPTIMIZERS if name != SIMPLEST]
    wanted = [(first, SIMPLEST), (second, SIMPLEST), *((first, name) for name in others)]
    runner.progress.start("starting", len(wanted))
    points: list[StartPoint] = []
    failed: dict[str, str] = {}
    known = {r["key"]: r["start_ms"] for r in journal.records if "start_ms" in r}
    for at, (block, optimizer) in enumerate(wanted):
        runner.progress.step()
        if block not in graphs:
            continue
        graph = graphs[block]
        key = f"start of {block} with {optimizer}"
        if key not in known:
            try:
                time_ms = _start(runner, graph, optimizer)
            except (ProcessDied, RequestFailed) as problem:
                runner.progress.note(f"{key}: {problem}; going on without it")
                failed[optimizer] = str(problem)
                if isinstance(problem, ProcessDied):  # whose place nothing takes for so little
                    return points, failed | {name: str(problem) for _, name in wanted[at:]}
                continue
            known[key] = time_ms
            journal.append({"key": key, "start_ms": time_ms})
        points.append(StartPoint(optimizer, started(graph), variables(graph), known[key]))
    return points, failed


def _start(runner: Runner, graph: Graph, optimizer: str) -> float:
    """ms of the first step of a network made anew. ProcessDied, RequestFailed."""
    job = {"graph": graph.to_dict(), "batch_size": 1, "optimizer": optimizer}
    answer = runner.worker.request({"do": "start", "job": job}, START_LIMIT_S)
    return round(float(answer["start_ms"]), 3)


def _section(
    measured: Sequence[Measured], outcome: Outcome, starts: Sequence[StartPoint]
) -> dict[str, Any]:
    measured_levels = levels(outcome.visits)
    points: dict[type, list[Any]] = {PassPoint: [], UpdatePoint: [], EpochPoint: []}
    for job, make in measured:
        if level := measured_levels.jobs.get(job.key):
            raw = tuple(round(t, 4) for v in outcome.visits[job.key] for t in v.samples)
            point = make(level, raw)
            points[type(point)].append(point)
    passes, updates, epochs = points.values()
    noise = noise_of(measured_levels)
    remarks = warnings(outcome.environment, noise, outcome.failures)
    found = Points(passes, updates, epochs, list(starts))
    return training_section(found, outcome.environment, noise, remarks)


def _point(kind: Callable[..., Any], of: Any, level: Level, raw: tuple[float, ...]) -> Any:
    return kind(*of, round(level.latency_ms, 6), raw)


def _pass_point(
    name: str, graph: Graph, batch_size: int, backward: bool, level: Level, raw: tuple[float, ...]
) -> PassPoint:
    return PassPoint(
        name,
        batch_size,
        backward,
        pass_rows(graph, batch_size).sum(axis=0),
        round(level.latency_ms, 6),
        raw,
        None if level.spread is None else round(level.spread, 5),
        tuple(sorted(behaviors(graph.operations))),
    )
