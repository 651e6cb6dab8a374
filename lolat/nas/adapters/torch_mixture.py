"""The expected latency of a supernet's mixture as a PyTorch tensor, to be added to the loss.

latency = ExpectedLatency(space, model)
loss = cross_entropy + 0.01 * latency([layer.alpha for layer in supernet.layers])
"""

from __future__ import annotations

from typing import Any

from lolat.model import Model
from lolat.nas.adapters.common import bent, milliseconds
from lolat.nas.adapters.mixture import by_position, expectation
from lolat.nas.space import Space
from lolat.readers.torch import import_torch


class ExpectedLatency:
    """Milliseconds that a mixture of a space's candidates is expected to take; differentiable."""

    def __init__(
        self, space: Space, model: Model, batch_size: int = 1, predictor: str | None = None
    ) -> None:
        """InputError as `Space.scorer`; MissingPackageError without PyTorch."""
        import_torch()
        self.times = milliseconds(space, model, batch_size, predictor)
        self._kept: dict[Any, list[tuple[tuple[int, ...], Any]]] = {}

    def __call__(self, logits: Any, temperature: float = 1.0) -> Any:
        """A scalar tensor, ms, from the architecture's parameters.

        `logits`: a vector of each position, in order (a matrix will do where all have as many choices) or
        in a dict by the position's name; `softmax(logits / temperature)` are the probabilities.
        InputError for the wrong vectors.
        """
        torch = import_torch()
        given = by_position(self.times.positions, logits)
        return self._expected({p: torch.softmax(v / temperature, 0) for p, v in given.items()})

    def of_probabilities(self, probabilities: Any) -> Any:
        """The same from probabilities, such as those of `torch.nn.functional.gumbel_softmax`."""
        return self._expected(by_position(self.times.positions, probabilities))

    def _expected(self, probabilities: dict[int, Any]) -> Any:
        torch = import_torch()
        one = next(iter(probabilities.values()))
        key = (one.device, one.dtype)
        if key not in self._kept:
            self._kept[key] = [
                (positions, torch.as_tensor(table, dtype=one.dtype, device=one.device))
                for positions, table in self.times.tables.items()
            ]
        total = expectation(self.times, self._kept[key], probabilities, torch.matmul)
        total = torch.as_tensor(total, dtype=one.dtype, device=one.device)
        return bent(self.times.formula, total, torch.where)

    def __getstate__(self) -> dict[str, Any]:
        """Without the tensors that are kept for each device."""
        return {**self.__dict__, "_kept": {}}
