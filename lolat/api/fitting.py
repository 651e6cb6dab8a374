"""A model from what is measured already, and which models there are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lolat.devices.from_tables import Timed, facts_document, tables_document, usual_mode
from lolat.devices.sheets import read_facts
from lolat.devices.tables import (
    Counted,
    Table,
    TimedNetwork,
    columns_of,
    counts_of,
    is_of_networks,
    is_of_operations,
    read_networks,
    read_operations,
)
from lolat.errors import InputError, LolatError, ModelFileError, arg
from lolat.fitting.points import Point, known_features, read_csv
from lolat.graph.counts import behaviors, count
from lolat.graph.modes import COMPILED, EAGER, FLOAT16, FLOAT32, Mode
from lolat.io.documents import NotJsonError
from lolat.io.paths import find_model, list_models
from lolat.io.progress import Warn
from lolat.io.results import Result, plain_data
from lolat.io.tables import is_table
from lolat.io.writing import AnyPath
from lolat.model import Model
from lolat.model.file import OF_INFERENCE, SECTIONS, UNKNOWN, lacks, merged, read, write
from lolat.model.learning import model_document
from lolat.readers import read as read_network
from lolat.readers.many import Said
from lolat.training.epochs import epochs_document
from lolat.training.learning import refitted
from lolat.units import plain, plural

# ---- `fit`: a model from tables, or from a model's own points.


def fit(
    tables: AnyPath | Sequence[AnyPath] = (),
    output: AnyPath | None = None,
    *,
    name: str | None = None,
    facts: AnyPath | None = None,
    skip: bool = False,
    said: Said | None = None,
    warn: Warn | None = None,
) -> Model:
    """Fit a model to what somebody has measured: to tables of one device, or to a model file again.

    `tables`: a model file (fitted again on its points), or CSV tables of blocks (acts, inp, flops,
    latency_ms and more), of operations timed one by one (op, latency_ms and their sizes), or of whole
    networks (network, batch_size, latency_ms). A model file and tables of networks or blocks of the same
    device: fitted to all together. None of them: from the data sheet of `name` in `facts` alone. `output`:
    the device's JSON file, whose other sections stay; None writes none. `name`: what the device is called.
    `facts`: a CSV of data sheets. `skip`: leave out rows that cannot be used; else the first one is an
    error. `said`: is told of each network that is counted; `warn`: of what was left out.

    Returns a `Model`. Raises InputError for tables that cannot be used.
    """
    paths = [os.fspath(t) for t in ([tables] if isinstance(tables, (str, os.PathLike)) else tables)]
    stem = "model" if output is None else Path(output).stem
    known = None if facts is None else os.fspath(facts)
    say = warn or (lambda text: None)
    models = [path for path in paths if not is_table(path)]
    kinds = {path: _kind(path) for path in paths if is_table(path)}
    if not paths:
        document = _of_facts(stem, name, known)
    elif len(models) > 1:
        raise InputError(
            f"{len(models)} model files; expected one: times of two are not mixed",
            code=NOT_TOGETHER,
        )
    elif EPOCHS in kinds.values():
        return _of_epochs(paths, output, stem, name, said)
    elif not models and {OPERATIONS, NETWORKS} & set(kinds.values()):
        document = _of_tables(kinds, stem, name, known, skip, said, say)
    elif facts is not None:
        raise InputError(
            f"{arg('facts')} is for tables of operations and networks alone; blocks say all that is needed",
            code=NOT_TOGETHER,
        )
    elif models:
        document = _of_model(models[0], list(kinds), stem, name, skip, say)
    elif len(paths) > 1:
        raise InputError(
            f"{len(paths)} tables of blocks; expected one, or tables of operations or networks",
            code=NOT_TOGETHER,
        )
    else:
        document = _of_blocks(paths[0], stem, name)
    if output is None:
        return Model(document)
    document = merged(output, document)
    write(output, document)
    return Model(document, os.fspath(output))


NOT_TOGETHER = "not-together"  # the code of errors: what cannot be fitted together
BLOCKS, OPERATIONS, NETWORKS, EPOCHS = "blocks", "operations", "networks", "epochs"


def _kind(path: str) -> str:
    """What a table is of."""
    columns = columns_of(path)
    if "epoch_s" in columns:
        return EPOCHS
    if is_of_operations(columns):
        return OPERATIONS
    return NETWORKS if is_of_networks(columns) else BLOCKS


def _of_epochs(
    paths: list[str], output: AnyPath | None, name: str, device: str | None, said: Said | None
) -> Model:
    """A model of timed epochs, or the model at `output` with them: its other sections stay."""
    if len(paths) > 1:
        raise InputError(
            f"{paths[0]} is a table of epochs; expected it alone, or no table of epochs"
        )
    document = epochs_document(paths[0], name, device, read_network, said)
    if output is None:
        return Model(document)
    if device is None and Path(output).exists():
        document["device"] = UNKNOWN  # it is the file's
    document = merged(output, document)
    write(output, document)
    return Model(document, os.fspath(output))


def _of_facts(name: str, device: str | None, facts: str | None) -> dict[str, Any]:
    """The model file of a device of which nothing but the data sheet is known."""
    if device is None or facts is None:
        raise InputError(
            f"nothing to fit: give tables, a model file, or {arg('facts')} with {arg('name')}",
            code=NOT_TOGETHER,
        )
    source = {"device": "unknown", "source": Path(facts).name, "framework": "torch"}
    return facts_document(name, f"{device} (data sheet)", read_facts(facts, device), source)


def _of_tables(
    kinds: dict[str, str],
    name: str,
    device: str | None,
    facts: str | None,
    skip: bool,
    said: Said | None,
    warn: Warn,
) -> dict[str, Any]:
    """The model file of a device from tables of operations and networks."""
    if facts is not None and device is None:
        raise InputError(
            f"{arg('facts')} says what devices are like; give {arg('name')} too, one of its rows",
            code=NOT_TOGETHER,
        )
    known = None if facts is None else read_facts(facts, str(device))
    of_kind = {kind: [p for p, k in kinds.items() if k == kind] for kind in kinds.values()}
    if BLOCKS in of_kind:
        raise InputError(
            f"{of_kind[BLOCKS][0]} is a table of blocks; expected tables of operations and networks, or of "
            "blocks alone",
            code=NOT_TOGETHER,
        )
    operations = [row for path in of_kind.get(OPERATIONS, ()) for row in read_operations(path)]
    tables = [read_networks(path, device, skip) for path in of_kind.get(NETWORKS, ())]
    mode = usual_mode([row for table in tables for row in table.rows])
    networks = [row for table in tables for row in _counted(table, mode, skip, said, warn)]
    numbers = [f"{len(operations)} operations"] * bool(operations)
    numbers += [f"{len(networks)} networks"] * bool(networks)
    source = {
        "device": "unknown",
        "source": ", ".join(Path(t).name for t in kinds),
        "framework": "torch",
        "half": mode.product_bytes < 4,
        "mode": str(mode),
    }
    shown = f"{device or 'unknown'} (from {' and '.join(numbers)}, {mode})"
    timed = Timed(operations, networks, mode)
    return tables_document(name, shown, timed, known, source)


def _counted(
    table: Table, mode: Mode, skip: bool, said: Said | None, warn: Warn
) -> list[tuple[TimedNetwork, Counted]]:
    """The rows of a table that were run in `mode`, each with its counts; `warn`: of those left out."""
    rows = [row for row in table.rows if row.mode.inference == mode]
    for row in table.rows:
        if row.mode.inference != mode:
            table.skip(f"run in another way than most ({row.mode}; most: {mode})")
    networks = []
    for row, counts in zip(rows, counts_of(rows, said), strict=True):
        if isinstance(counts, LolatError):
            table.leave_out(row, counts, skip)
        else:
            networks.append((row, counts))
    if not rows:
        raise table.nothing()
    table.say_skipped(warn)
    return networks


def _of_blocks(path: str, name: str, device: str | None) -> dict[str, Any]:
    """The model file of a device from a table of blocks."""
    remarks: list[str] = []
    points = read_csv(path, remarks.append)
    where = {"device": "unknown", "source": Path(path).name}
    shown = device or "unknown (from a table)"
    return model_document(name, shown, points, where, {}, remarks)


def _of_model(
    path: str,
    tables: list[str],
    name: str,
    device: str | None,
    skip: bool,
    warn: Warn,
) -> dict[str, Any]:
    """A model file fitted again, with its other sections; `tables`: of its device, further points.

    What the file knows of training is fitted again on its own points.
    """
    file = find_model(path)
    try:
        document = read(file)
    except NotJsonError as error:
        raise ModelFileError(
            f"{error.message}, or a CSV table, which must be named *.csv"
        ) from None
    if "predictors" not in document:
        raise lacks(document, str(file), OF_INFERENCE)
    if "kernels" in document["predictors"]:
        source = document["environment"].get("source", "its table")
        raise InputError(
            f"{file} was fitted to tables; give them again ({source}), not the model",
            code=NOT_TOGETHER,
        )
    if not document["points"]:
        raise ModelFileError(f"{file} has no points to fit; expected a model that was measured")
    points = [Point.from_dict(p) for p in document["points"]]
    remarks = list(document.get("warnings", ()))
    known, shown = set(known_features(points)), device or document["device"]
    for table in tables:
        more = _timed(table, document, device, skip, warn)
        if missing := known - set(known_features(more)):
            raise InputError(
                f"{table} lacks counts that the points of {file} have ({len(missing)}, such as "
                f"{min(missing)}); give the networks by name instead: network,batch_size,latency_ms"
            )
        points += more
        remarks.append(
            f"{plural(len(more), 'point')} from {Path(table).name}: not measured by LoLat, taken as times "
            f"of {shown}, run as the other points were"
        )
    where, noise = document["environment"], document["noise"]
    sections = {section: document[section] for section in SECTIONS if section in document}
    if "training" in document:
        sections["training"] = refitted(document["training"], str(file))
    return model_document(name, shown, points, where, noise, remarks) | sections


def _timed(
    path: str, document: Mapping[str, Any], device: str | None, skip: bool, warn: Warn
) -> list[Point]:
    """The rows of a table, of networks or blocks, as points for the model `document`.

    Rows that name another device are left out, with a word about it. InputError for one that was run in
    another way than the model's points were, and for a network that cannot be read, unless `skip`.
    """
    kind = _kind(path)
    if kind == OPERATIONS:
        raise InputError(
            f"{path} is of operations; beside a model file give networks or blocks",
            code=NOT_TOGETHER,
        )
    if kind == BLOCKS:
        return read_csv(path, warn)
    where = document["environment"]
    mode = Mode(
        FLOAT16 if where.get("half") is True else FLOAT32,
        COMPILED if where.get("compile") is True else EAGER,
        where.get("channels_last") is True,
    )
    table = read_networks(path, device or {document["device"], document["name"]}, skip, mode)
    points = []
    for row in table.rows:
        try:
            if row.mode != mode:
                raise InputError(f"run in another way ({row.mode}; the model: {mode})")
            graph = read_network(row.spec, row.size)
        except LolatError as error:
            table.leave_out(row, error, skip)
            continue
        counts = count(graph).total(row.batch_size)._asdict()
        kinds = tuple(sorted(behaviors(graph.operations)))
        known = row.name, row.batch_size, counts, row.latency_ms
        points.append(Point(*known, kinds=kinds, whole=True))
    if not points:
        raise table.nothing()
    table.say_skipped(warn)
    return points


# ---- `models`: those that there are.


@dataclass(frozen=True)
class ListedModel:
    """A model that can be named. `source`, `error`: of one from tables, whose, and how far off it is at the
    median of what was left out of its fit; `problem`: why it cannot be read, None where it can.
    """

    name: str
    file: str
    origin: str
    device: str | None = None
    source: str | None = None
    error: float | None = None
    problem: str | None = None


@dataclass(frozen=True, repr=False)
class Models(Result):
    """The models that there are, local ones first."""

    models: tuple[ListedModel, ...]

    def __iter__(self) -> Iterator[ListedModel]:
        return iter(self.models)

    def __len__(self) -> int:
        return len(self.models)

    def words(self) -> str:
        """Their names."""
        return f"{len(self)} models: {', '.join(plain(m.name) for m in self)}"

    def rows(self) -> list[dict[str, Any]]:
        """A row for each model."""
        return [dict(plain_data(m)) for m in self]


def models() -> Models:
    """The models that `load` takes by name: learned here, and shipped with LoLat.

    Returns `Models`, which can be iterated. Raises InputError where their folder cannot be read.
    """
    return Models(tuple(_listed(*place) for place in list_models()))


def _listed(name: str, path: Path, origin: str) -> ListedModel:
    try:
        document = read(path)
    except ModelFileError as error:
        return ListedModel(name, str(path), origin, problem=str(error))
    left_out = (
        document.get("predictors", {}).get("kernels", {}).get("error", {}).get("left_out", {})
    )
    source = document["environment"].get("source")
    if isinstance(source, dict):  # of single layers: which
        source = source.get("sample")
    source = source if isinstance(source, str) else None
    off = left_out["median"] if left_out and source is not None else None
    return ListedModel(name, str(path), origin, document["device"], source, off)
