"""Passes, updates, epochs and starts of a device made up by hand: what the tests of learning share."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from lolat.training.measured import (
    EpochPoint,
    PassPoint,
    Points,
    StartPoint,
    UpdatePoint,
    named_terms,
    training_section,
)
from lolat.training.pass_counts import PASS_TERMS

FORWARD = {"flops": 1e-8, "traffic": 4e-7, "ops": 0.01, "norm_traffic": 3e-7, "call": 0.2}
BACKWARD = {"flops": 2e-8, "traffic": 9e-7, "kernels": 5e-7, "own_groups": 0.05, "call": 0.05}
UPDATES = {"sgd": (0.01, 3e-7), "adam": (0.03, 1.5e-6)}
"""Optimiser -> ms for a variable and for a parameter."""


def passes(blocks: int = 60, noise: float = 0.02, seed: int = 0) -> list[PassPoint]:
    """Forward and both passes of blocks at batch size 1, each term of its own size, relative `noise`."""
    random = np.random.default_rng(seed)
    sizes = {"flops": 1e8, "ops": 20.0, "serial": 15.0, "flat_norms": 2.0, "groups": 8.0}
    sizes["own_groups"] = 32.0
    points = []
    for i in range(blocks):
        usual = np.array([sizes.get(t, 1e6) for t in PASS_TERMS])
        terms = (usual * np.exp(random.normal(0.0, 1.2, len(PASS_TERMS)))).round() + 1.0
        terms *= random.random(len(PASS_TERMS)) < 0.7  # not every block has everything
        for backward in (False, True):
            time = _time(FORWARD, terms) + backward * _time(BACKWARD, terms)
            time *= float(np.exp(noise * random.standard_normal()))
            kinds = ("conv", "memory traffic") if i % 2 else ("conv",)
            measured = (time, (time,) * 2, 0.01)
            points.append(
                PassPoint(f"block {i}", 1, backward, named_terms(terms), *measured, kinds)
            )
    return points


def _time(coefficients: dict[str, float], terms: np.ndarray) -> float:
    row = dict(zip(PASS_TERMS, terms.tolist(), strict=True)) | {"call": 1.0}
    return sum(c * row[t] for t, c in coefficients.items())


def updates() -> list[UpdatePoint]:
    return [
        UpdatePoint(name, n, p, 0.2 + variable * n + parameter * p)
        for name, (variable, parameter) in UPDATES.items()
        for n, p in ((1, 1024), (64, 65536), (16, 2**22))
    ]


def epochs() -> list[EpochPoint]:
    return [
        EpochPoint(n, e, 40.0 + 0.7 * n + 2e-6 * n * e)
        for n, e in ((1, 1536), (33, 1536), (9, 1204224))
    ]


def starts() -> list[StartPoint]:
    """300 ms, 14 ms an operation, 50 ms a variable of adam's and 20 of momentum's."""
    sizes = (
        ("sgd", 55, 53, 0),
        ("sgd", 110, 99, 0),
        ("adam", 55, 53, 50),
        ("momentum", 55, 53, 20),
    )
    return [StartPoint(name, n, v, 300.0 + 14 * n + each * v) for name, n, v, each in sizes]


@functools.cache
def section(noise: float = 0.02, blocks: int = 60) -> dict[str, Any]:
    """What a profile has under "training"."""
    where = {"framework": "tensorflow", "framework_version": "2.21.0", "device": "cpu"}
    noises = {"floor": 0.03, "quiet": 0.9, "busy": 1.2}
    made = Points(passes(blocks, noise), updates(), epochs(), starts())
    return training_section(made, where, noises, ["the machine was busy"])
