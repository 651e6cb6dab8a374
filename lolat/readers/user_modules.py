"""Runs Python files of the user as modules, and anew after one or a module beside it has changed."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lolat.io.forms import CODE_FILE

READING = threading.RLock()
"""Held by the thread that runs a network's code, as it replaces parts of the framework for all threads."""


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence warnings, and redirect stdout, which may be promised to JSON, to stderr.

    One thread at a time: the others wait.
    """
    with READING, warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(sys.stderr):
        yield


def run_file(path: str) -> Any:
    """Run a Python file as a module, which finds its neighbors and the rest of its package."""
    file = Path(path).resolve(strict=True)
    root = next(folder for folder in file.parents if not (folder / "__init__.py").is_file())
    _roots.add(root)
    if _Watch not in sys.meta_path:
        sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder), _Watch)
    _drop_stale(root)
    sys.path[:] = [str(root), *(folder for folder in sys.path if folder != str(root))]
    importlib.invalidate_caches()
    name = ".".join(file.relative_to(root).with_suffix("").parts)
    is_callers = name in sys.modules and name not in _loaded
    if is_callers or name in sys.stdlib_module_names:
        name = f"{name}_of_user"  # a file types.py must not replace the module that others import
    others = {n: m for n, m in sys.modules.copy().items() if _is_other(root, n, _place(m))}
    for other in others:
        del sys.modules[other]
    try:
        _loaded[name] = (file, _state(file))
        spec: Any = importlib.util.spec_from_file_location(name, file)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.modules.update(others)  # the caller's own, which stay as they are for it
    return module


_roots: set[Path] = set()
"""The folders from which the files that were run import their neighbors."""
_loaded: dict[str, tuple[Path, Any]] = {}
"""The place and the `_state` of each module that was loaded from `_roots` while a file of the user ran."""
_INSTALLED = tuple(
    Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OWN = Path(__file__).resolve().parents[1]


class _Watch:
    """Python's finder of modules in `sys.path`, which notes those in `_loaded`.

    Functions import too, when they are called: to compare `sys.modules` around the file would miss those.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        """Find a module as PathFinder does."""
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None:
            return None
        place = Path(spec.origin or next(iter(spec.submodule_search_locations or ()), "")).resolve()
        is_below = place.suffix in ("", CODE_FILE) and not _roots.isdisjoint(place.parents)
        if is_below and _is_users(place) and _is_run_here():
            _loaded[name] = (place, _state(place))
        return spec


def _is_run_here() -> bool:
    """True if a function of LoLat is among the callers."""
    frame = sys._getframe(2)
    while frame is not None and not str(frame.f_globals.get("__name__")).startswith("lolat."):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None


def _is_users(place: Path) -> bool:
    """True for a file or folder that is neither an installed package's, nor Python's, nor LoLat's."""
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(place.parts)
    return not is_installed and {place, *place.parents}.isdisjoint((*_INSTALLED, _OWN))


def _state(place: Path) -> Any:
    """The time, size and number of a file, of which a write changes one; None without a file."""
    with contextlib.suppress(OSError):
        if place.is_file():
            state = place.stat()
            return state.st_mtime_ns, state.st_size, state.st_ino
    return None


_imported: dict[str, tuple[Any, Any]] = {}
"""Each module that `imported` was the first to import, and the `_state` of its file."""


def imported(name: str) -> Any:
    """Import a module by its name, again if its file has changed; one that the caller imported stays."""
    known, (own, state) = sys.modules.get(name), _imported.get(name, (None, None))
    module = importlib.import_module(name)
    place = Path(_place(module))
    if own is not None and module is own and _state(place) != state:
        _remove_bytecode(place)
        importlib.reload(module)
    if module is not known or module is own:
        _imported[name] = module, _state(place)
    return module


def _remove_bytecode(place: Path) -> None:
    """Remove the bytecode of a file: Python takes one of the same second and size for that of the file."""
    with contextlib.suppress(OSError, NotImplementedError):
        os.unlink(importlib.util.cache_from_source(str(place)))


def _place(module: Any) -> str:
    """The file of a module, "" without one; a lazy module stays unloaded."""
    return str(getattr(module, "__dict__", {}).get("__file__") or "")


def _is_other(root: Path, name: str, place: str | Path) -> bool:
    """True if the user's module `name`, at `place`, hides another one of that name in `root`."""
    if not place or name == "__main__":
        return False
    top = root / name.partition(".")[0]
    if not (top.is_dir() or Path(f"{top}{CODE_FILE}").is_file()):
        return False
    base, place = root.joinpath(*name.split(".")), Path(place).resolve()
    here = (base, Path(f"{base}{CODE_FILE}"), base / "__init__.py")
    return place not in here and _is_users(place)


def _drop_stale(root: Path) -> None:
    """Unload the modules of earlier files if one has changed, or hides a module of this root.

    All go together, since each may hold objects of the others. Modules that the caller imported stay.
    """
    changed = [place for place, stamp in _loaded.values() if _state(place) != stamp]
    for place in changed:
        _remove_bytecode(place)
    if not changed and not any(
        _is_other(root, name, place) for name, (place, _) in _loaded.items()
    ):
        return
    for name, (place, _) in _loaded.items():
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if spec and (spec.origin is None or Path(spec.origin).resolve() == place):
            del sys.modules[name]
    _loaded.clear()
