"""Measured against predicted: the figures of `lolat evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from lolat.errors import MeasuringError
from lolat.fitting.intervals import noise_floor
from lolat.graph import Graph
from lolat.model import Model
from lolat.model.learning import errors
from lolat.model.prediction import Prediction
from lolat.model.state import State
from lolat.report.text import beside
from lolat.units import percent


class Measured(Protocol):
    """A measured network (`microbench.evaluate.MeasuredNetwork`)."""

    @property
    def spec(self) -> str:
        """NETWORK as it was asked for."""

    @property
    def graph(self) -> Graph:
        """What it consists of."""

    @property
    def batch_size(self) -> int:
        """Samples in a pass."""

    @property
    def latency_ms(self) -> float:
        """Measured time of a pass."""

    @property
    def spread(self) -> float | None:
        """How far the centres of every other visit are apart, relative; None where not known."""

    @property
    def input_size(self) -> tuple[int, ...]:
        """As it was asked for; () for the network's own."""

    @property
    def block(self) -> int | None:
        """Which block of it (`lolat.graph.blocks.cut`, from 0); None: all of it."""


def correlation(a: np.ndarray, b: np.ndarray) -> float | None:
    """Pearson's correlation; None where it is not defined."""
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return None
    return float(np.corrcoef(a, b)[0, 1])


def r_squared(predicted: np.ndarray, measured: np.ndarray) -> float | None:
    """1 - residual / total sum of squares, in milliseconds; None for fewer than two networks."""
    total = float(((measured - measured.mean()) ** 2).sum())
    return None if total == 0 else 1.0 - float(((measured - predicted) ** 2).sum()) / total


def figures(predicted: np.ndarray, measured: np.ndarray) -> dict[str, Any]:
    """All figures of one predictor on a set of networks."""
    from scipy.stats import rankdata

    return {
        **errors(predicted, measured),
        "mean": float(np.abs(predicted / measured - 1.0).mean()),
        "bias": float(np.median(predicted / measured - 1.0)),
        "r2": r_squared(predicted, measured),
        "pearson": correlation(predicted, measured),
        "spearman": correlation(rankdata(predicted), rankdata(measured)),
    }


CERTAINTY = 0.95  # of the bounds on how many lie inside


def share_bounds(inside: int, of: int, certainty: float = CERTAINTY) -> tuple[float, float]:
    """Between which shares the true one lies, where `inside` of `of` independent ones were inside.

    Exact, from the binomial distribution (Clopper and Pearson 1934). One network at several batch
    sizes is not independent, so that the bounds are then somewhat too narrow.
    """
    from scipy.stats import binomtest

    bounds = binomtest(inside, of).proportion_ci(certainty, method="exact")
    return float(bounds.low), float(bounds.high)


def intervals(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How the intervals of `networks` did; None where there are none.

    `median_width`: of (high - low) / prediction, by the default predictor, as the intervals are.
    """
    sure = [r for r in rows if r["interval_ms"] is not None]
    if not sure:
        return None
    inside = sum(r["inside"] for r in sure)
    return {
        "coverage": sure[0]["coverage"],
        "inside": inside,
        "of": len(sure),
        "bounds": list(share_bounds(inside, len(sure))),
        "certainty": CERTAINTY,
        "median_width": float(np.median([r["interval_width"] for r in sure])),
    }


def compare(
    model: Model,
    measured: Sequence[Measured],
    failures: Mapping[str, str],
    state: State | None = None,
) -> dict[str, Any]:
    """Everything `evaluate --json` prints. Raises MeasuringError where nothing was measured.

    `state`: of the machine while it measured, as networks of the model say (`diagnosis.state_now`). What is
    compared is the prediction for that state (`predicted_ms`), so that an error is the formula's; what
    is predicted for the machine as it usually is stands beside it (`usual_ms`, `as_usual`).
    """
    if not measured:
        reasons = [f"{key}: {reason}" for key, reason in failures.items()]
        raise MeasuringError(f"no network could be measured ({'; '.join(reasons) or 'none given'})")
    names = sorted(model.predictors, key=lambda n: n != model.default)
    rows: list[dict[str, Any]] = []
    for network in measured:
        usual = {n: model.predict(network.graph, network.batch_size, predictor=n) for n in names}
        now = usual if state is None else {n: p.under(state) for n, p in usual.items()}
        rows.append(_row(network, now, usual, model.default))
    times = np.array([r["measured_ms"] for r in rows])
    return {
        "model": model.name,
        "device": model.device,
        "default": model.default,
        "predictors": names,
        "state": None if state is None else state.to_dict(),
        "networks": rows,
        "summary": {
            n: figures(np.array([r["predicted_ms"][n] for r in rows]), times) for n in names
        },
        "as_usual": {n: figures(np.array([r["usual_ms"][n] for r in rows]), times) for n in names},
        "inside_interval": sum(r["inside"] is True for r in rows),
        "inside_usual_interval": sum(r["inside_usual"] is True for r in rows),
        "intervals": intervals(rows),
        "noise_floor": noise_floor(model.document),
        "failures": dict(failures),
    }


def _row(
    network: Measured,
    now: Mapping[str, Prediction],
    usual: Mapping[str, Prediction],
    default: str,
) -> dict[str, Any]:
    """One of `networks`."""
    best, ms = now[default], network.latency_ms
    return {
        "network": network.spec,
        "input_size": list(network.input_size),
        "block": network.block,
        "batch_size": network.batch_size,
        "measured_ms": ms,
        "spread": network.spread,
        "predicted_ms": {n: p.latency_ms for n, p in now.items()},
        "error": {n: p.latency_ms / ms - 1 for n, p in now.items()},
        "usual_ms": {n: p.latency_ms for n, p in usual.items()},
        "quiet_ms": usual[default].quiet_ms,
        "coverage": best.coverage,
        "interval_ms": None if best.interval_ms is None else list(best.interval_ms),
        "interval_width": None
        if best.interval_ms is None
        else (best.interval_ms[1] - best.interval_ms[0]) / (best.latency_ms or 1.0),
        "inside": _inside(best, ms),
        "inside_usual": _inside(usual[default], ms),
        "in_domain": best.in_domain,
    }


def _inside(prediction: Prediction, ms: float) -> bool | None:
    if prediction.interval_ms is None:
        return None
    low, high = prediction.interval_ms
    return bool(low <= ms <= high)


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
