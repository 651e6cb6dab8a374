"""Hashes the source code that an object of the user depends on, so that its results can be cached."""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from lolat.io.forms import CODE_FILE
from lolat.units import INSTALLED, PYTHON

_BEGAN = time.time()
"""Start of this process in seconds. If a file was written later, its older text may be running."""
MOST_MODULES = 1000  # limit on the modules that are parsed; more take too long


class UnknownCodeError(Exception):
    """The code of an object cannot be determined, so two objects with equal facts may differ."""


def facts_of(value: Any) -> Any:
    """A value and its type as JSON data; values with equal facts are equal.

    UnknownCodeError unless the value is a number, a text, None, a class, a function without a closure or
    attributes, or a list or dictionary of these.
    """
    kind = type(value).__name__
    if type(value) in (bool, int, float, str, type(None)) or isinstance(value, np.generic):
        return [kind, repr(value)]
    if isinstance(value, list | tuple):
        return [kind, *map(facts_of, value)]
    if isinstance(value, dict):
        return [kind, *(facts_of(pair) for pair in value.items())]
    if getattr(value, "__module__", None) in (None, "__main__"):
        raise UnknownCodeError
    if isinstance(value, type):
        return [kind, value.__module__, value.__qualname__]
    if isinstance(value, FunctionType) and value.__closure__ is None:
        defaults = facts_of([value.__defaults__, value.__kwdefaults__])
        is_named = "<" not in value.__qualname__  # a lambda has its line for a name
        line = 0 if is_named else value.__code__.co_firstlineno
        return [kind, value.__module__, value.__qualname__, line, defaults]
    raise UnknownCodeError


def modules_of(value: Any) -> Iterator[str]:
    """Names of the modules that define the classes and functions in a value; the value has facts."""
    if isinstance(value, list | tuple):
        for one in value:
            yield from modules_of(one)
    elif isinstance(value, dict):
        yield from modules_of([*value, *value.values()])
    elif isinstance(value, type | FunctionType):
        yield value.__module__


def code_of(value: Any) -> tuple[str, bool]:
    """(hash of a callable's code or "" if unknown, True if the hash covers every value that may change).

    The hash covers the callable's modules and all modules that they import, also for what a
    `functools.partial`, a method or a decorated function calls. The values of an instance or a closure are
    not covered: they may change with each call.
    """
    waiting, seen, is_all = [value], list[Any](), True
    facts, modules = list[Any](), set[str]()
    try:
        while waiting:
            one = waiting.pop()
            if any(one is other for other in seen):
                continue
            seen.append(one)
            values = [one]
            if isinstance(one, functools.partial):
                waiting.append(one.func)
                values = [one.args, one.keywords]
            elif isinstance(one, MethodType):
                waiting += [one.__func__, one.__self__]
                values = []
            elif isinstance(one, FunctionType) and one.__closure__:
                cells = [cell.cell_contents for cell in one.__closure__]
                waiting += [*filter(callable, cells)]
                is_all &= all(map(callable, cells))
                modules.add(one.__globals__["__name__"])  # `wraps` gives it another `__module__`
                values = [one.__qualname__, one.__defaults__, one.__kwdefaults__]
            elif callable(one) and not isinstance(one, type | FunctionType):
                waiting.append(type(one))
                values, is_all = [], False
            try:
                facts.append(facts_of(values))
                modules |= {*modules_of(values)}
            except UnknownCodeError:
                is_all = False
        sources = sources_of(sorted(modules))
    except (UnknownCodeError, ImportError, OSError, SyntaxError, ValueError):
        return "", False
    hashed = hashlib.sha256(json.dumps([facts, sources]).encode()).hexdigest()[:12]
    return (hashed, is_all) if modules else ("", False)


def sources_of(modules: Iterable[str]) -> list[list[str]]:
    """[name, hash of its code] of modules and of all modules that they import, also inside functions.

    Comments and docstrings are not hashed.

    The standard library and LoLat are left out. For an installed package the time and size of its first
    file stand for its code. UnknownCodeError if the running code may differ from the file.
    """
    waiting, found = [*modules], dict[str, str]()
    while waiting:
        name = waiting.pop()
        if name in found or name.partition(".")[0] == "lolat":
            continue
        if len(found) > MOST_MODULES:
            raise UnknownCodeError
        top, path = name.partition(".")[0], _path(name.partition(".")[0])
        if path.startswith(PYTHON) or INSTALLED in path:
            if INSTALLED in path:
                found[top] = f"{os.stat(path).st_mtime_ns} {os.stat(path).st_size}"
            continue
        found[name] = ""  # until it proves to be a file
        if path := _path(name):
            text = _text(path)
            tree = ast.parse(text)
            found[name] = hashlib.sha256(_code(text, tree)).hexdigest()
            is_package = os.path.basename(path) == f"__init__{CODE_FILE}"
            waiting += _imported(tree, name if is_package else name.rpartition(".")[0])
            waiting += _used(sys.modules.get(name))
    return sorted(map(list, found.items()))


def _code(text: bytes, tree: ast.Module) -> bytes:
    """A module's code without comments, and without docstrings unless it uses `__doc__`; changes `tree`."""
    if b"__doc__" not in text:
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                has_docstring = ast.get_docstring(node, clean=False) is not None
                node.body = node.body[has_docstring:]
    return ast.dump(tree).encode()


def _text(path: str) -> bytes:
    """The text of a file; UnknownCodeError if it is not Python, or may be newer than the running code."""
    with open(path, "rb") as file:
        text = file.read()
        if not path.endswith(CODE_FILE) or os.fstat(file.fileno()).st_mtime > _BEGAN:
            raise UnknownCodeError
    return text


def _path(name: str) -> str:
    """The file of a module; PYTHON for a built-in module, "" for a folder or a name that is no module.

    UnknownCodeError for a module without a file.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None) or _spec(name)
    if spec is not None and spec.origin in ("built-in", "frozen"):
        return PYTHON
    if spec is not None and spec.origin and os.path.isfile(spec.origin):
        return spec.origin
    if module is not None and not hasattr(module, "__path__"):
        raise UnknownCodeError
    return ""


def _spec(name: str) -> ModuleSpec | None:
    """The spec of a module that is not imported yet, found without importing its packages."""
    parts = name.split(".")
    path, spec = None, None
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), path)
        path = spec.submodule_search_locations if spec else None
        if spec is None or (path is None and count < len(parts)):
            return None
    return spec


def _imported(tree: ast.AST, package: str) -> Iterator[str]:
    """The names that a module in `package` imports and that are, or may be, modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            if node.level and package:
                module = importlib.util.resolve_name(module, package)
            names = [module, *(f"{module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for name in names:
            parts = name.split(".")
            yield from (".".join(parts[:count]) for count in range(1, len(parts) + 1))


def _used(module: ModuleType | None) -> Iterator[str]:
    """Names of the modules in a module's namespace, and of the modules of its classes and functions."""
    for value in list(vars(module).values()) if module else ():
        if isinstance(value, ModuleType):
            yield value.__name__
        elif isinstance(value, type | FunctionType) and isinstance(value.__module__, str):
            yield value.__module__
