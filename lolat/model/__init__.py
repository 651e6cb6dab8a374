"""A learned model: loaded from its JSON file, it answers without any framework.

What only networks need is imported when the first one is asked about, so that an answer from counts
comes fast in a new process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

from lolat.arrays import np
from lolat.errors import InputError, ModelFileError, arg, newer
from lolat.fitting.predictors import from_dict
from lolat.fitting.predictors.formula import Formula
from lolat.graph.counts import COLUMNS, FEATURES
from lolat.graph.modes import LAUNCHES
from lolat.units import shortened

if TYPE_CHECKING:
    from lolat.fitting.domain import Domain
    from lolat.graph import Graph
    from lolat.graph.analysis import Analysis
    from lolat.model.prediction import Knowledge, Prediction
    from lolat.model.state import State

Numbers = Any  # a number or an array of them
_NUMBERS = frozenset([int, float])
MOST_OF_A_COUNT = 1e100  # above it is a mistake, and the latency might not be a finite number


class Model:
    """What is known of a device: it predicts latencies where its file has those of inference."""

    def __init__(self, document: Mapping[str, Any], source: str = "model") -> None:
        """`document`: a valid model file's contents; `source`: where it is from, for messages."""
        self.document = document
        self.source = self.given = source  # `given`: as commands that messages name take it
        self.name: str = document["name"]
        self.device: str = document["device"]
        self.predictors: dict[str, Formula] = {
            name: formula
            for name, entry in document.get("predictors", {}).items()
            if (formula := from_dict(name, entry)) is not None
        }
        self.default: str = document.get("default", "")
        self._plans: dict[Any, tuple[Formula, list[int]]] = {}  # of `predict_counts`
        if "predictors" in document and self.default not in self.predictors:
            raise ModelFileError(
                f"{source}: its default predictor {self.default!r} is unknown to this LoLat (known: "
                f"{', '.join(sorted(self.predictors)) or 'none of them'}); "
                f"{newer()}"
            )

    @property
    def inference(self) -> Mapping[str, Any]:
        """The file, which has latencies of inference; ModelFileError that says what adds them where not."""
        if "predictors" not in self.document:
            from lolat.model.file import OF_INFERENCE, lacks

            raise lacks(self.document, self.source, OF_INFERENCE)
        return self.document

    @property
    def launch_option(self) -> str:
        """` --launch graph` for a command, of a GPU that launches otherwise than it was measured."""
        kernels = self.document.get("predictors", {}).get("kernels", {})
        asked, measured = (kernels.get(of, {}).get("launch") for of in ("mode", "host"))
        return f" --launch {asked}" if measured not in (None, asked) else ""

    @cached_property
    def knowledge(self) -> Knowledge:
        """What the file says besides its formulas."""
        from lolat.model.prediction import Knowledge

        return Knowledge(self.inference, self.given, self.state)

    @property
    def state(self) -> State | None:
        """How old it is and what its last check found; None of a model that was not learned here."""
        from lolat.model.state import state_of

        return state_of(self.document, self.source)

    @property
    def domain(self) -> Domain | None:
        """What was measured; None where the file does not say."""
        return self.knowledge.domain

    def predictor(self, name: str | None = None) -> Formula:
        """A predictor by name, or the default one.

        InputError for an unknown name, ModelFileError where the model knows no latencies of inference.
        """
        if not self.predictors:
            _ = self.inference
        chosen = self.predictors.get(self.default if name is None else name)
        if chosen is None:
            raise InputError(
                f"{self.source} has no predictor {name!r}; it has {', '.join(self.predictors)}"
            )
        return chosen

    def launched(self, launch: str | None) -> Self:
        """The same GPU with its operations launched in another way (`lolat.graph.modes.LAUNCHES`); None: as
        it is.

        InputError for no such way, and for a model that does not say what starting an operation takes.
        """
        if launch is None:
            return self
        kernels = self.inference["predictors"].get("kernels", {})
        if launch not in LAUNCHES or "host" not in kernels:
            why = "this model does not say what starting an operation takes, as those of GPUs do"
            ways = f"expected {', '.join(LAUNCHES)}"
            raise InputError(
                f"{arg('launch')} {shortened(str(launch))}: {ways if launch not in LAUNCHES else why}",
                code="no-launch",
            )
        kernels = {**kernels, "mode": {**kernels["mode"], "launch": launch}}
        predictors = {**self.document["predictors"], "kernels": kernels}
        made = type(self)({**self.document, "predictors": predictors}, self.source)
        made.given = self.given
        return made

    def predict(
        self,
        network: Graph | Analysis,
        batch_size: int = 1,
        predictor: str | None = None,
        coverage: float | None = None,
    ) -> Prediction:
        """Latency of one forward pass of `network`, block by block.

        `network`: a Graph (`lolat.read`), or what `lolat.graph.analysis.analyze` has found out of one.

        `coverage`: of the interval; None for 0.9, and where the model's points are too few for that
        there is no interval, and a warning. Raises InputError for a batch size that is not a whole
        number from 1, an unknown predictor or a given coverage that the points cannot give.
        """
        from lolat.model.prediction import predict_network

        formula = self.predictor(predictor)
        return predict_network(network, batch_size, formula, coverage, self.knowledge)

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
        `lolat.graph.counts.EXTRAS`); without any that tells kinds of operations apart, its form fitted on
        the six counts answers; with some the others are 0. A number must be finite and not negative; in an
        array a NaN gives a NaN.
        """
        names: tuple[str, ...] = ()
        if extra:
            if unknown := [name for name in extra if name not in COLUMNS]:
                raise InputError(f"no count {unknown[0]!r}; the counts are {', '.join(COLUMNS)}")
            names = tuple(name for name, value in extra.items() if value is not None)
        key = (traffic is None, weights is None, ops is None, names, predictor)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = self._plan(*key)
        formula, positions = plan
        given = (acts, inp, flops, traffic, weights, ops, *map(extra.get, names), 0.0)
        values = [given[i] for i in positions]
        if _NUMBERS.issuperset(map(type, values)) or all(
            isinstance(value, (int, float)) for value in values
        ):
            if not values or (min(values) >= 0.0 and max(values) < MOST_OF_A_COUNT):
                answer = formula.one(values)
                if answer == answer:  # no NaN among them
                    return float(answer)
            for name, value in zip(formula.features, values, strict=True):
                if not 0.0 <= value < MOST_OF_A_COUNT:
                    raise InputError(f"{name} is {value!r}: expected a number of 0 or more")
        return _many(formula, values)

    def _plan(
        self, traffic: bool, weights: bool, ops: bool, extra: tuple[str, ...], predictor: str | None
    ) -> tuple[Formula, list[int]]:
        """The formula that answers, and where its features stand among the six counts, `extra` and 0.

        `traffic`, `weights`, `ops`: whether each of them is missing.
        """
        rest = {"traffic": traffic, "weights": weights, "ops": ops}
        missing = [name for name, lacks in rest.items() if lacks]
        if 0 < len(missing) < len(rest):
            raise InputError(
                f"predict_counts() lacks {', '.join(missing)}; give only acts, inp, flops (the "
                "two-regime formula answers) or traffic, weights and ops too"
            )
        formula = self.predictor(predictor or "two-regime" if missing else predictor)
        formula = formula.of_counts(extra)
        if lacking := [name for name in formula.features if name in missing]:
            raise InputError(
                f"predictor {formula.name!r} needs {', '.join(lacking)} too; give all six counts"
            )
        places = {name: place for place, name in enumerate((*FEATURES, *extra))}
        return formula, [places.get(name, -1) for name in formula.features]


def load(path: str | os.PathLike[str]) -> Model:
    """Load a model: a path, `local` (the one learned last here) or a name (`lolat models`)."""
    return load_as(Model, path)


Made = TypeVar("Made")


def load_as(make: Callable[[dict[str, Any], str], Made], path: str | os.PathLike[str]) -> Made:
    """What `make` makes of a model file's contents and its name; `path` as of `load`."""
    from lolat.io.paths import find_model
    from lolat.model.file import read

    if not isinstance(path, (str, os.PathLike)):
        raise InputError(
            f"load() got a {type(path).__name__}; expected a path, 'local' or a model's name"
        )
    file = find_model(os.fspath(path))
    return make(read(file), str(file))


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
            f"{name} is {shortened(ascii(value))}: expected a number or an array of numbers of one type"
        )
    if column.ndim == 0 and not 0.0 <= float(column) < MOST_OF_A_COUNT:
        raise InputError(f"{name} is {shortened(ascii(value))}: expected a number of 0 or more")
    return column
