"""Which model of training a device's file gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lolat.fitting.predictors.kernels import Kernels
from lolat.model.file import OF_TRAINING, lacks
from lolat.training.epochs import EpochTraining
from lolat.training.estimate import EstimatedTraining, ForwardTraining
from lolat.training.learning import MeasuredTraining
from lolat.training.model import Training


def training_of(document: Mapping[str, Any], source: str) -> Training:
    """The training of a valid model file: by timed epochs, as it was measured, by a formula of operations,
    or else estimated from latencies of inference.

    `source` begins the message of a ModelFileError: a damaged section, or neither training nor latencies.
    """
    if "epochs" in document:
        return EpochTraining(document, source)
    if "training" in document:
        return MeasuredTraining(document, source)
    if "predictors" not in document:
        raise lacks(document, source, OF_TRAINING)
    if Kernels.name in document["predictors"]:
        return EstimatedTraining(document)
    return ForwardTraining(document, source)
