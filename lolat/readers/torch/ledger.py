"""Counts the elements of parameters that are weights of operations, or in weights computed from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping


class Ledger:
    """Elements of parameters that operations have; each counts once, however many operations read it.

    `made_of`: constant -> ids and elements of the parameters that it is, or is computed from. `taken`: id
    of a parameter -> its elements in operations. `inside`: those of them in weights that are computed.
    `cut`: id of one with more elements than the weights computed from it -> their operation's result.
    """

    def __init__(self) -> None:
        self.made_of: dict[int, dict[int, int]] = {}
        self.taken, self.inside = Counter[int](), Counter[int]()
        self.cut: dict[int, int] = {}

    def parts(self, constants: Iterable[int]) -> dict[int, int]:
        """Ids and elements of the parameters that some constants are, or are computed from."""
        every = [self.made_of[i] for i in constants if i in self.made_of]
        return {key: elements for one in every for key, elements in one.items()}

    def take(self, parts: Mapping[int, int], room: int, result: int = -1) -> int:
        """Put parameters into weights of `room` elements; return how many elements were in none before."""
        found = 0
        for key, elements in parts.items():
            new = max(min(elements - self.taken[key], room - found), 0)
            self.taken[key] += new
            self.inside[key] += new
            found += new
            if self.taken[key] < elements:  # as of weight_norm, which trains scales besides
                self.cut[key] = result
        return found


def free_parameters(trained: Ledger, every: Ledger) -> list[tuple[int, tuple[int, ...]]]:
    """(elements that are no operation's weights, constants computed from it) of `trained` parameters.

    `every`: also has those that are not trained. If a parameter has more elements than the weights computed
    from it, the result of their operation stands for the constants.
    """
    found: dict[int, tuple[int, list[int]]] = {}
    for constant, made_of in trained.made_of.items():
        for key in made_of.keys() - trained.taken:
            if rest := made_of[key] - every.inside[key]:  # a detached kernel has them
                found.setdefault(key, (rest, []))[1].append(constant)
        for key in made_of.keys() & trained.cut:
            if (rest := made_of[key] - trained.taken[key]) > 0:
                found[key] = rest, [trained.cut[key]]
    return [(elements, tuple(constants)) for elements, constants in found.values()]
