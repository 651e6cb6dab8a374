"""Extending a model for a network: the blocks that bring it inside are measured, and it is fitted again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat import readers
from lolat.api import Model
from lolat.errors import InputError, MeasuringError
from lolat.fitting.points import Point
from lolat.graph import Graph, floating_types
from lolat.graph.blocks import Block, cut
from lolat.graph.counts import COLUMNS, FEATURES, FORMULAS
from lolat.graph.edits import block_kinds
from lolat.io import paths
from lolat.io.progress import Progress
from lolat.io.writing import check_writable
from lolat.model.file import read, write
from lolat.model.learning import FEW_BLOCKS, model_document
from lolat.model.prediction import domain_words
from lolat.report.text import latency
from microbench import backends
from microbench.extend import as_blocks, measure_extension
from microbench.journal import interruptible
from microbench.runner import job_key

PASSES = 3  # a new fit weighs the blocks anew, so that further ones may count


NO_REASONS = ("--extend", "model was learned with")
"""In remarks that say nothing of why a network is outside."""


@dataclass(frozen=True)
class Extended:
    """The extended model, the network that it was extended for, and whether anything was measured."""

    model: Model
    graph: Graph
    measured: bool


def extend_model(
    loaded: Model,
    name: str,
    spec: str,
    batch_sizes: Sequence[int],
    size: tuple[int, ...],
    device: str | None,
    output: Path | None,
    restart: bool,
    progress: Progress,
) -> Extended:
    """Extend the model `name` for the network `spec`: measure the blocks that bring it inside, fit again.

    `device`: as given on the command line, which must be the model's; `output`: None for the model's
    own file; `restart`: measure again what was measured for this network before. Raises InputError
    for a call, a model or a machine that does not fit.
    """
    check_extendable(loaded, name, device)
    backends.check(backends.of_model(loaded.document["environment"]))
    target = output_of(loaded, output, spec)
    graph = readers.read(spec, size)
    on_disk = loaded.document
    if restart:
        loaded = Model(without(on_disk, graph.name), loaded.source)
    measured = False
    for _ in range(PASSES):
        wanted = to_measure(loaded, graph, batch_sizes)
        if not wanted:
            break
        loaded = _measured(loaded, on_disk, graph, wanted, target, restart, progress)
        on_disk, measured = loaded.document, True
    return Extended(loaded, graph, measured)


def check_extendable(loaded: Model, name: str, device: str | None) -> None:
    """InputError for a model that nothing can be added to here."""
    where = loaded.inference["environment"]
    own = where.get("device")
    if own not in ("cpu", "gpu") or "framework" not in where:
        raise InputError(
            f"{name} does not say on which device and with which framework it was measured, so nothing "
            "can be added to it; learn a model: lolat learn cpu"
        )
    if device is not None and device != own:
        raise InputError(
            f"{name} was learned on a {own} and {device} was given; leave the device out, it is the "
            "model's"
        )
    if loaded.domain is None:
        raise InputError(
            f"{name} does not say what was measured, so there is nothing to bring a network into; learn "
            f"again: lolat learn {own}"
        )


def output_of(loaded: Model, output: Path | None, spec: str) -> Path:
    """Where the extended model goes: into its own file, but a shipped one stays as it is.

    Raises InputError where that cannot be written, or would replace another model unasked.
    """
    source = Path(loaded.source).resolve()
    shipped = paths.shipped_folder().resolve()
    if output is not None:
        if Path(os.path.realpath(output)).parent == shipped and output.exists():
            raise InputError(
                f"--output {output} is a shipped model, which stays as it is; give --output elsewhere"
            )
    elif source.parent != shipped:
        output = source
    else:
        output = paths.local_folder() / source.name
        if output.exists():
            raise InputError(
                f"{loaded.source} is shipped and stays as it is, and its copy {output} is there "
                f"already; extend that (lolat learn --extend {output} --for {spec}), or give --output"
            )
    check_writable(output)
    return output


def to_measure(loaded: Model, graph: Graph, batch_sizes: Sequence[int]) -> list[tuple[Block, int]]:
    """The fewest (block, batch size) that bring `graph` inside at these batch sizes; none where it is."""

    domain = loaded.domain
    predictions = [loaded.predict(graph, n) for n in dict.fromkeys(batch_sizes)]
    outside = [p for p in predictions if p.measure]
    if not outside or domain is None:
        return []
    kinds, able = block_kinds(graph, domain.dtypes)
    six = [COLUMNS.index(c) for c in FEATURES]
    rows, _ = domain.to_measure(
        np.concatenate([p.block_counts[:, six] for p in outside]),
        kinds * len(outside),
        np.concatenate([[b.share for b in p.blocks[:-1]] for p in outside]),
        np.array(able * len(outside)),
    )
    blocks = cut(graph)
    return [(blocks[r % len(blocks)], outside[r // len(blocks)].batch_size) for r in rows]


def _measured(
    loaded: Model,
    on_disk: Mapping[str, Any],
    graph: Graph,
    wanted: Sequence[tuple[Block, int]],
    target: Path,
    restart: bool,
    progress: Progress,
) -> Model:
    """Measure, fit, write: the extended model. `on_disk`: what the model's file held."""
    document = loaded.document
    points = [Point.from_dict(p) for p in document["points"]]
    blocks = as_blocks(graph, wanted, [p.name for p in points])
    journal_path = target.with_name(target.name + ".extend.journal.jsonl")
    with interruptible(journal_path):
        keys = [f"{b.name} x{b.batch_sizes[0]}" for b in blocks]
        progress.note(f"measuring {len(keys)} of its blocks: {', '.join(keys)}")
        where = document["environment"]
        found, record = measure_extension(
            blocks, points, loaded.device, where, journal_path, time.time(), restart, progress
        )
        record["network"] = graph.name
        extended = grown(document, found.points, record, found.warnings, target.stem)
        own = Path(loaded.source)
        if target.exists() and target.samefile(own) and read(own) != on_disk:
            found.journal.close()
            raise MeasuringError(
                f"{target} was changed meanwhile and is left as it is; give the same command again"
            )
        write(target, extended)
    found.journal.remove()
    for remark in found.warnings:
        progress.note(f"warning: {remark}")
    return Model(extended, str(target))


def grown(
    document: Mapping[str, Any],
    points: Sequence[Point],
    record: Mapping[str, Any],
    warnings: Sequence[str],
    name: str,
) -> dict[str, Any]:
    """A model file with further points, fitted again; those that it has stay as they are written."""
    old = [Point.from_dict(p) for p in document["points"]]
    where = document["environment"]
    where = {**where, "extended": [*where.get("extended", ()), dict(record)]}
    kept = [w for w in document.get("warnings", ()) if w != FEW_BLOCKS]
    said = [*kept, *(f"{_remark(record['network'])}{w}" for w in warnings)]
    found = model_document(
        name, document["device"], [*old, *points], where, document["noise"], said
    )
    found["points"][: len(old)] = document["points"]
    return {**document, **found}


def _remark(network: str) -> str:
    return f"when extended for {network}: "


def without(document: Mapping[str, Any], network: str) -> Mapping[str, Any]:
    """A model file without what was measured for `network` when it was extended, fitted again."""
    where = document["environment"]
    records = where.get("extended", ())
    gone = {key for r in records if r["network"] == network for key in r["points"]}
    kept = [p for p in document["points"] if job_key(p["name"], p["batch_size"]) not in gone]
    if len(kept) == len(document["points"]):
        return document
    where = {**where, "extended": [r for r in records if r["network"] != network]}
    said = [w for w in document.get("warnings", ()) if not w.startswith(_remark(network))]
    points = [Point.from_dict(p) for p in kept]
    found = model_document(
        document["name"], document["device"], points, where, document["noise"], said
    )
    return {**document, **found, "points": kept}


def standing(
    loaded: Model, graph: Graph, batch_sizes: Sequence[int], measured: bool
) -> Iterator[str]:
    """Whether the network is inside, and if not, why."""
    outside = False
    for n in dict.fromkeys(batch_sizes):
        prediction = loaded.predict(graph, n)
        title = f"{graph.name} at batch {n}"
        if prediction.in_domain:
            now = " now" if measured else ""
            yield f"{title} is {domain_words(prediction)}{now}: {latency(prediction)}"
            continue
        outside = True
        reasons = [w for w in prediction.warnings if not any(n in w for n in NO_REASONS)]
        yield f"{title} is outside the measured domain: {'; '.join(reasons)}"
    unknown = sorted({o.kind for o in graph.operations} - FORMULAS.keys())
    if outside and unknown:
        yield (
            f"Measuring does not help with {', '.join(unknown)}: there is no formula for what it costs."
        )
    other = sorted(set(floating_types(graph)) - (loaded.domain.dtypes if loaded.domain else set()))
    if outside and other:
        yield f"Measuring does not help with {', '.join(other)}: a model is of one data type."
    if not measured:
        yield f"Nothing to measure; {loaded.source} is unchanged."
