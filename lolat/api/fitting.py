"""A model from what is measured already."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from lolat.api.model import Model
from lolat.device.file import SECTIONS, UNKNOWN, made, merged, read, write
from lolat.device.predictors.kernels import Kernels
from lolat.device.running import held_words, mode_of
from lolat.errors import InputError, LolatError, arg
from lolat.fitting.blocks import model_document
from lolat.fitting.from_tables import (
    Timed,
    facts_document,
    odd_time,
    tables_document,
    usual_mode,
)
from lolat.fitting.measured import with_operations
from lolat.fitting.odd_times import tell_other_units, warn_of_contradictions
from lolat.fitting.points import Point, lacking_counts, read_points
from lolat.fitting.refined import refined
from lolat.graph import Graph
from lolat.graph.counts import behaviors, count
from lolat.graph.modes import Mode
from lolat.hardware.sheets import NEEDED_FACTS, Facts, given_sheet, listed_facts, read_facts
from lolat.io.paths import find_model, list_models
from lolat.io.progress import Warn
from lolat.io.tables import Row, is_table, read_table
from lolat.io.writing import AnyPath
from lolat.readers import read as read_network
from lolat.readers.children import OnProgress
from lolat.tables.timed import (
    BLOCKS,
    KERNELS,
    MULTIPLYING,
    NETWORKS,
    OPERATIONS,
    SERVED,
    Counted,
    Table,
    TimedNetwork,
    TimedOperation,
    content_of,
    counts_of,
    read_networks,
    read_operations,
    version_of,
)
from lolat.training.epochs import epochs_document
from lolat.training.learning import refitted
from lolat.units import plain, plural
from microbench.blocks import known_graphs

if TYPE_CHECKING:
    from lolat.llm.gpu import Section

# ---- `fit`: a model from tables, or from a model's own points.

NOT_TOGETHER = "not-together"
"""The code of the error for files that cannot be fitted together."""
COPIES = "{} of {} rows are copies of others, and count once"
CPU_WORDS = re.compile(r"(?<![a-z0-9])(cpu|core|xeon|epyc|ryzen|i[3579])(?![a-z0-9])")
"""In a device's or a table's name: no host starts its operations, and waits for it."""
MODELS, EPOCHS = "models", "epochs"
LANGUAGE = "language models"
Contents = Sequence[tuple[str, str]]  # files, each with its content
MOST_JUDGING_UNITS = 500  # operations of a table
TOGETHER = (
    f"expected tables of operations and networks, where known with {arg('facts')} and {arg('name')}; or "
    "these two alone; or a model file, alone or with tables of networks or of served models; or one table "
    "of blocks; or one table of epochs"
)


def fit(
    tables: AnyPath | Sequence[AnyPath] = (),
    output: AnyPath | None = None,
    *,
    name: str | None = None,
    facts: AnyPath | None = None,
    tensor_parallel: int | None = None,
    on_progress: OnProgress | None = None,
    warn: Warn | None = None,
) -> Model:
    """Fit a model to what somebody has measured: to tables of one device, or to a model file again.

    `tables`: a model file (fitted again on its points), or CSV tables of blocks (acts, inp, flops,
    latency_ms and more), of operations timed one by one (op, latency_ms and their sizes), or of whole
    networks (network, batch_size, latency_ms). A model file and tables of networks of the same device:
    fitted to all together; a file made from tables takes their level. None of them: from the data sheet of
    `name` alone, in `facts` or of a known GPU, then for language models too where it computes bfloat16.
    `output`: the device's JSON file, whose other sections stay; None writes none. `name`: what the device
    is called, also in tables. `facts`: a CSV of data sheets. `tensor_parallel`: GPUs that share a served
    model whose row or file does not say it. `on_progress`: called after each network is counted (done, all,
    name); `warn`: of rows left out, of what a table lacks or contradicts, of how far off served models are.

    Returns a `Model`. Raises InputError for tables that cannot be used.
    """
    paths = [os.fspath(t) for t in ([tables] if isinstance(tables, (str, os.PathLike)) else tables)]
    contents = [(path, _content(path)) for path in paths]
    kinds, stem = [content for _, content in contents], Path(output or "model").stem
    tell = warn or _nobody
    answers = () if kinds or facts is None else _answered_by(os.fspath(facts), tell)
    if {KERNELS, SERVED} & {*kinds} or answers == (LANGUAGE,) or tensor_parallel is not None:
        return _language_models(contents, output, name, facts, tensor_parallel, tell)
    sheet = None if facts is None or name is None else read_facts(os.fspath(facts), name)
    if not paths and facts is None and name is not None:
        sheet = listed_facts(name)
    if (kinds or sheet) and {OPERATIONS, NETWORKS}.issuperset(kinds) and (sheet or facts is None):
        document = _of_tables(contents, stem, name, sheet, on_progress, tell)
        if facts is not None and name is not None:
            document["environment"]["sheet"] = given_sheet(os.fspath(facts), name)
        if not kinds and (facts is None or LANGUAGE in answers):
            document |= _section_of_sheet(name or "", facts, stem)
    elif facts is not None and name is None:
        raise InputError(
            f"{arg('facts')} without {arg('name')}; expected the device's name in its column device too",
            code=NOT_TOGETHER,
        )
    elif facts is not None:
        raise _not_together(contents)
    elif kinds == [EPOCHS]:
        document = epochs_document(paths[0], stem, name, read_network, tell)
        if name is None and Path(output or "").is_file():
            document["device"] = UNKNOWN  # it is the file's
    elif kinds == [BLOCKS]:
        document = _of_blocks(paths[0], stem, name, tell)
    elif kinds.count(MODELS) == 1 and {MODELS, NETWORKS}.issuperset(kinds):
        document = _of_model(contents, stem, name, on_progress, tell)
    else:
        raise _not_together(contents)
    if output is not None and MODELS not in kinds:
        _say_replaced(output, document, tell)
    return _written(document, output)


def _written(document: dict[str, Any], output: AnyPath | None) -> Model:
    """The model, in its file where one is given, whose other sections stay."""
    if output is None:
        return Model(document)
    document = merged(output, document)
    write(output, document)
    return Model(document, os.fspath(output))


def _say_replaced(output: AnyPath, document: Mapping[str, Any], warn: Warn) -> None:
    """Say that a file knew latencies from elsewhere, which a new fit replaces."""
    if "predictors" not in document or not Path(output).is_file():
        return
    with contextlib.suppress(LolatError):  # a damaged one: `merged` says it
        if (old := read(output)) and "predictors" in old:
            warn(
                f"{plain(os.fspath(output))} knew latencies from {held_words(old)}: these are replaced; to "
                "have all, fit all tables together"
            )


def _content(path: str) -> str:
    """The rows of a table; MODELS for a file that is none."""
    if not is_table(path):
        return SERVED if _is_benchmark(path) else MODELS
    columns = read_table(path).names
    return EPOCHS if "epoch_s" in columns else content_of(columns)


def _is_benchmark(path: str) -> bool:
    """Whether a file is what a benchmark of a server writes."""
    try:
        with open(path, encoding="utf-8") as file:
            return '"total_output_tokens"' in file.read(100_000)
    except (OSError, ValueError):
        return False  # the reader of model files says what is wrong


def _answered_by(facts: str, tell: Warn) -> tuple[str, ...]:
    """What the data sheets of a table answer for: networks, language models, or both; `tell` is told of
    the columns that the other needs. Both where either lacks some: whoever reads the table says which.
    """
    from lolat.llm.fit import SHEET

    columns, needed = read_table(facts).names, {NETWORKS: NEEDED_FACTS, LANGUAGE: SHEET}
    lacks = {what: [c for c in of if c not in columns] for what, of in needed.items()}
    answers = tuple(what for what, names in lacks.items() if not names)
    if len(answers) == 1:
        (other,) = {*needed} - {*answers}
        tell(
            f"{plain(facts)}: no {', '.join(lacks[other])}: the file answers for {answers[0]}, and not for "
            f"{other}"
        )
    return answers or (*needed,)


def _language_models(
    contents: Contents, output: AnyPath | None, name: str | None, facts: AnyPath | None,
    tensor_parallel: int | None, tell: Warn,
) -> Model:  # fmt: skip
    """A model file that knows language models: from a data sheet, tables of operations, served models."""
    from lolat.llm.calibration import served_by, types_words
    from lolat.llm.fit import read_sheet, section_from
    from lolat.llm.frameworks import frameworks_in
    from lolat.llm.gpu import section_of
    from lolat.llm.names import find_decoder
    from lolat.llm.served import read_served

    files = {kind: [p for p, c in contents if c == kind] for kind in (KERNELS, SERVED, MODELS)}
    if tensor_parallel is not None and (not files[SERVED] or tensor_parallel < 1):
        raise InputError(
            f"{arg('tensor_parallel')} {tensor_parallel}: expected the GPUs, 1 or more, of served models",
            code="tensor-parallel",
        )
    if len(files[MODELS]) > 1 or len(contents) > sum(map(len, files.values())):
        raise _not_together(contents)
    if files[MODELS]:
        document = read(find_model(files[MODELS][0]))
        if "llm" not in document or facts is not None or files[KERNELS]:
            raise _not_together(contents)
        section = section_of(document, files[MODELS][0])
    elif facts is None or name is None:
        raise InputError(
            f"operations of language models need the data sheet of their GPU; expected {arg('facts')} with "
            f"a row of its {arg('name')}: device, multiprocessors, bandwidth_gb_s, memory_gib, "
            "bf16_tflops, and where it has them fp8_tflops, fp4_tflops, link_gb_s",
            code="no-sheet",
        )
    else:
        framework = frameworks_in(" ".join([*files[KERNELS], Path(output or "").stem]))
        sheet = read_sheet(os.fspath(facts), name)
        section = section_from(sheet, framework, files[KERNELS], _shipped_sections())
        source = ", ".join(map(_name, [*files[KERNELS], *files[SERVED]])) or "data sheet"
        where = {"device": "unknown", "source": source}
        document = made(Path(output or name).stem, f"{name} ({framework}, from {source})", where)
    own, *about = str(document["device"]).partition(" (")
    document, device = dict(document), name or own
    document["device"] = "".join([device, *about])
    read_as = device, section.framework, tensor_parallel
    rows = [row for p in files[SERVED] for row in read_served(p, *read_as)]
    if rows and tensor_parallel and all(row.tensor_parallel != tensor_parallel for row in rows):
        raise InputError(
            f"{arg('tensor_parallel')} {tensor_parallel}: every served row says its own number of GPUs; "
            "leave it out"
        )
    if files[SERVED]:
        section, words = served_by(section, rows, find_decoder)
        if types := types_words(section, rows, find_decoder):
            tell(types)
        tell(words)
        where = dict(document["environment"])
        sources = str(where.get("source", "")).split(", ")
        names = dict.fromkeys([*sources, *map(_name, files[SERVED])])
        document["environment"] = where | {"source": ", ".join(filter(None, names))}
    document = {**document, "llm": msgspec.to_builtins(section)}
    return _written(document, output)


def _name(path: str) -> str:
    return Path(path).name


def _section_of_sheet(name: str, facts: AnyPath | None, stem: str) -> dict[str, Any]:
    """What a data sheet says of language models: the section, or nothing where it says too little. That of
    `name` in the table `facts`, or the one that comes along.
    """
    from lolat.hardware.gpus import find_gpu
    from lolat.hardware.links import PEAKS
    from lolat.llm.fit import read_sheet, section_from
    from lolat.llm.frameworks import frameworks_in
    from lolat.llm.gpu import sheet_of

    gpu = find_gpu(name)
    sheet = None if gpu is None else sheet_of(gpu, PEAKS.get(gpu.link))
    if facts is not None:
        sheet = read_sheet(os.fspath(facts), name)
    if sheet is None:
        return {}
    section = section_from(sheet, frameworks_in(stem), (), _shipped_sections())
    return {"llm": msgspec.to_builtins(section)}


def _shipped_sections() -> dict[str, Section]:
    """What shipped models know of language models, by name."""
    from lolat.llm.gpu import section_of

    found = {}
    for name, path, _ in list_models():
        document = read(path)
        if "llm" in document:
            found[name] = section_of(document, str(path))
    return found


def _not_together(contents: Contents) -> InputError:
    files = ", ".join(f"{path} ({content})" for path, content in contents) or "no file"
    return InputError(f"{files} cannot be fitted like this; {TOGETHER}", code=NOT_TOGETHER)


def _of_blocks(path: str, stem: str, device: str | None, warn: Warn) -> dict[str, Any]:
    """The document of a table of blocks; `warn` is told of counts that lack, and of times far off."""
    of_rows = read_points(path, [device] if device else ())
    lacking = lacking_counts([point for point, _ in of_rows], of_rows[0][1])
    if lacking:
        warn(f"{path}: {lacking}")
    times = {((*p.counts.items(), p.batch_size), p.latency_ms): (p, row) for p, row in of_rows}
    if copies := len(of_rows) - len(times):
        warn(COPIES.format(copies, len(of_rows)))
    warn_of_contradictions(((of, p.name, ms, row) for (of, ms), (p, row) in times.items()), warn)
    in_other_units = tell_other_units(((p.counts, p.latency_ms, row) for p, row in of_rows), warn)
    source = {"device": "unknown", "source": Path(path).name}
    shown = device or "unknown (from a table)"
    document = model_document(stem, shown, [p for p, _ in times.values()], source, {})
    off = document["predictors"][document["default"]].get("residuals")
    if off and not in_other_units:
        timed = [(row, p.name, p.latency_ms) for p, row in times.values()]
        odd_time(timed, np.array(off), warn)
    return document


def _nobody(text: str) -> None:
    """Is told what nobody is to hear."""


def _of_tables(
    contents: Contents,
    stem: str,
    device: str | None,
    sheet: Facts | None,
    on_progress: OnProgress | None,
    warn: Warn,
) -> dict[str, Any]:
    """The model file of a device from tables of operations and networks, or from its data sheet alone."""
    source: dict[str, Any] = {"device": "unknown", "framework": "torch"}
    if not contents and sheet is not None:
        return facts_document(stem, f"{device} (data sheet)", sheet, source)
    devices = () if device is None else (device,)
    operations = [r for p, c in contents if c == OPERATIONS for r in read_operations(p, devices)]
    for path, _ in contents if device is None else ():
        read_table(path).of_devices()  # InputError for times of several
    tables = [read_networks(p, devices) for p, c in contents if c == NETWORKS]
    mode = usual_mode([row for table in tables for row in table.rows])
    networks = _once(
        [row for table in tables for row in _counted(table, mode, on_progress, warn)], warn
    )
    rows: list[TimedOperation | TimedNetwork] = [*operations]
    rows += [network for network, _ in networks]
    warn_of_contradictions(((r.same, r.name, r.latency_ms, r.row) for r in rows), warn)
    counted = [(counts.total(n.batch_size), n.latency_ms, n.row) for n, counts in networks]
    # Of a longer table some operations tell its unit as well.
    for operation in operations[:: 1 + len(operations) // MOST_JUDGING_UNITS]:
        counts = count(operation.graph).total(operation.batch_size)._asdict()
        counted.append((counts, operation.latency_ms, operation.row))
    if tell_other_units(counted, warn):
        warn = _nobody  # which times are odd cannot be told where all are
    numbers = [f"{len(operations)} operations"] * bool(operations)
    numbers += [f"{len(networks)} networks"] * bool(networks)
    source["source"] = ", ".join(Path(path).name for path, _ in contents)
    if networks and all(row.network[0].startswith("keras:") for row, _ in networks):
        del source["framework"]  # PyTorch did not run these; what did, the table does not say
    sizes = [row.batch_size for row, _ in networks]
    sizes += [row.batch_size for row in operations if row.name in MULTIPLYING and not networks]
    held: dict[str, Any] = {"operations": len(operations), "networks": len(networks)}
    held |= {"batch_sizes": [min(sizes), max(sizes)]} if sizes else {}
    source |= {"half": mode.half, "mode": str(mode), "held": held, "compile": mode.fused}
    if version := next(filter(None, (version_of(path) for path, _ in contents)), None):
        source["framework_version"] = version
    shown = f"{device or 'unknown'} (from {' and '.join(numbers)}, {mode})"
    named = " ".join([device or "", *(Path(path).name for path, _ in contents)]).lower()
    is_cpu = sheet is None and CPU_WORDS.search(named) is not None
    timed = Timed(operations, networks, mode, is_cpu)
    return tables_document(stem, shown, timed, sheet, source, warn)


def _counted(
    table: Table, mode: Mode, on_progress: OnProgress | None, warn: Warn
) -> list[tuple[TimedNetwork, Counted]]:
    """The rows of a table that were run in `mode`, each with its counts; `warn`: of others."""
    table.say_assumed(warn)
    rows = [row for row in table.rows if row.mode.inference == mode]
    for row in table.rows:
        if row.mode.inference != mode:
            table.left_out.add(f"run in another way than most ({row.mode}; most: {mode})", "mode")
    if not rows:
        raise table.nothing()
    networks = []
    for row, counts in zip(rows, counts_of(rows, on_progress), strict=True):
        if isinstance(counts, LolatError):
            table.left_out.network(row.name, row.network[0], counts)
        else:
            networks.append((row, counts))
    table.say_left_out(warn)
    return networks


def _once(
    networks: list[tuple[TimedNetwork, Counted]], warn: Warn
) -> list[tuple[TimedNetwork, Counted]]:
    """Rows that are copies of others count once."""
    once = {(row.same, row.latency_ms): (row, counts) for row, counts in networks}
    if copies := len(networks) - len(once):
        warn(COPIES.format(copies, len(networks)))
    return [*once.values()]


def _of_model(
    contents: Contents, stem: str, device: str | None, on_progress: OnProgress | None, warn: Warn
) -> dict[str, Any]:
    """A model file fitted again, with its other sections, to its points and networks of its device.

    What the file knows of training is fitted again on its own points. A file made from tables has the
    level of the networks.
    """
    file = find_model(next(path for path, content in contents if content == MODELS))
    document = read(file)
    points = [Point.from_dict(p) for p in document.get("points", ())]
    paths = [path for path, content in contents if content == NETWORKS]
    if paths and not points and document.get("default") == Kernels.name:
        mode, devices = mode_of(document), _names_of(document, device)
        tables = [read_networks(path, devices, mode) for path in paths]
        rows = _once([row for t in tables for row in _counted(t, mode, on_progress, warn)], warn)
        warn_of_contradictions(((r.same, r.name, r.latency_ms, r.row) for r, _ in rows), warn)
        tell_other_units([(c.total(r.batch_size), r.latency_ms, r.row) for r, c in rows], warn)
        made = refined(document, rows, ", ".join(map(_name, paths)))
        if made == document:
            warn(f"{', '.join(map(_name, paths))}: {file} has been fitted to all its rows before")
        return {**made, "name": stem, "device": device or document["device"]}
    if not points and "training" not in document:
        raise InputError(
            f"{file} holds no measured points to fit again: it was made from tables; expected tables of "
            f"networks beside it, or all tables of the device without it: lolat fit OLD.csv NEW.csv "
            f"{arg('output')} MODEL",
            code="no-points",
        )
    remarks = list(document.get("warnings", ()))
    shown = device or document["device"]
    where, noise = document["environment"], document["noise"]
    graphs = (
        known_graphs(str(where.get("framework"))) if Kernels.name in document["predictors"] else {}
    )
    for path in paths:
        more, graphs_of_more = _points_of_networks(path, document, device, warn)
        points += more
        graphs |= graphs_of_more
        remarks.append(
            f"{plural(len(more), 'point')} from {Path(path).name}: not measured by LoLat, taken as times "
            f"of {shown}, run as the other points were"
        )
    sections = {section: document[section] for section in SECTIONS if section in document}
    if "training" in document:
        sections["training"] = refitted(document["training"], str(file))
    fitted = model_document(stem, shown, points, where, noise, remarks)
    return with_operations(fitted, points, graphs) | sections


def _names_of(document: Mapping[str, Any], device: str | None) -> tuple[str, ...]:
    """What tables call the device of a model file."""
    return (device,) if device else (document["device"], document["name"])


def _points_of_networks(
    path: str, document: Mapping[str, Any], device: str | None, warn: Warn
) -> tuple[list[Point], dict[str, Graph]]:
    """The rows of a table of networks as points for the model `document`, and their graphs by name.

    Left out are rows that name another device, that were run in another way than the model's points, and
    networks that cannot be read.
    """
    mode = mode_of(document)
    table, points, timed = read_networks(path, _names_of(document, device), mode), [], []
    graphs: dict[str, Graph] = {}
    counted: list[tuple[Mapping[str, int], float, Row]] = []
    table.say_assumed(warn)
    for row in table.rows:
        spec, size, _ = row.network
        try:
            if row.mode != mode:
                raise InputError(f"run in another way ({row.mode}; the model: {mode})")
            graph = read_network(spec, size)
        except LolatError as error:
            table.left_out.network(row.name, spec, error)
            continue
        counts = count(graph).total(row.batch_size)._asdict()
        kinds = tuple(sorted(behaviors(graph.operations)))
        point = Point(row.name, row.batch_size, counts, row.latency_ms, kinds=kinds, whole=True)
        points.append(point)
        graphs[row.name] = graph
        timed.append((row.same, row.name, row.latency_ms, row.row))
        counted.append((counts, row.latency_ms, row.row))
    if not points:
        raise table.nothing()
    table.say_left_out(warn)
    warn_of_contradictions(timed, warn)
    tell_other_units(counted, warn)
    return points, graphs
