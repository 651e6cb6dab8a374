"""The JSON model file of a device: what it must hold, read whole or refused, written whole or not at all.

The sections, each of which may be missing: latencies of inference (`predictors`, `points` and more at the
top), `training` that was measured, `epochs` of training, `spaces` with measured
networks. A section is a struct of the room that uses it (`lolat.fitting`, `lolat.training`,
`lolat.nas.fewshot`); here a file is only checked, and stays a plain dict: a later minor version may add
keys anywhere, and they are kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from lolat.device.domain import Domain
from lolat.device.predictors import AdditiveCosts, Roofline, TrainingSteps, TwoRegime
from lolat.errors import InputError, ModelFileError, arg
from lolat.graph.counts import EXTRAS
from lolat.io.documents import (
    AtLeastOne,
    Count,
    NotNegative,
    Number,
    Positive,
    converted,
    read_json,
    to_json,
)
from lolat.io.paths import near, shipped_folder
from lolat.io.writing import AnyPath, shown_path, write_bytes
from lolat.units import shortened

SCHEMA = "lolat-model"
FORMAT_VERSION = 1
SECTIONS = ("training", "epochs", "spaces", "llm")
"""The sections besides the latencies. `spaces` has a part for each space."""
OF_INFERENCE = "latencies of inference"
OF_TRAINING = "training"
OF_LANGUAGE_MODELS = "operations of language models"
PARTS = (OF_INFERENCE, OF_TRAINING, OF_LANGUAGE_MODELS)
UNKNOWN = "unknown"  # a device that nobody has named

# ---- What a model file must hold.

_MORE: list[Any] = [(name, Count | None, None) for name in EXTRAS]


class Point(msgspec.defstruct("Extras", _MORE), kw_only=True):  # type: ignore[misc, call-arg]
    """One measured block or network; see `lolat.fitting.points.Point`."""

    name: str
    batch_size: AtLeastOne
    acts: Count
    inp: Count
    flops: Count
    traffic: Count | None
    weights: Count | None
    ops: Count | None
    latency_ms: Positive
    samples_ms: list[Positive] | None
    reference_ms: list[Number] | None = None
    spread: Number | None = None
    kinds: tuple[str, ...] = ()
    whole: bool = False


class Predictors(Struct, rename={"two_regime": "two-regime", "training_steps": "training-steps"}):
    """The formulas that this version knows; others may be there."""

    two_regime: TwoRegime | UnsetType = UNSET
    extended: AdditiveCosts | UnsetType = UNSET
    kernels: Roofline | UnsetType = UNSET
    training_steps: TrainingSteps | UnsetType = UNSET


class Noise(Struct):
    """How steady the machine was, of latencies and of training; see `microbench.learn.noise_of`."""

    floor: NotNegative = 0.0
    quiet: Positive | UnsetType = UNSET
    busy: Positive | UnsetType = UNSET
    repeatability: NotNegative | UnsetType = UNSET


class Sections(Struct, kw_only=True):
    """A file without latencies of inference, and what any file may have besides."""

    name: str
    device: str
    environment: dict[str, Any]
    warnings: list[str] | UnsetType = UNSET
    epochs: dict[str, Any] | UnsetType = UNSET
    spaces: dict[str, dict[str, Any]] | UnsetType = UNSET
    llm: dict[str, Any] | UnsetType = UNSET


class ModelFile(Sections, kw_only=True):
    """A file with latencies of inference."""

    default: str
    predictors: Predictors
    points: list[Point]
    noise: Noise
    domain: Domain


def validate(document: Any, source: str) -> None:
    """Raise ModelFileError unless `document`, as parsed from JSON, is a LoLat model of version 1.

    `source` names where it came from and begins the message; it must be one line. The message goes
    on with the expected value and its place. Nothing is changed or converted.
    """
    marks = document if isinstance(document, dict) else {}
    schema, version = marks.get("schema"), marks.get("version")
    if (schema, version) != (SCHEMA, FORMAT_VERSION):
        raise ModelFileError(
            f"{source}: schema {shortened(repr(schema))}, version {shortened(repr(version))} is not a "
            f"LoLat model of version {FORMAT_VERSION}; make one: `lolat learn cpu`, `lolat fit TABLE.csv`",
            code="not-a-model",
        )
    # A file that knows something else may lack latencies.
    is_without = "predictors" not in document and any(s in document for s in SECTIONS)
    converted(document, Sections if is_without else ModelFile, source)


# ---- Reading and writing it.


def read(path: AnyPath) -> dict[str, Any]:
    """The document in the model file at `path`, parsed and checked by `validate`.

    Raises ModelFileError, one line that names the path, for a file that cannot be read or is none.
    """
    hint = "`lolat learn cpu` makes one, `lolat models` lists those there are"
    document: dict[str, Any] = read_json(path, "expected a LoLat model file", hint=hint)
    validate(document, shown_path(near(path)))
    return document


def write(path: AnyPath, document: dict[str, Any]) -> None:
    """Check `document` and put it at `path` in one step; errors as of `validate` and `write_bytes`."""
    source = shown_path(path)
    validate(document, source)
    write_bytes(path, to_json(document, source).encode("ascii"))


# ---- Its sections: which a file knows, which it lacks, how one is added.


def knows(document: Mapping[str, Any]) -> list[str]:
    """The sections of a model file in words."""
    known = [OF_INFERENCE] * ("predictors" in document)
    known += ["training, measured"] * ("training" in document)
    known += ["epochs of training"] * ("epochs" in document)
    known += ["language models (`lolat llm`)"] * ("llm" in document)
    return [*known, *(f"networks of {space}" for space in sorted(document.get("spaces", {})))]


def answers_for(document: Mapping[str, Any]) -> tuple[str, ...]:
    """What a model file is asked for: "language models", "networks", "training", "spaces"; "layers" of one
    that was fitted to single layers of 2018.
    """
    of_layers = isinstance(document["environment"].get("source"), Mapping)
    known = {
        "language models": "llm" in document,
        "networks": "predictors" in document and not of_layers,
        "layers": of_layers,
        "training": bool({"training", "epochs"} & {*document}),
        "spaces": bool(document.get("spaces")),
    }
    return tuple(name for name, is_known in known.items() if is_known)


def lacks(document: Mapping[str, Any], source: str, section: str) -> ModelFileError:
    """The error where a file lacks one of PARTS, or the space of the name `section`."""
    known = " and ".join(knows(document)) or "nothing yet"
    lacking = section if section in PARTS else f"networks of {section}"
    command = how_to_add(document, source, section)
    return ModelFileError(f"{source} knows {known}, but no {lacking}; add them with {command}")


def how_to_add(document: Mapping[str, Any], source: str, section: str) -> str:
    """The commands that add a section (see `lacks`) to a file."""
    path, where = Path(source), document["environment"]
    is_shipped = path.resolve().parent == shipped_folder().resolve()  # and stays as it is
    file = quote(path.name if is_shipped else source)
    if section == OF_LANGUAGE_MODELS:
        return (
            f"`lolat fit KERNELS.csv --facts devices.csv --device NAME --output {file}`, from what "
            "examples/time_operations.py writes"
        )
    if section not in (OF_INFERENCE, OF_TRAINING):
        return f"`lolat nas fit {section} SAMPLES.csv --output {file}`"
    device = "gpu" if where.get("device") == "gpu" else "cpu"
    backend = f" --backend {where['framework']}" if "framework" in where else ""
    mode = " --mode training" if section == OF_TRAINING else ""
    table = "EPOCHS.csv" if section == OF_TRAINING else "TABLE.csv"
    learn = f"`lolat learn {device}{backend}{mode} --output {file}` on the device"
    return f"{learn}, or `lolat fit {table} --output {file}`"


def made(name: str, device: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    """A model file of a device that knows nothing yet."""
    return {
        "schema": SCHEMA,
        "version": FORMAT_VERSION,
        "name": name,
        "device": device,
        "environment": dict(environment),
    }


def put(path: AnyPath, sections: Mapping[str, Any], device: str | None = None) -> None:
    """Write `sections` into the model file at `path`, which may be new; errors as of `merged`."""
    write(path, merged(path, made(Path(path).stem, device or UNKNOWN, {}) | dict(sections)))


def merged(path: AnyPath, new: dict[str, Any]) -> dict[str, Any]:
    """A new document, with everything that the file at `path` knows and it does not.

    InputError where the file is of another device, ModelFileError where something else stands there.
    """
    if not Path(path).exists():
        return new
    old = read(path)
    _check_device(path, old, new["device"])
    if "predictors" in new:
        document = {section: old[section] for section in SECTIONS if section in old} | new
        device, other = new["device"], old["device"]
    else:
        document = old | {section: new[section] for section in SECTIONS if section in new}
        device, other = old["device"], new["device"]
    if spaces := {**old.get("spaces", {}), **new.get("spaces", {})}:
        document["spaces"] = spaces
    # In brackets behind its name stands how a device was measured.
    name, bracket, how = device.partition(" (")
    name = other.partition(" (")[0] if name == UNKNOWN else name
    return document | {"device": name + bracket + how}


def _check_device(path: AnyPath, document: Mapping[str, Any], device: str) -> None:
    """InputError where a file is of another device."""
    label, name, new = (
        str(text).partition(" (")[0].strip().casefold()
        for text in (document["device"], document["name"], device)
    )
    if new not in (label, name) and UNKNOWN not in (label, new):
        raise InputError(
            f"{shown_path(path)} is a model of another device: {document['device']}, and this is {device}; "
            f"give another {arg('output')}, or call it the same",
            code="other-device",
        )
