"""Measuring training on this device: passes of the blocks, updates, the framework's loop, its start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any, NamedTuple

from lolat.graph import Graph
from lolat.graph.counts import behaviors, count
from lolat.optimizers import OPTIMIZERS
from lolat.training.measured import (
    SIMPLEST,
    EpochPoint,
    PassPoint,
    Points,
    StartPoint,
    UpdatePoint,
    named_terms,
    training_section,
)
from lolat.training.pass_counts import pass_rows, started, variables

from . import backends, families
from .blocks import BLOCKS, Predefined, known_graphs, row
from .journal import Journal
from .learn import Run, network_jobs, noise_of, run_jobs, warnings
from .runner import ITEM_BYTES, Job, Outcome, Runner, keep_bytes
from .timing import latencies

# ---- The measured blocks: the predefined ones and five more, at other batch sizes

LARGE = (4, 16, 64)
"""Batch sizes besides 1; a block is measured at the largest one within MOST_FLOPS and MOST_ELEMENTS."""
MOST_FLOPS = 3e9  # most multiply-accumulates of a forward pass
MOST_ELEMENTS = 7e7  # most elements that a forward pass reads and writes
IMAGE = 4  # most channels of an input that is an image
MEASURED = {o.name: o for o in OPTIMIZERS.values() if o.name in backends.OPTIMIZERS}


def batch_sizes(graph: Graph) -> tuple[int, ...]:
    """The batch sizes of a block: 1, and the largest of LARGE whose counts are below the limits.

    For a batch norm with one value per channel and sample, which PyTorch does not train, 2 replaces 1. For
    convolutions in groups of several channels only 1 is used, because TensorFlow's backward pass takes
    seconds on a CPU.
    """
    attributes = [o.attributes for o in graph.operations]
    if any(1 < a.get("groups", 1) < a.get("in_channels", 0) for a in attributes):
        return (1,)
    counts = count(graph).total(1)
    elements = counts.acts + counts.inp + counts.traffic
    able = [n for n in LARGE if n * counts.flops <= MOST_FLOPS and n * elements <= MOST_ELEMENTS]
    norms = [o for o in graph.operations if o.kind == "batch_norm"]
    alone = any(prod(graph.tensors[o.inputs[0]].shape[1:-1]) == 1 for o in norms)
    return (2 if alone else 1, *able[-1:])


def reads_image(graph: Graph) -> bool:
    """True for a block at the entrance of a network, where no gradient of the input is computed."""
    return all(graph.tensors[i].shape[-1] <= IMAGE for i in graph.inputs)


_mobile_network = partial(
    families.inverted_network,
    rows=((4, 24, 2, 2, 3), (4, 40, 2, 2, 3), (4, 80, 2, 2, 3), (4, 160, 1, 2, 3)),
    stem=16,
    last=960,
)
TRAINING_BLOCKS: tuple[Predefined, ...] = tuple(
    replace(b, batch_sizes=batch_sizes(b.make()))
    for b in (
        *BLOCKS,
        row("3 dense, dropout, norm 784", (), families.mlp, 784, 512, 3, True),
        row("small vgg 3x32x32", (), families.small_vgg, 32, 32),
        # Small networks from image to classes, some of which are started too.
        row("small resnet 3x224x224", (), families.residual_network, 224, (1, 1, 1, 1)),
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
"""Shapes of variables that each optimizer updates; they separate the cost per variable from the cost per
parameter."""
LOOPS = {
    "1 step": ((8, 8, 3), 8, 1),
    "33 steps": ((8, 8, 3), 8, 33),
    "9 large steps": ((224, 224, 3), 8, 9),
}
"""Epochs of a network that does almost nothing: (shape of a sample, batch size, steps)."""
STARTED = ("small resnet 3x224x224", "small mobile net silu 3x192x192")
"""Whole networks among the blocks whose start is timed: both with the optimizer SIMPLEST, only the first
with the other optimizers."""
DIRECTIONS = {"forward": False, "forward+backward": True}


class Part(NamedTuple):
    """A job, and how its result becomes a point: `of(latency_ms, samples_ms, ...)` makes a `kind`."""

    job: Job
    kind: type
    of: Callable[..., Any]


def training_graphs(backend: str) -> dict[str, Graph]:
    """Name -> graph of each of TRAINING_BLOCKS; see `known_graphs`."""
    return known_graphs(backend, TRAINING_BLOCKS)


def measure_training(
    run: Run, blocks: Sequence[Predefined] = TRAINING_BLOCKS
) -> tuple[dict[str, Any], Journal]:
    """(the section "training" of a profile, the journal, whose file is still on disk).

    Raises as `run_jobs`, and LolatError if too little could be measured.
    """
    graphs = known_graphs(run.backend, blocks)
    parts = [*_passes(blocks, graphs), *_updates(), *_epochs()]
    jobs = [part.job for part in parts]
    with run_jobs(run, jobs, network_jobs(run.backend)) as (runner, outcome, journal):
        return _section(parts, outcome, list(_starts(runner, graphs, outcome))), journal


def _passes(blocks: Sequence[Predefined], graphs: Mapping[str, Graph]) -> Iterator[Part]:
    for block in blocks:
        graph = graphs[block.name]
        kinds = tuple(sorted(behaviors(graph.operations)))
        payload = {"graph": graph.to_dict(), "of_inputs": not reads_image(graph)}
        for n in block.batch_sizes:
            terms = named_terms(pass_rows(graph, n).sum(axis=0))
            for direction, backward in DIRECTIONS.items():
                passes = {**payload, "batch_size": n, "backward": backward}
                key = f"{block.name} x{n} {direction}"
                job = Job(key, {"training": {"passes": passes}}, 2 * keep_bytes(graph, n))
                yield Part(
                    job, PassPoint, partial(PassPoint, block.name, n, backward, terms, kinds=kinds)
                )


def _updates() -> Iterator[Part]:
    for optimizer in MEASURED.values():
        for label, shapes in SHAPES.items():
            size = optimizer.name, len(shapes), sum(map(prod, shapes))
            held = ITEM_BYTES * (2 + optimizer.states) * size[-1]
            update = {"optimizer": optimizer.name, "shapes": [list(s) for s in shapes]}
            job = Job(f"{optimizer.name} {label}", {"training": {"update": update}}, held)
            yield Part(job, UpdatePoint, partial(UpdatePoint, *size))


def _epochs() -> Iterator[Part]:
    for label, (shape, batch_size, steps) in LOOPS.items():
        size = steps, batch_size * prod(shape)
        epoch = {"shape": list(shape), "batch_size": batch_size, "steps": steps}
        job = Job(f"epoch of {label}", {"training": {"epoch": epoch}}, ITEM_BYTES * prod(size))
        yield Part(job, EpochPoint, partial(EpochPoint, *size))


def _starts(runner: Runner, graphs: Mapping[str, Graph], outcome: Outcome) -> Iterator[StartPoint]:
    """Yield the times of the first steps of new networks, each timed once; SIMPLEST comes first."""
    wanted = [(block, SIMPLEST) for block in STARTED]
    wanted += [(STARTED[0], name) for name in MEASURED if name != SIMPLEST]
    runner.progress.start("starting", len(wanted))
    for block, optimizer in wanted:
        runner.progress.step()
        graph = graphs[block]
        request = {"do": "start", "graph": graph.to_dict(), "batch_size": 1, "optimizer": optimizer}
        time_ms = runner.once(f"start of {block} with {optimizer}", request, outcome)
        if time_ms is not None:
            yield StartPoint(optimizer, started(graph), variables(graph), time_ms)


def _section(
    parts: Sequence[Part], outcome: Outcome, starts: Sequence[StartPoint]
) -> dict[str, Any]:
    measured = latencies(outcome.visits)
    by_kind: dict[type, list[Any]] = {PassPoint: [], UpdatePoint: [], EpochPoint: []}
    for job, kind, of in parts:
        if found := measured.jobs.get(job.key):
            raw = tuple(round(t, 4) for v in outcome.visits[job.key] for t in v.samples_ms)
            spread = None if found.spread is None else round(found.spread, 5)
            more = {"spread": spread} if kind is PassPoint else {}
            by_kind[kind].append(of(round(found.latency_ms, 6), raw, **more))
    noise, where = noise_of(measured), outcome.environment
    remarks = warnings(where, noise, outcome.failures)
    passes, updates, epochs = by_kind.values()
    points = Points(passes, updates, epochs, list(starts))
    return training_section(points, where, noise, remarks)
