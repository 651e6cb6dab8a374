"""Numbers that a training run is asked for with, checked."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from lolat.errors import InputError


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
