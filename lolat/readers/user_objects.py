"""Imports objects of the user's code, named `package.module:attribute` or `file.py:attribute`, quietly."""

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

from lolat.errors import InputError, MissingPackageError, NetworkError
from lolat.io.forms import CODE_FILE, FRAMEWORK_FILES, PACKAGES, TORCH_PACKAGES
from lolat.readers.user_modules import imported, run_file
from lolat.units import did_you_mean, one_line, user_line

EXTRAS = {
    "keras": "tensorflow", "tensorflow": "tensorflow", "torch": "torch", "torchvision": "timm",
    "timm": "timm", "transformers": "transformers", "onnx": "onnx",
}  # fmt: skip
"""Package that a network's code imports -> LoLat's extra that installs it."""


def attribute_of(spec: str, what: str, expected: str) -> Any:
    """Import the object that `module:attribute` or `file.py:attribute` names.

    A module may also be in the working directory. `what`, `expected`: the object's purpose ("network") and
    its expected form, for messages. NetworkError if there is no such object.
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
        value: Any = run_file(module) if ending else imported(module)
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
    """A hint for a missing module: similar names of files here that define `attribute`, and of packages."""
    ending = CODE_FILE if module.endswith(CODE_FILE) else ""
    defines = re.compile(rf"^(def |class )?{attribute.partition('.')[0]}\b", re.MULTILINE)
    files = [file for file in Path().glob(f"*{CODE_FILE}") if file.is_file()]
    having = [f for f in files if defines.search(f.read_text(encoding="utf-8", errors="replace"))]
    here = {f.stem + ending: f"{f.stem}{ending}:{attribute}" for f in having}
    known = {package: f"{package}:{attribute}" for package in PACKAGES}
    return did_you_mean(module, known | here, f"expected {expected}")


def failed(action: str, error: BaseException, hint: str = "", code: str = "network") -> InputError:
    """The error for an exception of the user's code, with its line, or with the package to install."""
    why = f"{action}: {brief(error)}{user_line(error)}"
    if isinstance(error, ModuleNotFoundError) and error.name in EXTRAS:
        return MissingPackageError(why, EXTRAS[error.name])
    return NetworkError(why + hint, code=code)


def without_arguments(call: str) -> str:
    """The remedy for a function or class that takes arguments."""
    return f"write a function without arguments, and give its name: def net(): return {call}"


def missing_arguments(made: Any) -> list[str]:
    """The required arguments of a function or class; [] if its signature is unknown."""
    try:
        given = inspect.signature(
            getattr(made, "__init__", made) if isinstance(made, type) else made
        ).parameters
    except (TypeError, ValueError):
        return []
    named = [p for p in given.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return [p.name for p in named[isinstance(made, type) :] if p.default is p.empty]  # but self


def meant_here(spec: str) -> str:
    """The remedy for a string that is similar to a function or file in this folder; "" if nothing is."""
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
    """The public functions and classes of a Python file that need no arguments; does not run the file."""
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
    """Import the packages that need care before a module imports them.

    TensorFlow prints to stderr; timm and transformers fail if the builds of torchvision and PyTorch differ.
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
    """An exception's type and message in one line."""
    text, kind = one_line(error), type(error).__name__
    return kind if text == kind else f"{kind}: {text}"
