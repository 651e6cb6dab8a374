"""The sections of a device's model file: what a file knows, what it lacks, how one is added."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import Any

from lolat.errors import InputError, ModelFileError
from lolat.io.paths import shipped_folder
from lolat.io.writing import AnyPath, shown_path
from lolat.model.file import FORMAT_VERSION, SCHEMA, SECTIONS, UNKNOWN, read, write

NAMED = ("spaces", "links")
"""Sections with a part for each name; a new part leaves the others."""
OF_INFERENCE = "latencies of inference"
OF_TRAINING = "training"


def knows(document: Mapping[str, Any]) -> list[str]:
    """What a model file knows of its device, in words."""
    known = [OF_INFERENCE] * ("predictors" in document)
    known += ["training, measured"] * ("training" in document)
    known += ["epochs of training"] * ("epochs" in document)
    known += [f"networks of {space}" for space in sorted(document.get("spaces", {}))]
    return [*known, *(f"the link of {name}" for name in sorted(document.get("links", {})))]


def lacks(document: Mapping[str, Any], source: str, what: str) -> ModelFileError:
    """What is to be raised where a file does not know `what`, a word above or the name of a space."""
    file = as_output(source)
    kind = document["environment"].get("device")
    learn = f"lolat learn {kind if kind in ('cpu', 'gpu') else 'cpu'}"
    ways = {
        OF_INFERENCE: f"`{learn} --output {file}` on the device, or `lolat fit TABLE.csv --output {file}`",
        OF_TRAINING: f"`{learn} --mode training --output {file}` on the device, or "
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


# ---- Adding to a file.


def put(
    path: AnyPath,
    section: str,
    content: Mapping[str, Any],
    device: str | None = None,
    environment: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write `content` under `section` of the model file at `path`, whole or not at all; its document.

    All else that the file knows stays; of NAMED `content` has the parts to add or to replace. Where there
    is no file, one of `device`, measured in `environment`, is made. InputError where the file is of another
    device, ModelFileError where something else stands there: nothing is lost.
    """
    here = Path(path)
    old = read(here) if here.exists() else None
    if old is None:
        old = {
            "schema": SCHEMA,
            "version": FORMAT_VERSION,
            "name": here.stem,
            "device": device or UNKNOWN,
            "environment": dict(environment or {}),
        }
    else:
        old = {**old, "device": same_device(here, old, device)}
    known = old.get(section, {}) if section in NAMED else {}
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
            "--output, or call it the same"
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
