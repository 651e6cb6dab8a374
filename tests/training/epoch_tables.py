"""A device made up by hand, its epochs, and networks by name: what the tests of training models share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.io.tables import parse_table, to_csv
from lolat.model.file import FORMAT_VERSION, SCHEMA
from lolat.training import fitting
from lolat.training.fitting import REQUIRED, TERMS, EpochTraining
from tests import synthetic

ACCESSES = {"sgd": 3, "momentum": 5, "adam": 7}  # gradient; weight and each slot in and out


@dataclass(frozen=True)
class Epoch:
    """A row of a table."""

    network: str
    batch_size: int
    samples: int
    optimizer: str
    epoch_s: float


def read(network: str) -> Graph:
    """`s2w16x28`: two stages, 16 channels, 28 pixels."""
    stages, rest = network[1:].split("w")
    width, size = rest.split("x")
    return synthetic.network(int(stages), int(width), int(size), network)


def networks() -> list[str]:
    return [f"s{s}w{w}x{x}" for s in (1, 2, 4) for w in (8, 32, 64) for x in (14, 28, 56)]


def by_hand(network: str) -> int:
    """Parameters of `synthetic.network`: convolutions without bias, batch norms, a dense layer."""
    stages, rest = network[1:].split("w")
    width = int(rest.split("x")[0])
    convolutions = 9 * 3 * width + 2 * int(stages) * 9 * width * width
    return convolutions + 2 * int(stages) * 2 * width + width * 1000 + 1000


def iteration_ms(network: str, batch_size: int, optimizer: str = "sgd") -> float:
    """A device that costs 3 ms a step, 20 us an operation, and so much by MAC, element and update."""
    total = count(read(network)).total(batch_size)
    work = 1e-9 * total.flops + 2e-7 * total.traffic + 3e-7 * (total.acts + total.inp)
    return 3.0 + 0.02 * total.ops + work + 1e-7 * by_hand(network) * ACCESSES[optimizer]


def epoch(network: str, batch_size: int, samples: int, optimizer: str = "sgd", drop_last: bool = False,
          noise: float = 0.0) -> Epoch:  # fmt: skip
    """As that device would run it, the last batch (unless dropped) with what is left."""
    full, rest = divmod(samples, batch_size)
    total = full * iteration_ms(network, batch_size, optimizer)
    if rest and not drop_last:
        total += iteration_ms(network, rest, optimizer)
    return Epoch(network, batch_size, samples, optimizer, 1e-3 * total * float(np.exp(noise)))


def epochs(rows: int = 60, optimizers: Sequence[str] = ("sgd", "adam"), drop_last: bool = False,
           noise: float = 0.02, seed: int = 0) -> list[Epoch]:  # fmt: skip
    random = np.random.default_rng(seed)
    found = []
    for _ in range(rows):
        network, batch_size = str(random.choice(networks())), int(2 ** random.integers(1, 7))
        samples, optimizer = int(random.integers(200, 3000)), str(random.choice(optimizers))
        off = noise * random.standard_normal()
        found.append(epoch(network, batch_size, samples, optimizer, drop_last, off))
    return found


def text(rows: Sequence[Epoch]) -> str:
    return to_csv(REQUIRED, [[getattr(row, name) for name in REQUIRED] for row in rows])


def table(path: Path, rows: Sequence[Epoch]) -> Path:
    path.write_text(text(rows))
    return path


def fit(
    rows: Sequence[Epoch],
    reader: Callable[[str], Graph] = read,
    name: str = "a desk",
    drop_last: bool = False,
) -> EpochTraining:
    """What is fitted to a table of these rows."""
    return fitting.fit(parse_table(text(rows), "epochs.csv", REQUIRED), reader, name, drop_last)


def document(**more: Any) -> dict[str, Any]:
    """A model file with a coefficient for each term, a millionth of 1, 2, 3 ...; `more`: in its section."""
    return {
        "schema": SCHEMA, "version": FORMAT_VERSION, "name": "V100", "device": "V100",
        "environment": {"device": "V100", "source": "a table of epochs"}, "epochs": section(**more),
    }  # fmt: skip


def section(**more: Any) -> dict[str, Any]:
    return {
        "coefficients_ms": {t: 1e-6 * n for n, t in enumerate(TERMS, 1)},
        "residuals": np.linspace(-0.1, 0.1, 30).tolist(), "drop_last": False, "optimizers": ["sgd"],
        "kinds": ["conv", "dense", "memory traffic"], "points": [], **more,
    }  # fmt: skip
