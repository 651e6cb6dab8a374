"""A learned model: loaded from its JSON file, it answers without any framework."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from lolat.blocks import cut
from lolat.counts import COLUMNS, FEATURES, count
from lolat.errors import InputError, ModelFileError
from lolat.graph import Graph, floating_types, kind_label
from lolat.intervals import BASE, COVERAGE, OUTSIDE_WIDENING, Domain, quantile
from lolat.prediction import Prediction
from lolat.predictors import from_dict
from lolat.predictors.formula import Formula

Numbers = Any  # a number or an array of them

FIRST_THREE = ("acts", "inp", "flops")
_BASE_COLUMNS = [COLUMNS.index(c) for c in BASE]


class Model:
    """Predicts latencies on the device that it was learned on."""

    def __init__(self, document: Mapping[str, Any], source: str = "model") -> None:
        """`document`: a valid model file's contents; `source`: where it is from, for messages."""
        self.document = document
        self.source = source
        self.name: str = document["name"]
        self.device: str = document["device"]
        found = {n: from_dict(n, d) for n, d in document["predictors"].items()}
        self.predictors: dict[str, Formula] = {n: p for n, p in found.items() if p is not None}
        self.default: str = document["default"]
        if self.default not in self.predictors:
            raise ModelFileError(
                f"{source}: its default predictor {self.default!r} is unknown to this LoLat (known: "
                f"{', '.join(sorted(self.predictors)) or 'none of them'}); upgrade with: "
                "pip install --upgrade lolat"
            )
        self._widths: dict[tuple[str, float], float | None] = {}

    @cached_property
    def domain(self) -> Domain | None:
        """What was measured; None where the file does not say."""
        return Domain.from_dict(self.document["domain"])

    def predictor(self, name: str | None = None) -> Formula:
        """A predictor by name, or the default one; InputError for an unknown name."""
        chosen = self.predictors.get(name or self.default)
        if chosen is None:
            raise InputError(
                f"{self.source} has no predictor {name!r}; it has {', '.join(self.predictors)}"
            )
        return chosen

    def predict(
        self,
        network: Graph,
        batch_size: int = 1,
        predictor: str | None = None,
        coverage: float = COVERAGE,
    ) -> Prediction:
        """Latency of one forward pass of `network` (a Graph: `lolat.read`), block by block.

        Raises InputError for a batch size that is not a whole number from 1, an unknown predictor or
        a coverage that the model's points cannot give.
        """
        if not isinstance(network, Graph):
            raise InputError(
                f"predict() got a {type(network).__name__}; expected a Graph: lolat.read(network)"
            )
        check_batch_size(batch_size)
        formula = self.predictor(predictor)
        names, fixed, scaled = _block_counts(network)
        counts = fixed + batch_size * scaled
        terms, call_ms = formula.shares(counts[:, [COLUMNS.index(f) for f in formula.features]])
        latency = float(terms.sum()) + call_ms
        remarks = self._outside(network, counts, names, batch_size)
        half = self._half_width(formula.name, coverage)
        interval = None
        if half is not None:
            half *= OUTSIDE_WIDENING if remarks else 1.0
            interval = (latency * math.exp(-half), latency * math.exp(half))
        return Prediction(
            network=network.name,
            batch_size=batch_size,
            predictor=formula.name,
            latency_ms=latency,
            interval_ms=interval,
            coverage=None if interval is None else coverage,
            in_domain=None if remarks is None else not remarks,
            warnings=(*count(network).warnings, *(remarks or ())),
            names=names,
            features=formula.features,
            block_counts=counts,
            block_terms=terms,
            call_ms=call_ms,
        )

    def predict_counts(
        self,
        acts: Numbers,
        inp: Numbers,
        flops: Numbers,
        traffic: Numbers = None,
        weights: Numbers = None,
        ops: Numbers = None,
        predictor: str | None = None,
        **extra: Numbers,
    ) -> Any:
        """Latency in ms from counts: numbers in, a float out; arrays (broadcast) in, an array out.

        With only the first three the two-regime formula answers, with all six the default; some of
        the others is an InputError. `extra`: further counts of the model's formula (see
        `lolat.counts.EXTRAS`), 0 where not given.
        """
        rest = (traffic, weights, ops)
        given = {"acts": acts, "inp": inp, "flops": flops, **extra}
        if all(v is None for v in rest):
            formula = self.predictor(predictor or "two-regime")
        elif any(v is None for v in rest):
            missing = [n for n, v in zip(FEATURES[3:], rest, strict=True) if v is None]
            raise InputError(
                f"predict_counts() lacks {', '.join(missing)}; give only acts, inp, flops (the "
                "two-regime formula answers) or traffic, weights and ops too"
            )
        else:
            given |= {"traffic": traffic, "weights": weights, "ops": ops}
            formula = self.predictor(predictor)
        lacking = [f for f in formula.features if f in FEATURES and f not in given]
        if lacking:
            raise InputError(
                f"predictor {formula.name!r} needs {', '.join(lacking)} too; give all six counts"
            )
        unknown = extra.keys() - set(COLUMNS)
        if unknown:
            raise InputError(f"no count {min(unknown)!r}; the counts are {', '.join(COLUMNS)}")
        values = [given.get(f, 0.0) for f in formula.features]
        if all(isinstance(v, (int, float)) for v in values):
            return formula.one(values)
        return _many(formula, values)

    def _half_width(self, predictor: str, coverage: float) -> float | None:
        """Half the width of the interval, as a logarithm; None where there are no residuals."""
        key = (predictor, coverage)
        if key not in self._widths:
            residuals = self.document["predictors"][predictor].get("residuals")
            self._widths[key] = quantile(residuals, coverage) if residuals else None
        return self._widths[key]

    def _outside(
        self, network: Graph, counts: np.ndarray, names: tuple[str, ...], batch_size: int
    ) -> list[str] | None:
        """Remarks on what lies outside the measured domain; None when that is not known."""
        if self.domain is None:
            return None
        key = ("outside", id(self), batch_size)
        found = network.cache.get(key)  # type: ignore[call-overload]
        if found is None:
            kinds = [kind_label(o) for o in network.operations if _costs(network, o)]
            found = self.domain.outside(counts[:, _BASE_COLUMNS], names)
            found += self.domain.unmeasured(kinds, list(set(floating_types(network))))
            network.cache[key] = found  # type: ignore[index]
        return found


def load(path: str | os.PathLike[str]) -> Model:
    """Load a model: a path, `local` (the one learned last here) or a name (`lolat models`)."""
    from lolat.model_file import read

    if os.path.isfile(path):
        return Model(read(path), os.fspath(path))
    from lolat.places import find_model

    found = find_model(os.fspath(path))
    return Model(read(found), str(found))


def check_batch_size(batch_size: Any) -> None:
    """InputError unless `batch_size` is a whole number from 1."""
    good = isinstance(batch_size, (int, np.integer)) and not isinstance(batch_size, bool)
    if not good or batch_size < 1:
        raise InputError(f"batch size {batch_size!r}: expected a whole number from 1")


def _costs(network: Graph, operation: Any) -> bool:
    from lolat.counts import FREE

    return operation.kind not in FREE


def _block_counts(network: Graph) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Names, fixed and scaled counts (blocks, COLUMNS) of a network's blocks; kept with it."""
    found = network.cache.get("block_counts")
    if found is None:
        blocks = cut(network)
        counts = count(network)
        owner = np.empty(len(network.operations), np.intp)
        for i, block in enumerate(blocks):
            owner[list(block.operations)] = i
        fixed = np.zeros((len(blocks), len(COLUMNS)), np.int64)
        scaled = np.zeros_like(fixed)
        np.add.at(fixed, owner, counts.fixed)
        np.add.at(scaled, owner, counts.scaled)
        found = network.cache["block_counts"] = (tuple(b.name for b in blocks), fixed, scaled)
    return found


def _many(formula: Formula, values: list[Any]) -> np.ndarray:
    """Broadcast columns and apply the formula; InputError when they do not fit or are not numbers."""
    try:
        columns = [np.asarray(v) for v in values]
        shape = np.broadcast_shapes(*(c.shape for c in columns))
    except ValueError as error:
        raise InputError(
            f"predict_counts() got arrays of different shapes "
            f"({', '.join(str(np.shape(v)) for v in values)}); expected the same or broadcastable"
        ) from error
    for column in columns:
        if column.dtype.kind not in "iuf":
            raise InputError(f"predict_counts() got {column.dtype} values; expected numbers")
    flat = [float(c) if c.ndim == 0 else np.broadcast_to(c, shape).reshape(-1) for c in columns]
    return formula.many(flat, np.empty(math.prod(shape))).reshape(shape)
