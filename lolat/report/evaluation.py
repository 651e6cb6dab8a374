"""Measured against predicted: what `lolat evaluate` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from lolat.report.text import beside
from lolat.units import percent


def _state_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """What the machine's state was, and what the errors are without it."""
    if result["state"] is None:
        yield (
            "the model has no networks to tell the machine's state by: predictions are for the machine "
            "as it was when the model was learned"
        )
        return
    words = ", ".join(f"{kind} {factor:.2f}" for kind, factor in result["state"].items())
    found = result["as_usual"][result["default"]]
    yield f"the machine while measuring, as factors of its usual speed: {words}"
    yield (
        "predictions are for that state, so that an error is the formula's; as usual (`lolat predict` "
        f"without --state) they are off by {percent(found['median'])} at the median, "
        f"{100 * found['bias']:+.0f} % bias"
    )


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The tables that `evaluate` prints."""
    names = result["predictors"]
    width = max(len(r["network"]) for r in result["networks"])
    usual = f"{'as usual':>9}  " if result["state"] is not None else ""
    yield f"{'network':{width}} batch  measured  {usual}" + "  ".join(f"{n:>18}" for n in names)
    for row in result["networks"]:
        cells = "  ".join(
            f"{row['predicted_ms'][n]:9.2f} {100 * row['error'][n]:+6.1f} %" for n in names
        )
        outside = "" if row["in_domain"] is not False else "  outside the domain"
        yield (
            f"{row['network']:{width}} {row['batch_size']:5d}  {row['measured_ms']:8.2f}  "
            + (f"{row['usual_ms'][result['default']]:9.2f}  " if usual else "")
            + f"{cells}"
            f"{outside}"
        )
    yield ""
    yield from _state_lines(result)
    floor = result["noise_floor"]
    for name in names:
        found = result["summary"][name]
        mark = " (default)" if name == result["default"] else ""
        yield (
            f"{name}{mark}: median error {percent(found['median'])}{beside(floor)}, "
            f"{100 * found['within_10_percent']:.0f} % within 10 %, {_sizes(found)}"
            f"R² {_figure(found['r2'])}, Pearson {_figure(found['pearson'])}, "
            f"Spearman {_figure(found['spearman'])}"
        )
    if result["intervals"] is not None:
        yield from _interval_lines(result["intervals"])
    if floor is not None:
        yield "noise floor: what measuring a block again gives; no predictor can beat it"
    yield verdict(result)
    for key, reason in result["failures"].items():
        yield f"not measured: {key}: {reason}"


GOOD, FAIR = 0.08, 0.15  # median errors up to which a model is good, and fair


def verdict(result: Mapping[str, Any]) -> str:
    """How good the model is here, what limits it, and what to do, in a sentence."""
    found = result["summary"][result["default"]]
    error, floor = found["median"], result["noise_floor"] or 0.0
    outside = [r["network"] for r in result["networks"] if r["in_domain"] is False]
    if error <= GOOD:
        return f"This model is good here: half of these networks are within {percent(error)}."
    word = "fair" if error <= FAIR else "poor"
    if len(outside) > len(result["networks"]) / 2:
        limit = (
            f"most of these networks ({outside[0]} ...) hold what was never measured: lolat learn "
            f"--extend {result['model']} --for {outside[0]}"
        )
    elif floor > error / 2:
        limit = "the machine is noisy: close other programs, learn and evaluate again"
    elif abs(found["bias"]) > 0.7 * error:
        slow = "fast" if found["bias"] < 0 else "slow"
        limit = f"all come out too {slow}, so the machine has changed: learn again"
    else:
        limit = "the formula does not know something about this device: its errors go both ways"
    return f"This model is {word} here, off by {percent(error)} at the median; {limit}."


def _interval_lines(found: Mapping[str, Any]) -> Iterator[str]:
    low, high = (100 * share for share in found["bounds"])
    yield (
        f"inside the {100 * found['coverage']:g} % interval: {found['inside']} of {found['of']} "
        f"({low:.0f} .. {high:.0f} % with {100 * found['certainty']:g} % certainty)"
    )
    width = percent(found["median_width"])
    yield f"width of the intervals, from low to high: {width} of the prediction at the median"


def _sizes(found: Mapping[str, Any]) -> str:
    parts = [
        f"{text} {percent(found[field])}"
        for field, text in (("median_from_2_ms", "from 2 ms"), ("median_below_2_ms", "below 2 ms"))
        if found[field] is not None
    ]
    return "".join(f"{p}, " for p in parts)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
