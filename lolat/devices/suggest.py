"""Which operations to time on a device of which little is known: those that tell most of all others.

Before anything is timed, what the fit draws its terms to (`lolat.devices.fit`) and what shapes have in
common (`lolat.predictors.nearby`) say how far off each operation is expected to be, and together with
which others: a covariance. Operations are taken one after the other, each the one that leaves the least of
what is expected of all (sequential design of experiments; Seo et al. 2000 call it active learning Cohn).
"""

from __future__ import annotations

import csv
import io
import math
import random
from collections.abc import Mapping, Sequence

import numpy as np

from lolat.devices.fit import Facts, Times, expected
from lolat.devices.operations import ALL_COLUMNS, NAMES, TimedOperation, operation_of
from lolat.kernel_terms import CLASSES, PRODUCTS
from lolat.predictors.nearby import NOISE, alike
from lolat.work import work_of

CANDIDATES = 600
MIDDLING = Facts(80.0, 1e10, 9e8)  # a GPU of which nothing is known: some 20 TFLOPS, 900 GB/s
SHORT_MS = 0.3  # what takes less is of little weight in a network
LARGEST = 2**27  # elements of a tensor: half a GiB


def drawn(number: int = CANDIDATES, seed: int = 0) -> list[TimedOperation]:
    """Operations of sizes as networks have them, to choose from; their times are not known, and 1 ms."""
    draw, found = random.Random(seed), list[TimedOperation]()

    def size(low: int, high: int, of: int = 1) -> int:
        return max(of, round(math.exp(draw.uniform(math.log(low), math.log(high))) / of) * of)

    while len(found) < number:
        kind = draw.choice(("linear", "linear", "bmm", "conv", "softmax", "ln", "gelu", "add"))
        if kind == "linear":
            sizes = {
                "batch": size(1, 32),
                "m": size(32, 1024),
                "n": size(64, 8192, 32),
                "k": size(64, 8192, 32),
            }
        elif kind == "bmm":
            sizes = {"batch": size(8, 512), **{name: size(32, 1024, 32) for name in "mnk"}}
        elif kind == "conv":
            kernel = draw.choice((1, 3, 3, 5, 7))
            sizes = {
                "batch": size(1, 64), "in_channels": size(16, 1024, 8), "out_channels": size(16, 1024, 8),
                "kernel": kernel, "input_size": size(7, 112), "stride": draw.choice((1, 1, 2)),
                "padding": kernel // 2,
            }  # fmt: skip
        else:
            sizes = {"rows": size(64, 65536), "width": size(64, 8192, 8)}
        row = {"op": kind, **{name: str(n) for name, n in sizes.items()}}
        operation = operation_of(row, "a drawn operation", 1.0)
        if max(t.elements(operation.batch_size) for t in operation.graph.tensors) <= LARGEST:
            found.append(operation)
    return found


def suggested(candidates: Sequence[TimedOperation], number: int, facts: Facts) -> list[int]:
    """The positions of `number` candidates (all, where there are fewer), the one that tells most first;
    of CANDIDATES of them, drawn at random, where there are more.
    """
    if len(candidates) > CANDIDATES:
        some = np.sort(np.random.default_rng(0).permutation(len(candidates))[:CANDIDATES])
        return [int(some[i]) for i in suggested([candidates[i] for i in some], number, facts)]
    work = [work_of(o.graph, o.batch_size) for o in candidates]
    times = Times.of(work, np.ones(len(work)), np.zeros(len(work), bool))
    ms, left = expected(times, facts)
    for i, name in enumerate(CLASSES):
        of_class = np.flatnonzero(times.work.kind == i)
        if name in PRODUCTS and len(of_class):
            which, part = times.owner[of_class], times.work.take(of_class)
            left[np.ix_(which, which)] += alike(part) / NOISE
    weight, found = ms / (ms + SHORT_MS), list[int]()
    for _ in range(min(number, len(candidates))):
        less = (weight @ left**2) / (np.diag(left) + 1.0)
        less[found] = -1.0
        best = int(less.argmax())
        found.append(best)
        left -= np.outer(left[:, best], left[best]) / (left[best, best] + 1.0)
    return found


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """A CSV table of operations without their times, for `examples/time_operations.py --table`."""
    text = io.StringIO()
    writer = csv.DictWriter(
        text, ALL_COLUMNS, restval="", extrasaction="ignore", lineterminator="\n"
    )
    writer.writeheader()
    name = next((n for n in NAMES if rows and n in rows[0]), NAMES[0])
    writer.writerows({**row, NAMES[0]: row[name]} for row in rows)
    return text.getvalue()
