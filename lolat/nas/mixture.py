"""The expected latency of a supernet's mixture as a tensor of PyTorch, to be added to the loss.

    latency = TorchExpectedLatency(space, model)
    loss = cross_entropy + 0.01 * latency([layer.alpha for layer in supernet.layers])

With independent positions, the choice i of a position having probability p_i (as FBNet and DARTS weigh
them), a table of one position contributes `sum_i p_i * ms_i` (Wu et al., CVPR 2019, equations 4 and 6), one
of two positions the bilinear form `sum_ij p_i * q_j * ms_ij`, and so on: the exact expectation of what the
candidates take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lolat.errors import InputError
from lolat.fitting.predictors.two_regime import TwoRegime
from lolat.model import Model
from lolat.nas.space import Space
from lolat.readers.torch import import_torch


class TorchExpectedLatency:
    """Milliseconds that a mixture of a space's candidates is expected to take; differentiable."""

    def __init__(
        self, space: Space, model: Model, batch_size: int = 1, predictor: str | None = None
    ) -> None:
        """InputError as `Space.scorer`; MissingPackageError without PyTorch."""
        import_torch()
        self.positions = space.positions
        self.formula, self.tables = space.tables_ms(model, batch_size, predictor)

    def __call__(self, logits: Any, temperature: float = 1.0) -> Any:
        """A scalar tensor, ms, from the architecture's parameters.

        `logits`: a vector of each position, in order (a matrix will do where all have as many choices) or
        in a dict by the position's name; `softmax(logits / temperature)` are the probabilities.
        InputError for the wrong vectors.
        """
        vectors = self._by_position(logits)
        return self._expected({p: (v / temperature).softmax(-1) for p, v in vectors.items()})

    def of_probabilities(self, probabilities: Any) -> Any:
        """The same from probabilities, such as those of `torch.nn.functional.gumbel_softmax`."""
        return self._expected(self._by_position(probabilities))

    def _expected(self, vectors: Mapping[int, Any]) -> Any:
        one = next(iter(vectors.values()))
        total = one.new_tensor(self.formula.constant)
        for positions, table in self.tables:
            part = one.new_tensor(table)
            for position in reversed(positions):  # the last axis goes first
                part = part @ vectors[position] if position in vectors else part[..., 0]
            total = total + part
        if not isinstance(self.formula, TwoRegime):
            return total
        slope, breakpoint = self.formula.slope, self.formula.breakpoint_ms
        return total.where(total >= breakpoint, breakpoint - slope * (breakpoint - total))

    def _by_position(self, arrays: Any) -> dict[int, Any]:
        """Number of the position -> vector of its choices. Positions with one choice may have none."""
        names = [p.name for p in self.positions]
        named = arrays if isinstance(arrays, Mapping) else dict(enumerate(arrays))
        expected = names if isinstance(arrays, Mapping) else range(len(names))
        if unknown := [key for key in named if key not in expected]:
            raise InputError(f"no position {unknown[0]!r}; expected {', '.join(names)}")
        vectors = {i: named[key] for i, key in enumerate(expected) if key in named}
        for i, position in enumerate(self.positions):
            shape = tuple(vectors[i].shape) if i in vectors else None
            count = len(position.choices)
            if shape != (count,) and (shape is not None or count > 1):
                raise InputError(
                    f"{'nothing' if shape is None else f'shape {shape}'} for position "
                    f"{position.name!r}; expected a vector of {count}, one for each choice"
                )
        return vectors
