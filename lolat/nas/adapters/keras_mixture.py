"""The expected latency of a supernet's mixture as a Keras 3 tensor, on any of its backends.

latency = ExpectedLatency(space, model)
self.add_loss(0.01 * latency([layer.alpha for layer in self.searched]))
"""

from __future__ import annotations

from typing import Any

from lolat.model import Model
from lolat.nas.adapters.common import bent, milliseconds
from lolat.nas.adapters.mixture import by_position, expectation
from lolat.nas.space import Space
from lolat.readers.keras import import_keras


class ExpectedLatency:
    """Milliseconds that a mixture of a space's candidates is expected to take; differentiable."""

    def __init__(
        self, space: Space, model: Model, batch_size: int = 1, predictor: str | None = None
    ) -> None:
        """InputError as `Space.scorer`; MissingPackageError without Keras."""
        import_keras()
        self.times = milliseconds(space, model, batch_size, predictor)

    def __call__(self, logits: Any, temperature: float = 1.0) -> Any:
        """A scalar tensor, ms, from the architecture's parameters (variables or tensors).

        `logits`: a vector of each position, in order (a matrix will do where all have as many choices) or
        in a dict by the position's name; `softmax(logits / temperature)` are the probabilities.
        InputError for the wrong vectors.
        """
        from keras import ops

        given = by_position(self.times.positions, logits)
        return self._expected({p: ops.softmax(v / temperature) for p, v in given.items()})

    def of_probabilities(self, probabilities: Any) -> Any:
        """The same from probabilities, such as those of a Gumbel softmax."""
        return self._expected(by_position(self.times.positions, probabilities))

    def _expected(self, probabilities: dict[int, Any]) -> Any:
        from keras import ops

        one = next(iter(probabilities.values()))
        # Constants of the graph where there is one; kept, they would be of a graph that is gone.
        tables = [
            (positions, ops.convert_to_tensor(table, dtype=one.dtype))
            for positions, table in self.times.tables.items()
        ]
        total = expectation(self.times, tables, probabilities, _dot)
        total = ops.convert_to_tensor(total, dtype=one.dtype)
        return bent(self.times.formula, total, ops.where)


def _dot(table: Any, vector: Any) -> Any:
    from keras import ops

    return ops.sum(table * vector, axis=-1)
