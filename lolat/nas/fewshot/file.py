"""The JSON file of a space's model: read whole or refused, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from pathlib import Path
from typing import Any

import numpy as np

from lolat.errors import ModelFileError, not_written
from lolat.io.documents import read_json
from lolat.model.file import to_json
from lolat.nas.fewshot.model import FORMAT_VERSION, SCHEMA, Costs, NasModel
from lolat.nas.fewshot.samples import SPACES, space_terms

_EXPECTED = "expected a file that `lolat nas fit` wrote"


def write_text(path: str | Path, text: str) -> None:
    """Put `text` at `path` in one step: others see the old file or the new one, never a part.

    Makes parent folders as needed. A link is followed; a device or a pipe is written to.
    InputError where it cannot be written, LolatError where the disk is full.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".lolat-{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        if target.exists() and not target.is_file():  # /dev/stdout, a pipe
            target.write_text(text, encoding="utf-8", newline="")
            return
        if target.exists() and not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(target))
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "x", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        raise not_written(path, error, "--output") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def write(path: str | Path, model: NasModel) -> None:
    """Write the model's file, as `write_text` does."""
    write_text(path, to_json(model.to_document(), str(path)))


def read(path: str | Path) -> NasModel:
    """The model in the file at `path`.

    ModelFileError names what is wrong: no such file, not JSON, another kind of model, a newer version, a
    space that is not known, or a field that is missing or of another shape.
    """
    document = read_json(path, _EXPECTED)
    return from_document(document, str(path))


def from_document(document: Any, source: str) -> NasModel:
    """The model of a parsed file; `source` begins the message of a ModelFileError."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema == "lolat-model":
        raise ModelFileError(
            f"{source}: a model of a device, for whole networks; {_EXPECTED}, a model of a search space"
        )
    if schema != SCHEMA:
        raise ModelFileError(f"{source}: not a model of a search space; {_EXPECTED}")
    version = document.get("version")
    if version != FORMAT_VERSION:
        raise ModelFileError(
            f"{source}: format version {version!r}, and this LoLat reads {FORMAT_VERSION}; upgrade "
            "LoLat or fit the samples again"
        )
    if document.get("space") not in SPACES:
        raise ModelFileError(
            f"{source}: a model of the space {document.get('space')!r}; expected one of "
            f"{', '.join(SPACES)}"
        )
    try:
        return _model(document)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        what = f"the field {error} is missing" if isinstance(error, KeyError) else str(error)
        raise ModelFileError(f"{source}: damaged ({what}); {_EXPECTED}") from error


def _model(document: dict[str, Any]) -> NasModel:
    """The model of a document; KeyError, TypeError or ValueError where it is damaged."""
    pieces = {p.name: len(p.terms) for p in space_terms(document["space"]).assumptions}
    costs = []
    for entry in document["costs"]:
        name = entry["assumption"]
        if name not in pieces:
            raise ValueError(f"unknown assumption {name!r}")
        costs.append(
            Costs(
                name,
                _number(entry["weight"], "weight"),
                _number(entry["noise"], "noise"),
                _array(entry["costs_ms"], (pieces[name],), "costs_ms"),
            )
        )
    if not costs or not math.isclose(sum(c.weight for c in costs), 1.0, rel_tol=1e-6):
        raise ValueError("the weights of `costs` do not add up to 1")
    spreads = {
        name: _array(document["spreads_ms"][name], (None, pieces[name]), "spreads_ms")
        for name in {c.assumption for c in costs}
    }
    samples = document["samples"]
    return NasModel(
        document["space"],
        tuple(str(s["arch"]) for s in samples),
        tuple(_number(s["latency_ms"], "latency_ms") for s in samples),
        _number(document["step_ms"], "step_ms"),
        tuple(costs),
        spreads,
        tuple(str(w) for w in document["warnings"]),
    )


def _number(value: Any, field: str) -> float:
    """A finite number that is not negative, or ValueError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"`{field}` is {value!r}, not a number from 0")
    return float(value)


def _array(values: Any, shape: tuple[int | None, ...], field: str) -> np.ndarray:
    """Finite numbers of that shape (None: any length), costs from 0, or ValueError."""
    array = np.array(values, dtype=np.float64)
    fits = array.ndim == len(shape) and all(
        want in (None, have) for want, have in zip(shape, array.shape, strict=True)
    )
    if not fits or array.size == 0:
        raise ValueError(f"`{field}` has the shape {array.shape}, which is not that of the space")
    if not np.isfinite(array).all():
        raise ValueError(f"`{field}` holds a number that is not finite")
    if field == "costs_ms" and ((array < 0).any() or array[0] <= 0):
        raise ValueError(f"`{field}` holds a number below 0, or a first one of 0")
    return array
