"""Finds work of a network that does not grow with its batch, by reading it with several samples too."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from lolat.graph import Graph, Operation
from lolat.graph.counts import COLUMNS, count
from lolat.graph.kinds import KERNELS, VIEWS
from lolat.units import one_line, plain, plural, shortened

LEAST_SHARE = 0.01
"""A remark is made from this share of the elements, or of the multiply-accumulates, on."""
ONLY = "so the answer holds for batch size 1 only"
FLOPS = COLUMNS.index("flops")


def batch_remarks(one: Graph, read: Callable[[], Graph], samples: int = 2) -> Iterator[str]:
    """Yield remarks on work of several samples that is not as many times that of one.

    `one`: the network read with one sample; `read`: reads it with `samples`, more than two if its code
    takes another branch from that number on. Tensors that are as large for any number get a remark if they
    are a large share. Operations that grow faster than the batch always get one, because at some batch size
    they are most of the work.
    """
    batch = "two" if samples == 2 else f"{samples:,}"
    only = ONLY if samples == 2 else f"so the answer holds for batches below {samples:,} only"
    try:
        several = read()
    except Exception as error:  # whatever a user's code raises
        yield f"it does not take a batch of {batch} ({shortened(one_line(error))}), {only}"
        return
    macs, of_several = count(one).at(samples)[:, FLOPS], count(several).at(1)[:, FLOPS]
    layers, more = (sum(o.kind in KERNELS for o in graph.operations) for graph in (one, several))
    differs = [*map(_kind, one.operations)] != [*map(_kind, several.operations)]
    of_products = abs(macs.sum() - of_several.sum()) > LEAST_SHARE * of_several.sum()
    if of_products or more > layers or (differs and samples > 2):
        why = (
            "works across the samples or on one at a time"
            if samples == 2
            else "has a branch on its size"
        )
        yield (
            f"a batch of {batch} has {of_several.sum():,} MACs in {more:,} layers, not {macs.sum():,} in "
            f"{layers:,}: its code {why}, {only}"
        )
        return
    if differs:
        return  # the same products, but the operations cannot be compared one by one
    own = np.array(
        [sum(one.tensors[t].elements(samples) for t in o.outputs) for o in one.operations]
    )
    right = np.array(
        [sum(several.tensors[t].elements() for t in o.outputs) for o in several.operations]
    )
    larger, smaller = (right > own) | (of_several > macs), right < own
    smaller &= (own - right)[smaller].sum() > LEAST_SHARE * own.sum()
    for how, which in {"grows faster than the": larger, "is as large for any": smaller}.items():
        if which.any():
            name = plain(one.operations[int(np.argmax(which))].full_name)
            yield (
                f"{plural(int(which.sum()), 'operation')} whose result {how} batch, such as {name}: "
                f"counted as if it grew with the batch, {only}"
            )


def _kind(operation: Operation) -> str:
    """The kind of an operation; "view" for a transpose too, which may be a reshape for one sample."""
    return "view" if operation.kind in (*VIEWS, "transpose") else operation.kind
