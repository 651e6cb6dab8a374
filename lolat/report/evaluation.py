"""Measured against predicted: the figures of `lolat evaluate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from lolat.errors import MeasuringError
from lolat.graph import Graph
from lolat.learning import errors
from lolat.model import Model
from lolat.report.text import noise_floor
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


def compare(
    model: Model, measured: Sequence[Measured], failures: Mapping[str, str]
) -> dict[str, Any]:
    """Everything `evaluate --json` prints. Raises MeasuringError where nothing was measured."""
    if not measured:
        reasons = [f"{key}: {reason}" for key, reason in failures.items()]
        raise MeasuringError(f"no network could be measured ({'; '.join(reasons) or 'none given'})")
    names = sorted(model.predictors, key=lambda n: n != model.default)
    rows: list[dict[str, Any]] = []
    inside = 0
    for network in measured:
        predictions = {
            n: model.predict(network.graph, network.batch_size, predictor=n) for n in names
        }
        best = predictions[model.default]
        interval = best.interval_ms
        inside += interval is not None and interval[0] <= network.latency_ms <= interval[1]
        rows.append(
            {
                "network": network.spec,
                "batch_size": network.batch_size,
                "measured_ms": network.latency_ms,
                "spread": network.spread,
                "calm": network.calm,
                "predicted_ms": {n: p.latency_ms for n, p in predictions.items()},
                "error": {n: p.latency_ms / network.latency_ms - 1 for n, p in predictions.items()},
                "interval_ms": None if interval is None else list(interval),
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
        "inside_interval": inside,
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
    for name in names:
        found = result["summary"][name]
        mark = " (default)" if name == result["default"] else ""
        yield (
            f"{name}{mark}: median error {percent(found['median'])}, "
            f"{100 * found['within_10_percent']:.0f} % within 10 %, {_sizes(found)}"
            f"R² {_figure(found['r2'])}, Pearson {_figure(found['pearson'])}, "
            f"Spearman {_figure(found['spearman'])}"
        )
    sure = sum(row["interval_ms"] is not None for row in result["networks"])
    if sure:
        yield f"{result['inside_interval']} of {sure} measured times lie inside their interval"
    if result["noise_floor"] is not None:
        yield f"noise floor (repeated measurements of a block): {percent(result['noise_floor'])}"
    for key, reason in result["failures"].items():
        yield f"not measured: {key}: {reason}"


def _sizes(found: Mapping[str, Any]) -> str:
    parts = [
        f"{text} {percent(found[field])}"
        for field, text in (("median_from_2_ms", "from 2 ms"), ("median_below_2_ms", "below 2 ms"))
        if found[field] is not None
    ]
    return "".join(f"{p}, " for p in parts)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
