"""Tensors that PyTorch's autograd keeps of operations whose kind keeps others (derivatives.yaml)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lolat.graph.kinds import BOTH, INPUT, INTEGERS, OTHERS, POSITIONS, by_name

_SAVED = by_name(
    {
        INPUT: "var var_mean gather take take_along_dim",
        BOTH: "amax amin std std_mean prod logsumexp norm linalg_norm linalg_vector_norm frobenius_norm "
        "cumprod logcumsumexp scatter_reduce",
        POSITIONS: "sort topk kthvalue mode",
        f"{INPUT} {POSITIONS}": "cummax cummin",
        OTHERS: "addcmul addcdiv",
        INTEGERS: "index index_select index_add index_copy scatter scatter_add index_put put",
    }
)
_EXTREMES = frozenset(["max", "min", "median", "nanmedian"])


def saved(op: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The attribute `saved` of an operation; none if its kind says it.

    A maximum along an axis keeps its position, one of all elements the elements.
    """
    if op in _EXTREMES and "other" not in arguments:
        return {"saved": POSITIONS if "dim" in arguments else BOTH}
    return {"saved": _SAVED[op]} if op in _SAVED else {}
