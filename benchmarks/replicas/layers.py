"""An iteration from its layers, each timed alone: the MirroredStrategy study's way, and another.

The study (profnote/ml-performance-prediction, its README and DataAnalysis, 2020; Justus et al.'s method)
adds up layers that were each timed as a network of one layer, so that what a call costs is counted once
per layer, and then divides by a correction. The other way counts a call once and lets launching
and computing go on at the same time, as a GPU does.
"""

from __future__ import annotations

import numpy as np

from lolat.errors import InputError


def _layers(layers_ms: object) -> np.ndarray:
    """(iterations, layers) of positive times; InputError for anything else."""
    found = np.atleast_2d(np.asarray(layers_ms, dtype=float))
    if found.size == 0 or not (np.isfinite(found).all() and (found > 0).all()):
        raise InputError(
            "times of layers that are missing, 0 or negative; expected ms above 0 of each"
        )
    return found


def summed_ms(layers_ms: object) -> np.ndarray:
    """One device: the sum of its layers. `layers_ms`: (iterations, layers) -> (iterations,), ms."""
    return _layers(layers_ms).sum(axis=1)


def study_mirrored_ms(
    layers_ms: object, last_mirrored_ms: object, correction: float = 1.0
) -> np.ndarray:
    """The study's way: all layers but the last on one device, the last one under MirroredStrategy.

    `layers_ms`: (iterations, layers without the last); `last_mirrored_ms`: (iterations,); `correction`
    divides the first part (theirs is 1.5). InputError for
    a correction that is not above 0.
    """
    if not correction > 0:
        raise InputError(
            f"a correction of {correction:g} cannot divide a time; expected more than 0"
        )
    return summed_ms(layers_ms) / correction + _layers(last_mirrored_ms).reshape(-1)


def overlapped_ms(layers_ms: object, alone_ms: float, launch_ms: float) -> np.ndarray:
    """One device: a call, then launching its layers or computing them, whichever takes longer.

    `alone_ms`: what a layer with next to nothing to compute takes alone (a call and its launch);
    `launch_ms`: what each further layer takes to launch. alone + max((n-1) launch, sum(layer - alone)).
    """
    found = _layers(layers_ms)
    computing = np.maximum(found - alone_ms, 0.0).sum(axis=1)
    return alone_ms + np.maximum((found.shape[1] - 1) * launch_ms, computing)


def fit_launch_ms(layers_ms: object, iteration_ms: object, alone_ms: float) -> float:
    """The launch of a layer, ms, from iterations of networks: the one with the least median error.

    Every iteration gives a candidate, (iteration - alone) / (n-1); InputError for networks of one layer.
    """
    found = _layers(layers_ms)
    measured = _layers(iteration_ms).reshape(-1)
    if len(found) != len(measured):
        raise InputError(
            f"{len(found)} rows of layers, but {len(measured)} iterations; expected one for each row"
        )
    if found.shape[1] < 2:
        raise InputError("no launch can be told from a network of one layer; expected two or more")
    candidates = np.maximum((measured - alone_ms) / (found.shape[1] - 1), 0.0)
    errors = [
        float(np.median(np.abs(overlapped_ms(found, alone_ms, c) / measured - 1.0)))
        for c in candidates
    ]
    return float(candidates[int(np.argmin(errors))])
