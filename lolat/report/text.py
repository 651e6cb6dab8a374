"""What the terminal shows: a prediction, a report by block, a model."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from shlex import quote
from statistics import median
from typing import Any

from lolat.errors import InputError
from lolat.fitting.intervals import COVERAGE, interval_width, noise_floor
from lolat.fitting.predictors.formula import CONSTANT
from lolat.graph.counts import COLUMNS
from lolat.io.documents import fits
from lolat.io.tables import to_csv
from lolat.io.writing import write_text
from lolat.model import Model
from lolat.model.prediction import Prediction, domain_words, interval_words, memory_words
from lolat.report.rows import (
    HEADS,
    Figures,
    View,
    bottleneck_sentence,
    bottlenecks,
    bound_sentence,
    rows,
)
from lolat.units import milliseconds, percent, plain, plural, quantity

# ---- The table of a report in the terminal: a row for each block or module, the bottlenecks marked.

BAR = 12
LABEL = 24
EIGHTHS = " ▏▎▍▌▋▊▉"


def block_table(prediction: Prediction, view: View, paths: Sequence[tuple[str, ...]] = ()) -> Any:
    """A rich table; `paths`: see `rows`."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    def text(words: str) -> Text:
        return Text(words, no_wrap=True, overflow="ellipsis")

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    marked = {b.name for b in bottlenecks(prediction)}
    shown = rows(prediction, paths, view)
    largest = max((row.share for row in shown), default=0.0)
    # Where there is no room, the summaries are cut, and what most of it is; never a number. Rich makes only
    # columns narrower whose text it may wrap; the texts themselves forbid that.
    label = min(LABEL, max(len(row.label) for row in shown))
    table.add_column("block", no_wrap=True, overflow="ellipsis", min_width=label)
    table.add_column("", overflow="ellipsis", ratio=1, min_width=1)
    for name in view.columns:
        if name == "most":
            table.add_column(HEADS[name], overflow="ellipsis", min_width=8)
            continue
        if name == "share":
            table.add_column(HEADS[name], no_wrap=True, min_width=BAR)
        head, least = "" if name == "share" else HEADS[name], max(len(r.cell(name)) for r in shown)
        table.add_column(head, no_wrap=True, justify="right", min_width=least)
    for row in shown:
        cells = [Text(row.label), text(row.summary)]
        for name in view.columns:
            if name == "share":
                cells.append(Text(bar(row.share, largest)))
            cells.append(text(row.cell(name)))
        only = len(row.blocks) == 1 and prediction.blocks[row.blocks[0]].name
        table.add_row(*cells, style="bold red" if only in marked else None)
    return table


def bar(share: float, largest: float) -> str:
    """A bar of at most BAR cells, in eighths of a cell."""
    eighths = round(8 * BAR * share / largest) if largest > 0 else 0
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


# ---- The blocks of a prediction as a CSV table.


BLOCK_HEADER = ("name", "latency_ms", "share", "bound_by", *COLUMNS)


def write_csv(path: str | Path, prediction: Prediction) -> None:
    """One row per block: name, latency_ms, share, bound_by, counts. InputError if not writable.

    A name that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    write_text(path, to_csv(BLOCK_HEADER, block_rows(prediction)))


def block_rows(prediction: Prediction) -> Iterator[list[Any]]:
    """A row of BLOCK_HEADER for each block."""
    for b in prediction.blocks:
        figures = f"{b.latency_ms:.6g}", f"{b.share:.6g}", b.bound_by
        yield [csv_name(b.name), *figures, *map(b.counts.get, COLUMNS)]


def csv_name(name: str) -> str:
    """A name for a cell of a table, which a spreadsheet takes for no formula."""
    shown = plain(name)
    return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) else shown


# ---- text ----------------------------------------

CAPITALS = {"acts": "ACTS", "inp": "INP", "flops": "FLOPs"}  # the names of the publications
WIDE = 112
USUAL_VIEW = View()


def summary(prediction: Prediction) -> Iterator[str]:
    """The latency of a network and how sure it is, in a few lines."""
    yield f"{prediction.title}: {latency(prediction)}"
    yield totals(prediction)
    yield from memory_words(prediction)
    for warning in prediction.warnings:
        yield f"note: {plain(warning)}"


def latency(prediction: Prediction) -> str:
    """The latency and its interval."""
    interval = interval_words(prediction.interval_ms, prediction.coverage)
    return milliseconds(prediction.latency_ms) + interval


def totals(prediction: Prediction) -> str:
    """The counts of the whole, and whether it is like what was measured."""
    counts = prediction.counts
    return (
        f"{quantity(counts['flops'], 'MACs')} · {quantity(counts['weights'])} weights · "
        f"{quantity(counts['acts'])} convolution activations · {domain_words(prediction)}"
    )


def wide_console() -> Any:
    """In a file or a pipe there is no width to keep to; in a narrow terminal what is too wide is cut."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else WIDE)


def print_report(
    model: Model,
    prediction: Prediction,
    model_name: str,
    network: str,
    input_size: Sequence[int] = (),
    view: View = USUAL_VIEW,
    paths: Sequence[tuple[str, ...]] = (),
    figures: Figures | None = None,
) -> None:
    """The report: a head, a table of blocks with the bottlenecks marked, what it says.

    `model_name`, `network`, `input_size`: as the user gave them; `view`, `paths`: see `rows`; `figures`:
    those of the network as other tools print them, where wanted.
    """
    from rich.text import Text

    console = wide_console()

    def say(words: str, style: str = "", whole: bool = False) -> None:
        console.print(Text(words, style=style), soft_wrap=whole)

    say(prediction.title, "bold")
    say(headline(model), "dim", whole=True)
    say(latency(prediction))
    for line in (totals(prediction), *memory_words(prediction)):
        say(line, whole=True)
    if figures is not None:
        say(str(figures))
    console.print(block_table(prediction, view, paths))
    say(bottleneck_sentence(prediction), "bold")
    for warning in prediction.warnings:
        say(f"note: {plain(warning)}", "yellow")
    asked = f"{quote(plain(model_name))} {quote(plain(network))}"
    if prediction.batch_size != 1:
        asked += f" --batch-size {prediction.batch_size}"
    if input_size:
        asked += f" --input-size {','.join(map(str, input_size))}"
    # Commands to copy: never broken into lines by us.
    say(f"Next: lolat explain {asked} · lolat report {asked} --html report.html", whole=True)


def headline(model: Model) -> str:
    """A model in one line: name, file where that is another, device, framework, what of both is special,
    when it was learned, noise: what tells two models of a processor apart.
    """
    where: Mapping[str, Any] = model.document["environment"]
    file = Path(model.source)
    named = "" if file.stem in (model.name, "model") else f" ({plain(file.name)})"
    parts = [f"{plain(model.name)}{named}: {plain(model.device)}"]
    if "framework" in where:
        parts.append(plain(f"{where['framework']} {where.get('framework_version', '')}".strip()))
    parts += map(plain, conditions(where))
    age = _age(where.get("date"))
    if age:
        parts.append(f"learned {age}")
    floor = noise_floor(model.document)
    if floor is not None:
        parts.append(f"noise {percent(floor)}")
    return " · ".join(parts)


SPECIAL = {
    "compile": "compiled",
    "jit": "XLA",
    "channels_last": "channels last",
    "half": "half precision",
}
"""What of an environment is said where it is on."""


def conditions(where: Mapping[str, Any]) -> Iterator[str]:
    """What of a model's environment makes its times others than those of the next on that processor."""
    yield from (words for key, words in SPECIAL.items() if where.get(key) is True)
    libraries = where.get("libraries")
    libraries = libraries if isinstance(libraries, Mapping) else {}
    if False in (libraries.get("onednn"), libraries.get("onednn_enabled")):
        yield "without oneDNN"
    if "cpu_capability" in libraries:
        yield str(libraries["cpu_capability"])
    flags = where.get("flags")
    yield from (f"{k}={v}" for k, v in flags.items()) if isinstance(flags, Mapping) else ()
    load = where.get("load_at_start")
    if isinstance(load, (int, float)):
        yield f"load {load:.1f} at the start"


def _now() -> datetime:
    return datetime.now(UTC)


def _age(date: Any) -> str:
    """How long ago, and when; nothing where a file does not say it with its time zone."""
    try:
        when = datetime.fromisoformat(date)
        days = (_now().date() - (utc := when.astimezone(UTC)).date()).days
    except (TypeError, ValueError, OverflowError):  # this one: years 1 and 9999 in other zones
        return ""
    if when.tzinfo is None:
        return ""
    ago = "today" if days < 1 else "yesterday" if days == 1 else f"{days} days ago"
    return f"{ago}, {utc:%Y-%m-%d %H:%M} UTC"


def describe(model: Model) -> Iterator[str]:
    """What `lolat show` prints."""
    document = model.document
    yield headline(model)
    if "predictors" in document:
        yield from inference_lines(model)
    yield from section_lines(document)
    for remark in document.get("warnings", ()):
        yield f"note: {plain(remark)}"


def inference_lines(model: Model) -> Iterator[str]:
    """What a model knows of latencies of inference, and how good it is."""
    document = model.document
    yield (
        f"{len(document['points'])} points; default predictor: {model.default}; "
        "FLOPs are multiply-accumulates (1 MAC = 1 FLOP)"
    )
    for name, formula in model.predictors.items():
        yield ""
        yield f"{name}: {formula_words(formula.to_dict())}"
        entry = document["predictors"][name]
        if "breakpoint_ms" in entry and entry["breakpoint_ms"] > 0:
            yield (
                f"  below {milliseconds(entry['breakpoint_ms'])}: {entry['slope']:.3f} * t + "
                f"{entry['offset_ms']:.3f}"
            )
        yield from error_lines(entry, noise_floor(document))
        yield from interval_line(entry, noise_floor(document))
        if "six_counts" in entry:
            yield f"  with six counts alone: {equation(entry['six_counts']['coefficients'])}"
            found = error_lines(entry["six_counts"], noise_floor(document))
            yield from (f"  {line}" for line in found)
    if bound := bound_sentence(model):
        yield from ("", bound)


SECTIONS = ("training", "epochs", "spaces")


def section_lines(document: Mapping[str, Any], some: Sequence[str] = SECTIONS) -> Iterator[str]:
    """What a model file knows of training, timed epochs and search spaces, and how good it is."""
    from lolat.training.fitting import EpochSection
    from lolat.training.learning import Section

    shapes: dict[str, Any] = {"training": Section, "epochs": EpochSection, "spaces": dict}
    for of in some:
        found = document.get(of)
        if found is None:
            continue
        for name, part in found.items() if of == "spaces" else [(of, found)]:
            try:
                if not fits(part, shapes[of]):
                    raise ValueError
                yield _section_line(of, plain(name), part)
                if of == "training":
                    yield from (f"note on training: {plain(r)}" for r in part.get("warnings", ()))
            except (LookupError, TypeError, ValueError, ArithmeticError):
                reader = (
                    "`lolat training predict`" if of == "training" else "the command that reads it"
                )
                yield f"{plain(name)}: damaged; {reader} says where"


def _section_line(of: str, name: str, part: Mapping[str, Any]) -> str:
    if of == "training":
        blocks = {p["name"] for p in part["points"]}
        return (
            f"training (`lolat training predict`): {len(part['points'])} passes of {len(blocks)} "
            f"blocks; each block left out: median error {percent(part['error']['left_out_median'])}"
            f"{beside(part['noise']['floor'])}; {plain(', '.join(sorted(part['update_ms'])))}"
        )
    if of == "epochs":
        networks = {p["network"] for p in part["points"]}
        error = median(abs(math.expm1(-r)) for r in part["residuals"])
        return (
            f"epochs of training (`lolat training predict`): {len(part['points'])} of "
            f"{plural(len(networks), 'network')}; each network left out: median error "
            f"{percent(error)}; {plain(', '.join(part['optimizers']))}"
        )
    measured = plural(len(part["samples"]), "measured network")
    return f"{name} (`lolat nas search {name} MODEL`): {measured}"


def equation(coefficients: Mapping[str, float]) -> str:
    """t = 1.2e-07*ACTS + ... + 0.2 ms."""
    parts = [
        f"{coefficients[name]:.3g}*{CAPITALS.get(name, name)}"
        for name in COLUMNS
        if coefficients.get(name, 0.0) > 0
    ]
    return "t = " + " + ".join([*parts, f"{coefficients.get(CONSTANT, 0.0):.3g} ms"])


def formula_words(entry: Mapping[str, Any]) -> str:
    """What a predictor's entry computes, in a line."""
    found = equation(entry["coefficients"])
    classes = entry.get("classes")
    if not isinstance(classes, Mapping):
        return found
    return f"each operation by the terms of its class ({len(classes)}); large fast ones: {found}"


def beside(floor: float | None) -> str:
    """The noise floor as it stands beside an error: no predictor can beat it."""
    return "" if floor is None else f" (noise floor {percent(floor)})"


JUDGED = {
    "fitted": "on its points",
    "left_out": "each block left out",
    "networks_left_out": "whole networks among them",
}
SIZES = (("from", "from 2 ms"), ("below", "below"))


def error_lines(entry: Mapping[str, Any], floor: float | None = None) -> Iterator[str]:
    """The errors of a predictor, on its own points and on points left out, with the noise floor."""
    found = entry.get("error", {})
    for key, words in JUDGED.items():
        figures = found.get(key)
        if figures and {"median", "within_10_percent"} <= figures.keys():
            sizes = ((figures.get(f"median_{size}_2_ms"), text) for size, text in SIZES)
            split = "".join(f", {percent(v)} {text}" for v, text in sizes if v is not None)
            yield (
                f"  {words}: median error {percent(figures['median'])}{beside(floor)}{split}, "
                f"{100 * figures['within_10_percent']:.0f} % within 10 %"
            )


def interval_line(entry: Mapping[str, Any], floor: float | None) -> Iterator[str]:
    """How wide the usual intervals of a predictor are; nothing where its points cannot tell."""
    try:
        width = interval_width(entry, COVERAGE, floor or 0.0)
    except InputError:
        return
    low, high = width.scale.low, width.scale.high
    sizes, many = _around(width.half(low)), _around(width.half(high))
    if sizes != many:
        sizes += f" up to {low:.0f} operations, {many} from {high:.0f} on"
    if width.networks is not None:
        sizes += f", {_around(width.half(width.networks[0]))} of whole networks"
    yield f"  {100 * COVERAGE:g} % intervals: {sizes}"


def _around(half: float) -> str:
    """An interval around its prediction: -18 .. +22 %."""
    return f"{100 * math.expm1(-half):+.0f} .. {100 * math.expm1(half):+.0f} %"


def learned(document: Mapping[str, Any], path: str) -> Iterator[str]:
    """What a finished `learn` or `fit` says."""
    seconds = document["environment"].get("seconds")
    took = f", measured in {seconds:.0f} s" if isinstance(seconds, (int, float)) else ""
    yield f"{len(document['points'])} points on {plain(document['device'])}{took}"
    floor = noise_floor(document)
    for name, entry in document["predictors"].items():
        mark = " (default)" if name == document["default"] else ""
        yield f"{name}{mark}: {formula_words(entry)}"
        yield from error_lines(entry, floor)
        yield from interval_line(entry, floor)
    if floor is not None:
        yield f"noise: repeated measurements of a block disagree by {percent(floor)} at the median"
    yield from section_lines(document, ["training"])
    yield f"written: {plain(path)}"
    named = quote(plain(path))
    yield f"Next: lolat report {named} keras:ResNet50 · lolat evaluate {named}"
