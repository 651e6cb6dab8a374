"""Measures blocks of a user's network for a model that is there already, on the machine it is of.

A few of the model's own points are measured again beside them: whether machine and model still agree.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lolat.errors import InputError, MeasuringError
from lolat.fitting.points import Point
from lolat.graph import Graph
from lolat.graph.blocks import Block
from lolat.graph.subgraph import subgraph
from microbench import environment as comparable
from microbench.backends import of_model
from microbench.backends.known import known_blocks
from microbench.blocks import NETWORKS, Predefined
from microbench.doctor import choose
from microbench.journal import Journal
from microbench.learn import job_key, measure_blocks
from microbench.runner import Progress, Settings

DRIFT = 0.1


@dataclass(frozen=True)
class Extension:
    """What a run measured: the new points; (key, ms then, ms now) of the model's own; and the rest.

    The journal is still on disk.
    """

    points: tuple[Point, ...]
    again: tuple[tuple[str, float, float], ...]
    environment: Mapping[str, Any]
    noise: Mapping[str, Any]
    warnings: tuple[str, ...]
    journal: Journal

    def record(self, network: str) -> dict[str, Any]:
        """What the model file keeps of the run, under "extended" of its environment."""
        return {
            "network": network,
            "date": self.environment["date"],
            "points": [job_key(p.name, p.batch_size) for p in self.points],
            "again": [{"point": k, "learned_ms": a, "now_ms": b} for k, a, b in self.again],
            "noise": dict(self.noise),
        }


def as_blocks(
    graph: Graph, parts: Sequence[tuple[Block, int]], taken: Sequence[str]
) -> list[Predefined]:
    """(block, batch size) of a network as blocks to measure, such as "ResNet50/conv2_block1".

    A name that a point of the model has (`taken`) is followed by a number: another network may have
    been called the same.
    """
    found = []
    for block, batch_size in parts:
        name = wanted = f"{graph.name}/{block.label}"
        number = 1
        while name in taken:
            number += 1
            name = f"{wanted} ({number})"
        make = partial(subgraph, graph, block.operations, name)
        found.append(Predefined(name, make, (batch_size,)))
    return found


def measure_extension(
    blocks: Sequence[Predefined],
    points: Sequence[Point],
    label: str,
    learned: Mapping[str, Any],
    journal_path: Path,
    now: float,
    restart: bool = False,
    progress: Progress | None = None,
    settings: Settings | None = None,
    networks: Sequence[Predefined] | None = None,
) -> Extension:
    """Measure `blocks` for a model of `points`, as learning does it.

    `label`, `learned`: the model's device and environment. Raises InputError on another device or with
    another framework, version or number of threads, MeasuringError when none of the blocks could be
    measured.
    """
    device, backend = str(learned["device"]), of_model(learned)
    if device == "cpu":  # known before anything is started
        refuse_another(label, learned, comparable.here(learned, device))
    try:
        known = known_blocks(backend, NETWORKS if networks is None else networks)
        own = choose(points, known)
    except InputError:
        own = []
    check = partial(refuse_another, label, learned)
    found, where, noise, warnings, journal = measure_blocks(
        backend,
        device,
        journal_path,
        now,
        restart,
        progress,
        settings,
        [*blocks, *(Predefined(p.name, partial(_graph, g), (p.batch_size,), True) for p, g in own)],
        check,
    )  # fmt: skip
    names = {b.name for b in blocks}
    new = tuple(p for p in found if p.name in names)
    if not new:
        journal.close()
        raise MeasuringError(f"none of the blocks could be measured ({warnings[-1]})")
    measured = {(p.name, p.batch_size): p.latency_ms for p in found}
    again = tuple(
        (job_key(*key), p.latency_ms, measured[key])
        for p, _ in own
        if (key := (p.name, p.batch_size)) in measured
    )
    unsaid = comparable.unsaid(learned)
    remarks = (*warnings, *[unsaid] * bool(unsaid), *disagreement(again))
    return Extension(new, again, where, noise, remarks, journal)


def _graph(graph: Graph) -> Graph:
    return graph


EXTEND = "extend it where it was learned, or learn this one: python learn_model.py"


def refuse_another(
    label: str, learned: Mapping[str, Any], now: Mapping[str, Any], advice: str = ""
) -> None:
    """InputError where this device or its framework is not what the model was learned with.

    `label`, `learned`, `now`: as `microbench.environment.differences` takes them; `advice`: how to mend it,
    if not as when extending a model.
    """
    found = comparable.differences(label, learned, now)
    if found:
        said = "; ".join(f"{d.field}: {d.learned}, here {d.now}" for d in found)
        raise InputError(
            f"the model was learned elsewhere ({said}) and times of two places are not to be mixed; "
            + (advice or f"{EXTEND} {learned.get('device', 'cpu')}")
        )


def disagreement(again: Sequence[tuple[str, float, float]]) -> Iterator[str]:
    """A remark where the points measured again are more than DRIFT off at the median, or there are none."""
    if not again:
        yield (
            "none of the model's own points could be measured again: whether machine and model still "
            "agree is not known"
        )
        return
    ratio = statistics.median(now / then for _, then, now in again)
    if abs(ratio - 1.0) > DRIFT:
        each = ", ".join(f"{key} {now:.3g} ms, was {then:.3g}" for key, then, now in again)
        yield (
            f"the model's own points took {100 * (ratio - 1):+.0f} % when measured again ({each}): the "
            "machine is in another state than when the model was learned, and the new points with it; "
            "when lolat doctor says ok, give the same command again with --restart"
        )
