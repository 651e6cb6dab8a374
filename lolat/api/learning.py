"""Learning a device, and extending its model for a network: measured here, fitted and written."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lolat import readers
from lolat.api import Model
from lolat.errors import InputError, LolatError, MeasuringError
from lolat.fitting.points import Point
from lolat.graph import Graph, floating_types
from lolat.graph.blocks import Block, cut
from lolat.graph.counts import COLUMNS, FEATURES, FORMULAS
from lolat.graph.edits import block_kinds
from lolat.io import paths
from lolat.io.progress import Progress, Silent
from lolat.io.writing import check_writable
from lolat.model import learning as fitting
from lolat.model.file import SECTIONS, read, write
from lolat.model.prediction import domain_words
from lolat.report.text import latency
from microbench import backends, environment, worker
from microbench import learn as of_blocks
from microbench import learn_training as of_training
from microbench.extend import as_blocks, measure_extension, refuse_another
from microbench.journal import interruptible
from microbench.runner import job_key

USUAL = "tensorflow"  # the backend that the default name of a model file does not mention
ADVICE = (
    "give the --backend and options that it was learned with, another --output, or --restart to learn all "
    "anew"
)


def learn(
    device: str = "cpu",
    output: str | os.PathLike[str] | None = None,
    *,
    backend: str | None = None,
    options: Sequence[str] = (),
    training: bool = False,
    restart: bool = False,
    progress: Progress | None = None,
) -> Model:
    """Measure about a hundred predefined blocks on this device and fit a model: a few minutes.

    `device`: "cpu" or "gpu". `output`: the model file; models/local/<device>.json (or your data folder)
    if None. `backend`: tensorflow, torch or onnxruntime; the usual one that is there if None. `options`:
    of the backend, such as "compile", "half" or "threads=2". `training`: measure forward, backward and
    update too, some minutes more. `restart`: throw away what an interrupted run measured. `progress`: is
    told how far it is (start, step, note).

    Returns the `Model`. What was measured before Ctrl-C is kept, and the same call goes on. Raises
    MissingPackageError or DeviceError where there is nothing to measure with, InputError where `output`
    cannot be written or is of another device.
    """
    path = None if output is None else Path(output)
    return learn_device(device, path, backend, options, training, restart, progress or Silent())[0]


def learn_device(
    device: str,
    output: Path | None,
    backend: str | None,
    options: Sequence[str],
    training: bool,
    restart: bool,
    shown: Progress,
) -> tuple[Model, bool]:
    """As `learn`; with the model, whether its latencies are new (else only training was added)."""
    started = time.monotonic()
    joined, target = _backend_and_output(device, output, backend, options, shown)
    known = None
    if training:
        backends.check_trains(joined)
        known = None if restart else known_model(target, device, backends.threads_of(joined))
        if known is not None and "predictors" in known:
            shown.note(f"{target} is of this device: its latencies are kept, training is added")
            return _with_training(known, target, joined, device, restart, shown), False
    kept_sections(target, device, joined, restart)  # or refused, before minutes are spent
    journal_path = target.with_name(target.name + ".journal.jsonl")
    with interruptible(journal_path):
        points, where, noise, warnings, journal = of_blocks.measure_blocks(
            joined, device, journal_path, time.time(), restart, shown
        )
        where["seconds"] = round(time.monotonic() - started, 1)
        label = environment.label_of(device, where)
        document = fitting.model_document(target.stem, label, points, where, noise, warnings)
        document |= kept_training(target, document)
        document |= kept_sections(target, device, joined, restart)
        write(target, document)
    journal.remove()
    for remark in warnings:
        shown.note(f"warning: {remark}")
    if training:
        return _with_training(document, target, joined, device, restart, shown), True
    return Model(document, str(target)), True


def _with_training(
    document: Mapping[str, Any], output: Path, backend: str, device: str, restart: bool,
    progress: Progress,
) -> Model:  # fmt: skip
    """Measure training on this device and write it to `output`, in `document`, a latency model's.

    Where the file was changed meanwhile, training is added to what it is then. InputError where the
    framework or its settings are not those that `document` was learned with.
    """
    started = time.monotonic()
    if unsaid := environment.unsaid(document["environment"]):
        progress.note(f"warning: {output}: {unsaid}")
    journal_path = output.with_name(output.name + ".training.journal.jsonl")
    with interruptible(journal_path):
        section, journal = of_training.measure_training(
            backend, device, journal_path, time.time(), restart, progress,
            check=partial(_refuse, document),
        )  # fmt: skip
        section["environment"]["seconds"] = round(time.monotonic() - started, 1)
        now = known_model(output, device, backends.threads_of(backend)) or document
        _refuse(now, section["environment"])
        learned = {**now, "training": section}
        write(output, learned)
    journal.remove()
    for remark in section["warnings"]:
        progress.note(f"warning: {remark}")
    return Model(learned, str(output))


def known_model(output: Path, device: str, threads: int | None = None) -> dict[str, Any] | None:
    """The model in `output`, to which training can be added; None where there is none.

    `threads`: that were asked for, if so. What else stands there is replaced, as by any learning.
    InputError for a model of another device.
    """
    if not output.exists():
        return None
    try:
        document = read(output)
    except LolatError:
        return None
    if "predictors" not in document:  # nothing of it was measured: whoever gives it knows
        return document
    learned, label = document["environment"], str(document["device"])
    here = environment.here({"threads_asked": threads}, device)
    other = device == "cpu" and environment.differences_of_device(label, learned, here)
    if learned.get("device") != device or other:
        own = environment.label_of(device, here) if device == "cpu" else f"a {device}"
        raise InputError(
            f"{output} is a model of another device: {label}, and this is {own}; give another --output, "
            "or --restart to replace it"
        )
    return document


def kept_sections(output: Path, device: str, backend: str, restart: bool) -> dict[str, Any]:
    """What the model in `output` knows besides inference and training, which learning leaves as it is.

    InputError for a model of another device, unless it is to be replaced: `restart`.
    """
    try:
        old = read(output)
    except LolatError:
        return {}
    kept = {s: old[s] for s in SECTIONS if s in old and s != "training"}
    try:
        if kept:
            known_model(output, device, backends.threads_of(backend))
    except InputError:
        if not restart:
            raise
        return {}
    return kept


def kept_training(output: Path, learned: Mapping[str, Any]) -> dict[str, Any]:
    """{"training": ...} of the model in `output`, if its latencies now are `learned` on the same device.

    What took minutes to measure is not lost where the latencies are learned again; {} where there is none.
    """
    try:
        old = read(output)
        section = old["training"]
        refuse_another(str(old["device"]), section["environment"], learned["environment"])
    except (LolatError, KeyError, TypeError, AttributeError):
        return {}
    return {"training": section}


def _refuse(document: Mapping[str, Any], where: Mapping[str, Any]) -> None:
    """InputError where training would be measured otherwise than the latencies of the file were."""
    refuse_another(str(document["device"]), document["environment"], where, ADVICE)


def _backend_and_output(
    device: str, output: Path | None, name: str | None, options: Sequence[str], progress: Progress
) -> tuple[str, Path]:
    """What measures, and where the model goes: checked before minutes are spent."""
    if output is not None:  # before a GPU is looked for, which takes seconds
        check_writable(output)
    if name is None:
        backend, remark = worker.pick(device, options)
        if remark:
            progress.note(remark)
    else:
        backend = backends.joined(name, options)
    if output is None:  # what a GPU is called is not known before the backend has started
        threads, plain = backends.threads_of(backend), backends.without_threads(backend)
        own = environment.device_label(device, threads=threads)  # which says the threads
        label = f"cpu {own}" if device == "cpu" else device
        with_what = "" if plain == USUAL else f" {plain}"
        output = paths.local_folder() / f"{environment.slug(label + with_what)}.json"
        check_writable(output)
    return backend, output


# ---- Extending: the few blocks that bring a network inside what was measured.

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
    kept = [w for w in document.get("warnings", ()) if w != fitting.FEW_BLOCKS]
    said = [*kept, *(f"{_remark(record['network'])}{w}" for w in warnings)]
    found = fitting.model_document(
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
    found = fitting.model_document(
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
