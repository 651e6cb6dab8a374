"""The JSON file of a device: reading, writing, and its sections (`lolat.device.schema` checks it).

The document is kept as it is, so that keys of a later minor version survive; `DeviceFile` offers its parts
as structs.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from lolat.device import schema
from lolat.device.domain import Domain
from lolat.device.predictors import PREDICTORS, Roofline
from lolat.device.predictors.formula import Formula
from lolat.errors import InputError, LolatError, arg
from lolat.graph.modes import COMPILED, EAGER, FLOAT16, FLOAT32, Mode
from lolat.hardware.environment_section import Environment
from lolat.hardware.hardware import Hardware
from lolat.hardware.processors import with_generation
from lolat.io.documents import read_json, to_json
from lolat.io.paths import AnyPath, list_models, relative_path, shown_path
from lolat.io.results import Remark
from lolat.io.writing import write_bytes

if TYPE_CHECKING:
    from lolat.device.state import Check

OF_INFERENCE = "latencies of inference"
OF_TRAINING = "training"
OF_LANGUAGE_MODELS = "operations of language models"
MODEL_PARTS = (OF_INFERENCE, OF_TRAINING, OF_LANGUAGE_MODELS)
QuestionKind = Literal["language models", "networks", "layers", "training", "spaces"]
"""A kind of question that a file can answer. "layers": the file was fitted to single layers, as Justus et
al. (2018) timed them."""
UNKNOWN = "unknown"  # the name of an unnamed device

# ---- Reading and writing


def read(path: AnyPath) -> DeviceFile:
    """Parse and `validate` the profile at `path`; ModelFileError if it cannot be read or is not a profile.

    An unchanged file is parsed only once, so callers must not modify the document.
    """
    mark = (0, 0, 0)
    with contextlib.suppress(OSError, ValueError):  # `read_json` raises the error
        file = os.stat(path)
        mark = (file.st_ino, file.st_mtime_ns, file.st_size)
    return _read_once(os.fspath(path), mark)


@lru_cache(maxsize=256)
def _read_once(path: str, mark: tuple[int, int, int]) -> DeviceFile:
    """Read a profile, cached by `path` and `mark`; `mark` changes whenever the file does. See `read`."""
    hint = "`lolat learn cpu` makes one, `lolat models` lists those there are"
    document = schema.with_present_keys(read_json(path, "expected a device profile", hint=hint))
    schema.validate(document, shown_path(relative_path(path)))
    return DeviceFile(document)


def readable_models(
    wanted: Callable[[str], bool] = bool,
) -> Iterator[tuple[str, Path, str, DeviceFile]]:
    """Yield (name, path, origin, contents) of each readable profile in `list_models`.

    `wanted`: True for a name whose file should be opened. A damaged file is left out, so that it does not
    stop questions about other profiles. InputError as in `list_models`.
    """
    for name, path, where in list_models():
        if wanted(name):
            with contextlib.suppress(LolatError):
                yield name, path, where, read(path)


def write(path: AnyPath, document: Mapping[str, Any]) -> None:
    """Validate a document and write it atomically; raises as `schema.validate` and `write_bytes` do."""
    source = shown_path(path)
    schema.validate(document, source)
    write_bytes(path, to_json(document, source).encode("ascii"))


# ---- A file that was read


class DeviceFile(Hardware):
    """The file of a device, with its parts as structs.

    - `document`: the JSON, with the keys of a later minor version.
    - `name`: the profile's name.
    - `device`: the device's name, with its execution mode in brackets.
    - `formulas`: name -> formula, for the formulas that this version knows.
    - `kernels`: the roofline formula; None without one.
    - `domain`: the range of the measurements.
    - `default`: the name of the default formula; "" without latencies.
    - `other_form`: a remark on the card that was measured in place of the device; else None.
    - `estimated`: the reason why times in the file's precision are estimates: a data sheet
      (`execution_modes`), own networks in another precision (`fitting.refined`), or rows that were probably
      timed in TF32 (`fitting.from_tables`).
    - `warnings`: the remarks made when the file was made.
    - `training`, `epochs`, `llm`: the sections of `lolat.training.measured`, `lolat.training.epochs` and
      `lolat.llm.gpu`; None if the file lacks them.
    - `spaces`: name -> search space.
    - `recorded`: the environment as written, for `lolat.microbench.environment`.

    Not written to the file: `changes`, the remarks on times that were scaled after reading, and `check`,
    the last check of this machine.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        changes: tuple[Remark, ...] = (),
        check: Check | None = None,
    ) -> None:
        """`document`: the contents of a valid file."""
        self.document, self.changes, self.check = document, changes, check
        self.name: str = document["name"]
        self.has_latencies = "predictors" in document
        self.formulas: dict[str, Formula] = {
            name: msgspec.convert(entry, PREDICTORS[name])
            for name, entry in document.get("predictors", {}).items()
            if name in PREDICTORS
        }
        kernels = self.formulas.get(Roofline.name)
        self.kernels = kernels if isinstance(kernels, Roofline) else None
        self.noise = msgspec.convert(document.get("noise", {}), schema.Noise)
        self.domain = msgspec.convert(document.get("domain", {}), Domain)
        self.default: str = document.get("default", "")
        self.other_form = Remark(*document["other_form"]) if "other_form" in document else None
        self.estimated: str | None = document.get("estimated")
        self.warnings: Sequence[str] = document.get("warnings", ())
        self.training, self.epochs, self.llm = map(document.get, ("training", "epochs", "llm"))
        self.spaces: dict[str, dict[str, Any]] = document.get("spaces", {})
        self.recorded: Mapping[str, Any] = document["environment"]
        where = msgspec.convert(self.recorded, Environment)
        self.device = with_generation(document["device"], where.processor or {})
        super().__init__(self.device.partition(" (")[0], where)

    def but(self, **parts: Any) -> DeviceFile:
        """A copy with the given parts replaced; a part that is None is removed."""
        every = {**self.document, **parts}
        parts = {name: part for name, part in every.items() if part is not None}
        return DeviceFile(parts, self.changes, self.check)

    def changed(self, remark: Remark, check: Check | None = None) -> DeviceFile:
        """A copy with another remark in `changes`, and with the check that led to it, if any."""
        return DeviceFile(self.document, (*self.changes, remark), check or self.check)

    def called(self, product: str | None) -> str:
        """The device's name with another product in it (None: its own); the mode in brackets stays."""
        return (product or self.product) + self.device.removeprefix(self.product)

    def with_formulas(self, *formulas: Formula) -> DeviceFile:
        """A copy in which these formulas replace the formulas of the same names."""
        changed = {formula.name: formula.to_dict() for formula in formulas}
        return self.but(predictors=self.document["predictors"] | changed)

    # ---- Latencies of inference

    @cached_property
    def points(self) -> list[schema.StoredPoint]:
        """The measured blocks and networks."""
        return msgspec.convert(self.document.get("points", []), list[schema.StoredPoint])

    @cached_property
    def mode(self) -> Mode:
        """The execution mode of the latencies."""
        if self.kernels is not None:
            return self.kernels.mode
        where = self.environment
        dtype, launch = FLOAT16 if where.half else FLOAT32, COMPILED if where.compile else EAGER
        return Mode(dtype, launch, where.channels_last)

    @property
    def has_tf32(self) -> bool:
        """True if float32 convolutions run in TF32, which is PyTorch's default on GPUs that support it."""
        kernels = self.kernels
        if kernels is None or kernels.mode.dtype != FLOAT32:
            return False
        return kernels.tf32 > 1.0 or (self.gpu is not None and self.gpu.tf32_tflops is not None)

    @property
    def is_measured(self) -> bool:
        """True if something was measured on the device itself, in the precision of the file."""
        is_by_sheet = self.other_form is not None or self.estimated is not None
        return not is_by_sheet and (self.kernels is None or bool(self.kernels.measured))

    @property
    def batch_sizes(self) -> tuple[int, int] | None:
        """The smallest and the largest batch size of the measurements; None if the file does not say."""
        sizes = self.environment.fitted_on.batch_sizes or [p.batch_size for p in self.points]
        return (min(sizes), max(sizes)) if sizes else None

    @property
    def timed_batches(self) -> tuple[int, int] | None:
        """The smallest and the largest batch size of timed networks; None without any, or if unknown."""
        return self.batch_sizes if self.environment.fitted_on.networks else None

    def errors(self, predictor: str) -> dict[str, float]:
        """Relative errors of a formula: on held-out networks, else held-out points, else its own points."""
        errors = self.document["predictors"][predictor].get("error", {})
        kinds = ("networks_left_out", "left_out", "fitted")
        figures: Mapping[str, float | None] = next(
            (errors[kind] for kind in kinds if errors.get(kind)), {}
        )
        return {name: value for name, value in figures.items() if value is not None}

    @property
    def loaded(self) -> Remark | None:
        """A remark if other programs ran during the measurements, which lengthens the times; else None."""
        others = self.noise.others
        if others <= schema.OTHERS:
            return None
        able = (self.environment.processor or {}).get("threads")
        return Remark(
            "learned while other programs ran, so on an idle machine networks are faster",
            f"they used {others:.1f}{f' of {able}' if able else ''} processors; close them and learn again",
        )

    @property
    def notes(self) -> list[str]:
        """All remarks on a device: on data sheets, and the remarks made when its file was made."""
        return [*filter(None, (self.other_form, self.estimated)), *self.warnings]

    # ---- Other sections

    @property
    def sections(self) -> dict[str, Any]:
        """The sections other than the latencies of inference."""
        return {name: self.document[name] for name in schema.SECTIONS if name in self.document}

    @property
    def epochs_mode(self) -> Mode | None:
        """The execution mode of the timed epochs, float32 by default; None without timed epochs."""
        return None if self.epochs is None else msgspec.convert(self.epochs.get("mode") or {}, Mode)

    @property
    def served_on(self) -> schema.ServedOn | None:
        """The GPU and the framework of the section on language models; None without that section."""
        return None if self.llm is None else msgspec.convert(self.llm, schema.ServedOn)

    @property
    def knows(self) -> list[str]:
        """The sections of the file in words."""
        known = {
            OF_INFERENCE: self.has_latencies,
            "training, measured": self.training is not None,
            "epochs of training": self.epochs is not None,
            "language models (`lolat llm`)": self.llm is not None,
        }
        words = [name for name, is_known in known.items() if is_known]
        return [*words, *(f"networks of {label}" for label in sorted(self.space_labels.values()))]

    @property
    def space_labels(self) -> dict[str, str]:
        """Name of each search space in the file -> its name for people."""
        return {name: str(part.get("label") or name) for name, part in self.spaces.items()}

    @property
    def answers_for(self) -> tuple[QuestionKind, ...]:
        """The kinds of questions that the file answers."""
        of_layers = self.environment.of_layers
        known: dict[QuestionKind, bool] = {
            "language models": self.llm is not None,
            "networks": self.has_latencies and not of_layers,
            "layers": of_layers,
            "training": self.training is not None or self.epochs is not None,
            "spaces": bool(self.spaces),
        }
        return tuple(name for name, is_known in known.items() if is_known)


# ---- Making and joining files


def new_document(name: str, device: str, environment: Mapping[str, Any]) -> dict[str, Any]:
    """A new profile of a device, without any section."""
    return {
        "schema": schema.SCHEMA,
        "version": schema.FORMAT_VERSION,
        "name": name,
        "device": device,
        "environment": dict(environment),
    }


def add_sections(path: AnyPath, sections: Mapping[str, Any], device: str | None = None) -> None:
    """Write `sections` into the profile at `path`, new or not; raises as `merged` and `write` do."""
    new = new_document(Path(path).stem, device or UNKNOWN, {}) | dict(sections)
    write(path, merged(path, DeviceFile(new)).document)


def merged(path: AnyPath, own: DeviceFile) -> DeviceFile:
    """The file `own`, completed by the sections that only the file at `path` has.

    InputError if that file is of another device, ModelFileError if it is not a profile.
    """
    if not Path(path).exists():
        return own
    old = read(path)
    names = {old.product.strip().casefold(), old.name.partition(" (")[0].strip().casefold()}
    if own.product.strip().casefold() not in names and UNKNOWN not in (old.product, own.product):
        raise InputError(
            f"{shown_path(path)} is the profile of another device: {old.device}, and this is {own.device}; "
            f"give another {arg('output')}, or call it the same",
            code="other-device",
        )
    file, other = (own, old) if own.has_latencies else (old, own)
    sections = {**old.sections, **own.sections, "spaces": {**old.spaces, **own.spaces} or None}
    return file.but(
        **sections, device=file.called(other.product if file.product == UNKNOWN else None)
    )
