"""docs/reference/schema.json: the schema of every JSON answer, made from the classes of the answers.

python benchmarks/schema.py                  # writes it

An answer's class says its keys (`lolat.io.results.keys`): fields or properties, whose annotations are the
types. Every answer has `schema`, "lolat-" and its name here, and `version` besides.
"""

from __future__ import annotations

import functools
import inspect
import json
import operator
import pkgutil
import sys
import types
import typing
from dataclasses import is_dataclass
from inspect import cleandoc
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.command_line import leaves
from lolat.cli.main import lolat
from lolat.io.results import VERSION, keys
from lolat.io.writing import write_text

FILE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "schema.json"


def answers() -> dict[str, tuple[type, tuple[str, ...]]]:
    """Each answer by its name: its class, and the commands that print it with --json."""
    found: dict[str, tuple[type, tuple[str, ...]]] = {}
    for name, command in leaves(lolat):
        for answer, place in getattr(command, "answers", {}).items():
            kind, commands = found.get(answer, (pkgutil.resolve_name(place), ()))
            found[answer] = kind, (*commands, name)
    return found


ANSWERS = answers()


def schema() -> dict[str, Any]:
    """The document (JSON Schema 2020-12), with an answer of each name in `$defs`, and their parts."""
    structs = [_answer(f"lolat-{name}", kind) for name, (kind, _) in ANSWERS.items()]
    found, parts = msgspec.json.schema_components(structs, ref_template="#/$defs/{name}")
    for name, (_, commands) in ANSWERS.items():
        parts[f"lolat-{name}"]["x-commands"] = [f"lolat {command} --json" for command in commands]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "lolat.json",
        "title": "What LoLat's commands print with --json",
        "oneOf": list(found),
        "$defs": dict(sorted(parts.items())),
    }


def _answer(name: str, kind: type) -> type:
    """The struct of an answer, with what all answers have."""
    common: list[Any] = [("schema", Literal[name]), ("version", Literal[VERSION])]  # type: ignore[valid-type]
    return _struct(name, kind, [*common, *_fields(kind)])


@functools.cache
def _part(kind: type) -> type:
    """The struct of a part of an answer."""
    return _struct(kind.__name__, kind, _fields(kind))


def _struct(name: str, kind: type, fields: list[Any]) -> type:
    about = {"__doc__": cleandoc(kind.__doc__ or "")}
    return msgspec.defstruct(name, fields, kw_only=True, module=kind.__module__, namespace=about)


def _fields(kind: type) -> list[Any]:
    """(key, type) of each key, and UNSET as a default of those that may be absent."""
    found: list[Any] = []
    for key, path in keys(kind).items():
        hint = _typed(functools.reduce(_hint, path.split("."), kind))
        absent = UnsetType in typing.get_args(hint)
        found.append((key, hint, UNSET) if absent else (key, hint))
    return found


def _hint(kind: type, name: str) -> Any:
    """The type of a class's attribute: of a field, or what a property returns."""
    found = getattr(kind, name, None)
    function = getattr(found, "fget", None) or getattr(found, "func", None)
    if function is not None:
        return typing.get_type_hints(function)["return"]
    # Alone, as hints beside it may name what is imported for checks of types.
    owner = next(one for one in kind.__mro__ if name in inspect.get_annotations(one))
    field = {"__module__": owner.__module__, "__annotations__": {name: owner.__annotations__[name]}}
    return typing.get_type_hints(type("Field", (), field))[name]


def _typed(hint: Any) -> Any:
    """A type with the structs of the dataclasses in it."""
    parts = [part if part is ... else _typed(part) for part in typing.get_args(hint)]
    if isinstance(hint, types.UnionType):
        return functools.reduce(operator.or_, parts)
    if parts:
        return typing.get_origin(hint)[tuple(parts)]
    return _part(hint) if is_dataclass(hint) else hint


def text() -> str:
    """The document as it is to stand in the file: an answer or a part a line."""
    document = schema()
    parts = ",\n".join(
        f"  {json.dumps({n: part})[1:-1]}" for n, part in document.pop("$defs").items()
    )
    head = json.dumps(document, indent=1).removesuffix("\n}")
    return f'{head},\n "$defs": {{\n{parts}\n }}\n}}\n'


if __name__ == "__main__":
    write_text(FILE, text())
