"""Measured against predicted: the figures of `lolat evaluate`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from lolat.errors import MeasuringError
from lolat.graph import Graph
from lolat.intervals import noise_floor
from lolat.learning import errors
from lolat.model import Model
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
    def calm(self) -> bool:
        """Whether the time is that of calm moments."""

    @property
    def input_size(self) -> tuple[int, ...]:
        """As it was asked for; () for the network's own."""

    @property
    def block(self) -> int | None:
        """Which block of it (`lolat.blocks.cut`, from 0); None: all of it."""


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, ties sharing their average."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = counts.cumsum()
    return (last - (counts - 1) / 2)[inverse]


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
    return {
        **errors(predicted, measured),
        "mean": float(np.abs(predicted / measured - 1.0).mean()),
        "bias": float(np.median(predicted / measured - 1.0)),
        "r2": r_squared(predicted, measured),
        "pearson": correlation(predicted, measured),
        "spearman": correlation(ranks(predicted), ranks(measured)),
    }


CERTAINTY = 0.95  # of the bounds on how many lie inside


def share_bounds(inside: int, of: int, certainty: float = CERTAINTY) -> tuple[float, float]:
    """Between which shares the true one lies, where `inside` of `of` independent ones were inside.

    Exact, from the binomial distribution (Clopper and Pearson 1934). One network at several batch
    sizes is not independent, so that the bounds are then somewhat too narrow.
    """
    tail = (1.0 - certainty) / 2
    low = 0.0 if inside == 0 else 1.0 - _share(of - inside, of, tail)
    high = 1.0 if inside == of else _share(inside, of, tail)
    return low, high


def _share(most: int, of: int, tail: float) -> float:
    """The share at which at most `most` of `of` happen with probability `tail`, by bisection."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        terms = (math.comb(of, k) * middle**k * (1.0 - middle) ** (of - k) for k in range(most + 1))
        low, high = (middle, high) if math.fsum(terms) > tail else (low, middle)
    return (low + high) / 2


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
    model: Model, measured: Sequence[Measured], failures: Mapping[str, str]
) -> dict[str, Any]:
    """Everything `evaluate --json` prints. Raises MeasuringError where nothing was measured."""
    if not measured:
        reasons = [f"{key}: {reason}" for key, reason in failures.items()]
        raise MeasuringError(f"no network could be measured ({'; '.join(reasons) or 'none given'})")
    names = sorted(model.predictors, key=lambda n: n != model.default)
    rows: list[dict[str, Any]] = []
    for network in measured:
        predictions = {
            n: model.predict(network.graph, network.batch_size, predictor=n) for n in names
        }
        best = predictions[model.default]
        interval = best.interval_ms
        low, high = interval or (0.0, 0.0)
        rows.append(
            {
                "network": network.spec,
                "input_size": list(network.input_size),
                "block": network.block,
                "batch_size": network.batch_size,
                "measured_ms": network.latency_ms,
                "spread": network.spread,
                "calm": network.calm,
                "predicted_ms": {n: p.latency_ms for n, p in predictions.items()},
                "error": {n: p.latency_ms / network.latency_ms - 1 for n, p in predictions.items()},
                "coverage": best.coverage,
                "interval_ms": None if interval is None else [low, high],
                "interval_width": None
                if interval is None
                else (high - low) / (best.latency_ms or 1.0),
                "inside": None if interval is None else bool(low <= network.latency_ms <= high),
                "in_domain": best.in_domain,
            }
        )
    times = np.array([r["measured_ms"] for r in rows])
    return {
        "model": model.name,
        "device": model.device,
        "default": model.default,
        "predictors": names,
        "networks": rows,
        "summary": {
            n: figures(np.array([r["predicted_ms"][n] for r in rows]), times) for n in names
        },
        "inside_interval": sum(r["inside"] is True for r in rows),
        "intervals": intervals(rows),
        "noise_floor": noise_floor(model.document),
        "failures": dict(failures),
    }


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """The tables that `evaluate` prints."""
    names = result["predictors"]
    width = max(len(r["network"]) for r in result["networks"])
    yield f"{'network':{width}} batch  measured  " + "  ".join(f"{n:>18}" for n in names)
    for row in result["networks"]:
        cells = "  ".join(
            f"{row['predicted_ms'][n]:9.2f} {100 * row['error'][n]:+6.1f} %" for n in names
        )
        outside = "" if row["in_domain"] is not False else "  outside the domain"
        yield (
            f"{row['network']:{width}} {row['batch_size']:5d}  {row['measured_ms']:8.2f}  {cells}"
            f"{outside}"
        )
    yield ""
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
    for key, reason in result["failures"].items():
        yield f"not measured: {key}: {reason}"


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
