"""The JSON model file of a device: what it must hold, read whole or refused, written whole or not at all.

What is known of the device stands in sections, each of which may be missing: latencies of inference
(INFERENCE, at the top), `training` that was measured, `epochs` of training, `spaces` with measured
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

from lolat.errors import InputError, ModelFileError, arg
from lolat.fitting.domain import Domain
from lolat.fitting.predictors import Extended, Kernels, TrainingSteps, TwoRegime
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
INFERENCE = ("default", "predictors", "points", "noise", "domain")
"""Fields of the latencies of inference: all of them, or none."""
SECTIONS = ("training", "epochs", "spaces")
"""What else may be known of a device; `spaces` has a part for each, and a new one leaves the others."""
OF_INFERENCE = "latencies of inference"
OF_TRAINING = "training"
OF_LAYERS = "lolat-layer-model"
"""The schema of another kind of file, a table to a table: `lolat.mlp.layer_model`."""
UNKNOWN = "unknown"  # a device that nobody has named
_EXPECTED = "expected a LoLat model file"

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
    extended: Extended | UnsetType = UNSET
    kernels: Kernels | UnsetType = UNSET
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
    on with what is expected and where. Nothing is changed or converted.
    """
    if fault := _of_another_kind(document):
        raise ModelFileError(f"{source}: {fault}", code="not-a-model")
    # It is to have latencies where it has some part of them, or nothing at all.
    if not any(f in document for f in INFERENCE) and any(f in document for f in SECTIONS):
        converted(document, Sections, source)
        return
    converted(document, ModelFile, source)
    if document["default"] not in document["predictors"]:
        names = shortened(", ".join(sorted(document["predictors"]))) or "none"
        given = shortened(repr(document["default"]))
        raise ModelFileError(
            f"{source}: `default` is {given}; expected one of the predictors in the file: {names}"
        )


def _of_another_kind(document: Any) -> str | None:
    """Why a document is no model that this version reads, whatever its fields."""
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema == OF_LAYERS:
        return (
            "a layer model, which tells the time of single layers on many GPUs (`lolat mlp predict`); "
            "expected the model of a device, as `lolat learn cpu` writes it"
        )
    if schema != SCHEMA:
        return f'not a LoLat model; expected "schema": "{SCHEMA}", as `lolat learn cpu` writes it'
    version = document.get("version")
    if type(version) is not int or version != FORMAT_VERSION:
        return (
            f"`version` is {shortened(repr(version))}; expected {FORMAT_VERSION}: learn the model again "
            "with `lolat learn cpu`, or fit it again with `lolat fit TABLE.csv`"
        )
    return None


def _remade(document: Mapping[str, Any], source: str) -> str:
    """The commands that make a device's latencies of inference."""
    file = as_output(source)
    return f"`{_learn(document)} --output {file}` on the device, or `lolat fit TABLE.csv --output {file}`"


def _learn(document: Mapping[str, Any]) -> str:
    """The command that learns a device as it was learned."""
    where = document["environment"]
    device, framework = where.get("device"), where.get("framework")
    words = ["lolat learn", device if device in ("cpu", "gpu") else "cpu"]
    words += [f"--backend {framework}"] * (framework in ("torch", "onnxruntime"))
    options = ("jit", "compile", "channels_last", "half")
    words += [f"--{option.replace('_', '-')}" for option in options if where.get(option) is True]
    threads = where.get("threads_asked")
    return " ".join([*words, *[f"--threads {threads}"] * isinstance(threads, int)])


# ---- Reading and writing it.


def read(path: AnyPath) -> dict[str, Any]:
    """The document in the model file at `path`, parsed and checked by `validate`.

    Raises ModelFileError, one line that names the path: no such file, a folder, no permission,
    too large, not UTF-8, not JSON, cut off, something else than a LoLat model, or a wrong field.
    """
    hint = "`lolat learn cpu` makes one, `lolat models` lists those there are"
    document: dict[str, Any] = read_json(path, _EXPECTED, hint=hint)
    validate(document, shown_path(near(path)))
    return document


def write(path: AnyPath, document: dict[str, Any]) -> None:
    """Check `document` and put it at `path` in one step; errors as of `validate` and `write_bytes`."""
    source = shown_path(path)
    validate(document, source)
    write_bytes(path, to_json(document, source).encode("ascii"))


# ---- Its sections: what a file knows, what it lacks, how one is added.


def knows(document: Mapping[str, Any]) -> list[str]:
    """What a model file knows of its device, in words."""
    known = [OF_INFERENCE] * ("predictors" in document)
    known += ["training, measured"] * ("training" in document)
    known += ["epochs of training"] * ("epochs" in document)
    return [*known, *(f"networks of {space}" for space in sorted(document.get("spaces", {})))]


def lacks(document: Mapping[str, Any], source: str, what: str) -> ModelFileError:
    """What is to be raised where a file does not know `what`, a word above or the name of a space."""
    known = " and ".join(knows(document)) or "nothing yet"
    unknown = what if what in (OF_INFERENCE, OF_TRAINING) else f"networks of {what}"
    return ModelFileError(
        f"{source} knows {known}, but no {unknown}; add them with {how_to_add(document, source, what)}"
    )


def how_to_add(document: Mapping[str, Any], source: str, what: str) -> str:
    """The commands that add `what`, a word above or the name of a space, to a model file."""
    file = as_output(source)
    if what == OF_INFERENCE:
        return _remade(document, source)
    if what == OF_TRAINING:
        learn = f"`{_learn(document)} --mode training --output {file}` on the device"
        return f"{learn}, or `lolat fit EPOCHS.csv --output {file}`"
    return f"`lolat nas fit {what} SAMPLES.csv --output {file}`"


def as_output(source: str) -> str:
    """A model file as it is given to --output; another name for one that comes with LoLat and stays so."""
    path = Path(source)
    shipped = path.resolve().parent == shipped_folder().resolve()
    return quote(path.name if shipped else source)


def made(name: str, device: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    """A model file of a device that knows nothing yet."""
    return {
        "schema": SCHEMA,
        "version": FORMAT_VERSION,
        "name": name,
        "device": device,
        "environment": dict(environment),
    }


def put(
    path: AnyPath,
    section: str,
    content: Mapping[str, Any],
    device: str | None = None,
    environment: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write `content` under `section` of the model file at `path`, whole or not at all; its document.

    All else that the file knows stays; of `spaces` `content` has those to add or to replace. Where there is
    no file, one of `device`, measured in `environment`, is made. InputError where the file is of another
    device, ModelFileError where something else stands there: nothing is lost.
    """
    here = Path(path)
    old = read(here) if here.exists() else None
    if old is None:
        old = made(here.stem, device or UNKNOWN, environment or {})
    else:
        old = {**old, "device": same_device(here, old, device)}
    known = old.get(section, {}) if section == "spaces" else {}
    document = {**old, section: {**known, **content}}
    write(here, document)
    return document


def same_device(path: AnyPath, document: Mapping[str, Any], device: str | None) -> str:
    """What the device of a file is called; `device`: what a user calls it, None for whatever it is.

    InputError where that is another one. Brackets behind a name say how it was measured, and not what.
    """
    own = str(document["device"])
    if device is None or UNKNOWN in (own, device):
        return device if own == UNKNOWN and device else own
    names = {str(n).partition(" (")[0].strip().casefold() for n in (own, document["name"])}
    if device.partition(" (")[0].strip().casefold() not in names:
        raise InputError(
            f"{shown_path(path)} is a model of another device: {own}, and this is {device}; give another "
            f"{arg('output')}, or call it the same",
            code="other-device",
        )
    return own


def with_sections(path: AnyPath, document: dict[str, Any]) -> dict[str, Any]:
    """`document`, new latencies of a device, with the other sections of the file that they replace.

    A device that the latencies do not name is the file's. Errors as of `put`.
    """
    here = Path(path)
    if not here.exists():
        return document
    old = read(here)
    name, bracket, how = str(document["device"]).partition(" (")
    own = same_device(here, old, None if name == UNKNOWN else name)
    if name == UNKNOWN:
        document = {**document, "device": own.partition(" (")[0] + bracket + how}
    return {**{section: old[section] for section in SECTIONS if section in old}, **document}
