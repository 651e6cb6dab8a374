"""The JSON file of a training model: read whole or refused, written whole or not at all."""

from __future__ import annotations

import math
from os import PathLike, fspath
from typing import Any

import numpy as np

from lolat.errors import ModelFileError
from lolat.json_file import read_json
from lolat.model_file import LARGEST_BYTES, to_json, write_bytes
from lolat.training.features import TERMS
from lolat.training.model import FORMAT_VERSION, SCHEMA, TrainingModel
from lolat.training.optimizers import OPTIMIZERS

_EXPECTED = "expected a file that `lolat training fit` wrote"


def write(path: str | PathLike[str], model: TrainingModel) -> None:
    """Put the model's file at `path` in one step; errors as of `lolat.model_file.write`."""
    write_bytes(path, to_json(model.document, fspath(path)).encode("ascii"))


def read(path: str | PathLike[str]) -> TrainingModel:
    """The model in the file at `path`.

    ModelFileError names what is wrong: no such file, too large, not JSON, another kind of model, a newer
    version, or a field that is missing or no number.
    """
    document = read_json(path, _EXPECTED, LARGEST_BYTES)
    return from_document(document, str(path))


def from_document(document: Any, source: str) -> TrainingModel:
    """The model of a parsed file; `source` begins the message of a ModelFileError."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema == "lolat-model":
        raise ModelFileError(
            f"{source}: a model of latency, without training coefficients; `lolat training fit EPOCHS.csv "
            "--output MODEL` makes one from a table of epoch times"
        )
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
