"""The JSON model file of a device: what it must hold, read whole or refused, written whole or not at all.

What is known of the device stands in sections, each of which may be missing: latencies of inference
(INFERENCE, at the top), `training` that was measured, `epochs` of training, `spaces` with measured
networks. Only the fields named here are checked: a later minor version may add keys anywhere, and
a reader of version 1 still reads the file. What is under the other sections is checked by who reads it
(`lolat.training`, `lolat.nas.fewshot`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from lolat.errors import InputError, ModelFileError, arg
from lolat.fitting.predictors.extended import APART, FAMILY
from lolat.fitting.predictors.formula import CONSTANT
from lolat.graph.counts import EXTRAS, FEATURES
from lolat.graph.modes import EAGER, Launch, Mode
from lolat.graph.work import CLASSES, PRODUCTS
from lolat.io.documents import (
    AtLeastOne,
    Count,
    NotNegative,
    Number,
    Positive,
    Range,
    converted,
    read_json,
    show,
    to_json,
)
from lolat.io.paths import near, shipped_folder
from lolat.io.writing import AnyPath, shown_path, write_bytes

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


_MORE: list[Any] = [(name, Count | UnsetType | None, UNSET) for name in EXTRAS]


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
    reference_ms: list[Number] | UnsetType | None = UNSET
    spread: Number | UnsetType | None = UNSET
    kinds: list[str] | UnsetType = UNSET
    whole: bool | UnsetType = UNSET


class Interval(Struct):
    """How intervals narrow; see `lolat.fitting.intervals.interval_entry`."""

    exponent: NotNegative
    ops: Range
    scores: list[Number]


class Networks(Struct):
    """How far off left-out networks were; see `lolat.fitting.intervals.network_entry`."""

    ops: NotNegative
    spread: NotNegative
    count: Annotated[int, msgspec.Meta(ge=2, le=2**63 - 1)]


Figure = NotNegative | UnsetType | None


class Figures(Struct):
    """Relative errors of predictions; null: of no points."""

    median: Figure = UNSET
    median_below_2_ms: Figure = UNSET
    median_from_2_ms: Figure = UNSET
    within_10_percent: Figure = UNSET
    points: Count | UnsetType = UNSET


class Errors(Struct):
    """On its own points, on blocks left out of the fit, on whole networks left out."""

    fitted: Figures | UnsetType = UNSET
    left_out: Figures | UnsetType = UNSET
    networks_left_out: Figures | UnsetType = UNSET


class Predictor(Struct):
    """Any formula: its coefficients, and how it did on what it was not fitted on."""

    coefficients: dict[str, NotNegative]
    error: Errors | UnsetType = UNSET
    residuals: list[Number] | UnsetType = UNSET
    training_residuals: list[Number] | UnsetType = UNSET
    interval: Interval | UnsetType = UNSET
    families: dict[str, NotNegative] | UnsetType = UNSET
    networks: Networks | UnsetType = UNSET
    six_counts: Predictor | UnsetType = UNSET


class TwoRegimeTerms(Struct):
    """The counts of the published formula."""

    acts: NotNegative
    inp: NotNegative
    flops: NotNegative


class TwoRegime(Predictor, kw_only=True):
    """What the two-regime formula has beside that of any."""

    coefficients: TwoRegimeTerms  # type: ignore[assignment]
    breakpoint_ms: NotNegative
    slope: Positive
    offset_ms: Number


class Moving(Struct):
    """The terms of a class of operations that only move."""

    bandwidth: Positive


class Product(Moving):
    """The terms of a class of products."""

    rate: Positive


_TERMS: list[Any] = [(name, Product if name in PRODUCTS else Moving) for name in CLASSES]
Classes = msgspec.defstruct("Classes", _TERMS, forbid_unknown_fields=True)
"""The terms of each class of operations (`lolat.graph.work`)."""


_Nearby = tuple[Positive, Positive, Positive, Positive, Number]


class Host(Struct):
    """What starts the operations; see `lolat.fitting.predictors.host`."""

    start_ms: Positive
    factor: Positive
    source: Literal["assumed", "fitted"]
    launch: Launch = EAGER


class Kernels(Predictor, kw_only=True):
    """What a formula by operation has beside that of any; see `lolat.fitting.predictors.kernels`.

    `nearby`: of each class of products, rows of its SHAPE and a weight.
    """

    multiprocessors: Positive
    classes: Classes  # type: ignore[valid-type]
    launch_ms: Positive
    step_ms: Positive
    measured: list[Literal[CLASSES]]  # type: ignore[valid-type]
    mode: Mode | UnsetType = UNSET
    sustained: Positive | UnsetType = UNSET
    host: Host | UnsetType = UNSET
    elsewhere: NotNegative | UnsetType = UNSET
    tf32: Positive | UnsetType = UNSET
    nearby: dict[Literal[tuple(PRODUCTS)], list[_Nearby]] | UnsetType = UNSET  # type: ignore[valid-type]


class Predictors(Struct, rename={"two_regime": "two-regime", "training_steps": "training-steps"}):
    """The formulas that this version knows; others may be there."""

    two_regime: TwoRegime | UnsetType = UNSET
    extended: Predictor | UnsetType = UNSET
    kernels: Kernels | UnsetType = UNSET
    training_steps: Kernels | UnsetType = UNSET


class Again(Struct):
    """A network, timed while learning and once more at the end, by another process."""

    name: str
    batch_size: int
    first_ms: Positive
    last_ms: Positive


class Former(Struct):
    """How many times as long networks take as when this machine was learned before, and when that was."""

    ratio: Positive
    date: str


class Noise(Struct):
    """How steady the machine was, of latencies and of training; see `microbench.learn.noise_of`."""

    floor: NotNegative = 0.0
    quiet: Positive | UnsetType = UNSET
    busy: Positive | UnsetType = UNSET
    repeatability: NotNegative | UnsetType = UNSET
    again: list[Again] | UnsetType = UNSET
    former: Former | UnsetType = UNSET


class Least(Struct):
    """The smallest steps of a table; see `lolat.fitting.domain.Least`."""

    batch_size: Positive | UnsetType = UNSET
    latency_ms: Positive | UnsetType = UNSET
    operation_ms: Positive | UnsetType = UNSET


class Domain(Struct):
    """What was measured; see `lolat.fitting.domain.Domain`."""

    kinds: list[str] | UnsetType = UNSET
    dtypes: list[str] | UnsetType = UNSET
    ratios: dict[str, Range] | UnsetType = UNSET
    sizes: dict[str, Range] | UnsetType = UNSET
    least: Least | UnsetType = UNSET


class Besides(Struct, kw_only=True):
    """What any file may have besides."""

    warnings: list[str] | UnsetType = UNSET
    epochs: dict[str, Any] | UnsetType = UNSET
    spaces: dict[str, dict[str, Any]] | UnsetType = UNSET


class Sections(Besides):
    """A file without latencies of inference."""

    name: str
    device: str
    environment: dict[str, Any]


class ModelFile(Besides):
    """A file with latencies of inference."""

    name: str
    device: str
    default: str
    predictors: Predictors
    points: list[Point]
    environment: dict[str, Any]
    noise: Noise
    domain: Domain


TERMS_OF = {
    "two-regime": {*FEATURES[:3], CONSTANT},
    "extended": {*FAMILY, *APART, CONSTANT},
}
"""The terms that formulas may have; some had more than this version fits."""


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
        names = ", ".join(map(show, sorted(document["predictors"]))) or "none"
        raise ModelFileError(
            f"{source}: `default` is {show(document['default'])}; expected one of the predictors in the "
            f"file: {names}"
        )
    if fault := _of_another_formula(document, source):
        raise ModelFileError(f"{source}: {fault}")


def _of_another_kind(document: Any) -> str | None:
    """Why a document is no model that this version reads, whatever its fields."""
    if not isinstance(document, dict):
        return f"holds {show(document)}; expected a LoLat model (a JSON object)"
    if document.get("schema") == OF_LAYERS:
        return (
            "a layer model, which tells the time of single layers on many GPUs (`lolat mlp predict`, `mlp "
            "network`); expected the model of a device, as `lolat learn cpu` writes it"
        )
    if document.get("schema") != SCHEMA:
        schema = f"its `schema` is {show(document['schema'])}" if "schema" in document else None
        return (
            f"not a LoLat model: {schema or 'it has no field `schema`'}; expected "
            f'"schema": "{SCHEMA}", as `lolat learn cpu` writes it'
        )
    if "version" not in document:
        return f"the field `version` is missing; expected {FORMAT_VERSION}"
    version = document["version"]
    if type(version) is not int or version != FORMAT_VERSION:
        return (
            f"`version` is {show(version)}; expected {FORMAT_VERSION}: learn the model again with `lolat "
            "learn cpu`, or fit it again with `lolat fit TABLE.csv`"
        )
    return None


def _of_another_formula(document: Mapping[str, Any], source: str) -> str | None:
    """Why a formula of known name is none of this version, and the commands that make the file anew."""
    for name, terms in TERMS_OF.items():
        coefficients = document["predictors"].get(name, {}).get("coefficients", {})
        if unknown := coefficients.keys() - terms:
            return (
                f"its formula {name} is of another version than this LoLat's (it has the term "
                f"{show(min(unknown))}): {_anew(document, source)}"
            )
    return None


def _remade(document: Mapping[str, Any], source: str) -> str:
    """The commands that make a device's latencies of inference."""
    file = as_output(source)
    return f"`{_learn(document)} --output {file}` on the device, or `lolat fit TABLE.csv --output {file}`"


def _anew(document: Mapping[str, Any], source: str) -> str:
    """The command that makes a file again as it was made."""
    file = as_output(near(source))
    if document["environment"].get("device") in ("cpu", "gpu"):
        return f"learn it again on its device: `{_learn(document)} --output {file}`"
    return f"fit it again to its table: `lolat fit TABLE.csv --output {file}`"


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
    file = as_output(source)
    ways = {
        OF_INFERENCE: _remade(document, source),
        OF_TRAINING: f"`{_learn(document)} --mode training --output {file}` on the device, or "
        f"`lolat training fit EPOCHS.csv --output {file}`",
    }
    of_space = f"`lolat nas fit {what} SAMPLES.csv --output {file}`"
    known = " and ".join(knows(document)) or "nothing yet"
    return ModelFileError(
        f"{source} knows {known}, but no {what if what in ways else f'networks of {what}'}; add them with "
        f"{ways.get(what, of_space)}"
    )


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
