"""The precisions, launches and layouts of a device compared for one network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from lolat.device.execution_modes import HALVES, TIED, in_precisions
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
"""Another launch or layout, or training without checkpointing, is offered if it takes less than this share
of the time or price."""
OTHER_MODES: dict[str, dict[str, Any]] = {
    "--channels-last": {"channels_last": True},
    "--launch compiled": {"launch": COMPILED},
    "--launch graph": {"launch": GRAPH},
}
"""Option -> the arguments of `Device.run_as`. The values of one option are in order of the user's
effort."""


def in_fastest(device: Device, network: Graph | Analysis, question: Question) -> Prediction:
    """The prediction of a device in its fastest precision; a network in half precision keeps its own.

    Among precisions within TIED, the one with the least memory is chosen.
    """
    found = in_each_precision(device, network, partial(predict, network=network, question=question))
    least = min(map(sample_ms, found))
    tied = [p for p in found if sample_ms(p) <= TIED * least]
    # `reversed` prefers the later precision among equals.
    best = min(reversed(tied), key=lambda p: p.memory.total_bytes)
    run = _called_as(device, best.query.device)
    return replace(best, query=replace(best.query, device=run, fastest_of=device))


def _called_as(device: D, run: D) -> D:
    """The device `run`, shown under the names of `device`."""
    made = copy(run)
    made.label, made.row = device.label, device.row
    return made


def faster_precision(prediction: Prediction) -> Prediction | None:
    """The prediction of a GPU in its fastest precision; None unless it is faster by more than TIED."""
    query = prediction.query
    if prediction.predictor != Roofline.name:
        return None
    question = Question(prediction.batch_size, coverage=query.coverage)
    best = in_fastest(query.device, query.graph, question)
    return best if TIED * sample_ms(best) < sample_ms(prediction) else None


def precision_words(prediction: Prediction, at: str = "") -> str:
    """A remark that a GPU has a faster precision, if the user asked for none; else "".

    `at`: words on the batch size, which follow the time.
    """
    query = prediction.query
    if prediction.launch is None or query.device.asked.precision or query.fastest_of:
        return ""
    if (better := faster_precision(prediction)) is None:
        return ""
    takes = f"{better.precision} takes {milliseconds(better.latency_ms)}{at}"
    return f"not its fastest precision: {takes} (--precision best)"


def in_other_modes(predictions: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    """Option of OTHER_MODES -> the predictions of several devices with this option.

    GPUs that cannot run in that mode are left out; devices other than GPUs are unchanged. The dict is empty
    unless there are GPUs and all of them run eager.
    """
    launches, devices = {p.launch for p in predictions}, {p.row_name for p in predictions}
    if launches - {None} != {EAGER} or len(devices) < 2:
        return {}
    return {option: in_mode(predictions, option) for option in OTHER_MODES}


def in_mode(predictions: Sequence[Prediction], option: str) -> list[Prediction]:
    """The predictions with an option of OTHER_MODES; GPUs that cannot run in that mode are left out."""
    found = []
    for p in predictions:
        with suppress(InputError):
            found.append(_in_mode(p, OTHER_MODES[option]))
    return found


def _in_mode(prediction: Prediction, asked: dict[str, Any]) -> Prediction:
    """The prediction of a GPU in another launch or layout, with the same name; unchanged without a GPU.

    If the GPU was predicted in its fastest precision, the fastest in this mode is chosen anew. InputError
    if the GPU cannot run in this mode.
    """
    query = prediction.query
    if prediction.launch is None:
        return prediction
    question = Question(prediction.batch_size, coverage=query.coverage)
    ask = in_fastest if query.fastest_of else predict
    answer = ask((query.fastest_of or query.device).run_as(**asked), query.graph, question)
    device = _called_as(query.device, answer.query.device)
    return replace(
        answer,
        network=prediction.network,
        prices=prediction.prices,
        query=replace(query, device=device, fastest_of=answer.query.fastest_of),
    )


def clearly_least(found: Iterable[A | None], value: Callable[[A], float], most: float) -> A | None:
    """The last item that is clearly less than `most` and than the best item before it; None without one.

    Clearly less: its value is below SHORTER times the other value.
    """
    best = None
    for one in found:  # a CUDA graph, more work than a compiler, has to be faster than it
        if one is not None and value(one) < SHORTER * most:
            best, most = one, value(one)
    return best


def in_better_modes(
    found: Sequence[tuple[str, A]], value: Callable[[tuple[str, A]], float], most: float
) -> Iterator[tuple[str, A]]:
    """Yield the clearly best layout and the clearly best launch among `found`.

    `found`: (option of OTHER_MODES, answer); see `clearly_least`.
    """
    for argument in ("channels_last", "launch"):
        among = (one for one in found if argument in OTHER_MODES[one[0]])
        best = clearly_least(among, value, most)
        if best is not None:
            yield best


def remedy_words(better: Prediction, words: str) -> str:
    """A remedy: the fastest precision, what it achieves (`words`), and the option that asks for it."""
    return f"in {better.precision} {words} ({arg('precision')} best)"


def in_each_precision(device: D, network: Graph | Analysis, ask: Callable[[D], A]) -> list[A]:
    """The answers of a device as measured and in each of its precisions, with the layout asked for.

    A network in half precision has one answer, in its own precision; a network with Fourier transforms,
    distances or linear algebra has none in half precision, for which PyTorch has no kernels. InputError if
    no precision is possible.
    """
    graph = analyze(network).graph
    if run_dtype(graph) in (FLOAT16, BFLOAT16):
        return [ask(device)]
    lacks_half = any("hides" in o.attributes for o in graph.operations)
    answers: list[A] = []
    refused: InputError | None = None
    for one in in_precisions(
        device, [p for p in PRECISIONS[1:] if not (lacks_half and p in HALVES)]
    ):
        try:
            answers.append(ask(one))
        except InputError as error:
            if error.code not in ("no-precision", "no-layout"):
                raise
            refused = error
    if not answers and refused is not None:
        raise refused
    return answers
