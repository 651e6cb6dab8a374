"""A device made up by hand, its epochs, and networks by name: what the tests of training models share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lolat.device.file import DeviceFile
from lolat.device.schema import FORMAT_VERSION, SCHEMA
from lolat.graph import Graph
from lolat.graph.counts import count
from lolat.io.tables import to_csv
from lolat.training.epochs import EPOCH_COLUMNS, EPOCH_TERMS, EpochTraining, epochs_document
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


def epoch(network: str, batch_size: int, samples: int, optimizer: str = "sgd",
          noise: float = 0.0) -> Epoch:  # fmt: skip
    """As that device would run it, the last batch with what is left."""
    full, rest = divmod(samples, batch_size)
    total = full * iteration_ms(network, batch_size, optimizer)
    total += iteration_ms(network, rest, optimizer) if rest else 0.0
    return Epoch(network, batch_size, samples, optimizer, 1e-3 * total * float(np.exp(noise)))


def epochs(rows: int = 60, noise: float = 0.02, seed: int = 0) -> list[Epoch]:
    """Rows drawn at random, of sgd and adam."""
    random = np.random.default_rng(seed)
    table = []
    for _ in range(rows):
        network, batch_size = str(random.choice(networks())), int(2 ** random.integers(1, 7))
        samples, optimizer = int(random.integers(200, 3000)), str(random.choice(["sgd", "adam"]))
        off = noise * random.standard_normal()
        table.append(epoch(network, batch_size, samples, optimizer, off))
    return table


def write(path: Path, rows: Sequence[Epoch]) -> Path:
    """The rows as a CSV file."""
    path.write_text(
        to_csv(EPOCH_COLUMNS, [[getattr(row, name) for name in EPOCH_COLUMNS] for row in rows])
    )
    return path


def fit(rows: Sequence[Epoch], folder: Path) -> EpochTraining:
    """The model of a table of these rows."""
    path = write(folder / "epochs.csv", rows)
    made = epochs_document(str(path), "m", "a desk", lambda name, _: read(name), print)
    return EpochTraining(DeviceFile(made), "m.json")


def document(**more: Any) -> dict[str, Any]:
    """A profile with a coefficient for each term, a millionth of 1, 2, 3 ...; `more`: in its section."""
    return {
        "schema": SCHEMA, "version": FORMAT_VERSION, "name": "V100", "device": "V100",
        "environment": {"device": "V100", "source": "a table of epochs"}, "epochs": section(**more),
    }  # fmt: skip


def section(**more: Any) -> dict[str, Any]:
    return {
        "coefficients_ms": {t: 1e-6 * n for n, t in enumerate(EPOCH_TERMS, 1)},
        "residuals": np.linspace(-0.1, 0.1, 30).tolist(), "optimizers": ["sgd"],
        "kinds": ["conv", "dense", "memory traffic"], "points": [], **more,
    }  # fmt: skip
