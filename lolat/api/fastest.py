"""The precisions of a device compared for one network: the fastest, the largest within a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from lolat.device.execution_modes import TIED, in_precisions
from lolat.device.predicting import predict
from lolat.device.ranking import sample_ms
from lolat.errors import AnswerIsNo, InputError
from lolat.graph.analysis import analyze
from lolat.graph.modes import BFLOAT16, FLOAT16, own_dtype
from lolat.parameters import PRECISIONS

if TYPE_CHECKING:
    from lolat.api.model import Model
    from lolat.device.attribution import AtSize
    from lolat.device.budget import BudgetAnswer
    from lolat.device.prediction import Prediction
    from lolat.device.question import Question
    from lolat.graph import Graph
    from lolat.graph.analysis import Analysis

A = TypeVar("A")


def in_fastest(model: Model, network: Graph | Analysis, question: Question) -> Prediction:
    """The prediction of a device in its fastest precision, or in that of a network in half precision.

    Of precisions within TIED it is the one that needs the least memory.
    """
    found = _in_each_precision(model, network, partial(predict, network=network, question=question))
    least = min(map(sample_ms, found))
    tied = [p for p in found if sample_ms(p) <= TIED * least]
    # Of equals the asked one.
    return min(reversed(tied), key=lambda p: p.memory.total_bytes)


def largest_within(
    model: Model, network: Graph | Analysis, vary: str, question: Question, at_size: AtSize | None
) -> BudgetAnswer:
    """The largest answer of `budget` among the precisions of a device; of equal ones the fastest.

    AnswerIsNo of the precision that takes the least time, if none has an answer.
    """
    from lolat.device.budget import BudgetAnswer, budget

    def ask(device: Model) -> BudgetAnswer | AnswerIsNo:
        try:
            return budget(device, network, vary, question, at_size)
        except AnswerIsNo as no:
            return no

    found = _in_each_precision(model, network, ask)
    kept = [answer for answer in found if isinstance(answer, BudgetAnswer)]
    if not kept:
        noes = [no for no in found if isinstance(no, AnswerIsNo)]
        raise min(noes, key=lambda no: no.data.get("enough_ms", math.inf))
    return max(
        reversed(kept), key=lambda answer: (answer.best.value, -answer.best.prediction.latency_ms)
    )


def _in_each_precision(
    model: Model, network: Graph | Analysis, ask: Callable[[Model], A]
) -> list[A]:
    """The answers of a device as it was measured and in each precision that it has; of a network that is
    in half precision itself, the one in that.

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
            if error.code != "no-precision":
                raise
            refused = error
    if not found and refused is not None:
        raise refused
    return found
