"""The page of a report as one file: the template filled in, nothing loaded from anywhere; and its data.

The data are counts of every operation, and what they cost on the device: the page computes the milliseconds
of any batch size itself, from counts and coefficients, as `Formula.shares` does. What it cannot compute is
there for each of many batch sizes: intervals, remarks on the measured domain, and the times of a formula
that is no sum of counts (`Kernels`).
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from hashlib import sha256
from importlib.resources import files
from shlex import quote
from string import Template
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.fitting.intervals import noise_floor
from lolat.fitting.predictors.formula import Formula
from lolat.fitting.predictors.kernels import Kernels
from lolat.fitting.predictors.two_regime import TwoRegime
from lolat.graph import Graph, is_convolution
from lolat.graph.analysis import MOST_COUNT, analyze
from lolat.graph.blocks import Block
from lolat.graph.counts import COLUMNS, GROUPS, MEANINGS
from lolat.graph.edits import square_side
from lolat.io.results import element
from lolat.model import Model
from lolat.model.attribution import AtSize, Counterfactual, explain_block, explain_network
from lolat.model.prediction import CALL, Prediction, domain_words, memory_words
from lolat.report.rows import (
    GLOSSARY,
    TERMS,
    bottleneck_sentence,
    bottlenecks,
    familiar,
    named_parts,
    paths_of,
    short_name,
)
from lolat.units import percent, plain, shapes_text

STEPS = tuple(2**n for n in range(9))
"""Batch sizes of the slider."""
EVERY = range(1, 257)
SOME = (*range(1, 33), *range(40, 129, 8), 160, 192, 224, 256)
"""Batch sizes of which everything is known: the few where each operation has a time for each, and of
networks of more than MANY blocks, for which there would be too much to wait for."""
MANY = 200
FAMILIES: dict[str, tuple[str, tuple[str, ...]]] = {
    key: (TERMS[of], tuple(term for term, group in GROUPS.items() if group == of))
    for key, of in (
        ("compute", "flops"),
        ("memory", "memory"),
        ("weights", "weights"),
        ("shapes", "patches"),
        ("starting", "ops"),
    )
} | {"call": (TERMS[CALL], ())}
"""The colors of a bar: what each is called, and its terms."""
MOST_EXPLAINED = 5
"""Blocks, the longest first, of which the page knows what a change would save; of MANY blocks none."""
SAME_KINDS = 0.5
"""Of the kinds of operations of two blocks of one name, the share in common that makes them one block."""
DIGITS = 7  # of a time that the page does not compute
SEQUENCE, HEAD = 1000, 2000  # stages behind all sizes of images

Pairs = list[list[int]]


@dataclass(frozen=True)
class Side:
    """A network on a device: one of what the page shows.

    `paths`: see `rows.module_paths`; `model_name`, `network`: as the user gave them; `command`: how a
    command names the network (`keras:X --input-size 96`); `at_size`: see `explain_network`.
    """

    model: Model
    graph: Graph
    paths: Sequence[tuple[str, ...]]
    model_name: str
    network: str
    command: str = "NETWORK"
    at_size: AtSize | None = None


def command_of(network: str, input_size: Sequence[int] = ()) -> str:
    """A network and its size, as a command takes them."""
    size = f" --input-size {','.join(map(str, input_size))}" if input_size else ""
    return quote(network) + size


def page_of(predictions: Sequence[Prediction]) -> str:
    """The page of a prediction, or of two beside each other at the batch size of the first."""
    first, asked = predictions[0], [p.question for p in predictions]
    same = len({p.predictor for p in predictions}) == 1
    sides = [
        Side(
            a.model, a.graph, paths_of(a.graph), a.model.label, a.network,
            command_of(a.network, a.input_size), a.at_size,
        )
        for a in asked
    ]  # fmt: skip
    return page(sides, first.batch_size, first.predictor if same else None, asked[0].coverage)


def document(
    sides: Sequence[Side], batch_size: int, predictor: str | None, coverage: float | None
) -> dict[str, Any]:
    """The page's data, ready for JSON; `sides`: one, or two to compare.

    InputError where `Model.predict` raises it at `batch_size`; other batch sizes that are too large are
    left out.
    """
    computed = not any(isinstance(s.model.predictor(predictor), Kernels) for s in sides)
    answers: list[list[Prediction]] = [[] for _ in sides]
    sizes = []
    few = not computed or max(len(analyze(s.graph).blocks) for s in sides) > MANY
    for size in sorted({*(SOME if few else EVERY), batch_size}):
        try:
            found = [s.model.predict(s.graph, size, predictor, coverage) for s in sides]
        except InputError:
            if size <= batch_size:
                raise
            break
        sizes.append(size)
        for kept, one in zip(answers, found, strict=True):
            kept.append(one)
    told = [_side(s, a, batch_size) for s, a in zip(sides, answers, strict=True)]
    for entry, name in zip(told, side_names(sides), strict=True):
        entry["name"] = plain(name)
    rows, unlike = pairs([entry["labels"] for entry in told]), are_unlike(sides)
    return {
        "sizes": sizes,
        "steps": sorted({batch_size, *STEPS} & set(sizes)),
        "start": batch_size,
        "largest": min(map(_largest, sides)) if computed else None,
        "words": TERMS,
        "glossary": GLOSSARY,
        "units": {name: meaning.unit for name, meaning in MEANINGS.items()},
        "groups": GROUPS,
        "call": CALL,
        "families": [[key, name, list(terms)] for key, (name, terms) in FAMILIES.items()],
        "pairs": rows,
        "stages": _stages(sides, told) if unlike else None,
        "sides": told,
    }


# ---- What stands beside what


def side_names(sides: Sequence[Side]) -> list[str]:
    """What tells the sides apart: the network, else the device, else what the user typed."""
    named = [(s.graph.name, s.model.device, s.network, s.model_name) for s in sides]
    for names in zip(*named, strict=True):
        if len(set(names)) == len(sides):
            return list(names)
    return [f"{s.graph.name} ({i})" for i, s in enumerate(sides, start=1)]


def pairs(labels: Sequence[Sequence[str]]) -> Pairs:
    """The rows: which block of each side, -1 for none; blocks of one label stand together."""
    if len(labels) == 1:
        return [[i] for i in range(len(labels[0]))]
    first, second = labels
    found: Pairs = []
    a = b = 0
    matcher = SequenceMatcher(None, list(first), list(second), autojunk=False)
    for i, j, size in matcher.get_matching_blocks():
        found += [[n, -1] for n in range(a, i)] + [[-1, n] for n in range(b, j)]
        found += [[i + n, j + n] for n in range(size)]
        a, b = i + size, j + size
    return found


def are_unlike(sides: Sequence[Side]) -> bool:
    """Whether two networks are no versions of each other.

    Versions are those in which half of the blocks of the smaller one have a block of the same name in the
    other, with SAME_KINDS of its kinds of operations.
    """
    if len(sides) < 2:
        return False
    blocks = [analyze(s.graph).blocks for s in sides]
    first, second = (
        [{s.graph.operations[p].kind for p in block.operations} for block in own]
        for s, own in zip(sides, blocks, strict=True)
    )
    same = sum(
        len(first[i] & second[j]) >= SAME_KINDS * len(first[i] | second[j])
        for i, j in pairs([[b.label for b in own] for own in blocks])
        if min(i, j) >= 0
    )
    return 2 * same < min(map(len, blocks))


def _stages(sides: Sequence[Side], told: Sequence[dict[str, Any]]) -> list[str]:
    """The names of the stages of two networks, in order; each of `told` learns those of its blocks."""
    found = [[stage(s.graph, b) for b in analyze(s.graph).blocks] for s in sides]
    keys = sorted({key for own in found for key, _ in own})
    for entry, own in zip(told, found, strict=True):
        entry["stages"] = [keys.index(key) for key, _ in own]
    names = (dict.fromkeys(name for own in found for at, name in own if at == key) for key in keys)
    return [" and ".join(sizes).replace(" px and", " and") for sizes in names]


def stage(graph: Graph, block: Block) -> tuple[int, str]:
    """How often the image was halved where a block works most, and its name, as "56 px".

    The size is that of the output of the operation with most multiply-accumulates. What is behind all
    images is a sequence (of tokens, of steps) or the head.
    """
    macs = analyze(graph).counts.at(1)[:, COLUMNS.index("flops")]
    last = block.operations[-1]
    most = max(block.operations, key=lambda p: (macs[p], is_convolution(graph.operations[p].kind)))
    operation = graph.operations[most if macs[most] else last]
    shape = graph.tensors[operation.outputs[0]].shape
    side = square_side(shape)
    whole = max((square_side(s) or 0 for s in graph.shapes(graph.inputs)), default=0)
    if side is not None and whole:
        return round(math.log2(whole / side)), f"{side} px"
    if math.prod(shape[1:-1]) > 1:
        return SEQUENCE, "sequence"
    return HEAD, "head"


# ---- One side


def _side(side: Side, answers: Sequence[Prediction], batch_size: int) -> dict[str, Any]:
    formula = side.model.predictor(answers[0].predictor)
    analysis = analyze(side.graph)
    parts = [named_parts(name) for name in answers[0].names]
    place = {b.name: i for i, b in enumerate(answers[0].blocks)}
    # Texts that many batch sizes have in common, each once, and where it stands.
    remarks: dict[str, int] = {}
    sentences: dict[str, int] = {}

    def at(texts: dict[str, int], text: str) -> int:
        return texts.setdefault(plain(text), len(texts))

    floor = noise_floor(side.model.document)
    asked = next(a for a in answers if a.batch_size == batch_size)
    told = [
        {
            "interval": None if a.interval_ms is None else list(a.interval_ms),
            "coverage": a.coverage,
            "inside": a.in_domain,
            "domain": domain_words(a),
            "memory": "".join(memory_words(a)),
            "remarks": [at(remarks, w) for w in a.warnings],
            "sentence": at(sentences, bottleneck_sentence(a)),
            "marked": [place[b.name] for b in bottlenecks(a)],
        }
        for a in answers
    ]
    labels = [label for label, _ in parts]
    operations = side.graph.operations
    return {
        "network": plain(side.graph.name),
        "device": plain(side.model.device),
        "asked": plain(f"{quote(side.model_name)} {side.command}{side.model.launch_option}"),
        "figures": str(familiar(side.graph)),
        "noise": None if floor is None else percent(floor),
        "labels": labels,
        "summaries": [summary for _, summary in parts],
        "paths": [[plain(p) for p in path] for path in side.paths],
        "formula": _formula(formula),
        "operations": {
            "names": [
                plain(short_name(o.full_name, labels[b]))
                for o, b in zip(operations, analysis.owner, strict=True)
            ],
            "kinds": [plain(o.kind.replace("_", " ")) for o in operations],
            "blocks": analysis.owner.tolist(),
        },
        "counts": _counts(side, formula),
        "times": _times(side, formula, answers) if isinstance(formula, Kernels) else None,
        "remarks": list(remarks),
        "sentences": list(sentences),
        "answers": told,
        "changes": _changes(side, asked),
    }


def _formula(formula: Formula) -> dict[str, Any]:
    """The coefficients above 0, and where the formula bends (two-regime)."""
    bends = isinstance(formula, TwoRegime) and formula.breakpoint_ms > 0
    kept = _features(formula)
    return {
        "name": formula.name,
        "features": [formula.features[i] for i in kept],
        "coefficients": [formula.slopes[i] for i in kept],
        "constant": formula.constant,
        "bend": [formula.breakpoint_ms, formula.slope] if bends else None,  # type: ignore[attr-defined]
    }


def _features(formula: Formula) -> list[int]:
    """Which of the features of a formula can take time."""
    timed = isinstance(formula, Kernels)
    return [i for i, c in enumerate(formula.slopes) if c > 0.0 or timed]


def _counts(side: Side, formula: Formula) -> dict[str, Any]:
    """Counts of every operation: `fixed + batch size * scaled`, numbers that are all 0 left out."""
    found = analyze(side.graph).counts

    def column(*names: str) -> dict[str, list[int]]:
        at = [COLUMNS.index(name) for name in names]
        parts = {"fixed": found.fixed[:, at].sum(axis=1), "scaled": found.scaled[:, at].sum(axis=1)}
        return {name: values.tolist() for name, values in parts.items() if values.any()}

    names = dict.fromkeys([*(formula.features[i] for i in _features(formula)), "flops", "weights"])
    return {
        **{name: column(name) for name in names},
        "elements": column("acts", "inp", "traffic"),
        "acts": column("acts"),
    }


def _times(side: Side, formula: Formula, answers: Sequence[Prediction]) -> dict[str, Any]:
    """Batch size -> for each feature the ms of every operation, of a formula that is no sum of counts."""
    analysis = analyze(side.graph)
    return {
        str(a.batch_size): [
            [float(f"{ms:.{DIGITS}g}") if ms else 0 for ms in column]
            for column in formula.of_operations(analysis, a.batch_size).T
        ]
        for a in answers
    }


def _largest(side: Side) -> int:
    """The largest batch size whose counts a float holds exactly."""
    return int(MOST_COUNT // max(1, analyze(side.graph).counts.scaled.max(initial=1)))


def _changes(side: Side, asked: Prediction) -> dict[str, Any]:
    """What a change of the network or of one of its longest blocks would save, at the size asked for."""

    def told(found: Sequence[Counterfactual]) -> list[dict[str, Any]]:
        return [
            {
                "saves": c.saves_ms,
                "ofBlock": c.of_block,
                "ofNetwork": c.of_network,
                "outside": c.in_domain is False,
                "by": plain(c.change),
            }
            for c in found
        ]

    given = side.model, side.graph
    found = explain_network(*given, asked.batch_size, asked.predictor, side.at_size)
    times = asked.block_terms.sum(axis=1)
    longest = np.argsort(-times, kind="stable")[: MOST_EXPLAINED if len(times) <= MANY else 0]
    own = {
        str(i): explain_block(*given, asked.names[i], asked.batch_size, asked.predictor)
        for i in longest.tolist()
    }
    return {
        "network": told(found.counterfactuals),
        "blocks": {i: told(block.counterfactuals) for i, block in own.items()},
        "notes": [plain(note) for note in found.notes],
    }


# ---- The page


def page(
    sides: Sequence[Side],
    batch_size: int = 1,
    predictor: str | None = None,
    coverage: float | None = None,
) -> str:
    """The page, as HTML; what comes in and what is raised: see `document`."""
    data = document(sides, batch_size, predictor, coverage)
    script = _template("page.js")
    networks = list(dict.fromkeys(s.graph.name for s in sides))
    devices = list(dict.fromkeys(f"{s.model.name}: {s.model.device}" for s in sides))
    both = zip(sides, data["sides"], strict=True)
    return Template(_template("page.html")).substitute(
        title=element("title", f"{' and '.join(networks)}: where the time goes"),
        heading=element("h1", " and ".join(networks)),
        place=element("p", f"on {' and '.join(devices)}", class_="place"),
        words="".join(element("dt", word) + element("dd", text) for word, text in GLOSSARY.items()),
        facts="".join(_facts(s, e, len(sides) > 1) for s, e in both),
        style=_template("page.css"),
        script=script,
        # What a Content-Security-Policy names the script by.
        script_hash=f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}",
        data=embedded(data),
    )


def embedded(data: Any) -> str:
    """JSON that stays data inside a <script>: no `<`, `>`, `&`, nor anything outside ASCII, as itself."""
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _template(name: str) -> str:
    return files("lolat.report.bottlenecks").joinpath(name).read_text(encoding="utf-8")


def _facts(side: Side, entry: Mapping[str, Any], several: bool) -> str:
    """Device, framework, when it was learned and how good it is, as a list."""
    where: Mapping[str, Any] = side.model.document["environment"]
    found = side.model.document["predictors"][entry["formula"]["name"]]
    rows = {"device": side.model.device}
    if "framework" in where:
        rows["framework"] = f"{where['framework']} {where.get('framework_version', '')}".strip()
    if isinstance(where.get("date"), str):
        rows["learned"] = where["date"][:16].replace("T", " ")
    rows["model"] = f"{side.model.name}, predictor {entry['formula']['name']}"
    floor = noise_floor(side.model.document)
    if floor is not None:
        rows["noise floor"] = f"{percent(floor)}: measuring a block again differs by that"
    median = found.get("error", {}).get("left_out", {}).get("median")
    if median is not None:
        rows["median error"] = f"{percent(median)}, of blocks left out of the fit"
    rows["input"] = f"{shapes_text(side.graph.shapes(side.graph.inputs))} a sample"
    cells = "".join(element("dt", name) + element("dd", plain(rows[name])) for name in rows)
    name = element("h3", entry["name"]) if several else ""
    return f"<div>{name}<dl>{cells}</dl></div>"
