"""Fits a profile to times that were measured before."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from shlex import quote
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from lolat.api.fit_question import LANGUAGE, FitQuestion
from lolat.api.loading import load
from lolat.api.model import Model
from lolat.api.serving import serving_model
from lolat.api.sheets import section as of_kernels
from lolat.api.sheets import section_of_sheet
from lolat.device.file import UNKNOWN, DeviceFile, merged, new_document, read, write
from lolat.device.prediction import Prediction
from lolat.device.predictors.roofline import Roofline
from lolat.device.question import several
from lolat.device.summary import fitted_on_words
from lolat.errors import InputError, LolatError, arg
from lolat.fitting.blocks import fitted_file
from lolat.fitting.int8 import with_int8
from lolat.fitting.measured_gpu import with_operations, with_training
from lolat.fitting.outliers import WRONG
from lolat.fitting.reading import (
    blocks_file,
    device_document,
    points_of_networks,
    refined_file,
)
from lolat.graph import Graph
from lolat.graph.modes import BFLOAT16
from lolat.hardware.card_names import (
    card_of,
    cards_meant,
    device_name,
    find_gpu,
    form_and_memory,
    form_of,
)
from lolat.hardware.specs import KEPT, given_sheet, listed_specs, read_specs, sheet_row
from lolat.io.paths import AnyPath
from lolat.io.progress import OnProgress, Warn, nobody
from lolat.io.tables import Row, is_table, read_table, say_unread
from lolat.microbench import blocks, learn_training
from lolat.readers import read as read_network
from lolat.tables.blocks import Point, points_of
from lolat.tables.contents import (
    BLOCKS,
    EPOCHS,
    KERNELS,
    MODEL,
    NETWORKS,
    OPERATIONS,
    RUNS,
    SERVED,
    content_of,
)
from lolat.tables.copies import unique
from lolat.tables.networks import pure_half_words
from lolat.training.epochs import epochs_document
from lolat.training.measured import refitted
from lolat.training.network_rows import training_parts
from lolat.units import deviation, digits, percent, plain, plural, shortened

if TYPE_CHECKING:
    from lolat.llm.gpu import ServingSection

# ---- `fit`: a profile from tables, or from a profile's own points.


def fit(
    tables: AnyPath | Sequence[AnyPath] = (),
    output: AnyPath | None = None,
    *,
    name: str | None = None,
    facts: AnyPath | None = None,
    framework: str | None = None,
    tensor_parallel: int | Sequence[int] = (),
    served_model: str | None = None,
    on_progress: OnProgress | None = None,
    warn: Warn | None = None,
) -> Model:
    """Fit a profile to measured times: to tables of one device, or to the times in a profile again.

    `tables`: a profile, or CSV tables, as `lolat fit` takes them (docs/reference/files.md); without tables:
    the data sheet of `name`, from `facts` or of a known GPU. `output`: the device's JSON file, whose other
    sections are kept; None: no file is written. `name`: the name of the device, also in tables. `facts`: a
    CSV of data sheets. `framework`: "vllm", "trtllm" or "sglang"; None: the framework in the name of a
    table or of `output`, else vLLM. `tensor_parallel`: number of GPUs of a served model if its row or file
    does not say it: one number, or one for each file. `served_model`: the model of rows that name none, or
    an unknown one. `on_progress`: called after each network is counted with (number done, number of all,
    name). `warn`: called with each remark on the tables.

    Returns a `Model`. Raises InputError for tables that cannot be used.
    """
    if output is not None and os.path.exists(output):
        read(output)  # a file that is no profile is refused before the work
    paths = [os.fspath(t) for t in ([tables] if isinstance(tables, (str, os.PathLike)) else tables)]
    asked = FitQuestion(
        contents=tuple((path, content_of(path)) for path in paths), output=output, name=name,
        facts=None if facts is None else os.fspath(facts), framework=framework,
        tensor_parallel=several(tensor_parallel), served_model=served_model, on_progress=on_progress,
        warn=warn or nobody,
    )  # fmt: skip
    row = next((row for row in FITS if row.takes(asked)), None)
    if name is not None and " (" in name:
        why = "expected a name without brackets, such as H100 SXM5, in tables too"
        raise InputError(f"{arg('name')} {shortened(name)!r}: {why}", code="name")
    if framework is not None and (MODEL in asked.kinds or row is None or not row.has_framework):
        why = "is for a data sheet and tables of language models; leave it out"
        raise InputError(f"{arg('framework')} {why}", code="framework")
    if asked.tensor_parallel or served_model is not None:
        _refuse_language_files(asked)
    if row is None:
        raise asked.unfitted()
    file = row.fit(asked)
    _warn_of_other_cards(asked, file)
    if asked.facts is not None:
        _warn_of_unread_facts(asked.facts, asked.warn)
    if output is None:
        return Model(file)
    if file.has_latencies and row.replaces:
        _warn_of_replaced(output, asked.warn)
    file = merged(output, file)
    write(output, file.document)
    return Model(file, os.fspath(output))


def _tables(asked: FitQuestion) -> DeviceFile:
    """A profile fitted to tables of operations and networks, or made from a data sheet without tables."""
    name, facts, sheet = asked.name, asked.facts, None
    if name is not None and facts is not None:
        sheet = read_specs(facts, name)
        if unused := sheet.gpu and sheet.gpu.unused_power:
            asked.warn(unused)
    elif name is not None and not asked.kinds:
        sheet = listed_specs(name)
        _say_card(name, asked.warn)
    document = device_document(
        asked.contents, asked.stem, name, sheet, asked.on_progress, asked.warn
    )
    if facts is not None and name is not None:
        document["environment"]["sheet"] = given_sheet(sheet_row(facts, name))
    return DeviceFile(document)


def _say_card(name: str, warn: Warn) -> None:
    """Say which card's data sheet is used, and the names of the others, if several have this name."""
    gpu = find_gpu(name)
    others = [device_name(card) for card in cards_meant(name) if card != gpu]
    if gpu and others and form_and_memory(name, gpu):
        full = ", ".join(others)
        warn(f"{name} is taken to be the {gpu.name}; of another card give the full name: {full}")


def _data_sheet(asked: FitQuestion) -> DeviceFile:
    """A profile of networks and language models from a data sheet; InputError without a name."""
    if asked.name is None:
        raise asked.unfitted()
    file = _tables(asked)
    about = asked.name, asked.facts, asked.framework, asked.stem, asked.warn
    return file.but(**section_of_sheet(*about))


def _epochs(asked: FitQuestion) -> DeviceFile:
    """A profile fitted to a table of epochs."""
    (path,) = asked.paths(EPOCHS)
    document = epochs_document(path, asked.stem, asked.name, read_network, asked.warn)
    if asked.name is None and Path(asked.output or "").is_file():
        document["device"] = UNKNOWN  # it is the file's
    return DeviceFile(document)


def _blocks(asked: FitQuestion) -> DeviceFile:
    """A profile fitted to a table of blocks."""
    (path,) = asked.paths(BLOCKS)
    return blocks_file(path, asked.stem, asked.name, asked.warn)


def _warn_of_other_cards(asked: FitQuestion, file: DeviceFile) -> None:
    """Warn of tables that, by their names, are of another GPU than the profile, or of different GPUs."""
    cards: dict[str, str] = {}
    if own := card_of(file.kind):
        cards[own] = "the profile"
    for path, content in asked.contents:
        is_told = content == MODEL or (is_table(path) and "device" in read_table(path).names)
        if not is_told and (card := card_of(Path(path).stem)):
            cards.setdefault(card, Path(path).name)
    if len(cards) > 1:
        found = ", ".join(f"{card} ({where})" for card, where in cards.items())
        asked.warn(f"by their names these are of several GPUs, whose times make no device: {found}")


def _warn_of_replaced(output: AnyPath, warn: Warn) -> None:
    """Warn that the output file holds measured latencies, which the new fit replaces."""
    with contextlib.suppress(LolatError):  # none, or a damaged one: `merged` says it
        if (old := read(output)).has_latencies and (known := fitted_on_words(old)):
            warn(
                f"{plain(os.fspath(output))} knew latencies from {known}: these are replaced; to have all, "
                "fit all tables together"
            )


def _warn_of_unread_facts(facts: str, tell: Warn) -> None:
    """Warn of the columns in a table of data sheets that LoLat does not use."""
    table = read_table(facts)
    table.mark_read("device", *KEPT)
    table.say_unread(tell)


# ---- Language models.


def _refuse_language_files(asked: FitQuestion) -> None:
    """Raise InputError for files that cannot be fitted together, or if `tensor_parallel` does not fit them.

    A file that cannot be read is refused first, then `tensor_parallel`.
    """
    served, gpus = asked.paths(SERVED), asked.tensor_parallel
    is_other = not {*asked.kinds} <= {KERNELS, SERVED, MODEL, RUNS}
    error = asked.refused() if is_other or len(asked.paths(MODEL)) > 1 else None
    if gpus and (not served or len(gpus) not in (1, len(served)) or min(gpus) < 1):
        each = f", or one for each of the {len(served)} serving files" if len(served) > 1 else ""
        counts = f"one GPU count of at least 1{each}"
        expected = counts if served else "a table or a benchmark of a served model too"
        raise InputError(
            f"{arg('tensor_parallel')} {', '.join(map(str, gpus))}: expected {expected}",
            code="tensor-parallel",
        )
    if asked.served_model is not None and not served:
        why = "of served models; expected a table or a benchmark of them too"
        raise InputError(f"{arg('served_model')} {asked.served_model}: {why}", code="served-model")
    if error:
        raise error


def _language_models(asked: FitQuestion) -> DeviceFile:
    """A profile of language models, from a data sheet, tables of operations, and served models."""
    from lolat.llm.calibration import percentile_words, served_by, types_words
    from lolat.llm.gpu import section_of
    from lolat.llm.operation_tables import read_sheet
    from lolat.llm.served_rows import read_served, refuse_unused

    kernels, served, models, runs = map(asked.paths, (KERNELS, SERVED, MODEL, RUNS))
    gpus = asked.tensor_parallel
    _refuse_language_files(asked)
    if models:
        file = serving_model(models[0], of_any=not served).file.but(name=asked.stem)
        if file.llm is None or asked.facts is not None or kernels:
            raise asked.refused()
        section = section_of(file.llm, models[0])
    elif asked.facts is None or asked.name is None:
        raise InputError(
            f"operations of language models need the data sheet of their GPU; expected {arg('facts')} with "
            f"a row of its {arg('name')}: device, multiprocessors, bandwidth_gb_s, memory_gib, "
            "bf16_tflops, and where it has them fp8_tflops, fp4_tflops, link_gb_s",
            code="no-sheet",
        )
    else:
        sheet = read_sheet(asked.facts, asked.name)
        section = of_kernels(sheet, asked.framework, kernels, asked.stem, asked.warn, asked.name)
        source = ", ".join(Path(p).name for p in [*kernels, *served]) or "data sheet"
        own = given_sheet(sheet_row(asked.facts, asked.name))
        where = {"device": "unknown", "source": source, "sheet": own}
        label = f"{asked.name} ({section.framework}, from {source})"
        file = DeviceFile(new_document(Path(asked.output or asked.name).stem, label, where))
    device = asked.name or file.product
    file = file.but(device=file.called(asked.name), environment=_under_name(file, asked))
    each = gpus * len(served) if len(gpus) == 1 else gpus or (None,) * len(served)
    of_files = (
        read_served(p, device, section.framework, n, asked.warn, asked.served_model)
        for p, n in zip(served, each, strict=True)
    )
    rows = [row for of_file in of_files for row in of_file]
    say_unread((row.row for row in rows if isinstance(row.row, Row)), asked.warn)
    refuse_unused(rows, gpus, asked.served_model)
    if served:
        section, words = served_by(section, rows)
        told = types_words(section, rows), words, percentile_words(rows)
        for remark in filter(None, told):
            asked.warn(remark)
        names = dict.fromkeys([*file.environment.sources, *(Path(p).name for p in served)])
        file = file.but(environment={**file.recorded, "source": ", ".join(names)})
    if runs:
        file = file.but(llm=msgspec.to_builtins(section))  # its data sheet may have a link
        section = _with_level(section, runs, file, asked.warn)
    return file.but(llm=msgspec.to_builtins(section))


def _with_level(
    section: ServingSection, runs: Sequence[str], file: DeviceFile, warn: Warn
) -> ServingSection:
    """The section with its level, a factor on times, fitted to the user's runs of training decoders."""
    from lolat.training.decoder_plan import card_gib
    from lolat.training.decoder_rows import RUNS as EXPECTED_RUNS
    from lolat.training.decoder_rows import level_of, read_runs

    gib = card_gib(file.kind, section)
    read = [read_runs(path, file, gib, [file.product]) for path in runs]
    rows = [row for found, _ in read for row in found]
    for row, error in (one for _, refused in read for one in refused):
        warn(f"line {row.line} is left out: {error}")
    if not rows:
        raise InputError(f"no run is of use; {EXPECTED_RUNS}", code="runs")
    say_unread((row.row for row in rows), warn)
    rows = unique([((row.step, row.parallel, row.batches, row.ms), row) for row in rows], warn)
    if pure := [row for row in rows if row.step.recipe.dtype == BFLOAT16]:
        warn(pure_half_words(len(pure), BFLOAT16))
    section, words = level_of(section, rows)
    warn(words)
    return section


# ---- A profile, fitted again.


def _under_name(file: DeviceFile, asked: FitQuestion) -> dict[str, Any]:
    """The environment of a device under a new name, with the same card; the name may add the card's form.

    InputError for the name of another card.
    """
    own, name = file.kind, asked.name or ""
    was, card = card_of(own), card_of(name)
    if not was or name in ("", own):
        return {**file.recorded}
    if card and card != was:
        why = f"{plain(asked.paths(MODEL)[0])} is the profile of another device, {was}"
        remedy = "leave it out, or fit the tables of that GPU alone"
        raise InputError(f"{arg('name')} {name}: {why}; {remedy}", code="other-device")
    return {**file.recorded, "card": name if card and form_of(name) else own}


OTHER_LEVEL, LEAST_JUDGING_LEVEL = 0.25, 5
"""Limits to warn that a table may be of another machine: |median(measured / predicted) - 1| above this,
over at least this number of rows. On our machines it was at most 0.2 after learning
(docs/results/index.md)."""


Added = list[tuple[Point, Prediction, Graph]]
"""Points of tables that a profile is fitted to, with its predictions before the fit and their graphs."""


def _judge_level(model: Model, path: str, added: Added, warn: Warn) -> None:
    """Compare the times of a table with the predicted times.

    InputError for a time more than WRONG times off. A warning if most times inside the measured range are
    far off.
    """
    for point, found, _ in added:
        factor = point.latency_ms / found.latency_ms
        if max(factor, 1.0 / factor) > WRONG:
            way, off = ("longer", factor) if factor > 1.0 else ("shorter", 1.0 / factor)
            raise InputError(
                f"{path}: {point.name} at batch size {point.batch_size} takes "
                f"{point.latency_ms:g} ms, {digits(off)} times {way} than {model.name} predicts "
                f"({digits(found.latency_ms)} ms); expected milliseconds of the profile's device: mend the "
                "time, or remove the row",
                code="unit",
            )
    ratios = [
        p.latency_ms / found.latency_ms for p, found, _ in added if found.in_domain is not False
    ]
    if len(ratios) >= LEAST_JUDGING_LEVEL and deviation(ratio := median(ratios)) > OTHER_LEVEL:
        warn(
            f"warning: {Path(path).name}: {ratio:.2f} times as long as {model.name} predicts (median of "
            f"{plural(len(ratios), 'row')}): of another machine, or run in another way? This fit averages "
            f"both; `lolat fit {quote(path)} --output MODEL` makes a profile of the table alone"
        )


def _own_errors(model: Model, added: Added) -> str:
    """A remark on the errors of the rows that a profile was fitted to, before and after."""

    def median_error(predicted: Iterable[Prediction]) -> str:
        pairs = zip((point for point, _, _ in added), predicted, strict=True)
        return percent(median(deviation(found.latency_ms / p.latency_ms) for p, found in pairs))

    now = [model.predict(graph, point.batch_size) for point, _, graph in added]
    before = median_error(found for _, found, _ in added)
    return (
        f"the {plural(len(added), 'row')} of the tables: off by {before} at the median before the fit, by "
        f"{median_error(now)} after it"
    )


def _refitted(asked: FitQuestion) -> DeviceFile:
    """Fit a profile again to its own points and to tables of networks; its other sections are kept.

    Training is fitted again to the file's own points. A profile made from tables is only scaled to the
    level of the networks.
    """
    model = load(asked.paths(MODEL)[0])
    file, source = model.file, model.source
    where = _under_name(file, asked)
    points = points_of(file.document)
    paths = asked.paths(NETWORKS)
    if paths and not points and file.default == Roofline.name:
        made = refined_file(model, paths, training_parts, asked.name, asked.on_progress, asked.warn)
        where = _under_name(made, asked)
        return made.but(name=asked.stem, device=asked.name or made.device, environment=where)
    if not points and file.training is None:
        raise InputError(
            f"{source} holds no measured points to fit again: it was made from tables; expected tables of "
            f"networks beside it, or all tables of the device without it: lolat fit OLD.csv NEW.csv "
            f"{arg('output')} MODEL",
            code="no-points",
        )
    remarks, shown = [*file.warnings], asked.name or file.device
    framework = str(file.environment.framework)
    quantized = points_of(file.document, "quantized")
    graphs = blocks.known_graphs(framework) if quantized or file.kernels else {}
    known, added = {point.key for point in points}, Added()
    for path in paths:
        more, graphs_of_more = points_of_networks(path, file, known, asked.name, asked.warn)
        if not more:
            continue
        of_table = [(p, model.predict(g := graphs_of_more[p.key], p.batch_size), g) for p in more]
        _judge_level(model, path, of_table, asked.warn)
        added += of_table
        points += more
        graphs |= graphs_of_more
        remarks.append(
            f"{plural(len(more), 'point')} from {Path(path).name}: not measured by LoLat, taken as times "
            f"of {shown}, run as the other points were"
        )
    noise = file.document.get("noise", {})
    fitted = fitted_file(asked.stem, shown, points, where, noise, remarks)
    if file.kernels:
        fitted = with_operations(fitted, points, graphs)
        if not fitted.kernels:
            asked.warn(
                f"warning: the formula by operation is left out, as {source} does not have the networks of "
                "earlier tables; give all tables at once, beside the profile that was learned"
            )
    fitted = with_int8(fitted, quantized, graphs).but(**file.sections)
    if added:
        asked.warn(_own_errors(Model(fitted), added))
    if file.training is not None:
        fitted = fitted.but(training=refitted(file.training, source))
        if fitted.kernels:
            fitted = with_training(fitted, learn_training.training_graphs(framework))
    return fitted


# ---- The kinds of fits.


class FitRow(NamedTuple):
    """A kind of fit: whether it takes the files of a question, and the function that makes the profile.

    `has_framework`: True if the profile has language models, whose framework may be given; `replaces`: True
    if its latencies replace those in the output file.
    """

    takes: Callable[[FitQuestion], bool]
    fit: Callable[[FitQuestion], DeviceFile]
    has_framework: bool = False
    replaces: bool = True


def _are_served(asked: FitQuestion) -> bool:
    """True for tables of language models, or a data sheet that answers for these alone."""
    return bool({KERNELS, SERVED, RUNS} & {*asked.kinds}) or asked.answers == (LANGUAGE,)


def _is_sheet(asked: FitQuestion) -> bool:
    """True for a data sheet, without tables, that answers for networks and language models."""
    return not asked.contents and (asked.facts is None or LANGUAGE in asked.answers)


def _are_tables(asked: FitQuestion) -> bool:
    """True for tables of operations and networks, for a data sheet of networks too."""
    is_named = asked.name is not None
    return {*asked.kinds} <= {OPERATIONS, NETWORKS} and (is_named or asked.facts is None)


def _is_profile(asked: FitQuestion) -> bool:
    """True for a profile, alone or with tables of networks."""
    is_alone = asked.facts is None and {*asked.kinds} <= {MODEL, NETWORKS}
    return is_alone and asked.kinds.count(MODEL) == 1


FITS = (
    FitRow(_are_served, _language_models, has_framework=True, replaces=False),
    FitRow(_is_sheet, _data_sheet, has_framework=True),
    FitRow(_are_tables, _tables),
    FitRow(lambda asked: asked.facts is None and asked.kinds == [EPOCHS], _epochs),
    FitRow(lambda asked: asked.facts is None and asked.kinds == [BLOCKS], _blocks),
    FitRow(_is_profile, _refitted, replaces=False),
)
"""The kinds of fits; the first that takes the files makes the profile."""
