"""Reading and checking tables of operations, networks and blocks, and fitting a device to them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from lolat.device.device import Device
from lolat.device.execution_modes import before_fit
from lolat.device.file import DeviceFile
from lolat.errors import InputError, LolatError
from lolat.fitting.blocks import fitted_file
from lolat.fitting.from_tables import TimedRows, specs_document, tables_document, usual_mode
from lolat.fitting.outliers import odd_time, tell_other_units, warn_of_contradictions
from lolat.fitting.refined import TrainingParts, refined
from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.graph.modes import FLOAT16, PRECISION_OF, Mode
from lolat.hardware.card_names import find_gpu
from lolat.hardware.specs import Specs
from lolat.io.progress import OnProgress, Warn, nobody
from lolat.io.tables import Row, read_table, say_unread
from lolat.readers import read as read_network
from lolat.tables.blocks import Point, lacking_counts, read_points
from lolat.tables.contents import NETWORKS, OPERATIONS, Content
from lolat.tables.copies import copies_words, unique
from lolat.tables.counted import Counted, counts_of, numbered
from lolat.tables.devices import check_one_device
from lolat.tables.modes import mode_of_row
from lolat.tables.networks import NetworkTable, TimedNetwork, read_networks, version_of
from lolat.tables.operations import PRODUCT_NAMES, TimedOperation, read_operations
from lolat.units import plural, rows_of

CPU_WORDS = re.compile(r"(?<![a-z0-9])(cpu|core|xeon|epyc|ryzen|i[3579])(?![a-z0-9])")
"""Words in the name of a device or table that mean a CPU, where no host launches operations."""
MOST_JUDGING_UNITS = 500  # most operations of a table that are used to check its unit
T = TypeVar("T")
Contents = Sequence[tuple[str, Content]]  # (file, its content)


def blocks_file(path: str, stem: str, device: str | None, warn: Warn) -> DeviceFile:
    """Fit a profile to a table of blocks; `warn` is called with remarks on missing counts and odd times."""
    of_rows = read_points(path, [device] if device else ())
    if lacking := lacking_counts([point for point, _ in of_rows]):
        warn(f"{path}: {lacking}")
    keys = [(*p.counts.items(), p.batch_size) for p, _ in of_rows]
    keyed = zip(keys, of_rows, strict=True)
    times = unique([((key, p.latency_ms), (key, p, row)) for key, (p, row) in keyed], warn)
    warn_of_contradictions(((key, p.name, p.latency_ms, row) for key, p, row in times), warn)
    in_other_units = tell_other_units(((p.counts, p.latency_ms, row) for p, row in of_rows), warn)
    source = {"device": "unknown", "source": Path(path).name, **_precision_of(of_rows)}
    say_unread((row for _, row in of_rows), warn)
    shown = device or "unknown (from a table)"
    file = fitted_file(stem, shown, [p for _, p, _ in times], source, {})
    off = file.formulas[file.default].residuals
    if off and not in_other_units:
        odd_time([(row, p.name, p.latency_ms) for _, p, row in times], np.array(off), warn)
    return file


def _precision_of(rows: Sequence[tuple[Point, Row]]) -> dict[str, bool]:
    """The precision of a table of blocks as fields of `environment`; InputError if its rows differ."""
    first = mode_of_row(rows[0][1])
    for _, row in rows:
        mode = mode_of_row(row)
        if mode != first or mode not in (Mode(), Mode(FLOAT16)):
            raise row.refused(
                f"run in {mode}; expected float32 in all rows, or float16 in all rows"
            )
    return {} if first == Mode() else {"half": True}


def device_document(
    contents: Contents,
    stem: str,
    device: str | None,
    sheet: Specs | None,
    on_progress: OnProgress | None,
    warn: Warn,
) -> dict[str, Any]:
    """Fit a profile to tables of operations and networks, or without tables make it from a data sheet."""
    if not contents and sheet is not None:
        of = f" of {sheet.gpu.name}" if sheet.gpu and sheet.gpu == find_gpu(device or "") else ""
        where = {"device": "unknown", "framework": "torch"}
        return specs_document(stem, f"{device} (data sheet{of})", sheet, where)
    devices = () if device is None else (device,)
    operations = [r for p, c in contents if c == OPERATIONS for r in read_operations(p, devices)]
    if device is None:
        check_one_device(read_table(path) for path, _ in contents)
    tables = [read_networks(p, devices) for p, c in contents if c == NETWORKS]
    mode = usual_mode([row for table in tables for row in table.rows], operations)
    for operation in operations:
        if operation.mode != mode:
            raise operation.row.refused(
                f"an operation in {operation.mode}; expected {mode}, as most rows: a profile has one "
                "precision and layout"
            )
    say_unread((operation.row for operation in operations), warn)  # after the modes were read
    operations = unique([((o.same, o.latency_ms), o) for o in operations], warn)
    networks = _counted(tables, mode, on_progress, warn)
    rows: list[TimedOperation | TimedNetwork] = [*operations, *(row for row, _ in networks)]
    warn_of_contradictions(((r.same, r.name, r.latency_ms, r.row) for r in rows), warn)
    counted = [(counts.total(n.batch_size), n.latency_ms, n.row) for n, counts in networks]
    # Some operations of a long table tell its unit as well as all of them.
    for operation in operations[:: 1 + len(operations) // MOST_JUDGING_UNITS]:
        counts = count(operation.graph).total(operation.batch_size)._asdict()
        counted.append((counts, operation.latency_ms, operation.row))
    if tell_other_units(counted, warn):
        warn = nobody  # in a wrong unit all times look odd
    numbers = [plural(len(operations), "operation")] if operations else []
    numbers += [rows_of(len(networks), len({*numbered(networks)}))] if networks else []
    shown = f"{device or 'unknown'} (from {' and '.join(numbers)}, {mode})"
    named = " ".join([device or "", *(Path(path).name for path, _ in contents)]).lower()
    is_cpu = sheet is None and CPU_WORDS.search(named) is not None
    timed = TimedRows(operations, networks, mode, is_cpu)
    return tables_document(stem, shown, timed, sheet, _environment_of(contents, timed), warn)


def _environment_of(contents: Contents, timed: TimedRows) -> dict[str, Any]:
    """The section `environment` of a profile fitted to tables."""
    operations, networks, mode = timed.operations, timed.networks, timed.mode
    source: dict[str, Any] = {"device": "unknown", "framework": "torch"}
    source["source"] = ", ".join(Path(path).name for path, _ in contents)
    if networks and all(row.network[0].startswith("keras:") for row, _ in networks):
        del source["framework"]  # PyTorch did not run these, and the table names no framework
    sizes = [row.batch_size for row, _ in networks]
    sizes += [row.batch_size for row in operations if row.name in PRODUCT_NAMES and not networks]
    distinct = len({*numbered(networks)})
    fitted_on: dict[str, Any] = {"operations": len(operations), "networks": distinct}
    fitted_on |= {"network_rows": len(networks)} if distinct < len(networks) else {}
    fitted_on |= {"batch_sizes": [min(sizes), max(sizes)]} if sizes else {}
    if networks and not operations and all(row.mode.training for row, _ in networks):
        fitted_on["inference"] = False
    source |= {"half": mode.half, "mode": str(mode), "fitted_on": fitted_on, "compile": mode.fused}
    if networks:
        source["rows"] = sorted({row.key for row, _ in networks})
    if version := next(filter(None, (version_of(path) for path, _ in contents)), None):
        source["framework_version"] = version
    return source


def _counted(
    tables: Sequence[NetworkTable], mode: Mode, on_progress: OnProgress | None, warn: Warn
) -> list[tuple[TimedNetwork, Counted]]:
    """(row, counts) of the distinct rows run in `mode`; `warn` is called with a remark on other rows."""
    networks = []
    for table in tables:
        table.say_assumed(warn)
        rows = [row for row in table.rows if row.mode.inference == mode]
        for row in table.rows:
            if row.mode.inference != mode:
                why = f"run in another way than most ({row.mode}; most: {mode})"
                table.left_out.add(why, "mode")
        usable = []
        for row, counts in zip(rows, counts_of(rows, on_progress), strict=True):
            if isinstance(counts, LolatError):
                table.left_out.network(row.name, row.network[0], counts)
            else:
                usable.append((row, counts))
        if not usable:
            raise table.nothing()
        networks += usable
        table.say_left_out(warn)
    return unique([((row.same, row.latency_ms), (row, counts)) for row, counts in networks], warn)


def refined_file(
    model: Device,
    paths: Sequence[str],
    training_parts: Callable[[DeviceFile], TrainingParts],
    device: str | None,
    on_progress: OnProgress | None,
    warn: Warn,
) -> DeviceFile:
    """Scale a GPU's profile, made from tables, to the networks in further tables.

    The file gets the mode of most of the new rows. If their precision differs from the file's, the file in
    its former precision is kept in the new file.
    """
    own, devices = model.file.mode, _names_of(model.file, device)
    tables = [read_networks(path, devices, own, iterations=True) for path in paths]
    mode = usual_mode([row for table in tables for row in table.rows])
    file = before = _for_file(model)
    if mode != own and any(table.rows for table in tables):
        precision = PRECISION_OF[mode.dtype]
        file = _for_file(model.run_as(precision, mode.launch, channels_last=mode.channels_last))
        if mode.dtype != own.dtype and "before" not in file.document:
            file = file.but(before=before_fit(before))
    rows = _counted(tables, mode, on_progress, warn)
    warn_of_contradictions(((r.same, r.name, r.latency_ms, r.row) for r, _ in rows), warn)
    each = [(c.total(r.batch_size * r.accumulate), r.latency_ms, r.row) for r, c in rows]
    tell_other_units(each, warn)
    names = ", ".join(Path(path).name for path in paths)
    made = refined(file, rows, names, training_parts)
    known = {*file.environment.rows}
    if made is file:
        warn(f"{names}: {file.name} has been fitted to all its rows before")
    elif again := sum(row.key in known for row, _ in rows):
        warn(f"{names}: {file.name} has been fitted to {again} of its {len(rows)} rows before")
    for remark in made.warnings[len(file.warnings) :]:
        warn(remark)
    return made


def _for_file(device: Device) -> DeviceFile:
    """The file of a device, with its environment, name and precision remark set to its present mode."""
    file, mode = device.file, device.file.mode
    parts: dict[str, Any] = {"estimated": file.estimated and str(file.estimated)}
    if file.environment.mode not in (None, str(mode)):
        where = {"half": mode.half, "mode": str(mode), "compile": mode.fused}
        parts["device"] = f"{file.product} ({mode})"
        parts["environment"] = {**file.recorded, **where}
    return file.but(**parts)


def _names_of(file: DeviceFile, device: str | None) -> tuple[str, ...]:
    """The names that tables may give a profile's device."""
    return (device,) if device else (file.device, file.product, file.name)


def points_of_networks(
    path: str, file: DeviceFile, known: set[str], device: str | None, warn: Warn
) -> tuple[list[Point], dict[str, Graph]]:
    """(points, graphs by their keys) of the rows in a table of networks that suit a profile.

    Rows of another device or execution mode than the profile's, and networks that cannot be read, are left
    out. `known`: the keys of points that are already counted; the table's keys are added to it.
    """
    mode = file.mode
    table, points, timed = read_networks(path, _names_of(file, device), mode), [], []
    graphs: dict[str, Graph] = {}
    counted: list[tuple[Mapping[str, int], float, Row]] = []
    table.say_assumed(warn)
    for row in table.rows:
        spec, size, _ = row.network
        try:
            if row.mode != mode:
                raise InputError(f"run in another way ({row.mode}; the profile: {mode})")
            graph = read_network(spec, size)
        except LolatError as error:
            table.left_out.network(row.name, spec, error)
            continue
        point = Point.from_graph(row.name, graph, row.batch_size, row.latency_ms, whole=True)
        points.append(point)
        graphs[point.key] = graph  # a network may have several sizes
        timed.append((row.same, row.name, row.latency_ms, row.row))
        counted.append((point.counts, row.latency_ms, row.row))
    if not points:
        raise table.nothing()
    table.say_left_out(warn)
    warn_of_contradictions(timed, warn)
    tell_other_units(counted, warn)
    new = {point.key: point for point in points if point.key not in known}
    known.update(new)
    if len(new) < len(points):
        warn(f"{path}: {copies_words(len(points) - len(new), len(points))}")
    return [*new.values()], graphs
