"""The study's own ways, from layers, beside the formula: several devices, and one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.replicas.layers import (
    fit_launch_ms,
    overlapped_ms,
    study_mirrored_ms,
    summed_ms,
)
from benchmarks.replicas.runs import RunsFormula
from benchmarks.replicas.study import CIFAR, MNIST, PATCH, Epochs, shown, table_of

CORRECTION = 1.5  # the study's


def study_table(data: Path, epochs: Epochs) -> Iterator[str]:
    """PatchCamelyon on two GPUs: the study's way, as they report it, and the formula without those rows."""
    rows = table_of(data / "cccis2020_patch_camelyon_predicted.csv")
    single: dict[int, list[float]] = {}
    mirrored: dict[int, float] = {}
    for row in rows:
        batch, ms = int(row["batch_per_replica"]), float(row["predicted_ms"])
        if row["strategy"] == "single":
            single.setdefault(batch, []).append(ms)
        else:
            mirrored[batch] = ms
    held = (epochs.network == PATCH) & (epochs.runs.devices > 1)
    fit = ~(held & (epochs.runs.batch_size > 8))  # the smallest batch tells the link
    formula = RunsFormula.fit(epochs.runs.select(fit), epochs.iteration_ms[fit])
    yield "| samples per GPU | measured | the study's way | with its correction | the formula |"
    yield "| --: | --: | --: | --: | --: |"
    for batch in sorted(single):
        row = held & (epochs.runs.batch_size == batch)
        measured = float(epochs.iteration_ms[row][0])
        plain, corrected = (
            float(study_mirrored_ms(single[batch], [mirrored[batch]], by)[0])
            for by in (1.0, CORRECTION)
        )
        ours = float(formula.predict(epochs.runs.select(row))[0])
        cells = [f"{ms:.1f} ms, {100 * (ms / measured - 1):+.1f} %" for ms in (plain, corrected)]
        last = f"{ours:.1f} ms, {100 * (ours / measured - 1):+.1f} %"
        cells.append(f"({last}: fitted on)" if batch == 8 else last)
        yield f"| {batch} | {measured:.1f} ms | {' | '.join(cells)} |"


def layers_table(data: Path, epochs: Epochs) -> Iterator[str]:
    """One GPU from its layers: the plain sum, and a launch fitted on the other network."""
    rows = table_of(data / "cccis2020_layers.csv")
    layers: dict[str, np.ndarray] = {}
    measured: dict[str, np.ndarray] = {}
    for name in (MNIST, CIFAR):
        batches = sorted({int(r["batch_size"]) for r in rows if r["network"] == name})
        layers[name] = np.array(
            [
                [
                    float(r["layer_ms"])
                    for r in rows
                    if r["network"] == name and int(r["batch_size"]) == batch
                ]
                for batch in batches
            ]
        )
        of = (epochs.network == name) & (epochs.runs.devices == 1)
        measured[name] = epochs.iteration_ms[of][np.argsort(epochs.runs.batch_size[of])]
    yield "| network | way | fitted on | predicted | median | mean | largest |"
    yield "| --- | --- | --- | --: | --: | --: | --: |"
    for name, other in ((MNIST, CIFAR), (CIFAR, MNIST)):
        plain = summed_ms(layers[name]) / measured[name] - 1.0
        yield f"| {name} | the study's sum | - | {len(plain)} | {shown(plain)} |"
        every = slice(0, None, 2)
        for words, source, fit, test in (
            (f"{other}", other, slice(None), slice(None)),
            ("every other batch size", name, every, slice(1, None, 2)),
        ):
            alone = float(layers[source][fit].min())
            launch = fit_launch_ms(layers[source][fit], measured[source][fit], alone)
            error = overlapped_ms(layers[name][test], alone, launch) / measured[name][test] - 1.0
            yield f"| {name} | launches or computing | {words} | {len(error)} | {shown(error)} |"
