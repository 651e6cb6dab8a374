"""What a model file knows of training time, whichever way."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from shlex import quote
from typing import Any

from lolat.errors import ModelFileError
from lolat.fitting.predictors.kernels import Kernels
from lolat.io.paths import shipped_folder
from lolat.model import load_as
from lolat.model.file import OF_TRAINING, as_output, lacks
from lolat.training.estimate import EstimatedTraining, ForwardTraining
from lolat.training.fitting import EpochTraining
from lolat.training.learning import MeasuredTraining
from lolat.training.model import Training

TRAINED_BY = ("tensorflow", "torch")
"""Frameworks that measure training."""
BACKEND_OPTIONS = ("jit", "compile", "channels_last", "half")
"""Options of backends, as a model file's environment has them."""


def load_training(path: str | PathLike[str]) -> Training:
    """What a model knows of training; `path`: as of `lolat.load`.

    ModelFileError for a file that is something else or damaged, or knows of neither training nor inference.
    """
    return load_as(from_document, path)


def from_document(document: dict[str, Any], source: str) -> Training:
    """The training of a valid model file: by timed epochs, as it was measured, by what is known of
    operations, or else estimated from latencies of inference.

    `source` begins the message of a ModelFileError.
    """
    if "epochs" in document:
        return EpochTraining(document, source)
    where = document["environment"]
    how = how_to_add(where, source)
    if "training" in document:
        try:
            return MeasuredTraining(document, source)
        except ModelFileError as error:
            raise ModelFileError(f"{error.message}; learn it again: {how}") from None
    if "predictors" not in document:
        raise lacks(document, source, OF_TRAINING)
    if Kernels.name in document["predictors"]:
        return EstimatedTraining(document)
    measurable = where.get("device") in ("cpu", "gpu") and where.get("framework") in TRAINED_BY
    of_table = f"lolat training fit EPOCHS.csv --output {as_output(source)}"
    return ForwardTraining(document, source, f"`{how if measurable else of_table}`")


def how_to_add(environment: Mapping[str, Any], source: str) -> str:
    """The command that measures training for a model file; a shipped one stays as it is."""
    device, backend = environment.get("device"), environment.get("framework")
    command = f"lolat learn {device if device in ('cpu', 'gpu') else 'cpu'} --mode training"
    if isinstance(backend, str):
        options = [o for o in BACKEND_OPTIONS if environment.get(o) is True]
        command += "".join(f" --{o}".replace("_", "-") for o in options)
        command += f" --backend {quote(backend)}"
    if Path(source).resolve().parent != shipped_folder().resolve():
        command += f" --output {quote(source)}"
    return command
