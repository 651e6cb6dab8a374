"""A learned model: loaded from its JSON file, it answers without any framework.

What only networks need is imported when the first one is asked about, so that an answer from counts
comes fast in a new process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from lolat.errors import InputError, ModelFileError
from lolat.fitting.predictors import from_dict
from lolat.fitting.predictors.extended import FAMILY, Extended
from lolat.fitting.predictors.formula import Formula
from lolat.graph.counts import COLUMNS, EXTRAS, FEATURES

if TYPE_CHECKING:
    from lolat.fitting.domain import Domain
    from lolat.graph import Graph
    from lolat.model.prediction import Prediction

Numbers = Any  # a number or an array of them


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
        self.cache: dict[Any, Any] = {}

    @cached_property
    def domain(self) -> Domain | None:
        """What was measured; None where the file does not say."""
        from lolat.fitting.domain import Domain

        return Domain.from_dict(self.document["domain"])

    def predictor(self, name: str | None = None) -> Formula:
        """A predictor by name, or the default one; InputError for an unknown name."""
        chosen = self.predictors.get(self.default if name is None else name)
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
        coverage: float | None = None,
    ) -> Prediction:
        """Latency of one forward pass of `network` (a Graph: `lolat.read`), block by block.

        `coverage`: of the interval; None for 0.9, and where the model's points are too few for that
        there is no interval, and a warning. Raises InputError for a batch size that is not a whole
        number from 1, an unknown predictor or a given coverage that the points cannot give.
        """
        from lolat.model.prediction import predict_network

        return predict_network(self, network, batch_size, predictor, coverage)

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
        `lolat.graph.counts.EXTRAS`); without any of them, or of those that tell kinds of operations
        apart where the formula does, its form fitted on the six counts answers; with some the others
        are 0. A number must be finite and not negative; in an array a NaN gives a
        NaN.
        """
        rest = {"traffic": traffic, "weights": weights, "ops": ops}
        missing = [n for n, v in rest.items() if v is None]
        given = {"acts": acts, "inp": inp, "flops": flops}
        if not missing:
            given.update(rest)
        elif len(missing) < len(rest):
            raise InputError(
                f"predict_counts() lacks {', '.join(missing)}; give only acts, inp, flops (the "
                "two-regime formula answers) or traffic, weights and ops too"
            )
        else:
            predictor = predictor or "two-regime"
        formula = self.predictor(predictor)
        if isinstance(formula, Extended) and formula.six is not None:
            told = {name for name, value in extra.items() if value is not None}
            if not told & (FAMILY.keys() & set(formula.features) or set(EXTRAS)):
                formula = formula.six
        for name, value in extra.items():
            if name not in COLUMNS:
                raise InputError(f"no count {name!r}; the counts are {', '.join(COLUMNS)}")
            if value is not None:
                given[name] = value
        lacking = [f for f in formula.features if f in FEATURES and f not in given]
        if lacking:
            raise InputError(
                f"predictor {formula.name!r} needs {', '.join(lacking)} too; give all six counts"
            )
        values = [given.get(f, 0.0) for f in formula.features]
        if all(isinstance(v, (int, float)) for v in values):
            for name, value in zip(formula.features, values, strict=True):
                if not 0.0 <= value < _MOST:
                    raise InputError(f"{name} is {value!r}: expected a number of 0 or more")
            return float(formula.one(values))
        return _many(formula, values)


def load(path: str | os.PathLike[str]) -> Model:
    """Load a model: a path, `local` (the one learned last here) or a name (`lolat models`)."""
    from lolat.model.file import read

    if not isinstance(path, (str, os.PathLike)):
        raise InputError(
            f"load() got a {type(path).__name__}; expected a path, 'local' or a model's name"
        )
    if os.path.isfile(path):
        return Model(read(path), os.fspath(path))
    from lolat.io.paths import find_model

    found = find_model(os.fspath(path))
    return Model(read(found), str(found))


_MOST = 1e300  # a count above this is a mistake, and its latency would not be a finite number


def _many(formula: Formula, values: list[Any]) -> Any:
    """Broadcast columns and apply the formula; InputError when they do not fit or are not numbers."""
    columns = [_column(n, v) for n, v in zip(formula.features, values, strict=True)]
    try:
        shape = np.broadcast_shapes(*(c.shape for c in columns))
    except ValueError as error:
        raise InputError(
            f"predict_counts() got arrays of different shapes "
            f"({', '.join(str(c.shape) for c in columns)}); expected the same or broadcastable"
        ) from error
    if not shape:
        return formula.one([float(c) for c in columns])
    flat = [float(c) if c.ndim == 0 else np.broadcast_to(c, shape).reshape(-1) for c in columns]
    return formula.many(flat, np.empty(math.prod(shape))).reshape(shape)


def _column(name: str, value: Any) -> np.ndarray:
    """A number or array as an array of numbers; a number must be finite and not negative."""
    try:
        column = np.asarray(value)
    except ValueError:  # nested lists of different lengths
        column = np.empty(0, object)
    if column.dtype.kind not in "iuf":
        raise InputError(
            f"{name} is {_shown(value)}: expected a number or an array of numbers of one type"
        )
    if column.ndim == 0 and not 0.0 <= float(column) < _MOST:
        raise InputError(f"{name} is {_shown(value)}: expected a number of 0 or more")
    return column


def _shown(value: Any) -> str:
    """A value of any type and size in a message."""
    text = ascii(value)
    return text if len(text) <= 60 else f"a {type(value).__name__} of {text[:40]}..."
