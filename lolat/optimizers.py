"""Optimizers: the states that each keeps of a parameter, and what an update moves."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Optimizer:
    """An optimizer with the defaults of TensorFlow and PyTorch (RMSprop without momentum).

    `states`: the numbers that it keeps for each parameter from one update to the next; `state_bytes`: of
    each, None: as many as the weight that it updates. `temporary`: the numbers of each parameter that
    PyTorch's `foreach` update makes and frees, which is torch.optim's default on a GPU.
    """

    name: str
    states: int
    state_bytes: int | None = None
    temporary: int = 0

    @property
    def accesses(self) -> int:
        """Elements that an update reads and writes for each parameter: gradient, itself, states.

        A state of another size counts by its part of a float32.
        """
        return 3 + 2 * self.states * (4 if self.state_bytes is None else self.state_bytes) // 4


_ADAM = Optimizer("adam", 2, temporary=1)
OPTIMIZERS = {
    "sgd": Optimizer("sgd", 0), "momentum": Optimizer("momentum", 1),
    "rmsprop": Optimizer("rmsprop", 1, temporary=1), "adagrad": Optimizer("adagrad", 1, temporary=2),
    "adam": _ADAM, "adamw": _ADAM, "adadelta": Optimizer("adadelta", 2, temporary=2),
    "lion": Optimizer("lion", 1), "adamw8bit": Optimizer("adamw8bit", 2, 1),
}  # fmt: skip
"""Optimizers by name. AdamW is Adam: its decay reads and writes nothing more. States in 8 bits
(Dettmers et al. 2022) have a byte each; a float32 for each block of 256 besides is not counted."""
