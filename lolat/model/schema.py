"""What a model file must hold: its fields, their types and ranges; one plain error for a fault.

Only the fields named here are checked: a later minor version may add keys anywhere, and a reader of
version 1 still reads the file. Standard library only; this is on the way of every answer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from lolat.errors import ModelFileError
from lolat.graph.work import (
    CLASSES,
    MOVING_TERMS,
    NEEDED,
    OPTIONAL_TERMS,
    PRODUCT_TERMS,
    PRODUCTS,
    SHAPE,
)
from lolat.io.checks import (
    DEEPEST,
    SHOWN,
    Check,
    Nothing,
    Table,
    a_count,
    a_list,
    a_number,
    a_range,
    a_text,
    an_object,
    at_least,
    not_negative,
    number_or_object,
    or_null,
    positive,
    show,
    too_deep,
    yes_or_no,
)

SCHEMA = "lolat-model"
FORMAT_VERSION = 1


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


_TOP: Table = {
    "name": a_text,
    "device": a_text,
    "default": a_text,
    "predictors": an_object,
    "points": a_list,
    "environment": an_object,
    "noise": an_object,
    "domain": an_object,
}
_TWO_REGIME: Table = {"breakpoint_ms": not_negative, "slope": positive, "offset_ms": a_number}
_TWO_REGIME_TERMS: Table = dict.fromkeys(("acts", "inp", "flops"), not_negative)
_POINT: Table = {
    "name": a_text,
    "batch_size": at_least(1),
    **dict.fromkeys(("acts", "inp", "flops"), a_count),
    **dict.fromkeys(("traffic", "weights", "ops"), or_null(a_count)),
    "latency_ms": positive,
    "samples_ms": or_null(a_list),
}
_ENTRY: Table = {
    "error": number_or_object,
    "residuals": a_list,
    "training_residuals": a_list,
    "interval": an_object,
    "alone": an_object,
    "networks": an_object,
}
_INTERVAL: Table = {"exponent": not_negative, "ops": a_range, "scores": a_list}
_NETWORKS: Table = {"ops": not_negative, "spread": not_negative, "count": at_least(2)}
_KERNELS: Table = {"multiprocessors": positive, "classes": an_object}
_MODE: Table = {
    "dtype": a_text,
    **dict.fromkeys(("compiled", "channels_last", "training"), yes_or_no),
}
_NOISE: Table = {"quiet": positive, "busy": positive}
_MORE: Table = {
    "kinds": a_list,
    "reference_ms": or_null(a_list),
    "spread": or_null(a_number),
    "whole": yes_or_no,
}
_DOMAIN: Table = {"kinds": a_list, "dtypes": a_list, "ratios": an_object, "sizes": an_object}


def _fault(place: str, value: Any, expected: str) -> str:
    return f"`{place}` is {show(value)}; expected {expected}"


def _fields(table: Table, holder: dict[str, Any], place: str) -> Iterator[str]:
    for field, check in table.items():
        if field not in holder:
            # The check of a value that is not there still says what it would have wanted.
            yield f"the field `{place}{field}` is missing; expected {check(Nothing)}"
        elif (expected := check(holder[field])) is not None:
            yield _fault(place + field, holder[field], expected)


def _optional(table: Table, holder: dict[str, Any], place: str) -> Iterator[str]:
    for field, check in table.items():
        if field in holder and (expected := check(holder[field])) is not None:
            yield _fault(place + field, holder[field], expected)


def _numbers(
    values: list[Any], place: str, check: Check, least: float = -math.inf
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
    yield from _optional({"warnings": a_list}, document, "")
    yield from _texts(document.get("warnings", []), "warnings")
    yield from _non_finite(document, "")


def _predictor(predictor: Any, name: str, place: str) -> Iterator[str]:
    if not isinstance(predictor, dict):
        yield _fault(place, predictor, "an object")
        return
    yield from _fields({"coefficients": an_object}, predictor, place + ".")
    for term, value in predictor["coefficients"].items():
        if (expected := not_negative(value)) is not None:
            yield _fault(f"{place}.coefficients.{_key(term)}", value, expected)
    if name == "two-regime":
        yield from _fields(_TWO_REGIME_TERMS, predictor["coefficients"], f"{place}.coefficients.")
        yield from _fields(_TWO_REGIME, predictor, place + ".")
    if name in ("kernels", "training-steps"):
        yield from _kernels(predictor, place)
    yield from _optional(_ENTRY, predictor, place + ".")
    for field in ("residuals", "training_residuals"):
        yield from _numbers(predictor.get(field, []), f"{place}.{field}", a_number)
    if (interval := predictor.get("interval")) is not None:
        yield from _fields(_INTERVAL, interval, f"{place}.interval.")
        yield from _numbers(interval["scores"], f"{place}.interval.scores", a_number)
    for term, value in predictor.get("alone", {}).items():
        if (expected := not_negative(value)) is not None:
            yield _fault(f"{place}.alone.{_key(term)}", value, expected)
    if (networks := predictor.get("networks")) is not None:
        yield from _fields(_NETWORKS, networks, f"{place}.networks.")
    if "six_counts" in predictor:
        yield from _predictor(predictor["six_counts"], "", f"{place}.six_counts")


def _kernels(predictor: dict[str, Any], place: str) -> Iterator[str]:
    yield from _fields(_KERNELS, predictor, place + ".")
    yield from _fields(dict.fromkeys(NEEDED, an_object), predictor["classes"], f"{place}.classes.")
    for name, terms in predictor["classes"].items():
        of = f"{place}.classes.{_key(name)}"
        if name not in CLASSES or not isinstance(terms, dict):
            yield _fault(of, terms, f"one of {', '.join(CLASSES)}, with its terms")
            continue
        wanted = PRODUCT_TERMS if name in PRODUCTS else MOVING_TERMS
        yield from _fields(dict.fromkeys(wanted, positive), terms, f"{of}.")
        yield from _optional(dict.fromkeys(OPTIONAL_TERMS, not_negative), terms, f"{of}.")
    more: Table = {"mode": an_object, "tile": positive, "nearby": an_object, "sustained": positive}
    yield from _optional(more, predictor, place + ".")
    for name, rows in predictor.get("nearby", {}).items():
        of = f"{place}.nearby.{_key(name)}"
        if name not in PRODUCTS or not isinstance(rows, list):
            yield _fault(of, rows, f"one of {', '.join(PRODUCTS)}, with its shapes")
            continue
        for i, row in enumerate(rows):
            sizes = row[:-1] if isinstance(row, list) else []
            if len(sizes) != len(SHAPE) or any(positive(n) for n in sizes) or a_number(row[-1]):
                yield _fault(f"{of}[{i}]", row, f"{', '.join(SHAPE)} above 0, and a weight")
    yield from _optional(_MODE, predictor.get("mode", {}), f"{place}.mode.")


def _point(point: Any, place: str) -> Iterator[str]:
    if not isinstance(point, dict):
        yield _fault(place, point, "an object")
        return
    yield from _fields(_POINT, point, place + ".")
    yield from _numbers(point["samples_ms"] or [], f"{place}.samples_ms", positive, least=0.0)
    yield from _optional(_MORE, point, place + ".")
    yield from _texts(point.get("kinds", []), f"{place}.kinds")
    yield from _numbers(point.get("reference_ms") or [], f"{place}.reference_ms", a_number)


def _domain(domain: dict[str, Any]) -> Iterator[str]:
    yield from _optional(_DOMAIN, domain, "domain.")
    for field in ("kinds", "dtypes"):
        yield from _texts(domain.get(field, []), f"domain.{field}")
    for field in ("ratios", "sizes"):
        for name, value in domain.get(field, {}).items():
            if (expected := a_range(value)) is not None:
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
            yield from _numbers(value, place, a_number)


def _key(key: Any) -> str:
    """A key from the file, safe in a one-line message."""
    plain = isinstance(key, str) and key.isascii() and key.isprintable() and len(key) <= SHOWN
    return key if plain else show(key)
