"""What `lolat doctor` prints of its verdict (`microbench.doctor.diagnose`): whether a model still holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

from lolat.model import Model
from lolat.report.text import headline
from lolat.report.words import enumeration
from lolat.units import milliseconds, off, percent, plain

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
    "intra_op_threads": "threads within an operation",
    "inter_op_threads": "threads between operations",
}


def lines(model: Model, model_name: str, result: Mapping[str, Any]) -> Iterator[str]:
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
    yield f"now, as factors of the usual: {state_words(result['state'])}"


def state_words(state: Mapping[str, float]) -> str:
    """A state in a line."""
    return ", ".join(f"{kind} {factor:.2f}" for kind, factor in state.items())


def _change(ratio: float) -> str:
    if abs(ratio - 1.0) < 0.0005:
        return "as fast as then"
    return f"{percent(abs(ratio - 1.0))} {'slower' if ratio > 1 else 'faster'}"


def _median(result: Mapping[str, Any]) -> str:
    low, high = result["spread"]
    return f"{_change(result['ratio'])} at the median ({low:.2f} to {high:.2f} times as long)"


def _answer(result: Mapping[str, Any]) -> Iterator[str]:
    """The verdict in a sentence or two."""
    verdict, limit = result["verdict"], result["limit"]
    if verdict == "another machine":
        yield "another machine: " + "; ".join(map(_difference, result["differences"]))
        if result["ratio"] is not None:
            yield f"{MEASURED[result['measured']]}: {_median(result)}."
    elif verdict == "ok":
        yield "ok: the model holds on this machine."
        yield f"The networks are {_median(result)}; up to {percent(limit)} is noise."
    elif verdict == "unsettled":
        yield "cannot tell: the machine is busy or unsteady now."
        yield f"The networks are {_median(result)}."
    elif off(result["ratio"]) > limit:
        yield f"drifted by {100 * (result['ratio'] - 1):+.0f} %: {_median(result)}."
    else:
        wrong = [n for n in result["networks"] if off(n["ratio"]) > result["network_limit"]]
        names = enumeration([f"{plain(n['name'])} x{n['batch_size']}" for n in wrong])
        by = " and ".join(f"{100 * (n['ratio'] - 1):+.0f} %" for n in wrong)
        yield f"drifted by {by} in {names}; the networks together are {_median(result)}."


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
        yield f"machine has changed: learn again with {learn}. What a network takes as things are:"
        yield f"lolat predict {model} NETWORK --state now"
    else:
        yield f"What to do: learn a model of this machine as it is with {learn};"
        yield "`lolat models` lists those that there are."
    for remark in result["warnings"]:
        yield f"note: {plain(remark)}"
