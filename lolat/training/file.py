"""The JSON file of a training model: read whole or refused, written whole or not at all."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np

from lolat.errors import ModelFileError
from lolat.fitting.predictors.kernels import Kernels
from lolat.io.documents import read_json
from lolat.io.paths import LOCAL, find_model, shipped_folder
from lolat.model.file import LARGEST_BYTES, to_json, validate, write_bytes
from lolat.model.file import SCHEMA as LATENCY_SCHEMA
from lolat.training.model import FORMAT_VERSION, SCHEMA, Training, TrainingModel
from lolat.training.settings import OPTIMIZERS
from lolat.training.terms import TERMS

_EXPECTED = "expected a file that `lolat training fit` wrote"
BACKEND_OPTIONS = ("jit", "compile", "channels_last", "half")
"""Options of backends, as a model file's environment has them."""


def write(path: str | PathLike[str], model: TrainingModel) -> None:
    """Put the model's file at `path` in one step; errors as of `lolat.model.file.write`."""
    write_bytes(path, to_json(model.document, fspath(path)).encode("ascii"))


def read(path: str | PathLike[str]) -> Training:
    """The model in the file at `path`, or of that name (`lolat.io.paths.find_model`).

    ModelFileError names what is wrong: no such file, too large, not JSON, another kind of model, a newer
    version, or a field that is missing or no number.
    """
    name = fspath(path)
    found = path if name != LOCAL and os.path.exists(path) else find_model(name)
    document = read_json(found, _EXPECTED, LARGEST_BYTES)
    return from_document(document, str(found))


def from_document(document: Any, source: str) -> Training:
    """The model of a parsed file; `source` begins the message of a ModelFileError."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema == LATENCY_SCHEMA:
        return _of_latencies(document, source)
    if schema != SCHEMA:
        raise ModelFileError(f"{source}: not a training model; {_EXPECTED}")
    if document.get("version") != FORMAT_VERSION:
        raise ModelFileError(
            f"{source}: format version {document.get('version')!r}, and this LoLat reads "
            f"{FORMAT_VERSION}; upgrade LoLat or fit the table again"
        )
    try:
        return _model(document)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        what = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise ModelFileError(f"{source}: damaged ({what}); {_EXPECTED}") from error


def _of_latencies(document: dict[str, Any], source: str) -> Training:
    """The training of a latency model: as it was measured, or by what is known of operations."""
    from lolat.training.estimated import EstimatedTraining
    from lolat.training.measured import MeasuredTraining

    validate(document, source)
    if "training" not in document:
        if Kernels.name in document["predictors"]:
            return EstimatedTraining(document)
        raise ModelFileError(
            f"{source}: a model of latency, without training coefficients; on its device "
            f"`{how_to_add(document['environment'], source)}` adds them, and "
            "`lolat training fit EPOCHS.csv --output MODEL` makes a model from a table of epoch times"
        )
    try:
        return MeasuredTraining(document, source)
    except ValueError as error:
        raise ModelFileError(
            f"{source}: its `training` is damaged ({error}); learn it again: "
            f"{how_to_add(document['environment'], source)}"
        ) from error


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


def _model(document: dict[str, Any]) -> TrainingModel:
    """The model of a document; KeyError, TypeError or ValueError where it is damaged."""
    coefficients = document["coefficients_ms"]
    unknown = [t for t in coefficients if t not in TERMS]
    if unknown:
        raise ValueError(f"unknown term {unknown[0]!r}")
    found = np.array([_number(coefficients[t], t) for t in TERMS])
    if found.min() < 0.0 or found.max() == 0.0:
        raise ValueError("`coefficients_ms` are negative, or all 0")
    drop_last, optimizers = document["drop_last"], tuple(document["optimizers"])
    if not isinstance(drop_last, bool):
        raise ValueError(f"`drop_last` is {drop_last!r}, not true or false")
    if not set(optimizers) <= set(OPTIMIZERS):
        raise ValueError(f"`optimizers` are {optimizers!r}")
    densest, longest_ms = (_number(document["domain"][k], k) for k in ("densest", "longest_ms"))
    absent = tuple(document["domain"]["absent"])
    if not set(absent) <= set(TERMS):
        raise ValueError(f"`absent` is {absent!r}")
    residuals = tuple(_number(r, "residuals") for r in document["residuals"])
    name = str(document["name"])
    return TrainingModel(
        name, found, residuals, drop_last, optimizers, densest, longest_ms, absent, document
    )


def _number(value: Any, field: str) -> float:
    """A finite number, or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"`{field}` is {value!r}, not a number")
    return float(value)
