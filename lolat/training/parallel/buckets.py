"""What of the exchange the backward pass hides: gradients leave in buckets while others are computed.

The model of PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed", VLDB 2020): gradients
fill a bucket in the order in which they become ready, from the last layer to the first; a full bucket is
exchanged, one bucket at a time, while the backward pass goes on. What is still on its way when the pass
ends is what an iteration waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lolat.errors import InputError

BUCKET_BYTES = 25 * 2**20
"""DistributedDataParallel's `bucket_cap_mb` of 25."""
FIRST_BUCKET_BYTES = 2**20
"""Its first bucket is of 1 MiB, so that the link has something to do early."""


def fill_buckets(
    gradient_bytes: Sequence[float],
    bucket_bytes: float = BUCKET_BYTES,
    first_bytes: float = FIRST_BUCKET_BYTES,
) -> list[list[int]]:
    """Which variables travel together: indices into `gradient_bytes`, in the order of departure.

    `gradient_bytes`: (variables,), as in the forward pass; they leave from the last to the first. A bucket
    goes as soon as it holds `bucket_bytes` (the first one: `first_bytes`) or more. InputError for negative
    bytes or a limit that is not positive.
    """
    if min(bucket_bytes, first_bytes) <= 0:
        raise InputError(
            f"a bucket of {min(bucket_bytes, first_bytes):g} bytes holds nothing; expected more than 0"
        )
    if any(not 0 <= size < float("inf") for size in gradient_bytes):
        raise InputError(
            "gradients have negative or infinite bytes; expected 0 or more of each variable"
        )
    found: list[list[int]] = []
    bucket: list[int] = []
    held, limit = 0.0, first_bytes
    for index in reversed(range(len(gradient_bytes))):
        bucket.append(index)
        held += gradient_bytes[index]
        if held >= limit:
            found.append(bucket)
            bucket, held, limit = [], 0.0, bucket_bytes
    return [*found, bucket] if bucket else found


def exposed_ms(
    gradient_bytes: Sequence[float],
    backward_ms: Sequence[float],
    exchange: Callable[[float], float],
    bucket_bytes: float = BUCKET_BYTES,
    first_bytes: float = FIRST_BUCKET_BYTES,
) -> float:
    """How long the devices still exchange after their backward pass has ended, ms.

    `gradient_bytes`, `backward_ms`: (variables,), as in the forward pass: the bytes of each variable's
    gradient and the part of the backward pass that computes it. `exchange`: bytes -> ms. InputError where
    the two differ in length or a time is negative.
    """
    if len(gradient_bytes) != len(backward_ms):
        raise InputError(
            f"{len(gradient_bytes)} gradients, but {len(backward_ms)} times of the backward pass; "
            "expected one time for each gradient"
        )
    if any(not 0 <= part < float("inf") for part in backward_ms):
        raise InputError(
            "the backward pass has a negative or infinite time; expected 0 or more ms of each"
        )
    computed = free = 0.0
    for bucket in fill_buckets(gradient_bytes, bucket_bytes, first_bytes):
        computed += sum(backward_ms[i] for i in bucket)
        free = max(computed, free) + exchange(sum(gradient_bytes[i] for i in bucket))
    return max(0.0, free - computed)
