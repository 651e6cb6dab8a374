"""The precisions of a device compared for one network."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lolat.device.execution_modes import TIED, in_precisions
from lolat.device.predicting import predict
from lolat.device.predictors.roofline import Roofline
from lolat.device.question import Question
from lolat.device.ranking import sample_ms
from lolat.errors import InputError, arg
from lolat.graph.analysis import analyze
from lolat.graph.modes import BFLOAT16, FLOAT16, own_dtype
from lolat.parameters import PRECISIONS

if TYPE_CHECKING:
    from lolat.device.device import Device
    from lolat.device.prediction import Prediction
    from lolat.graph import Graph
    from lolat.graph.analysis import Analysis

A = TypeVar("A")
D = TypeVar("D", bound="Device")


def in_fastest(model: Device, network: Graph | Analysis, question: Question) -> Prediction:
    """The prediction of a device in its fastest precision, or in that of a network in half precision.

    Of precisions within TIED it is the one that needs the least memory.
    """
    found = in_each_precision(model, network, partial(predict, network=network, question=question))
    least = min(map(sample_ms, found))
    tied = [p for p in found if sample_ms(p) <= TIED * least]
    # Of equals the asked one.
    return min(reversed(tied), key=lambda p: p.memory.total_bytes)


def faster_precision(prediction: Prediction) -> Prediction | None:
    """The prediction of a GPU in its fastest precision; None if none is faster by more than TIED."""
    query = prediction.query
    if prediction.predictor != Roofline.name:
        return None
    question = Question(prediction.batch_size, coverage=query.coverage)
    best = in_fastest(query.model, query.graph, question)
    return best if TIED * sample_ms(best) < sample_ms(prediction) else None


def remedy_words(better: Prediction, words: str) -> str:
    """A remedy: the `words` on a prediction in the fastest precision, and the option."""
    return f"in {better.precision} {words} ({arg('precision')} best)"


def in_each_precision(model: D, network: Graph | Analysis, ask: Callable[[D], A]) -> list[A]:
    """The answers of a device as it was measured and in each precision that it has, with the layout that
    was asked for; of a network that is in half precision itself, the one in that.

    InputError if there is none.
    """
    if own_dtype(analyze(network).graph) in (FLOAT16, BFLOAT16):
        return [ask(model)]
    found: list[A] = []
    refused: InputError | None = None
    for device in in_precisions(model, PRECISIONS[1:]):  # all but float32
        try:
            found.append(ask(device))
        except InputError as error:
            if error.code not in ("no-precision", "no-layout"):
                raise
            refused = error
    if not found and refused is not None:
        raise refused
    return found
