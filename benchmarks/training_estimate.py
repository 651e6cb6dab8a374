"""The constants of lolat/training/estimate.py: what training takes in latencies, and how sure that is.

Of the bundled profiles that know inference and training both, over the zoo's networks (graphs.json.xz). The
ratios of each device, robustly fitted; then each device's training is estimated by those of the others.
"""

from __future__ import annotations

import numpy as np

from benchmarks.runner import Tables, benchmark
from benchmarks.zoo.measure import graphs
from lolat.api.model import Model
from lolat.fitting.least_squares import fit_relative
from lolat.graph import Graph
from lolat.optimizers import OPTIMIZERS
from lolat.training.estimate import RATIOS, ForwardTraining, Ratios, operation_work
from lolat.training.plan import training_of

BATCH_SIZES = (8, 32)
QUANTILES = 39


def ratios(device: str, networks: dict[str, Graph]) -> Ratios:
    """Fit forward and backward over inference, each as a constant and a slope in work per operation."""
    latency, sgd = Model.load(device), OPTIMIZERS["sgd"]
    trained = training_of(latency)
    rows, passes = [], []
    for graph in networks.values():
        for n in BATCH_SIZES:
            rows.append([1.0, float(operation_work(graph, n)[1].sum())])
            parts = trained.batch(graph, n, sgd).iteration.parts()
            inference = latency.predict(graph, n).latency_ms
            passes.append([parts[p] / inference for p in ("forward", "backward")])
    each = [fit_relative(np.array(rows), column) for column in np.array(passes).T]
    a, b, c, d = (round(float(c), 2) for found in each for c in found)
    return a, b, c, d


def errors(device: str, networks: dict[str, Graph], used: list[Ratios]) -> list[float]:
    """log(training / estimate) of a device's iterations, estimated by the ratios of others."""
    known = Model.load(device)
    estimate = ForwardTraining(known.file, known.source, used)
    trained, sgd = training_of(known), OPTIMIZERS["sgd"]
    return [
        float(
            np.log(
                trained.batch(g, n, sgd).iteration.total / estimate.batch(g, n, sgd).iteration.total
            )
        )
        for g in networks.values()
        for n in BATCH_SIZES
    ]


@benchmark("training-estimate", "training", "training")
def training_estimate() -> Tables:
    """Ratios of training and latency, and the quantiles LEFT_OUT of their errors on other devices."""
    networks = graphs()
    found = {device: ratios(device, networks) for device in RATIOS}
    shares = np.arange(1, QUANTILES + 1) / (QUANTILES + 1)
    rows, left_out = [], []
    for device, own in found.items():
        others = [r for d, r in found.items() if d != device]
        error = errors(device, networks, others)
        left_out.append(np.quantile(np.abs(error), shares))
        median, most = np.median(error), np.quantile(np.abs(error), 0.9)
        rows.append([device, str(own), f"{median:+.2f}", f"{most:.2f}"])
    rows.append(["LEFT_OUT", str(np.round(np.max(left_out, axis=0), 3).tolist()), "", ""])
    return {"estimate": (["device", "ratios", "left out: median", "90 % within"], rows)}
