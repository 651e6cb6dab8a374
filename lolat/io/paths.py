"""The folders of device profiles, and the search for one by its name. Nothing is created here.

In a checkout: `models/` for the bundled ones, `models/local/` for those learned here. Installed by pip: the
package's own data, and the user's data folder.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from lolat.errors import InputError, LolatError, ModelFileError
from lolat.io.forms import looks_like_network
from lolat.parameters import PRECISIONS
from lolat.units import did_you_mean, plain

AnyPath = str | os.PathLike[str]

LOCAL = "local"
SHIPPED = "shipped"
OFF = "off"
STATE = ".state.json"
"""The ending of a file with the time of the last check; see `lolat.device.state`."""
JOURNAL = ".journal.jsonl"

_FEW = 10  # names in a message
_LEARN = "`lolat learn cpu`"
_XDG = {"data": ("XDG_DATA_HOME", ".local/share"), "cache": ("XDG_CACHE_HOME", ".cache")}
_FOLDERS = {
    "win32": dict.fromkeys(_XDG, ("LOCALAPPDATA", "AppData/Local")),
    "darwin": {"data": ("", "Library/Application Support"), "cache": ("", "Library/Caches")},
}
"""System -> kind of folder -> (its environment variable, its usual place in the home folder)."""


def repository_root() -> Path | None:
    """The checkout that this package runs from; None if it was installed by pip."""
    root = Path(__file__).resolve().parents[2]
    marks = (root / "learn_model.py", root / "pyproject.toml")
    return root if all(mark.is_file() for mark in marks) else None


def local_folder() -> Path:
    """The folder of the device profiles learned on this machine; it need not exist yet.

    Raises InputError if the user has no home folder and the environment names no other place.
    """
    root = repository_root()
    return root / "models" / "local" if root else _user_folder("data") / "models"


def bundled_folder() -> Path:
    """The folder of the bundled device profiles."""
    root = repository_root()
    return root / "models" if root else Path(__file__).resolve().parents[1] / "shipped"


def list_models() -> list[tuple[str, Path, str]]:
    """All device profiles as (name, path, "local" or "shipped"): local first, then by name.

    The files are not opened. Raises InputError if a folder cannot be read.
    """
    places = ((LOCAL, local_folder()), (SHIPPED, bundled_folder()))
    return [(path.stem, path, where) for where, folder in places for path in _models_in(folder)]


def find_model(name: str, others: Callable[[], Iterable[str]] = tuple) -> Path:
    """The file of the device profile that a user means by `name`; it is not opened.

    `local` is the one learned last on this machine. Else `name` is a file, a local or a bundled profile in
    any case, or last a file without its `.json`, so that no file here hides a bundled profile.
    ModelFileError for an unknown name; it tells a similar one, also of those that `others` returns, or all
    profiles.
    """
    if name == LOCAL:
        return _newest_local()
    if os.path.exists(name) and not os.path.isdir(name):
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


def called(path: AnyPath) -> str:
    """The shortest name of a device profile for a command: `local`, a name, or the path."""
    here = Path(path).resolve()
    for name in (LOCAL, here.stem):
        with contextlib.suppress(LolatError):  # none was learned yet, or nobody knows where
            if find_model(name).resolve() == here:
                return name
    return near(path)


def near(path: AnyPath) -> str:
    """A path for people: relative if it is below the working directory."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (OSError, ValueError):  # relative already, elsewhere, or the directory is gone
        return os.fspath(path)


def program() -> str:
    """The command `lolat` as this shell finds it: a path if LoLat's environment is not active."""
    own = Path(sys.executable).with_name("lolat")
    return near(own) if shutil.which("lolat") is None and own.exists() else "lolat"


def shown_path(path: AnyPath) -> str:
    """A path as a message names it: on one line."""
    return plain(os.fsdecode(path)) or "''"


def cache_folder() -> Path | None:
    """The folder of networks that were read: LOLAT_CACHE, or `lolat` among this system's caches.

    None keeps nothing: LOLAT_CACHE is `off`, or no home folder is known.
    """
    if named := os.environ.get("LOLAT_CACHE", ""):
        return None if named == OFF else Path(os.path.abspath(named))
    with contextlib.suppress(InputError):
        return _user_folder("cache")
    return None


def _newest_local() -> Path:
    models = _models_in(local_folder())
    if not models:
        learn = f"learn one with {_LEARN}"
        if any(local_folder().glob(f"*{JOURNAL}")):
            learn = "a `lolat learn` still runs, or was interrupted: give it again to go on"
        message = (
            f"local: no profile of this machine yet (looked in {shown_path(local_folder())}); {learn}, or "
            "name a device (`lolat models`)"
        )
        raise ModelFileError(message, code="unknown-model", model=LOCAL)
    return max(models, key=lambda path: path.stat().st_mtime)


def _models_in(folder: Path) -> list[Path]:
    """Device profiles in a folder, by name, without journals, states and half-written files."""
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if e.name.endswith(".json") and e.is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(
            f"{shown_path(folder)}: the folder of models cannot be read ({error.strerror}); expected "
            "one that this user can read: change its permissions, or name a profile's file"
        ) from None
    visible = (n for n in names if not n.startswith(".") and not n.endswith(STATE))
    return [folder / f"{stem}.json" for stem in sorted(n.removesuffix(".json") for n in visible)]


def _not_found(name: str, names: list[str], others: Iterable[str]) -> tuple[str, str]:
    """The reason why no device profile has this name, and what is expected."""
    if "," in name:
        return (
            "no such device, and one device is expected here",
            "give one at a time (`lolat predict --on` takes several, with --html too)",
        )
    wrong = "no such file" if name.endswith(".json") else "no such device"
    wrong = "is a folder" if name and os.path.isdir(name) else wrong
    if looks_like_network(name):
        wrong += ", it looks like a network, which comes after the device"
        return wrong, "`lolat models` lists the devices"
    there = "there are " + ", ".join(map(shown_path, names)) if names else f"{_LEARN} makes one"
    if len(names) > _FEW:
        there = "`lolat models` lists them"
    stem = Path(name).name.removesuffix(".json").lower()
    # Without its mode a profile's name is that of its GPU.
    near = [*names, LOCAL, *(known.rpartition("-")[0] or known for known in names), *others]
    shown = {known.lower(): shown_path(known) for known in near}
    card = {n: text for n, text in shown.items() if n.split("-")[0] == stem.split("-")[0]}
    hint = did_you_mean(stem, card, "") or did_you_mean(stem, shown, "")
    name_alone, _, word = stem.rpartition("-")
    if name_alone in shown and word in PRECISIONS:
        hint = f"did you mean {shown[name_alone]}, in precision {word}?"
    expected = f"expected a device profile (a file), `local` or the name of a device: {there}"
    if not hint and (number := re.search(r"\d{4}", stem)):  # 3090ti: rtx-3090
        alike = [shown[n] for n in shown if n.endswith(f"-{number[0]}")]
        hint = f"did you mean {' or '.join(alike)}?" * bool(alike)
    if not hint:
        learn = "`lolat learn gpu`" if stem.partition(":")[0] in ("cuda", "gpu") else _LEARN
        expected += f"; {learn} measures this machine, "
        expected += "`lolat fit` takes the times or the data sheet of another"
    return (f"{wrong}; {hint}" if hint else wrong), expected


def _user_folder(kind: str) -> Path:
    """The folder of LoLat among this system's caches ("cache") or a user's data ("data").

    Linux: the XDG specification, which ignores relative paths.
    """
    variable, usual = _FOLDERS.get(sys.platform, _XDG)[kind]
    named = os.environ.get(variable, "")
    try:
        return (Path(named) if os.path.isabs(named) else Path.home() / usual) / "lolat"
    except RuntimeError:
        raise InputError(
            "no home folder is known for this user; expected one to keep models in: set HOME, or "
            "name a profile's file"
        ) from None
