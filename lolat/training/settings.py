"""Numbers that a training run is asked for with, checked."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from lolat.errors import InputError

# ---- Optimisers: the vectors that they keep for every parameter, and what an update reads and
# writes.


@dataclass(frozen=True)
class Optimizer:
    """`slots`: numbers kept for every parameter from one update to the next."""

    name: str
    slots: int

    @property
    def accesses(self) -> int:
        """Elements that an update reads and writes for every parameter.

        It reads the gradient, and reads and writes the parameter and each slot.
        """
        return 3 + 2 * self.slots


OPTIMIZERS = {
    o.name: o
    for o in (
        Optimizer("sgd", 0),
        Optimizer("momentum", 1),
        Optimizer("rmsprop", 1),
        Optimizer("adagrad", 1),
        Optimizer("adam", 2),
        Optimizer("adadelta", 2),
    )
}
"""Those known, as TensorFlow and PyTorch have them by default (RMSprop without momentum)."""


def optimizer_named(name: str) -> Optimizer:
    """The optimiser of that name, in capitals or not; InputError for one that is not known."""
    found = OPTIMIZERS.get(name.strip().lower())
    if found is None:
        near = difflib.get_close_matches(name.strip().lower(), OPTIMIZERS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"optimizer {name!r}: {hint}expected one of {', '.join(OPTIMIZERS)}")
    return found


# ---- sizes ----------------------------------------


def check_sizes(batch_size: Any, samples: Any, epochs: Any, validation: Any = None) -> None:
    """InputError unless all are whole numbers from 1 and a batch fits the data.

    `samples` and `validation`, the samples of an evaluation, may be None.
    """
    named = {
        "batch size": batch_size,
        "samples": samples,
        "epochs": epochs,
        "validation samples": validation,
    }
    for name, value in named.items():
        if value is None and "samples" in name:
            continue
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise InputError(f"{name} {value!r}: expected a whole number from 1")
    if samples is not None and batch_size > samples:
        raise InputError(
            f"a batch of {batch_size} is larger than the data set of {samples} samples; give a smaller "
            "batch size, or more samples"
        )
