"""Three GPUs, their prices, and a network that is trained on them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lolat as package
from lolat.graph import Graph
from lolat.io.progress import OnProgress
from lolat.training.compare import Costs, compare
from lolat.training.question import TrainingQuestion
from tests import synthetic

HEAD = "InstanceType,Price,AcceleratorName,AcceleratorCount\n"
PRICES = f"{HEAD}v,2,V100-32GB,1\nvv,4,V100-32GB,2\na,3,A100,1\n"


def listed(folder: Path, *rows: str) -> str:
    """The path of a price list with these rows: instance, US$ an hour, accelerator, its number."""
    path = folder / "p.csv"
    path.write_text(HEAD + "\n".join(rows))
    return str(path)


GPUS = ("v100-fp32", "a100-fp32", "p4-fp32")


def network() -> Graph:
    return synthetic.network(width=64, size=56)


def compared(
    names: Sequence[str], precision: str | None, batch_size: int | str, launch: str | None = None,
    on_progress: OnProgress | None = None, **asked: Any,
) -> Costs:  # fmt: skip
    """The cost of the network on bundled devices."""
    question = TrainingQuestion(batch_size, precision=precision, launch=launch, **asked)
    return compare([package.load(n) for n in names], network(), question, {}, on_progress)


def asked(prices: str, precision: str | None = None, batch_size: int | str = 64) -> Costs:
    return compared(GPUS, precision, batch_size, samples=10_000, prices=prices, replicas=())
