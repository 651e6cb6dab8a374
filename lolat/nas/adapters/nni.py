"""NNI 3's `Profiler` of latency: for its filters and penalties over a PyTorch `ModelSpace`.

    found = profiler(model_space, model, input_size=224)
    strategy = RegularizedEvolution(model_filter=RangeProfilerFilter(found, max=15))

Some networks of the space are read once; then a sample is a look-up, and NNI's one-shot strategies can take
the expectation over a distribution of samples (`ExpectationProfilerPenalty`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.model import Model
from lolat.nas.adapters.milliseconds import Milliseconds, milliseconds
from lolat.nas.adapters.packages import needed
from lolat.nas.adapters.rows import row_of
from lolat.nas.space import Space
from lolat.predictors.two_regime import TwoRegime
from lolat.readers import read

INSTALL = "lolat[nni]"
WITHOUT = "; with tables=False the network of each sample is read on its own"


def profiler(
    model_space: Any,
    model: Model,
    input_size: Any = None,
    batch_size: int = 1,
    predictor: str | None = None,
    tables: bool = True,
) -> Any:
    """A `nni.nas.profiler.Profiler` whose `profile(sample)` is milliseconds on the device of `model`.

    `input_size`: see `lolat.read`. With `tables` (see `Space.from_factory`) it is an `ExpressionProfiler`,
    unless the formula is no sum (two-regime), and has the space as `space`; without, each new sample's
    network is read and predicted. InputError where there can be no tables, or no network can be read.
    """
    base = needed("nni.nas.profiler", "NNI 3", INSTALL)
    if not tables:
        return _of_networks(base, model_space, model, input_size, batch_size, predictor)
    space = as_space(model_space, input_size)
    times = milliseconds(space, model, batch_size, predictor)
    scorer = space.scorer(model, batch_size, predictor)
    linear = not isinstance(times.formula, TwoRegime)

    class LatencyProfiler(base.ExpressionProfiler if linear else base.Profiler):  # type: ignore[misc]
        """Latency of a sample by table look-ups."""

        def __init__(self) -> None:
            self.space = space
            if linear:
                self.expression = expression(times, model_space.simplify())

        def profile(self, sample: Mapping[str, Any]) -> float:
            """Milliseconds of a sample: label -> value."""
            return float(scorer.latency(row_of(space, sample)[None])[0])

    return LatencyProfiler()


def as_space(model_space: Any, input_size: Any = None) -> Space:
    """NNI's model space as a Space, whose positions are its labels; some of its networks are read.

    InputError where something else than values of a list is chosen, or the counts do not add up.
    """
    choices: dict[str, Sequence[Any]] = {}
    for label, mutable in model_space.simplify().items():
        values = getattr(mutable, "values", None)
        if not isinstance(values, (list, tuple)) or hasattr(mutable, "n_chosen"):
            raise InputError(
                f"{label!r} is a {type(mutable).__name__}, which tables cannot have; expected choices "
                f"from a list, one at a time{WITHOUT}"
            )
        choices[label] = tuple(values)
    name = type(model_space).__name__
    try:
        return Space.from_factory(
            lambda **sample: model_space.freeze(sample), choices, name=name, input_size=input_size
        )
    except InputError as error:
        raise InputError(f"{error}{WITHOUT}") from error


def expression(times: Milliseconds, mutables: Mapping[str, Any]) -> Any:
    """The latency as NNI's expression of `mutables`, by label: a sum of cases."""
    mutable = needed("nni.mutable", "NNI 3", INSTALL)

    def cases(positions: Sequence[int], table: np.ndarray) -> Any:
        if not positions:
            return float(table)
        position = times.positions[positions[0]]
        found = [cases(positions[1:], part) for part in table]
        return mutable.MutableExpression.switch_case(
            mutables[position.name], dict(zip(position.choices, found, strict=True))
        )

    total: Any = times.constant
    for positions, table in times.tables.items():
        total = total + cases(positions, table)
    return total


def _of_networks(
    base: Any,
    model_space: Any,
    model: Model,
    input_size: Any,
    batch_size: int,
    predictor: str | None,
) -> Any:
    """A profiler that reads the network of each sample, each once."""

    class NetworkProfiler(base.Profiler):
        """Latency of a sample from its own network."""

        def __init__(self) -> None:
            self.known: dict[Any, float] = {}

        def profile(self, sample: Mapping[str, Any]) -> float:
            """Milliseconds of a sample: label -> value."""
            key = tuple(sorted((label, repr(value)) for label, value in sample.items()))
            if key not in self.known:
                graph = read(model_space.freeze(sample), input_size)
                self.known[key] = model.predict(graph, batch_size, predictor).latency_ms
            return self.known[key]

    return NetworkProfiler()
