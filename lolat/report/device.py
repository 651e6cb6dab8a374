"""What the terminal shows of a model: its device, how far off it is, where the time goes, its formula."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from statistics import median
from typing import Any

from lolat.errors import InputError
from lolat.fitting.intervals import (
    COVERAGE,
    interval_width,
    machine,
    noise_floor,
    repeatability_of,
)
from lolat.fitting.predictors.extended import Extended
from lolat.fitting.predictors.formula import CONSTANT
from lolat.graph.counts import COLUMNS
from lolat.io.documents import fits
from lolat.model import Model
from lolat.model.rates import Families, Rate, families_of, rates_of
from lolat.model.state import moment, now
from lolat.units import digits, milliseconds, percent, plain, plural

WIDE = 96
"""Columns that a screen surely has."""

# ---- A model in one line


def headline(model: Model) -> str:
    """A model in one line: name, file where that is another, device, framework, what of both is special,
    when it was learned, noise: what tells two models of a processor apart.
    """
    where: Mapping[str, Any] = model.document["environment"]
    file = Path(model.source)
    named = "" if file.stem in (model.name, "model") else f" ({plain(file.name)})"
    parts = [f"{plain(model.name)}{named}: {plain(model.device)}", *_framework(where)]
    age = _age(where.get("date"))
    if age:
        parts.append(f"learned {age}")
    floor = noise_floor(model.document)
    if floor is not None:
        parts.append(f"noise {percent(floor)}")
    return " · ".join(parts)


def _framework(where: Mapping[str, Any]) -> Iterator[str]:
    if "framework" in where:
        yield plain(f"{where['framework']} {where.get('framework_version', '')}".strip())
    yield from map(plain, conditions(where))


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


def _age(date: Any) -> str:
    """How long ago, and when; nothing where a file does not say it with its time zone."""
    when = moment(date)
    if when is None:
        return ""
    days = (now().date() - when.date()).days
    ago = "today" if days == 0 else "yesterday" if days == 1 else f"{days} days ago"
    ago = ago if days >= 0 else "at a time that is still to come"
    return f"{ago}, {when:%Y-%m-%d %H:%M} UTC"


# ---- A device on a screen


def describe(model: Model) -> Iterator[str]:
    """What `lolat show` prints."""
    document = model.document
    yield headline(model)
    if "predictors" in document:
        yield from device_lines(model)
    yield from remark_lines(document)
    yield from _besides([*section_lines(document)])


MOST_REMARKS = 3  # on the screen that a learning ends with


def learned(model: Model, path: str, name: str, was_measured: bool = True) -> Iterator[str]:
    """What a finished `learn` or `fit` says: where the model is, and by which `name` commands find it.

    `was_measured`: just now, so that what disturbed that is said too.
    """
    document = model.document
    where = document["environment"]
    seconds = where.get("seconds")
    took = f" measured in {seconds:.0f} s" if isinstance(seconds, (int, float)) else ""
    measured = document.get("points")
    points = [f"{plural(len(measured), 'point')}{took}"] if measured else []
    told = " · ".join([plain(document["device"]), *_framework(where), *points])
    yield from _indented(told, 0, 2)
    if model.predictors:
        yield from device_lines(model)
    if was_measured:
        yield from remark_lines(document, MOST_REMARKS)
    yield from _besides([*section_lines(document, ["training", "epochs"], notes=False)]) or [""]
    yield f"written: {plain(path)}"
    asked = quote(plain(name))
    if model.predictors:
        yield (
            f"Next: lolat report {asked} keras:ResNet50 · lolat evaluate {asked} · lolat show {asked} "
            "--formula"
        )


def _besides(lines: Sequence[str]) -> list[str]:
    """Lines below an empty one, where there are any."""
    wrapped = [part for line in lines for part in _indented(line, 0, 2)]
    return ["", *wrapped] if wrapped else []


def remark_lines(document: Mapping[str, Any], most: int | None = None) -> Iterator[str]:
    """What disturbed the learning, or what a device of tables says of itself; `most`: so many remarks."""
    remarks = [plain(remark) for remark in document.get("warnings", ())]
    if not remarks:
        return
    yield ""
    yield "while learning" if document["environment"].get("device") in ("cpu", "gpu") else "notes"
    for remark in remarks[:most]:
        yield from _indented(remark, 2, 4)
    if more := remarks[most:] if most else []:
        yield f"  and {plural(len(more), 'more remark')}, which `lolat show` has"


def device_lines(model: Model) -> Iterator[str]:
    """How far off a model is, and where the time goes on its device."""
    for title, lines in (
        ("how far off, each left out of the fit", [*_errors(model)]),
        ("where the time of its networks goes", [*_where_time_goes(model)]),
    ):
        if lines:
            yield ""
            yield title
            for line in lines:
                yield from _indented(line, 2, 4)


def _errors(model: Model) -> Iterator[str]:
    """The errors of the default formula, and how well the machine repeats itself."""
    document = model.document
    entry, floor = document["predictors"][model.default], noise_floor(document)
    found = entry.get("error", {})
    spans = _spans(entry, document)
    for key, name in (("networks_left_out", "networks"), ("left_out", "single blocks")):
        figures = found.get(key)
        if figures and figures.get("median") is not None:
            alone = key == "left_out" and "networks_left_out" not in found
            span = spans.get(key)
            within = f", {100 * COVERAGE:g} % of them within {span}" if span else ""
            name = "points" if alone else name
            yield f"{name}: {percent(figures['median'])} at the median{within}"
    repeated = repeatability_of(document)
    again = "" if repeated is None else f"; times repeat within {percent(repeated)}"
    if floor is not None:
        yield f"this machine: blocks measured again differ by {percent(floor)}{again}"


def _spans(entry: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, str]:
    """The usual intervals as `predict` gives them, of networks and of blocks; none where points lack."""
    try:
        width = interval_width(entry, COVERAGE, noise_floor(document) or 0.0)
    except InputError:
        return {}
    moves = machine(document, COVERAGE)
    found = {"left_out": around(math.hypot(width.half(width.scale.ops[0]), moves))}
    if width.networks is not None:
        half = width.half(width.networks[0])
        found["networks_left_out"] = around(math.hypot(half, moves))
    return found


def around(half: float) -> str:
    """An interval around its prediction: -18 .. +22 %."""
    return f"{100 * math.expm1(-half):+.0f} .. {100 * math.expm1(half):+.0f} %"


def _where_time_goes(model: Model) -> Iterator[str]:
    """Three groups of the time, each with its rate."""
    found = rates_of(model)
    if found is None:
        return
    rates = (
        (found.convolution_gmacs_per_s, "{} GMAC/s in convolutions"),
        (found.gmacs_per_s, "{} in all layers" if found.convolution_gmacs_per_s else "{} GMAC/s"),
    )
    computing = [words.format(digits(rate)) for rate, words in rates if rate is not None]
    moved, started = found.gb_per_s, found.operation_us
    yield _part("computing", found.computing, computing)
    yield _part("moving", found.moving, [f"{digits(moved)} GB/s read and written"] if moved else [])
    each = [f"{digits(started)} µs an operation"] if started else []
    yield _part("starting", found.starting, [*each, f"{milliseconds(found.call_ms)} a call"])


def _part(name: str, share: float, rates: Sequence[str]) -> str:
    return f"{name} {100 * share:.0f} %" + (f": {', '.join(rates)}" if rates else "")


# ---- What else a file knows


SECTIONS = ("training", "epochs", "spaces")


def section_lines(
    document: Mapping[str, Any], some: Sequence[str] = SECTIONS, notes: bool = True
) -> Iterator[str]:
    """What a model file knows of training, timed epochs and search spaces, and how good it is.

    `notes`: with what is to be said of measuring it.
    """
    from lolat.training.epochs import EpochSection
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
                if of == "training" and notes:
                    yield from (f"note on training: {plain(r)}" for r in part.get("warnings", ()))
            except (LookupError, TypeError, ValueError, ArithmeticError):
                reader = "`lolat cost`" if of == "training" else "the command that reads it"
                yield f"{plain(name)}: damaged; {reader} says where"


def _section_line(of: str, name: str, part: Mapping[str, Any]) -> str:
    if of == "training":
        blocks = {p["name"] for p in part["points"]}
        return (
            f"training (`lolat cost`): {len(part['points'])} passes of {len(blocks)} "
            f"blocks; each block left out: median error {percent(part['error']['left_out_median'])}"
            f"{beside(part['noise']['floor'])}; {plain(', '.join(sorted(part['update_ms'])))}"
        )
    if of == "epochs":
        networks = {p["network"] for p in part["points"]}
        error = median(abs(math.expm1(-r)) for r in part["residuals"])
        return (
            f"epochs of training (`lolat cost`): {len(part['points'])} of "
            f"{plural(len(networks), 'network')}; each network left out: median error "
            f"{percent(error)}; {plain(', '.join(part['optimizers']))}"
        )
    measured = plural(len(part["samples"]), "measured network")
    return f"{name} (`lolat nas search {name} MODEL`): {measured}"


# ---- Its formula


def formula_lines(model: Model) -> Iterator[str]:
    """What `lolat show --formula` prints: each formula of the model, its terms, its errors."""
    yield headline(model)
    if not model.predictors:
        return
    document = model.document
    yield "A time is the sum of counts times rates. 1 MAC is one multiply-accumulate."
    floor = noise_floor(document)
    for name, formula in model.predictors.items():
        entry = document["predictors"][name]
        mark = " (default)" if name == model.default else ""
        yield ""
        if isinstance(formula, Extended):
            yield f"{name}{mark}: families of work with a rate each, and how many times that a kind takes"
            yield from _family_lines(families_of(formula))
        else:
            yield f"{name}{mark}: {formula_words(formula.to_dict())}"
        if "breakpoint_ms" in entry and entry["breakpoint_ms"] > 0:
            yield (
                f"  below {milliseconds(entry['breakpoint_ms'])}: {entry['slope']:.3f} * t + "
                f"{entry['offset_ms']:.3f}"
            )
        yield from error_lines(entry, floor)
        yield from interval_line(entry, floor)
        if "six_counts" in entry:
            yield f"  with six counts alone: {equation(entry['six_counts']['coefficients'])}"
            yield from (f"  {line}" for line in error_lines(entry["six_counts"], floor))


def _family_lines(found: Families) -> Iterator[str]:
    """Each family with its kinds below it: how many times its rate they cost, and why."""
    for family in found.families:
        if family.kinds:
            rate = f", {family.rate}" if family.rate.ms > 0 else ""
            yield f"  {family.rate.words}{rate}. {family.rate.why}"
            yield from _kind_lines(family.kinds)
    if any(rate.ms > 0 for rate in found.besides):
        yield "  besides"
        yield from _kind_lines(found.besides)
    yield f"  a call of the network, {milliseconds(found.call_ms)}"


def _kind_lines(kinds: Sequence[Rate]) -> Iterator[str]:
    for kind in kinds:
        if kind.ms > 0:
            known = kind.of_family is not None
            head, rate = (f"{kind.of_family:5.2f} x ", "") if known else ("    + ", f", {kind}")
            yield from _indented(f"{head}{kind.words}{rate}. {kind.why}", 4, 12)
    if free := [kind.words for kind in kinds if kind.ms == 0]:
        yield from _indented(f"free: {', '.join(free)}", 6, 12)


def _indented(line: str, first: int, others: int) -> list[str]:
    """A line in as many as a screen needs."""
    return textwrap.wrap(
        line, WIDE, initial_indent=" " * first, subsequent_indent=" " * others,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


CAPITALS = {"acts": "ACTS", "inp": "INP", "flops": "FLOPs"}  # the names of the publications


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
    low, high = width.scale.ops[0], width.scale.ops[1]
    sizes, many = around(width.half(low)), around(width.half(high))
    if sizes != many:
        sizes += f" up to {low:.0f} operations, {many} from {high:.0f} on"
    if width.networks is not None:
        sizes += f", {around(width.half(width.networks[0]))} of whole networks"
    yield f"  {100 * COVERAGE:g} % intervals: {sizes}"
