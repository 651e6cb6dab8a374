"""What exchanging gradients costs on this machine, measured with the strategy that will do it.

Iterations that compute nothing, an update by gradients that are known, are timed with the strategy and
without it: gradients of several sizes, in few variables and in many. What the strategy adds is

    fixed + latency * steps + variable * variables + byte * bytes that each device sends

of which the last three are fitted. Joining gradients to messages and taking them apart is in it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lolat.errors import InputError, MeasuringError
from lolat.fitting.least_squares import fit_relative
from lolat.training.exchange import Link, fill_buckets
from lolat.units import percent
from microbench import environment
from microbench.worker import Together, run_together

STRATEGIES: Mapping[str, str] = {
    "mirrored": "microbench.backends.tensorflow.training:exchange",
    "ddp": "microbench.backends.torch.training:exchange",
}
"""TensorFlow's MirroredStrategy and PyTorch's DistributedDataParallel, and what measures them."""
ALONE = ("mirrored",)
"""Strategies that have all their replicas in one process."""
KIB, MIB = 2**10, 2**20
GRADIENTS = (
    (0, 0), (1, 4 * KIB), (8, 32 * KIB), (64, 256 * KIB), (8, MIB), (8, 4 * MIB), (8, 16 * MIB),
    (8, 32 * MIB), (64, 32 * MIB),
)  # fmt: skip
"""(variables, bytes of all of them) that are exchanged."""
CACHED = (512 * KIB, 8 * MIB)
"""Between these, caches hold some of what is exchanged: timed and told, but no part of the line, whose
bandwidth is that of memory (or of a wire)."""
COLUMNS = 3  # latency, variable, byte
LIMIT_S = 600.0
WORST = 0.2  # median error of the line from which on it is warned of
MOST_REPLICAS = 64


@dataclass(frozen=True)
class ExchangePoint:
    """Iterations with gradients of `variables` tensors, `size_bytes` together: raw times, ms."""

    variables: int
    size_bytes: int
    without_ms: tuple[float, ...]
    with_ms: tuple[float, ...]

    @property
    def added_ms(self) -> float:
        """What the strategy adds to an iteration."""
        return statistics.median(self.with_ms) - statistics.median(self.without_ms)


@dataclass(frozen=True)
class MeasuredLink:
    """What the strategy adds to an iteration on `replicas` devices.

    `link`: its latency is of each step of a ring; `variable_ms`: for each tensor of weights; `fixed_ms`:
    whatever the network; `error`: the median relative error of the line on its own points.
    """

    strategy: str
    device: str
    replicas: int
    threads: int
    link: Link
    variable_ms: float
    fixed_ms: float
    error: float
    points: tuple[ExchangePoint, ...]
    environment: Mapping[str, Any]
    warnings: tuple[str, ...] = ()

    def added_ms(self, variables: int, size_bytes: int) -> float:
        """What an exchange of so many tensors and bytes adds, by the line."""
        row = _row(self.strategy, self.replicas, variables, size_bytes)
        of_row = row @ [self.link.latency_ms, self.variable_ms, self.link.byte_ms]
        return self.fixed_ms + float(of_row)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        points = [
            {
                "variables": p.variables,
                "bytes": p.size_bytes,
                "without_ms": [round(t, 5) for t in p.without_ms],
                "with_ms": [round(t, 5) for t in p.with_ms],
                "predicted_ms": round(self.added_ms(p.variables, p.size_bytes), 5),
            }
            for p in self.points
        ]
        return {
            "strategy": self.strategy,
            "device": self.device,
            "replicas": self.replicas,
            "threads": self.threads,
            "gbps": self.link.gbps,
            "latency_ms": self.link.latency_ms,
            "variable_ms": self.variable_ms,
            "fixed_ms": self.fixed_ms,
            "error": self.error,
            "points": points,
            "environment": dict(self.environment),
            "warnings": list(self.warnings),
        }


def measure_link(
    strategy: str,
    replicas: int = 2,
    threads: int | None = None,
    device: str = "cpu",
    together: Together = run_together,
) -> MeasuredLink:
    """Run `strategy` on `replicas` devices of this machine, and fit its costs.

    `threads`: of each replica; None: the processors shared out, at least 1. InputError for numbers that
    cannot be; the errors of `run_together`; MeasuringError where the times tell no link.
    """
    if strategy not in STRATEGIES:
        raise InputError(
            f"{strategy!r} cannot be measured; expected one of {', '.join(STRATEGIES)}"
        )
    if not 2 <= replicas <= MOST_REPLICAS:
        raise InputError(
            f"{replicas} replicas have nothing to exchange that could be measured here; expected 2 to "
            f"{MOST_REPLICAS}"
        )
    processors = environment.cpu_count()
    used = max(1, processors // replicas) if threads is None else threads
    if used < 1:
        raise InputError(f"{used} threads cannot compute; expected 1 or more for each replica")
    # Without variables there is nothing that DistributedDataParallel could wrap.
    gradients = [g for g in GRADIENTS if g[0] or strategy in ALONE]
    request = {"device": device, "replicas": replicas, "threads": used, "gradients": gradients}
    ranks = [{}] if strategy in ALONE else [{"rank": rank} for rank in range(replicas)]
    answers = together(STRATEGIES[strategy], [{**request, **rank} for rank in ranks], LIMIT_S)
    points = joined(gradients, answers)
    link, variable_ms, fixed_ms, error = fit_link(strategy, points, replicas)
    warnings = []
    if device == "cpu" and replicas * used > processors:
        each = f"{used} thread{'s' * (used > 1)}"
        warnings.append(
            f"{replicas} replicas of {each} share {processors} "
            f"processor{'s' * (processors > 1)}: that they wait for one another is in these times"
        )
    if error > WORST:
        warnings.append(
            f"half of the times are more than {percent(error)} off the line: other programs may have "
            "run; close them and measure again"
        )
    where = environment.describe(environment.device_label(device)) | answers[0]["environment"]
    return MeasuredLink(
        strategy, device, replicas, used, link, variable_ms, fixed_ms, error, points, where,
        tuple(warnings),
    )  # fmt: skip


def joined(
    gradients: Sequence[tuple[int, int]], answers: Sequence[Mapping[str, Any]]
) -> tuple[ExchangePoint, ...]:
    """Points from what each process saw of `gradients`; of each call, the slowest replica counts."""
    points = []
    for number, (variables, size_bytes) in enumerate(gradients):
        without, with_ = (
            tuple(float(t) for t in np.max([a[key][number] for a in answers], axis=0))
            for key in ("without_ms", "with_ms")
        )
        points.append(ExchangePoint(variables, size_bytes, without, with_))
    return tuple(points)


def fit_link(
    strategy: str, points: Sequence[ExchangePoint], replicas: int
) -> tuple[Link, float, float, float]:
    """(link, ms for each variable, ms for each iteration, median relative error) of measured points.

    Non-negative least squares on the relative error (`lolat.fitting.least_squares`). A point without
    variables tells
    the cost of an iteration. MeasuringError where the strategy added nothing, or nothing by the byte.
    """
    fixed_ms = max([0.0, *(p.added_ms for p in points if not p.variables)])
    fitted = [p for p in points if p.variables and not CACHED[0] < p.size_bytes < CACHED[1]]
    kept = [p for p in fitted if p.added_ms > fixed_ms]
    trouble = "other programs may have run; close them and measure again"
    if len(kept) <= COLUMNS:
        raise MeasuringError(
            f"the strategy added time in {len(kept)} of {len(fitted)} exchanges, too few to tell a link; "
            f"{trouble}"
        )
    rows = np.array([_row(strategy, replicas, p.variables, p.size_bytes) for p in kept])
    added = np.array([p.added_ms - fixed_ms for p in kept])
    latency_ms, variable_ms, byte_ms = (float(c) for c in fit_relative(rows, added))
    if not byte_ms > 0:
        raise MeasuringError(
            f"exchanging {max(p.size_bytes for p in kept) / MIB:.0f} MiB took no longer than a few KiB, "
            f"which tells no link; {trouble}"
        )
    error = float(np.median(np.abs(rows @ [latency_ms, variable_ms, byte_ms] / added - 1.0)))
    return Link(8e-6 / byte_ms, latency_ms), variable_ms, fixed_ms, error


def _row(strategy: str, replicas: int, variables: int, size_bytes: int) -> np.ndarray:
    """(steps of the ring, variables, bytes that each device sends) of one iteration."""
    steps = 2 * (replicas - 1)
    messages = 1 if variables else 0
    if strategy not in ALONE:
        messages = len(fill_buckets([size_bytes / max(variables, 1)] * variables))
    return np.array([steps * messages, variables, steps / replicas * size_bytes], dtype=float)
