"""What a training run is asked for with, checked: optimizers and sizes."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from lolat.errors import InputError


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


_SLOTS = {"sgd": 0, "momentum": 1, "rmsprop": 1, "adagrad": 1, "adam": 2, "adadelta": 2}
OPTIMIZERS = {name: Optimizer(name, slots) for name, slots in _SLOTS.items()}
"""Those known, as TensorFlow and PyTorch have them by default (RMSprop without momentum)."""


def optimizer_named(name: str) -> Optimizer:
    """The optimizer of that name, in capitals or not; InputError for one that is not known."""
    key = name.strip().lower()
    if key not in OPTIMIZERS:
        near = difflib.get_close_matches(key, OPTIMIZERS, n=1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise InputError(f"optimizer {name!r}: {hint}expected one of {', '.join(OPTIMIZERS)}")
    return OPTIMIZERS[key]


def check_sizes(batch_size: Any, samples: Any, epochs: Any, validation: Any = None) -> None:
    """InputError unless all are whole numbers from 1 and a batch fits the data.

    `samples` and `validation`, the samples of an evaluation, may be None.
    """
    named = {"batch size": batch_size, "epochs": epochs}
    named |= {} if samples is None else {"samples": samples}
    named |= {} if validation is None else {"validation samples": validation}
    for name, value in named.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
            raise InputError(f"{name} {value!r}: expected a whole number from 1")
    if samples is not None and batch_size > samples:
        raise InputError(
            f"a batch of {batch_size} is larger than the data set of {samples} samples; give a smaller "
            "batch size, or more samples"
        )
