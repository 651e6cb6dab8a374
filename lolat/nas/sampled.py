"""Latencies of a space from a few measured networks, as a device's file has them under `spaces`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from lolat.device import Device
from lolat.device.file import lacks, put
from lolat.device.predicting import as_whole
from lolat.errors import InputError, ModelFileError, arg
from lolat.io.documents import converted
from lolat.io.progress import Progress
from lolat.io.writing import AnyPath
from lolat.nas.pieces import FREEDOM, Pieces
from lolat.nas.scorer import Scorer
from lolat.units import plural

if TYPE_CHECKING:
    from lolat.nas.space import Space

SAMPLES = "samples"


class Sample(msgspec.Struct, frozen=True):
    """A measured network."""

    arch: str
    latency_ms: float


class Costs(msgspec.Struct, frozen=True):
    """The cost of each piece of the space, ms, under one explanation of the samples.

    `assumption`: name of the `Pieces`; `weight` in the average; `noise`: relative scale of a reading's
    error.
    """

    assumption: str
    weight: float
    noise: float
    costs_ms: list[Annotated[float, msgspec.Meta(ge=0.0)]]


class Section(msgspec.Struct, frozen=True):
    """A device's knowledge of a space: the samples, and their explanations.

    `step_ms`: to which times were rounded (0: not seen); `spreads_ms`: by assumption (directions, pieces),
    the uncertainty of the costs, as standard deviations in independent directions. `choices`: the space's
    `fingerprint`, "" in files before version 0.1.
    """

    samples: list[Sample]
    step_ms: float
    costs: Annotated[list[Costs], msgspec.Meta(min_length=1)]
    spreads_ms: dict[str, Annotated[list[list[float]], msgspec.Meta(min_length=1)]]
    warnings: list[str]
    choices: str = ""


CHUNK = 16384  # networks whose counts are in memory at a time
SLACK = 1.1  # times faster or slower than all samples, and still like them
WIDEST = 14.0  # half an interval, as a logarithm: a factor of a million is no information


@dataclass(frozen=True, kw_only=True, repr=False)
class NasModel(Scorer):
    """Latency of any network of `space` on the device that was sampled, at the samples' batch size."""

    space: Space
    section: Section

    @classmethod
    def of(cls, space: Space, section: Section) -> NasModel:
        """The model of a section."""
        source = f"{plural(len(section.samples), 'measured network')} of {space.name}"
        return cls(
            grid=space.grid, batch_size=1, predictor=SAMPLES, source=source, space=space, section=section
        )  # fmt: skip

    @cached_property
    def pieces(self) -> dict[str, Pieces]:
        """The assumptions of the space by name."""
        return {pieces.name: pieces for pieces in self.space.assumptions()}

    def _counts(self, rows: np.ndarray) -> Iterator[tuple[slice, dict[str, np.ndarray]]]:
        """Some networks, and how often each has each piece, by assumption."""
        used = {costs.assumption for costs in self.section.costs}
        for begin in range(0, len(rows), CHUNK):
            some = slice(begin, begin + CHUNK)
            yield some, {name: self.pieces[name].counts(rows[some]) for name in used}

    def latency(self, candidates: Any) -> np.ndarray:
        """See `Scorer`: the explanations' geometric mean."""
        rows = self.grid.checked(candidates)
        logarithms = np.zeros(len(rows))
        for some, counts in self._counts(rows):
            for costs in self.section.costs:
                times = counts[costs.assumption] @ np.array(costs.costs_ms)
                logarithms[some] += costs.weight * np.log(times)
        return np.exp(logarithms)

    def interval(self, candidates: Any, coverage: float) -> tuple[np.ndarray, np.ndarray]:
        """((n,) low, (n,) high) that hold a reading with probability `coverage`.

        The variance of a logarithm is that between explanations, of the costs (to first order), and of a
        reading, with the tails of Student's t as in the fit.
        """
        from scipy.stats import t

        middle, section = self.latency(candidates), self.section
        rows = np.asarray(candidates)
        variance = np.zeros(len(rows))
        for some, counts in self._counts(rows):
            squares = {
                name: np.sum((counts[name] @ np.transpose(section.spreads_ms[name])) ** 2, axis=1)
                for name in counts
            }
            for costs in section.costs:
                times = counts[costs.assumption] @ np.array(costs.costs_ms)
                of_costs = squares[costs.assumption] / times**2
                between = (np.log(times) - np.log(middle[some])) ** 2
                variance[some] += costs.weight * (of_costs + between + costs.noise**2)
        variance += section.step_ms**2 / 12.0 / middle**2
        width = t.ppf(0.5 + coverage / 2.0, FREEDOM) * np.sqrt(variance)
        factor = np.exp(np.minimum(width, WIDEST))
        return middle / factor, middle * factor

    def inside(self, latencies: np.ndarray) -> np.ndarray:
        """(n,) whether each latency is no shorter than the fastest sample, and no longer than the slowest,
        but for SLACK: what is faster than all that was measured is known badly.
        """
        measured = [sample.latency_ms for sample in self.section.samples]
        return (latencies >= min(measured) / SLACK) & (latencies <= max(measured) * SLACK)

    def predict(self, archs: Sequence[str]) -> np.ndarray:
        """(networks,) latencies in milliseconds of networks as text. InputError for another text."""
        return self.latency(self.space.parse(archs))

    @property
    def warnings(self) -> list[str]:
        """What a user should know."""
        return self.section.warnings

    @property
    def noise(self) -> float:
        """Relative scale of a reading's error, averaged over the explanations."""
        return math.sqrt(sum(c.weight * c.noise**2 for c in self.section.costs))

    @property
    def typical_error(self) -> float:
        """The relative error within which half of the space's networks should stay."""
        low, high = self.interval(self.space.sample(2000), 0.5)
        return float(np.median(np.sqrt(high / low)) - 1.0)

    def write(self, path: AnyPath, device: str | None = None) -> None:
        """Put the model into the device's file at `path`, which may be new; errors as of `put`."""
        put(path, {"spaces": {self.space.name: msgspec.to_builtins(self.section)}}, device)


def from_model(model: Device, space: Space) -> NasModel:
    """The fitted model of `space` in a device's file; ModelFileError for none, and a damaged one."""
    spaces = model.document.get("spaces", {})
    if space.name not in spaces:
        raise lacks(model.document, model.source, space.name)
    place = f"$.spaces.{space.name}"
    section: Section = converted(spaces[space.name], Section, model.source, place)
    if section.choices not in ("", space.fingerprint):
        raise ModelFileError(
            f"{model.source}: its samples of {space.name} were measured before its choices or networks "
            "changed; expected the space as it was, or samples of this one: lolat nas fit",
            code="other-choices",
        )
    fitted = NasModel.of(space, section)
    for costs in section.costs:
        pieces = fitted.pieces.get(costs.assumption)
        if pieces is None or len(costs.costs_ms) != len(pieces.terms):
            raise ModelFileError(
                f"{model.source}: its `spaces.{space.name}` has costs of another space; fit its samples "
                "again: lolat nas fit"
            )
    return fitted


def scorer_for(
    space: Space,
    model: Device,
    batch_size: int = 1,
    predictor: str | None = None,
    progress: Progress | None = None,
) -> Scorer:
    """See `Space.scorer`."""
    sampled = space.name in model.document.get("spaces", {})
    asked = model.asked_precision or model.asked_launch  # samples are of one way to run
    by_samples = sampled and predictor is None and batch_size == 1 and not asked
    if not by_samples:
        if not sampled and not model.predictors:
            raise lacks(model.document, model.source, space.name)
        if sampled and not model.predictors:
            raise samples_only("batch_size" if predictor is None else "predictor", model)
        model.predictor(predictor)
        as_whole(batch_size)
    space.prepare(progress)
    return (
        from_model(model, space) if by_samples else space.by_formula(model, batch_size, predictor)
    )


def samples_only(argument: str, model: Device) -> InputError:
    """The error where an argument is given that samples of a space do not answer for."""
    return InputError(
        f"{arg(argument)}: {model.source} knows networks measured at batch size 1 alone; leave "
        f"{arg(argument)} out, or add latencies of inference (lolat learn)"
    )
