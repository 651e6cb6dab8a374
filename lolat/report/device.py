"""A model on a screen: its device, how far off it is, its formulas."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from shlex import quote
from statistics import median
from typing import Any

import msgspec

from lolat.errors import InputError
from lolat.fitting.intervals import (
    COVERAGE,
    Evidence,
    machine,
    noise_floor,
    repeatability_of,
)
from lolat.fitting.predictors.extended import Extended
from lolat.fitting.predictors.formula import CONSTANT
from lolat.graph.counts import COLUMNS
from lolat.model import Model
from lolat.model.summary import Families, Rate, families_of, framework_of, headline
from lolat.units import milliseconds, percent, plain, plural

WIDE = 96
"""Columns that a screen surely has."""
MOST_REMARKS = 3
"""Remarks on the screen that a learning ends with."""


def wrapped(line: str, first: int = 0, others: int = 2) -> list[str]:
    """A line in as many as a screen needs; `first`, `others`: blanks in front of them."""
    return textwrap.wrap(
        line, WIDE, initial_indent=" " * first, subsequent_indent=" " * others,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


# ---- The device


def describe(model: Model) -> Iterator[str]:
    """The lines of `lolat show`."""
    yield headline(model)
    yield from device_lines(model)
    yield from remark_lines(model.document)
    yield from _besides([*section_lines(model.document), *_training_remarks(model.document)])


def learned(model: Model, path: str, name: str, was_measured: bool = True) -> Iterator[str]:
    """The lines at the end of `learn` and `fit`; commands find the model by `name`.

    `was_measured`: its latencies just now, so that remarks on the measuring are shown too.
    """
    document = model.document
    environment = document["environment"]
    seconds = environment.get("seconds")
    took = f" measured in {seconds:.0f} s" if isinstance(seconds, (int, float)) else ""
    count = len(document.get("points", ()))
    points = [f"{plural(count, 'point')}{took}"] if count else []
    yield from wrapped(" · ".join([plain(model.device), *framework_of(environment), *points]))
    yield from device_lines(model)
    if was_measured:
        yield from remark_lines(document, MOST_REMARKS)
    yield from _besides(section_lines(document, ["training", "epochs"]))
    yield ""
    yield f"written: {plain(path)}"
    named = quote(plain(name))
    if model.predictors:
        yield (
            f"Next: lolat report {named} keras:ResNet50 · lolat evaluate {named} · lolat show {named} "
            "--formula"
        )
    if "training" in document:
        yield f"Next: lolat cost {named} keras:ResNet50 --batch-size 32 --samples 50000"


def _training_remarks(document: Mapping[str, Any]) -> Iterator[str]:
    remarks = document.get("training", {}).get("warnings", ())
    yield from (f"note on training: {plain(remark)}" for remark in remarks)


def _besides(lines: Iterable[str]) -> list[str]:
    """Lines below an empty one, where there are any."""
    shown = [part for line in lines for part in wrapped(line)]
    return ["", *shown] if shown else []


def remark_lines(document: Mapping[str, Any], most: int | None = None) -> Iterator[str]:
    """Remarks on the learning, or on the tables that a device is made of; `most`: so many of them."""
    remarks = [plain(remark) for remark in document.get("warnings", ())]
    if not remarks:
        return
    yield ""
    yield "while learning" if document["environment"].get("device") in ("cpu", "gpu") else "notes"
    for remark in remarks[:most]:
        yield from wrapped(remark, 2, 4)
    if most is not None and len(remarks) > most:
        yield f"  and {plural(len(remarks) - most, 'more remark')}, which `lolat show` has"


def device_lines(model: Model) -> Iterator[str]:
    """How far off a model is on its device."""
    if model.predictors and (lines := [*_errors(model)]):
        yield ""
        yield "how far off, each left out of the fit"
        for line in lines:
            yield from wrapped(line, 2, 4)


def _errors(model: Model) -> Iterator[str]:
    """The errors of the default formula, and how well the machine repeats itself."""
    document = model.document
    entry, floor = document["predictors"][model.default], noise_floor(document)
    errors = entry.get("error", {})
    spans = _spans(entry, document)
    for key, name in (("networks_left_out", "networks"), ("left_out", "single blocks")):
        figures = errors.get(key)
        if figures and figures.get("median") is not None:
            alone = key == "left_out" and "networks_left_out" not in errors
            span = f", {100 * COVERAGE:g} % of them within {spans[key]}" if key in spans else ""
            yield f"{'points' if alone else name}: {percent(figures['median'])} at the median{span}"
    repeated = repeatability_of(document)
    times = "" if repeated is None else f"; times repeat within {percent(repeated)}"
    if floor is not None:
        yield f"this machine: blocks measured again differ by {percent(floor)}{times}"


def _spans(entry: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, str]:
    """The usual intervals as `predict` gives them, of networks and of blocks; none where points lack."""
    evidence, floor = msgspec.convert(entry, Evidence), noise_floor(document) or 0.0
    sizes = {"left_out": evidence.interval.ops[0] if evidence.interval else 1.0}
    if evidence.networks is not None:
        sizes["networks_left_out"] = evidence.networks.ops
    try:
        halves = {key: evidence.half_width(n, COVERAGE, floor) for key, n in sizes.items()}
    except InputError:
        return {}
    moves = machine(document, COVERAGE)
    return {key: interval_text(math.hypot(half, moves)) for key, half in halves.items()}


def interval_text(half: float) -> str:
    """An interval around its prediction, of half a width `half` (a logarithm): -18 .. +22 %."""
    return f"{100 * math.expm1(-half):+.0f} .. {100 * math.expm1(half):+.0f} %"


# ---- Other sections of a file

SECTIONS = ("training", "epochs", "spaces")


def section_lines(document: Mapping[str, Any], sections: Sequence[str] = SECTIONS) -> Iterator[str]:
    """What a model file knows of training, timed epochs and search spaces, and how good it is."""
    if "training" in sections and (part := document.get("training")):
        blocks = {p["name"] for p in part["points"]}
        yield (
            f"training (`lolat cost`): {len(part['points'])} passes of {len(blocks)} blocks; each block "
            f"left out: median error {percent(part['error']['left_out_median'])} (noise floor "
            f"{percent(part['noise']['floor'])}); {plain(', '.join(sorted(part['update_ms'])))}"
        )
    if "epochs" in sections and (part := document.get("epochs")):
        networks = {p["network"] for p in part["points"]}
        error = median(abs(math.expm1(-r)) for r in part["residuals"])
        yield (
            f"epochs of training (`lolat cost`): {len(part['points'])} of "
            f"{plural(len(networks), 'network')}; each network left out: median error {percent(error)}; "
            f"{plain(', '.join(part['optimizers']))}"
        )
    for name, part in document.get("spaces", {}).items() if "spaces" in sections else ():
        measured = plural(len(part.get("samples", ())), "measured network")
        yield f"{plain(name)} (`lolat nas search {plain(name)} MODEL`): {measured}"


# ---- The formulas


def formula_lines(model: Model) -> Iterator[str]:
    """The lines of `lolat show --formula`: each formula of the model and its terms."""
    yield headline(model)
    if not model.predictors:
        return
    document = model.document
    yield "A time is the sum of counts times rates. 1 MAC is one multiply-accumulate."
    for name, formula in model.predictors.items():
        entry = document["predictors"][name]
        mark = " (default)" if name == model.default else ""
        yield ""
        if isinstance(formula, Extended):
            yield f"{name}{mark}: families of work with a rate each, and how many times that a kind takes"
            yield from _family_lines(families_of(formula))
        else:
            yield f"{name}{mark}: {formula_text(formula.to_dict())}"
        if entry.get("breakpoint_ms", 0) > 0:
            yield (
                f"  below {milliseconds(entry['breakpoint_ms'])}: {entry['slope']:.3f} * t + "
                f"{entry['offset_ms']:.3f}"
            )
        if "six_counts" in entry:
            yield f"  with six counts alone: {equation(entry['six_counts']['coefficients'])}"


def _family_lines(families: Families) -> Iterator[str]:
    """Each family with its kinds below it: how many times its rate they cost, and why."""
    for family in families.families:
        if family.kinds:
            rate = f", {family.rate}" if family.rate.ms > 0 else ""
            yield f"  {family.rate.words}{rate}. {family.rate.why}"
            yield from _kind_lines(family.kinds)
    if any(rate.ms > 0 for rate in families.besides):
        yield "  besides"
        yield from _kind_lines(families.besides)
    yield f"  a call of the network, {milliseconds(families.call_ms)}"


def _kind_lines(kinds: Sequence[Rate]) -> Iterator[str]:
    for kind in kinds:
        if kind.ms > 0:
            of_family = kind.of_family is not None
            head, rate = (f"{kind.of_family:5.2f} x ", "") if of_family else ("    + ", f", {kind}")
            yield from wrapped(f"{head}{kind.words}{rate}. {kind.why}", 4, 12)
    if free := [kind.words for kind in kinds if kind.ms == 0]:
        yield from wrapped(f"free: {', '.join(free)}", 6, 12)


CAPITALS = {"acts": "ACTS", "inp": "INP", "flops": "FLOPs"}  # the names of the publications


def equation(coefficients: Mapping[str, float]) -> str:
    """t = 1.2e-07*ACTS + ... + 0.2 ms."""
    parts = [
        f"{coefficients[name]:.3g}*{CAPITALS.get(name, name)}"
        for name in COLUMNS
        if coefficients.get(name, 0.0) > 0
    ]
    return "t = " + " + ".join([*parts, f"{coefficients.get(CONSTANT, 0.0):.3g} ms"])


def formula_text(entry: Mapping[str, Any]) -> str:
    """A predictor's entry as a formula, in a line."""
    sum_of_terms, classes = equation(entry["coefficients"]), entry.get("classes")
    if not isinstance(classes, Mapping):
        return sum_of_terms
    return f"each operation by the terms of its class ({len(classes)}); large fast ones: {sum_of_terms}"
