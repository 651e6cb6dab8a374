"""Scaling curves of the study's largest network: what the formulas say up to 4,096 devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.replicas.curves import strong_scaling, weak_scaling
from benchmarks.replicas.runs import FLOAT_BYTES, Runs, RunsFormula
from benchmarks.replicas.study import NETWORKS, PATCH, Epochs
from lolat.report.plots import STYLE
from lolat.training.exchange import exchange_ms
from lolat.training.link import Link
from lolat.units import percent

FIGURE_LINK = Link(100, 0.005)
FIGURE_DEVICES = tuple(2**i for i in range(13))  # 1 to 4,096
WEAK_BATCH, STRONG_BATCH = 64, 16384
COLORS = {"ring": "#0b6e99", "tree": "#d1603d", "one-to-all": "#5b8c3a"}


def scaling_iteration(epochs: Epochs, strategy: str):  # type: ignore[no-untyped-def]
    """(samples, devices) -> ms of an iteration of the PatchCamelyon network on P100s, over FIGURE_LINK."""
    formula = RunsFormula.fit(epochs.runs, epochs.iteration_ms)
    acts, flops, variables = NETWORKS[PATCH].counts()
    sizes = [FLOAT_BYTES * numbers for numbers in variables]

    def iteration(batch_size: int, devices: int) -> float:
        values = (batch_size, acts, flops, sum(variables), len(variables), 1)
        one = Runs(*(np.array([float(v)]) for v in values), optimizer=np.array(["adam"]))  # type: ignore[misc]
        together = devices > 1 and formula.coefficients["synchronisation"]
        waited, _ = exchange_ms(sizes, None, devices, FIGURE_LINK, strategy)
        return float(formula.predict(one)[0]) + together + waited

    return iteration


def curves(epochs: Epochs):  # type: ignore[no-untyped-def]
    """(words, strategy, points) of each curve."""
    for strategy in COLORS:
        iteration = scaling_iteration(epochs, strategy)
        yield "weak", strategy, weak_scaling(iteration, WEAK_BATCH, FIGURE_DEVICES)
        yield "strong", strategy, strong_scaling(iteration, STRONG_BATCH, FIGURE_DEVICES)


def scaling_table(epochs: Epochs) -> Iterator[str]:
    """Efficiency at some numbers of devices."""
    picked = (1, 2, 8, 64, 512, 4096)
    yield f"| efficiency with devices | {' | '.join(f'{k:,}' for k in picked)} |"
    yield f"| --- |{' --: |' * len(picked)}"
    for kind, strategy, points in curves(epochs):
        at = {p.devices: p.efficiency for p in points}
        yield f"| {kind}, {strategy} | {' | '.join(f'{percent(at[k])}' for k in picked)} |"


def draw(epochs: Epochs, path: Path) -> None:
    """Speed-up over the number of devices, weak and strong."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context(STYLE):
        figure = Figure(figsize=(9.6, 4.4), layout="constrained")
        panels = dict(zip(("weak", "strong"), figure.subplots(1, 2, sharey=True), strict=True))
        for kind, strategy, points in curves(epochs):
            panels[kind].plot([p.devices for p in points], [p.speedup for p in points], "o-", ms=3,
                              color=COLORS[strategy], label=strategy)  # fmt: skip
        titles = {
            "weak": f"weak scaling: {WEAK_BATCH} samples on each",
            "strong": f"strong scaling: {STRONG_BATCH:,} samples shared",
        }
        for kind, axes in panels.items():
            axes.plot(FIGURE_DEVICES, FIGURE_DEVICES, color="0.6", lw=1, label="ideal")
            axes.set(xscale="log", yscale="log", xlabel="devices", title=titles[kind],
                     ylim=(0.05, 6000))  # fmt: skip
            axes.set_xticks([1, 4, 16, 64, 256, 1024, 4096])
            for axis in (axes.xaxis, axes.yaxis):
                axis.set_major_formatter("{x:,g}")
                axis.set_minor_formatter("")
            axes.grid(color="0.93")
        panels["weak"].set_ylabel("samples per second, as a multiple of one device's")
        panels["weak"].legend(frameon=False, loc="upper left")
        figure.suptitle(
            f"PatchCamelyon CNN (19.9 M parameters), P100s, link of {FIGURE_LINK.gbps:g} Gbit/s "
            f"and {1000 * FIGURE_LINK.latency_ms:g} µs, nothing hidden by the backward pass",
            fontsize=10,
        )
        figure.savefig(path, metadata={"Date": None})
