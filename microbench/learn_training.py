"""Measures training on this device: passes of the blocks, updates, the framework's loop, its start."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

from lolat.graph import Graph
from lolat.graph.counts import behaviours, count
from lolat.training.learning import (
    SIMPLEST,
    EpochPoint,
    PassPoint,
    StartPoint,
    UpdatePoint,
    training_section,
)
from lolat.training.memory import memory_bytes
from lolat.training.settings import OPTIMIZERS, optimizer_named
from lolat.training.terms import pass_rows, started, variables
from microbench import environment, families
from microbench import families as parts
from microbench.backends import check_trains
from microbench.backends.known import as_known
from microbench.blocks import BLOCKS, Predefined
from microbench.forecast import OVERHEAD_BYTES, keep_bytes
from microbench.journal import Journal
from microbench.learn import (
    describe_noise,
    free_bytes,
    open_journal,
    reference_job,
    run_key,
    warnings,
)
from microbench.process import JobFailed, WorkerDied
from microbench.runner import Job, Outcome, Progress, Runner, Settings
from microbench.timing import Visit, centre, is_calm, settled_limit, spread

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
    found = count(graph).total(1)
    if found.patches and any(is_unrolled(o.attributes) for o in graph.operations):
        return (1,)
    elements = found.acts + found.inp + found.traffic
    able = [n for n in LARGE if n * found.flops <= MOST_FLOPS and n * elements <= MOST_ELEMENTS]
    norms = [o for o in graph.operations if o.kind == "batch_norm"]
    alone = any(prod(graph.tensors[o.inputs[0]].shape[1:-1]) == 1 for o in norms)
    return (2 if alone else 1, *able[-1:])


def is_unrolled(a: Mapping[str, Any]) -> bool:
    """Whether an operation's attributes are of a convolution in groups of several channels."""
    return bool(1 < a.get("groups", 1) < a.get("in_channels", 0))


def reads_image(graph: Graph) -> bool:
    """Whether a block stands at the entrance of a network."""
    return all(graph.tensors[i].shape[-1] <= IMAGE for i in graph.inputs)


TRAINING_BLOCKS: tuple[Predefined, ...] = tuple(
    replace(b, batch_sizes=batch_sizes(b.make()))
    for b in (
        *BLOCKS,
        Predefined("3 dense, dropout, norm 784", partial(parts.regularized, 784, 512, 3), ()),
        Predefined("small vgg 3x32x32", partial(parts.small_vgg, 32, 32), ()),
        # Small networks from image to classes, some of which are started too.
        Predefined("small resnet 3x224x224", partial(families.residual_network, 224, 64), ()),
        Predefined(
            "small mobile net 3x224x224", partial(families.mobile_network, 224, "relu6", False), ()
        ),
        Predefined(
            "small mobile net silu 3x192x192",
            partial(families.mobile_network, 192, "silu", True),
            (),
        ),
    )
)

# ---- learn training ----------------------------------------

SETTINGS = Settings(rounds=6, extra_s=60.0)
SHAPES: Mapping[str, tuple[tuple[int, ...], ...]] = {
    "one": ((1024,),),
    "many": ((1024,),) * 64,
    "middle": ((512, 512),) * 16,
    "large": ((2048, 2048),) * 4,
}
"""Variables that each optimiser updates: so that a variable and a parameter can be told apart."""
LOOPS = {
    "1 step": ((8, 8, 3), 8, 1),
    "33 steps": ((8, 8, 3), 8, 33),
    "9 large steps": ((224, 224, 3), 8, 9),
}
"""Epochs of next to nothing: (shape of a sample, batch size, steps)."""
STARTED = ("small resnet 3x224x224", "small mobile net silu 3x192x192")
"""Whole networks among the blocks: SIMPLEST starts both, every other optimiser the first."""
START_LIMIT_S = 120.0
DIRECTIONS = {"forward": False, "forward+backward": True}


def measure_training(
    backend: str,
    device: str,
    journal_path: Path,
    now: float,
    restart: bool = False,
    progress: Progress | None = None,
    settings: Settings = SETTINGS,
    blocks: Sequence[Predefined] = TRAINING_BLOCKS,
    check: Callable[[Mapping[str, Any]], object] | None = None,
) -> tuple[dict[str, Any], Journal]:
    """What a model file has under "training", and the journal, still on disk.

    Goes on from the journal if it is of the same run; `now` in seconds since the epoch; `check` gets the
    environment before anything is measured, and may raise. LolatError when device or backend are not
    there, the backend trains nothing, or too little could be measured.
    """
    check_trains(backend)
    graphs = {b.name: as_known(backend, b.make()) for b in blocks}
    with Runner(backend, device, progress) as runner:
        jobs = [*_pass_jobs(blocks, graphs), *_update_jobs(), *_epoch_jobs()]
        reference = reference_job()
        where = environment.describe(device) | runner.environment
        if check is not None:
            check(where)
        key = run_key(runner, device, jobs, reference, settings, "training")
        journal = open_journal(
            journal_path, {**key, "backend": backend}, now, restart, runner.progress
        )
        try:
            outcome = runner.run(jobs, reference, settings, journal, free_bytes(runner, device))
            starts, failed = _starts(runner, graphs)
        except BaseException:
            journal.close()
            raise
    try:
        section = _section(blocks, graphs, outcome, starts, where, settings)
        section["warnings"] += _not_started(failed)
        return section, journal
    except BaseException:
        journal.close()
        raise


def _pass_jobs(blocks: Sequence[Predefined], graphs: Mapping[str, Graph]) -> list[Job]:
    jobs = []
    for block in blocks:
        graph = graphs[block.name]
        given = {"graph": graph.to_dict(), "of_inputs": not reads_image(graph)}
        for n in block.batch_sizes:
            for direction, backward in DIRECTIONS.items():
                payload = {**given, "batch_size": n, "backward": backward}
                jobs.append(
                    Job(
                        _pass_key(block.name, n, direction),
                        {"training": {"passes": payload}},
                        2 * memory_bytes(graph, n, OPTIMIZERS["sgd"]) + OVERHEAD_BYTES,
                        2 * keep_bytes(graph, n),
                    )
                )
    return jobs


def _pass_key(name: str, batch_size: int, direction: str) -> str:
    return f"{name} x{batch_size} {direction}"


def _update_jobs() -> list[Job]:
    jobs = []
    for name, optimizer in OPTIMIZERS.items():
        for label, shapes in SHAPES.items():
            held = 4 * (2 + optimizer.slots) * sum(map(prod, shapes))
            payload = {"optimizer": name, "shapes": [list(s) for s in shapes]}
            jobs.append(
                Job(
                    f"{name} {label}",
                    {"training": {"update": payload}},
                    2 * held + OVERHEAD_BYTES,
                    held,
                )
            )
    return jobs


def _epoch_jobs() -> list[Job]:
    jobs = []
    for label, (shape, batch_size, steps) in LOOPS.items():
        held = 4 * prod(shape) * batch_size * steps
        payload = {"shape": list(shape), "batch_size": batch_size, "steps": steps}
        job = Job(
            f"epoch of {label}", {"training": {"epoch": payload}}, 3 * held + OVERHEAD_BYTES, held
        )
        jobs.append(job)
    return jobs


def _starts(runner: Runner, graphs: Mapping[str, Graph]) -> tuple[list[StartPoint], dict[str, str]]:
    """First steps of networks made anew, one time each; optimiser -> why it failed.

    The simplest come first: without them the others are worth nothing, and a worker that dies ends it.
    """
    first, second = STARTED
    asked = [(first, SIMPLEST), (second, SIMPLEST)]
    asked += [(first, name) for name in OPTIMIZERS if name != SIMPLEST]
    runner.progress.start("starting", len(asked))
    points: list[StartPoint] = []
    failed: dict[str, str] = {}
    for block, optimizer in asked:
        runner.progress.step()
        if block not in graphs:
            continue
        graph = graphs[block]
        job = {"graph": graph.to_dict(), "batch_size": 1, "optimizer": optimizer}
        try:
            answer = runner.worker.request({"do": "start", "job": job}, START_LIMIT_S)
        except (WorkerDied, JobFailed) as problem:
            runner.progress.note(
                f"start of {block} with {optimizer}: {problem}; going on without it"
            )
            failed[optimizer] = str(problem)
            if isinstance(problem, WorkerDied):  # whose place nothing takes for so little
                failed |= {
                    name: str(problem) for _, name in asked[asked.index((block, optimizer)) :]
                }
                break
            continue
        time_ms = round(answer["start_ms"], 3)
        points.append(StartPoint(optimizer, started(graph), variables(graph), time_ms))
    return points, failed


def _not_started(failed: Mapping[str, str]) -> list[str]:
    """A remark on starts that could not be measured."""
    if not failed:
        return []
    without = "any optimiser" if SIMPLEST in failed else ", ".join(failed)
    return [
        f"the start of a training could not be measured with {', '.join(failed)} (first: "
        f"{next(iter(failed.values()))}): predictions with {without} do not tell what a first epoch takes "
        "more; measure again with --restart"
    ]


def _section(
    blocks: Sequence[Predefined],
    graphs: Mapping[str, Graph],
    outcome: Outcome,
    starts: Sequence[StartPoint],
    where: Mapping[str, Any],
    settings: Settings,
) -> dict[str, Any]:
    limit = settled_limit(outcome.visits.values())
    passes = [
        _pass_point(block.name, graphs[block.name], n, backward, visits, limit)
        for block in blocks
        for n in block.batch_sizes
        for direction, backward in DIRECTIONS.items()
        if (visits := outcome.visits.get(_pass_key(block.name, n, direction)))
    ]
    updates = [
        UpdatePoint(
            optimizer_named(name).name, len(shapes), sum(map(prod, shapes)), *_times(visits, limit)
        )
        for name in OPTIMIZERS
        for label, shapes in SHAPES.items()
        if (visits := outcome.visits.get(f"{name} {label}"))
    ]
    epochs = [
        EpochPoint(steps, batch_size * prod(shape), *_times(visits, limit))
        for label, (shape, batch_size, steps) in LOOPS.items()
        if (visits := outcome.visits.get(f"epoch of {label}"))
    ]
    restless = [key for key, visits in outcome.visits.items() if not is_calm(visits, limit)]
    noise = describe_noise(outcome.reference(), limit, [p.spread for p in passes], len(restless))
    said = warnings(where, noise, outcome.failures, restless)
    return training_section(passes, updates, epochs, starts, where, noise, said)


def _times(visits: Sequence[Visit], limit: float) -> tuple[float, tuple[float, ...]]:
    """What visits stand for, ms, and their raw times."""
    raw = tuple(round(t, 4) for v in visits for t in v.samples)
    return round(centre(visits, limit), 6), raw


def _pass_point(
    name: str, graph: Graph, batch_size: int, backward: bool, visits: Sequence[Visit], limit: float
) -> PassPoint:
    latency_ms, samples = _times(visits, limit)
    apart = spread(visits, limit)
    return PassPoint(
        name,
        batch_size,
        backward,
        pass_rows(graph, batch_size).sum(axis=0),
        latency_ms,
        samples,
        tuple(t for v in visits for t in v.beside()),
        None if apart is None else round(apart, 5),
        tuple(sorted(behaviours(graph.operations))),
    )
