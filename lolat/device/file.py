"""The JSON file of a device: its shape, reading, writing, sections, and the state file beside it.

Sections, each optional: latencies of inference (`predictors`, `points` and others at the top), measured
`training`, `epochs` of training, search `spaces`, language models (`llm`). The room that uses a section has
its struct. Here a document is only checked and stays a dict, so that keys of a later minor version survive.

`lolat doctor` and `lolat evaluate` write their last check into `desk.state.json` beside `desk.json`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from lolat.device.domain import Domain
from lolat.device.intervals import noise_level
from lolat.device.predictors import AdditiveCosts, Roofline, TrainingSteps, TwoRegime
from lolat.errors import InputError, LolatError, ModelFileError, arg
from lolat.graph.counts import EXTRAS
from lolat.hardware.gpus import card_of, gpu_of, name_of
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
from lolat.io.paths import STATE, AnyPath, bundled_folder, list_models, near, shown_path
from lolat.io.writing import write_bytes
from lolat.units import off, percent, plural, shortened

SCHEMA = "lolat-model"
FORMAT_VERSION = 1
SECTIONS = ("training", "epochs", "spaces", "llm")
"""The sections besides the latencies of inference; `spaces` has a part for each space."""
OF_INFERENCE = "latencies of inference"
OF_TRAINING = "training"
OF_LANGUAGE_MODELS = "operations of language models"
MODEL_PARTS = (OF_INFERENCE, OF_TRAINING, OF_LANGUAGE_MODELS)
UNKNOWN = "unknown"  # the name of an unnamed device

# ---- The shape of a model file

_MORE: list[Any] = [(name, Count | None, None) for name in EXTRAS]


class StoredPoint(msgspec.defstruct("Extras", _MORE), kw_only=True):  # type: ignore[misc, call-arg]
    """One measured block or network; see `lolat.tables.blocks.Point`."""

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
    scheme: str = ""


class Predictors(Struct, rename={"two_regime": "two-regime", "training_steps": "training-steps"}):
    """The predictors that this version knows; a file may have others."""

    two_regime: TwoRegime | UnsetType = UNSET
    extended: AdditiveCosts | UnsetType = UNSET
    kernels: Roofline | UnsetType = UNSET
    training_steps: TrainingSteps | UnsetType = UNSET


class Noise(Struct):
    """Noise of the machine, for latencies and for training; see `lolat.microbench.learn.noise_of`."""

    floor: NotNegative = 0.0
    quiet: Positive | UnsetType = UNSET
    busy: Positive | UnsetType = UNSET
    repeatability: NotNegative | UnsetType = UNSET
    probe: dict[str, tuple[Positive, Positive]] | UnsetType = UNSET


class Sections(Struct, kw_only=True):
    """The fields of every file; a file without latencies of inference has no others."""

    name: str
    device: str
    environment: dict[str, Any]
    warnings: list[str] | UnsetType = UNSET
    epochs: dict[str, Any] | UnsetType = UNSET
    spaces: dict[str, dict[str, Any]] | UnsetType = UNSET
    llm: dict[str, Any] | UnsetType = UNSET


class Before(Struct):
    """The fields that a fit in another precision changed, as they were; `environment`: its words on the
    mode.
    """

    device: str
    predictors: Predictors
    environment: dict[str, Any]
    warnings: list[str]
    estimated: str | UnsetType = UNSET


class ModelFile(Sections, kw_only=True):
    """A file with latencies of inference; `before`: in the precision before the last fit.

    `estimated`, `of_form`: remarks on data sheets, see `lolat.device.running`.
    """

    default: str
    predictors: Predictors
    points: list[StoredPoint]
    noise: Noise
    domain: Domain
    quantized: list[StoredPoint] | UnsetType = UNSET
    before: Before | UnsetType = UNSET
    estimated: str | UnsetType = UNSET
    of_form: str | UnsetType = UNSET


def validate(document: Any, source: str) -> None:
    """Raise ModelFileError unless `document`, parsed JSON, is a LoLat model of version 1.

    `source`: one line that begins the message, which goes on with the expected value and its place.
    """
    marks = document if isinstance(document, dict) else {}
    schema, version = marks.get("schema"), marks.get("version")
    if (schema, version) != (SCHEMA, FORMAT_VERSION):
        raise ModelFileError(
            f"{source}: schema {shortened(repr(schema))}, version {shortened(repr(version))} is not a "
            f"LoLat model of version {FORMAT_VERSION}; make one: `lolat learn cpu`, `lolat fit TABLE.csv`",
            code="not-a-model",
        )
    # A file of training, spaces or language models may lack latencies.
    is_without = "predictors" not in document and any(s in document for s in SECTIONS)
    converted(document, Sections if is_without else ModelFile, source)


# ---- Reading and writing


def read(path: AnyPath) -> dict[str, Any]:
    """Parse and `validate` the model file at `path`. ModelFileError if it cannot be read or is none.

    A file that has not changed is parsed once, so nothing inside the document may be changed.
    """
    mark = (0, 0, 0)
    with contextlib.suppress(OSError, ValueError):  # `read_json` says it
        file = os.stat(path)
        mark = (file.st_ino, file.st_mtime_ns, file.st_size)
    return {**_read_once(os.fspath(path), mark)}


@lru_cache(maxsize=256)
def _read_once(path: str, mark: tuple[int, int, int]) -> dict[str, Any]:
    """See `read`; `mark`: tells the file as it is now from what it was before."""
    hint = "`lolat learn cpu` makes one, `lolat models` lists those there are"
    document: dict[str, Any] = read_json(path, "expected a LoLat model file", hint=hint)
    validate(document, shown_path(near(path)))
    return document


def write(path: AnyPath, document: dict[str, Any]) -> None:
    """`validate` a document and write it whole or not at all; raises as these and `write_bytes` do."""
    source = shown_path(path)
    validate(document, source)
    write_bytes(path, to_json(document, source).encode("ascii"))


# ---- Sections: which a file has, which it lacks, how one is added


def knows(document: Mapping[str, Any]) -> list[str]:
    """The sections of a model file in words."""
    known = [OF_INFERENCE] * ("predictors" in document)
    known += ["training, measured"] * ("training" in document)
    known += ["epochs of training"] * ("epochs" in document)
    known += ["language models (`lolat llm`)"] * ("llm" in document)
    return [*known, *(f"networks of {space}" for space in sorted(document.get("spaces", {})))]


def answers_for(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The questions that a model file answers: "language models", "networks", "training", "spaces", or
    "layers" if it was fitted to the single layers of 2018.
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
    """The error of a file that lacks a section: one of MODEL_PARTS, or the space named `section`."""
    known = " and ".join(knows(document)) or "nothing yet"
    lacking = section if section in MODEL_PARTS else f"networks of {section}"
    others = "`lolat models` lists those that do"
    if section in MODEL_PARTS and "llm" in document and (card := card_of(name_of(document))):
        others = f"for networks ask `{card.casefold().replace(' ', '-')}`"
    elif section == OF_LANGUAGE_MODELS and (names := _serving(document)):
        others = f"for language models ask {' or '.join(f'`{name}`' for name in names)}"
    return ModelFileError(
        f"{source} knows {known}, but no {lacking}; {others}; or add them with "
        f"{how_to_add(document, source, section)}"
    )


def _serving(document: Mapping[str, Any]) -> list[str]:
    """The names of the files of the same card that know language models."""
    card, found = card_of(name_of(document)), list[str]()
    for name, path, _ in list_models():
        with contextlib.suppress(LolatError):  # a damaged one
            other = read(path)
            found += [name] * ("llm" in other and card_of(name_of(other)) == card)
    return found


def how_to_add(document: Mapping[str, Any], source: str, section: str) -> str:
    """The commands that add to a file a section that it `lacks`."""
    path, where = Path(source), document["environment"]
    is_shipped = path.resolve().parent == bundled_folder().resolve()  # which is never written to
    file = quote(path.name if is_shipped else source)
    if section == OF_LANGUAGE_MODELS:
        return (
            f"`lolat fit KERNELS.csv --facts devices.csv --device NAME --output {file}`, from what "
            "examples/time_operations.py writes"
        )
    if section not in (OF_INFERENCE, OF_TRAINING):
        return f"`lolat nas fit {section} SAMPLES.csv --output {file}`"
    device = "gpu" if where.get("device") == "gpu" or gpu_of(document) else "cpu"
    backend = f" --backend {where['framework']}" if "framework" in where else ""
    mode = " --mode training" if section == OF_TRAINING else ""
    table = "EPOCHS.csv" if section == OF_TRAINING else "TABLE.csv"
    learn = f"`lolat learn {device}{backend}{mode} --output {file}` on the device"
    return f"{learn}, or `lolat fit {table} --output {file}`"


def made(name: str, device: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    """A model file of a device, without sections."""
    return {
        "schema": SCHEMA,
        "version": FORMAT_VERSION,
        "name": name,
        "device": device,
        "environment": dict(environment),
    }


def put(path: AnyPath, sections: Mapping[str, Any], device: str | None = None) -> None:
    """Write `sections` into the model file at `path`, new or not; raises as `merged` and `write` do."""
    write(path, merged(path, made(Path(path).stem, device or UNKNOWN, {}) | dict(sections)))


def merged(path: AnyPath, new: dict[str, Any]) -> dict[str, Any]:
    """The document `new` with the sections of the file at `path` that it lacks.

    InputError if the file is of another device, ModelFileError if it is no model file.
    """
    if not Path(path).exists():
        return new
    old = read(path)
    label, called, own = (
        str(text).partition(" (")[0].strip().casefold()
        for text in (old["device"], old["name"], new["device"])
    )
    if own not in (label, called) and UNKNOWN not in (label, own):
        raise InputError(
            f"{shown_path(path)} is a model of another device: {old['device']}, and this is "
            f"{new['device']}; give another {arg('output')}, or call it the same",
            code="other-device",
        )
    if "predictors" in new:
        document = {section: old[section] for section in SECTIONS if section in old} | new
        device, other = new["device"], old["device"]
    else:
        document = old | {section: new[section] for section in SECTIONS if section in new}
        device, other = old["device"], new["device"]
    if spaces := {**old.get("spaces", {}), **new.get("spaces", {})}:
        document["spaces"] = spaces
    # The brackets behind a device's name say how it was measured.
    name, bracket, how = device.partition(" (")
    name = other.partition(" (")[0] if name == UNKNOWN else name
    return document | {"device": name + bracket + how}


# ---- The state of a model that was measured on this machine

LIMIT = 0.1
"""The largest change of a machine's times, relative, at which its model still holds; see `limit_of`."""
CHECKED = "checked"
"""Key of a document in memory, never in a file: the Check that a probe made for its answers."""
OLD_AGE = timedelta(days=1)
"""The age, since it was learned or its last check, at which a model gets a remark."""


@dataclass(frozen=True)
class Check:
    """A check of a model on its machine: `ratio`: new over learned time; `limit`: its largest distance
    from 1.
    """

    by: Literal["doctor", "evaluate", "probe"]
    date: str
    ratio: Positive
    limit: Positive

    @property
    def is_off(self) -> bool:
        """True if the machine's times have changed by more than the limit."""
        return off(self.ratio) > self.limit


@dataclass(frozen=True)
class State:
    """The age of a model, in whole days, and its last check.

    `remark`: both in words; null if the model was learned or held within a day.
    """

    learned: str
    age_days: int
    check: Check | None
    remark: str | None


def limit_of(document: Mapping[str, Any]) -> float:
    """The largest distance from 1 of new over learned times: LIMIT, or the repeatability if larger."""
    return max(LIMIT, noise_level(document, "repeatability") or 0.0)


def state_of(document: Mapping[str, Any], source: str) -> State | None:
    """The state of the model in the file `source`; None unless it was measured on this machine."""
    learned = _learned_here(document, source)
    if learned is None:
        return None
    check, remark = document.get(CHECKED), None
    if check is None:
        with contextlib.suppress(LolatError, msgspec.ValidationError, KeyError):
            stored = read_json(_state_file(source), "expected a state")
            if stored["learned"] == learned:
                check = msgspec.convert(stored["check"], Check)
    if check is None and age_of(learned) >= OLD_AGE:
        remark = f"learned {ago(learned)}, not checked since"
    elif check is not None and (check.is_off or age_of(check.date) >= OLD_AGE):
        beyond = f", which is more than {percent(check.limit)} off" if check.is_off else ""
        times = f"{check.ratio:.2f} times as long as learned{beyond}"
        remark = f"learned {ago(learned)}, checked {ago(check.date)}: {times}"
    return State(learned, age_of(learned).days, check, remark)


def checked(by: Literal["doctor", "evaluate", "probe"], ratio: float, limit: float) -> Check:
    """A check of a model, made now."""
    return Check(by, now().isoformat(timespec="seconds"), ratio, limit)


def write_check(
    document: Mapping[str, Any], source: str, by: Literal["doctor", "evaluate"], ratio: float
) -> None:
    """Write a check beside the model, if it has a state and its folder can be written to."""
    learned = _learned_here(document, source)
    if learned is not None:
        check = checked(by, ratio, limit_of(document))
        stored = {"learned": learned, "check": msgspec.to_builtins(check)}
        with contextlib.suppress(LolatError):
            write_bytes(_state_file(source), to_json(stored).encode("ascii"))


def _learned_here(document: Mapping[str, Any], source: str) -> str | None:
    """The date of a model that was measured here; None if it is bundled or from published times."""
    where, path = document["environment"], Path(source).resolve()
    is_measured = where.get("device") in ("cpu", "gpu") and "source" not in where
    is_here = path.is_file() and path.parent != bundled_folder().resolve()
    return str(where["date"]) if is_measured and is_here and moment(where.get("date")) else None


def _state_file(source: str) -> Path:
    path = Path(source).resolve()
    return path.with_name(path.name.removesuffix(".json") + STATE)


def now() -> datetime:
    """The time of this machine's clock."""
    return datetime.now(UTC)


def moment(date: Any) -> datetime | None:
    """The date in a file, in UTC; None if it is none or has no time zone."""
    try:
        when = datetime.fromisoformat(date)
    except (TypeError, ValueError):
        return None
    return when.astimezone(UTC) if when.tzinfo is not None else None


def age_of(date: str) -> timedelta:
    """The time since a date of a file; 0 for one in the future, from another clock."""
    return max(now() - (moment(date) or now()), timedelta(0))


def ago(date: str) -> str:
    """The age of a date in words: 5 minutes ago, 3 days ago."""
    age = age_of(date)
    minutes = int(age.total_seconds() / 60)
    if minutes < 120:
        return f"{plural(minutes, 'minute')} ago"
    return f"{minutes // 60} hours ago" if age < timedelta(days=2) else f"{age.days} days ago"
