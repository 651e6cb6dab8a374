"""The expected latency of a mixture of choices, as FBNet and DARTS weigh them; the framework's part apart.

With independent positions, the choice i of a position having probability p_i, a table of one position
contributes `sum_i p_i * ms_i` (Wu et al., CVPR 2019, equations 4 and 6), one of two positions the bilinear
form `sum_ij p_i * q_j * ms_ij`, and so on: the exact expectation of what the candidates take.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lolat.errors import InputError
from lolat.nas.adapters.common import Milliseconds
from lolat.nas.space import Position


def by_position(positions: Sequence[Position], given: Any) -> dict[int, Any]:
    """The vectors given for the positions: number of the position -> vector of its choices.

    `given`: one for each position in order, or a dict by name, which may leave out positions with one
    choice. InputError where one is missing, unknown or of another length.
    """
    if isinstance(given, Mapping):
        names = [p.name for p in positions]
        unknown = [name for name in given if name not in names]
        if unknown:
            raise InputError(f"no position {unknown[0]!r}; expected {', '.join(names)}")
        found = {i: given[n] for i, n in enumerate(names) if n in given}
    else:
        # A symbolic tensor has no length and cannot be iterated, but has a shape and can be indexed.
        count = int(given.shape[0]) if hasattr(given, "shape") else len(given)
        if count != len(positions):
            raise InputError(
                f"{count} vectors for {len(positions)} positions; expected one for each, in order, or a "
                "dict by name"
            )
        found = {i: given[i] for i in range(count)}
    for index, position in enumerate(positions):
        count = len(position.choices)
        if index not in found:
            if count > 1:
                raise InputError(
                    f"nothing for position {position.name!r}; expected a vector of {count}"
                )
        elif tuple(found[index].shape) != (count,):
            raise InputError(
                f"position {position.name!r} has {count} choices; expected a vector of {count}, got "
                f"shape {tuple(found[index].shape)}"
            )
    return found


def expectation(
    times: Milliseconds,
    tables: Sequence[tuple[tuple[int, ...], Any]],
    probabilities: Mapping[int, Any],
    dot: Callable[[Any, Any], Any],
) -> Any:
    """The expected milliseconds before the formula's bend.

    `tables`: those of `times` as tensors; `dot(table, vector)` sums over the table's last axis.
    """
    total: Any = times.constant
    for positions, table in tables:
        part = table
        for position in reversed(positions):
            part = dot(part, probabilities[position])
        total = total + part
    return total
