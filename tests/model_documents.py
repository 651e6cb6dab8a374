"""A small model document that every test of model files starts from, written out by hand."""

from __future__ import annotations

import json
import random
from typing import Any


def small() -> dict[str, Any]:
    """A valid document; a new one each time, free to be changed."""
    return {
        "schema": "lolat-model",
        "version": 1,
        "name": "desk",
        "device": "cpu",
        "default": "extended",
        "predictors": {
            "two-regime": {
                "coefficients": {"acts": 2e-7, "inp": 0, "flops": 3.5e-9, "call": 0.25},
                "breakpoint_ms": 1.5,
                "slope": 0.5,
                "offset_ms": -0.01,
                "residuals": [-0.1, 0.2],
                "error": {"left_out": {"median": 0.14}},
            },
            "extended": {"coefficients": {"acts": 1e-7}, "error": {"left_out": {"median": 0.07}}},
        },
        "points": [
            {
                "name": "conv 3x3", "batch_size": 8, "acts": 100352, "inp": 50176, "flops": 115605504,
                "traffic": 0, "weights": 36864, "ops": 3, "latency_ms": 1.25,
                "samples_ms": [1.25, 1, 1.5],
            },
            {
                "name": "from a table", "batch_size": 1, "acts": 1, "inp": 1, "flops": 1,
                "traffic": None, "weights": None, "ops": None, "latency_ms": 3, "samples_ms": None,
            },
        ],
        "environment": {"cpu": "AMD EPYC", "threads": 2},
        "noise": {"drift": 0.01},
        "domain": {},
        "warnings": ["noisy"],
    }  # fmt: skip


def large(points: int = 110, samples: int = 45, seed: int = 0) -> dict[str, Any]:
    """A valid document of the size of a real one: about 5000 raw times."""
    random_numbers = random.Random(seed)
    document = small()
    document["points"] = [
        dict(
            document["points"][0],
            name=f"block {index}",
            acts=random_numbers.randrange(10**9),
            samples_ms=[random_numbers.uniform(0.1, 9.0) for _ in range(samples)],
        )
        for index in range(points)
    ]
    return document


def as_json(document: Any) -> bytes:
    """The document as plain JSON, by the standard library alone."""
    return json.dumps(document).encode()
