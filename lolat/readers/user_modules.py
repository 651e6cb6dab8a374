"""Runs the user's Python files as modules, again whenever a file or a neighboring module has changed."""

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
"""Held while a network's code runs, because parts of the framework are then replaced for all threads."""


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Silence warnings, and redirect stdout to stderr, because stdout may be reserved for JSON.

    Only one thread at a time runs inside this context; others wait.
    """
    with READING, warnings.catch_warnings(action="ignore"), contextlib.redirect_stdout(sys.stderr):
        yield


def run_file(path: str) -> Any:
    """Run a Python file as a module, with imports from its folder and its package."""
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
"""The folders from which the user's files import neighboring modules."""
_loaded: dict[str, tuple[Path, Any]] = {}
"""Name -> (path, `_state` of the file) of modules loaded from `_roots` while a user's file ran."""
_INSTALLED = tuple(
    Path(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib")
)
_OWN = Path(__file__).resolve().parents[1]


class _Watch:
    """Python's finder of modules in `sys.path`, which also records the user's modules in `_loaded`.

    A comparison of `sys.modules` before and after a file would miss imports inside functions.
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
    """True for a user's file or folder: not of an installed package, Python or LoLat."""
    is_installed = not {"site-packages", "dist-packages"}.isdisjoint(place.parts)
    return not is_installed and {place, *place.parents}.isdisjoint((*_INSTALLED, _OWN))


def _state(place: Path) -> Any:
    """(time, size, inode) of a file, which a write changes; None without a file."""
    with contextlib.suppress(OSError):
        if place.is_file():
            state = place.stat()
            return state.st_mtime_ns, state.st_size, state.st_ino
    return None


_imported: dict[str, tuple[Any, Any]] = {}
"""Name -> (module, `_state` of its file) of the modules that `imported` loaded."""


def imported(name: str) -> Any:
    """Import a module by name, again if its file has changed; a module that the caller imported stays."""
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
    """Remove the bytecode of a file: Python would use it if the file changed within the same second."""
    with contextlib.suppress(OSError, NotImplementedError):
        os.unlink(importlib.util.cache_from_source(str(place)))


def _place(module: Any) -> str:
    """The file of a module, "" without one; does not load a lazy module."""
    return str(getattr(module, "__dict__", {}).get("__file__") or "")


def _is_other(root: Path, name: str, place: str | Path) -> bool:
    """True if the user's module `name` at `place` hides another module of this name in `root`."""
    if not place or name == "__main__":
        return False
    top = root / name.partition(".")[0]
    if not (top.is_dir() or Path(f"{top}{CODE_FILE}").is_file()):
        return False
    base, place = root.joinpath(*name.split(".")), Path(place).resolve()
    here = (base, Path(f"{base}{CODE_FILE}"), base / "__init__.py")
    return place not in here and _is_users(place)


def _drop_stale(root: Path) -> None:
    """Unload all modules of earlier files if one of them has changed, or hides a module of this root.

    They are unloaded together, because each may hold objects of the others. Modules that the caller
    imported stay.
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
