"""The folders of device profiles and caches, and paths in messages. Creates nothing.

In a checkout, bundled profiles are in `models/` and profiles learned here in `models/local/`. Installed by
pip, they are in the package's data and in the user's data folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sys
from pathlib import Path

from lolat.errors import InputError
from lolat.units import plain

AnyPath = str | os.PathLike[str]

LOCAL = "local"
SHIPPED = "shipped"
OFF = "off"
STATE = ".state.json"
"""The ending of a file with the result of the last check; see `lolat.device.state`."""
JOURNAL = ".journal.jsonl"
_FULL = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT}

_XDG = {"data": ("XDG_DATA_HOME", ".local/share"), "cache": ("XDG_CACHE_HOME", ".cache")}
_FOLDERS = {
    "win32": dict.fromkeys(_XDG, ("LOCALAPPDATA", "AppData/Local")),
    "darwin": {"data": ("", "Library/Application Support"), "cache": ("", "Library/Caches")},
}
"""Operating system -> kind of folder -> (environment variable, default place in the home folder)."""


def repository_root() -> Path | None:
    """The checkout that this package runs from; None if it was installed by pip."""
    root = Path(__file__).resolve().parents[2]
    marks = (root / "learn_model.py", root / "pyproject.toml")
    return root if all(mark.is_file() for mark in marks) else None


def local_folder() -> Path:
    """The folder of the device profiles learned on this machine, which may not exist yet.

    Raises InputError if the user has no home folder and the environment names no other place.
    """
    root = repository_root()
    return root / "models" / "local" if root else _user_folder("data") / "models"


def bundled_folder() -> Path:
    """The folder of the bundled device profiles."""
    root = repository_root()
    return root / "models" if root else Path(__file__).resolve().parents[1] / "shipped"


def list_models() -> list[tuple[str, Path, str]]:
    """All device profiles as (name, path, "local" or "shipped"), sorted: local first, then by name.

    The files are not opened. Raises InputError if a folder cannot be read.
    """
    places = ((LOCAL, local_folder()), (SHIPPED, bundled_folder()))
    return [(path.stem, path, where) for where, folder in places for path in models_in(folder)]


def relative_path(path: AnyPath) -> str:
    """A path for messages: relative if it is below the working directory."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (OSError, ValueError):  # relative already, elsewhere, or the directory is gone
        return os.fspath(path)


def program() -> str:
    """The command with which this shell finds `lolat`: a path if LoLat's environment is not active."""
    own = Path(sys.executable).with_name("lolat")
    return relative_path(own) if shutil.which("lolat") is None and own.exists() else "lolat"


def shown_path(path: AnyPath) -> str:
    """A path as a message names it: on one line."""
    return plain(os.fsdecode(path)) or "''"


def cache_folder() -> Path | None:
    """The folder that caches read networks: LOLAT_CACHE, or `lolat` in the system's cache folder.

    None if nothing is cached: LOLAT_CACHE is `off`, or no home folder is known.
    """
    if named := os.environ.get("LOLAT_CACHE", ""):
        return None if named == OFF else Path(os.path.abspath(named))
    with contextlib.suppress(InputError):
        return _user_folder("cache")
    return None


def models_in(folder: Path) -> list[Path]:
    """The device profiles in a folder, sorted by name; no journals, states or partly written files."""
    try:
        with os.scandir(folder) as entries:
            names = [e.name for e in entries if e.name.endswith(".json") and e.is_file()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(
            f"{shown_path(folder)}: the folder of profiles cannot be read ({error.strerror}); expected "
            "one that this user can read: change its permissions, or name a profile's file"
        ) from None
    visible = (n for n in names if not n.startswith(".") and not n.endswith(STATE))
    return [folder / f"{stem}.json" for stem in sorted(n.removesuffix(".json") for n in visible)]


def _user_folder(kind: str) -> Path:
    """LoLat's folder in the system's cache folder (`kind` "cache") or the user's data folder ("data").

    On Linux it follows the XDG specification, which ignores relative paths.
    """
    variable, usual = _FOLDERS.get(sys.platform, _XDG)[kind]
    named = os.environ.get(variable, "")
    try:
        return (Path(named) if os.path.isabs(named) else Path.home() / usual) / "lolat"
    except RuntimeError:
        raise InputError(
            "no home folder is known for this user; expected one to keep profiles in: set HOME, or "
            "name a profile's file"
        ) from None


def reason_of(error: Exception) -> str:
    """The operating system's reason for refusing a file, for messages."""
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, OSError) and error.errno in _FULL:
        return f"the disk is full: {error.strerror}"
    return " ".join(str(getattr(error, "strerror", None) or error).split())
