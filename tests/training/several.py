"""Three GPUs, their prices, and a network that is trained on them."""

from __future__ import annotations

import lolat as package
from lolat.graph import Graph
from lolat.training.compare import Costs, compare
from tests import synthetic

HEAD = "InstanceType,Price,AcceleratorName,AcceleratorCount\n"
PRICES = f"{HEAD}v,2,V100-32GB,1\nvv,4,V100-32GB,2\na,3,A100,1\n"
GPUS = ("v100-fp32", "a100-fp32", "p4-fp32")


def network() -> Graph:
    return synthetic.network(width=64, size=56)


def asked(prices: str, precision: str | None = None, batch_size: int | str = 64) -> Costs:
    models = [package.load(name) for name in GPUS]
    ask = {"samples": 10_000, "prices": prices, "replicas": ()}
    return compare(models, network(), (precision, None, None), [batch_size], {}, **ask)
