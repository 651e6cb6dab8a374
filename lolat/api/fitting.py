"""A model from what is measured already."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from lolat.api.model import Model
from lolat.device.file import SECTIONS, UNKNOWN, made, merged, read, write
from lolat.device.predictors.roofline import Roofline
from lolat.device.running import fitted_on_words
from lolat.errors import InputError, LolatError, arg
from lolat.fitting.blocks import model_document
from lolat.fitting.measured_gpu import with_operations
from lolat.fitting.points import Point
from lolat.fitting.reading import (
    Contents,
    blocks_document,
    device_document,
    points_of_networks,
    refined_document,
)
from lolat.hardware.sheets import KEPT, NEEDED_COLUMNS, given_sheet, listed_specs, read_specs
from lolat.io.paths import AnyPath, find_model, list_models
from lolat.io.progress import Warn, nobody
from lolat.io.tables import is_table, read_table
from lolat.readers import read as read_network
from lolat.readers.children import OnProgress
from lolat.tables.timed import (
    BLOCKS,
    KERNELS,
    NETWORKS,
    OPERATIONS,
    SERVED,
    content_of,
)
from lolat.training.epochs import epochs_document
from lolat.training.measured import refitted
from lolat.units import plain, plural, shortened
from microbench.blocks import known_graphs

if TYPE_CHECKING:
    from lolat.llm.gpu import Section

# ---- `fit`: a model from tables, or from a model's own points.

NOT_TOGETHER = "not-together"
"""The code of the error for files that cannot be fitted together."""
MODELS, EPOCHS = "models", "epochs"
LANGUAGE = "language models"
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
    asked = Asked(
        tuple((path, _content(path)) for path in paths), output, name,
        None if facts is None else os.fspath(facts), on_progress, warn or nobody,
    )  # fmt: skip
    answers = () if paths or facts is None else _answered_by(os.fspath(facts), asked.warn)
    if {KERNELS, SERVED} & {*asked.kinds} or answers == (LANGUAGE,) or tensor_parallel is not None:
        return _language_models(asked.contents, output, name, facts, tensor_parallel, asked.warn)
    document = _way(asked)(asked)
    if not paths and (facts is None or LANGUAGE in answers):
        document |= _section_of_sheet(name or "", facts, asked.stem)
    if output is not None and MODELS not in asked.kinds:
        _say_replaced(output, document, asked.warn)
    return _written(document, output)


@dataclass(frozen=True)
class Asked:
    """A question of `fit`: files, each with its content, and the arguments beside them."""

    contents: Contents
    output: AnyPath | None
    name: str | None
    facts: str | None
    on_progress: OnProgress | None
    warn: Warn

    @property
    def kinds(self) -> list[str]:
        """The contents of the files."""
        return [content for _, content in self.contents]

    @property
    def stem(self) -> str:
        """The name of the model."""
        return Path(self.output or "model").stem


def _way(asked: Asked) -> Callable[[Asked], dict[str, Any]]:
    """The fit to such files; InputError for files that cannot be fitted together."""
    kinds = {*asked.kinds}
    is_known = asked.name is not None or (bool(kinds) and asked.facts is None)
    if kinds <= {OPERATIONS, NETWORKS} and is_known:
        return _of_tables
    if asked.facts is not None and asked.name is None:
        raise InputError(
            f"{arg('facts')} without {arg('name')}; expected the device's name in its column device too",
            code=NOT_TOGETHER,
        )
    if asked.facts is None:
        for content, way in ((EPOCHS, _of_epochs), (BLOCKS, _of_blocks)):
            if asked.kinds == [content]:
                return way
        if asked.kinds.count(MODELS) == 1 and kinds <= {MODELS, NETWORKS}:
            return _of_model
    raise _not_together(asked.contents)


def _of_tables(asked: Asked) -> dict[str, Any]:
    """Operations and networks of a device, whose data sheet may be known; or that alone."""
    sheet = None
    if asked.name is not None and asked.facts is not None:
        sheet = read_specs(asked.facts, asked.name)
    elif asked.name is not None and not asked.contents:
        sheet = listed_specs(asked.name)
    document = device_document(
        asked.contents, asked.stem, asked.name, sheet, asked.on_progress, asked.warn
    )
    if asked.facts is not None and asked.name is not None:
        document["environment"]["sheet"] = given_sheet(asked.facts, asked.name)
    return document


def _of_epochs(asked: Asked) -> dict[str, Any]:
    """Timed epochs of a device."""
    ((path, _),) = asked.contents
    document = epochs_document(path, asked.stem, asked.name, read_network, asked.warn)
    if asked.name is None and Path(asked.output or "").is_file():
        document["device"] = UNKNOWN  # it is the file's
    return document


def _of_blocks(asked: Asked) -> dict[str, Any]:
    """Timed blocks of a device."""
    ((path, _),) = asked.contents
    return blocks_document(path, asked.stem, asked.name, asked.warn)


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
                f"{plain(os.fspath(output))} knew latencies from {fitted_on_words(old)}: these are "
                "replaced; to have all, fit all tables together"
            )


def _content(path: str) -> str:
    """The rows of a table; MODELS for a file that is none."""
    if not is_table(path):
        return SERVED if _is_benchmark(path) else MODELS
    columns = read_table(path).names
    return EPOCHS if "epoch_s" in columns else content_of(columns)


def _is_benchmark(path: str) -> bool:
    """Return whether a file is the output of a server's benchmark."""
    try:
        with open(path, encoding="utf-8") as file:
            return '"total_output_tokens"' in file.read(100_000)
    except (OSError, ValueError):
        return False  # the reader of model files says what is wrong


def _answered_by(facts: str, tell: Warn) -> tuple[str, ...]:
    """The questions that the data sheets of a table can answer: networks, language models or both.

    `tell`: warns of the columns that the other question needs. Both if columns of both are missing: the
    reader of the table then names them.
    """
    from lolat.llm.fit import SHEET
    from lolat.llm.gpu import Sheet

    columns, needed = read_table(facts).names, {NETWORKS: NEEDED_COLUMNS, LANGUAGE: SHEET}
    known = {"device", *KEPT, *Sheet.__struct_fields__}
    if unread := [name for name in columns if name and name not in known]:
        tell(f"{plain(facts)}: columns that are not read: {shortened(', '.join(unread))}")
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
    """The language-model section of a data sheet: of `name` in the table `facts`, or the bundled one.

    {} if the sheet has too few columns.
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
    """The language-model sections of the bundled models, by name."""
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


def _of_model(asked: Asked) -> dict[str, Any]:
    """A model file fitted again, with its other sections, to its points and networks of its device.

    What the file knows of training is fitted again on its own points. A file made from tables has the
    level of the networks.
    """
    file = find_model(next(path for path, content in asked.contents if content == MODELS))
    document = read(file)
    points = [Point.from_dict(p) for p in document.get("points", ())]
    paths = [path for path, content in asked.contents if content == NETWORKS]
    if paths and not points and document.get("default") == Roofline.name:
        made = refined_document(document, paths, asked.name, asked.on_progress, asked.warn)
        return {**made, "name": asked.stem, "device": asked.name or document["device"]}
    if not points and "training" not in document:
        raise InputError(
            f"{file} holds no measured points to fit again: it was made from tables; expected tables of "
            f"networks beside it, or all tables of the device without it: lolat fit OLD.csv NEW.csv "
            f"{arg('output')} MODEL",
            code="no-points",
        )
    remarks = list(document.get("warnings", ()))
    shown = asked.name or document["device"]
    where, noise = document["environment"], document["noise"]
    graphs = (
        known_graphs(str(where.get("framework"))) if Roofline.name in document["predictors"] else {}
    )
    for path in paths:
        more, graphs_of_more = points_of_networks(path, document, asked.name, asked.warn)
        points += more
        graphs |= graphs_of_more
        remarks.append(
            f"{plural(len(more), 'point')} from {Path(path).name}: not measured by LoLat, taken as times "
            f"of {shown}, run as the other points were"
        )
    sections = {section: document[section] for section in SECTIONS if section in document}
    if "training" in document:
        sections["training"] = refitted(document["training"], str(file))
    fitted = model_document(asked.stem, shown, points, where, noise, remarks)
    return with_operations(fitted, points, graphs) | sections
