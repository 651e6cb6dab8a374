"""`generate:FAMILY?key=value&...` and `generate:FAMILY?config=JSON`: a generated network as a string.

No framework is needed here. What the keys mean is in `lolat.readers.generated_configs`.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from lolat.errors import NetworkError
from lolat.readers.generated_configs import (
    BLOCK_KEYS,
    DEFAULTS,
    FAMILIES,
    Blocks,
    Config,
    configured,
    keys,
    wrong,
)
from lolat.readers.wording import shortened

PREFIX = "generate:"
# What a configuration of the study holds besides the network: its run, and the lengths of its lists.
NOT_THE_NETWORK = {"batch_size", "input_size", "num_layers", "num_hidden_layers", "model"}


def parse(spec: str, size: Sequence[int] = ()) -> Config:
    """The configuration that `generate:FAMILY?...` says; `size` takes the place of its `input`.

    Raises NetworkError for an unknown family or key, a value that cannot be read, lists that do not fit
    each other, and an input that is too small.
    """
    name, _, options = spec.removeprefix(PREFIX).partition("?")
    family = name.strip().lower()
    if family not in FAMILIES:
        raise NetworkError(
            f"no family {shortened(name)!r} to generate; {_expected(family, FAMILIES)}, such as "
            "generate:vgg?layers=2,2&filters=16,32"
        )
    options = unquote(options)
    if options.startswith("config="):
        given = _of_config(family, options.removeprefix("config="))
    else:
        given = _of_options(family, options)
    if size:
        given["input"] = list(size)
    return configured(family, given)


def text(config: Config) -> str:
    """The configuration as `generate:FAMILY?key=value&...`, without what is the default."""
    plain = configured(config.family, {})
    said = []
    for key in keys(config.family):
        value = getattr(config, key)
        if key in BLOCK_KEYS:
            differs = _flat(value) != DEFAULTS[config.family][key]
        else:
            differs = value != getattr(plain, key)
        if differs or (config.family == "vgg" and key in ("layers", "filters")):
            said.append(f"{key}={_shown(config, key)}")
    return "?".join([f"{PREFIX}{config.family}", *(["&".join(said)] if said else [])])


def _flat(stages: Blocks) -> list[int]:
    """Filters by stage and block as one list, of one number where they are all the same."""
    found = [n for stage in stages for n in stage]
    return found[:1] if len(set(found)) == 1 else found


def _shown(config: Config, key: str) -> str:
    """A value of the short form."""
    value = getattr(config, key)
    if key in BLOCK_KEYS:
        value = _flat(value)
    if key == "input" and len(value) == 3 and value[0] == value[1] and value[2] == 3:
        value = value[:1]
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, (tuple, list)) else str(value)


def _expected(name: str, known: Iterable[str]) -> str:
    """Which one was meant, and which there are."""
    names = list(known)
    near = difflib.get_close_matches(name.lower(), names, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"expected one of {', '.join(names)}"


def _study_name(family: str, key: str) -> str:
    """What the study calls a key in its configurations."""
    layers = "layers" if family == "fc" else f"{family}_layers"
    names = {"layers": layers, "hidden": "hidden_layers"}
    return {**names, "input": "input_shape", "output": "output_shape"}.get(key, key)


def _of_options(family: str, options: str) -> dict[str, Any]:
    """{key: value as JSON has it} of `key=value&...`; the study's names and `classes` are known too."""
    also = {_study_name(family, key): key for key in keys(family)} | {"classes": "output"}
    if family == "fc":
        also["hidden"] = "layers"  # as the other families call dense layers
    found: dict[str, Any] = {}
    for part in options.split("&") if options else []:
        given, equals, written = part.partition("=")
        key = also.get(given, given)
        if given == "config":
            raise NetworkError(
                f"generate:{family}: config=JSON goes alone; give it right after the question mark"
            )
        if key not in keys(family):
            raise NetworkError(
                f"generate:{family} has no key {shortened(given)!r}; {_expected(given, keys(family))}"
            )
        if not equals or not written:
            raise NetworkError(f"generate:{family}: {given} has no value; write {given}=VALUE")
        if key in found:
            raise NetworkError(f"generate:{family}: {key} is given twice; give it once")
        found[key] = _value(family, key, written)
    return found


def _value(family: str, key: str, written: str) -> Any:
    """What the text of a value says, as JSON would have it."""
    word = written.lower()
    if word == "none" and key in ("hidden", "dropout", "input_dropout"):
        return [] if key == "hidden" else None
    if key == "small" and word in ("true", "false"):
        return word == "true"
    try:
        if key in ("dropout", "input_dropout"):
            return float(written)
        if key == "output":
            return int(written)
        numbers = written.replace("x", ",") if key == "input" else written
        if key != "small":
            return [int(n) for n in numbers.split(",")]
    except ValueError:
        pass
    raise wrong(family, key, written)


def _of_config(family: str, written: str) -> dict[str, Any]:
    """{key: value} of a configuration of the study, which is JSON."""
    try:
        found = json.loads(written)
    except (ValueError, RecursionError) as error:
        at = f", at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
        raise NetworkError(
            f"generate:{family}?config= is not JSON ({getattr(error, 'msg', 'too large')}{at}); expected "
            """an object, in single quotes for the shell: 'generate:fc?config={"layers": [100]}'"""
        ) from None
    if not isinstance(found, Mapping):
        raise NetworkError(
            f"generate:{family}?config={shortened(written)} is no JSON object; expected such as "
            '{"output_shape": 2}'
        )
    model = str(found.get("model", family))
    if model.lower() != family:
        mend = (
            f"write generate:{model.lower()}" if model.lower() in FAMILIES else f"expected {family}"
        )
        raise NetworkError(
            f"generate:{family}?config= is of the model {shortened(model)!r}; {mend}"
        )
    named = {_study_name(family, key): key for key in keys(family)}
    unused = NOT_THE_NETWORK | ({"hidden_layers"} if family == "fc" else set())
    for name in found:
        if name not in named and name not in unused:
            raise NetworkError(
                f"generate:{family}?config= has the key {shortened(name)!r}; {_expected(name, named)}"
            )
    return {key: found[name] for name, key in named.items() if name in found}
