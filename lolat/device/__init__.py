"""A device: its file, its predictors, and the latency of a network on it.

Modules that only networks need are imported with the first network, so that an answer from counts comes
fast in a new process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from lolat.device.from_counts import MOST_OF_A_COUNT, latencies_ms
from lolat.device.from_counts import plan as plan_of
from lolat.device.predictors import from_dict
from lolat.errors import InputError, ModelFileError, arg
from lolat.io.results import Result, dict_of

if TYPE_CHECKING:
    from lolat.device.domain import Domain
    from lolat.device.file import State
    from lolat.device.prediction import Prediction
    from lolat.device.predictors.formula import Formula
    from lolat.graph import Graph
    from lolat.graph.analysis import Analysis

Numbers = Any  # a number or an array of them
_NUMBERS = frozenset([int, float])


class Device(Result):
    """A device as its file knows it: it predicts the latency of networks that were read.

    `label`: the path or name that it was loaded by, as a command takes it; `source`: its file.
    """

    def __init__(self, document: Mapping[str, Any], source: str = "model") -> None:
        """`document`: a valid model file's contents; `source`: its file, for messages."""
        self.document = document
        self.source = self.label = source
        self.name: str = document["name"]
        self.device: str = document["device"]
        self.predictors: dict[str, Formula] = {
            name: formula
            for name, entry in document.get("predictors", {}).items()
            if (formula := from_dict(name, entry)) is not None
        }
        self.default: str = document.get("default", "")
        self._plans: dict[Any, tuple[Formula, list[int]]] = {}  # of `predict_counts`
        self._in_mode: dict[Any, Self] = {}  # of `run_as`
        self.asked_precision: str | None = None  # of `run_as`
        self.asked_launch: str | None = None
        if "predictors" in document and self.default not in self.predictors:
            raise ModelFileError(
                f"{source}: its default predictor {self.default!r} is unknown to this LoLat (known: "
                f"{', '.join(sorted(self.predictors)) or 'none of them'}); get a newer LoLat"
            )

    # ---- What its file says

    def words(self) -> str:
        """The device, when and with what it was learned, and how far off its default formula is."""
        from lolat.device.summary import words_of

        return words_of(self)

    def to_dict(self) -> dict[str, Any]:
        """What the file says of its device, without its points: a `lolat.device.summary.ModelSummary`."""
        from lolat.device.summary import summary_of

        return dict_of(summary_of(self))

    @property
    def inference(self) -> Mapping[str, Any]:
        """The file, which has latencies of inference; ModelFileError that says what adds them where not."""
        if "predictors" not in self.document:
            from lolat.device.file import OF_INFERENCE, lacks

            raise lacks(self.document, self.source, OF_INFERENCE)
        return self.document

    @cached_property
    def state(self) -> State | None:
        """How old it is and what its last check found; None of a model that was not learned here."""
        from lolat.device.file import state_of

        return state_of(self.document, self.source)

    @cached_property
    def domain(self) -> Domain:
        """Where its points lie."""
        from msgspec import convert

        from lolat.device.domain import Domain

        return convert(self.inference["domain"], Domain)

    def predictor(self, name: str | None = None) -> Formula:
        """A predictor by name, or the default one.

        InputError for an unknown name, ModelFileError where the model knows no latencies of inference.
        """
        _ = self.inference
        chosen = self.predictors.get(self.default if name is None else name)
        if chosen is None:
            raise InputError(
                f"{arg('predictor')} {name!r}: {self.source} has {', '.join(self.predictors)}"
            )
        return chosen

    def run_as(self, precision: str | None = None, launch: str | None = None) -> Self:
        """The same device, running networks in another way.

        `precision`: fp32, tf32, amp, fp16 or bf16; a GPU that was not measured in it answers by its data
        sheet, with a wider interval. `launch`: eager, compiled or graph. None: as it was measured.
        InputError for what the device does not have or nothing tells.
        """
        from lolat.device.running import run_as

        if (precision, launch) not in self._in_mode:
            self._in_mode[precision, launch] = run_as(self, precision, launch)
        return self._in_mode[precision, launch]

    def _as_written(self, network: Graph | Analysis) -> Self:
        """The device in the precision of a network that is in half itself, as after `module.half()`; as it
        is for all others. InputError where another precision was asked for.
        """
        from lolat.device import running
        from lolat.graph.analysis import analyze

        return running.as_written(self, analyze(network).graph)

    # ---- The latency of a network

    @property
    def answer_type(self) -> type[Prediction]:
        """The class of its predictions."""
        from lolat.device.prediction import Prediction

        return Prediction

    def predict(
        self,
        network: Graph | Analysis,
        batch_size: int | str = 1,
        predictor: str | None = None,
        coverage: float | None = None,
        *,
        max_ms: float | None = None,
        sure: bool = False,
    ) -> Prediction:
        """Latency of one forward pass of a network that was read; see `lolat.api.model.Model.predict`.

        Raises InputError for a batch size, predictor or coverage that cannot be.
        """
        from lolat.device.predicting import predict_read

        self.check(predictor, coverage)
        device = self._as_written(network)
        return predict_read(device, network, batch_size, predictor, coverage, max_ms, sure)

    def predict_counts(
        self,
        acts: Numbers,
        inp: Numbers,
        flops: Numbers,
        traffic: Numbers = None,
        weights: Numbers = None,
        ops: Numbers = None,
        predictor: str | None = None,
    ) -> Any:
        """Latency in ms from counts: numbers in, a float out; arrays (broadcast) in, an array out.

        With only the first three the two-regime formula answers, with all six the default; some of
        the others is an InputError. The default answers by its form that is fitted on the six counts. A
        number must be finite and not negative; in an array a NaN gives a NaN.
        """
        key = (traffic is None, weights is None, ops is None, predictor)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plans[key] = plan_of(self, *key)
        formula, positions = plan
        every = (acts, inp, flops, traffic, weights, ops, 0.0)
        values = [every[i] for i in positions]
        # The common case first, without a loop in Python.
        if _NUMBERS.issuperset(map(type, values)) and (
            not values or (min(values) >= 0.0 and max(values) < MOST_OF_A_COUNT)
        ):
            answer = formula.one(values)
            if answer == answer:  # no NaN among them
                return float(answer)
        return latencies_ms(formula, values)

    def check(self, predictor: str | None, coverage: float | None) -> None:
        """InputError for what the model cannot answer, before a framework starts to read a network."""
        formula = self.predictor(predictor)
        if coverage is not None:
            formula.half_width(1.0, coverage)


def load(path: str | os.PathLike[str]) -> Device:
    """Load a device: a JSON file, "local" or the name of a bundled one. ModelFileError where there is none
    or the file is damaged.
    """
    from lolat.device.file import read
    from lolat.io.paths import find_model

    file = find_model(os.fspath(path))
    device = Device(read(file), str(file))
    device.label = os.fspath(path)
    return device
