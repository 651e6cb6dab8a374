"""Measures blocks of a user's network for a model that is there already, on the machine it is of.

A few of the model's own points are measured again beside them: whether machine and model still agree.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from lolat.errors import InputError, MeasuringError
from lolat.fitting.points import Point
from lolat.graph import Graph
from lolat.graph.blocks import Block
from lolat.graph.edits import subgraph
from lolat.io.progress import Progress
from microbench import environment
from microbench.backends import of_model
from microbench.blocks import NETWORKS, Predefined, known_blocks
from microbench.doctor import Again, references_of
from microbench.learn import MeasuredBlocks, measure_blocks
from microbench.runner import job_key

DRIFT = 0.1


def as_blocks(
    graph: Graph, parts: Sequence[tuple[Block, int]], taken: Sequence[str]
) -> list[Predefined]:
    """(block, batch size) of a network as blocks to measure, such as "ResNet50/conv2_block1".

    A name that a point of the model has (`taken`) is followed by a number: another network may have
    been called the same.
    """
    blocks = []
    for block, batch_size in parts:
        name = wanted = f"{graph.name}/{block.label}"
        number = 1
        while name in taken:
            number += 1
            name = f"{wanted} ({number})"
        make = partial(subgraph, graph, block.operations, name)
        blocks.append(Predefined(name, make, (batch_size,)))
    return blocks


def measure_extension(
    blocks: Sequence[Predefined],
    points: Sequence[Point],
    label: str,
    learned: Mapping[str, Any],
    journal_path: Path,
    now: float,
    restart: bool = False,
    progress: Progress | None = None,
) -> tuple[MeasuredBlocks, dict[str, Any]]:
    """Measure `blocks` for a model of `points`, as learning does it.

    `label`, `learned`: the model's device and environment. With what was measured, what the model file
    keeps of it beside the "network", under "extended" of its environment. Raises InputError on another
    device or with another framework, version or number of threads, MeasuringError when none of the blocks
    could be measured.
    """
    device, backend = str(learned["device"]), of_model(learned)
    if device == "cpu":  # known before anything is started
        refuse_another(label, learned, environment.here(learned, device))
    try:
        own = references_of(points, known_blocks(backend, NETWORKS))
    except InputError:
        own = []
    more = [
        Predefined(r.point.name, partial(replace, r.graph), (r.point.batch_size,), True)
        for r in own
    ]
    check = partial(refuse_another, label, learned)
    run = measure_blocks(
        backend, device, journal_path, now, restart, progress, None, [*blocks, *more], check
    )
    names = {b.name for b in blocks}
    new = [p for p in run.points if p.name in names]
    if not new:
        run.journal.close()
        raise MeasuringError(f"none of the blocks could be measured ({run.warnings[-1]})")
    measured = {(p.name, p.batch_size): p.latency_ms for p in run.points}
    again = [
        Again(r.point, measured[key])
        for r in own
        if (key := (r.point.name, r.point.batch_size)) in measured
    ]
    unsaid = environment.unsaid(learned)
    remarks = [*run.warnings, *[unsaid] * bool(unsaid), *disagreement(again)]
    record = {
        "date": run.environment["date"],
        "points": [job_key(p.name, p.batch_size) for p in new],
        "again": [
            {"point": _key(a), "learned_ms": a.point.latency_ms, "now_ms": a.now_ms} for a in again
        ],
        "noise": run.noise,
    }
    return run._replace(points=new, warnings=remarks), record


def _key(again: Again) -> str:
    return job_key(again.point.name, again.point.batch_size)


def refuse_another(
    label: str, learned: Mapping[str, Any], now: Mapping[str, Any], advice: str = ""
) -> None:
    """InputError where this device or its framework is not what the model was learned with.

    `label`, `learned`, `now`: as `microbench.environment.differences` takes them; `advice`: how to mend it,
    if not as when extending a model.
    """
    differences = environment.differences(label, learned, now)
    if differences:
        each = "; ".join(f"{d.field}: {d.learned}, here {d.now}" for d in differences)
        usual = "extend it where it was learned, or learn this one: lolat learn"
        raise InputError(
            f"the model was learned elsewhere ({each}) and times of two places are not to be mixed; "
            + (advice or f"{usual} {learned.get('device', 'cpu')}")
        )


def disagreement(again: Sequence[Again]) -> Iterator[str]:
    """A remark where the points measured again are more than DRIFT off at the median, or there are none."""
    if not again:
        yield (
            "none of the model's own points could be measured again: whether machine and model still "
            "agree is not known"
        )
        return
    ratio = statistics.median(a.ratio for a in again)
    if abs(ratio - 1.0) > DRIFT:
        each = ", ".join(
            f"{_key(a)} {a.now_ms:.3g} ms, was {a.point.latency_ms:.3g}" for a in again
        )
        yield (
            f"the model's own points took {100 * (ratio - 1):+.0f} % when measured again ({each}): the "
            "machine is in another state than when the model was learned, and the new points with it; "
            "when lolat doctor says ok, give the same command again with --restart"
        )
