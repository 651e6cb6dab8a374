"""What the host needs to start a network's operations, while the device runs those that it has started.

PyTorch starts one operation after the other and waits for none; the device runs each when it has been
started and the one before has ended:

    end[i] = max(end[i - 1], started[i]) + time[i]

Below some batch size that is nearly the host's time, which no GPU makes shorter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import msgspec

from lolat.arrays import np
from lolat.graph.modes import EAGER, GRAPH, Launch
from lolat.graph.work import Work

VIEW = 0.4
"""What a view costs (reshape, transpose ...), of what starting an operation does: the host makes it, the
device does nothing. Chosen, like USUAL_MS, on the first half of the networks that docs/results/gpus.md
judges by published times."""
USUAL_MS = 0.04
"""Of an operation that starts something: ResNet-50, BEiT, ConvNeXt and OwlViT at batch 1 on A100 and V100
by PyTorch 2.0.1 take 0.035 to 0.042 ms each, eager, and as much for each step of torch.compile's."""
BACKWARD = 0.5
"""Of a step of the backward pass, relative: autograd's engine starts those without Python. Assumed."""
GRAPH_MS = 0.0015
"""Of an operation in a CUDA graph: NVIDIA, Getting Started with CUDA Graphs (2019): 0.5 us more than the
kernel; on the GPUs of now 1 to 2 us between two."""
GRAPH_CALLS = 2  # starts of a call of a graph: the copy of the input, the graph
Source = Literal["assumed", "fitted"]
ASSUMED: Source = "assumed"
FITTED: Source = "fitted"
FACTOR = {FITTED: 1.6, ASSUMED: 2.0}
"""How far off the time of a start may be, 90 % sure. Tables tell of hosts that take 0.02 to 0.05 ms; one
that was fitted may still be another host than the user's."""


@dataclass(frozen=True)
class Host:
    """`start_ms`: to start an operation, at most `factor` times as much or as little (90 % sure); `source`:
    FITTED to operations timed alone, or ASSUMED; `launch`: how the table was made.
    """

    start_ms: float
    factor: float
    source: Source
    launch: Launch = EAGER

    def starts(self, work: Work, launch: Launch) -> np.ndarray:
        """(steps,) ms that the host needs for each."""
        if launch == GRAPH:
            own = np.full(len(work.kind), GRAPH_MS)
            return own + GRAPH_CALLS * self.start_ms / max(len(own), 1)
        each = np.where(work.bytes > 0.0, 1.0, VIEW) * np.where(work.backward, BACKWARD, 1.0)
        return self.start_ms * each

    @property
    def half(self) -> float:
        """How far off a start may be, as a logarithm, 90 % sure."""
        return math.log(self.factor)

    def to_dict(self) -> dict[str, Any]:
        """As it stands in a model file."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Host:
        """Read what `to_dict` wrote."""
        return msgspec.convert(document, cls)


def waits(starts_ms: np.ndarray, run_ms: np.ndarray) -> np.ndarray:
    """(steps,) ms that the device waits before each, for the host that takes `starts_ms` to start each;
    `run_ms`: what the device takes for each; all in the order in which they run.
    """
    before = np.cumsum(run_ms) - run_ms
    latest = np.maximum.accumulate(np.cumsum(starts_ms) - before)
    return np.diff(latest, prepend=0.0)
