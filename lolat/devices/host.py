"""What a table of a GPU tells of the host that started its operations, and how small its steps are."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from lolat.devices.fit import LEAST_STEPS, Facts, Times
from lolat.fitting.domain import Least
from lolat.fitting.predictors.host import ASSUMED, FACTOR, FITTED, USUAL_MS, Host
from lolat.fitting.predictors.kernels import Kernels
from lolat.graph.work import CLASSES

ELSEWHERE = 0.12
"""How far off, as a logarithm (a standard deviation), other hosts and versions of PyTorch are from a table.
The same networks on one RTX 3090 or 4090 by versions 1.13 to 2.9 differ by 0.05 to 0.17 (root mean square);
the first half of the networks that docs/results/gpus.md judges by published times are 0.13 off from batch 4
on."""
LEAST_CLASSES = 3  # of operations timed alone, to tell what a start takes
PASSED_OVER = 0.01  # of a table's rows: the smallest, which are few
LEAST_NETWORKS = 30  # to say how small the steps of a table of networks are


def in_networks(formula: Kernels, times: Times, facts: Facts) -> Kernels:
    """A formula of a GPU that was fitted to `times`, for the operations of a network that a host starts."""
    return replace(formula, host=_host(formula, times), tf32=facts.tf32)


def _host(formula: Kernels, times: Times) -> Host:
    """The host of a table's operations, half way to what hosts usually take; or one that is assumed, and no
    slower than that of the table's fastest networks.
    """
    launch = formula.mode.launch
    alone = times.work.kind[~times.whole[times.owner]]
    if (np.bincount(alone, minlength=len(CLASSES)) >= LEAST_STEPS).sum() >= LEAST_CLASSES:
        return Host(round((formula.launch_ms * USUAL_MS) ** 0.5, 4), FACTOR[FITTED], FITTED, launch)
    most = USUAL_MS
    if times.whole.sum() >= LEAST_NETWORKS:
        starts = times.total(Host(1.0, 1.0, ASSUMED).starts(times.work, launch))
        most = float((times.latency_ms / starts)[times.whole].min())
    own = max(min(USUAL_MS, most), USUAL_MS / FACTOR[ASSUMED])
    return Host(round(own, 4), FACTOR[ASSUMED], ASSUMED, launch)


def least_of(times: Times, batch_sizes: np.ndarray) -> Least:
    """The least that a table has but for PASSED_OVER of its rows; of operations alone, ms an operation.

    `batch_sizes`: (times,).
    """
    operations = times.total((times.work.bytes > 0.0).astype(float))
    whole = times.whole
    if whole.sum() < LEAST_NETWORKS:
        alone = ~whole if not whole.all() else whole
        return Least(operation_ms=_smallest((times.latency_ms / operations)[alone]))
    return Least(
        batch_size=_smallest(batch_sizes[whole]),
        latency_ms=_smallest(times.latency_ms[whole]),
        operation_ms=_smallest((times.latency_ms / operations)[whole]),
    )


def _smallest(values: np.ndarray) -> float:
    return float(f"{np.quantile(values[np.isfinite(values)], PASSED_OVER):.3g}")
