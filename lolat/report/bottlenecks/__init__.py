"""The bottleneck page as one file: the template filled in, nothing loaded from anywhere."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from importlib.resources import files
from string import Template
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.fitting.domain import FOR_NETWORK
from lolat.fitting.intervals import noise_floor
from lolat.fitting.predictors.formula import Formula
from lolat.fitting.predictors.two_regime import TwoRegime
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS, GROUPS
from lolat.io.writing import write_text
from lolat.model import Model
from lolat.model.prediction import CALL, Prediction, domain_words
from lolat.report.html import element
from lolat.report.rows import named_parts
from lolat.report.words import TERMS, bottleneck_sentence, bottlenecks, familiar
from lolat.units import percent, plain

# ---- What the bottleneck page knows: counts of every block for every batch size, and what they
# cost.
#
# The page computes the milliseconds itself, from the counts and the coefficients, as `Formula.shares` does.
# What it cannot compute (intervals, remarks on the domain) is here for each batch size.

BATCH_SIZES = tuple(2**n for n in range(9))
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    key: (words, tuple(term for term, group in GROUPS.items() if group == of))
    for key, words, of in (
        ("compute", "compute", "flops"),
        ("memory", "memory traffic", "memory"),
        ("weights", "weights", "weights"),
        ("shapes", "grouped convolution", "patches"),
        ("starting", "starting operations", "ops"),
    )
} | {
    "call": ("fixed cost", ()),
}
"""The colors of a bar: what each is called, and its terms."""
SHOWN = ("flops",)
"""Counts that the page shows whether or not they cost anything."""


@dataclass(frozen=True)
class Side:
    """A network on a device: one of what the page shows.

    `paths`: see `folding.module_paths`; `model_name`, `network`: as the user gave them; `advice`: how a
    command names the network (`--for keras:X`).
    """

    model: Model
    graph: Graph
    paths: Sequence[tuple[str, ...]]
    model_name: str
    network: str
    advice: str = FOR_NETWORK


def document(
    sides: Sequence[Side], batch_size: int, predictor: str | None, coverage: float | None
) -> dict[str, Any]:
    """The page's data, ready for JSON; `sides`: one, or two to compare.

    InputError where `Model.predict` raises it at `batch_size`; other batch sizes that are too large are
    left out.
    """
    answers: list[dict[int, Prediction]] = [{} for _ in sides]
    sizes = []
    for size in sorted({*BATCH_SIZES, batch_size}):
        try:
            found = [s.model.predict(s.graph, size, predictor, coverage) for s in sides]
        except InputError:
            if size <= batch_size:
                raise
            break
        sizes.append(size)
        for kept, one in zip(answers, found, strict=True):
            kept[size] = one
    told = [_side(s, [a[n] for n in sizes]) for s, a in zip(sides, answers, strict=True)]
    for entry, name in zip(told, side_names(sides), strict=True):
        entry["name"] = plain(name)
    return {
        "batches": sizes,
        "start": sizes.index(batch_size),
        "words": TERMS,
        "groups": GROUPS,
        "call": CALL,
        "families": [[key, name, list(terms)] for key, (name, terms) in FAMILIES.items()],
        "pairs": pairs([e["labels"] for e in told]),
        "sides": told,
    }


def side_names(sides: Sequence[Side]) -> list[str]:
    """What tells the sides apart: the network, else the device, else what the user typed."""
    for names in (
        [s.graph.name for s in sides],
        [s.model.device for s in sides],
        [s.network for s in sides],
        [s.model_name for s in sides],
    ):
        if len(set(names)) == len(sides):
            return names
    return [f"{s.graph.name} ({i})" for i, s in enumerate(sides, start=1)]


def pairs(labels: Sequence[Sequence[str]]) -> list[list[int]]:
    """The rows: which block of each side, -1 for none; blocks of one label stand together."""
    if len(labels) == 1:
        return [[i] for i in range(len(labels[0]))]
    first, second = labels
    found: list[list[int]] = []
    a = b = 0
    matcher = SequenceMatcher(None, list(first), list(second), autojunk=False)
    for i, j, size in matcher.get_matching_blocks():
        found += [[n, -1] for n in range(a, i)] + [[-1, n] for n in range(b, j)]
        found += [[i + n, j + n] for n in range(size)]
        a, b = i + size, j + size
    return found


def _side(side: Side, answers: Sequence[Prediction]) -> dict[str, Any]:
    formula = side.model.predictor(answers[0].predictor)
    parts = [named_parts(name) for name in answers[0].names]
    remarks = list(dict.fromkeys(w for a in answers for w in a.warnings))
    at = {remark: i for i, remark in enumerate(remarks)}
    place = {b.name: i for i, b in enumerate(answers[0].blocks)}
    figures = familiar(side.graph)
    floor = noise_floor(side.model.document)
    return {
        "network": plain(side.graph.name),
        "device": plain(side.model.device),
        "figures": [figures.parameters, figures.macs, figures.activations],
        "noise": None if floor is None else percent(floor),
        "labels": [label for label, _ in parts],
        "summaries": [summary for _, summary in parts],
        "paths": [[plain(p) for p in path] for path in side.paths],
        "formula": _formula(formula),
        "counts": {
            column: _column(answers, COLUMNS.index(column))
            for column in dict.fromkeys([*formula.features, *SHOWN])
        },
        "remarks": [plain(r.replace(FOR_NETWORK, side.advice)) for r in remarks],
        "answers": [
            {
                "interval": None if a.interval_ms is None else list(a.interval_ms),
                "coverage": a.coverage,
                "inside": a.in_domain,
                "domain": domain_words(a),
                "remarks": [at[w] for w in a.warnings],
                "sentence": bottleneck_sentence(a),
                "marked": [place[b.name] for b in bottlenecks(a)],
            }
            for a in answers
        ],
    }


def _formula(formula: Formula) -> dict[str, Any]:
    """The coefficients, and where the formula bends (two-regime)."""
    bends = isinstance(formula, TwoRegime) and formula.breakpoint > 0
    return {
        "name": formula.name,
        "features": list(formula.features),
        "coefficients": list(formula.coefficients),
        "constant": formula.constant,
        "bend": [formula.breakpoint, formula.slope] if bends else None,  # type: ignore[attr-defined]
    }


def _column(answers: Sequence[Prediction], column: int) -> dict[str, Any]:
    """A count of every block: affine in the batch size where it is, else one list per batch size."""
    sizes = np.array([a.batch_size for a in answers], np.int64)
    values = np.array([a.block_counts[:, column] for a in answers], np.int64)  # (sizes, blocks)
    if len(sizes) > 1:
        scaled = (values[1] - values[0]) // (sizes[1] - sizes[0])
        fixed = values[0] - sizes[0] * scaled
        if (values == fixed + sizes[:, None] * scaled).all():
            return {"fixed": fixed.tolist(), "scaled": scaled.tolist()}
    return {"at": values.tolist()}


# ---- page ----------------------------------------


def page(
    sides: Sequence[Side],
    batch_size: int = 1,
    predictor: str | None = None,
    coverage: float | None = None,
) -> str:
    """The page, as HTML; what comes in and what is raised: `data.document`."""
    data = document(sides, batch_size, predictor, coverage)
    script = _template("page.js")
    networks = list(dict.fromkeys(s.graph.name for s in sides))
    devices = list(dict.fromkeys(f"{s.model.name}: {s.model.device}" for s in sides))
    both = zip(sides, data["sides"], strict=True)
    return Template(_template("page.html")).substitute(
        title=element("title", f"{' and '.join(networks)}: where the time goes"),
        heading=element("h1", " and ".join(networks)),
        place=element("p", f"on {' and '.join(devices)}", class_="place"),
        facts="".join(_facts(s, e, len(sides) > 1) for s, e in both),
        style=_template("page.css"),
        script=script,
        script_hash=f"sha256-{_hash(script)}",
        data=embedded(data),
    )


def write_page(
    path: str,
    sides: Sequence[Side],
    batch_size: int = 1,
    predictor: str | None = None,
    coverage: float | None = None,
) -> None:
    """Write the page; see `page`. InputError where `path` cannot be written."""
    write_text(path, page(sides, batch_size, predictor, coverage))


def embedded(data: Any) -> str:
    """JSON that stays data inside a <script>: no `<`, `>`, `&`, nor anything outside ASCII, as itself."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _template(name: str) -> str:
    return files("lolat.report.bottlenecks").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    """What a Content-Security-Policy names the script by."""
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")


def _facts(side: Side, entry: Mapping[str, Any], several: bool) -> str:
    """Device, framework, when it was learned and how good it is, as a list."""
    where: Mapping[str, Any] = side.model.document["environment"]
    found = side.model.document["predictors"][entry["formula"]["name"]]
    rows = [("device", side.model.device)]
    if "framework" in where:
        rows.append(
            ("framework", f"{where['framework']} {where.get('framework_version', '')}".strip())
        )
    if isinstance(where.get("date"), str):
        rows.append(("learned", where["date"][:16].replace("T", " ")))
    rows.append(("model", f"{side.model.name}, predictor {entry['formula']['name']}"))
    floor = noise_floor(side.model.document)
    if floor is not None:
        rows.append(("noise floor", f"{percent(floor)}: measuring a block again differs by that"))
    error = found.get("error")
    left_out = error.get("left_out") if isinstance(error, Mapping) else None
    if isinstance(left_out, Mapping) and isinstance(left_out.get("median"), float):
        rows.append(
            ("median error", f"{percent(left_out['median'])}, of blocks left out of the fit")
        )
    shapes = " and ".join("x".join(map(str, s[1:])) for s in side.graph.shapes(side.graph.inputs))
    rows.append(("input", f"{shapes} a sample"))
    cells = "".join(element("dt", name) + element("dd", plain(text)) for name, text in rows)
    name = element("h3", entry["name"]) if several else ""
    return f"<div>{name}<dl>{cells}</dl></div>"
