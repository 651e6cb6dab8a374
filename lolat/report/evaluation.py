"""Measured against predicted: what `lolat evaluate` and `lolat doctor` print."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

from lolat.fitting.domain import fit_again
from lolat.model import Model
from lolat.model.state import LIMIT
from lolat.report.device import headline
from lolat.units import milliseconds, percent, plain


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
    yield from _headline(result)
    yield _machine(result)
    yield verdict(result)
    yield ""
    yield from _details(result)
    for key, reason in result["failures"].items():
        yield f"not measured: {key}: {reason}"


def _headline(result: Mapping[str, Any]) -> Iterator[str]:
    """The errors of the predictions as `predict` gives them."""
    kept = result["intervals"]
    inside = "" if kept is None else f", {kept['inside']} of {kept['of']} inside their intervals"
    yield f"as predicted: {_errors(result['summary'])}{inside}"


def _errors(found: Mapping[str, Any]) -> str:
    return (
        f"median error {percent(found['median'])}, bias {100 * found['bias']:+.0f} %, "
        f"{100 * found['within_10_percent']:.0f} % within 10 %"
    )


def _machine(result: Mapping[str, Any]) -> str:
    """How fast the machine was while measuring, and the errors without that."""
    ratio = result["ratio"]
    if ratio is None:
        return "machine meanwhile: not known, the model has no networks of its own that tell"
    found = result["ratio_taken_out"]
    return f"machine meanwhile: {times_as_long(ratio)}; with that taken out {_errors(found)}"


def times_as_long(ratio: float) -> str:
    """A ratio of new to learned time in words."""
    return (
        "as fast as learned" if 0.995 < ratio < 1.005 else f"{ratio:.2f} times as long as learned"
    )


def verdict(result: Mapping[str, Any]) -> str:
    """How good the model is here, what limits it, and what to do."""
    found, cause = result["summary"], result["cause"]
    error = percent(found["median"])
    if cause is None:
        return f"This model is good here: half of these networks are within {error}."
    said = f"This model is {result['verdict']} here, off by {error} at the median"
    return f"{said}{_causes(result)[cause]}."


def _causes(result: Mapping[str, Any]) -> dict[str, str]:
    """Each cause in words, with what to do."""
    found, limit = result["summary"], percent(result["limit"])
    way = "fast" if found["bias"] < 0 else "slow"
    one_way = abs(found["bias"]) > 0.7 * found["median"]
    ways = f"most come out too {way}" if one_way else "its errors go both ways"
    outside = next((r["network"] for r in result["networks"] if r["in_domain"] is False), "")
    is_slower = (result["ratio"] or 1.0) > 1.0
    moved = (
        "slower since it was learned: close other programs and ask `lolat doctor`, and learn "
        "again if it stays so"
        if is_slower
        else "faster since it was learned, which was in a slow spell then: learn again"
    )
    fit = f"write their times into timed.csv and fit them in: {fit_again(result['model'])}"
    return {
        "machine": f"; the machine has become more than {limit} {moved}",
        "domain": f"; most of these networks ({outside} ...) hold what was never measured: {fit}",
        "noise": (
            "; half of that or more is noise of the points that it was learned from: close other programs "
            "and learn again"
        ),
        "level": (
            f"; most of that is the machine's level, which is within {limit} of the learned one, as it "
            "usually is"
        ),
        "formula": f"; the machine is as it was, so the formula lacks something here: {ways}; {fit}",
        "unknown": f"; nothing tells whether the machine or the formula is the cause: {ways}; learn again",
    }


def _details(result: Mapping[str, Any]) -> Iterator[str]:
    """The other figures."""
    found, kept, floor = result["summary"], result["intervals"], result["noise_floor"]
    yield (
        f"{result['predictor']}: {_sizes(found)}R² {_figure(found['r2'])}, Pearson "
        f"{_figure(found['pearson'])}, Spearman {_figure(found['spearman'])}"
    )
    if kept is not None:
        low, high = (100 * share for share in kept["bounds"])
        yield (
            f"intervals of {100 * kept['coverage']:g} %: {low:.0f} .. {high:.0f} % inside with "
            f"{100 * kept['certainty']:g} % certainty; from low to high {percent(kept['median_width'])} of "
            "the prediction at the median"
        )
    if floor is not None:
        yield f"noise floor {percent(floor)}: what measuring a block again gives; no predictor can beat it"


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
        yield f"The networks are {_median(result)}; {_limit(result['limit'])}."
    elif verdict == "unsettled":
        yield "cannot tell: the machine is busy or unsteady now."
        yield f"The networks are {_median(result)}."
    else:
        yield (
            f"drifted by {100 * (result['ratio'] - 1):+.0f} %: {_median(result)}; "
            f"{_limit(result['limit'])}."
        )


def _limit(limit: float) -> str:
    """How far it may be off, and why so far."""
    if limit > LIMIT:
        return (
            f"up to {percent(limit)} is what this model's own measurements differ by when repeated"
        )
    return f"up to {percent(limit)} is usual"


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
