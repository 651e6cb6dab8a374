"""The models of training time in files: whichever kind a file holds, read whole or refused."""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from shlex import quote
from typing import Any

from lolat.errors import ModelFileError
from lolat.fitting.predictors.kernels import Kernels
from lolat.io.documents import read_json, show, to_json
from lolat.io.paths import LOCAL, find_model, shipped_folder
from lolat.io.writing import write_bytes
from lolat.model.file import SCHEMA as LATENCY_SCHEMA
from lolat.model.file import validate
from lolat.training.fitting import FORMAT_VERSION, SCHEMA, EpochTraining
from lolat.training.model import EstimatedTraining, MeasuredTraining, Training

_EXPECTED = "expected a file that `lolat training fit` wrote"
BACKEND_OPTIONS = ("jit", "compile", "channels_last", "half")
"""Options of backends, as a model file's environment has them."""


def write(path: str | PathLike[str], model: Training) -> None:
    """Put the model's file at `path` in one step; errors as of `lolat.io.writing.write_bytes`."""
    write_bytes(path, to_json(model.document, fspath(path)).encode("ascii"))


def load_training(path: str | PathLike[str]) -> Training:
    """A model: a path, `local` (the one learned last here) or a name (`lolat models`).

    ModelFileError for a file that is something else or damaged, or that knows nothing of training.
    """
    name = fspath(path)
    place = path if name != LOCAL and os.path.exists(path) else find_model(name)
    return from_document(read_json(place, _EXPECTED), str(place))


def from_document(document: Any, source: str) -> Training:
    """The model of a parsed file; `source` begins the message of a ModelFileError."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema == LATENCY_SCHEMA:
        return _of_latencies(document, source)
    if schema != SCHEMA:
        raise ModelFileError(f"{source}: not a training model; {_EXPECTED}")
    if document.get("version") != FORMAT_VERSION:
        raise ModelFileError(
            f"{source}: format version {show(document.get('version'))}, and this LoLat reads "
            f"{FORMAT_VERSION}; upgrade LoLat or fit the table again"
        )
    return EpochTraining(document, source)


def _of_latencies(document: dict[str, Any], source: str) -> Training:
    """The training of a latency model: as it was measured, or by what is known of operations."""
    validate(document, source)
    if "training" not in document and Kernels.name in document["predictors"]:
        return EstimatedTraining(document)
    how = how_to_add(document["environment"], source)
    if "training" not in document:
        raise ModelFileError(
            f"{source}: a model of latency, without training coefficients; on its device `{how}` adds "
            "them, and `lolat training fit EPOCHS.csv --output MODEL` makes a model from a table of "
            "epoch times"
        )
    try:
        return MeasuredTraining(document, source)
    except ModelFileError as error:
        raise ModelFileError(f"{error}; learn it again: {how}") from None


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
