"""Where models live, and how a model is found by its name.

In a checkout: `models/` for those that are shipped, `models/local/` for those learned here. Where
LoLat is installed: the package's own data, and the user's data folder. Nothing is created here.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from lolat.errors import InputError, ModelFileError

LOCAL = "local"
SHIPPED = "shipped"

_LEARN = "`python learn_model.py cpu`"


def repository_root() -> Path | None:
    """The checkout that this package runs from, or None where it is installed by pip."""
    root = Path(__file__).resolve().parents[2]
    marks = (root / "learn_model.py", root / "pyproject.toml")
    return root if all(mark.is_file() for mark in marks) else None


def local_folder() -> Path:
    """The folder of the models learned on this machine; it need not exist yet.

    Raises InputError where the user has no home folder and the environment names no other place.
    """
    root = repository_root()
    return root / "models" / "local" if root else _user_data_folder() / "lolat" / "models"


def shipped_folder() -> Path:
    """The folder of the models that come with LoLat."""
    root = repository_root()
    return root / "models" if root else Path(__file__).resolve().parents[1] / "shipped"


def list_models() -> list[tuple[str, Path, str]]:
    """The models that there are, as (name, path, "local" or "shipped"): local first, then by name.

    The files are not opened. Raises InputError where a folder cannot be read.
    """
    places = ((LOCAL, local_folder()), (SHIPPED, shipped_folder()))
    return [(path.stem, path, where) for where, folder in places for path in _models_in(folder)]


def find_model(name: str) -> Path:
    """The file that a user means by `name`; whether it is a good model is for its reader to say.

    `local` is the model learned last on this machine. Anything else is a file, with or without
    its `.json`, or else the name of a local or a shipped model, of which the local one comes first.
    Raises ModelFileError where there is none; the message names those that there are.
    """
    if name == LOCAL:
        return _newest_local()
    path = Path(name)
    if _is_there(path) and not _is_folder(path):
        return path
    if name and not name.endswith((".json", "/", os.sep)) and _is_there(Path(name + ".json")):
        return Path(name + ".json")
    models = list_models()
    for known, known_path, _ in models:
        if name in (known, known_path.name):
            return known_path
    raise ModelFileError(_not_found(name, path, [known for known, _, _ in models]))


def _newest_local() -> Path:
    folder = local_folder()
    models = _models_in(folder)
    if not models:
        raise ModelFileError(
            f"local: no model has been learned on this machine yet (looked in {_shown(folder)}); "
            f"learn one with {_LEARN}, or name a model file; `lolat models` lists the shipped ones"
        )
    return max(models, key=_time_written)


def _time_written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        # Removed since the folder was listed: the oldest of all.
        return 0.0


def _models_in(folder: Path) -> list[Path]:
    """The model files in a folder, by name; a journal or a half-written file is none."""
    try:
        with os.scandir(folder) as entries:
            names = [
                entry.name
                for entry in entries
                if entry.name.endswith(".json")
                and not entry.name.startswith(".")
                and entry.is_file()
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(
            f"{_shown(folder)}: the folder of models cannot be read ({error.strerror}); expected "
            "one that this user can read: change its permissions, or name a model file"
        ) from None
    return [folder / name for name in sorted(names, key=lambda n: n.removesuffix(".json"))]


def _not_found(name: str, path: Path, known: list[str]) -> str:
    names = list(dict.fromkeys(known))
    given = _shown(name)
    if name and _is_folder(path):
        given += ": is a folder"
    else:
        given += ": no such model"
    if not names:
        there = f"none there is yet, {_LEARN} makes one"
    else:
        there = "there are " + ", ".join(map(_shown, names))
        near = _near(name, names)
        if near:
            there += "; did you mean " + " or ".join(map(_shown, near)) + "?"
    return f"{given}; expected a model file, `local` or the name of a model: {there}"


def _near(name: str, names: list[str]) -> list[str]:
    # Imported here: it takes milliseconds and only a mistyped name needs it.
    import difflib

    stem = Path(name).name.removesuffix(".json").lower()
    by_lower = {known.lower(): known for known in names}
    return [by_lower[near] for near in difflib.get_close_matches(stem, by_lower, n=3)]


def _user_data_folder() -> Path:
    """Where this system keeps a user's data: XDG's rule, or Windows' or macOS' own folder."""
    if sys.platform == "win32":
        given = os.environ.get("LOCALAPPDATA", "")
        return Path(given) if given else _home() / "AppData" / "Local"
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support"
    given = os.environ.get("XDG_DATA_HOME", "")
    # The XDG specification has a relative path ignored.
    return Path(given) if os.path.isabs(given) else _home() / ".local" / "share"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:
        raise InputError(
            "no home folder is known for this user; expected one to keep models in: set HOME, or "
            "name a model file"
        ) from None


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        # A name that is too long or holds a null character is no file's.
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def _shown(name: str | Path) -> str:
    text = str(name)
    return text if text and text.isprintable() else ascii(text)
