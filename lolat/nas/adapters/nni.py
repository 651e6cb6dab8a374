"""NNI 3's `Profiler` of latency: for its filters and penalties over a PyTorch `ModelSpace`.

    latency = profiler(model_space, model, input_size=224)
    strategy = RegularizedEvolution(model_filter=RangeProfilerFilter(latency, max=15))

Some networks of the space are read once; then a sample is a look-up, and NNI's one-shot strategies can take
the expectation over a distribution of samples (`ExpectationProfilerPenalty`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.errors import InputError
from lolat.fitting.predictors.kernels import Kernels
from lolat.graph import Graph
from lolat.graph.counts import COLUMNS
from lolat.model import Model, load
from lolat.model.prediction import operations_ms
from lolat.nas.adapters import needed
from lolat.nas.adapters.lookup_table import LookUpTable, look_up_table
from lolat.nas.space import Space, scorer_for
from lolat.nas.tables import BORDER, totals
from lolat.readers import read

EXTRA = "nni"
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
    base = needed("nni.nas.profiler", "NNI 3", EXTRA)
    known: dict[Any, float] = {}

    class NetworkProfiler(base.Profiler):  # type: ignore[name-defined]
        """Latency of a sample from its own network, each read once."""

        def __init__(self) -> None:
            pass

        def profile(self, sample: Mapping[str, Any]) -> float:
            """Milliseconds of a sample: label -> value."""
            key = tuple(sorted((label, repr(value)) for label, value in sample.items()))
            if key not in known:
                graph = read(model_space.freeze(sample), input_size)
                known[key] = model.predict(graph, batch_size, predictor).latency_ms
            return known[key]

    if not tables:
        return NetworkProfiler()
    space = as_space(model_space, input_size)
    times = look_up_table(space, model, batch_size, predictor)
    scorer = scorer_for(space, model, batch_size, predictor)
    linear = not times.breakpoint_ms

    class TableProfiler(base.ExpressionProfiler if linear else base.Profiler):  # type: ignore[misc]
        """Latency of a sample by table look-ups."""

        def __init__(self) -> None:
            self.space = space
            if linear:
                self.expression = expression(times, model_space.simplify())

        def profile(self, sample: Mapping[str, Any]) -> float:
            """Milliseconds of a sample: label -> value."""
            return float(scorer.latency(space.row(sample)[None])[0])

    return TableProfiler()


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


def expression(times: LookUpTable, mutables: Mapping[str, Any]) -> Any:
    """The latency as NNI's expression of `mutables`, by label: a sum of cases."""
    mutable = needed("nni.mutable", "NNI 3", EXTRA)

    def cases(positions: Sequence[int], table: np.ndarray) -> Any:
        if not positions:
            return float(table)
        position = times.positions[positions[0]]
        deeper = [cases(positions[1:], part) for part in table]
        return mutable.MutableExpression.switch_case(
            mutables[position.name], dict(zip(position.choices, deeper, strict=True))
        )

    total: Any = times.constant_ms
    for positions, table in times.tables.items():
        total = total + cases(positions, table)
    return total


# ---- A LoLat model as nn-Meter's predictor: for NNI 3's `NnMeterProfiler`, and other code that has one.
#
#     predictor = load_latency_predictor("local")
#     NnMeterProfiler(model_space, torch.randn(1, 3, 224, 224), predictor)     # nni.nas.profiler.pytorch
#
# NNI adds up the latencies of a network's modules. So a latency here is of the part alone, without the
# constant of one call of the framework (`call_ms`); what a network computes between its modules, an
# addition say, NNI does not ask for. `profiler` has both.

TYPES = ("torch", "onnx")


@dataclass(frozen=True)
class NnMeterPredictor:
    """What nn-Meter's `nnMeterPredictor` is to its callers: `predict` returns milliseconds.

    `whole`: what is predicted is a whole network, called once, and not one of the parts that are added
    up. `formula`: the name of the model's predictor, None for its default.
    """

    model: Model
    whole: bool = False
    formula: str | None = None

    @property
    def call_ms(self) -> float:
        """The constant of one call, which parts do not have."""
        return self.model.predictor(self.formula).constant

    def predict(
        self,
        model: Any,
        model_type: str = "torch",
        input_shape: Sequence[int] = (1, 3, 224, 224),
        apply_nni: bool = False,
    ) -> float:
        """Milliseconds of a network.

        `model`: a PyTorch module (`model_type` "torch"), or an ONNX model or the path of one ("onnx").
        `input_shape`: the batch size first; of an ONNX model only that is used, and its own where it is
        fixed (of a path: not). `apply_nni` is nn-Meter's and changes nothing. InputError for other types,
        NetworkError for what cannot be read.
        """
        if model_type not in TYPES:
            raise InputError(
                f"model_type is {model_type!r}; expected {' or '.join(map(repr, TYPES))}"
            )
        batch, *size = input_shape
        if model_type == "torch":
            return self.of_graph(read(model, tuple(size)), batch)
        is_path = isinstance(model, (str, os.PathLike))
        return self.of_graph(read(model), batch if is_path else _batch(model) or batch)

    def of_graph(self, graph: Graph, batch_size: int) -> float:
        """Milliseconds of a Graph at `batch_size`."""
        if self.whole:
            return self.model.predict(graph, batch_size, self.formula).latency_ms
        formula = self.model.predictor(self.formula)
        if isinstance(formula, Kernels):
            return operations_ms(formula, graph, batch_size)
        counts = totals([graph], batch_size, graph.name)[0]
        counts[BORDER] = 0  # of the part, which is not the whole
        columns = [COLUMNS.index(f) for f in formula.features]
        return float(counts[columns] @ np.asarray(formula.coefficients))


def load_latency_predictor(name: str, predictor_version: float | None = None) -> NnMeterPredictor:
    """nn-Meter's function of this name, for a LoLat model: a path, `local` or a model's name."""
    return NnMeterPredictor(load(name))


def nn_meter_profiler(model_space: Any, args: Any, model: Model, formula: str | None = None) -> Any:
    """NNI's `NnMeterProfiler` of a model space, with the call's constant, by LoLat's own reader.

    `args`: what the network is called with, as NNI takes it. NNI itself exports every module to ONNX, for
    which it needs onnxsim and a PyTorch before 2.9; here they are read as they are. It is an
    `ExpressionProfiler`. MissingPackageError without NNI or nn-Meter.
    """
    needed("nn_meter", "nn-Meter", "nni")
    hook = needed("nni.nas.profiler.pytorch.nn_meter", "NNI 3", "nni")
    predictor = NnMeterPredictor(model, formula=formula)

    class LatencyProfiler(hook.NnMeterProfiler):  # type: ignore[name-defined]
        """NNI's, but for the way from a module to its latency."""

        expression: Any

        def __init__(self) -> None:
            super().__init__(model_space, args, predictor)
            self.expression = predictor.call_ms + self.expression

        def exhaust_combinations(self, name: str, module: Any, shapes: Any) -> Any:
            """The latency of a module for every combination of what is chosen in it."""
            if name not in shapes:
                raise InputError(f"NNI found no input of module {name!r}; expected it to be called")
            inputs, _ = shapes[name]
            cases = []
            for condition, chosen, given in hook.combinations(module, inputs):
                sizes = [tuple(t.shape) for t in given]
                graph = read(chosen, sizes[0][1:] if len(sizes) == 1 else [s[1:] for s in sizes])
                cases.append((condition, predictor.of_graph(graph, sizes[0][0])))
            return hook.MutableExpression.case(cases)

    return LatencyProfiler()


def _batch(model: Any) -> int:
    """The batch size that an ONNX model is made for; 0 where it is open."""
    constants = {tensor.name for tensor in model.graph.initializer}
    first = next((v for v in model.graph.input if v.name not in constants), None)
    dims: Any = first.type.tensor_type.shape.dim if first is not None else ()
    return int(dims[0].dim_value) if len(dims) else 0
