"""Chooses the estimator of a space's latencies on a device, and asks the device for whole networks."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from lolat.device.device import Device
from lolat.device.predicting import predict
from lolat.device.question import Question, as_whole
from lolat.device.remedies import lacking_error
from lolat.errors import InputError, arg, argument_code
from lolat.io.paths import AnyPath
from lolat.io.progress import Progress
from lolat.nas.estimators import LatencyEstimator, by_formula
from lolat.nas.fewshot import FewShotModel, from_model
from lolat.nas.space import Space
from lolat.nas.user_code import space_and_device
from lolat.parameters import COVERAGE


def estimator(
    space: str | Space,
    model: AnyPath | Device,
    batch_size: int = 1,
    predictor: str | None = None,
    progress: Progress | None = None,
) -> LatencyEstimator:
    """A space's latency estimator on a device, which can be sent to other processes.

    `space`, `model`: as for `search`. If the device has measured samples of the space, and no predictor,
    batch size, precision or launch is given, the samples answer; otherwise the formula for inference.
    InputError for an unknown predictor or a wrong batch size; ModelFileError if the device has neither
    samples nor a formula.
    """
    space, model = space_and_device(space, model)
    sampled = space.name in model.file.spaces
    # Samples are of one way to run.
    if sampled and predictor is None and batch_size == 1 and not model.asked.options:
        space.prepare(progress)
        return from_model(model, space)
    if not model.predictors:
        if not sampled:
            raise lacking_error(model.file, model.source, space.name)
        raise samples_only("batch_size" if predictor is None else "predictor", model)
    model.predictor(predictor)
    as_whole(batch_size)
    space.prepare(progress)
    return by_formula(space, model, batch_size, predictor)


def samples_only(argument: str, device: Device) -> InputError:
    """The error for an argument to a device that has only samples of a space."""
    return InputError(
        f"{arg(argument)}: {device.source} knows only networks measured at batch size 1; leave "
        f"{arg(argument)} out, or add latencies of inference (lolat learn)",
        code=argument_code(argument),
    )


@dataclass(frozen=True)
class Answer:
    """A prediction for a whole network: latency, interval, memory."""

    latency_ms: float
    interval_ms: tuple[float, float] | None
    coverage: float | None
    in_domain: bool | None
    inside_share: float | None
    host_bound: bool | None
    memory_bytes: int | None
    fits: bool | None
    warnings: tuple[str, ...]


def answers(
    estimator: LatencyEstimator,
    space: Space,
    device: Device,
    rows: np.ndarray,
    coverage: float | None = None,
) -> list[Answer]:
    """Answers for `rows`, by samples if `estimator` is made from them, else by the device's `predict`."""
    if isinstance(estimator, FewShotModel):
        times, coverage = estimator.latency(rows), coverage or COVERAGE
        columns = (times, *estimator.interval(rows, coverage), estimator.inside(times))
        each = zip(*(column.tolist() for column in columns), strict=True)
        return [
            Answer(
                ms, (low, high), coverage, inside, None, None, None, None, tuple(estimator.warnings)
            )
            for ms, low, high, inside in each
        ]
    question = Question(estimator.batch_size, estimator.predictor, coverage=coverage)
    whole = [predict(device, space.network(row), question) for row in rows]
    return [Answer(*(getattr(one, field.name) for field in fields(Answer))) for one in whole]
