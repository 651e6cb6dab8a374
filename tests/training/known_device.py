"""A device whose operations take what is easy to work out, as a profile; and a network for it."""

from __future__ import annotations

from typing import Any

from lolat.graph import Graph, GraphBuilder
from lolat.graph.work import CLASSES, PRODUCTS

MACS_PER_MS, BYTES_PER_MS = 1e6, 1e5
NOTHING, ENDLESS = 1e-12, 1e24
PRODUCT = {"rate": MACS_PER_MS, "bandwidth": ENDLESS}
MOVING = {"bandwidth": BYTES_PER_MS}
TERMS = {name: PRODUCT if name in PRODUCTS else MOVING for name in CLASSES}
RESIDUALS = [0.01 * n for n in range(1, 20)]  # the 18th of 19 is what 90 % stay below
TOKENS, WIDE, NARROW = 128, 256, 128


def document(classes: dict[str, Any] | None = None, **entry: Any) -> dict[str, Any]:
    """A profile of a data sheet; `classes`: further ones, `entry`: more of its entry."""
    return {
        "schema": "lolat-model",
        "version": 1,
        "name": "sheet",
        "device": "v100-pcie-32gb (data sheet)",
        "default": "kernels",
        "points": [],
        "noise": {},
        "domain": {},
        "warnings": [],
        "environment": {"device": "unknown", "framework": "torch", "source": "devices.csv"},
        "predictors": {
            "kernels": {
                "coefficients": {"flops": 1e-6, "traffic": 4e-5, "ops": 0.0},
                "multiprocessors": 1,
                "classes": TERMS | (classes or {}),
                "launch_ms": NOTHING,
                "step_ms": NOTHING,
                "measured": [],
                "residuals": RESIDUALS,
                **entry,
            }
        },
    }


def network(framework: str = "torch") -> Graph:
    """128 tokens of 128 features -> dense 256 -> relu -> dropout -> dense 128, no bias: whole tiles."""
    b = GraphBuilder("small", framework)
    x = b.input((1, TOKENS, NARROW))
    x = b.add("dense", [x], (1, TOKENS, WIDE), in_features=NARROW, out_features=WIDE, bias=False)
    x = b.add("relu", [x], (1, TOKENS, WIDE))
    x = b.add("dropout", [x], (1, TOKENS, WIDE), rate=0.1)
    out = (1, TOKENS, NARROW)
    return b.build([b.add("dense", [x], out, in_features=WIDE, out_features=NARROW, bias=False)])


PARAMETERS = 2 * NARROW * WIDE


MOVED_BACK = 1.5
"""Times as long as forward, that the backward pass of what moves element by element usually takes."""


def by_hand(n: int, optimizer: str = "sgd") -> dict[str, float]:
    """Parts of an iteration on n samples, ms.

    A dense layer has two gradients, each a product as large as its own; of what the network reads nobody
    wants one. Relu reads its gradient and its result backward, and writes; a dropout moves as much as
    forward (in, out, a byte of mask). The loss, a softmax, reads and writes what comes out, and one and a
    half times as much backward.
    """
    dense = n * TOKENS * NARROW * WIDE / MACS_PER_MS
    relu = n * TOKENS * WIDE * 2 * 4 / BYTES_PER_MS
    dropout = n * TOKENS * WIDE * (4 + 4 + 1) / BYTES_PER_MS
    loss = n * TOKENS * NARROW * 2 * 4 / BYTES_PER_MS
    accesses = {"sgd": 3, **dict.fromkeys(("momentum", "rmsprop", "adagrad", "lion"), 5)}
    accesses |= {"adamw8bit": 4}  # two states of a byte; others: 7
    return {
        "forward": 2 * dense + relu + dropout + loss,
        "backward": 3 * dense + MOVED_BACK * (1.5 * relu + dropout) + 1.5 * loss,
        "update": PARAMETERS * 4 * accesses.get(optimizer, 7) / BYTES_PER_MS,
        "exchange": 0.0,
    }


def inference_by_hand(n: int) -> float:
    """A forward pass of inference, ms: no dropout, no loss."""
    dense = n * TOKENS * NARROW * WIDE / MACS_PER_MS
    return 2 * dense + n * TOKENS * WIDE * 2 * 4 / BYTES_PER_MS
