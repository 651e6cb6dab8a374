"""Imports objects of the user's code, named `package.module:attribute` or `file.py:attribute`, quietly."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
from pathlib import Path
from typing import Any

from lolat.errors import InputError, MissingPackageError, NetworkError
from lolat.io.forms import CODE_FILE, EXTRAS, FRAMEWORK_FILES, TORCH_PACKAGES
from lolat.units import did_you_mean, one_line, user_line


def attribute_of(spec: str, what: str, expected: str) -> Any:
    """Import the object that `module:attribute` or `file.py:attribute` names.

    A module is searched in the working directory too. `what`, `expected`: the object's purpose ("network")
    and the expected form, for messages. NetworkError if there is no such object.
    """
    module, _, attribute = spec.rpartition(":")
    ending = CODE_FILE if module.endswith(CODE_FILE) else ""
    if ending and not os.path.isfile(module):
        raise NetworkError(
            f"no file {module!r} ({what} {spec!r}); {_meant_for(module, attribute, expected)}",
            code="user-code",
        )
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    _import_before(module)
    try:
        value: Any = _of_file(module) if ending else importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the module raises, SystemExit too
        hint = ""
        if isinstance(error, ModuleNotFoundError):
            hint = f"; looked in {os.getcwd()} and among the installed packages"
            if f"{module}.".startswith(f"{error.name}."):
                hint += f"; {_meant_for(module, attribute, expected)}"
        action = f"cannot import {module!r} for {what} {spec!r}"
        raise failed(action, error, hint, code="user-code") from error
    for part in attribute.split("."):
        if not hasattr(value, part):
            names = {name: name for name in vars(value) if name[0] != "_"}
            raise NetworkError(
                f"module {module!r} has no {attribute!r} ({what} {spec!r}); "
                f"{did_you_mean(part, names, f'expected {expected}')}",
                code="user-code",
            )
        value = getattr(value, part)
    return value


def _meant_for(module: str, attribute: str, expected: str) -> str:
    """The files that define `attribute` here, of names near a module's that is not there."""
    ending = CODE_FILE if module.endswith(CODE_FILE) else ""
    defines = re.compile(rf"^(def |class )?{attribute.partition('.')[0]}\b", re.MULTILINE)
    files = [file for file in Path().glob(f"*{CODE_FILE}") if file.is_file()]
    having = [f for f in files if defines.search(f.read_text(encoding="utf-8", errors="replace"))]
    here = {f.stem + ending: f"{f.stem}{ending}:{attribute}" for f in having}
    return did_you_mean(module, here, f"expected {expected}")


def _of_file(path: str) -> Any:
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
        _loaded[name] = (file, _stamp(file))
        spec: Any = importlib.util.spec_from_file_location(name, file)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.modules.update(others)  # the caller's own, which stay as they are for it
    return module


_roots: set[Path] = set()
"""The folders from which the files that were run import their neighbors."""
_loaded: dict[str, tuple[Path, Any]] = {}
"""The place and the `_stamp` of each module that was loaded from `_roots` while a file of the user ran."""
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
            _loaded[name] = (place, _stamp(place))
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


def _stamp(place: Path) -> Any:
    """The time, size and number of a file, of which a write changes one; None without a file."""
    with contextlib.suppress(OSError):
        if place.is_file():
            state = place.stat()
            return state.st_mtime_ns, state.st_size, state.st_ino
    return None


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
    changed = [place for place, stamp in _loaded.values() if _stamp(place) != stamp]
    for place in changed:  # Python takes bytecode of the same second and size for that of the file
        with contextlib.suppress(OSError, NotImplementedError):
            os.unlink(importlib.util.cache_from_source(str(place)))
    if not changed and not any(
        _is_other(root, name, place) for name, (place, _) in _loaded.items()
    ):
        return
    for name, (place, _) in _loaded.items():
        spec = getattr(sys.modules.get(name), "__spec__", None)
        if spec and (spec.origin is None or Path(spec.origin).resolve() == place):
            del sys.modules[name]
    _loaded.clear()


def failed(action: str, error: BaseException, hint: str = "", code: str = "network") -> InputError:
    """The error for an exception of the user's code: its line there, or the package to install."""
    why = f"{action}: {brief(error)}{user_line(error)}"
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        return MissingPackageError(why, EXTRAS[error.name])
    return NetworkError(why + hint, code=code)


def without_arguments(call: str) -> str:
    """The remedy for a function or class that takes arguments."""
    return f"write a function without arguments, and give its name: def net(): return {call}"


def missing_arguments(made: Any) -> list[str]:
    """The arguments without a default of a function or class; [] if its signature is not known."""
    try:
        given = inspect.signature(
            getattr(made, "__init__", made) if isinstance(made, type) else made
        ).parameters
    except (TypeError, ValueError):
        return []
    named = [p for p in given.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [p.name for p in named[isinstance(made, type) :] if p.default is p.empty]  # but self


def meant_here(spec: str) -> str:
    """The remedy for a string that nearly names a function or a file that is here; "" for any other."""
    if call := re.fullmatch(r"[\w.]+:([\w.]+\(.*\))", spec):
        return without_arguments(call[1])
    for file in (spec, f"{spec}.py", os.path.join(spec, "__init__.py")):
        if file.endswith(CODE_FILE) and os.path.isfile(file):
            names = " or ".join(f"{file}:{name}" for name in _makers(file)[:3])
            return f"it is a module; name its function or class: {names or f'{file}:FUNCTION'}"
    before, _, name = spec.replace("::", ":").rpartition(":" if ":" in spec else ".")
    if before.endswith(FRAMEWORK_FILES) and os.path.isfile(before):  # net.onnx.data
        return f"did you mean {before}?"
    file = before.removesuffix(CODE_FILE).replace(".", os.sep) + CODE_FILE
    if meant := did_you_mean(name, {made: f"{file}:{made}" for made in _makers(file)}, ""):
        return meant
    return "it is a folder; expected the path of a file in it" if os.path.isdir(spec) else ""


def _makers(file: str) -> list[str]:
    """The public functions and classes of a Python file that need no arguments; the file is not run."""
    with contextlib.suppress(OSError, SyntaxError, ValueError):
        body = ast.parse(Path(file).read_bytes()).body
        made = (n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and _needs_none(n))
        return [node.name for node in made if node.name[0] != "_"]
    return []


def _needs_none(node: ast.FunctionDef | ast.ClassDef) -> bool:
    """True for a function, or a class with a base, whose arguments all have defaults."""
    is_class = isinstance(node, ast.ClassDef)
    inner = node.body if isinstance(node, ast.ClassDef) else [node]
    functions = [n for n in inner if isinstance(n, ast.FunctionDef)]
    for given in (n.args for n in functions if n.name == "__init__" or not is_class):
        required = len(given.posonlyargs + given.args) - len(given.defaults) - is_class
        return required <= 0 and None not in given.kw_defaults
    return bool(isinstance(node, ast.ClassDef) and node.bases)


def _import_before(module: str) -> None:
    """Import, before a module that names them, the packages that need care.

    TensorFlow prints to stderr. timm and transformers fail if torchvision and PyTorch are of different
    builds.
    """
    text = ""
    with contextlib.suppress(Exception):
        by_path = module.endswith(CODE_FILE)
        file = module if by_path else getattr(importlib.util.find_spec(module), "origin", "")
        text = Path(file).read_text(encoding="utf-8", errors="replace")
    if "keras" in text or "tensorflow" in text:
        with contextlib.suppress(MissingPackageError):
            from lolat.readers.keras import import_keras

            import_keras()
    if any(package in text for package in TORCH_PACKAGES):
        from lolat.readers.torch.named import load_torchvision

        load_torchvision()


def brief(error: BaseException) -> str:
    """An exception in one line, with its type."""
    text, kind = one_line(error), type(error).__name__
    return kind if text == kind else f"{kind}: {text}"
