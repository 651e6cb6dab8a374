"""Finds work that does not grow with the batch size, by reading a network at two batch sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from msgspec.structs import replace

from lolat.graph import Graph, Operation
from lolat.graph.counts import COLUMNS, count
from lolat.graph.kinds import KERNELS, VIEWS
from lolat.units import one_line, plain, plural, shortened, user_line

LEAST_SHARE = 0.01
"""Tensors or products below this share of all elements or multiply-accumulates get no remark."""
SAMPLES = 16
"""Batch size of the second reading; even and not small, because code may branch on odd or small sizes."""
FLOPS = COLUMNS.index("flops")
ONLY = "so the answer holds for batch size 1 only"


def with_remarks(one: Graph, read: Callable[[int], Graph], asks_two: bool = False) -> Graph:
    """Add remarks to a network if the work of SAMPLES samples is not SAMPLES times that of one sample.

    `one`: the network read with one sample; `read`: reads it with a given number of samples. `asks_two`:
    try a batch of two if the network's code fails with SAMPLES, and note the result in `Graph.one_sample`.
    """
    try:
        several = read(SAMPLES)
    except Exception as error:  # whatever a user's code raises
        remark = f"it does not take a batch of {SAMPLES} ({shortened(one_line(error))})"
        why = _why_one_sample(read) if asks_two else ""
        return replace(for_one_batch(one, remark), one_sample=why)
    return for_one_batch(one, *_remarks(one, several))


def for_one_batch(graph: Graph, *remarks: str) -> Graph:
    """The graph with remarks on work that does not grow with the batch size."""
    told = tuple(f"{remark}, {ONLY}" for remark in remarks)
    return replace(
        graph, warnings=graph.warnings + told, batch_independent=graph.batch_independent + told
    )


def _why_one_sample(read: Callable[[int], Graph]) -> str:
    """The reason why a network's code fails with a batch of two, with the line of code; "" if it runs."""
    try:
        read(2)
    except Exception as error:  # whatever a user's code raises
        return f"{shortened(one_line(error)).rstrip('.')}{user_line(error)}"
    return ""


def _remarks(one: Graph, several: Graph) -> Iterator[str]:
    """Compare a network read with `one` sample and with SAMPLES (`several`); yield remarks.

    Tensors that do not grow with the batch get a remark if they are a large share. Operations that grow
    faster than the batch always get one, because at some batch size they are most of the work.
    """
    macs, found = count(one).at(SAMPLES)[:, FLOPS], count(several).at(1)[:, FLOPS]
    layers, more = (sum(o.kind in KERNELS for o in graph.operations) for graph in (one, several))
    if abs(macs.sum() - found.sum()) > LEAST_SHARE * found.sum() or more > layers:
        yield (
            f"a batch of {SAMPLES} has {found.sum():,} MACs in {more:,} layers, not {macs.sum():,} in "
            f"{layers:,}: its code works across the samples, on one at a time, or by their number"
        )
        return
    if [*map(_kind, one.operations)] != [*map(_kind, several.operations)]:
        return  # the same products, but the operations cannot be compared one by one
    own = np.array(
        [sum(one.tensors[t].elements(SAMPLES) for t in o.outputs) for o in one.operations]
    )
    right = np.array(
        [sum(several.tensors[t].elements() for t in o.outputs) for o in several.operations]
    )
    larger, smaller = (right > own) | (found > macs), right < own
    smaller &= (own - right)[smaller].sum() > LEAST_SHARE * own.sum()
    for how, which in {"grows faster than the": larger, "is as large for any": smaller}.items():
        if which.any():
            name = plain(one.operations[int(np.argmax(which))].full_name)
            picks = {one.operations[i].kind for i in np.flatnonzero(which)} & {"gather", "scatter"}
            nodes = (
                " (if the first axis of its inputs is the nodes of a graph, wrap it so that its inputs "
                "have a leading axis of 1)"
            )
            yield (
                f"{plural(int(which.sum()), 'operation')} whose result {how} batch, such as {name}: "
                f"counted as if it grew with the batch{nodes * (bool(picks) and which is smaller)}"
            )


def _kind(operation: Operation) -> str:
    """The kind of an operation; "view" for a transpose too, which may be a reshape with one sample."""
    return "view" if operation.kind in (*VIEWS, "transpose") else operation.kind
