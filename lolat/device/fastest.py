"""The precisions, launches and layouts of a device compared for one network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lolat.device.execution_modes import TIED, in_precisions
from lolat.device.predicting import predict
from lolat.device.predictors.roofline import Roofline
from lolat.device.question import Question
from lolat.device.ranking import sample_ms
from lolat.errors import InputError, arg
from lolat.graph.analysis import analyze
from lolat.graph.modes import BFLOAT16, COMPILED, EAGER, FLOAT16, GRAPH, run_dtype
from lolat.parameters import PRECISIONS
from lolat.units import milliseconds

if TYPE_CHECKING:
    from lolat.device.device import Device
    from lolat.device.prediction import Prediction
    from lolat.graph import Graph
    from lolat.graph.analysis import Analysis

A = TypeVar("A")
D = TypeVar("D", bound="Device")
SHORTER = 0.9
"""Another launch or layout, or no checkpointing, is offered if it takes less than this share of the time or
price."""
OTHER_MODES: dict[str, dict[str, Any]] = {
    "--channels-last": {"channels_last": True},
    "--launch compiled": {"launch": COMPILED},
    "--launch graph": {"launch": GRAPH},
}
"""Option -> the arguments of `Device.run_as`; of one option, the value that takes the user least work comes
first."""


def in_fastest(model: Device, network: Graph | Analysis, question: Question) -> Prediction:
    """The prediction of a device in its fastest precision, or in that of a network in half precision.

    Of precisions within TIED it is the one that needs the least memory.
    """
    found = in_each_precision(model, network, partial(predict, network=network, question=question))
    least = min(map(sample_ms, found))
    tied = [p for p in found if sample_ms(p) <= TIED * least]
    # Of equals the asked one.
    best = min(reversed(tied), key=lambda p: p.memory.total_bytes)
    run = _called_as(model, best.query.model)
    return replace(best, query=replace(best.query, model=run, fastest_of=model))


def _called_as(model: D, run: D) -> D:
    """The device `run` under the names of `model`."""
    made = copy(run)
    made.label, made.row = model.label, model.row
    return made


def faster_precision(prediction: Prediction) -> Prediction | None:
    """The prediction of a GPU in its fastest precision; None if none is faster by more than TIED."""
    query = prediction.query
    if prediction.predictor != Roofline.name:
        return None
    question = Question(prediction.batch_size, coverage=query.coverage)
    best = in_fastest(query.model, query.graph, question)
    return best if TIED * sample_ms(best) < sample_ms(prediction) else None


def precision_words(prediction: Prediction, at: str = "") -> str:
    """A remark that a GPU has a faster precision, if none was asked for; else "".

    `at`: words on the batch size, behind the time.
    """
    query = prediction.query
    if prediction.launch is None or query.model.asked.precision or query.fastest_of:
        return ""
    if (better := faster_precision(prediction)) is None:
        return ""
    takes = f"{better.precision} takes {milliseconds(better.latency_ms)}{at}"
    return f"not its fastest precision: {takes} (--precision best)"


def in_other_modes(predictions: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    """Option of OTHER_MODES -> the predictions of several devices with it, without GPUs that cannot run so.

    Devices that are no GPU are unchanged. The dict is empty unless there is a GPU and all run eager.
    """
    launches, devices = {p.launch for p in predictions}, {p.row_name for p in predictions}
    if launches - {None} != {EAGER} or len(devices) < 2:
        return {}
    return {option: in_mode(predictions, option) for option in OTHER_MODES}


def in_mode(predictions: Sequence[Prediction], option: str) -> list[Prediction]:
    """The predictions with an option of OTHER_MODES, without GPUs that cannot run so."""
    found = []
    for p in predictions:
        with suppress(InputError):
            found.append(_in_mode(p, OTHER_MODES[option]))
    return found


def _in_mode(prediction: Prediction, asked: dict[str, Any]) -> Prediction:
    """The prediction of a GPU in another launch or layout, under its name; unchanged for another device.

    A GPU in its fastest precision takes the fastest one in this mode. InputError if it cannot run so.
    """
    query = prediction.query
    if prediction.launch is None:
        return prediction
    question = Question(prediction.batch_size, coverage=query.coverage)
    ask = in_fastest if query.fastest_of else predict
    found = ask((query.fastest_of or query.model).run_as(**asked), query.graph, question)
    model = _called_as(query.model, found.query.model)
    return replace(
        found,
        network=prediction.network,
        prices=prediction.prices,
        query=replace(query, model=model, fastest_of=found.query.fastest_of),
    )


def clearly_least(found: Iterable[A | None], value: Callable[[A], float], most: float) -> A | None:
    """The first of `found` whose value is clearly less than `most`, or a later one clearly less than that;
    None if there is none.
    """
    best = None
    for one in found:  # a CUDA graph, more work than a compiler, has to be faster than it
        if one is not None and value(one) < SHORTER * most:
            best, most = one, value(one)
    return best


def in_better_modes(
    found: Sequence[tuple[str, A]], value: Callable[[tuple[str, A]], float], most: float
) -> Iterator[tuple[str, A]]:
    """Yield the clearly best layout and the clearly best launch of `found`; see `OTHER_MODES`,
    `clearly_least`.
    """
    for argument in ("channels_last", "launch"):
        among = (one for one in found if argument in OTHER_MODES[one[0]])
        best = clearly_least(among, value, most)
        if best is not None:
            yield best


def remedy_words(better: Prediction, words: str) -> str:
    """A remedy: the `words` on a prediction in the fastest precision, and the option."""
    return f"in {better.precision} {words} ({arg('precision')} best)"


def in_each_precision(model: D, network: Graph | Analysis, ask: Callable[[D], A]) -> list[A]:
    """The answers of a device as measured and in each of its precisions, with the layout asked for. A
    network in half precision has one answer, in that precision.

    InputError if there is none.
    """
    if run_dtype(analyze(network).graph) in (FLOAT16, BFLOAT16):
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
