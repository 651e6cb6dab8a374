"""The expected latency of a supernet's mixture as a tensor of PyTorch or Keras 3, to be added to the loss.

    latency = TorchExpectedLatency(space, model)
    loss = cross_entropy + 0.01 * latency([layer.alpha for layer in supernet.layers])

With independent positions, the choice i of a position having probability p_i (as FBNet and DARTS weigh
them), a table of one position contributes `sum_i p_i * ms_i` (Wu et al., CVPR 2019, equations 4 and 6), one
of two positions the bilinear form `sum_ij p_i * q_j * ms_ij`, and so on: the exact expectation of what the
candidates take.
"""

from __future__ import annotations

import abc
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

from lolat.errors import InputError
from lolat.model import Model
from lolat.nas.adapters.lookup_table import look_up_table
from lolat.nas.space import Position, Space
from lolat.readers.keras import import_keras
from lolat.readers.torch import import_torch


class ExpectedLatency(abc.ABC):
    """Milliseconds that a mixture of a space's candidates is expected to take; differentiable."""

    def __init__(
        self, space: Space, model: Model, batch_size: int = 1, predictor: str | None = None
    ) -> None:
        """InputError as `Space.scorer`; MissingPackageError without the framework."""
        self._framework()
        self.times = look_up_table(space, model, batch_size, predictor)

    def __call__(self, logits: Any, temperature: float = 1.0) -> Any:
        """A scalar tensor, ms, from the architecture's parameters.

        `logits`: a vector of each position, in order (a matrix will do where all have as many choices) or
        in a dict by the position's name; `softmax(logits / temperature)` are the probabilities.
        InputError for the wrong vectors.
        """
        vectors, softmax = by_position(self.times.positions, logits), self._framework().softmax
        return self._expected({p: softmax(v / temperature, -1) for p, v in vectors.items()})

    def of_probabilities(self, probabilities: Any) -> Any:
        """The same from probabilities, such as those of `torch.nn.functional.gumbel_softmax`."""
        return self._expected(by_position(self.times.positions, probabilities))

    def _expected(self, probabilities: Mapping[int, Any]) -> Any:
        one = next(iter(probabilities.values()))
        total: Any = self.times.constant_ms
        for positions, part in self._tables(one):
            for position in reversed(positions):
                part = self._dot(part, probabilities[position])
            total = total + part
        return self.times.bend(self._tensor(total, one), self._framework().where)

    def _tables(self, like: Any) -> Iterable[tuple[tuple[int, ...], Any]]:
        """The tables as tensors of the type of `like`, and where it is."""
        return [(p, self._tensor(table, like)) for p, table in self.times.tables.items()]

    @abc.abstractmethod
    def _framework(self) -> Any:
        """What has `where(condition, yes, no)` and `softmax(vector, axis)`; MissingPackageError else."""

    @abc.abstractmethod
    def _tensor(self, value: Any, like: Any) -> Any: ...

    @abc.abstractmethod
    def _dot(self, table: Any, vector: Any) -> Any:
        """The sum over the table's last axis."""


class TorchExpectedLatency(ExpectedLatency):
    """With PyTorch; the tables are kept for each device and type."""

    @cached_property
    def _kept(self) -> dict[Any, Iterable[tuple[tuple[int, ...], Any]]]:
        return {}

    def _framework(self) -> Any:
        return import_torch()

    def _tables(self, like: Any) -> Iterable[tuple[tuple[int, ...], Any]]:
        key = (like.device, like.dtype)
        if key not in self._kept:
            self._kept[key] = super()._tables(like)
        return self._kept[key]

    def _tensor(self, value: Any, like: Any) -> Any:
        return import_torch().as_tensor(value, dtype=like.dtype, device=like.device)

    def _dot(self, table: Any, vector: Any) -> Any:
        return table @ vector

    def __getstate__(self) -> dict[str, Any]:
        """Without the tensors that are kept for each device."""
        return {"times": self.times}


class KerasExpectedLatency(ExpectedLatency):
    """With Keras 3, on any of its backends.

    Tensors are made anew each time: constants of the graph where there is one; kept, they would be of a
    graph that is gone.
    """

    def _framework(self) -> Any:
        return import_keras().ops

    def _tensor(self, value: Any, like: Any) -> Any:
        return self._framework().convert_to_tensor(value, dtype=like.dtype)

    def _dot(self, table: Any, vector: Any) -> Any:
        return self._framework().sum(table * vector, axis=-1)


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
        vectors = {i: given[n] for i, n in enumerate(names) if n in given}
    else:
        # A symbolic tensor has no length and cannot be iterated, but has a shape and can be indexed.
        count = int(given.shape[0]) if hasattr(given, "shape") else len(given)
        if count != len(positions):
            raise InputError(
                f"{count} vectors for {len(positions)} positions; expected one for each, in order, or a "
                "dict by name"
            )
        vectors = {i: given[i] for i in range(count)}
    for index, position in enumerate(positions):
        count = len(position.choices)
        shape = tuple(vectors[index].shape) if index in vectors else None
        if shape != (count,) and (shape is not None or count > 1):
            there = "nothing" if shape is None else f"shape {shape}"
            raise InputError(
                f"{there} for position {position.name!r}; expected a vector of {count}, one a choice"
            )
    return vectors
