"""The constants of lolat/training/estimate.py: what training takes in latencies, and how sure that is.

    python benchmarks/training_estimate.py

Of the shipped models that know inference and training both, over the zoo's networks (graphs.json.xz). The
ratios of each device, robustly fitted; then each device's training is estimated by those of the others.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent / "zoo"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from measure import graphs

from lolat.fitting.least_squares import fit_relative
from lolat.graph import Graph
from lolat.io.documents import read_json
from lolat.io.paths import find_model
from lolat.model import load
from lolat.training.estimate import KNOWN, ForwardTraining, Ratios, _work, typical
from lolat.training.file import load_training
from lolat.training.iteration import optimizer_named

BATCH_SIZES = (8, 32)
QUANTILES = 39


def ratios(device: str, networks: dict[str, Graph]) -> Ratios:
    """What the passes of a device take."""
    trained, latency, sgd = load_training(device), load(device), optimizer_named("sgd")
    rows, passes = [], []
    for graph in networks.values():
        for n in BATCH_SIZES:
            rows.append([1.0, float(_work(graph, n)[1].sum())])
            parts, inference = trained.parts(graph, n, sgd), latency.predict(graph, n).latency_ms
            passes.append([parts[p] / inference for p in ("forward", "backward")])
    each = [fit_relative(np.array(rows), column) for column in np.array(passes).T]
    return Ratios(*(round(float(c), 2) for found in each for c in found))


def errors(device: str, networks: dict[str, Graph], used: Ratios) -> list[float]:
    """log(training / estimate) of a device's iterations, estimated by `used`."""
    path = str(find_model(device))
    estimate = ForwardTraining(read_json(path, ""), path, "", used)
    trained, sgd = load_training(device), optimizer_named("sgd")
    return [
        float(
            np.log(sum(trained.parts(g, n, sgd).values()) / sum(estimate.parts(g, n, sgd).values()))
        )
        for g in networks.values()
        for n in BATCH_SIZES
    ]


def main() -> None:
    """Print the constants."""
    networks = graphs()
    found = {device: ratios(device, networks) for device in KNOWN}
    of = np.arange(1, QUANTILES + 1) / (QUANTILES + 1)
    left_out = []
    for device, own in found.items():
        error = errors(device, networks, typical([r for d, r in found.items() if d != device]))
        left_out.append(np.quantile(np.abs(error), of))
        median, most = np.median(error), np.quantile(np.abs(error), 0.9)
        print(f'"{device}": {own}  left out: median {median:+.2f}, 90 % within {most:.2f}')
    print("LEFT_OUT =", np.round(np.max(left_out, axis=0), 3).tolist())


if __name__ == "__main__":
    main()
