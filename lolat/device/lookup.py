"""Finding the file of the device profile that a user names, and advice if there is none."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from lolat.errors import LolatError, ModelFileError
from lolat.io import paths
from lolat.io.forms import CODE_FILE, FRAMEWORK_FILES, looks_like_network
from lolat.io.paths import (
    JOURNAL,
    LOCAL,
    AnyPath,
    list_models,
    models_in,
    relative_path,
    shown_path,
)
from lolat.parameters import PRECISIONS
from lolat.units import did_you_mean

_FEW = 10  # most names in a message
_LEARN = "`lolat learn cpu`"
_KINDS = "CPUs, and GPUs by NVIDIA and AMD, such as epyc-2t, rtx-4090, h100 and mi300x"


def find_model(name: str, others: Callable[[], Iterable[str]] = tuple) -> Path:
    """The path of the device profile that a user means by `name`; the file is not opened.

    `local` is the profile learned last on this machine. Any other name is, in this order: a file, a local
    or bundled profile (letter case is ignored), a file without its suffix `.json`. That order keeps a file
    from hiding a bundled profile. ModelFileError for an unknown name; it suggests a similar name, also from
    `others`, or lists all profiles.
    """
    if name == LOCAL:
        return _newest_local()
    is_network = name.endswith((*FRAMEWORK_FILES, CODE_FILE))
    if os.path.exists(name) and not os.path.isdir(name) and not is_network:
        return Path(name)
    models = list_models()
    for as_is in (str, str.casefold):
        for known, path, _ in models:
            if as_is(name) in (as_is(known), as_is(path.name)):
                return path
    if name and not name.endswith((".json", "/", os.sep)) and os.path.exists(f"{name}.json"):
        return Path(f"{name}.json")
    why, expected = _not_found(name, list(dict.fromkeys(known for known, _, _ in models)), others())
    message = f"{shown_path(name)}: {why}{' ' if why.endswith('?') else '; '}{expected}"
    raise ModelFileError(message, code="unknown-model", model=name, why=why)


def shortest_name(path: AnyPath) -> str:
    """The shortest argument for a device profile in a command: `local`, its name, or its path."""
    here = Path(path).resolve()
    for name in (LOCAL, here.stem):
        with contextlib.suppress(LolatError):  # none was learned yet, or its folder is not known
            if find_model(name).resolve() == here:
                return name
    return relative_path(path)


def _newest_local() -> Path:
    models = models_in(paths.local_folder())
    if not models:
        learn = f"learn one with {_LEARN}"
        if any(paths.local_folder().glob(f"*{JOURNAL}")):
            learn = "a `lolat learn` still runs, or was interrupted: give it again to go on"
        folder = shown_path(paths.local_folder())
        message = (
            f"local: no profile of this machine yet (looked in {folder}); {learn}, or name a device "
            "(`lolat models`)"
        )
        raise ModelFileError(message, code="unknown-model", model=LOCAL)
    return max(models, key=lambda path: path.stat().st_mtime)


ANOTHER = "`lolat fit` takes the times or the data sheet of another"


def _not_found(name: str, names: list[str], others: Iterable[str]) -> tuple[str, str]:
    """(the reason why no device profile has this name, a suggestion what to give instead)."""
    if "," in name:
        return (
            "no such device, and one device is expected here",
            "give one at a time (`lolat predict --on` takes several, with --html too)",
        )
    wrong = "no such file" if name.endswith(".json") else "no such device"
    wrong = "is a folder" if name and os.path.isdir(name) else wrong
    if looks_like_network(name):
        wrong += ", it looks like a network; where both are expected, the device comes first"
        return wrong, "`lolat models` lists the devices"
    stem = Path(name).name.removesuffix(".json").lower()
    # Without its mode a profile's name is that of its GPU.
    known_names = [*names, LOCAL, *(known.rpartition("-")[0] or known for known in names), *others]
    shown = {known.lower(): shown_path(known) for known in known_names}
    word, _, form = stem.partition("-")
    card = {n: text for n, text in shown.items() if n.split("-")[0] == word}
    like = {n: text for n, text in card.items() if form and n.startswith(f"{word}-{form[:2]}")}
    hint = did_you_mean(stem, card, "") or did_you_mean(f"{word}-{form[:2]}", like, "")
    hint = hint or did_you_mean(f"rtx-{stem}" if stem.isdecimal() else stem, shown, "")
    name_alone, _, word = stem.rpartition("-")
    if name_alone in shown and word in PRECISIONS:
        hint = f"did you mean {shown[name_alone]}, in precision {word}?"
    if not hint and name_alone in shown:
        hint = f"did you mean {shown[name_alone]}?"
    if not hint and (number := re.search(r"\d{4}", stem)):  # 3090ti: rtx-3090
        alike = [shown[n] for n in shown if n.endswith(f"-{number[0]}")]
        hint = f"did you mean {' or '.join(alike)}?" if alike else ""
    there = "there are " + ", ".join(map(shown_path, names)) if names else f"{_LEARN} makes one"
    if len(names) > _FEW:
        there = "`lolat models` lists them" if hint else f"{_KINDS} (`lolat models` lists them)"
    expected = f"expected a device profile (a file), `local` or the name of a device: {there}"
    if not hint:
        learn = "`lolat learn gpu`" if stem.partition(":")[0] in ("cuda", "gpu") else _LEARN
        expected += f"; {learn} measures this machine, "
        expected += ANOTHER
    elif re.search(r"\d{3}", stem):  # a card that is not known
        expected += f"; {ANOTHER}"
    return (f"{wrong}; {hint}" if hint else wrong), expected
