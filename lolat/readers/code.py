"""`package.module:attribute`: an object of the user's own code, imported quietly."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
from pathlib import Path
from typing import Any

from lolat.errors import MissingPackageError, NetworkError
from lolat.io.forms import TORCH_PACKAGES
from lolat.units import did_you_mean, one_line


def attribute_of(spec: str, what: str, expected: str) -> Any:
    """Import the object that `module:attribute` names; the working directory is searched too.

    `what`, `expected`: the object's purpose ("network") and the expected form, for messages. NetworkError
    if there is no such object.
    """
    module, _, attribute = spec.partition(":")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    _import_before(module)
    try:
        value: Any = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever the module raises, SystemExit too
        why = f"{brief(error)}; looked in {os.getcwd()} and among the installed packages"
        if module.endswith(".py"):
            expected = f"{module.removesuffix('.py').replace('/', '.')}:{attribute}"
        here = {file.stem: f"{file.stem}:{attribute}" for file in Path().glob("*.py")}
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == module
        is_name = is_missing and not module.endswith(".py")
        hint = did_you_mean(module, here if is_name else {}, f"expected {expected}")
        raise NetworkError(
            f"cannot import {module!r} for {what} {spec!r}: {why}; {hint}", code="user-code"
        ) from error
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
    """The remedy for a string that names a Python file or a folder, or calls a function; else ""."""
    if call := re.fullmatch(r"[\w.]+:([\w.]+\(.*\))", spec):
        return without_arguments(call[1])
    for file in (spec, f"{spec}.py", os.path.join(spec, "__init__.py")):
        if file.endswith(".py") and os.path.isfile(file):
            module = os.path.relpath(file).removesuffix(".py").removesuffix(f"{os.sep}__init__")
            module = module.replace(os.sep, ".")
            names = " or ".join(f"{module}:{name}" for name in _makers(file)[:3])
            return f"it is a module; name its function or class: {names or f'{module}:FUNCTION'}"
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
        source = importlib.util.find_spec(module)
        text = Path(str(source and source.origin)).read_text(encoding="utf-8", errors="replace")
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
