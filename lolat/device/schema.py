"""The schema of a device's JSON file, which every file is validated against.

Sections, each optional: latencies of inference (`predictors`, `points` and others at the top level),
measured `training`, `epochs` of training, search `spaces`, language models (`llm`). The struct of a section
is in the room that uses the section.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from lolat.device.domain import Domain
from lolat.device.predictors import PREDICTORS
from lolat.errors import ModelFileError
from lolat.graph.counts import EXTRAS
from lolat.hardware.environment_section import Environment
from lolat.io.documents import AtLeastOne, Count, NotNegative, Number, Positive, converted
from lolat.units import value_words

SCHEMA = "lolat-model"
FORMAT_VERSION = 1
SECTIONS = ("training", "epochs", "spaces", "llm")
"""The sections other than latencies of inference; `spaces` has a part for each search space."""

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


_FORMULAS = {name.replace("-", "_"): kind for name, kind in PREDICTORS.items()}
_OPTIONAL = [(name, kind | UnsetType, UNSET) for name, kind in _FORMULAS.items()]
_NAMES = {name: kind.name for name, kind in _FORMULAS.items()}


class Predictors(msgspec.defstruct("Formulas", _OPTIONAL, rename=_NAMES)):  # type: ignore[misc]
    """The formulas of PREDICTORS by name; a file may also have formulas of a later version."""


OTHERS = 0.2
"""Number of processors that other programs use, above which a machine counts as busy."""


class Noise(Struct):
    """Relative noise of the machine; unknown values are None.

    `floor`: noise of repeated times of a block; `quiet`, `busy`: times in the calmest and the busiest tenth
    of a run / usual times; `repeatability`: standard deviation of times of the same networks some minutes
    apart (`lolat.microbench.check`). `probe`: times of the probe's calls in ms, by the name of the call.
    `others`: number of processors that other programs used. See `lolat.microbench.learn.noise_of`.
    """

    floor: NotNegative | None = None
    quiet: Positive | None = None
    busy: Positive | None = None
    repeatability: NotNegative | None = None
    probe: dict[str, tuple[Positive, Positive]] | None = None
    others: NotNegative = 0.0


class ServedSheet(Struct):
    """The data sheet's figures that tell apart the forms of a card."""

    memory_gib: Positive
    bandwidth_gb_s: Positive


class ServedOn(Struct):
    """The GPU and the framework in the section `llm`; `lolat.llm.gpu` reads the whole section."""

    sheet: ServedSheet
    framework: str = ""


class Sections(Struct, kw_only=True):
    """The fields that every file has; a file without latencies of inference has no others."""

    name: str
    device: str
    environment: Environment
    warnings: list[str] | UnsetType = UNSET
    epochs: dict[str, Any] | UnsetType = UNSET
    spaces: dict[str, dict[str, Any]] | UnsetType = UNSET
    llm: ServedOn | UnsetType = UNSET


class Before(Struct):
    """The values that a fit in another precision replaced.

    `environment`: the keys that describe the execution mode.
    """

    device: str
    predictors: Predictors
    environment: dict[str, Any]
    warnings: list[str]
    estimated: str | UnsetType = UNSET


class ModelFile(Sections, kw_only=True):
    """A file with latencies of inference; `before`: the values that a fit in another precision replaced.

    `estimated`: see `lolat.device.file.DeviceFile`.
    """

    default: str
    predictors: Predictors
    points: list[StoredPoint]
    noise: Noise
    domain: Domain
    quantized: list[StoredPoint] | UnsetType = UNSET
    before: Before | UnsetType = UNSET
    estimated: str | UnsetType = UNSET


_OF_FORMULA = {
    "nearby": "shape_residuals", "most": "sheet_peak", "turns": "channels_last_terms",
    "turning": "layout_factor",
}  # fmt: skip
_OF_FIT = {"ways": "overheads"}
EARLIER_KEYS = {
    "environment": {"held": "fitted_on"}, "domain": {"least": "minimum"},
    "kernels": _OF_FORMULA, "training-steps": _OF_FORMULA,
    "llm": _OF_FIT, "before": _OF_FIT, "latent": _OF_FIT, "linear": _OF_FIT,
}  # fmt: skip
"""Name of a part of a file -> key in older files -> present key."""


def with_present_keys(value: Any, name: str = "") -> Any:
    """A part of a file with its keys in EARLIER_KEYS renamed; `name`: name of the part."""
    if not isinstance(value, dict):
        return value
    keys = EARLIER_KEYS.get(name, {})
    return {keys.get(key, key): with_present_keys(part, key) for key, part in value.items()}


def _kind_of(document: Any) -> str:
    """A description of a document without a schema."""
    if not isinstance(document, dict):
        return f"a {'list' if isinstance(document, list) else 'single value'}"
    if "model_type" in document:
        return "the configuration of a language model (for `lolat llm GPU CONFIG`)"
    if "operations" in document:
        return "a network (the device comes before it)"
    return (
        f"a file with the keys {', '.join(map(str, [*document][:3]))}"
        if document
        else "an empty file"
    )


def validate(document: Any, source: str) -> None:
    """Raise ModelFileError unless `document`, parsed JSON, is a LoLat profile of version 1.

    `source`: the start of the message; its end states the expected value and where it belongs.
    """
    marks = document if isinstance(document, dict) else {}
    schema, version = marks.get("schema"), marks.get("version")
    if (schema, version) != (SCHEMA, FORMAT_VERSION):
        given = f"schema {value_words(schema)}, version {value_words(version)}"
        given = f"{_kind_of(document)}" if schema is version is None else given
        raise ModelFileError(
            f"{source}: {given} is not a LoLat profile of version {FORMAT_VERSION}; make one: "
            "`lolat learn cpu`, `lolat fit TABLE.csv`",
            code="not-a-model",
        )
    # A file of training, spaces or language models may lack latencies.
    is_without = "predictors" not in document and any(s in document for s in SECTIONS)
    converted(document, Sections if is_without else ModelFile, source)
