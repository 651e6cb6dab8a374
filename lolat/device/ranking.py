"""The fastest and the cheapest of several predictions, if their times are comparable."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from lolat.device.summary import not_alike

if TYPE_CHECKING:
    from lolat.device.prediction import Prediction


def sample_ms(prediction: Prediction) -> float:
    """Time per sample, in ms."""
    return prediction.latency_ms / prediction.batch_size


def by_assumed_host(prediction: Prediction) -> bool:
    """True if the time depends on a host that the user did not give."""
    return bool(prediction.host_bound) and prediction.host_us is None


def hosts_decide(predictions: Sequence[Prediction]) -> bool:
    """True if there are several devices and the time of one depends on an assumed host."""
    devices = {p.row_name for p in predictions}
    return len(devices) > 1 and any(map(by_assumed_host, predictions))


def errors_of(prediction: Prediction) -> Hashable:
    """A key that is equal for predictions whose errors on one network are similar; None if no other's are.

    The formula misjudges a network in a similar way on each GPU that was timed in half precision, but
    differently if a compiler fuses operations, and differently in another layout. The key is None on a CPU,
    for a host-bound network, in a precision that was not timed, and in float32, where errors differ between
    GPUs.
    """
    file = prediction.query.device.file
    is_timed = file.mode.half and file.estimated is None and file.other_form is None
    if prediction.host_bound is not False or not is_timed:
        return None
    return file.mode.fused, prediction.channels_last


def compared(predictions: Sequence[Prediction]) -> Sequence[Prediction]:
    """Predictions with comparable times: without profiles learned on a busy machine, unless all were."""
    return [p for p in predictions if p.query.device.file.loaded is None] or predictions


def fastest(predictions: Sequence[Prediction]) -> Prediction | None:
    """The prediction with the shortest time per sample, of those `compared` that fit in memory.

    None if there is no prediction, if precisions or launches differ (see `not_alike`), or if assumed hosts
    decide the comparison at its batch size. A host-bound prediction decides nothing if the same device is
    faster in another launch.
    """
    predictions = compared(predictions)
    able = [p for p in predictions if p.fits is not False]
    best = min(able, key=sample_ms, default=None)
    if best is None or not_alike(p.query.device for p in predictions):
        return None
    of_size = [p for p in able if (p.network, p.batch_size) == (best.network, best.batch_size)]
    return None if hosts_decide(fastest_launches(of_size)) else best


def fastest_launches(predictions: Sequence[Prediction]) -> list[Prediction]:
    """The fastest prediction of each device, of predictions for one network at one batch size."""
    found: dict[str, Prediction] = {}
    for p in predictions:
        found[p.device] = min(found.get(p.device, p), p, key=sample_ms)
    return list(found.values())


def cheapest(predictions: Sequence[Prediction]) -> Prediction | None:
    """The prediction with the lowest price per sample, of those `compared`.

    None if no price is known, or if precisions or launches differ (see `not_alike`).
    """
    predictions = compared(predictions)
    usd = {
        n: price for n, p in enumerate(predictions) if (price := p.dollars_per_million) is not None
    }
    if not usd or not_alike(p.query.device for p in predictions):
        return None
    return predictions[min(usd, key=usd.__getitem__)]
