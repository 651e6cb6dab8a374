"""Measured against predicted: what `lolat evaluate` and `lolat doctor` print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

from lolat.fitting.domain import fit_again
from lolat.model import Model
from lolat.report.text import beside, headline
from lolat.units import milliseconds, off, percent, plain


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The table that `evaluate` prints, and how good the model is."""
    width = max(len(r["network"]) for r in result["networks"])
    yield f"{'network':{width}} batch  measured  predicted     error"
    for row in result["networks"]:
        line = (
            f"{row['network']:{width}} {row['batch_size']:5d}  {row['measured_ms']:8.2f}  "
            f"{row['predicted_ms']:9.2f} {100 * row['error']:+7.1f} %"
        )
        yield line + "  outside the domain" * (row["in_domain"] is False)
    yield ""
    floor, found = result["noise_floor"], result["summary"]
    yield (
        f"{result['predictor']}: median error {percent(found['median'])}{beside(floor)}, "
        f"{100 * found['bias']:+.0f} % bias, {100 * found['within_10_percent']:.0f} % within 10 %, "
        f"{_sizes(found)}R² {_figure(found['r2'])}, Pearson {_figure(found['pearson'])}, "
        f"Spearman {_figure(found['spearman'])}"
    )
    if result["intervals"] is not None:
        yield from _interval_lines(result["intervals"])
    if floor is not None:
        yield "noise floor: what measuring a block again gives; no predictor can beat it"
    yield _machine(result["ratio"])
    yield verdict(result)
    for key, reason in result["failures"].items():
        yield f"not measured: {key}: {reason}"


def _machine(ratio: float | None) -> str:
    """How fast the machine was while measuring."""
    if ratio is None:
        return "the model has no networks of its own that say how fast the machine was meanwhile"
    return (
        f"the machine meanwhile: the model's own networks took {ratio:.2f} times as long as when it was "
        "learned"
    )


GOOD, FAIR = 0.08, 0.15  # median errors up to which a model is good, and fair
MOVED = 0.1  # of the machine, from when the model was learned: as far as `doctor` lets it be


def verdict(result: Mapping[str, Any]) -> str:
    """How good the model is here, what limits it, and what to do, in a sentence."""
    found, ratio = result["summary"], result["ratio"]
    error, floor = found["median"], result["noise_floor"] or 0.0
    outside = [r["network"] for r in result["networks"] if r["in_domain"] is False]
    if error <= GOOD:
        return f"This model is good here: half of these networks are within {percent(error)}."
    word = "fair" if error <= FAIR else "poor"
    if len(outside) > len(result["networks"]) / 2:
        limit = (
            f"most of these networks ({outside[0]} ...) hold what was never measured: write their times "
            f"into timed.csv and fit them in: {fit_again(result['model'])}"
        )
    elif floor > error / 2:
        limit = "the machine is noisy: close other programs, learn and evaluate again"
    elif ratio is not None and off(ratio) > MOVED:
        limit = "the machine has changed since it was learned: close other programs, or learn again"
    elif abs(found["bias"]) > 0.7 * error:
        limit = f"all come out too {'fast' if found['bias'] < 0 else 'slow'}: learn again"
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
    sizes = [(size, found[f"median_{size}_2_ms"]) for size in ("from", "below")]
    return "".join(f"{size} 2 ms {percent(v)}, " for size, v in sizes if v is not None)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


# ---- `lolat doctor`: the verdict (`microbench.doctor.diagnose`), whether a model still holds.

MEASURED = {
    "ok": "The networks hold all the same",
    "drifted": "The networks do not hold",
    "unsettled": "The machine is busy or unsteady, so the networks say little",
}
FIELDS = {
    "l1d_bytes": "bytes of first-level cache",
    "l2_bytes": "bytes of second-level cache",
    "l3_bytes": "bytes of third-level cache",
    "framework_version": "framework version",
    "keras_version": "Keras version",
    "threads_given": "threads that the framework may use",
    "inter_op_threads": "threads between operations",
}


def doctor_lines(model: Model, model_name: str, result: Mapping[str, Any]) -> Iterator[str]:
    """What `doctor` prints: the model, the blocks then and now, the verdict, what to do."""
    yield headline(model)
    if result["networks"]:
        yield ""
        yield from _table(result)
    yield ""
    yield from _answer(result)
    device = "gpu" if model.document["environment"].get("device") == "gpu" else "cpu"
    yield from _advice(result, quote(plain(model_name)), f"`lolat learn {device}`")
    starting = result["starting_seconds"]
    yield f"{result['seconds']:.1f} s" + (
        f", {starting:.1f} of them starting the framework" if starting else ""
    )


def _table(result: Mapping[str, Any]) -> Iterator[str]:
    rows = [(plain(n["name"]), n) for n in result["networks"]]
    width = max(len(name) for name, _ in rows)
    yield f"{'network':{width}}  batch   learned       now  ratio"
    for name, n in rows:
        learned, now = (f"{milliseconds(n[k]):>8}" for k in ("learned_ms", "now_ms"))
        yield f"{name:{width}}  {n['batch_size']:>5}  {learned}  {now}  {n['ratio']:5.2f}"


def _median(result: Mapping[str, Any]) -> str:
    change, (low, high) = result["ratio"] - 1.0, result["spread"]
    told = f"{percent(abs(change))} {'slower' if change > 0 else 'faster'}"
    told = "as fast as then" if abs(change) < 0.0005 else told
    return f"{told} at the median ({low:.2f} to {high:.2f} times as long)"


def _answer(result: Mapping[str, Any]) -> Iterator[str]:
    """The verdict in a sentence or two."""
    verdict = result["verdict"]
    if verdict == "another machine":
        yield "another machine: " + "; ".join(map(_difference, result["differences"]))
        if result["ratio"] is not None:
            yield f"{MEASURED[result['measured']]}: {_median(result)}."
    elif verdict == "ok":
        yield "ok: the model holds on this machine."
        yield f"The networks are {_median(result)}; up to {percent(result['limit'])} is noise."
    elif verdict == "unsettled":
        yield "cannot tell: the machine is busy or unsteady now."
        yield f"The networks are {_median(result)}."
    else:
        yield f"drifted by {100 * (result['ratio'] - 1):+.0f} %: {_median(result)}."


def _difference(d: Mapping[str, Any]) -> str:
    name = FIELDS.get(d["field"], plain(d["field"].replace("_", " ")))
    now = "not there" if d["now"] is None else plain(str(d["now"]) or "none")
    then = plain(str(d["learned"]) or "none")
    if d["field"] == "processor":
        return f"this is another processor: learned on {then}, here {now}"
    return f"learned with {name} {then}, here it is {now}"


def _advice(result: Mapping[str, Any], model: str, learn: str) -> Iterator[str]:
    """What to do, by verdict."""
    if result["verdict"] == "ok":
        yield f"Next: lolat evaluate {model}"
    elif result["verdict"] == "unsettled":
        yield "What to do: close other programs and ask again in some minutes. If it stays so, the"
        yield f"machine has changed: learn again with {learn}."
    else:
        yield f"What to do: learn a model of this machine as it is with {learn};"
        yield "`lolat models` lists those that there are."
    for remark in result["warnings"]:
        yield f"note: {plain(remark)}"
