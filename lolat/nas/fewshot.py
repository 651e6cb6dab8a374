"""A search space's latency on a new device from a few measured networks.

`read_samples` reads what was measured, `fit` makes a `NasModel` of it, which is asked for many networks and
kept in the device's file.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np

from lolat.errors import InputError, ModelFileError
from lolat.io.documents import converted
from lolat.io.tables import Table, read_table
from lolat.io.writing import AnyPath
from lolat.model.file import lacks, put
from lolat.nas.pieces import (
    FREEDOM,
    Explanation,
    Pieces,
    explain,
    outlying,
    spreads,
)
from lolat.units import plural

# ---- Spaces by name, and tables of measured networks with the columns arch and latency_ms.

SPACES = ("nasbench201", "fbnet", "fbnet-cifar")
ENOUGH_SAMPLES = 10  # with fewer samples a warning says that the prior speaks too


@dataclass(frozen=True)
class SpaceTerms:
    """A space of SPACES: how its networks are written and counted, and the assumptions on their latencies.

    `candidates`: networks that stand for all of the space, of which `nas fit` says how sure it is.
    """

    name: str
    parse_many: Callable[..., np.ndarray]
    counts: Callable[[np.ndarray], np.ndarray]
    assumptions: list[Pieces]
    candidates: Callable[[np.random.Generator], np.ndarray]


@cache
def space_terms(name: str) -> SpaceTerms:
    """The space of that name. InputError where it is none of SPACES."""
    if name not in SPACES:
        raise InputError(f"unknown space {name!r}; expected one of {', '.join(SPACES)}")
    space = importlib.import_module("lolat.nas.spaces").SPACES[name]()
    prior = space.codec  # the space's module
    return SpaceTerms(name, space.parse, space.counts, prior.assumptions(space), prior.candidates)


def space_of(path: str | Path, sampled: Collection[str], others: bool) -> SpaceTerms:
    """The space of the networks in a table, by the first of them.

    `sampled`: names of spaces that a model has samples of, which go first; `others`: whether it can tell of
    others too. The first space where the network is of none. InputError where there is no such table, and
    for what may be of two sampled spaces.
    """
    names = [*sampled, *(n for n in SPACES if others and n not in sampled)] or list(SPACES)
    table = read_table(path, ("arch",))
    first = table.columns[table.names.index("arch")][:1]
    able = [name for name in names if _has(name, first)]
    if (two := able[:2]) and len(set(two) & set(sampled)) == 2:
        raise InputError(
            f"{path}: such networks are of {two[0]} and of {two[1]}, and the model has samples of both; "
            "expected a model with samples of one of them"
        )
    return space_terms(able[0] if able else names[0])


def _has(name: str, archs: Sequence[str]) -> bool:
    """Whether these are networks of the space."""
    try:
        space_terms(name).parse_many(archs)
    except InputError:
        return False
    return True


@dataclass(frozen=True)
class Samples:
    """What was measured: `rows` (samples, positions) integers, `times` (samples,) ms, all above 0.

    `archs` is how each network was written, `step` what the times were rounded to (ms, 0 where it is
    too fine to tell), `remarks` what was merged or rounded, in words.
    """

    archs: tuple[str, ...]
    rows: np.ndarray
    times: np.ndarray
    step: float
    remarks: tuple[str, ...]


def read_archs(table: str | Path | Table, space: SpaceTerms) -> tuple[list[str], np.ndarray]:
    """(texts, (networks, positions) integers) of the column arch of a table, in its order.

    InputError names the line whose text is no network of the space. The file may be gzipped.
    """
    known = table if isinstance(table, Table) else read_table(table, ("arch",))
    archs = list(known.columns[known.names.index("arch")])

    def place(index: int) -> str:
        return f"{known.source}, line {known.line(index)} (row {index + 1})"

    return archs, space.parse_many(archs, place)


def read_samples(path: str | Path, space: SpaceTerms) -> Samples:
    """Samples from a table with the columns arch, latency_ms; others are ignored.

    Several readings of one network all count; rows that are the same in both columns count once, and
    `remarks` says so. InputError names what is wrong and its line: a missing column, no rows, an
    unknown operation, a time that is not a number above 0, or several readings that are all of one
    network.
    """
    table = read_table(path, ("arch", "latency_ms"), rows="measured network")
    archs, rows = read_archs(table, space)
    texts = [row["latency_ms"] for row in table]
    times = np.array([row.milliseconds() for row in table])
    seen: dict[tuple[bytes, float], int] = {}
    for index, (row, time) in enumerate(zip(rows, times, strict=True)):
        seen.setdefault((row.tobytes(), float(time)), index)
    kept = list(seen.values())
    remarks = []
    if len(kept) < len(archs):
        remarks.append(
            f"{path}: {len(archs) - len(kept)} of {len(archs)} rows repeat another one, network and time; "
            "each counts once"
        )
    networks = len({row.tobytes() for row in rows})
    if networks == 1 and len(archs) > 1:
        raise InputError(
            f"{path}: all {len(archs)} rows are of one network, {archs[0]}, which says nothing on what "
            "another costs; expected different networks, such as random ones"
        )
    if networks < len(kept):
        remarks.append(
            f"{path}: {len(kept)} readings of {plural(networks, 'network')}; all of them count"
        )
    step = rounding([texts[index] for index in kept])
    if step == 1.0:
        remarks.append(f"{path}: whole milliseconds only; taken as rounded")
    return Samples(
        tuple(archs[index].strip() for index in kept), rows[kept], times[kept], step, tuple(remarks)
    )


def rounding(texts: Sequence[str]) -> float:
    """What times were rounded to, ms: 1, 0.1 or 0.01 where all have so few digits, else 0."""
    times = [float(t) for t in texts]
    for digits in (0, 1, 2):
        step = 10.0**-digits
        if all(t > step / 2 and math.isclose(t, round(t, digits), rel_tol=1e-9) for t in times):
            return step
    return 0.0


# ---- What became of a fit: the costs of pieces under each explanation, and how unsure they are.

CHUNK = 16384  # networks whose counts are in memory at a time
_DIGITS = 7
WIDEST = 14.0  # half an interval, as a logarithm: a factor of a million says nothing any more
TOO_MANY_FAR_OFF = 0.25  # of the samples far off: rather something wrong than a few absurd readings
_EXPECTED = "fit its samples again: lolat nas fit"


@dataclass(frozen=True)
class Costs:
    """What each piece of the space costs under one explanation of the samples.

    `assumption`: name of the `Pieces`; `weight` in the average; `noise`: relative scale of a reading's
    error; `costs_ms`: (pieces,).
    """

    assumption: str
    weight: float
    noise: float
    costs_ms: np.ndarray


@dataclass(frozen=True)
class NasModel:
    """Latency of any network of `space` on the device that was sampled.

    `archs`, `times_ms`: the samples; `step_ms`: what they were rounded to (0: not seen); `costs`: one
    for each explanation; `spreads_ms`: by assumption (directions, pieces), how unsure its costs are
    together, as standard deviations in directions that are independent of each other; `warnings`:
    what the user should know.
    """

    space: str
    archs: tuple[str, ...]
    times_ms: tuple[float, ...]
    step_ms: float
    costs: tuple[Costs, ...]
    spreads_ms: dict[str, np.ndarray]
    warnings: tuple[str, ...] = ()

    @property
    def terms(self) -> SpaceTerms:
        """The space's encoding and assumptions."""
        return space_terms(self.space)

    @property
    def noise(self) -> float:
        """Relative scale of a reading's error, averaged over the explanations."""
        return float(np.sqrt(sum(c.weight * c.noise**2 for c in self.costs)))

    def assumptions(self) -> list[tuple[str, float]]:
        """(words, weight) of each assumption on how the device runs networks, the likeliest first."""
        weights = [
            (pieces.words, float(sum(c.weight for c in self.costs if c.assumption == pieces.name)))
            for pieces in self.terms.assumptions
        ]
        return sorted(weights, key=lambda pair: -pair[1])

    def latency_ms(self, rows: np.ndarray) -> np.ndarray:
        """(networks,) latencies of (networks, positions) integers: the explanations' geometric mean."""
        logarithms = np.zeros(len(rows))
        for begin in range(0, len(rows), CHUNK):
            some = slice(begin, begin + CHUNK)
            known = self._counts(rows[some])
            for costs in self.costs:
                logarithms[some] += costs.weight * np.log(known[costs.assumption] @ costs.costs_ms)
        return np.exp(logarithms)

    def interval_ms(self, rows: np.ndarray, coverage: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """((networks,) low, (networks,) high) that hold a reading with probability `coverage`.

        As wide as explanations are apart, costs unsure (to first order) and readings noisy; with the
        tails of Student's t as in the fit.
        """
        from scipy.stats import t

        middle = self.latency_ms(rows)
        variance = np.zeros(len(rows))
        for begin in range(0, len(rows), CHUNK):
            some = slice(begin, begin + CHUNK)
            known = self._counts(rows[some])
            center = np.log(middle[some])
            moved = {
                name: np.sum((known[name] @ spread.T) ** 2, axis=1)
                for name, spread in self.spreads_ms.items()
            }
            for costs in self.costs:
                counts = known[costs.assumption]
                times = counts @ costs.costs_ms
                unsure = moved[costs.assumption] / times**2
                apart = (np.log(times) - center) ** 2
                variance[some] += costs.weight * (unsure + apart + costs.noise**2)
        variance += self.step_ms**2 / 12.0 / middle**2
        width = t.ppf(0.5 + coverage / 2.0, FREEDOM) * np.sqrt(variance)
        factor = np.exp(np.minimum(width, WIDEST))
        return middle / factor, middle * factor

    def predict(self, archs: Sequence[str]) -> np.ndarray:
        """(networks,) latencies in milliseconds of networks as text. InputError for what is none."""
        return self.latency_ms(self.terms.parse_many(archs))

    def to_section(self) -> dict[str, Any]:
        """The model as it stands in a device's file, under its space; see `_Section`."""
        samples = zip(self.archs, self.times_ms, strict=True)
        return {
            "samples": [{"arch": arch, "latency_ms": time} for arch, time in samples],
            "step_ms": self.step_ms,
            "costs": [{**vars(c), "costs_ms": _shortened(c.costs_ms)} for c in self.costs],
            "spreads_ms": {n: list(map(_shortened, s)) for n, s in self.spreads_ms.items()},
            "warnings": list(self.warnings),
        }

    def _counts(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Counts of the pieces, by assumption."""
        used = {c.assumption for c in self.costs}
        return {p.name: p.counts(rows) for p in self.terms.assumptions if p.name in used}


def fit(space: str, samples: Samples) -> NasModel:
    """The model of a space from samples of it; with fewer than ENOUGH_SAMPLES the prior says much of it."""
    found = explain(space_terms(space).assumptions, samples.rows, samples.times, samples.step)
    costs = tuple(
        Costs(e.pieces.name, e.weight, e.noise, e.pieces.costs(e.parameters)[0]) for e in found
    )
    times_ms = tuple(map(float, samples.times))
    warnings = (*samples.remarks, *_warnings(samples, found[0]))
    return NasModel(space, samples.archs, times_ms, samples.step, costs, spreads(found), warnings)


def _warnings(samples: Samples, best: Explanation) -> list[str]:
    """What a user should know of the samples, by the likeliest explanation."""
    told = []
    count = len(samples.times)
    if count < ENOUGH_SAMPLES:
        told.append(
            f"{plural(count, 'sample')}: with fewer than {ENOUGH_SAMPLES} the formula says much of the "
            "answer; measure more"
        )
    off = outlying(best, samples.rows, samples.times, samples.step)
    strange = int(np.sum(off != 1.0))
    if strange > TOO_MANY_FAR_OFF * count:
        told.append(
            f"{strange} of {count} samples lie far from what the others say: trust no answer before it "
            "is clear that all are milliseconds, of one device and one batch size"
        )
    for arch, time, factor in zip(samples.archs, samples.times, off, strict=True):
        if factor != 1.0:
            size, way = (factor, "longer") if factor > 1.0 else (1.0 / factor, "shorter")
            told.append(
                f"{arch}: {time:g} ms is {size:.3g} times {way} than the other samples say; it "
                "hardly counts: measure it again"
            )
    return told


def _shortened(values: np.ndarray) -> list[float]:
    """Floats with as many digits as mean something."""
    return [float(f"{value:.{_DIGITS}g}") for value in values]


# ---- The file.


MOST_MS, MOST_NOISE = 1e15, 100.0
"""Nothing takes longer, and sums are finite; a hundredth of such noise says nothing any more."""
_Cost = Annotated[float, msgspec.Meta(ge=0.0, le=MOST_MS)]
_Spread = Annotated[float, msgspec.Meta(ge=-MOST_MS, le=MOST_MS)]


class _Sample(msgspec.Struct):
    arch: str
    latency_ms: Annotated[float, msgspec.Meta(gt=0.0, le=MOST_MS)]


class _Costs(msgspec.Struct):
    assumption: str
    weight: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)]
    noise: Annotated[float, msgspec.Meta(ge=0.0, le=MOST_NOISE)]
    costs_ms: list[_Cost]


class _Section(msgspec.Struct):
    """What a device's file holds of a space."""

    samples: list[_Sample]
    step_ms: _Cost
    costs: Annotated[list[_Costs], msgspec.Meta(min_length=1)]
    spreads_ms: dict[str, Annotated[list[list[_Spread]], msgspec.Meta(min_length=1)]]
    warnings: list[str]


def write(path: AnyPath, model: NasModel, device: str | None = None) -> None:
    """Put the model into the device's file at `path`, which may be new; errors as of `put`."""
    put(path, "spaces", {model.space: model.to_section()}, device)


def from_document(document: Mapping[str, Any], source: str, space: str) -> NasModel:
    """What a valid model file's document knows of a space; `source` begins the message of a ModelFileError.

    That names what is wrong: no such space in it, or a field that is missing or of another shape.
    """
    spaces = document.get("spaces", {})
    if space not in spaces:
        raise lacks(document, source, space)
    if space not in SPACES:
        raise ModelFileError(
            f"{source}: a model of the space {space!r}; expected one of {', '.join(SPACES)}"
        )
    section = spaces[space]
    converted(section, _Section, source, f"$.spaces.{space}")
    pieces = {p.name: len(p.terms) for p in space_terms(space).assumptions}
    if fault := _fault(section, pieces):
        raise ModelFileError(f"{source}: its `spaces.{space}` is damaged ({fault}); {_EXPECTED}")
    return NasModel(
        space,
        tuple(s["arch"] for s in section["samples"]),
        tuple(float(s["latency_ms"]) for s in section["samples"]),
        float(section["step_ms"]),
        tuple(
            Costs(c["assumption"], c["weight"], c["noise"], np.array(c["costs_ms"], float))
            for c in section["costs"]
        ),
        {
            name: np.array(section["spreads_ms"][name], float)
            for name in dict.fromkeys(c["assumption"] for c in section["costs"])
        },
        tuple(section["warnings"]),
    )


def _fault(section: Mapping[str, Any], pieces: dict[str, int]) -> str:
    """What is wrong with a section of the right shape, "" for nothing; `pieces`: by assumption."""
    for costs in section["costs"]:
        name = costs["assumption"]
        if name not in pieces:
            return f"unknown assumption {name!r}"
        if len(costs["costs_ms"]) != pieces[name] or costs["costs_ms"][0] <= 0.0:
            return f"`costs_ms` are not {pieces[name]} numbers, the first above 0"
        directions = section["spreads_ms"].get(name)
        if directions is None or {len(each) for each in directions} != {pieces[name]}:
            return f"`spreads_ms` has no directions of {pieces[name]} numbers for {name!r}"
    if not math.isclose(sum(c["weight"] for c in section["costs"]), 1.0, rel_tol=1e-6):
        return "the weights of `costs` do not add up to 1"
    return ""
