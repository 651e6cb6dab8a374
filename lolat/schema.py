"""What a model file must hold: its fields, their types and ranges; one plain error for a fault.

Only the fields named here are checked: a later minor version may add keys anywhere, and a reader of
version 1 still reads the file. Standard library only; this is on the way of every answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from lolat.errors import ModelFileError
from lolat.nesting import DEEPEST, too_deep

SCHEMA = "lolat-model"
FORMAT_VERSION = 1

# Counts end up in 64-bit integers and floats; nothing that runs on a device is larger.
_MOST = 2**63 - 1
_SHOWN = 60


def validate(document: Any, source: str) -> None:
    """Raise ModelFileError unless `document`, as parsed from JSON, is a LoLat model of version 1.

    `source` names where it came from and begins the message; it must be one line. The message goes
    on with the field, what it is and what is expected. Nothing is changed or converted.
    """
    if too_deep(document):  # what follows calls itself for each
        raise ModelFileError(
            f"{source}: lists or objects nested too deeply (more than {DEEPEST} in each other); "
            "expected a LoLat model file"
        )
    _document(document, source)


def show(value: Any) -> str:
    """`value` as it stands in a message: on one line, short, and safe for numbers of any size."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"an integer of about {int(value.bit_length() * 0.30103) + 1} digits"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    text = " ".join(ascii(value).split())
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _document(document: Any, source: str) -> None:
    if not isinstance(document, dict):
        raise ModelFileError(
            f"{source}: holds {show(document)}; expected a LoLat model (a JSON object)"
        )
    _schema_and_version(document, source)
    fault = next(_faults(document), None)
    if fault is not None:
        raise ModelFileError(f"{source}: {fault}")


def _schema_and_version(document: dict[str, Any], source: str) -> None:
    if document.get("schema") != SCHEMA:
        given = (
            f"its `schema` is {show(document['schema'])}"
            if "schema" in document
            else "it has no field `schema`"
        )
        raise ModelFileError(
            f'{source}: not a LoLat model: {given}; expected "schema": "{SCHEMA}", '
            "as `python learn_model.py cpu` writes it"
        )
    if "version" not in document:
        raise ModelFileError(f"{source}: the field `version` is missing; expected {FORMAT_VERSION}")
    version = document["version"]
    if type(version) is int and version > FORMAT_VERSION:
        raise ModelFileError(
            f"{source}: made by a newer LoLat (format version {show(version)}; this one reads "
            f"{FORMAT_VERSION}): upgrade LoLat, or learn the model again with this one"
        )
    if type(version) is not int or version != FORMAT_VERSION:
        raise ModelFileError(f"{source}: `version` is {show(version)}; expected {FORMAT_VERSION}")


# A check answers None, or what was expected. It sees one value and knows nothing of its place.
_Check = Callable[[Any], str | None]
_Table = dict[str, _Check]


class _Nothing:
    """Fails every check."""


def _is_number(value: Any) -> bool:
    """True for an int or float that is finite as a float; a bool is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _text(value: Any) -> str | None:
    return None if isinstance(value, str) else "text"


def _number(value: Any) -> str | None:
    return None if _is_number(value) else "a finite number"


def _not_negative(value: Any) -> str | None:
    return None if _is_number(value) and value >= 0 else "a finite number that is not negative"


def _positive(value: Any) -> str | None:
    return None if _is_number(value) and value > 0 else "a finite number above 0"


def _count(value: Any) -> str | None:
    # `type`, not isinstance: True is an int, and a count of True is a mistake.
    return None if type(value) is int and 0 <= value <= _MOST else "an integer from 0 to 2**63 - 1"


def _yes_or_no(value: Any) -> str | None:
    return None if isinstance(value, bool) else "true or false"


def _least(least: int) -> _Check:
    expected = f"an integer of {least} or more"
    return lambda value: None if type(value) is int and least <= value <= _MOST else expected


def _batch_size(value: Any) -> str | None:
    return None if type(value) is int and 1 <= value <= _MOST else "an integer of 1 or more"


def _range(value: Any) -> str | None:
    good = isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))
    return None if good else "a list of two finite numbers"


def _object(value: Any) -> str | None:
    return None if isinstance(value, dict) else "an object"


def _list(value: Any) -> str | None:
    return None if isinstance(value, list) else "a list"


def _or_null(check: _Check) -> _Check:
    expected = f"{check(_Nothing)}, or null"
    return lambda value: None if value is None or check(value) is None else expected


def _number_or_object(value: Any) -> str | None:
    good = isinstance(value, dict) or _not_negative(value) is None
    return None if good else "a finite number that is not negative, or an object"


_TOP: _Table = {
    "name": _text,
    "device": _text,
    "default": _text,
    "predictors": _object,
    "points": _list,
    "environment": _object,
    "noise": _object,
    "domain": _object,
}
_TWO_REGIME: _Table = {"breakpoint_ms": _not_negative, "slope": _positive, "offset_ms": _number}
_TWO_REGIME_TERMS: _Table = dict.fromkeys(("acts", "inp", "flops"), _not_negative)
_POINT: _Table = {
    "name": _text,
    "batch_size": _batch_size,
    **dict.fromkeys(("acts", "inp", "flops"), _count),
    **dict.fromkeys(("traffic", "weights", "ops"), _or_null(_count)),
    "latency_ms": _positive,
    "samples_ms": _or_null(_list),
}
_ENTRY: _Table = {
    "error": _number_or_object,
    "residuals": _list,
    "interval": _object,
    "alone": _object,
    "networks": _object,
}
_INTERVAL: _Table = {"exponent": _not_negative, "ops": _range, "scores": _list}
_NETWORKS: _Table = {"ops": _not_negative, "spread": _not_negative, "count": _least(2)}
_NOISE: _Table = {"quiet": _positive, "busy": _positive}
_MORE: _Table = {
    "kinds": _list,
    "reference_ms": _or_null(_list),
    "spread": _or_null(_number),
    "whole": _yes_or_no,
}
_DOMAIN: _Table = {"kinds": _list, "dtypes": _list, "ratios": _object, "sizes": _object}


def _fault(place: str, value: Any, expected: str) -> str:
    return f"`{place}` is {show(value)}; expected {expected}"


def _fields(table: _Table, holder: dict[str, Any], place: str) -> Iterator[str]:
    for field, check in table.items():
        if field not in holder:
            # The check of a value that is not there still says what it would have wanted.
            yield f"the field `{place}{field}` is missing; expected {check(_Nothing)}"
        elif (expected := check(holder[field])) is not None:
            yield _fault(place + field, holder[field], expected)


def _optional(table: _Table, holder: dict[str, Any], place: str) -> Iterator[str]:
    for field, check in table.items():
        if field in holder and (expected := check(holder[field])) is not None:
            yield _fault(place + field, holder[field], expected)


def _numbers(
    values: list[Any], place: str, check: _Check, least: float = -math.inf
) -> Iterator[str]:
    """Faults of a list of numbers. The usual list of good floats is passed at the speed of C."""
    if values and set(map(type, values)) <= {float, int}:
        try:
            # One NaN or infinity makes the sum one too; a sum may overflow, then look one by one.
            if math.isfinite(sum(values)) and min(values) > least:
                return
        except OverflowError:
            pass
    for index, value in enumerate(values):
        if (expected := check(value)) is not None:
            yield _fault(f"{place}[{index}]", value, expected)


def _texts(values: list[Any], place: str) -> Iterator[str]:
    for index, value in enumerate(values):
        if not isinstance(value, str):
            yield _fault(f"{place}[{index}]", value, "text")


def _faults(document: dict[str, Any]) -> Iterator[str]:
    yield from _fields(_TOP, document, "")
    predictors = document["predictors"]
    for name, predictor in predictors.items():
        yield from _predictor(predictor, name, f"predictors.{_key(name)}")
    if document["default"] not in predictors:
        names = ", ".join(show(name) for name in sorted(predictors)) or "none"
        yield _fault("default", document["default"], f"one of the predictors in the file: {names}")
    for index, point in enumerate(document["points"]):
        yield from _point(point, f"points[{index}]")
    yield from _domain(document["domain"])
    yield from _optional(_NOISE, document["noise"], "noise.")
    yield from _optional({"warnings": _list}, document, "")
    yield from _texts(document.get("warnings", []), "warnings")
    yield from _non_finite(document, "")


def _predictor(predictor: Any, name: str, place: str) -> Iterator[str]:
    if not isinstance(predictor, dict):
        yield _fault(place, predictor, "an object")
        return
    yield from _fields({"coefficients": _object}, predictor, place + ".")
    for term, value in predictor["coefficients"].items():
        if (expected := _not_negative(value)) is not None:
            yield _fault(f"{place}.coefficients.{_key(term)}", value, expected)
    if name == "two-regime":
        yield from _fields(_TWO_REGIME_TERMS, predictor["coefficients"], f"{place}.coefficients.")
        yield from _fields(_TWO_REGIME, predictor, place + ".")
    yield from _optional(_ENTRY, predictor, place + ".")
    yield from _numbers(predictor.get("residuals", []), f"{place}.residuals", _number)
    if (interval := predictor.get("interval")) is not None:
        yield from _fields(_INTERVAL, interval, f"{place}.interval.")
        yield from _numbers(interval["scores"], f"{place}.interval.scores", _number)
    for term, value in predictor.get("alone", {}).items():
        if (expected := _not_negative(value)) is not None:
            yield _fault(f"{place}.alone.{_key(term)}", value, expected)
    if (networks := predictor.get("networks")) is not None:
        yield from _fields(_NETWORKS, networks, f"{place}.networks.")
    if "six_counts" in predictor:
        yield from _predictor(predictor["six_counts"], "", f"{place}.six_counts")


def _point(point: Any, place: str) -> Iterator[str]:
    if not isinstance(point, dict):
        yield _fault(place, point, "an object")
        return
    yield from _fields(_POINT, point, place + ".")
    yield from _numbers(point["samples_ms"] or [], f"{place}.samples_ms", _positive, least=0.0)
    yield from _optional(_MORE, point, place + ".")
    yield from _texts(point.get("kinds", []), f"{place}.kinds")
    yield from _numbers(point.get("reference_ms") or [], f"{place}.reference_ms", _number)


def _domain(domain: dict[str, Any]) -> Iterator[str]:
    yield from _optional(_DOMAIN, domain, "domain.")
    for field in ("kinds", "dtypes"):
        yield from _texts(domain.get(field, []), f"domain.{field}")
    for field in ("ratios", "sizes"):
        for name, value in domain.get(field, {}).items():
            if (expected := _range(value)) is not None:
                yield _fault(f"domain.{field}.{_key(name)}", value, expected)


def _non_finite(value: Any, place: str) -> Iterator[str]:
    """NaN and infinities in any field, also in those that this version does not know.

    JSON cannot hold them, so a file with one (as 1e999, say) cannot be written again.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            yield _fault(place, value, "a finite number")
    elif isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, float | dict | list):
                yield from _non_finite(item, f"{place}.{_key(key)}" if place else _key(key))
    elif isinstance(value, list):
        if not set(map(type, value)) <= {float, int}:
            for index, item in enumerate(value):
                yield from _non_finite(item, f"{place}[{index}]")
        else:
            yield from _numbers(value, place, _number)


def _key(key: Any) -> str:
    """A key from the file, safe in a one-line message."""
    plain = isinstance(key, str) and key.isascii() and key.isprintable() and len(key) <= _SHOWN
    return key if plain else show(key)
