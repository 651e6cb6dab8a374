"""Optimizers: the states that each keeps for a parameter, and the memory traffic of an update."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Optimizer:
    """An optimizer with the defaults of TensorFlow and PyTorch (RMSprop without momentum).

    `states`: numbers per parameter that the optimizer keeps between updates; `state_bytes`: bytes of one
    such number, None if it has the weight's data type. `temporary`: numbers per parameter that PyTorch's
    `foreach` update (the default on a GPU) allocates and frees.
    """

    name: str
    states: int
    state_bytes: int | None = None
    temporary: int = 0

    @property
    def accesses(self) -> int:
        """Elements that an update reads and writes per parameter: gradient, parameter and states.

        A state of fewer bytes counts as a fraction of a float32.
        """
        return 3 + 2 * self.states * (4 if self.state_bytes is None else self.state_bytes) // 4


_ADAM = Optimizer("adam", 2, temporary=1)
OPTIMIZERS = {
    "sgd": Optimizer("sgd", 0), "momentum": Optimizer("momentum", 1),
    "rmsprop": Optimizer("rmsprop", 1, temporary=1), "adagrad": Optimizer("adagrad", 1, temporary=2),
    "adam": _ADAM, "adamw": _ADAM, "adadelta": Optimizer("adadelta", 2, temporary=2),
    "lion": Optimizer("lion", 1), "adamw8bit": Optimizer("adamw8bit", 2, 1),
}  # fmt: skip
"""Optimizers by name. AdamW has the memory traffic of Adam. Each 8-bit state (Dettmers et al. 2022) has one
byte; its scale, a float32 per block of 256 states, is not counted."""
